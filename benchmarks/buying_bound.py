"""Less than this nobody can pay who serves the jobs in time, whatever is known of the future.

A linear program over hours, with everything known in advance and much that is real left out, so
that its optimum is below what any plan costs: jobs are fluid (they may be cut, paused and spread,
up to their GPUs at a time), nodes can be bought in fractions and start up at once, any job runs on
any node, a row of the offer list is there in any amount and is paid for by the GPU, and asks of
one hour can be had for windows from that hour or the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from benchmarks.buying_world import START, STEP, World, start_by
from models.job import Tier

FAST_WITHIN = timedelta(minutes=15)
"""FAST jobs have to be served as if they started this late at the latest."""
_LONGEST = 24
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class _Choice:
    """GPUs to be had from an hour to another, at so much an hour."""

    first: int
    last: int
    price: float
    most: float


def lower_bound(world: World) -> float:
    """Return the optimum, in dollars."""
    hours = int(world.last_step * STEP / _HOUR)
    choices = [*_from_book(world, hours), *_from_offers(world, hours)]
    work = list(_work(world))
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    cost: list[float] = []
    most: list[float] = []
    for column, choice in enumerate(choices):
        span = range(choice.first, choice.last + 1)
        rows += span
        columns += [column] * len(span)
        values += [-1.0] * len(span)
        cost.append(choice.price * len(span))
        most.append(choice.most)
    needs: list[float] = []
    need_rows: list[int] = []
    need_columns: list[int] = []
    for number, (gpu_hours, gpus, begin, end) in enumerate(work):
        needs.append(gpu_hours)
        for hour in range(int(begin), min(int(np.ceil(end)), hours)):
            column = len(cost)
            rows.append(hour)
            columns.append(column)
            values.append(1.0)
            need_rows.append(number)
            need_columns.append(column)
            cost.append(0.0)
            most.append(gpus * (min(end, hour + 1) - max(begin, hour)))
    shape = (hours, len(cost))
    found = linprog(
        cost,
        A_ub=coo_array((values, (rows, columns)), shape=shape).tocsr(),
        b_ub=np.zeros(hours),
        A_eq=coo_array(
            (np.ones(len(need_rows)), (need_rows, need_columns)), shape=(len(work), len(cost))
        ).tocsr(),
        b_eq=needs,
        bounds=np.column_stack([np.zeros(len(most)), most]),
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"the linear program has no optimum: {found.message}")
    return float(found.fun)


def _work(world: World) -> Iterator[tuple[float, int, float, float]]:
    """Yield GPU-hours, GPUs, and the hours between which each job is to be done."""
    for job in world.jobs:
        assert job.submitted_at is not None
        fast = job.tier is Tier.FAST
        latest = job.submitted_at + FAST_WITHIN if fast else start_by(job)
        lasts = job.expected_duration / _HOUR
        begin, end = _hour(job.submitted_at), _hour(latest) + lasts
        yield job.gpus * lasts, job.gpus, begin, end


def _from_book(world: World, hours: int) -> Iterator[_Choice]:
    """Yield each ask of an hour, for every window from then or the next hour on."""
    enough = 2 * sum(job.gpus for job in world.jobs)
    by_hour: list[dict[int, tuple[int, int, float]]] = [{} for _ in range(hours)]
    for step, asks in enumerate(world.asks_by_step):
        hour = int(step * STEP / _HOUR)
        for ask in asks:
            if hour < hours:
                by_hour[hour][ask.number] = (ask.price, ask.nodes, _hour(ask.end))
                if hour + 1 < hours:
                    by_hour[hour + 1].setdefault(
                        ask.number, (ask.price, ask.nodes, _hour(ask.end))
                    )
    starts = {ask.number: _hour(ask.start) for ask in world.asks}
    for first, asks in enumerate(by_hour):
        ordered = sorted(
            (price, nodes, end) for n, (price, nodes, end) in asks.items() if starts[n] < first + 1
        )
        for last in range(first, min(first + _LONGEST + 1, hours)):
            held = 0
            for price, nodes, end in ordered:
                if end > last and held < enough:
                    held += 8 * nodes
                    yield _Choice(first, last, price / 1e6, 8 * nodes)


def _from_offers(world: World, hours: int) -> Iterator[_Choice]:
    """Yield the cheapest row of an hour, kept as long as wanted."""
    cheapest = [np.inf] * hours
    for step, offers in enumerate(world.offers):
        hour = int(step * STEP / _HOUR)
        if hour < hours and offers:
            cheapest[hour] = min(cheapest[hour], min(offer.price for offer in offers))
    for first, price in enumerate(cheapest):
        before = min(price, cheapest[first - 1] if first else np.inf)
        if np.isfinite(before):
            for last in range(first, min(first + 2 * _LONGEST, hours)):
                yield _Choice(first, last, before / 1e6, np.inf)


def _hour(moment: datetime) -> float:
    return (moment - START) / _HOUR
