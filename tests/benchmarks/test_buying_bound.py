"""The bound of the benchmark of buying, against every plan that there is in tiny worlds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from typing import cast

import pytest

from benchmarks.buying_bound import FAST_WITHIN, lower_bound
from benchmarks.buying_world import START, STARTUP, STEP, Ask, World
from longshore.models.job_request import JobRequest
from longshore.models.market import Offer
from longshore.models.money import MICRO

STEPS = 60
WITHIN = FAST_WITHIN // STEP
HOUR = timedelta(hours=1) // STEP


@dataclass(frozen=True)
class Tiny:
    """A world made by hand: what the bound reads of one."""

    jobs: tuple[JobRequest, ...]
    asks: tuple[Ask, ...]
    offers: tuple[tuple[Offer, ...], ...]

    share: float = 1.0
    """Of its time that each job runs."""

    @property
    def lasts(self) -> dict[str, timedelta]:
        return {job.id: self.share * job.expected_duration for job in self.jobs}

    bids: tuple[Ask, ...] = ()

    @property
    def bids_by_step(self) -> tuple[tuple[Ask, ...], ...]:
        return (self.bids,)

    @property
    def offers_to_order(self) -> tuple[tuple[Offer, ...], ...]:
        return self.offers

    @property
    def asks_to_order(self) -> list[list[Ask]]:
        return [
            [ask for ask in self.asks if ask.seen_from <= step < ask.seen_until]
            for step in range(STEPS)
        ]


def a_job(name: str, gpus: int, at: int, lasts: int) -> JobRequest:
    return JobRequest(
        id=name, gpus=gpus, gpu_type="H100", submitted_at=START + at * STEP,
        expected_duration=lasts * STEP,
    )  # fmt: skip


def an_ask(number: int, dollars: float, seen: tuple[int, int], end: int = 48) -> Ask:
    return Ask(
        number=number, price=int(dollars * MICRO), nodes=8, start=START, end=START + end * STEP,
        seen_from=seen[0], seen_until=seen[1],
    )  # fmt: skip


def rows(*sizes: int, prices: Sequence[float]) -> tuple[tuple[Offer, ...], ...]:
    """Return an offer list of these sizes; prices by step, the last one for all that follow."""
    return tuple(
        tuple(
            Offer(
                provider="cloud", id=f"row-{size}", instance_type=f"{size}xH100-80GB", gpus=size,
                price=int(prices[min(step, len(prices) - 1)] * MICRO), startup=STARTUP,
            )
            for size in sizes
        )
        for step in range(STEPS)
    )  # fmt: skip


WORLDS = {
    "one job of a whole node": Tiny(
        (a_job("a", 8, 2, 18),), (an_ask(0, 2.0, (0, 9)),), rows(8, prices=[2.4])
    ),
    "two small jobs, one after the other": Tiny(
        (a_job("a", 2, 1, 10), a_job("b", 2, 13, 8)), (), rows(2, 4, prices=[2.2])
    ),
    "a price that falls just after": Tiny(
        (a_job("a", 4, 0, 12), a_job("b", 1, 2, 6)),
        (an_ask(0, 0.9, (2, 20)),),
        rows(1, 4, prices=[3.0, 3.0, 2.0]),
    ),
    "two that fit one node at different times": Tiny(
        (a_job("a", 4, 2, 14), a_job("b", 8, 16, 12)),
        (an_ask(0, 1.1, (0, 6)), an_ask(1, 1.6, (5, 30))),
        rows(4, 8, prices=[2.3]),
    ),
    "a short ask that cannot hold both": Tiny(
        (a_job("a", 8, 1, 12), a_job("b", 8, 14, 16)),
        (an_ask(0, 1.0, (0, 20), end=24), an_ask(1, 2.0, (0, 30))),
        rows(8, prices=[2.5]),
    ),
}


@pytest.mark.parametrize("tiny", WORLDS.values(), ids=WORLDS.keys())
def test_the_bound_is_below_the_best_of_all_plans_and_near_it(tiny: Tiny):
    best = exhaustive(tiny)
    relaxed = lower_bound(cast(World, tiny))
    whole = lower_bound(cast(World, tiny), seconds=60)
    assert 0.5 * best <= relaxed.proven <= best + 1e-6
    # In whole numbers little is left out: a step of 1 % in prices, and that jobs may move.
    assert 0.85 * best <= whole.proven <= best + 1e-6
    assert relaxed.proven <= whole.proven + 1e-6
    assert whole.proven <= whole.reached * (1 + 1e-6)


def test_a_small_job_pays_for_a_whole_node_where_nothing_smaller_is_sold():
    tiny = Tiny((a_job("a", 1, 2, 18),), (an_ask(0, 2.0, (0, 9)),), rows(prices=[1.0]))
    # It comes up for a step, runs for 18, and the last one is the margin: no eighth of it.
    assert lower_bound(cast(World, tiny)).proven == pytest.approx(8 * 2.0 * 20 / HOUR, rel=0.011)
    assert lower_bound(cast(World, tiny)).proven <= exhaustive(tiny) + 1e-6


def test_waiting_longer_never_costs_more():
    tiny = cast(World, WORLDS["a price that falls just after"])
    at_once, later = (
        lower_bound(tiny, within=within, seconds=20).proven for within in (STEP, 4 * STEP)
    )
    assert later <= at_once + 1e-6
    assert later < 0.95 * at_once


def test_who_does_not_know_when_jobs_end_pays_a_node_for_as_long_as_they_may_run():
    """8 GPUs may run for 3 hours and run for 1: in a window, or dearer while they are used."""
    job, book = a_job("a", 8, 2, 36), (an_ask(1, 2.00, (0, 60), end=60),)
    tiny = Tiny((job,), book, rows(8, prices=[9.00] * STEPS), share=1 / 3)
    knows, does_not = (bound(tiny, knows_ends=known) for known in (True, False))
    # An hour or three, and the steps in which the node comes up and ends.
    assert knows == pytest.approx(2.00 * 8 * (12 + 2) / 12, rel=0.02)
    assert does_not == pytest.approx(2.00 * 8 * (36 + 2) / 12, rel=0.02)
    cheap = replace(tiny, offers=rows(8, prices=[3.00] * STEPS))
    assert bound(cheap, knows_ends=True) == pytest.approx(knows)
    assert bound(cheap, knows_ends=False) == pytest.approx(3.00 * 8 * (12 + 1) / 12, rel=0.02)


def test_who_sells_what_a_job_leaves_of_its_node_loses_what_the_bid_lacks():
    """8 GPUs may run for 3 hours and run for 1; two hours go to a bid, less its fee of 4 %."""
    job, book = a_job("a", 8, 2, 36), (an_ask(1, 2.00, (0, 60), end=60),)
    tiny = Tiny((job,), book, rows(8, prices=[9.00] * STEPS), share=1 / 3)
    for price, lost in ((0.00, 2.00), (1.50, 2.00 - 0.96 * 1.50), (3.00, 0.00)):
        world = cast("World", replace(tiny, bids=(an_ask(2, price, (0, 60), end=60),)))
        found = lower_bound(world, knows_ends=False, sells=True).proven
        used, sold = 2.00 * 8 * (12 + 2) / 12, lost * 8 * 24 / 12
        assert found == pytest.approx(used + sold, rel=0.02)


def test_where_jobs_run_in_full_nothing_is_to_be_known():
    tiny = Tiny((a_job("a", 4, 1, 12), a_job("b", 8, 3, 20)), (an_ask(1, 2.00, (0, 60)),),
                rows(4, 8, prices=[2.30] * STEPS))  # fmt: skip
    assert bound(tiny, knows_ends=False) == pytest.approx(bound(tiny, knows_ends=True), rel=1e-3)


def test_who_stays_where_he_began_takes_no_node_that_ends_before_his_job():
    """8 GPUs for 3 hours, a cheap node that ends after two, and machines that are dear."""
    job, book = a_job("a", 8, 2, 36), (an_ask(1, 1.00, (0, 9), end=26),)
    tiny = cast("World", Tiny((job,), book, rows(8, prices=[9.00])))
    moves, stays = (lower_bound(tiny, stays=stays).proven for stays in (False, True))
    assert stays == pytest.approx(9.00 * 8 * (36 + 1) / 12, rel=0.02)
    assert moves < 0.6 * stays


def test_who_stays_pays_no_more_than_the_best_of_all_plans():
    for tiny in WORLDS.values():
        moves, stays = (
            lower_bound(cast("World", tiny), stays=stays).proven for stays in (False, True)
        )
        assert moves <= stays + 1e-6
        assert stays <= exhaustive(tiny) + 1e-6


def bound(tiny: Tiny, *, knows_ends: bool) -> float:
    return lower_bound(cast("World", tiny), knows_ends=knows_ends).proven


def exhaustive(tiny: Tiny) -> float:
    """Return the least that any plan costs, in dollars: each set of jobs has a machine of its own.

    Asks have nodes enough for all, so machines do not touch each other.
    """
    jobs = tiny.jobs
    assert len(jobs) <= 2
    alone = sum(least_of_a_machine(tiny, (job,)) for job in jobs)
    return min(alone, least_of_a_machine(tiny, jobs))


def least_of_a_machine(tiny: Tiny, jobs: Sequence[JobRequest]) -> float:
    """Return the least that one machine costs that runs these jobs."""
    least = float("inf")
    ranges = [range(at, at + WITHIN + 1) for job in jobs if (at := _step(job)) >= 0]
    for starts in product(*ranges):
        gpus = max(held(jobs, starts))
        end = max(start + _lasts(job) for start, job in zip(starts, jobs, strict=True))
        least = min([least, *machines(tiny, gpus, min(starts), end)])
    return least


def held(jobs: Sequence[JobRequest], starts: Sequence[int]) -> Iterator[int]:
    """Yield the GPUs that are used at each step."""
    for step in range(STEPS):
        yield sum(
            job.gpus
            for start, job in zip(starts, jobs, strict=True)
            if start <= step < start + _lasts(job)
        )


def machines(tiny: Tiny, gpus: int, first: int, end: int) -> Iterator[float]:
    """Yield the price of every machine with so many GPUs that is up from a step to another."""
    hour = 1 / HOUR
    for step in range(first):
        for offer in tiny.offers[step]:
            if offer.gpus >= gpus:
                yield offer.price / MICRO * offer.gpus * (end - step) * hour
        for ask in tiny.asks_to_order[step]:
            until = max(end + 1, step + HOUR)
            if gpus <= 8 and until * STEP + START <= ask.end:
                yield ask.price / MICRO * 8 * (until - step) * hour


def _step(job: JobRequest) -> int:
    assert job.submitted_at is not None
    return int((job.submitted_at - START) / STEP)


def _lasts(job: JobRequest) -> int:
    return job.expected_duration // STEP
