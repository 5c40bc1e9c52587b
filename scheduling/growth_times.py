"""The times that growth goes by: how long a job runs on, until when it backs off, since when GPUs
are idle. Pure."""

from datetime import datetime, timedelta

from longshore.models.growth import Elastic, IdleNode

REMEMBERED = timedelta(days=1)
"""For so long a change of size, or a preemption, counts."""
_MOST_DOUBLINGS = 20


def left_of(job: Elastic, now: datetime) -> timedelta:
    """Return how long a job will probably run on with the GPUs that it has.

    Its attempt was placed for the whole of its duration, on the GPUs that it had then: what
    earlier attempts saved comes off, what it has not done since ranks left it comes on top, and
    what it has done more since ranks joined it comes off too.
    """
    speed = job.sizes.speed
    gpus = job.gpus + sum(each.gpus for each in job.rank_changes)
    left = (job.work.expected_end - now).total_seconds() * speed(gpus) - job.done
    for each in job.rank_changes:
        before, gpus = gpus, gpus - each.gpus
        left += (now - each.at).total_seconds() * (speed(before) - speed(gpus))
    return timedelta(seconds=left / speed(job.gpus))


def backs_off_until(job: Elastic, grow_after: timedelta) -> datetime | None:
    """Return until when a job keeps its size after changes: twice as long after each."""
    if not job.changed_at:
        return None
    doublings = min(len(job.changed_at), _MOST_DOUBLINGS)
    return job.changed_at[-1] + min(grow_after * 2**doublings, REMEMBERED)


def idle_since(node: IdleNode, gpu: int) -> datetime:
    freed = node.freed_at.get(gpu)
    return node.ready_since if freed is None else max(freed, node.ready_since)
