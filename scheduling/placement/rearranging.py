"""A start that others of the same plan make room for: a queue packed as a set.

Jobs are decided in order, each where it leaves most room for others. What is left may be enough
for a later job in all, and on no node. But nothing of the plan has begun: so what it has placed
may change its place, as long as everything keeps one. What runs stays, and so do gangs. A job that
moves finds all that it asked for, no slower links and no less of its data.

The search is a chain of ejections (Glover, "Ejection chains, reference structures and alternating
path methods for traveling salesman problems", 1996), cut short: it takes the nodes where least has
to go, and gives up after a number of tries, so that the same input gets the same plan.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy
from longshore.scheduling.placement.classes import Layout
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.layouts import found_in
from longshore.scheduling.placement.reservations import open_from
from longshore.scheduling.placement.scan import MAX_SCANS, Scan
from longshore.scheduling.placement.state import EPSILON, Need, NodeView
from longshore.scheduling.placement.taken import Place, Taken, cost, hold_of, may_go, order_to_go

TRIES = 5_000
"""Nodes that one plan asks in a search, in all, and"""
TRIES_FOR_ONE = 1_500
"""those for one job: they bound a plan's time. What takes as long counts as so many:"""
_CLASSES_A_TRY = 5
"""classes of nodes that a need is put to for the first time, and"""
_COSTS_A_TRY = 4
"""nodes that are compared, and"""
_JOBS_A_TRY = 64
"""jobs on a node that is asked or compared."""
_NODES = 16, 6, 3
"""Nodes that a search clears for a job, for one that had to go for it, and so on: a chain."""
_OPTIONS = 6
"""Nodes with room that it looks at for one that has to go."""
_MOST_NODES = 128
"""Nodes that are compared by what would have to go."""


_Trial = dict[int, Place]
"""By position: the nodes that a search would change."""


class Rearranging:
    """What one plan has placed, and the search for room among it."""

    def __init__(
        self,
        columns: Columns,
        policy: PackingPolicy,
        scan_of: Callable[[Need], Scan],
        tries: int,
    ) -> None:
        """`scan_of` puts a need to the nodes as they are, with room valued as it was last."""
        self._columns = columns
        self._choice = policy.gpu_choice
        self._ask = scan_of
        self._asked: set[Need] = set()
        """Needs that were put to the nodes lately."""
        self._base: dict[int, NodeView] = {}
        """Nodes that the plan has placed something on, as they were before."""
        self._takes: dict[int, list[Taken]] = {}
        self._count = 0
        """Jobs that were placed, and"""
        self._failed_at: dict[Need, int] = {}
        """how many there were when no room was found for these needs."""
        self._costs: dict[Need, dict[int, int | None]] = {}
        """What has to leave each node for these needs, as the nodes are."""
        self._left = tries
        self._limit = 0

    def take(self, taken: Taken) -> None:
        """Give a node's GPUs to a job of the plan."""
        position = taken.position
        if position not in self._base:
            view = self._columns.views[position]
            self._base[position] = view.copied()
            self._takes[position] = []
        self._takes[position].append(taken)
        self._count += 1
        self._costs.clear()
        self._columns.take(position, taken.hold, taken.vram)

    def placed_at(self, position: int) -> dict[str, JobRequest]:
        """Return the jobs that the plan has placed on a node."""
        return {taken.job.id: taken.job for taken in self._takes.get(position, ())}

    def start(self, job: JobRequest, need: Need) -> dict[str, Taken] | None:
        """Start a job that finds no room, where others can change their places for it.

        Returns the new place of each job that has one, `job` among them; None where no such places
        were found, and then nothing has changed.
        """
        if not self._takes or self._left <= 0 or self._failed_at.get(need) == self._count:
            return None
        self._limit = max(self._left - TRIES_FOR_ONE, 0)
        for depth in range(len(_NODES)):  # a short chain where there is one
            found = self._clear_one(job, need, None, {}, frozenset(), frozenset(), depth)
            if found is not None:
                self._count += 1
                return self._apply(found)
        self._failed_at[need] = self._count
        return None

    def _apply(self, trial: _Trial) -> dict[str, Taken]:
        self._costs.clear()
        before = {
            taken.job.id: (position, taken.chosen)
            for position in trial
            for taken in self._takes.get(position, ())
            if taken.chosen
        }
        for position, place in trial.items():
            self._base.setdefault(position, self._columns.views[position].copied())
            self._takes[position] = list(place.takes)
            self._columns.replace(position, self._view(position, place.takes))
        return {
            taken.job.id: taken
            for place in trial.values()
            for taken in place.takes
            if taken.chosen and before.get(taken.job.id) != (taken.position, taken.chosen)
        }

    def _clear_one(
        self,
        job: JobRequest,
        need: Need,
        before: Taken | None,
        trial: _Trial,
        fixed: frozenset[str],
        barred: frozenset[int],
        depth: int,
    ) -> _Trial | None:
        """Place a job on a node that others have to leave; `before` is what it had, `fixed` are
        jobs that stay, `barred` the nodes that this chain has cleared."""
        for position in self._nodes_for(need, trial, fixed, barred)[: _NODES[len(barred)]]:
            if self._left <= self._limit:
                return None
            cleared = self._clear(position, need, self._place(position, trial), fixed)
            if cleared is None:
                continue
            staying, chosen, leaving = cleared
            if before and not self._serves(before, position, chosen):
                continue
            own = self._taken(job, need, position, chosen)
            tried = {**trial, position: staying.beside(own)}
            stay = fixed | {job.id}
            for taken in sorted(leaving, key=lambda taken: taken.size, reverse=True):
                found = self._put(taken, tried, stay, barred | {position}, depth)
                if found is None:
                    break
                tried, stay = found, stay | {taken.job.id}
            else:
                return tried
        return None

    def _put(
        self,
        taken: Taken,
        trial: _Trial,
        fixed: frozenset[str],
        barred: frozenset[int],
        depth: int,
    ) -> _Trial | None:
        """Place a job that had to go."""
        scan = self._scan_of(taken.need)
        others = [position for position in scan.best(_OPTIONS) if position not in trial]
        for position in (*trial, *others):
            place = self._place(position, trial)
            if not scan.could_last(position):
                continue
            chosen = self._open(position, place, taken.need)
            if chosen and self._serves(taken, position, chosen):
                new = self._taken(taken.job, taken.need, position, chosen)
                return {**trial, position: place.beside(new)}
        if not depth:
            return None
        return self._clear_one(taken.job, taken.need, taken, trial, fixed, barred, depth - 1)

    def _serves(self, taken: Taken, position: int, chosen: Chosen) -> bool:
        """Whether a place has links as fast as a job's own, and as much of its data."""
        assert taken.chosen is not None  # shares of gangs stay
        if chosen.link < taken.chosen.link:
            return False
        scan = self._scan_of(taken.need)
        return scan.held(position) >= scan.held(taken.position)

    def _nodes_for(
        self, need: Need, trial: _Trial, fixed: frozenset[str], barred: frozenset[int]
    ) -> list[int]:
        """Return the nodes to clear, those first that least has to leave."""
        scan = self._scan_of(need)
        if need not in self._costs:
            some = islice(self._takes, 8 * _MOST_NODES)
            suited = [position for position in some if scan.could_last(position)][:_MOST_NODES]
            jobs = sum(len(self._takes[position]) for position in suited)
            self._left -= len(suited) // _COSTS_A_TRY + jobs // _JOBS_A_TRY
            self._costs[need] = {
                position: self._cost(position, need, {}, frozenset()) for position in suited
            }
        self._left -= sum(len(place.takes) for place in trial.values()) // _JOBS_A_TRY
        changed = {
            position: self._cost(position, need, trial, fixed)
            for position in trial
            if scan.could_last(position)
        }
        costs = {**self._costs[need], **changed}
        ordered = sorted((cost, position) for position, cost in costs.items() if cost is not None)
        return [position for _, position in ordered if position not in barred]

    def _cost(self, position: int, need: Need, trial: _Trial, fixed: frozenset[str]) -> int | None:
        place = self._place(position, trial)
        movable = [taken for taken in place.takes if may_go(taken, fixed)]
        return cost(self._columns.views[position].rooms, place, movable, need)

    def _clear(
        self, position: int, need: Need, place: Place, fixed: frozenset[str]
    ) -> tuple[Place, Chosen, list[Taken]] | None:
        """Return a node with what may stay, the GPUs that a job gets then, and what has to go."""
        rooms = self._columns.views[position].rooms
        movable = [taken for taken in place.takes if may_go(taken, fixed)]
        staying, leaving = place, list[Taken]()
        chosen: Chosen | None = None
        for taken in order_to_go(movable, rooms, place, need):
            if self._left <= self._limit:
                return None
            leaving.append(taken)
            staying = staying.without(taken, rooms)
            chosen = self._open(position, staying, need)
            if chosen:
                break
        if chosen is None:
            return None
        for taken in sorted(leaving[:-1], key=lambda taken: taken.size, reverse=True):
            back = staying.beside(taken)
            again = self._open(position, back, need)
            if again:
                staying, chosen = back, again
                leaving.remove(taken)
        return staying, chosen, leaving

    def _scan_of(self, need: Need) -> Scan:
        if need not in self._asked:
            if len(self._asked) >= MAX_SCANS:
                self._asked.clear()
            self._asked.add(need)
            self._left -= self._columns.class_count // _CLASSES_A_TRY
        return self._ask(need)

    def _open(self, position: int, place: Place, need: Need) -> Chosen | None:
        """Return the GPUs that a job would get of a node now."""
        view = self._columns.views[position]
        jobs = len(view.holds) if view.reserved else len(place.takes)
        self._left -= 1 + jobs // _JOBS_A_TRY
        wanted = need.host(view.node.gpu_power)
        for amount, free in zip(wanted, place.host, strict=True):
            if amount > free + EPSILON:
                return None
        if view.reserved:
            view = self._view(position, place.takes)
            return open_from(view, need, self._columns.now, self._choice, free=view.free)
        layout = Layout(view.rooms, place.free, place.parts, view.node.topology)
        found = found_in(layout, need.gpu, self._choice)
        return found if isinstance(found, Chosen) else None

    def _place(self, position: int, trial: _Trial) -> Place:
        if position in trial:
            return trial[position]
        view = self._columns.views[position]
        takes = tuple(self._takes.get(position, ()))
        return Place(takes, view.free, view.parts, view.host_free)

    def _view(self, position: int, takes: Sequence[Taken]) -> NodeView:
        """Return a node as it is with these jobs in place of all that the plan placed there."""
        own = self._columns.views[position]
        view = self._base.get(position, own).copied()
        view.reserved = own.reserved
        for taken in takes:
            view.take(taken.hold, taken.vram)
        return view

    def _taken(self, job: JobRequest, need: Need, position: int, chosen: Chosen) -> Taken:
        columns = self._columns
        node = columns.views[position].node
        return Taken(job, need, position, hold_of(job, need, node, chosen, columns.now), chosen)
