"""The page of one job as HTML: what it wants, why it is where it is, its attempts."""

from collections.abc import Iterable
from datetime import datetime

from longshore.activities.checkpoints.rows import StoredCheckpoints
from longshore.client.code_view import travels
from longshore.client.job_view import command_of, held, wants
from longshore.client.words import class_of, head_start_of, tier_of
from longshore.console.array_view import array_facts
from longshore.console.budgets_view import hours_html, payers_html
from longshore.console.escaping import escape
from longshore.console.formats import with_code
from longshore.console.jobs_view import label_link, link, waited, waits
from longshore.console.parts import SIMULATED_GPUS, facts, number, table, when
from longshore.console.purchases_view import link as purchase_link
from longshore.models.explanation import Explanation
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import JobState
from longshore.models.node_messages import Progress
from longshore.models.start_range import probably
from longshore.models.text import (
    ago,
    count,
    dollars,
    format_duration,
    format_gpus,
    span,
)
from longshore.models.units import format_bytes
from longshore.models.views import JobView
from longshore.scheduling.preemption.due import took_words


def notes_html(report: JobReport) -> str:
    """Return what could not be asked; nothing where all answered."""
    items = "".join(f"<li>{with_code(_sentence(each))}</li>" for each in report.missing)
    return f'<ul class="notes" role="status">{items}</ul>' if items else ""


def head_html(report: JobReport, now: datetime, workflow: str | None) -> str:
    """Return what a job is; `workflow` is where the Temporal Web UI shows it."""
    job, state = report.job, report.state
    pairs = [
        ("Pool", escape(job.pool)),
        ("Tenant", escape(job.tenant)),
        ("Tier", f"{tier_of(job)} <small>{class_of(job, now)}</small>"),
        ("Submitted", when(job.submitted_at)),
    ]
    if report.array is None:
        pairs += [
            ("Waits for" if waits(job) else "Waited", span(waited(job, now))),
            ("Where", _where(job)),
            ("Placed", when(job.started_at)),
            ("Attempts", count(job.attempt if report.attempts else 0)),
        ]
    else:
        so_far = "Took" if job.ended_at else "Takes so far"
        pairs.append((so_far, span((job.ended_at or now) - job.submitted_at)))
        pairs += array_facts(report.array)
    if job.begins_at is not None and job.begins_at > now and not state.ended:
        pairs.append(("Begins", f"{when(job.begins_at)} <small>{ago(job.begins_at, now)}</small>"))
    if (due := job.deadline) is not None:
        told = f"{when(due.at)} <small>{escape(due.told)}</small>"
        pairs.append(("Deadline", told))
    if report.spec is not None and report.spec.max_duration is not None:
        pairs.append(("Time limit", _limit(report)))
    if report.status is not None and report.status.not_brought:
        pairs.append(("Not brought", "<br>".join(map(escape, report.status.not_brought))))
    if job.labels:
        pairs.append(("Labels", ", ".join(map(label_link, sorted(job.labels.items())))))
    if report.payers is not None and report.payers.now:
        pairs.append(("Paid for", payers_html(report.payers.now)))
    if report.payers is not None and report.payers.hours:
        pairs.append(("GPU-hours", hours_html(report.payers.hours)))
    if job.ended_at is not None:
        pairs.append(("Ended", when(job.ended_at)))
    if job.exit_code is not None:
        pairs.append(("Exit code", str(job.exit_code)))
    running = state is JobState.RUNNING and report.progress is not None
    bar = _progress(report.progress) if running and report.progress else ""
    return f"{facts(pairs)}{bar}{_asked(report)}{_leads_on(report, workflow)}"


def _limit(report: JobReport) -> str:
    """Return how long an attempt may run, and until when the one that runs may."""
    limit, progress, job = report.spec and report.spec.max_duration, report.progress, report.job
    if limit is None:
        return ""
    each = " <small>for each element</small>" if report.array else ""
    if job.ends_by is None:
        return f"{format_duration(limit)}{each}"
    began = progress.started_at if progress else None
    end = began + limit if began else job.ends_by
    return f"{format_duration(limit)} <small>ends at the latest about {when(end)}</small>"


def why_html(explanation: Explanation, now: datetime) -> str:
    """Return why a job is where it is, in sentences."""
    headline = with_code(explanation.headline)
    for each in explanation.purchases:
        headline = headline.replace(escape(each.id), purchase_link(each.id))
    said = [f"It {headline}."]
    if explanation.position is not None and explanation.job.state is not JobState.HELD:
        said.append(_place_in_queue(explanation, now))
    if explanation.payers is not None and explanation.payers.waiting:
        said.append(f"Paid for: {escape(explanation.payers.waiting)}.")
    last = explanation.last_decision
    if explanation.decided_at is not None and last is not None:
        also = "" if last.reason in explanation.headline else f": {escape(last.reason)}"
        # A cycle that finds the same writes nothing.
        said.append(f"The reason is of {ago(explanation.decided_at, now)}{also}.")
        if (start := explanation.job.estimated_start) is not None:
            then = "what was bought is there" if explanation.purchases else "jobs end in time"
            within = probably(explanation.job.start_range, now)
            said.append(f"It may start at {when(start)} UTC{within}, when {then}.")
    if explanation.meeting is not None:
        said.append(f"About its deadline: {escape(explanation.meeting.says)}.")
    said += [f"Data {escape(each.words)}." for each in explanation.data]
    if explanation.data_missing:
        said.append(f"Data {escape(explanation.data_missing)}.")
    if explanation.checkpoint_error:
        said.append(f"Checkpoint: {escape(explanation.checkpoint_error)}.")
    said += _decided(explanation, now)
    return "".join(
        f'<p class="reason{"" if position else " first"}">{each.replace("..", ".")}</p>'
        for position, each in enumerate(said)
    )


def hints_html(explanation: Explanation) -> str:
    """Return what could be done about it; nothing where there is nothing to say."""
    items = "".join(f"<li>{with_code(hint)}</li>" for hint in explanation.hints)
    return f'<ul class="hints">{items}</ul>' if items else ""


def stderr_html(report: JobReport) -> str:
    """Return the last lines that a job that failed wrote to stderr."""
    lines = "\n".join(map(escape, report.stderr_tail))
    return f'<pre class="padded output" tabindex="0">{lines}</pre>' if lines else ""


def checkpoints_html(stored: StoredCheckpoints, now: datetime) -> str:
    """Return what the checkpoint store has of a job."""
    damaged = "".join(f"<li>{escape(each)}</li>" for each in stored.damaged)
    notes = f'<ul class="notes padded">{damaged}</ul>' if damaged else ""
    if not stored.checkpoints:
        return f'{notes}<p class="quiet padded">Nothing is stored yet.</p>'
    return notes + table(
        "Checkpoints, the newest first",
        ("Attempt", "Number", "Step", "Size", "Saved", "Took", "Whole"),
        (
            f'<tr><th scope="row">{each.attempt}</th>{number(str(each.number))}'
            f"{number('–' if each.step is None else count(each.step))}"
            f"{number(format_bytes(each.bytes))}"
            f"<td>{when(each.saved_at)}<small>{ago(each.saved_at, now)}</small></td>"
            f"{number('–' if each.write_seconds is None else f'{each.write_seconds:.1f}s')}"
            f"<td>{'yes' if each.whole else f'no: not all {each.ranks} ranks'}</td></tr>"
            for each in stored.checkpoints
        ),
        numbers=("Number", "Step", "Size", "Took"),
    )


def _asked(report: JobReport) -> str:
    """Return what was submitted, in short. The values of variables may be secret: names alone."""
    spec = report.spec
    if spec is None:
        return ""  # why not is among what could not be asked
    said = [f"Wants {escape(wants(spec, report.job.learnt))}"]
    if spec.gang is not None:
        spares = spec.gang.spares_of(spec.gpus)
        beside = f" with {count(spares, 'spare GPU')}" if spares else ""
        said.append(f"as a gang{beside}")
    if spec.env:
        said.append(f"with the variables {escape(', '.join(sorted(spec.env)))}")
    checkpoint = "saves and goes on" if spec.checkpoint else "starts anew when it is stopped"
    rest = [checkpoint] + ([] if spec.preemptible else ["is never preempted"])
    return (
        f'<p class="reason">{", ".join(said)}; {", ".join(rest)}.</p>'
        f'<p class="reason command"><code>{escape(command_of(spec))}</code></p>'
        f"{_travels(spec)}"
    )


def _travels(spec: JobSpec) -> str:
    """Return what comes along with a job, and what of it is stored."""
    said = [f"{name.capitalize()}: {escape(text)}" for name, text in travels(spec)]
    return f'<p class="reason">{" · ".join(said)}</p>' if said else ""


def _place_in_queue(explanation: Explanation, now: datetime) -> str:
    job, ahead = explanation.job, explanation.ahead
    of = f"the queue of pool {escape(job.pool)}"
    risen = "" if job.counted_as is None else f" It is of {class_of(job, now)}."
    if said := head_start_of(explanation):
        risen += f" {said}."
    if not ahead:
        return f"It is the first in {of}.{risen}"
    return f"It has place {explanation.position} in {of}, {count(ahead, 'job')} ahead.{risen}"


def _leads_on(report: JobReport, workflow: str | None) -> str:
    job_id = escape(report.job.id)
    then = f"<code>longshore logs {job_id}</code> prints what it wrote."
    if report.spec and report.spec.outputs and report.state.ended:
        then += f" <code>longshore pull {job_id}</code> brings its outputs."
    if report.array is not None:
        then = f"<code>longshore elements {job_id}</code> lists its elements."
    if workflow is None:
        seen = "Where the Temporal Web UI is, is not known: set LONGSHORE_TEMPORAL_UI."
    else:
        words = "Its workflow in the Temporal Web UI"
        seen = f'<a href="{escape(workflow)}" rel="noreferrer">{words}</a>'
    return f'<p class="reason">{seen} · {then}</p>'


def _progress(progress: Progress) -> str:
    said = escape(progress.message)
    if progress.fraction is None:
        return f'<p class="reason">{said}</p>' if said else ""
    share = f"{progress.fraction * 100:.0f}"
    return (
        f'<p class="reason"><span class="meter wide"><i style="width:{share}%"></i></span>'
        f"{share} % {said}</p>"
    )


def _where(job: JobView) -> str:
    if job.node_id is None:
        return "–"
    last = "" if job.state in (JobState.RUNNING, JobState.STOPPING) else " <small>last</small>"
    mark = f" {SIMULATED_GPUS}" if job.simulated else ""
    what = f" <small>{escape(held(job))}</small>"
    return f'<span class="id">{escape(job.node_id)}</span>{what}{last}{mark}'


def _decided(explanation: Explanation, now: datetime) -> Iterable[str]:
    """Yield what was decided about preemption, saves and buying, with how long ago."""
    room, gave, saving = explanation.making_room, explanation.gave_way, explanation.saving
    if room is not None and room.reason not in explanation.headline:
        yield f"Others are preempted for it: {escape(room.reason)}."
    if (made := explanation.made_room) is not None:
        yield f"Others were preempted for it {ago(made.at, now)}: {escape(made.reason)}."
    elif took := explanation.took_spares:
        yield f"Others made room for it {ago(took[0].at, now)}: {escape(took_words(took))}."
    for gone in explanation.spares_gone:
        yield (
            f"{format_gpus(gone.gpu_indices)} of {escape(gone.node_id)} stood by for it until "
            f"{when(gone.left_at)}: {escape(gone.end_message) or 'given up'}."
        )
    if gave is not None:
        for_job = f"{link(gave.job_id)} {ago(gave.at, now)}"
        yield f"It was preempted for {for_job}: {escape(gave.reason)}."
    if saving is not None:
        asked = "asked" if saving.save else "not asked"
        yield f"It was {asked} to save {ago(saving.at, now)}: {escape(saving.reason)}."
    if explanation.growth is not None:
        yield f"About more GPUs: {escape(explanation.growth.outlook)}."
    bought = explanation.buying
    if bought is not None:
        best = next((each for each in bought.options if each.chosen), None)
        in_all = f"{dollars(best.total)} in all" if best else ""
        cost = "" if in_all in bought.reason else f" ({in_all})"
        said = "; ".join([f"{bought.reason}{cost}", *bought.left_out])
        yield f"About buying its pool decided {ago(bought.at, now)}: {escape(said)}."
    for each in explanation.blocks:
        block = escape(each.block_id)
        yield f"About its block {block}, {ago(each.at, now)}: {escape(each.reason)}."


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith(".") else f"{said}."
