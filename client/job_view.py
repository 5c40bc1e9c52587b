"""How jobs look: the list, one job in full, and why it is where it is."""

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.array_view import array_parts
from longshore.client.bought_view import buying_parts
from longshore.client.checkpoint_view import checkpoint_facts, saving_facts
from longshore.client.code_view import travels
from longshore.client.live import progress_bar
from longshore.client.terminal import (
    WIDE,
    SeveralLines,
    Text,
    a_table,
    heading,
    pairs,
    width_of_ids,
)
from longshore.client.words import (
    SIMULATED,
    cell,
    class_of,
    clock,
    head_start_of,
    places_of,
    short_class_of,
    styled,
    tier_of,
    zone,
)
from longshore.models.data import StagedData
from longshore.models.deadline import DeadlineCost, DeadlineOutlook
from longshore.models.elements import ElementState
from longshore.models.funding_use import Payers
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import AttemptRecord, JobState, JobStatus, not_stored
from longshore.models.labels import format_labels
from longshore.models.placement import Candidate, Decision, Rejection
from longshore.models.resize import SizeChange
from longshore.models.spending import JobCost
from longshore.models.start_range import StartRange
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
from longshore.models.views import AttemptView, Explanation, JobView
from longshore.models.visible import in_one_line
from longshore.scheduling.arrays import progress_text
from longshore.scheduling.buying.words import under_way
from longshore.scheduling.fair_tree import says_part
from longshore.scheduling.preemption.due import lottery_words


def jobs_table(
    jobs: Sequence[JobView], now: datetime, width: int, labels: Sequence[str] = ()
) -> Table:
    """Return a line for each job, with the values of `labels` in columns; a narrow table leaves
    out what is mostly the same.

    An id that would take the place of all else is folded, as its end tells jobs apart.
    """
    headings = ["job", "state", "GPUs", "ago", "remark"]
    if width >= WIDE:
        headings[2:2] = ["pool", "tenant", "tier", "class"]
    headings[-1:-1] = labels
    table = a_table(
        headings, right=("ago", "class"), fold=("remark",), widest={"job": width_of_ids(width)}
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
        parts += [Text(), heading("Attempts"), _attempts_table(attempts, now)]
    parts += _stderr_tail(report.stderr_tail)
    parts += [Text(), Text(f"Next: {_next_step(report)}", style="dim")]
    return Group(*parts)


def explanation_screen(explanation: Explanation, now: datetime) -> RenderableType:
    """Return why a job is where it is: the headline, then each node with what is missing there."""
    job = explanation.job
    parts: list[RenderableType] = [
        Text.assemble((job.id, "bold"), f" {in_one_line(explanation.headline)}"),
    ]
    facts = list(_queue_facts(explanation, now))
    facts += _data_facts(explanation.data)
    facts += deadline_facts(job, explanation.meeting, now)
    facts += _end_facts(explanation, now)
    facts += payer_facts(explanation.payers, explanation.headline)
    facts += _gave_way_facts(explanation, now) + saving_facts(explanation.saving, now)
    if job.learnt:
        facts.append(("time it takes", job.learnt))
    if job.ends_by is not None:
        facts.append(("time limit", latest_end(job.ends_by, now)))
    if explanation.growth is not None:
        facts.append(("growth", explanation.growth.outlook))
    if facts:
        parts += [Text(), pairs(facts)]
    if explanation.decision is not None and (
        explanation.decision.candidates or explanation.decision.rejections
    ):
        parts += [
            Text(),
            heading(f"Nodes of pool {job.pool} now, for this job alone"),
            _verdicts_table(explanation.decision),
        ]
    if explanation.sizes:
        parts += [Text(), heading("Changes of its size"), _sizes_table(explanation.sizes, now)]
    if explanation.attempts:
        parts += [Text(), heading("Attempts"), _attempts_table(explanation.attempts, now)]
    parts += _stderr_tail(explanation.stderr_tail)
    # Of a job that has ended, what its nodes scored when it was placed explains nothing any more.
    scores = not job.state.ended
    if scores and explanation.placed is not None and explanation.placed.candidates:
        parts += [Text(), heading("Nodes that could take it when it was placed, best first")]
        parts += [_verdicts_table(explanation.placed)]
    parts += list(buying_parts(explanation, now))
    if explanation.hints:
        parts += [Text(), heading("What could help")]
        parts += [_bullet(hint) for hint in explanation.hints]
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


def held(job: JobView) -> str:
    """Return what a job has of its node: ``GPUs 0-3``, ``500/1000 of GPU 2``, ``500/1000 of each
    of GPUs 2-3``; of a gang the other nodes too: ``GPUs 0-7, local-2 GPUs 0-7``."""
    if len(job.nodes) > 1:
        return format_places(job.places).removeprefix(f"{job.nodes[0]} ")
    gpus = format_gpus(job.gpu_indices)
    if job.mig is not None:
        return f"{job.mig} at {format_slices(job.slices)} of {gpus}"
    of = "each of " if len(job.gpu_indices) > 1 else ""
    return f"{job.milli}/1000 of {of}{gpus}" if job.milli < 1000 else gpus


def attempt_end(record: AttemptRecord | AttemptView) -> str:
    """Return how an attempt ended, in words."""
    if isinstance(record, AttemptView):
        said = f"{record.end_reason}: {record.end_message}".rstrip(": ")
        return said if record.ended_at else "runs"
    spares = f"; {record.spares_said}" if record.spares_said else ""
    return f"{_how_it_ended(record)}{spares}{not_stored(record.log_error)}"


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
        return progress_text(job.elements, job.claimed)
    match job.state:
        case JobState.RUNNING:
            again = f", attempt {job.attempt}" if job.attempt > 1 else ""
            but = f"; {job.reason}" if job.unreadable else ""
            return f"{_where(job)} {held(job)}{again}{but}"
        case JobState.SUCCEEDED if job.started_at is not None:
            return f"{_was(job)} for {_ran(job)}"
        case JobState.FAILED:
            code = "" if job.exit_code is None else f", exit code {job.exit_code}"
            where = f" ({_was(job)})" if job.node_id else ""
            kind = job.failure.value if job.failure else "failed"
            return f"{kind}{code}{where}: {job.reason}".rstrip(": ")
        case JobState.QUEUED if job.estimated_start is not None:
            return f"may start {ago(job.estimated_start, now)}: {job.reason}"
        case JobState.HELD:
            return job.reason or "until it is released"
        case _:
            return job.reason


def _where(job: JobView) -> str:
    """Return the node; the mark goes first, so that nothing cuts it off."""
    return f"{SIMULATED} {job.node_id}" if job.simulated else job.node_id or ""


def _was(job: JobView) -> str:
    """Return the node, and of a gang that has ended how many others it was on."""
    return f"{_where(job)} {and_more(len(job.nodes) - 1, 'node')}".rstrip()


def _ran(job: JobView) -> str:
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
    facts += _begin_facts(job, now)
    if job.estimated_start is not None:
        facts.append(("may start", _may_start(job.estimated_start, now, job.start_range)))
    facts += deadline_facts(job, None, now)
    facts += _data_facts(report.data)
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
        ("submitted", _moment(job.submitted_at, now)),
    ]
    if job.first_started_at is not None:
        waited = span(job.first_started_at - job.waits_from)
        facts.append(
            ("started", f"{_moment(job.first_started_at, now)}, after a wait of {waited}")
        )
    if job.ended_at is not None:
        facts.append(("ended", _moment(job.ended_at, now)))
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


def _data_facts(data: Sequence[StagedData]) -> list[tuple[str, RenderableType]]:
    return [("data", each.words) for each in data]


def _result(exit_code: int | None, attempts: int) -> str:
    code = "" if exit_code is None else f"exit code {exit_code}, "
    return f"{code}{count(attempts, 'attempt')}"


def _gave_way(status: JobStatus) -> str:
    times = ((status.preemptions, "preempted"), (status.moves, "moved"))
    return ", ".join(f"{what} {count(number, 'time')}" for number, what in times if number)


def _may_start(start: datetime, now: datetime, between: StartRange | None = None) -> str:
    within = f", probably {between.says(now)}" if between else ""
    return f"{clock(start, now)} ({ago(start, now)}){within}"


def _begin_facts(job: JobView, now: datetime) -> list[tuple[str, RenderableType]]:
    """Return when a job begins, as long as that is to come."""
    if job.begins_at is None or job.begins_at <= now or job.state.ended:
        return []
    return [("begins", _may_start(job.begins_at, now))]


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
        ("deadline", f"{_may_start(found.at, now)}: {found.told}{since}")
    ]
    if meeting is not None:
        facts.append(("to meet it", meeting.says))
    return facts


def _moment(instant: datetime, now: datetime) -> str:
    return f"{ago(instant, now)} ({clock(instant, now)})"


def _attempts_table(attempts: Sequence[AttemptRecord | AttemptView], now: datetime) -> Table:
    table = a_table(
        ("#", "node", "GPUs", f"placed ({zone(now)})", "lasted", "end"),
        right=("#",),
        fold=("end", "node", "GPUs"),
    )
    for record in attempts:
        lasted = (record.ended_at or now) - record.placed_at
        nodes, gpus = _lines(record.places)
        table.add_row(
            str(record.attempt),
            nodes,
            gpus,
            cell(record.placed_at, now),
            span(lasted),
            attempt_end(record),
        )
    return table


def _stderr_tail(lines: Sequence[str]) -> list[RenderableType]:
    if not lines:
        return []
    return [Text(), heading("The last lines of its stderr"), SeveralLines(lines)]


def _sizes_table(changes: Sequence[SizeChange], now: datetime) -> Table:
    table = a_table(
        (f"placed ({zone(now)})", "GPUs", "without GPUs for", "since it was"),
        fold=("since it was",),
    )
    for change in changes:
        table.add_row(
            cell(change.at, now),
            f"{change.gpus_before} → {change.gpus}",
            "in place, no stop" if change.in_place else span(change.paused),
            why_resized(change),
        )
    return table


def why_resized(change: SizeChange) -> str:
    """Return why a malleable job has another size, in words."""
    if change.reason.startswith(change.end_reason):
        return change.reason
    return f"{change.end_reason}: {change.reason}".rstrip(": ")


def _lines(places: Sequence[tuple[str, Sequence[int]]]) -> tuple[SeveralLines, SeveralLines]:
    """Return nodes and their GPUs, a line for each; of many nodes the first few."""
    nodes = [node_id for node_id, _ in places[:MOST_NODES]]
    gpus = [
        format_gpus(indices).removeprefix("GPUs ").removeprefix("GPU ") if indices else ""
        for _, indices in places[:MOST_NODES]
    ]
    if more := and_more(len(places) - MOST_NODES, "node"):
        nodes.append(more)
    return SeveralLines(nodes), SeveralLines(gpus)


def _how_it_ended(record: AttemptRecord) -> str:
    if record.ended_at is None:
        return "runs"
    if record.moved:
        return f"moved: {record.message}".rstrip(": ")
    if record.resized:
        return f"resized: {record.message}".rstrip(": ")
    if record.failure is None:
        return record.message or "success"
    code = "" if record.exit_code is None else f", exit code {record.exit_code}"
    return f"{record.failure.value}{code}: {record.message}".rstrip(": ")


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


def _queue_facts(explanation: Explanation, now: datetime) -> list[tuple[str, RenderableType]]:
    job, last = explanation.job, explanation.last_decision
    facts: list[tuple[str, RenderableType]] = []
    if explanation.position is not None:
        before = count(explanation.ahead, "job")
        ahead = f"{before} before it" if explanation.ahead else "the first"
        risen = "" if job.counted_as is None else f"; {class_of(job, now)}"
        head_start = f"; {said}" if (said := head_start_of(explanation)) else ""
        place = f"place {explanation.position} in pool {job.pool}, {ahead}{risen}{head_start}"
        facts.append(("queue", place))
        facts += _begin_facts(job, now) or [("waits since", _moment(job.waits_from, now))]
    if explanation.share is not None:
        facts.append((f"share of {job.tenant}", says_part(explanation.share)))
    if explanation.decided_at is not None and last is not None:
        said = "" if last.reason in explanation.headline else f": {last.reason}"
        facts.append(("last cycle", f"{ago(explanation.decided_at, now)}{said}"))
    start = job.estimated_start
    if start is not None and explanation.position is not None:
        when = "what was bought is there" if explanation.purchases else "jobs end in time"
        facts.append(("may start", f"{_may_start(start, now, job.start_range)}, when {when}"))
    if explanation.position is None and job.node_id is not None:
        label = "runs on" if job.state is JobState.RUNNING else "ran last on"
        facts.append((label, places_of(job.places, simulated=job.simulated)))
    return facts


def _end_facts(explanation: Explanation, now: datetime) -> list[tuple[str, RenderableType]]:
    """Return when a job ended, how long it ran, and what it cost."""
    job, facts = explanation.job, list[tuple[str, RenderableType]]()
    if job.state.ended and job.ended_at is not None:
        facts.append(("ended", _moment(job.ended_at, now)))
        if job.started_at is not None:
            facts.append(("ran last for", _ran(job)))
    if explanation.cost is not None:
        facts.append(("cost", cost_text(explanation.cost)))
    return facts


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


def _gave_way_facts(explanation: Explanation, now: datetime) -> list[tuple[str, RenderableType]]:
    """Return for whom the job was preempted last, and what that cost it."""
    plan = explanation.gave_way
    mine = [v for v in plan.victims if v.job_id == explanation.job.id] if plan else []
    if plan is None or not mine:
        return []
    lost = f"{dollars(mine[0].total)} in all: {mine[0].reason}"
    what = "preempted" if mine[0].gpus_left is None else "shrunk"
    facts: list[tuple[str, RenderableType]] = [
        (what, f"for {plan.job_id}, {ago(plan.at, now)}, for {lost}")
    ]
    if plan.lottery is not None and explanation.job.id in plan.lottery.drawn:
        facts.append(("lottery", lottery_words(plan.lottery)))
    return facts


def _verdicts_table(decision: Decision) -> Table:
    table = a_table(("node", "answer", "what is there"), fold=("what is there", "node"))
    for candidate in decision.candidates:
        table.add_row(
            candidate.node_id,
            Text("fits", style="green"),
            f"{_gpus_of(candidate)}, score {candidate.terms.total:.3f}",
        )
    for rejection in decision.rejections:
        table.add_row(rejection.node_id, _verdict(rejection), rejection.reason)
    return table


def _gpus_of(candidate: Candidate) -> str:
    slices = f" {format_slices(candidate.slices)}" if candidate.slices else ""
    return f"{format_gpus(candidate.gpu_indices)}{slices}"


def _verdict(rejection: Rejection) -> Text:
    return Text(rejection.code.value, style="red" if rejection.permanent else "yellow")


def _bullet(text: str) -> Table:
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row("-", text)
    return row
