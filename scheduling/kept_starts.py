"""The starts that a plan keeps for jobs that wait: each on GPUs that others hold until then."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy, Reservation
from longshore.models.start_range import StartRange
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import hold_of_share
from longshore.scheduling.gangs.plan import Shares
from longshore.scheduling.gangs.start import first_gang_start
from longshore.scheduling.guarantee import has_waited_long
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.given_back import GivenBack
from longshore.scheduling.placement.reservations import NoStart, first_start, kept_now, open_from
from longshore.scheduling.placement.scan import Scan
from longshore.scheduling.placement.state import Hold, Need
from longshore.scheduling.placement.taken import hold_of
from longshore.scheduling.start_range import coming, last_before

PlacedAt = Callable[[int], Mapping[str, JobRequest]]
"""Says whom a plan itself has placed on the node at a position."""


LATER_STARTS = 64
"""Jobs without a start kept that are told when they may start, at most."""
LATER_LOOKS = 64_000
"""Nodes that are looked at for them: a plan of 10,000 nodes is dear as it is."""
GANG_LOOKS = 4
"""Of a gang at each node: its start is looked for at several moments. At more where none is found,
as far as nodes are asked then."""


def most_later(nodes: int) -> int:
    """Return how many jobs without a start kept a plan of so many nodes tells at most."""
    return min(LATER_STARTS, LATER_LOOKS // max(nodes, 1))


def through(queue: Sequence[JobRequest], last: str | None) -> Sequence[JobRequest]:
    """Return the jobs of a queue up to the last one that may be told a later start; none where
    that one is not there, as one that is set aside: who would come behind it is not known."""
    if last is None:
        return queue
    place = next((place for place, job in enumerate(queue) if job.id == last), -1)
    return queue[: place + 1]


class KeptStarts:
    """What a plan keeps so far."""

    def __init__(self, columns: Columns, policy: PackingPolicy, placed_at: PlacedAt) -> None:
        self._columns = columns
        self._policy = policy
        self._placed_at = placed_at
        self.reservations: list[Reservation] = []
        self.no_start = NoStart()
        self.beyond = False
        """Whether the plan is made, and only what comes after it is looked at: how many starts are
        kept has no bound then, and none is one of the plan's."""
        self._by_tier: Counter[Tier] = Counter()
        self._looked = False
        self._given_back: GivenBack | None = None
        self._read_to = 0
        """As many moves of nodes are in what these give back."""
        self.asked_in_vain = 0
        """Nodes that were asked when gangs could start that have no start, each as often as it
        was: after the plan is made."""
        self._keeps_now = False
        """Whether a place is kept from now on, for who has waited long."""

    def is_full(self, tier: Tier) -> bool:
        """Return whether no more starts are kept for jobs of a tier."""
        return not self.beyond and self._by_tier[tier] >= self._policy.starts_kept

    def first(self, scan: Scan) -> tuple[int, datetime] | None:
        """Return the node where the job can start first, and when; ties keep the order."""
        if scan.need in self.no_start:
            return None
        first = self._first(scan)
        if first is None:
            self.no_start.add(scan.need)
        return first

    def _first(self, scan: Scan) -> tuple[int, datetime] | None:
        """Look for it. To read when each node gives back what takes as long as to look at all
        twice, so that is done for those after the first."""
        if self._given_back is None and not self._looked:
            self._looked = True
            return first_start(scan.holders, self._columns, scan.need, not_now=True)
        return self._given_back_now().first(scan.need, scan.holders, not_now=True)

    def first_of_gang(self, job: JobRequest, nodes: GangNodes) -> tuple[datetime, Shares] | None:
        """Return when a gang can start first, and its nodes then; None when that is not known."""
        given_back = self._given_back_now()
        asked: list[int] = []
        found = first_gang_start(
            job, nodes, self._policy, self._columns.now, given_back, asked.append
        )
        if found is None and self.beyond:
            self.asked_in_vain += sum(asked)
        return found

    def _given_back_now(self) -> GivenBack:
        moved = self._columns.moved
        if self._given_back is None:
            self._given_back = GivenBack(self._columns.views, self._columns.now)
        else:
            for position in set(moved[self._read_to :]):
                self._given_back.read(position)
        self._read_to = len(moved)
        return self._given_back

    def keep(
        self, job: JobRequest, need: Need, position: int, start: datetime
    ) -> tuple[Reservation, StartRange | None]:
        """Keep what a job needs of one node from a start on that `first` has found."""
        view = self._columns.views[position]
        chosen = open_from(view, need, start, self._policy.gpu_choice)
        assert chosen is not None  # that is how `start` was found
        hold = hold_of(job, need, view.node, chosen, start)
        between = self._keep(job, start, [(position, hold)])
        kept = Reservation(
            job_id=job.id, node_id=view.node.id, gpu_indices=chosen.indices, slices=chosen.slices,
            start=start, end=hold.end,
        )  # fmt: skip
        self._note(job, [kept])
        return kept, between

    def keep_gang(
        self,
        job: JobRequest,
        need: Need,
        shares: Shares,
        positions: Mapping[str, int],
        start: datetime,
    ) -> StartRange | None:
        """Keep the shares of a gang from a start on; return between when and when that comes."""
        held: list[tuple[int, Hold]] = []
        kept: list[Reservation] = []
        for node_id, gpu_indices in shares:
            position = positions[node_id]
            node = self._columns.views[position].node
            hold = hold_of_share(job, need, node, gpu_indices, start)
            held.append((position, hold))
            kept.append(
                Reservation(
                    job_id=job.id, node_id=node_id, gpu_indices=gpu_indices, start=start,
                    end=hold.end,
                )
            )  # fmt: skip
        between = self._keep(job, start, held)
        self._note(job, kept)
        return between

    def _note(self, job: JobRequest, kept: Sequence[Reservation]) -> None:
        if not self.beyond:
            self._by_tier[job.tier] += 1
            self.reservations += kept

    def _keep(
        self, job: JobRequest, start: datetime, kept: Sequence[tuple[int, Hold]]
    ) -> StartRange | None:
        """Keep these for a job from its start on, and return between when and when that comes. Of
        one that has waited long for what nobody knows what is free is kept from now on, where it
        is the first: others could fill that until then for ever."""
        blockers: dict[str, tuple[Hold, JobRequest | None]] = {}
        now = self._columns.now
        for position, place in kept:
            view = self._columns.views[position]
            placed = self._placed_at(position)
            for hold in last_before(start, place, (*view.holds, *view.reserved)):
                blockers[hold.job_id] = hold, placed.get(hold.job_id)
        known = coming(job, start, blockers.values(), now)
        at_once = known.is_unsure and not self._keeps_now and has_waited_long(job, now)
        self._keeps_now |= at_once
        for position, hold in kept:
            told, view = known.told_of(hold), self._columns.views[position]
            for part in kept_now(view, told, now) if at_once else (told,):
                self._columns.reserve(position, part)
        return known.between
