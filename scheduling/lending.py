"""Which jobs that nobody pays for run on spares that gangs lend.

After a plan: what found room on free GPUs borrows nothing, and nothing is kept on a spare for a
job that still waits. A spare is looked at as a node of its own, with its GPUs and as much beside
them as it holds. So what runs there takes nothing of the rest of the node, and leaves the gang
everything when it is stopped.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.funding import PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, Decision, PackingPolicy, PlacementKind
from longshore.models.resources import NOTHING, UNLIMITED, HostAmounts
from longshore.models.text import count
from longshore.scheduling.cycle import plan
from longshore.scheduling.packer import check
from longshore.scheduling.placement.state import used_of


class LendableSpare(NamedTuple):
    """What stands by for a gang that lends it, and what runs on it."""

    job_id: str
    """The gang's."""
    node_id: str
    gpu_indices: tuple[int, ...]
    host: HostAmounts
    """What it holds beside its GPUs."""
    lent: tuple[int, ...] = ()
    """Those of its GPUs on which other jobs run."""
    used: HostAmounts = NOTHING
    """What these use beside their GPUs."""

    @property
    def free(self) -> int:
        return len(self.gpu_indices) - len(self.lent)


def may_borrow(job: JobRequest, funding: PoolFunding | None) -> bool:
    """Return whether a job that waits may run on a lent spare: nobody pays for it, it may start
    all the same, and it is of whole GPUs on one node, which it need not hold alone."""
    return _starts_unpaid(job, funding) and not _why_no_borrower(job)


def why_on_no_spare(
    job: JobRequest,
    nodes: Mapping[str, Node],
    spares: Sequence[LendableSpare],
    policy: PackingPolicy,
    now: datetime,
) -> str:
    """Return what keeps a job that waits off spares that are lent, in words; empty where it fits
    one, where none is lent, and of a job that is paid for or waits until it is."""
    funding = policy.funding
    if funding is None or not _starts_unpaid(job, funding):
        return ""
    lent = [spare for spare in spares if funding.of(spare.job_id).funded]
    if not lent:
        return ""
    if why := _why_no_borrower(job):
        return f"it may not run on a spare that {lent[0].job_id} lends: {why}"
    told: list[str] = []
    for spare in sorted(lent, key=lambda spare: (-spare.free, spare.node_id, spare.job_id)):
        rejected = check(_as_node(spare, nodes[spare.node_id]), job, policy, now)
        if rejected is None:
            return ""
        all_lent = f"has its {count(len(spare.lent), 'GPU')} lent already"
        why = rejected.reason if spare.free else all_lent
        told.append(f"the spare that {spare.job_id} lends on {spare.node_id} {why}")
    others = len(told) - 1
    verb = "has" if others == 1 else "have"
    return told[0] + (f"; {count(others, 'other spare')} {verb} no room either" if others else "")


def _starts_unpaid(job: JobRequest, funding: PoolFunding | None) -> bool:
    return funding is not None and job.id in funding.unfunded and job.id not in funding.held


def _why_no_borrower(job: JobRequest) -> str:
    if job.gang is not None:
        return "it is a gang"
    if job.malleable is not None:
        return "it is malleable"
    if not job.gpu.whole:
        return "it wants a part of a GPU"
    return "it holds its node alone" if job.sensitive else ""


def with_lent_spares(
    made: CyclePlan,
    queue: Iterable[JobRequest],
    nodes: Mapping[str, Node],
    spares: Sequence[LendableSpare],
    policy: PackingPolicy,
    now: datetime,
) -> CyclePlan:
    """Return a plan in which jobs that wait and may borrow start on spares where they fit.

    `nodes` are those of the spares. A gang lends while it is paid for itself: else its class would
    decide. Of several spares on one node one is lent in a cycle, that with the most GPUs left.
    """
    funding = policy.funding
    no_longer = (PlacementKind.EXISTING_NODE, PlacementKind.SET_ASIDE)
    wait = {decision.job_id for decision in made.decisions if decision.kind not in no_longer}
    waiting = [job for job in queue if job.id in wait and may_borrow(job, funding)]
    if funding is None or not waiting:
        return made
    lenders: dict[str, LendableSpare] = {}
    for spare in sorted(spares, key=lambda spare: (-spare.free, spare.job_id)):
        if spare.free and funding.of(spare.job_id).funded:
            lenders.setdefault(spare.node_id, spare)
    if not lenders:
        return made
    lent_out = [_as_node(lenders[node_id], nodes[node_id]) for node_id in sorted(lenders)]
    borrowed = {
        decision.job_id: _borrowed(decision, lenders)
        for decision in plan(waiting, lent_out, (), policy, now).placements
    }
    if not borrowed:
        return made
    return made.model_copy(
        update={
            "decisions": tuple(borrowed.get(each.job_id, each) for each in made.decisions),
            "reservations": tuple(
                each for each in made.reservations if each.job_id not in borrowed
            ),
        }
    )


def _as_node(spare: LendableSpare, node: Node) -> Node:
    """Return a node as what borrows a spare of it sees it."""
    gpus = tuple(
        gpu.model_copy(
            update={"job_id": spare.job_id if gpu.index in spare.lent else None, "vram_used": 0.0}
        )
        for gpu in node.gpus
        if gpu.index in spare.gpu_indices
    )
    host = spare.host
    return node.model_copy(
        update={
            "gpus": gpus, "cpus": host.cpus, "ram": host.ram,
            "storage_bandwidth": _limit(host.storage), "power": _limit(host.power),
            **used_of(spare.used),
        }
    )  # fmt: skip


def _limit(amount: float) -> float | None:
    return None if amount == UNLIMITED else amount


def _borrowed(decision: Decision, lenders: Mapping[str, LendableSpare]) -> Decision:
    lender = lenders[decision.node_id or ""].job_id
    reason = f"on a spare that {lender} lends: {decision.reason}"
    return decision.model_copy(update={"borrowed_from": lender, "reason": reason})
