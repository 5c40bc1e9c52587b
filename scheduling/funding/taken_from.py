"""What jobs that run lose of what pays for them, where one that waits begins."""

from collections.abc import Collection, Mapping, Sequence

from longshore.models.resources import WHOLE
from longshore.scheduling.funding.cover import Cover, cover
from longshore.scheduling.funding.facts import Facts, Use
from longshore.scheduling.funding.kept import Funded
from longshore.scheduling.funding.room import Attempt, Room

_ASKED = 20
"""Kinds of jobs of a tenant that wait unfunded for which it is looked at whose room they could
take over: the first in the queue."""


def takes_over(
    facts: Facts, room: Room, funded: Funded, unfunded: Sequence[Use]
) -> dict[str, frozenset[str]]:
    """Return for each job that waits unfunded which jobs of its own tenant would have its budget
    pay for it if they were stopped."""
    if not unfunded:
        return {}
    running: dict[str, dict[object, list[Attempt]]] = {}
    """By tenant, those together that are paid for alike: of each the same is free without it."""
    for use in facts.uses:
        attempt = use.job_id, use.attempt
        split = funded.splits[attempt]
        if split.owned and not split.unfunded:
            alike = running.setdefault(use.tenant, {})
            alike.setdefault(_paid_alike(room, attempt), []).append(attempt)
    known: dict[str, dict[object, frozenset[str]]] = {}
    found: dict[str, frozenset[str]] = {}
    for use in unfunded:
        kind = use.shares, use.terms, use.preemptible, use.kinds, use.gpus_on
        of_tenant = known.setdefault(use.tenant, {})
        if kind not in of_tenant:
            if len(of_tenant) == _ASKED:
                continue
            of_tenant[kind] = frozenset(
                job_id
                for alike in running.get(use.tenant, {}).values()
                if _pays_without(room, alike[0], use)
                for job_id, _ in alike
            )
        if of_tenant[kind]:
            found[use.job_id] = of_tenant[kind]
    return found


def _paid_alike(room: Room, attempt: Attempt) -> object:
    charges = (paid.charge for paid in room.held.get(attempt, {}).values())
    return tuple(sorted((one.envelope, len(one.gpus), one.milli, one.lent) for one in charges))


def _pays_without(room: Room, attempt: Attempt, use: Use) -> bool:
    """Return whether somebody would pay for a job if another were stopped."""
    charges = [paid.charge for paid in room.held.get(attempt, {}).values()]
    for charge in charges:
        room.remove(charge)
    found = cover(room, use).funded
    for charge in charges:
        room.add(charge)
    return found


def loses(
    covers: Mapping[str, Cover], takes: Mapping[str, Collection[str]]
) -> dict[str, dict[str, int]]:
    """Return by job that waits, with who would pay for it, and by job that runs, for how many GPUs
    of that nobody pays once the other has begun: what is taken back for it, and where it `takes`
    over the room of one that is stopped, what it lacks."""
    found: dict[str, dict[str, int]] = {}
    for job_id, each in covers.items():
        lost: dict[str, int] = {}
        for recall in each.recalls:
            running = recall.charge.job_id
            lost[running] = lost.get(running, 0) + len(recall.lost) * recall.charge.milli
        lost |= dict.fromkeys(takes.get(job_id, ()), each.missing)
        if lost:
            found[job_id] = {running: -(-milli // WHOLE) for running, milli in lost.items()}
    return found
