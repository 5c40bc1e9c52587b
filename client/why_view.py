"""Why a job is where it is, on the screen."""

from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.attempts_view import (
    attempts_table,
    sizes_table,
    spares_gone_facts,
    stderr_tail,
)
from longshore.client.bought_view import buying_parts
from longshore.client.checkpoint_view import saving_facts, trouble_facts
from longshore.client.job_view import (
    begin_facts,
    cost_text,
    data_facts,
    deadline_facts,
    latest_end,
    may_start,
    moment_text,
    payer_facts,
    ran_for,
)
from longshore.client.terminal import Text, a_table, heading, pairs
from longshore.client.ways_view import ways_table
from longshore.client.words import SIMULATED, class_of, head_start_of, places_of
from longshore.models.explanation import Explanation
from longshore.models.job_status import JobState
from longshore.models.placement import Candidate, Decision, PlacementKind, Rejection
from longshore.models.text import ago, amount, count, format_gpus, format_slices
from longshore.models.visible import in_one_line
from longshore.scheduling.fair_tree import says_part
from longshore.scheduling.preemption.due import lottery_words, took_words


def explanation_screen(explanation: Explanation, now: datetime) -> RenderableType:
    """Return why a job is where it is: the headline, then each node with what is missing there."""
    job = explanation.job
    parts: list[RenderableType] = [
        Text.assemble((job.id, "bold"), f" {in_one_line(explanation.headline)}"),
    ]
    facts = list(_queue_facts(explanation, now))
    facts += data_facts(explanation.data, explanation.data_missing)
    facts += trouble_facts(explanation.checkpoint_error)
    facts += deadline_facts(job, explanation.meeting, now)
    facts += _end_facts(explanation, now)
    facts += payer_facts(explanation.payers, explanation.headline)
    if (room := explanation.made_room) is not None:
        facts.append(("made room", f"{ago(room.at, now)}: {room.reason}"))
    elif took := explanation.took_spares:
        facts.append(("made room", f"{ago(took[0].at, now)}: {took_words(took)}"))
    facts += spares_gone_facts(explanation.spares_gone, now)
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
        mark = f" ({SIMULATED})" if explanation.simulated else ""
        parts += [
            Text(),
            heading(f"Nodes of pool {job.pool}{mark} now, for this job alone"),
            _verdicts_table(explanation.decision),
        ]
    plan = explanation.ways_plan
    if plan is not None and plan.ways:
        weighed = "are weighed now" if plan is explanation.weighed else "were weighed"
        parts += [Text(), heading(f"Ways to start, as they {weighed}")]
        parts.append(ways_table(plan.ways, plan.at))
    if explanation.sizes:
        parts += [Text(), heading("Size changes"), sizes_table(explanation.sizes, now)]
    if explanation.attempts:
        parts += [
            Text(),
            heading("Attempts"),
            attempts_table(explanation.attempts, now, job.ended_at),
        ]
    parts += stderr_tail(explanation.stderr_tail)
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


def _queue_facts(explanation: Explanation, now: datetime) -> list[tuple[str, RenderableType]]:
    job, last = explanation.job, explanation.last_decision
    facts: list[tuple[str, RenderableType]] = []
    if explanation.position is not None:
        before = count(explanation.ahead, "job")
        ahead = f"{before} before it" if explanation.ahead else "the first"
        risen = "" if job.counted_as is None else f"; {class_of(job, now)}"
        head_start = f"; {said}" if (said := head_start_of(explanation)) else ""
        place = f"place {explanation.position} in pool {job.pool}, {ahead}{risen}{head_start}"
        if job.state is not JobState.HELD:  # that has no turn before it is released, or begins
            facts.append(("queue", place))
    if explanation.position is not None or (last and last.kind is PlacementKind.SET_ASIDE):
        facts += begin_facts(job, now) or [("waits since", moment_text(job.waits_since, now))]
    if explanation.share is not None:
        facts.append((f"share of {job.tenant}", says_part(explanation.share)))
    if explanation.decided_at is not None and last is not None:
        said = "" if last.reason in explanation.headline else f": {last.reason}"
        # A cycle that finds the same writes nothing.
        facts.append(("reason of", f"{ago(explanation.decided_at, now)}{said}"))
    start = job.estimated_start
    if start is not None and explanation.position is not None:
        when = "what was bought is there" if explanation.purchases else "jobs end in time"
        facts.append(("may start", f"{may_start(start, now, job.start_range)}, when {when}"))
    if explanation.position is None and job.node_id is not None:
        label = "runs on" if job.state is JobState.RUNNING else "ran last on"
        facts.append((label, places_of(job.places, simulated=job.simulated)))
    return facts


def _end_facts(explanation: Explanation, now: datetime) -> list[tuple[str, RenderableType]]:
    """Return when a job ended, how long it ran, and what it cost."""
    job, facts = explanation.job, list[tuple[str, RenderableType]]()
    if job.state.ended and job.ended_at is not None:
        facts.append(("ended", moment_text(job.ended_at, now)))
        if job.started_at is not None:
            facts.append(("ran last for", ran_for(job)))
    if explanation.cost is not None:
        facts.append(("cost", cost_text(explanation.cost)))
    return facts


def _gave_way_facts(explanation: Explanation, now: datetime) -> list[tuple[str, RenderableType]]:
    """Return for whom the job was preempted last, and what that cost it."""
    plan = explanation.gave_way
    mine = [v for v in plan.victims if v.job_id == explanation.job.id] if plan else []
    if plan is None or not mine:
        return []
    lost = f"{amount(mine[0].total)} in all: {mine[0].reason}"
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
