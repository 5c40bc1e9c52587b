"""Plans a gang: groups onto domains, whole or not at all, and GPUs of nodes for each group.

A group never crosses a domain, and a gang is of one flavor of GPU. Fewest domains come first;
then nodes with one conformance fingerprint, where the job prefers that; then room for spares;
then fewest nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.gang import DomainRoom, GangPlan
from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy
from longshore.models.topology import Gang
from longshore.scheduling.gangs.filling import Filling
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import (
    Answers,
    Offer,
    Offers,
    offers_from,
    offers_now,
    offers_when_empty,
)
from longshore.scheduling.gangs.packing import Assigned, assign, assign_with_spares
from longshore.scheduling.gangs.rooms import room_by_domain, sets_of_like, total
from longshore.scheduling.gangs.words import never, refuse, without_spares
from longshore.scheduling.placement.state import Need
from longshore.scheduling.topology import Domain, DomainKey

Shares = tuple[tuple[str, tuple[int, ...]], ...]
"""Nodes, each once, with the GPUs there."""
_MOST_WAYS = 16
"""Ways over the domains that are tried for a gang that needs all of its spares."""


def plan_gang(
    job: JobRequest,
    nodes: GangNodes,
    policy: PackingPolicy,
    now: datetime,
) -> tuple[GangPlan, Offers]:
    """Return the plan for a job with a gang on nodes as they are, and what each node offered.

    The order of `nodes` does not matter to the plan. Raises ValueError for a job without a gang.
    """
    gang = gang_of(job)
    offers = offers_now(job, gang, nodes, policy, now)
    domains = nodes.domains(gang)
    made = _in_order(offers.made)
    best = _best(job, gang, made, policy)
    if best is not None:
        return _plan_of(best, job, gang, domains, policy), offers
    return _refused(job, gang, made, domains, policy), offers


def fits_gang(job: JobRequest, nodes: GangNodes, policy: PackingPolicy, now: datetime) -> bool:
    """Return whether `plan_gang` finds room for the gang."""
    return could_hold(job, offers_now(job, gang_of(job), nodes, policy, now).made, policy)


def shares_from(
    job: JobRequest, nodes: GangNodes, policy: PackingPolicy, start: datetime, answers: Answers
) -> Shares | None:
    """Return the nodes and the GPUs that a gang would get from a later start on, by what is known
    of the holds there; None where they do not suffice. `answers` as in `offers_from`."""
    gang = gang_of(job)
    offers = offers_from(job, gang, nodes, policy, start, answers)
    best = _best(job, gang, _in_order(offers.made), policy)
    if best is None:
        return None
    shares: dict[str, list[int]] = {}
    for group in best.planned():
        for share in (*group.nodes, *group.spares):
            shares.setdefault(share.node_id, []).extend(share.gpu_indices)
    return tuple((node_id, tuple(sorted(gpus))) for node_id, gpus in shares.items())


def _in_order(offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers by name, which settles every tie: so the order of the input does not."""
    return sorted(offers, key=lambda offer: offer.view.node.id)


def _best(
    job: JobRequest, gang: Gang, made: Sequence[Offer], policy: PackingPolicy
) -> Filling | None:
    """Return the groups and spares on what nodes offer, in the order of their names; None where
    they do not fit."""
    sets = sets_of_like(made, gang)
    found = [filling for alike in sets if (filling := _fill(job, gang, alike, policy)) is not None]
    return min(found, key=lambda filling: filling.preference(gang), default=None)


def could_ever_hold(job: JobRequest, nodes: GangNodes) -> bool:
    """Return whether the nodes could hold the gang together when empty and with time left."""
    return could_hold(job, offers_when_empty(job, gang_of(job), nodes).made, PackingPolicy())


class Never(NamedTuple):
    """A gang that nodes could not even hold when empty and with time left."""

    plan: GangPlan
    """With its refusal."""
    offers: Offers
    """What each node would offer then."""
    text: str
    """The refusal in a sentence."""


def why_never(job: JobRequest, nodes: GangNodes, policy: PackingPolicy) -> Never | None:
    """Return why the nodes could never hold a gang; None where they could."""
    gang = gang_of(job)
    whole = Need.of(job, PackingPolicy())
    if nodes.hold_when_empty(whole, gang):
        return None
    offers = offers_when_empty(job, gang, nodes)
    if could_hold(job, offers.made, PackingPolicy()):
        nodes.note_held(whole, gang)
        return None
    made = _in_order(offers.made)
    domains = [domain._replace(free=domain.gpus) for domain in nodes.domains(gang)]
    plan = _refused(job, gang, made, domains, policy)
    needs_no_spares = gang.model_copy(update={"spares_required": False})
    alone = job.model_copy(update={"gang": needs_no_spares})
    return Never(plan, offers, never(plan.refusal, lacks_spares=could_hold(alone, made, policy)))


def _refused(
    job: JobRequest,
    gang: Gang,
    made: Sequence[Offer],
    domains: Sequence[Domain],
    policy: PackingPolicy,
) -> GangPlan:
    """Return why a gang does not fit on what nodes offer, in the order of their names."""
    nothing: list[Offer] = []
    sets = sets_of_like(made, gang)
    most = max(sets, key=total, default=nothing)
    refused = refuse(job, gang, policy.gang_packing, most, domains, len(made))
    alone = [filling for alike in sets for filling in _fillings(job, gang, alike, policy)]
    if not alone:
        return refused
    best = max(alone, key=lambda filling: filling.spares_found)
    return without_spares(refused, best.spares_found, best.planned()[0].domain)


def could_hold(job: JobRequest, offers: Iterable[Offer], policy: PackingPolicy) -> bool:
    """Return whether a gang fits on what nodes offer it."""
    gang = gang_of(job)
    made = _in_order(offers)
    if gang.spares_per_group and gang.spares_required:
        return any(
            _fill(job, gang, alike, policy) is not None for alike in sets_of_like(made, gang)
        )
    return any(
        assign(room_by_domain(alike), job.gpus, gang, policy.gang_packing) is not None
        for alike in sets_of_like(made, gang)
    )


def gang_of(job: JobRequest) -> Gang:
    if job.gang is None:
        raise ValueError(f"job {job.id} has no gang: it stays on one node")
    return job.gang


def _fill(
    job: JobRequest, gang: Gang, offers: Sequence[Offer], policy: PackingPolicy
) -> Filling | None:
    """Return the groups and spares on these nodes, or None where they do not fit together."""
    wanted = gang.spares_of(job.gpus) if gang.spares_required else 0
    found = _fillings(job, gang, offers, policy)
    return next((filling for filling in found if filling.spares_found >= wanted), None)


def _fillings(
    job: JobRequest, gang: Gang, offers: Sequence[Offer], policy: PackingPolicy
) -> Iterator[Filling]:
    """Yield the groups on these nodes with the spares that are left for them, the best first.

    After the first way come those for a gang that needs all of its spares: its groups share nodes,
    so that more are left whole; and a domain that had too few for its groups gets a group less,
    until the groups fit no more.
    """
    by_domain: dict[DomainKey, list[Offer]] = {}
    for offer in offers:
        by_domain.setdefault(offer.domain, []).append(offer)
    room = room_by_domain(offers)
    needs_all = gang.spares_per_group and gang.spares_required
    for _ in range(_MOST_WAYS if needs_all else 1):
        ways = [assign(room, job.gpus, gang, policy.gang_packing)]
        if needs_all:
            ways.append(assign_with_spares(room, job.gpus, gang))
        able = [assigned for assigned in ways if assigned]
        found = [_filled(assigned, gang, by_domain, policy) for assigned in able]
        yield from found
        if needs_all:
            yield from (_filled(each, gang, by_domain, policy, tight=True) for each in able)
        if not found or (short := found[0].short_of(gang.spares_per_group)) is None:
            return
        key, gpus = short
        room[key] = gpus - 1


def _filled(
    assigned: Assigned,
    gang: Gang,
    by_domain: Mapping[DomainKey, list[Offer]],
    policy: PackingPolicy,
    *,
    tight: bool = False,
) -> Filling:
    filling = Filling(by_domain, policy)
    filling.place(assigned, tight=tight)
    filling.place_spares(gang)
    return filling


def _plan_of(
    filling: Filling,
    job: JobRequest,
    gang: Gang,
    domains: Sequence[Domain],
    policy: PackingPolicy,
) -> GangPlan:
    return GangPlan(
        gpus=job.gpus,
        packing=policy.gang_packing,
        groups=filling.planned(),
        domains=tuple(
            DomainRoom(
                domain=domain.key.name,
                nodes=domain.nodes,
                gpus=domain.gpus,
                free=domain.free,
                usable=filling.room.get(domain.key, 0),
                residual=domain.free - filling.taken[domain.key],
            )
            for domain in domains
        ),
        conformance=filling.conformance(),
        spares_wanted=gang.spares_of(job.gpus),
    )
