"""A FAST job that may wait a while for a machine that costs what its time does: worked cases."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longshore.models.buying import BuyDecision, JobEnd, OptionKind
from longshore.models.job import Tier
from longshore.models.money import micro_of
from tests.support.buying import NOW, a_job, cloud, decided, exchange

MINUTE = timedelta(minutes=1)
PATIENT: dict[str, Any] = {"fast_patience": 15 * MINUTE}
NODE = exchange(("2.00", 64))
"""A whole node for a job of one GPU: 75 minutes of 8 GPUs cost $20.00."""


def waiting(decision: BuyDecision) -> int:
    return next(each.delay for each in decision.options if each.kind is OptionKind.WAIT)


def test_it_waits_where_what_is_there_costs_more_than_the_wait_and_its_time():
    assert decided([a_job()], NODE).plans
    decision = decided([a_job()], NODE, **PATIENT)
    assert decision.plans == ()
    # 15 min at $10.00, and 1 h with 5 min to come up at $2.00 and a quarter: $2.50 + $2.71.
    assert waiting(decision) == pytest.approx(micro_of("5.208333"), abs=2)
    assert decision.reason == "wait: that costs least: $5.21 in all, against $20.83"


def test_it_waits_for_no_longer_than_its_patience():
    for waited in (15 * MINUTE, 20 * MINUTE):
        late = a_job(submitted_at=NOW - waited)
        decision = decided([late], NODE, **PATIENT)
        assert decision.plans
        assert waiting(decision) == micro_of("10.00") * 24


def test_only_what_is_left_of_its_patience_counts():
    half = decided([a_job(submitted_at=NOW - 9 * MINUTE)], NODE, **PATIENT)
    assert waiting(half) == pytest.approx(micro_of("1.00") + micro_of("2.708333"), abs=2)


def test_a_machine_of_its_size_is_bought_at_once():
    (plan,) = decided([a_job()], NODE, cloud(("2.40", 1)), **PATIENT).plans
    assert plan.offer is not None


def test_what_its_time_costs_is_that_of_its_likely_end():
    ended = tuple(JobEnd(expected=MINUTE * 60, ran=MINUTE * 30) for _ in range(36))
    decision = decided([a_job()], NODE, unmet={"ended": ended}, **PATIENT)
    # 55 % of an hour and 5 min at $2.50.
    assert waiting(decision) == pytest.approx(micro_of("2.50") * (1 + 38 / 60), rel=1e-5)


def test_a_machine_for_the_warm_target_waits_for_nothing():
    warm: dict[str, Any] = {"fast_warm_gpus": 8}
    assert decided([], NODE, **warm, **PATIENT).plans == decided([], NODE, **warm).plans != ()


def test_flex_jobs_have_no_patience_but_their_deadline():
    late = a_job(tier=Tier.FLEX, start_by=NOW + 10 * MINUTE)
    assert decided([late], NODE, **PATIENT).options == decided([late], NODE).options


@given(st.integers(0, 8), st.integers(1, 8), st.floats(0.25, 8), st.integers(0, 30))
@example(7, 6, 3.0, 2)
def test_patience_never_makes_it_dearer_to_wait(row: int, gpus: int, hours: float, waited: int):
    job = a_job(gpus=gpus, hours=hours, submitted_at=NOW - waited * MINUTE)
    markets = (NODE, cloud(("2.40", row))) if row else (NODE,)
    patient, hasty = decided([job], *markets, **PATIENT), decided([job], *markets)
    assert waiting(patient) <= waiting(hasty)
    bought = [plan.model_copy(update={"instead": ()}) for plan in patient.plans]
    assert bought in ([], [plan.model_copy(update={"instead": ()}) for plan in hasty.plans])
    # In its place comes what costs less than to wait, of which there is less then.
    for mine, other in zip(patient.plans, hasty.plans, strict=False):
        assert all(each in other.instead for each in mine.instead)
