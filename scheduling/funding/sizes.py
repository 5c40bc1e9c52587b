"""Up to which size somebody pays for a malleable job.

A job starts with all of its GPUs paid for, or with none. So one of several sizes starts, and
grows, on the largest that somebody pays for. What it has beyond its fewest GPUs comes after all
that jobs which wait have at their turns, and takes nothing from those.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from longshore.models.job_request import JobRequest
from longshore.models.resources import WHOLE
from longshore.scheduling.funding.cover import (
    Cover,
    Recall,
    claimed,
    lost_to_losers,
    start,
    surplus,
    take_back,
)
from longshore.scheduling.funding.facts import Share, Use, Wall
from longshore.scheduling.funding.holding import Attempt
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.split import Split


class MayGrow(NamedTuple):
    """A malleable job that runs, and may grow."""

    job: JobRequest
    """As its next attempt would stand in the queue."""
    gpus: int
    """Its size now."""


def let_losers_go(room: Room, covers: Iterable[Cover]) -> None:
    """Have those that run, and have lost something to jobs of a queue, be paid for by others with
    room, as they are once these begin: what malleable jobs have beyond their fewest GPUs comes
    after that."""
    for recall in [one for each in covers for one in each.recalls]:
        loser = room.uses.get((recall.charge.job_id, recall.charge.attempt))
        if loser is None:
            continue
        lost = {(recall.charge.rank, gpu) for gpu in recall.lost}
        claim, taking, missing = claimed(room, loser, lost)
        if missing or taking.recalled:
            taking.undo()
        else:
            taking.keep(claim)


def sizes_to_start(room: Room, queue: Iterable[JobRequest], paid: Sequence[Use]) -> dict[str, int]:
    """Return up to which size somebody would pay for malleable jobs of a queue, where that is less
    than they are to have. Those that are `paid` for have that of the room already, with their
    fewest GPUs."""
    jobs = {job.id: job for job in queue if job.malleable is not None}
    if not jobs:
        return {}
    waiting = {(use.job_id, use.attempt) for use in paid}
    asked = [
        (jobs[use.job_id], room.uses.get((use.job_id, use.attempt), use))
        for use in paid
        if use.job_id in jobs
    ]
    sizes = [
        (job, _extended(room, use, MayGrow(job, job.malleable.min), waiting))
        for job, use in asked
        if job.malleable is not None
    ]
    return {job.id: size for job, size in sizes if job.malleable and size < job.malleable.target}


def sizes_to_grow(
    room: Room,
    growing: Iterable[MayGrow],
    splits: Mapping[Attempt, Split],
    waiting: Iterable[Use],
) -> dict[str, int]:
    """Return up to which size malleable jobs that run may grow, where that is less than they are
    to have.

    One that nobody pays for at all runs on idle GPUs, and grows onto more where it may.
    """
    others = {(use.job_id, use.attempt) for use in waiting}
    found: dict[str, int] = {}
    for each in growing:
        job = each.job
        runs = job.id, job.attempt - 1
        use, split = room.uses.get(runs), splits.get(runs)
        if job.malleable is None or use is None or split is None:
            continue
        size = each.gpus
        if not split.unfunded:
            size = _extended(room, use, each, others)
        elif not split.owners and not use.must_be_funded:
            continue
        if size < job.malleable.target:
            found[job.id] = size
    return found


def below_quotas(
    walls: Iterable[Wall], jobs: Iterable[MayGrow], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return these sizes as far as hard quotas leave room for them, of jobs that have so many GPUs
    or count with so many; each takes its room at its turn."""
    left = [
        (wall.below, round(wall.quotas.max_gpus * WHOLE) - wall.milli)
        for wall in walls
        if wall.quotas.max_gpus is not None
    ]
    found = dict(sizes)
    for job, gpus in jobs if left else ():
        its = [place for place, (below, _) in enumerate(left) if job.tenant in below]
        if job.malleable is None or not its:
            continue
        has = held_at(job, gpus)
        most = has + max(min(left[place][1] for place in its), 0) // WHOLE
        wanted = min(found.get(job.id, job.malleable.target), job.malleable.target)
        fits = bisect_right(job.malleable.sizes, most, key=partial(held_at, job)) - 1
        size = max(gpus, min(wanted, job.malleable.sizes[fits])) if fits >= 0 else gpus
        if size < job.malleable.target:
            found[job.id] = size
        for place in its:
            below, room = left[place]
            left[place] = below, room - (held_at(job, size) - has) * WHOLE
    return found


def held_at(job: JobRequest, size: int) -> int:
    """Return the GPUs of a size with its spares."""
    return size + (job.gang.spares_of(size) if job.gang else 0)


def _attempt(recall: Recall) -> Attempt:
    return recall.charge.job_id, recall.charge.attempt


def _extended(room: Room, use: Use, has: MayGrow, waiting: Collection[Attempt]) -> int:
    """Return the largest size up to its desired one that somebody pays for of a job that is paid
    for with the GPUs that it has, and have it hold."""
    job = has.job
    assert job.malleable is not None
    sizes = job.malleable.sizes
    sizes = sizes[: sizes.index(job.malleable.target) + 1]
    most = bisect_right(sizes, has.gpus)
    if most == len(sizes):
        return has.gpus
    begin, end = held_at(job, has.gpus), held_at(job, sizes[-1])
    rank = 1 + max(share.rank for share in use.shares)
    more = Share(rank, use.shares[0].where, tuple(range(end - begin)), WHOLE)
    missing = _take(room, use, more, waiting)
    if not missing:
        return sizes[-1]
    fits = bisect_right(sizes, end - missing, key=partial(held_at, job)) - 1
    if fits < most:
        return has.gpus
    more = more._replace(gpus=tuple(range(held_at(job, sizes[fits]) - begin)))
    return has.gpus if _take(room, use, more, waiting) else sizes[fits]


def _take(room: Room, use: Use, more: Share, waiting: Collection[Attempt]) -> int:
    """Have somebody pay for all of these GPUs; return for how many nobody would, and change
    nothing then. Who loses something for them may have the right to a part of the job's."""
    whole = use._replace(shares=(*use.shares, more))
    use = use._replace(shares=(more,))
    taking = start(room, use)
    missing = taking.walk(use)
    missing += sum(
        count * paid.charge.milli for paid, count in taking.recalled if paid.attempt in waiting
    )
    if missing:
        taking.undo()
        return -(-missing // WHOLE)
    charges, recalls = taking.keep(use)
    running = [one for one in recalls if _attempt(one) not in waiting]
    if missing := lost_to_losers(room, whole, running):
        take_back(room, charges, recalls)
        return -(-missing // WHOLE)
    # Whoever is asked next finds no more than was there before.
    places, caps = surplus(room, recalls, charges)
    for place, amount in places.items():
        room.free[place] -= amount
    for cap, amount in caps.items():
        room.cap_free[cap] -= amount
    return 0
