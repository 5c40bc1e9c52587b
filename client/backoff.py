"""What `why` says of a job between two attempts: when it is tried again, and what would help."""

from collections.abc import Sequence
from datetime import datetime

from longshore.models.explanation import Explanation
from longshore.models.job_status import AttemptRecord, JobStatus
from longshore.models.text import ago, count
from longshore.models.views import JobView

_MOST_RECORDS = 20
"""Of attempts, which the status of a job has."""
_LONGEST = 400
"""Of a line of an engine: it may name a file before it says what is wrong with that."""


def with_backoff(
    told: Explanation, status: JobStatus | None, now: datetime, service: str = "", wrote: str = ""
) -> Explanation:
    """Return what is told of a job between attempts, with when it is tried again.

    `status` is what its workflow says; of a replica `service` is whose it is, and `wrote` why its
    engine failed last, with the last lines of it.
    """
    parts = [told.headline]
    failed = failed_in_a_row(status.attempts) if status else 0
    if failed > 1:
        least = "at least " if failed == _MOST_RECORDS else ""
        parts.append(f"{least}{count(failed, 'attempt')} have failed in a row")
    if status and status.next_attempt and status.next_attempt > now:
        at, later = status.next_attempt, ago(status.next_attempt, now)
        parts.append(f"the next waits for GPUs from {at:%Y-%m-%d %H:%M:%S} UTC on, {later}")
    if last := _last_line(wrote):
        parts.append(f"the last line of its engine: {_cut(last)}")
    hints = (*told.hints, *_helps(told.job, service))
    return told.model_copy(update={"headline": "; ".join(parts), "hints": hints})


def failed_in_a_row(attempts: Sequence[AttemptRecord]) -> int:
    """Return how many of the last attempts failed, without one between them that did not."""
    found = 0
    for each in reversed(attempts):
        if each.failure is None or each.moved or each.resized:
            break
        found += 1
    return found


def _last_line(text: str) -> str:
    """Return the last line of a failure that has more than one: the first says how it ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if len(lines) > 1 else ""


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _helps(job: JobView, service: str) -> tuple[str, ...]:
    if service:
        return (
            f"see the last lines of its engine: `longshore service {service}`; all that it wrote: "
            f"`longshore logs {job.id}`",
            f"give the service another model, or the same one mended: `longshore serve FILE`; or "
            f"stop it: `longshore service {service} --remove`",
        )
    return (
        f"see what it wrote: `longshore logs {job.id}`",
        f"end it, where another attempt would fail as well: `longshore cancel {job.id}`",
    )
