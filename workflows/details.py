"""A job as Markdown, for the card that the Temporal UI shows of a workflow."""

from longshore.activities.job_starts import summary_of
from longshore.models.job import JobSpec
from longshore.models.job_status import AttemptRecord, JobState, JobStatus
from longshore.models.text import format_duration, format_places
from longshore.models.units import format_cores, format_gb, format_limits
from longshore.models.visible import visible


def job_details(
    status: JobStatus,
    spec: JobSpec,
    *,
    simulated: bool,
    is_another: bool = False,
    paid_for: str = "",
) -> str:
    """Return the job in a line, state and reason, what it needs, and its attempts so far.

    The line is the summary of the workflow. That can be given at the start alone, and some start a
    job without one. With `is_another` the job on record under the id is another, or
    had ended: this is not its state. `paid_for` says who pays, where its tenant has a budget.
    """
    headline = _headline(status, simulated)
    if is_another:
        headline = f"Refused at {status.since:%Y-%m-%d %H:%M:%S} UTC"
    lines = [summary_of(spec), "", f"### {headline}", ""]
    if status.reason:
        lines += [status.reason, ""]
    if paid_for and not status.state.ended:
        lines += [f"**Paid for** {paid_for}", ""]
    lines += [f"**Needs** {_needs(spec)}", ""]
    if status.attempts:
        # A list, newest first: the page shows tables without room between their columns.
        lines += ["**Attempts**", ""]
        lines += [_attempt_line(attempt) for attempt in reversed(status.attempts)]
        lines.append("")
    if not status.state.ended:
        lines.append(f"`longshore why {status.job_id}` says more.")
    return visible("\n".join(lines))


def _headline(status: JobStatus, simulated: bool) -> str:
    on = " on simulated GPUs" if simulated and status.state is JobState.RUNNING else ""
    return f"{status.state.value}{on} since {status.since:%Y-%m-%d %H:%M:%S} UTC"


def _needs(spec: JobSpec) -> str:
    gpu_type = spec.gpu_type or ("any GPU" if spec.gpu.whole else None)
    gpus = spec.gpu.text(gpu_type)
    return (
        f"{gpus}, {format_cores(spec.cpus)}, "
        f"{format_gb(spec.ram)} of memory"
        f"{format_limits(spec.storage_bandwidth, spec.power_per_gpu)} "
        f"for about {format_duration(spec.likely_duration)}; "
        f"{spec.tier.value}, class {spec.priority}, tenant {spec.tenant}, pool {spec.pool}"
    )


def _attempt_line(attempt: AttemptRecord) -> str:
    return f"- {attempt.attempt} on {format_places(attempt.places)}: {_course(attempt)}"


def _course(attempt: AttemptRecord) -> str:
    if attempt.ended_at is None:
        return f"runs since {attempt.placed_at:%H:%M:%S}"
    what = attempt.message or "ended"
    if attempt.moved:
        what = f"moved ({what})"
    if attempt.failure is not None and attempt.failure.value != what:
        what = f"{attempt.failure.value} ({what})"
    return f"{what}, {attempt.placed_at:%H:%M:%S} to {attempt.ended_at:%H:%M:%S}"
