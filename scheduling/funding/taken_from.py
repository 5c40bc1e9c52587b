"""What jobs that run lose of what pays for them, where one that waits begins."""

from collections.abc import Collection, Mapping, Sequence

from longshore.models.resources import WHOLE
from longshore.scheduling.funding.cover import Cover, cover
from longshore.scheduling.funding.facts import Facts, Use
from longshore.scheduling.funding.kept import Funded
from longshore.scheduling.funding.room import Attempt, Room

_ASKED = 20
"""Kinds of jobs that wait unfunded for which it is looked at whose room they could take over."""


def takes_over(
    facts: Facts, room: Room, funded: Funded, unfunded: Sequence[Use]
) -> dict[str, frozenset[str]]:
    """Return for each job that waits unfunded which jobs of its own tenant would have its budget
    pay for it if they were stopped."""
    running: dict[str, list[Attempt]] = {}
    for use in facts.uses:
        split = funded.splits[use.job_id, use.attempt]
        if split.owned and not split.unfunded:
            running.setdefault(use.tenant, []).append((use.job_id, use.attempt))
    known: dict[object, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for use in unfunded:
        kind = use.tenant, use.shares, use.terms, use.preemptible, use.kinds
        if kind not in known:
            if len(known) == _ASKED:
                continue
            known[kind] = frozenset(
                attempt[0]
                for attempt in running.get(use.tenant, ())
                if _pays_without(room, attempt, use)
            )
        if known[kind]:
            found[use.job_id] = known[kind]
    return found


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
