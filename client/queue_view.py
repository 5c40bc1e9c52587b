"""How the queue of a pool looks: a row for each job, in the order in which a cycle decides."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from longshore.client.terminal import WIDE, Text, a_table, width_of_ids
from longshore.client.words import short_class_of
from longshore.models.durations import ExpectedFrom
from longshore.models.queue_view import QueuedJobView, QueueView, StartErrors
from longshore.models.text import NONE, count, dollars, span
from longshore.scheduling.estimates import BOUNDS
from longshore.scheduling.fair_tree import says_part

LEGEND = (
    "rank = price x sqrt(GPUs) x growth / (left + 600 s / GPUs); growth is 1 + 3 for each day "
    "waited, left about the time run so far, or what is left of the expected time where that is "
    "less; of a job that cannot be stopped all that is expected, 2h 36m where nobody knows it. "
    "Price: of a GPU that waits an hour. Rank: dollars an "
    "hour of waiting, for each hour left."
)
SCORE_LEGEND = (
    "score = sum of weight x term; waiting is ln(1 + hours), of a week at most in the score. "
    "Backlog and energy are the same for all: only start_above and buy_above of the pool ask for "
    "the whole score. In a class jobs go by {order}."
)
BY_AGE = "weight x waiting and the terms from share on"
BY_RANK = "rank, which these terms are in as a factor"
TERM_HEADS = {
    "priority": "prio", "waiting": "wait", "fair_share": "share", "topology": "topo",
    "data": "data", "backlog": "backlog", "energy": "energy", "checkpoint": "ckpt",
    "conformance": "conf",
}  # fmt: skip
"""How the columns of the terms are headed, in the order of the seed."""
_TOLD = 10
"""Tenants whose shares are told."""
ERRORS = (
    "jobs", "half off by at most", "9 in 10", "came earlier", "later", "overdue", "in its range",
)  # fmt: skip
"""What is told of how far off starts were."""


def queue_table(queue: QueueView, now: datetime, width: int, *, start: bool, terms: bool) -> Table:
    """Return a row for each job; with when it starts, and with the terms of its rank and score,
    below their weights."""
    by_rank = any(job.terms for job in queue.jobs)
    scored = queue.weights is not None
    wide = width >= WIDE
    headings = ["#", "job", *["tenant"] * wide, "class", "GPUs", "waited", "ran"]
    headings += ["rank"] * by_rank
    headings += ["price", "growth", "left"] * (terms and by_rank)
    headings += ["expected"] * terms
    scores = ["score", *TERM_HEADS.values()] if terms and scored else []
    headings += scores
    headings += ["starts (UTC)"] * start
    due = any(job.deadline for job in queue.jobs)
    headings += ["deadline (UTC)"] * due
    table = a_table(
        [*headings, "reason"], right=("#", "class", "GPUs", "waited", "ran", "rank", "price",
                                      "growth", "left", *scores),
        fold=("reason",), widest={"job": width_of_ids(width)},
    )  # fmt: skip
    if terms and queue.weights:
        behind = [""] * (start + due)
        before = len(headings) - len(scores) - len(behind)
        weights = [f"x {weight:g}" for _, weight in queue.weights.named()]
        table.add_row(*["", "weights", *[""] * (before - 2)], "", *weights, *behind, "")
    for job in queue.jobs:
        cells = _cells(job, now, by_rank=by_rank, start=start, terms=terms, scored=scored, due=due)
        table.add_row(*cells[:2], *[job.tenant] * wide, *cells[2:])
    return table


def _cells(
    job: QueuedJobView,
    now: datetime,
    *,
    by_rank: bool,
    start: bool,
    terms: bool,
    scored: bool,
    due: bool,
) -> Sequence[str | Text]:
    cells: list[str | Text] = [
        NONE if job.place is None else str(job.place),
        job.job_id,
        short_class_of(job),
        NONE if job.gpus is None else str(job.gpus),
        span(job.waited, units=2),
        span(job.attained, units=2) if job.attained else NONE,
    ]
    if by_rank:
        rank, *parts = rank_of(job)
        cells += [rank, *parts] if terms else [rank]
    if terms:
        cells.append(expected_of(job))
    if terms and scored:
        cells += score_of(job)
    if start:
        cells.append(start_of(job, now))
    if due:
        cells.append(deadline_of(job, now))
    cells.append(Text(remark(job), no_wrap=True, overflow="ellipsis"))
    return cells


def rank_of(job: QueuedJobView) -> tuple[str, str, str, str]:
    """Return the rank of a job, its price, its growth and what is left of it."""
    found = job.terms
    if found is None:
        return NONE, NONE, NONE, NONE
    return (
        f"{found.rank * 3600 / 1e6:.4g}", dollars(round(found.price)), f"{found.growth:.2f}",
        span(found.left, units=2),
    )  # fmt: skip


def expected_of(job: QueuedJobView) -> str:
    """Return how long a job is expected to run, and who says so."""
    if job.expected_duration is None:
        return NONE
    who = "stated" if job.expected is ExpectedFrom.KNOWN else "learnt"
    return f"{span(job.expected_duration, units=2)} {who}"


def score_of(job: QueuedJobView) -> tuple[str, ...]:
    """Return the score of a job, and its nine terms."""
    found = job.score
    if found is None:
        return (NONE,) * (1 + len(TERM_HEADS))
    values = (getattr(found, name) for name in TERM_HEADS)
    terms = (NONE if value is None else f"{value:.2f}" for value in values)
    return f"{found.total:.3f}", *terms


def legends(queue: QueueView) -> list[str]:
    """Return what the terms of a queue are, in words."""
    by_rank = any(job.terms for job in queue.jobs)
    found = [LEGEND] if by_rank else []
    if queue.weights:
        found.append(SCORE_LEGEND.format(order=BY_RANK if by_rank else BY_AGE))
        if queue.weights.energy and all(job.score is None or job.score.energy is None
                                        for job in queue.jobs):  # fmt: skip
            found.append("No price of energy is known: its weight has no effect.")
    found += [f"share of {each.tenant}: {says_part(each)}." for each in queue.tenants[:_TOLD]]
    if (more := len(queue.tenants) - _TOLD) > 0:
        found.append(f"{count(more, 'more tenant')}: --json has their shares.")
    return found


def remark(job: QueuedJobView) -> str:
    """Return why a job waits, and whether it comes before its class."""
    return f"first for its long wait; {job.reason}" if job.first else job.reason


def start_of(job: QueuedJobView, now: datetime) -> str:
    """Return when a job starts, in UTC: the time of day, with the date of another day, and between
    when and when that is where it is known as a range."""
    if job.starts_at is None:
        return NONE
    between = job.start_range
    if between is None or between.earliest == between.latest:
        return _in_utc(job.starts_at, now)
    within = f"{_in_utc(max(between.earliest, now), now)} - {_in_utc(between.latest, now)}"
    return f"{_in_utc(job.starts_at, now)} ({within})"


def deadline_of(job: QueuedJobView, now: datetime) -> str:
    """Return the deadline of a job, likewise, and how it stands to it."""
    found = job.deadline
    return NONE if found is None else f"{_in_utc(found.at, now)} {found.brief}"


def _in_utc(moment: datetime, now: datetime) -> str:
    day = "" if moment.date() == now.date() else f"{moment:%b %d} "
    return f"{day}{moment:%H:%M:%S}"


def errors_table(rows: Sequence[StartErrors]) -> Table:
    """Return a row for the starts that were told about as long in advance."""
    table = a_table(["told before", *ERRORS], right=ERRORS)
    for row in rows:
        table.add_row(*errors_of(row))
    return table


def errors_of(row: StartErrors) -> tuple[str, ...]:
    """Return how long in advance starts were told, and a value for each of `ERRORS`."""
    longest = BOUNDS[-2] if row.within is None else row.within
    assert longest is not None
    ahead = "over" if row.within is None else "up to"
    return (
        f"{ahead} {span(longest)}", str(row.jobs), span(row.median), span(row.p90),
        str(row.earlier), str(row.later), str(row.waiting) if row.waiting else NONE,
        f"{row.in_range} of {row.with_range}" if row.with_range else NONE,
    )  # fmt: skip
