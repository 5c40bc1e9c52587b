"""Times, GPUs and states as people read them."""

from collections.abc import Sequence
from datetime import datetime

from longshore.client.terminal import Text
from longshore.models.explanation import Explanation
from longshore.models.job_status import JobState
from longshore.models.mig import SLICES
from longshore.models.node import NodeState
from longshore.models.queue_view import QueuedJobView
from longshore.models.text import NONE, ago, format_places, span
from longshore.models.views import JobView

_STYLES = {
    JobState.SUBMITTED: "cyan",
    JobState.QUEUED: "yellow",
    JobState.HELD: "magenta",
    JobState.RUNNING: "green",
    JobState.STOPPING: "yellow",
    JobState.RETRYING: "yellow",
    JobState.SUCCEEDED: "bold green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "dim",
    NodeState.READY: "green",
    NodeState.DRAINING: "yellow",
    NodeState.LOST: "bold red",
    NodeState.GONE: "dim",
}
SIMULATED = "simulated"
UNTIL_RELEASED = "until it is released"
"""Why a held job waits of which nobody said why."""


def styled(state: JobState | NodeState) -> Text:
    return Text(state.value, style=_STYLES[state])


def says_start(at: datetime, now: datetime) -> str:
    """Return ``may start in 5m`` of an estimated start, and ``was due to start 9s ago`` once that
    has passed."""
    said = ago(at, now)
    if said.startswith("in "):
        return f"may start {said}"
    return f"{'is' if said == 'now' else 'was'} due to start {said}"


def clock(instant: datetime, now: datetime) -> str:
    """Return the time of day in the reader's zone, which is named, with the date where it is
    another day: ``13:00:00 CET``, ``2026-11-20 13:00 CET``."""
    local = instant.astimezone()
    if local.date() == now.astimezone().date():
        return f"{local:%H:%M:%S %Z}"
    return f"{local:%Y-%m-%d %H:%M %Z}"


def moment(instant: datetime) -> str:
    """Return ``2026-11-20 13:00:00 CET``: to the second, whatever day it is."""
    return f"{instant.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def zone(now: datetime) -> str:
    """Return the name of the reader's zone, for the heading over cells of times."""
    return f"{now.astimezone():%Z}"


def cell(instant: datetime, now: datetime) -> str:
    """Return `clock` without the zone that the heading names: that of `now`."""
    return clock(instant, now).removesuffix(f" {zone(now)}")


def period(start: datetime, end: datetime, now: datetime) -> str:
    """Return ``13:00:00 to 2026-11-21 13:00 CET``; both dates where it does not begin today."""
    zones = start.astimezone().utcoffset() == end.astimezone().utcoffset()
    first, today = clock(start, now), now.astimezone().date()
    last = clock(end, now)
    if start.astimezone().date() != today and end.astimezone().date() == today:
        last = f"{end.astimezone():%Y-%m-%d %H:%M %Z}"
    return f"{first.rpartition(' ')[0] if zones else first} to {last}"


def tier_of(job: JobView) -> str:
    """Return the tier of a job; a dash where its stored spec cannot be read."""
    return NONE if job.unreadable else job.tier.value


def class_of(job: JobView, now: datetime) -> str:
    """Return ``class 4``, or ``class 4, counted as 5 after 31d in the queue``."""
    if job.unreadable:
        return f"class {NONE}"
    if job.counted_as is None:
        return f"class {job.priority}"
    waited = span(job.waited_by(now))
    return f"class {job.priority}, counted as {job.counted_as} after {waited} in the queue"


def short_class_of(job: JobView | QueuedJobView) -> str:
    """Return a class as lists have it: ``4``, or ``4 as 5`` of one that its wait has lifted."""
    if isinstance(job, JobView) and job.unreadable:
        return NONE
    counted = job.counted_as if job.counted_as is not None else job.priority
    return f"{job.priority} as {counted}" if counted > job.priority else str(job.priority)


def head_start_of(explanation: Explanation) -> str:
    """Return ``75% of its DAG's longest path waits for it, which counts as 1h 30m of waiting``;
    nothing where that counts nothing."""
    if not explanation.head_start:
        return ""
    part, ahead = f"{explanation.path_behind:.0%}", span(explanation.head_start)
    return f"{part} of its DAG's longest path waits for it, which counts as {ahead} of waiting"


def places_of(places: Sequence[tuple[str, Sequence[int]]], *, simulated: bool) -> str:
    """Return where a job is: ``local-1 GPUs 0-3 (simulated)``, of a gang each node with its
    GPUs."""
    mark = f" ({SIMULATED})" if simulated else ""
    return f"{format_places(places)}{mark}"


def tenths(milli: int, slices: int) -> str:
    """Return how full a GPU is of which jobs have parts: tenths rounded up, ``·`` to ``9``.

    ``x`` where nothing of it is left.
    """
    used = max(milli, slices.bit_count() * 1000 // SLICES)
    if not used:
        return "·"
    return "x" if used >= 1000 else str(min(-(-used // 100), 9))
