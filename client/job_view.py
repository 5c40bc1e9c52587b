"""How jobs look: the list, and one job in full."""

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.array_view import array_parts
from longshore.client.attempts_view import attempts_table, spares_gone_facts, stderr_tail
from longshore.client.checkpoint_view import checkpoint_facts, saving_facts
from longshore.client.code_view import travels
from longshore.client.live import progress_bar
from longshore.client.terminal import WIDE, Text, a_table, heading, pairs, width_of_ids
from longshore.client.words import (
    SIMULATED,
    UNTIL_RELEASED,
    class_of,
    clock,
    places_of,
    says_start,
    short_class_of,
    styled,
    tier_of,
)
from longshore.models.data import StagedData
from longshore.models.deadline import DeadlineCost, DeadlineOutlook
from longshore.models.elements import ElementState
from longshore.models.funding_use import Payers
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import JobState, JobStatus
from longshore.models.labels import format_labels
from longshore.models.spending import JobCost
from longshore.models.start_range import StartRange, probably
from longshore.models.text import (
    MOST_NODES,
    NONE,
    ago,
    and_more,
    count,
    dollars,
    format_duration,
    format_gpus,
    format_places,
    format_slices,
    listed,
    span,
)
from longshore.models.units import format_cores, format_gb, format_limits
from longshore.models.views import JobView
from longshore.models.visible import in_one_line
from longshore.scheduling.arrays import progress_text
from longshore.scheduling.buying.words import under_way


def jobs_table(
    jobs: Sequence[JobView], now: datetime, width: int, labels: Sequence[str] = ()
) -> Table:
    """Return a line for each job, with the values of `labels` in columns; a narrow table leaves
    out what is mostly the same.

    An id that would take the place of all else is folded, as its end tells jobs apart.
    """
    headings = ["job", "state", "GPUs", "ago", "reason"]
    if width >= WIDE:
        headings[2:2] = ["pool", "tenant", "tier", "class"]
    headings[-1:-1] = labels
    table = a_table(
        headings, right=("ago", "class"), fold=("reason",), widest={"job": width_of_ids(width)}
    )
    for job in jobs:
        cells: list[str | Text] = [
            job.id,
            styled(job.state),
            _size(job),
            span(now - _last_change(job), units=1),
            Text(_remark(job, now), no_wrap=True, overflow="ellipsis"),
        ]
        if width >= WIDE:
            cells[2:2] = [job.pool, job.tenant, tier_of(job), short_class_of(job)]
        cells[-1:-1] = [job.labels.get(label, NONE) for label in labels]
        table.add_row(*cells)
    return table


def job_screen(report: JobReport, now: datetime) -> RenderableType:
    """Return one job in full."""
    job, status, progress = report.job, report.status, report.progress
    state = report.state
    since = f" for {span(now - status.since)}" if status and not state.ended else ""
    parts: list[RenderableType] = [
        Text.assemble((job.id, "bold"), "  ", styled(state), since),
    ]
    if progress and state is JobState.RUNNING and (progress.fraction or progress.message):
        started = progress.started_at or job.started_at or now
        parts.append(progress_bar(progress, now - started))
    if report.array is not None:
        parts += array_parts(report.array)
    facts = _facts(report, now)
    facts += checkpoint_facts(progress, report.checkpoint, now)
    if progress and progress.log_error and not state.ended:
        facts.append(("logs", f"the log store takes no more: {progress.log_error}"))
    facts += saving_facts(report.saving, now)
    parts += [Text(), pairs(facts)]
    attempts = status.attempts if status else ()
    if attempts:
        parts += [Text(), heading("Attempts"), attempts_table(attempts, now, job.ended_at)]
    parts += stderr_tail(report.stderr_tail)
    parts += [Text(), Text(f"Next: {_next_step(report)}", style="dim")]
    return Group(*parts)


def wants(spec: JobSpec, learnt: str = "") -> str:
    """Return what a job asks for: ``2 x H100 with 40GB, 4 cores, 16GB RAM, about 1h``.

    `learnt` says how long it takes, where that is learnt."""
    gpus = spec.gpu.text(spec.gpu_type)
    if spec.malleable is not None:
        gpus = f"{gpus} ({spec.malleable.text})"
    labels = "".join(f", on a node with {each}" for each in spec.constraints)
    return (
        f"{gpus}, {format_cores(spec.cpus)}, "
        f"{format_gb(spec.ram)} RAM{format_limits(spec.storage_bandwidth, spec.power_per_gpu)}"
        f"{labels}, {learnt or f'about {format_duration(spec.likely_duration)}'}"
    )


def time_limit(report: JobReport, now: datetime) -> str:
    """Return how long an attempt may run, and until when the one that runs may."""
    spec, progress = report.spec, report.progress
    limit = spec.max_duration if spec and spec.max_duration else timedelta(0)
    said = format_duration(limit) + (" for each element" if spec and spec.array else "")
    if report.job.ends_by is None:
        return said
    began = progress.started_at if progress else None
    return f"{said}; {latest_end(began + limit if began else report.job.ends_by, now)}"


def latest_end(end: datetime, now: datetime) -> str:
    """Return when a job that runs has run for as long as it may."""
    return f"ends at the latest about {clock(end, now)} ({ago(end, now)})"


def command_of(spec: JobSpec) -> str:
    """Return what a job runs, in one line."""
    if spec.engine is not None:
        return f"serves {spec.engine.text}"
    command = spec.command if isinstance(spec.command, str) else shlex.join(spec.command or ())
    return f"{command} in {spec.image}".strip() if spec.image else command


def share(job: JobView) -> str:
    """Return what a job has of each GPU that it shares: ``500/1000``, or of an engine its
    memory."""
    return format_gb(job.vram_per_gpu) if job.runs_engine else f"{job.milli}/1000"


def held(job: JobView) -> str:
    """Return what a job has of its node: ``GPUs 0-3``, ``500/1000 of GPU 2``, ``12GB of each of
    GPUs 2-3``; of a gang the other nodes too: ``GPUs 0-7, local-2 GPUs 0-7``."""
    if len(job.nodes) > 1:
        return format_places(job.places).removeprefix(f"{job.nodes[0]} ")
    gpus = format_gpus(job.gpu_indices)
    if job.mig is not None:
        return f"{job.mig} at {format_slices(job.slices)} of {gpus}"
    of = "each of " if len(job.gpu_indices) > 1 else ""
    return f"{share(job)} of {of}{gpus}" if job.milli < 1000 else gpus


def _size(job: JobView) -> str:
    """Return ``4xH100``, or ``4`` of any type; of one whose stored spec cannot be read nothing."""
    if not job.gpus:
        return NONE
    return f"{job.size}x{job.gpu_type}" if job.gpu_type else job.size


def _last_change(job: JobView) -> datetime:
    """Return when it ended, or was placed, or was submitted."""
    if job.ended_at is not None:
        return job.ended_at
    if job.state is JobState.RUNNING and job.started_at is not None:
        return job.started_at
    return job.submitted_at


def _remark(job: JobView, now: datetime) -> str:
    """Return what is worth knowing beside the state: where it runs, why it waits, how it ended."""
    if job.elements is not None and not job.begin_only:
        return progress_text(job.elements, job.claimed, job.slots_aside)
    match job.state:
        case JobState.RUNNING:
            again = f", attempt {job.attempt}" if job.attempt > 1 else ""
            but = f"; {job.reason}" if job.unreadable else ""
            return f"{_where(job)} {held(job)}{again}{but}"
        case JobState.SUCCEEDED if job.started_at is not None:
            return f"{_was(job)} for {ran_for(job)}"
        case JobState.FAILED:
            code = "" if job.exit_code is None else f", exit code {job.exit_code}"
            where = f" ({_was(job)})" if job.node_id else ""
            kind = job.failure.value if job.failure else "failed"
            return f"{kind}{code}{where}: {job.reason}".rstrip(": ")
        case JobState.QUEUED if job.estimated_start is not None:
            return f"{says_start(job.estimated_start, now)}: {job.reason}"
        case JobState.HELD:
            return job.reason or UNTIL_RELEASED
        case _:
            return job.reason


def _where(job: JobView) -> str:
    """Return the node; the mark goes first, so that nothing cuts it off."""
    return f"{SIMULATED} {job.node_id}" if job.simulated else job.node_id or ""


def _was(job: JobView) -> str:
    """Return the node, and of a gang that has ended how many others it was on."""
    return f"{_where(job)} {and_more(len(job.nodes) - 1, 'node')}".rstrip()


def ran_for(job: JobView) -> str:
    """Return how long it ran last."""
    if job.started_at is None or job.ended_at is None:
        return "no time"
    return span(job.ended_at - job.started_at)


def _facts(report: JobReport, now: datetime) -> list[tuple[str, RenderableType]]:
    job, status, spec = report.job, report.status, report.spec
    facts: list[tuple[str, RenderableType]] = []
    if job.node_id is not None:
        label = "runs on" if job.state is JobState.RUNNING else "ran last on"
        facts.append((label, places_of(job.places, simulated=job.simulated)))
    if job.spares:
        facts.append(("stands by", job.stands_by))
    gone = report.attempts[-1].spares_gone if report.attempts else ()
    facts += spares_gone_facts(gone, now)
    facts += payer_facts(report.payers)
    running = job.state is JobState.RUNNING
    reason = job.reason if running or status is None else status.reason or job.reason
    if reason:
        facts.append(("why there" if running else "why", reason))
    if spec is not None and spec.array is not None:
        pass  # its elements have attempts and exit codes
    elif status and status.result:
        facts.append(("result", _result(status.result.exit_code, status.result.attempts)))
    elif status is None and job.ended_at is not None:
        # Its workflow does not say it; the database knows the number of the last attempt.
        facts.append(("result", _result(job.exit_code, job.attempt if report.attempts else 0)))
    if status and (status.preemptions or status.moves):
        facts.append(("preempted", _gave_way(status)))
    if status and status.resizes:
        facts.append(("resized", count(status.resizes, "time")))
    if status and not job.state.ended and status.attempts and status.attempts[-1].left:
        facts.append(("in place", status.reason))
    if report.not_ready:
        facts.append(("not ready", listed(report.not_ready, MOST_NODES)))
    facts += begin_facts(job, now)
    if job.estimated_start is not None:
        facts.append(("may start", may_start(job.estimated_start, now, job.start_range)))
    facts += deadline_facts(job, None, now)
    facts += data_facts(report.data, report.progress.data_missing if report.progress else "")
    facts += [("not brought", each) for each in status.not_brought] if status else []
    if report.purchases:
        facts.append(("bought", under_way(report.purchases, whose=" for it")))
    if report.not_bought:
        facts.append(("not bought", report.not_bought))
    if spec is not None and spec.array is not None:
        facts.append(("array", str(spec.array)))
    if job.labels:
        facts.append(("labels", format_labels(job.labels)))
    if spec is not None and spec.max_duration is not None:
        facts.append(("time limit", time_limit(report, now)))
    facts += _asked(spec, job)
    facts += [
        (
            "queue",
            f"pool {job.pool}, tenant {job.tenant}, {tier_of(job)}, {class_of(job, now)}",
        ),
        ("submitted", moment_text(job.submitted_at, now)),
    ]
    if job.first_started_at is not None:
        waited = span(job.first_started_at - job.waits_from)
        facts.append(
            ("started", f"{moment_text(job.first_started_at, now)}, after a wait of {waited}")
        )
    if job.ended_at is not None:
        facts.append(("ended", moment_text(job.ended_at, now)))
    return facts


def _asked(spec: JobSpec | None, job: JobView) -> list[tuple[str, RenderableType]]:
    """Return what was submitted; nothing where that cannot be read, which is told beside."""
    if spec is None:
        return []
    return [
        ("wants", wants(spec, job.learnt) + (", for each element" if spec.array else "")),
        ("command", Text(command_of(spec))),
        *((name, Text(text)) for name, text in travels(spec)),
    ]


def payer_facts(payers: Payers | None, said: str = "") -> list[tuple[str, RenderableType]]:
    """Return who pays for a job and who has; nothing where no tenant has a budget."""
    if payers is None:
        return []
    facts: list[tuple[str, RenderableType]] = []
    who = payers.words or payers.waiting
    if (payers.now or payers.waiting) and who not in said:
        facts.append(("paid for", who))
    if payers.hours:
        facts.append(("GPU-hours", payers.hours_words))
    return facts


def data_facts(data: Sequence[StagedData], missing: str) -> list[tuple[str, RenderableType]]:
    """Return what becomes of each data set that its nodes fetch, and what could not be had."""
    facts: list[tuple[str, RenderableType]] = [("data", each.words) for each in data]
    return facts + ([("data", in_one_line(missing))] if missing else [])


def _result(exit_code: int | None, attempts: int) -> str:
    code = "" if exit_code is None else f"exit code {exit_code}, "
    return f"{code}{count(attempts, 'attempt')}"


def _gave_way(status: JobStatus) -> str:
    times = ((status.preemptions, "preempted"), (status.moves, "moved"))
    return ", ".join(f"{what} {count(number, 'time')}" for number, what in times if number)


def may_start(start: datetime, now: datetime, between: StartRange | None = None) -> str:
    """Return ``12:01 UTC (in 5m), probably between 12:00 and 12:10 UTC``."""
    return f"{clock(start, now)} ({ago(start, now)}){probably(between, now)}"


def begin_facts(job: JobView, now: datetime) -> list[tuple[str, RenderableType]]:
    """Return when a job begins, as long as that is to come."""
    if job.begins_at is None or job.begins_at <= now or job.state.ended:
        return []
    return [("begins", may_start(job.begins_at, now))]


def deadline_facts(
    job: JobView, meeting: DeadlineCost | None, now: datetime
) -> list[tuple[str, RenderableType]]:
    """Return how a job stands to its deadline, and what meeting it costs."""
    if (found := job.deadline) is None:
        return []
    since = ""
    if found.late_since is not None and found.outlook is DeadlineOutlook.LATE:
        since = f"; known since {clock(found.late_since, now)}"
    facts: list[tuple[str, RenderableType]] = [
        ("deadline", f"{may_start(found.at, now)}: {found.told}{since}")
    ]
    if meeting is not None:
        facts.append(("to meet it", meeting.says))
    return facts


def moment_text(instant: datetime, now: datetime) -> str:
    """Return ``5m ago (12:01 UTC)``."""
    return f"{ago(instant, now)} ({clock(instant, now)})"


def _next_step(report: JobReport) -> str:
    job, state, array = report.job, report.state, report.array
    if array is not None and state is not JobState.HELD:
        if array.counts.get(ElementState.FAILED):
            index = array.errors[0].indices.split("-")[0].split(",")[0] if array.errors else "0"
            return f"longshore logs {job.id} --element {index.split(' ')[0]}" + (
                f", or longshore retry {job.id} --failed" if state.ended else ""
            )
        return f"longshore elements {job.id}" + (
            "" if state.ended else f", or longshore watch {job.id}"
        )
    if state in (JobState.RUNNING, JobState.STOPPING):
        return f"longshore logs -f {job.id}, or longshore watch {job.id}"
    if state is JobState.HELD and not job.begin_only:
        return f"longshore release {job.id}"
    if state.ended:
        pull = f", or longshore pull {job.id}" if report.spec and report.spec.outputs else ""
        return f"longshore logs {job.id}{pull}"
    return f"longshore why {job.id}"


def cost_text(cost: JobCost) -> str:
    """Return ``$1.20 for 40m of GPU time``, and what is still to be booked."""
    held = f"{span(cost.gpu_time)} of GPU time"
    if cost.gpu_time <= timedelta(0):
        return "nothing: it held no GPU"
    if not cost.bought:
        return f"{held} on nodes that were not bought"
    mark = f" ({SIMULATED})" if cost.simulated else ""
    later = ", ".join(cost.open_blocks)
    more = f"; its share of {later} is booked when that ends" if later else ""
    return f"{dollars(cost.booked_micro_usd)}{mark} for {held}{more}"
