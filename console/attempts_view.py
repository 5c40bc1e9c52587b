"""The attempts of a job, and the changes of its size, as HTML."""

from collections.abc import Sequence
from datetime import datetime

from longshore.client.attempts_view import attempt_end, why_resized
from longshore.console.escaping import escape
from longshore.console.parts import SIMULATED_GPUS, cell, number, table, when
from longshore.models.job_report import JobReport
from longshore.models.job_status import AttemptRecord
from longshore.models.resize import SizeChange
from longshore.models.text import and_more, format_gpus, format_slices, span
from longshore.models.views import AttemptShare, AttemptView

_MOST_SHARES = 12


def attempts_html(report: JobReport, now: datetime) -> str:
    """Return the attempts, the newest first: nodes, GPUs, how long, and how each ended."""
    if not report.attempts:
        return ""
    over = report.job.ended_at  # of one that was ended from outside its attempt goes on, on record
    records = {each.attempt: each for each in report.status.attempts} if report.status else {}
    return table(
        "Attempts, the newest first",
        ("Attempt", "Nodes and GPUs", "Placed", "Lasted", "End", "Why there"),
        (
            f'<tr><th scope="row">{each.attempt}</th>'
            f'<td class="shares">{_shares(each)}</td>{cell(when(each.placed_at), "Placed")}'
            f"{cell(span((each.ended_at or over or now) - each.placed_at), 'Lasted')}"
            f"{cell(escape(_end(each, records.get(each.attempt), over)), 'End', folds=True)}"
            f'<td class="fold quiet">{escape(each.reason)}</td></tr>'
            for each in reversed(report.attempts)
        ),
    )


def sizes_html(changes: Sequence[SizeChange]) -> str:
    """Return the changes of the size of a malleable job, oldest first; nothing without any."""
    if not changes:
        return ""
    return table(
        "Size changes, oldest first",
        ("Placed", "Attempt", "GPUs", "Without GPUs for", "Since it was"),
        (
            f"<tr>{cell(when(each.at), 'Placed')}{number(str(each.attempt), 'Attempt')}"
            f"{number(f'{each.gpus_before} → {each.gpus}', 'GPUs')}"
            f"{number(_paused(each), 'Without GPUs for')}"
            f"{cell(escape(why_resized(each)), 'Since it was', folds=True)}</tr>"
            for each in changes
        ),
        numbers=("Attempt", "GPUs", "Without GPUs for"),
    )


def _paused(change: SizeChange) -> str:
    return "in place, no stop" if change.in_place else span(change.paused)


def _shares(attempt: AttemptView) -> str:
    said = [
        f'<span class="id">{escape(share.node_id)}</span> '
        f"{format_gpus(share.gpu_indices)}"
        f"{f' {format_slices(share.slices)}' if share.slices else ''}"
        f"{_stands_by(share, attempt) if share.spare else ''}"
        for share in attempt.shares[:_MOST_SHARES]
    ]
    more = and_more(len(attempt.shares) - _MOST_SHARES, "node")
    rest = [more] if more else []
    mark = SIMULATED_GPUS if any(share.simulated for share in attempt.shares) else ""
    return f"{'<br>'.join([*said, *rest])} {mark}"


def _stands_by(share: AttemptShare, attempt: AttemptView) -> str:
    if share.left_at is None:
        return ", stands by" if attempt.ended_at is None else ", stood by"
    why = f": {escape(share.end_message)}" if share.end_message else ""
    return f", stood by until {when(share.left_at)}{why}"


def _end(attempt: AttemptView, record: AttemptRecord | None, over: datetime | None) -> str:
    """Return how an attempt ended: as its workflow says, else why it gave up its GPUs."""
    if attempt.ended_at is None:
        return attempt_end(attempt, over)
    if record is not None and record.ended_at is not None:
        return attempt_end(record)
    reason = (attempt.end_reason or "ended").lower().replace("_", " ")
    return f"{reason}: {attempt.end_message}".rstrip(": ")
