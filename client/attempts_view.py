"""How the attempts of a job look, and the sizes that it had."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table

from longshore.client.terminal import SeveralLines, Text, a_table, heading
from longshore.client.words import cell, clock, zone
from longshore.models.job_status import AttemptRecord, not_stored
from longshore.models.resize import SizeChange
from longshore.models.text import MOST_NODES, ago, and_more, format_gpus, span
from longshore.models.views import AttemptShare, AttemptView

_WITH_ITS_WORKFLOW = "ended with its workflow"
"""Which says nothing of it: somebody ended it from outside."""


def attempt_end(record: AttemptRecord | AttemptView, job_ended_at: datetime | None = None) -> str:
    """Return how an attempt ended, in words; where its job has, none goes on."""
    over = record.ended_at is None and job_ended_at is not None
    if isinstance(record, AttemptView):
        if over:
            return f"{_WITH_ITS_WORKFLOW}; the next reconcile frees its GPUs"
        said = f"{record.end_reason}: {record.end_message}".rstrip(": ")
        return said if record.ended_at else "runs"
    if over:
        return _WITH_ITS_WORKFLOW
    spares = f"; {record.spares_said}" if record.spares_said else ""
    return f"{_how_it_ended(record)}{spares}{not_stored(record.log_error)}"


def attempts_table(
    attempts: Sequence[AttemptRecord | AttemptView],
    now: datetime,
    job_ended_at: datetime | None = None,
) -> Table:
    """Return each attempt with its nodes, how long it lasted and how it ended."""
    table = a_table(
        ("#", "node", "GPUs", f"placed ({zone(now)})", "lasted", "end"),
        right=("#",),
        fold=("end", "node", "GPUs"),
    )
    for record in attempts:
        lasted = (record.ended_at or job_ended_at or now) - record.placed_at
        nodes, gpus = _lines(record.places)
        table.add_row(
            str(record.attempt),
            nodes,
            gpus,
            cell(record.placed_at, now),
            span(lasted),
            attempt_end(record, job_ended_at),
        )
    return table


def spares_gone_facts(
    gone: Sequence[AttemptShare], now: datetime
) -> list[tuple[str, RenderableType]]:
    """Return what stood by for a gang and was given up, with when and why."""
    said = [
        f"{format_gpus(share.gpu_indices)} of {share.node_id} stood by until "
        f"{clock(share.left_at, now)}, {ago(share.left_at, now)}: {share.end_message}".rstrip(": ")
        for share in gone[:MOST_NODES]
        if share.left_at is not None
    ]
    more = and_more(len(gone) - MOST_NODES, "node")
    return [("spares", SeveralLines([*said, *([more] if more else [])]))] if said else []


def stderr_tail(lines: Sequence[str]) -> list[RenderableType]:
    """Return the last lines of its stderr under a heading; nothing without any."""
    if not lines:
        return []
    return [Text(), heading("The last lines of its stderr"), SeveralLines(lines)]


def sizes_table(changes: Sequence[SizeChange], now: datetime) -> Table:
    """Return each change of size of a malleable job, and why it came."""
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
