"""Who pays in one pool: for its jobs that wait, before a plan, and for what a plan places."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from longshore.models.funding import (
    Foreseen,
    FundingCode,
    FundingTerms,
    Payer,
    PoolFunding,
)
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import Decision
from longshore.models.text import count
from longshore.scheduling.funding.cover import Cover, cover
from longshore.scheduling.funding.evaluate import evaluated
from longshore.scheduling.funding.facts import (
    Facts,
    Kind,
    Share,
    Use,
    Wall,
    Where,
    must_be_funded,
)
from longshore.scheduling.funding.kept import Funded, KeptFunding
from longshore.scheduling.funding.kinds import PoolKinds
from longshore.scheduling.funding.payers import behind_owners, payer_of, payer_of_cover
from longshore.scheduling.funding.quotas import QuotaRoom, QuotaTurns, milli_of, on_own_nodes
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.sizes import (
    MayGrow,
    below_quotas,
    held_at,
    let_losers_go,
    sizes_to_grow,
    sizes_to_start,
)
from longshore.scheduling.funding.split import split_of
from longshore.scheduling.funding.taken_from import loses, takes_over
from longshore.scheduling.funding.together import together_on
from longshore.scheduling.funding.turns import fund
from longshore.scheduling.funding.where_paid import grow_on, start_on

_IN_ORDER = timedelta(microseconds=1)


class Asks(NamedTuple):
    """What a job that waits says of who pays for it."""

    terms: FundingTerms = FundingTerms()
    preemptible: bool = True
    gets: Kind | None = None
    """Where others are stopped for it: of what kind the nodes are that it gets."""

    @property
    def must_be_funded(self) -> bool:
        """Whether it does not start where nobody pays."""
        return must_be_funded(self.terms, preemptible=self.preemptible)


def pool_funding(
    facts: Facts,
    pool: str,
    queue: Sequence[JobRequest],
    asks: Mapping[str, Asks],
    now: datetime,
    walls: Sequence[Wall] = (),
    factors: Mapping[str, float] = MappingProxyType({}),
    growing: Sequence[MayGrow] = (),
    first: frozenset[str] = frozenset(),
    shrunk: Mapping[str, int] = MappingProxyType({}),
    freed: frozenset[str] = frozenset(),
    *,
    together: bool = False,
) -> PoolFunding:
    """Return who pays for what runs, and who would for the jobs of a queue, which come in its
    order. Each takes its room at its turn, of budgets and of hard quotas (`walls`), whether it is
    placed then or not: those before all others for whom others have given way, as their start was
    due (`first`) or for who pays for them (`freed`). `factors` go with it as they are.
    Who was `shrunk` to the part of it that is paid for has that part first, and no more.

    `growing` are malleable jobs that run, in the order in which they may grow. `together` asks on
    which nodes all that somebody would pay for are paid for beside each other.
    """
    funded, room = evaluated(facts, now)
    kinds = PoolKinds(facts, pool)
    if shrunk:
        keeping = partial(_keeping, room=room, kinds=kinds, asks=asks, shrunk=shrunk, now=now)
        kept = [keeping(job) for job in queue if job.id in shrunk]
        queue = [*kept, *(job for job in queue if job.id not in shrunk)]
    queue = in_turn(queue, first | freed)
    payers = {
        use.job_id: payer_of(room, use, funded.splits[use.job_id, use.attempt])
        for use in facts.uses
    }
    waiting = [
        _waiting(job, kinds, asks.get(job.id, Asks()), now)
        for job in queue
        if _has_budget(facts, job.tenant)
    ]
    quotas = QuotaRoom(walls, kinds.fewest)
    over: dict[str, str] = {}
    if walls:
        covers, over = _at_quotas(facts, room, waiting, queue, asks, quotas)
        waiting = [use for use in waiting if use.job_id not in over]
    else:
        covers = fund(room, waiting)
    recalls: dict[str, frozenset[str]] = {}
    unfunded = dict(over)
    held = set(over)
    for use in waiting:
        found = covers[use.job_id]
        if found.funded:
            payers[use.job_id] = payer_of_cover(facts, room.tree, use, found)
            if found.recalls:
                recalls[use.job_id] = frozenset(one.charge.job_id for one in found.recalls)
            continue
        must = asks.get(use.job_id, Asks()).must_be_funded
        payers[use.job_id] = Payer(frozenset({use.tenant}), False, use.tenant)
        unfunded[use.job_id] = says_unfunded(found, must=must)
        if must:
            held.add(use.job_id)
    behind = behind_owners(room.tree, {use.job_id: payers[use.job_id] for use in waiting})
    takes = takes_over(facts, room, funded, [use for use in waiting if use.job_id in unfunded])
    paid = [use for use in waiting if use.job_id not in unfunded]
    if growing or any(job.malleable is not None for job in queue):
        let_losers_go(room, (covers[use.job_id] for use in paid))
    sizes = sizes_to_start(room, queue, paid) | sizes_to_grow(
        room, growing, funded.splits, waiting
    )
    starting = [
        MayGrow(job, job.malleable.min)
        for job in queue
        if job.malleable is not None and job.id not in held
    ]
    sizes = below_quotas(quotas.walls, [*starting, *growing], sizes)
    for job_id, most in shrunk.items():
        sizes[job_id] = min(sizes.get(job_id, most), most)
    only_on = start_on(queue, paid, covers)
    only_on |= grow_on(room, kinds, growing, funded.splits)
    return PoolFunding(
        payers,
        unfunded,
        frozenset(held),
        recalls,
        takes,
        behind,
        factors,
        sizes,
        first | shrunk.keys() | (freed - behind.keys()),
        {use.job_id: _foreseen(covers[use.job_id]) for use in paid},
        only_on,
        loses(covers, takes),
        together_on(room, queue, paid, covers) if together else {},
        frozenset(over),
        on_own_nodes(walls, chain(queue, (each.job for each in growing))),
    )


def _at_quotas(
    facts: Facts,
    room: Room,
    waiting: Sequence[Use],
    queue: Sequence[JobRequest],
    asks: Mapping[str, Asks],
    quotas: QuotaRoom,
) -> tuple[dict[str, Cover], dict[str, str]]:
    """Return who would pay for each job of a queue, of those that hard quotas let start, and why
    the others do not."""
    turns = QuotaTurns(quotas, queue, lambda job: _has_budget(facts, job.tenant))
    covers = fund(room, waiting, turns)
    unpaid = (job_id for job_id, found in covers.items() if not found.funded)
    turns.finish([job_id for job_id in unpaid if not asks.get(job_id, Asks()).must_be_funded])
    return covers, turns.over


def in_turn(queue: Iterable[JobRequest], first: Collection[str]) -> list[JobRequest]:
    """Return a queue in the order in which budgets are asked."""
    return sorted(queue, key=lambda job: job.id not in first)


def _foreseen(found: Cover) -> tuple[Foreseen, ...]:
    return tuple(Foreseen(one.envelope, len(one.gpus), one.lent) for one in found.charges)


def _keeping(
    job: JobRequest,
    room: Room,
    kinds: PoolKinds,
    asks: Mapping[str, Asks],
    shrunk: Mapping[str, int],
    now: datetime,
) -> JobRequest:
    """Return a job that was shrunk to a part of it as one of that size, where that still is paid
    for."""
    sized = job.at_size(shrunk[job.id])
    use = _waiting(sized, kinds, asks.get(job.id, Asks()), now)
    return sized if cover(room, use).funded else job


def fewest(jobs: Iterable[JobRequest]) -> dict[str, int]:
    """Return the GPUs of malleable jobs at their smallest sizes."""
    return {job.id: held_at(job, job.malleable.min) for job in jobs if job.malleable is not None}


def placed(
    facts: Facts,
    pool: str,
    decisions: Iterable[Decision],
    jobs: Mapping[str, JobRequest],
    nodes: Mapping[str, Node],
    asks: Mapping[str, Asks],
    now: datetime,
) -> tuple[Use, ...]:
    """Return what a plan places, of tenants with a budget, in its order."""
    return tuple(
        _placed(decision, jobs[decision.job_id], pool, nodes, asks, now + place * _IN_ORDER)
        for place, decision in enumerate(decisions)
        if _has_budget(facts, jobs[decision.job_id].tenant)
    )


def settled(
    facts: Facts,
    begins: Sequence[Use],
    now: datetime,
    fewest: Mapping[str, int] = MappingProxyType({}),
    foreseen: Mapping[str, Sequence[Foreseen]] = MappingProxyType({}),
) -> Funded:
    """Return what is to change of the charges, where these jobs begin. `fewest` are the GPUs of
    malleable jobs at their smallest sizes: what they have beyond comes after all others, as it
    does before a plan (`scheduling.funding.sizes`). They are paid for as was `foreseen`, where
    that holds.

    One that loses a part of what pays for it to another that begins with it starts unfunded: a job
    starts with all of its GPUs paid for, or none. Nothing is taken back for it then.
    """
    small = [_first(use, fewest[use.job_id]) if use.job_id in fewest else use for use in begins]
    kept = KeptFunding(facts._replace(uses=(*facts.uses, *small)), now, foreseen)
    for use, least in zip(begins, small, strict=True):
        if use != least:
            kept.start(use)
    found = kept.everything()
    partly = {
        (use.job_id, use.attempt)
        for use in begins
        if (split := found.splits[use.job_id, use.attempt]).unfunded and split.owners
    }
    if not partly:
        return found
    others = [use for use in begins if (use.job_id, use.attempt) not in partly]
    found = settled(facts, others, now, fewest, foreseen)
    unpaid = {
        (use.job_id, use.attempt): split_of(use, (), facts)
        for use in begins
        if (use.job_id, use.attempt) in partly
    }
    return found._replace(splits={**found.splits, **unpaid})


def _first(use: Use, gpus: int) -> Use:
    """Return a job as if it had the first of its GPUs alone."""
    shares: list[Share] = []
    for share in use.shares:
        if gpus > 0:
            shares.append(share._replace(gpus=share.gpus[:gpus]))
        gpus -= len(share.gpus)
    return use._replace(shares=tuple(shares))


def as_found(
    facts: Facts,
    pool: str,
    queue: Sequence[JobRequest],
    asks: Mapping[str, Asks],
    job: JobRequest,
    now: datetime,
) -> tuple[Room, Use, tuple[Use, ...]]:
    """Return the room that a job of a queue, which comes in its order, finds at its turn, what it
    asks for, and those who have had their turns before it."""
    _, room = evaluated(facts, now)
    kinds = PoolKinds(facts, pool)
    before = queue[: [each.id for each in queue].index(job.id)]
    ahead = tuple(
        _waiting(each, kinds, asks.get(each.id, Asks()), now)
        for each in before
        if _has_budget(facts, each.tenant)
    )
    fund(room, ahead)
    return room, _waiting(job, kinds, asks.get(job.id, Asks()), now), ahead


def next_change(facts: Facts, now: datetime) -> timedelta | None:
    """Return in what time an envelope begins or ends next; None where none does."""
    specs = [owned.spec for owned in facts.envelopes.values()]
    times = (at for spec in specs for at in (spec.start, spec.end) if at is not None and at > now)
    soonest = min(times, default=None)
    return None if soonest is None else soonest - now


def says_unfunded(found: Cover, *, must: bool = False) -> str:
    """Return why nobody would pay for a job, in one sentence."""
    why = _WHY.get(found.code, "") if found.code else ""
    for_what = count(found.deficit, "GPU") if found.deficit else "it"
    says = f"no budget pays for {for_what}: {why} ({found.code})" if why else "no budget pays"
    return f"{says}, and it starts only where one does" if must else says


_WHY = {
    FundingCode.NO_ENVELOPE: "no envelope that it may use is for such GPUs",
    FundingCode.NOT_OPEN: "no envelope for such GPUs is open now",
    FundingCode.NO_ROOM: "the envelopes that it may use have no room",
    FundingCode.CAP: "a cap over envelopes leaves no room",
    FundingCode.ACL_DENIED: "the envelopes with room are not shared with it",
    FundingCode.BORROW_LIMIT: "it may not borrow as many GPUs",
    FundingCode.QUOTA: "a quota of its tenant leaves no room",
}


def _has_budget(facts: Facts, tenant: str | None) -> bool:
    branch = facts.tenants.get(tenant) if tenant is not None else None
    return branch is not None and branch.budget_since is not None


def _waiting(job: JobRequest, kinds: PoolKinds, asks: Asks, now: datetime) -> Use:
    """Return what a job asks for: a malleable one its fewest GPUs, a gang its spares too, a
    sensitive one all of its nodes."""
    least, its = job.smallest, kinds.of(job)
    held = kinds.held_on(least)
    share = Share(0, its[0], tuple(range(held[0] if held else least.gpus_held)), milli_of(least))
    several = len(its) > 1
    return Use(
        job.id, job.attempt, job.tenant or "", now, (share,), asks.terms, asks.preemptible,
        its if several else (), kinds.place(asks.gets) if asks.gets else None,
        held if several else (),
    )  # fmt: skip


def _placed(
    decision: Decision,
    job: JobRequest,
    pool: str,
    nodes: Mapping[str, Node],
    asks: Mapping[str, Asks],
    since: datetime,
) -> Use:
    shares = tuple(
        Share(rank, _where(pool, nodes[node_id]), _held(job, nodes[node_id], gpus), milli_of(job))
        for rank, (node_id, gpus) in enumerate(decision.held)
    )
    says = asks.get(job.id, Asks())
    return Use(job.id, job.attempt, job.tenant or "", since, shares, says.terms, says.preemptible)


def _held(job: JobRequest, node: Node, gpus: Sequence[int]) -> tuple[int, ...]:
    """Return the GPUs that are paid for: of a sensitive job all of the node."""
    return tuple(sorted(gpu.index for gpu in node.gpus)) if job.sensitive else tuple(sorted(gpus))


def _where(pool: str, node: Node) -> Where:
    return Where(pool, node.gpu_type, frozenset(node.labels.items()))
