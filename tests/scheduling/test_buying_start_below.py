"""Nothing is bought for a job above the price below which it starts."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.activities.buying.decisions import option_of
from longshore.models.money import micro_of
from tests.support.buying import NOW, a_job, cloud, decided, exchange

DEAR = cloud(("2.60", 1))
prices = st.decimals("0.5", "5.00", places=2).map(str)
books = st.lists(st.tuples(prices, st.sampled_from([8, 16, 64])), min_size=1, max_size=4)
thresholds = st.none() | prices.map(micro_of)


def test_a_job_is_bought_for_up_to_its_price_and_not_above():
    capped = a_job(start_below=micro_of("2.10"))
    dear = decided([capped], DEAR)
    assert dear.plans == ()
    assert "over their price: 1xH100-80GB costs $2.60 a GPU-hour, and start_below is $2.10" in (
        dear.reason
    )
    (plan,) = decided([capped], cloud(("2.00", 1))).plans
    assert plan.serves == ("a",)


def test_others_are_bought_for_as_ever_and_first():
    jobs = [a_job("capped", start_below=micro_of("2.10")), a_job("plain")]
    (plan,) = decided(jobs, DEAR).plans
    assert plan.serves == ("plain",), "its machine is not made larger for whom it is too dear"
    both = decided(jobs, cloud(("2.00", 1)))
    assert [plan.serves for plan in both.plans] == [("plain",)], "the other comes next"


def test_the_threshold_of_a_pool_is_that_of_all():
    policy = {"below": micro_of("2.10")}
    assert decided([a_job()], DEAR, policy=policy).plans == ()
    assert decided([a_job(start_below=micro_of("9"))], DEAR, policy=policy).plans == ()
    assert decided([a_job()], cloud(("2.00", 1)), policy=policy).plans


def test_a_limit_that_may_rise_stays_below_it():
    thin = exchange(("1.20", 8), ("19.00", 1600))
    (plan,) = decided([a_job(gpus=8, start_below=micro_of("1.30"))], thin).plans
    assert micro_of("1.20") < plan.limit <= micro_of("1.30")
    later = NOW + timedelta(minutes=30)
    assert (option_of(plan, later).cap or 0) > micro_of("1.30"), "its total allows more"
    cap = option_of(plan, later, micro_of("1.30")).cap
    assert cap is not None
    assert plan.limit <= cap <= micro_of("1.30")


@given(
    books,
    st.lists(st.tuples(prices, st.sampled_from([1, 2, 8])), max_size=3),
    st.lists(st.tuples(st.sampled_from([1, 4, 8]), thresholds), min_size=1, max_size=7),
    thresholds,
    st.sampled_from(["least-cost", "seed"]),
)
def test_no_order_pays_more_than_any_job_that_it_serves(
    asks: list[tuple[str, int]],
    offers: list[tuple[str, int]],
    wanted: list[tuple[int, int | None]],
    of_pool: int | None,
    rule: str,
):
    jobs = [
        a_job(f"job-{number}", gpus=gpus, start_below=below)
        for number, (gpus, below) in enumerate(wanted)
    ]
    below = {job.request.id: job.request.start_below for job in jobs}
    policy = {"below": of_pool, "rule": rule}
    for plan in decided(jobs, exchange(*asks), cloud(*offers), policy=policy).plans:
        for each in (plan, *plan.instead):
            for most in (of_pool, *(below.get(job_id) for job_id in plan.serves)):
                assert most is None or each.limit <= most
