"""The list of jobs as HTML: the state of each, where it is, how long it waited, and why."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from urllib.parse import quote

from longshore.client.job_view import held, share
from longshore.client.words import UNTIL_RELEASED, says_start, short_class_of, tier_of
from longshore.console.escaping import escape
from longshore.console.parts import SIMULATED_GPUS, address, cell, chip, facts, number, table
from longshore.models.job_status import JobState
from longshore.models.retry import FailureClass
from longshore.models.text import NONE, count, span
from longshore.models.views import JobView, PoolView
from longshore.scheduling.arrays import progress_text

PATH = "/jobs"
SHOWN = 100
STATES: dict[str, frozenset[JobState]] = {
    "all": frozenset(),
    "waiting": frozenset({JobState.SUBMITTED, JobState.QUEUED, JobState.RETRYING}),
    "held": frozenset({JobState.HELD}),
    "running": frozenset({JobState.RUNNING, JobState.STOPPING}),
    "ended": frozenset(state for state in JobState if state.ended),
    "failed": frozenset({JobState.FAILED}),
}
"""What can be chosen, with the states of each; none for all."""
_FOR, _GPUS, _WHERE, _WAITED, _WHY = "For", "GPUs", "Where", "Waited", "Why"


def link(job_id: str, words: str = "") -> str:
    """Return a link to the page of one job."""
    return f'<a class="id" href="{PATH}/{quote(job_id)}">{escape(words or job_id)}</a>'


def label_link(label: tuple[str, str]) -> str:
    """Return a label as a link to the list of the jobs that have it."""
    said = "=".join(label) if label[1] else label[0]
    return f'<a href="{address(PATH, {"state": "all", "label": said})}">{escape(said)}</a>'


def sums_html(pools: Iterable[PoolView], pool: str | None) -> str:
    """Return how much runs and waits, in one pool or in all."""
    shown = [each for each in pools if pool in (None, each.spec.name)]
    used, gpus = sum(each.gpus_used for each in shown), sum(each.gpus for each in shown)
    last = max((each.last_cycle_at for each in shown if each.last_cycle_at), default=None)
    return facts(
        (
            ("Running", count(sum(each.running for each in shown))),
            ("Waiting", f"{count(sum(each.queued for each in shown))}{_aside(shown)}"),
            ("Held", count(sum(each.held for each in shown))),
            ("GPUs used", f"{count(used)} <small>of {count(gpus)}</small>"),
            ("Last cycle", f"{last:%H:%M:%S} <small>UTC</small>" if last else "none yet"),
        )
    )


def _aside(pools: Iterable[PoolView]) -> str:
    aside = sum(pool.set_aside for pool in pools)
    return f" <small>{count(aside)} set aside</small>" if aside else ""


def list_html(jobs: Iterable[JobView], now: datetime) -> str:
    """Return the table of jobs."""
    return table(
        "Jobs, the newest first",
        ("Job", "State", _FOR, _GPUS, _WHERE, _WAITED, _WHY),
        (_row(job, now) for job in jobs),
        numbers=(_WAITED,),
    )


def gpus_text(job: JobView) -> str:
    """Return the GPUs that a job wants, in few words."""
    if not job.gpus:
        return NONE  # its stored spec cannot be read
    of = job.gpu_type or "GPU"
    if job.mig is not None or job.milli < 1000:
        each = f"{job.gpus} × " if job.gpus > 1 else ""
        return f"{each}{job.mig or share(job)} of {of}"
    if job.size != str(job.gpus):
        return f"{job.size} {job.gpu_type or 'GPUs'}"
    return f"{job.gpus} × {of}" if job.gpu_type else count(job.gpus, "GPU")


def waited(job: JobView, now: datetime) -> timedelta:
    """Return how long a job that waits has been in the queue, and one that is held had been; of
    another, how long it waited for its first start."""
    if job.state is JobState.HELD and not job.begin_only:
        return job.waited_by(now)  # as the queue counts it: a hold is no wait
    if job.queued_at is not None:
        return now - job.waits_since
    return (job.first_started_at or job.ended_at or now) - job.waits_from


def waits(job: JobView) -> bool:
    """Return whether a job waits now, for its first start or for another."""
    if job.state is JobState.HELD and not job.begin_only:
        return False
    return job.queued_at is not None or not (job.first_started_at or job.ended_at)


def why(job: JobView) -> str:
    """Return why a job is where it is, as stored: by the last cycle, or how it ended."""
    if job.state is JobState.HELD:
        return job.reason or UNTIL_RELEASED
    if job.state is not JobState.FAILED:
        return job.reason
    kind = (job.failure or FailureClass.USER).value.replace("_", " ")
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    return f"{kind}{code}: {job.reason}".rstrip(": ")


def _row(job: JobView, now: datetime) -> str:
    starts = ""
    if job.state is JobState.QUEUED and job.estimated_start is not None:
        between = f", {job.start_range.says(now)}" if job.start_range else ""
        starts = f"<small>{says_start(job.estimated_start, now)}{between}</small>"
    so_far = "<small>so far</small>" if waits(job) else ""
    again = f"<small>attempt {job.attempt}</small>" if job.attempt > 1 else ""
    who = f"<small>{escape(job.tenant)}, {tier_of(job)}, class {short_class_of(job)}</small>"
    return (
        f'<tr><th scope="row">{link(job.id)}</th><td>{chip(job.state.value)}{again}</td>'
        f"{cell(escape(job.pool) + who, _FOR)}{cell(escape(gpus_text(job)), _GPUS)}"
        f"{cell(_where(job), _WHERE)}{number(span(waited(job, now)) + so_far, _WAITED)}"
        f"{cell(_why(job) + starts, _WHY, folds=True)}</tr>"
    )


def _why(job: JobView) -> str:
    if job.elements is not None and not job.begin_only:
        return escape(progress_text(job.elements, job.claimed, job.slots_aside))
    said = escape(why(job))
    if job.state is not JobState.RUNNING or job.unreadable:
        return said
    # Why it runs where it runs is long, and seldom asked.
    return f'<span class="clamp quiet" title="{said}">{said}</span>'


def _where(job: JobView) -> str:
    if job.node_id is None or job.state in (JobState.QUEUED, JobState.HELD):
        return '<span class="quiet">–</span>'
    mark = f" {SIMULATED_GPUS}" if job.simulated else ""
    spares = f", {job.stands_by} stands by" if job.spares else ""
    return (
        f'<span class="id">{escape(job.node_id)}</span>{mark}'
        f"<small>{escape(f'{held(job)}{spares}')}</small>"
    )
