"""The page /queue as HTML: who waits in which order, and how far off told starts were."""

from collections.abc import Collection, Sequence
from datetime import datetime

from longshore.client.queue_view import (
    ERRORS,
    TERM_HEADS,
    deadline_of,
    errors_of,
    legends,
    rank_of,
    remark,
    score_of,
    start_of,
)
from longshore.client.words import short_class_of
from longshore.console import charts
from longshore.console.escaping import escape
from longshore.console.jobs_view import link
from longshore.console.parts import cell, empty, number, table
from longshore.models.queue_view import (
    QueuedJobView,
    QueueHistory,
    QueueMoment,
    QueueView,
    StartErrors,
)
from longshore.models.score import DIFFERING, TermWeights
from longshore.models.text import NONE, count, span

PATH = "/queue"
SHOWN = 100
_DEADLINE = "Deadline, UTC"
_RANK = ("Rank", "Price", "Growth", "Left")
_SCORE = ("Score", *(head.capitalize() for head in TERM_HEADS.values()))
_ERRORS = tuple(head[0].upper() + head[1:] for head in ERRORS)


def waiting_html(queue: QueueView, now: datetime) -> str:
    """Return the table of those that wait, the first `SHOWN` of them."""
    by_rank = any(job.terms for job in queue.jobs)
    scored = queue.weights is not None
    scores = _scores(queue.weights)
    ranks = (*_ranks(by_rank=by_rank, scored=scored), *scores)
    due = any(job.deadline for job in queue.jobs)
    numbers = ("#", "Class", "GPUs", "Waited", "Ran", *ranks, "Starts, UTC")
    heads = ("#", "Job", "Tenant", *numbers[1:], *(_DEADLINE,) * due, "Reason")
    rows = (_row(job, now, by_rank=by_rank, scores=scores, due=due) for job in queue.jobs[:SHOWN])
    return table("Waiting jobs, in order", heads, rows, numbers=numbers)


def below_html(queue: QueueView) -> str:
    """Return how many more there are, and what the terms of a rank are."""
    more = len(queue.jobs) - SHOWN
    notes = [f"{count(more, 'more job')} behind these."] if more > 0 else []
    notes += legends(queue)
    if queue.weights:
        weights = ", ".join(f"{TERM_HEADS[name]} {of:g}" for name, of in queue.weights.named())
        notes.append(f"Weights: {weights}.")
    return "".join(f'<p class="reason">{escape(note)}</p>' for note in notes)


def nobody_html(pool: str) -> str:
    """Return the words for a queue that is empty."""
    return empty(f"Nobody waits in pool {pool}", "`longshore submit` puts a job into its queue.")


def errors_html(rows: Sequence[StartErrors], pool: str) -> str:
    """Return how far off starts were, by how long before they were told."""
    if not rows:
        said = f"No job of pool {pool} was told a start in the past day that has come."
        return f'<p class="quiet padded">{escape(said)}</p>'
    cells = (zip(("Told before", *_ERRORS), errors_of(row), strict=True) for row in rows)
    return table(
        "Start estimates",
        ("Told before", *_ERRORS),
        (
            "<tr>" + "".join(
                (number if head in _ERRORS else cell)(escape(value), head) for head, value in row
            ) + "</tr>"
            for row in cells
        ),
        numbers=_ERRORS,
    )  # fmt: skip


def history_chart(history: QueueHistory) -> charts.Options:
    """Return the curves of the past day."""
    until = history.moments[-1].at
    moments = history.moments
    waiting = [(each.at, each.waiting) for each in moments]
    running = [(each.at, each.running) for each in moments]
    stops = [(history.since, 0), *((each.at, each.stops) for each in moments)]
    curves = (
        charts.Counted("Waiting", charts.LIMIT, waiting),
        charts.Counted("Running", charts.AVERAGE, running),
        charts.Counted(f"Stopped for others in {span(history.every)}", charts.ASK, stops, True),
    )
    return charts.counts(curves, history.since, until)


def history_words(history: QueueHistory) -> str:
    """Return in words what the curves show."""
    last = history.moments[-1]
    most = max((each.waiting or 0 for each in history.moments), default=0)
    stops = sum(each.stops for each in history.moments)
    return (
        f"The past day: {_now(last)}; at most {count(most, 'job')} waited; "
        f"{count(stops, 'job')} stopped for others."
    )


def _now(moment: QueueMoment) -> str:
    waiting = "nobody knows how many wait" if moment.waiting is None else (
        f"{count(moment.waiting, 'job')} left waiting by the last cycle"
    )  # fmt: skip
    return f"{waiting}, {count(moment.running)} running"


def is_blank(history: QueueHistory) -> bool:
    """Return whether nothing is on record of the day."""
    return not any(each.waiting or each.running or each.stops for each in history.moments)


def _ranks(*, by_rank: bool, scored: bool) -> tuple[str, ...]:
    """Return the columns of the rank: with its parts where no score takes their room."""
    return _RANK[: 1 if scored else None] if by_rank else ()


def _scores(weights: TermWeights | None) -> tuple[str, ...]:
    """Return the columns of the score: of its terms those that count and in which jobs of a class
    differ. The class and the wait have columns of their own, the others are the same for all."""
    if weights is None:
        return ()
    names = (name for name in DIFFERING if getattr(weights, name))
    return "Score", *(TERM_HEADS[name].capitalize() for name in names)


def _row(
    job: QueuedJobView, now: datetime, *, by_rank: bool, scores: Collection[str], due: bool
) -> str:
    place = NONE if job.place is None else count(job.place)
    gpus = NONE if job.gpus is None else count(job.gpus)
    ranks = [
        *zip(_ranks(by_rank=by_rank, scored=bool(scores)), rank_of(job), strict=False),
        *(each for each in zip(_SCORE, score_of(job), strict=True) if each[0] in scores),
    ]
    numbers = (
        ("Class", short_class_of(job)), ("GPUs", gpus), ("Waited", span(job.waited)),
        ("Ran", span(job.attained) if job.attained else NONE), *ranks,
        ("Starts, UTC", start_of(job, now)),
    )  # fmt: skip
    cells = "".join(number(escape(value), head) for head, value in numbers)
    cells += cell(escape(deadline_of(job, now)), _DEADLINE) if due else ""
    return (
        f"<tr>{number(place)}{cell(link(job.job_id), folds=True)}"
        f"{cell(escape(job.tenant), 'Tenant')}{cells}"
        f"{cell(escape(remark(job)), folds=True)}</tr>"
    )
