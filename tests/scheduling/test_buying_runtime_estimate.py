"""What jobs that ended early say of the cost of the next ones: worked cases in dollars."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.buying import DemandSample, JobEnd, OptionKind
from longshore.models.job import Tier
from longshore.models.money import micro_of
from longshore.scheduling.buying.outlook import Use
from longshore.scheduling.buying.runtime_estimate import RuntimeEstimate, estimate_runtime
from tests.support.buying import NOW, a_job, cloud, decided, exchange

HOUR = timedelta(hours=1)
HALF = tuple(JobEnd(expected=2 * HOUR, ran=HOUR) for _ in range(36))
"""36 jobs that ran half of their time; with the four that count in full 55 % on average."""


def uses(*hours: float) -> list[Use]:
    return [Use(f"j{n}", 1, NOW, NOW + each * HOUR) for n, each in enumerate(hours)]


def test_without_jobs_that_ended_all_run_in_full():
    lasting = estimate_runtime(())
    assert lasting.mean == 1.0
    assert lasting.likely_end(uses(3, 2), NOW) == NOW + 3 * HOUR


def test_a_few_jobs_say_little():
    assert estimate_runtime(HALF[:1]).mean == pytest.approx(0.9)
    assert estimate_runtime(HALF).mean == pytest.approx(0.55)


def test_a_job_that_overran_counts_as_one_in_full():
    assert estimate_runtime([JobEnd(expected=HOUR, ran=9 * HOUR)]).mean == 1.0


def test_the_last_of_several_ends_later_than_one():
    lasting = estimate_runtime(JobEnd(expected=10 * HOUR, ran=n * HOUR) for n in range(1, 11))
    one, four = (lasting.likely_end(uses(*[4.0] * n), NOW) - NOW for n in (1, 4))
    assert one / (4 * HOUR) == pytest.approx(lasting.mean, abs=0.03)
    assert one < four < 4 * HOUR


@given(
    st.lists(st.floats(0.01, 3.0), max_size=20),
    st.lists(st.floats(0.1, 30), min_size=1, max_size=6),
)
def test_the_likely_end_is_never_after_the_expected_one(shares: list[float], hours: list[float]):
    lasting = estimate_runtime(JobEnd(expected=HOUR, ran=share * HOUR) for share in shares)
    likely = lasting.likely_end(uses(*hours), NOW)
    assert NOW <= likely <= NOW + max(hours) * HOUR + timedelta(seconds=1)
    # One job more never makes the end earlier.
    assert likely <= lasting.likely_end(uses(*hours, max(hours)), NOW) + timedelta(seconds=1)


def test_a_machine_that_is_stopped_early_is_cheaper_than_a_window_that_is_paid_whole():
    """8 GPUs for 4 h: 4.25 h x 8 x $2.00 = $68.00 whole, or at $2.20 while it is used."""
    job, markets = a_job(gpus=8, hours=4), (exchange(("2.00", 64)), cloud(("2.20", 8)))
    (whole,) = decided([job], *markets, policy={"reuse_share": 0}).plans
    assert (whole.window is not None, whole.expected_cost) == (True, micro_of("68.00"))
    (used,) = decided([job], *markets, policy={"reuse_share": 0}, unmet={"ended": HALF}).plans
    assert used.window is None
    # 5 min to come up, about 55 % of 4 h, 10 min idle: near to 2 h 27 min x 8 x $2.20 = $43.12.
    assert used.expected_cost == pytest.approx(micro_of("43.12"), rel=0.05)
    # It may run in full all the same: start-up, work, a late start and the margin.
    in_full = decided([job], markets[1]).plans[0]
    assert (used.max_total, used.ends_at(NOW)) == (in_full.max_total, in_full.ends_at(NOW))


def test_flex_starts_where_the_time_that_it_is_likely_to_use_costs_no_more_than_it_hopes():
    """8 GPUs for 4 h are hoped for at $64.00. Billed for 2 h 27 min or so they cost less at $2.40
    (about $47), and more at $3.60 (about $70)."""
    job = a_job(gpus=8, hours=4, tier=Tier.FLEX, start_by=NOW + 12 * HOUR)
    assert decided([job], cloud(("2.40", 8))).plans == ()
    (used,) = decided([job], cloud(("2.40", 8)), unmet={"ended": HALF}).plans
    assert used.expected_cost == pytest.approx(micro_of("47.04"), rel=0.05)
    dear = decided([job], cloud(("3.60", 8)), unmet={"ended": HALF})
    assert dear.plans == ()
    wait = next(option for option in dear.options if option.kind is OptionKind.WAIT)
    assert wait.delay == micro_of("64.00")


def test_nothing_is_known_below_the_first_share():
    lasting = RuntimeEstimate((0.5, 1.0))
    early = lasting.likely_end(uses(1), NOW)
    assert early == NOW + 0.75 * HOUR


def test_the_end_of_a_window_in_which_nothing_could_be_placed_is_not_left_over():
    """A day at $2.00 x 8: of 23 h 55 min the last 1 h 27 min are no use to jobs of 2 hours that
    run 55 % of them, and 33 min are used. Half of the price of the rest is left over."""
    used = [DemandSample(at=NOW - n * HOUR, queued=0, used=8) for n in (1, 0)]
    fields = {"ended": HALF, "demand": tuple(used)}
    decision = decided([a_job(gpus=8, hours=1)], exchange(("2.00", 8)), unmet=fields)
    (day,) = [each for each in decision.options if each.title.endswith("for 1d")]
    assert estimate_runtime(HALF).too_short == 1.45 * HOUR
    free = 23 + 55 / 60 - 1.45 - 0.55
    assert day.leftover == pytest.approx(micro_of("8.00") * free, rel=1e-5)
