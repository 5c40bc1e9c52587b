"""Which jobs do not start for a hard quota: never, or not now.

Of a queue it is told by GPUs and jobs, and by the nodes that sensitive jobs hold alone. On which
nodes others may start is told by `on_own_nodes`; what a plan places is counted by `refused`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from longshore.models.constraints import Constraint, OnNodes
from longshore.models.funding import FundingCode, PoolFunding, Quotas
from longshore.models.job_request import JobRequest
from longshore.models.mig import SLICES, profile_slices
from longshore.models.node import Node
from longshore.models.placement import Decision
from longshore.models.units import plain
from longshore.scheduling.funding.facts import OverQuota, Wall


def why_never(quotas: Iterable[tuple[str, Quotas]], job: JobRequest) -> str:
    """Return why a job could not start even if its tenant, and those above it, held nothing else
    and nothing of theirs waited; empty where it may. `quotas` are those of these tenants."""
    asked = {
        "max_gpus": _asked(job) / 1000, "max_nodes": 1, "max_jobs": 1, "max_queued": 1,
        "sensitive_nodes": int(job.sensitive),
    }  # fmt: skip
    for tenant, its in quotas:
        for field, wants in asked.items():
            most = getattr(its, field)
            if most is not None and wants > most:
                return (
                    f"quota of tenant {tenant}: {field}: it asks for {plain(wants)}, and "
                    f"{plain(most)} is the most that the tenant and those below it may hold; "
                    f"{raises(tenant, field, wants)} raises it"
                )
    return ""


def raises(tenant: str, field: str, to: float) -> str:
    """Return the command that sets a quota."""
    return f"`longshore tenant set {tenant} --{field.replace('_', '-')} {plain(to)}`"


class Refused(NamedTuple):
    """A quota that refuses a part of a plan."""

    why: str
    below: frozenset[str]
    """The tenants that are under it."""


class QuotaRoom:
    """What hard quotas leave of GPUs and jobs, while jobs of a queue take of it."""

    def __init__(
        self, walls: Sequence[Wall], fewest: Callable[[JobRequest], int] | None = None
    ) -> None:
        """`fewest` returns the GPUs that a sensitive job holds at least."""
        self.walls = list(walls)
        self._at_first = tuple(walls)
        self._fewest = fewest
        self._of: dict[str, list[int]] = {}
        for place, wall in enumerate(walls):
            for tenant in wall.below:
                self._of.setdefault(tenant, []).append(place)

    def of(self, tenant: str | None) -> list[Wall]:
        """Return the quotas that a tenant is under, as they are now."""
        return [self.walls[place] for place in self._of.get(tenant or "", ())]

    def why_not(self, job: JobRequest) -> str:
        """Return why a job may not start now; empty where it may."""
        for place in self._of.get(job.tenant or "", ()):
            for over in self.walls[place].over(*self._asked(job), alone=job.sensitive):
                return self._says(place, over)
        return ""

    def over(self, job: JobRequest) -> tuple[tuple[Wall, OverQuota], ...]:
        """Return each quota that keeps a job from starting now, with what is used of it."""
        asked = self._asked(job)
        return tuple(
            (wall, over)
            for wall in self.of(job.tenant)
            for over in wall.over(*asked, alone=job.sensitive)
        )

    def take(self, job: JobRequest) -> None:
        """Have a job start."""
        self._change(job, 1)

    def give_back(self, job: JobRequest) -> None:
        """Have a job that was to start not do so."""
        self._change(job, -1)

    def place(self, job: JobRequest, milli: int, nodes: Sequence[str]) -> "Refused | None":
        """Have a job start on these nodes; or return why it may not."""
        its = self._of.get(job.tenant or "", ())
        for place in its:
            for over in self.walls[place].over(milli, nodes, alone=job.sensitive):
                return Refused(self._says(place, over), self.walls[place].below)
        for place in its:
            self.walls[place] = self.walls[place].having(milli, nodes, alone=job.sensitive)
        return None

    def _change(self, job: JobRequest, by: int) -> None:
        for place in self._of.get(job.tenant or "", ()):
            wall = self.walls[place]
            wall = wall._replace(milli=wall.milli + by * self._milli(job), jobs=wall.jobs + by)
            if job.sensitive:  # it holds a node at least, which nobody else is on
                its = {_node_of(job)}
                nodes, alone = wall.nodes, wall.sensitive
                wall = wall._replace(
                    nodes=nodes | its if by > 0 else nodes - its,
                    sensitive=alone | its if by > 0 else alone - its,
                )
            self.walls[place] = wall

    def _asked(self, job: JobRequest) -> tuple[int, tuple[str, ...]]:
        return self._milli(job), (_node_of(job),) if job.sensitive else ()

    def _milli(self, job: JobRequest) -> int:
        if job.sensitive and self._fewest is not None:
            return self._fewest(job) * milli_of(job)
        return _asked(job)

    def _says(self, place: int, over: OverQuota) -> str:
        """Return why, with what jobs before it in the queue take by itself."""
        wall = self.walls[place]
        runs = self._at_first[place].used(over.field)
        ahead = f", with {over.used - runs:g} for jobs before it" if runs != over.used else ""
        return (
            f"quota of tenant {wall.tenant}: {over.field}: {over.used:g} + {over.asked:g} > "
            f"{over.most:g}{ahead}: it waits for others of its tenant to end ({FundingCode.QUOTA})"
        )


class QuotaTurns:
    """Which jobs of a queue hard quotas keep from starting, each asked at its turn.

    Who is paid for takes its part at its turn, as does who pays for itself. Who nobody pays for
    comes after them, and who does not start then takes nothing.
    """

    def __init__(
        self, room: QuotaRoom, queue: Sequence[JobRequest], asks: Callable[[JobRequest], bool]
    ) -> None:
        """`asks` says whether a job asks whether a budget pays for it."""
        self.room = room
        self.over: dict[str, str] = {}
        """Jobs that do not start for a quota, with why."""
        self.gave_back = False
        """Whether one that was to start does not after all: who was refused is asked again."""
        self._jobs = {job.id: job for job in queue}
        self._left = iter(queue)
        self._asks = asks
        self._takes: set[str] = set()

    def admits(self, job_id: str) -> bool:
        """Return whether a job, whose turn it is, may start if somebody pays for it."""
        for job in self._left:
            if job.id == job_id:
                return not self._refused(job)
            if not self._asks(job):
                self.begins(job.id)
        return False

    def still_admits(self, job_id: str) -> bool:
        """Return whether there is room for a job that has had its turn."""
        job = self._jobs[job_id]
        return not (self._refused(job) if job_id in self.over else self.room.why_not(job))

    def begins(self, job_id: str) -> None:
        """Have a job start that nobody has to pay for, where it may."""
        job = self._jobs[job_id]
        if not self._refused(job):
            self.note(job_id, starts=True)

    def note(self, job_id: str, *, starts: bool) -> None:
        """Note whether somebody pays for a job."""
        if starts is (job_id in self._takes):
            return
        if starts:
            self._takes.add(job_id)
            self.room.take(self._jobs[job_id])
        else:
            self._takes.discard(job_id)
            self.gave_back = True
            self.room.give_back(self._jobs[job_id])

    def finish(self, unfunded: Iterable[str]) -> None:
        """Ask for the rest of the queue, and for those that run without a payer."""
        again = [job_id for job_id in self.over if not self._asks(self._jobs[job_id])]
        for job_id in again if self.gave_back else ():
            self.begins(job_id)
        for job in self._left:
            if not self._asks(job):
                self.begins(job.id)
        for job_id in unfunded:
            self.begins(job_id)

    def _refused(self, job: JobRequest) -> bool:
        if why := self.room.why_not(job):
            self.over[job.id] = why
        else:
            self.over.pop(job.id, None)
        return bool(why)


def having(
    walls: Iterable[Wall], others: Iterable[tuple[JobRequest, Collection[str]]]
) -> tuple[Wall, ...]:
    """Return hard quotas as they would be once other jobs had started, each on these nodes."""
    found = list(walls)
    for job, nodes in others:
        found = [
            wall.having(_asked(job), nodes, alone=job.sensitive)
            if job.tenant in wall.below
            else wall
            for wall in found
        ]
    return tuple(found)


def lifted(walls: Iterable[Wall], tenant: str | None) -> list[Wall]:
    """Return the hard quotas of all, without limits in those that a tenant is under."""
    none = Quotas()
    return [wall._replace(quotas=none) if tenant in wall.below else wall for wall in walls]


def in_its_way(
    room: QuotaRoom, without_them: PoolFunding, queue: Sequence[JobRequest], job: JobRequest
) -> tuple[tuple[Wall, OverQuota], ...]:
    """Return each quota that keeps a job of a queue, which comes in its order, from starting at
    its turn, with what would be used of it then if it were no more in its way: those before it
    that wait for the same quota have their parts too.

    `without_them` is who pays where the quotas that the job is under are `lifted`.
    """
    place = [each.id for each in queue].index(job.id)
    starts = [each for each in queue if each.id not in without_them.held and each.id != job.id]
    before = {each.id for each in queue[:place]}
    unpaid = without_them.unfunded.keys()
    # One that starts with no payer comes after all who are paid for.
    last = job.id in unpaid and job.id not in without_them.held
    for each in starts:
        paid = each.id not in unpaid
        if (each.id in before or last) if paid else (each.id in before and last):
            room.take(each)
    return room.over(job)


def on_own_nodes(walls: Sequence[Wall], jobs: Iterable[JobRequest]) -> dict[str, Constraint]:
    """Return which jobs may start, or grow, on nodes alone on which their tenants, and those
    below the same quota, have others: that of nodes is used up."""
    full = [
        wall
        for wall in walls
        if wall.quotas.max_nodes is not None and len(wall.nodes) >= wall.quotas.max_nodes
    ]
    known: dict[str, Constraint | None] = {}
    found: dict[str, Constraint] = {}
    for job in jobs if full else ():
        tenant = job.tenant or ""
        if tenant not in known:
            known[tenant] = _own_nodes([wall for wall in full if tenant in wall.below])
        own = known[tenant]
        if own is not None and not job.sensitive:
            found[job.id] = own
    return found


def _own_nodes(full: Sequence[Wall]) -> Constraint | None:
    if not full:
        return None
    wall = full[0]
    why = (
        f"quota of tenant {wall.tenant}: max_nodes: {len(wall.nodes)} + 1 > "
        f"{wall.quotas.max_nodes} ({FundingCode.QUOTA})"
    )
    nodes = set(wall.nodes).intersection(*(each.nodes for each in full))
    return Constraint(OnNodes(nodes, why))


def without(funding: PoolFunding, over: Mapping[str, str]) -> PoolFunding:
    """Return who pays, with more jobs that do not start for a hard quota, and why."""
    return funding._replace(
        unfunded={**funding.unfunded, **over},
        held=funding.held | over.keys(),
        over_quota=funding.over_quota | over.keys(),
    )


def refused(
    walls: Sequence[Wall],
    placements: Iterable[Decision],
    jobs: Mapping[str, JobRequest],
    nodes: Mapping[str, Node],
) -> dict[str, Refused]:
    """Return which jobs of a plan the database would refuse for a hard quota, with why: what a
    plan takes is known when each has its nodes."""
    found: dict[str, Refused] = {}
    room = QuotaRoom(walls)
    for decision in placements if walls else ():
        job = jobs[decision.job_id]
        each = milli_of(job)
        gpus = [
            len(nodes[node_id].gpus) if job.sensitive else len(indices)
            for node_id, indices in decision.held
        ]
        on = [node_id for node_id, _ in decision.held]
        if why := room.place(job, sum(gpus) * each, on):
            found[job.id] = why
    return found


def milli_of(job: JobRequest) -> int:
    """Return the thousandths of each GPU that a job asks for."""
    return profile_slices(job.mig) * 1000 // SLICES if job.mig else job.milli


def _asked(job: JobRequest) -> int:
    """Return what a job takes of a quota of GPUs, a malleable one at its smallest size."""
    least = job.smallest
    return least.gpus_held * milli_of(least)


def _node_of(job: JobRequest) -> str:
    """Return a name for the node that a job is to hold alone, whichever that is."""
    return f"of {job.id}"
