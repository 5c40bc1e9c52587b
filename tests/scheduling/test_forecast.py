"""What would become of a job if it were submitted now."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.buying import BuyDecision, BuyingRule, NodeShape, PurchasePlan, Window
from longshore.models.data import DataSet, HeldData
from longshore.models.forecast import ForecastKind, NodePrice
from longshore.models.job import Tier
from longshore.models.preemption import GainedGPUs, PreemptionPlan, Victim
from longshore.scheduling.forecast import Left, data_says, forecast_of, forecast_of_later
from longshore.scheduling.packer import place
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node

DOLLAR = 1_000_000


def a_plan(*serves: str, **fields: Any) -> PurchasePlan:
    shape = NodeShape(gpus=8, gpu_type="H100", vram=80, cpus=64, ram=512)
    given: dict[str, Any] = {
        "provider": "prime", "tier": Tier.FAST, "instance_type": "8xH100", "nodes": 1,
        "gpus_per_node": 8, "limit": 2 * DOLLAR, "max_total": 18 * DOLLAR,
        "expected_cost": 16 * DOLLAR, "ready_at": NOW + timedelta(minutes=8), "shape": shape,
        "serves": serves,
    }  # fmt: skip
    return PurchasePlan.model_validate({**given, **fields})


def decided(*plans: PurchasePlan, reason: str = "") -> BuyDecision:
    return BuyDecision(at=NOW, rule=BuyingRule.LEAST_COST, plans=plans, reason=reason)


def forecast(
    *,
    fits: bool,
    prices: dict[str, NodePrice] | None = None,
    bought: BuyDecision | None = None,
    waiting: int = 0,
    left: Left | None = None,
    stops: PreemptionPlan | None = None,
    **fields: Any,
):
    job = a_job("this", **fields)
    nodes = [a_node("node-a", busy=() if fits else range(8))]
    alone = place(job, nodes, POLICY, NOW)
    return forecast_of(
        job, "red", alone, waiting, prices or {}, bought, left or Left(), NOW, stops
    )


def test_it_starts_on_a_node_that_was_not_bought() -> None:
    found = forecast(fits=True)
    assert (found.kind, found.expected_micro_usd) == (ForecastKind.STARTS, 0)
    assert found.says == "would start now on node-a GPUs 0-1: nothing is bought for it"
    assert found.ready_at == NOW


def test_a_lent_spare_costs_the_job_that_runs_there_nothing() -> None:
    job = a_job("this")
    alone = place(job, [a_node("node-a")], POLICY, NOW)
    alone = alone.model_copy(update={"borrowed_from": "wide"})
    prices = {"node-a": NodePrice(micro_per_gpu_hour=2 * DOLLAR, by_use=True)}
    found = forecast_of(job, "red", alone, 0, prices, None, Left(), NOW)
    assert (found.kind, found.expected_micro_usd) == (ForecastKind.STARTS, 0)
    assert found.says == (
        "would start now on node-a GPUs 0-1: that is a spare of wide, which lends and pays for it"
    )


@pytest.mark.parametrize(("milli", "cost"), [(1000, 6.0), (250, 0.75)])
def test_a_node_that_is_billed_as_it_runs_costs_its_price(milli: int, cost: float) -> None:
    price = NodePrice(micro_per_gpu_hour=2 * DOLLAR, by_use=True)
    size: dict[str, Any] = {"gpus": 2} if milli == 1000 else {"gpus": 1, "milli": milli}
    found = forecast(
        fits=True, prices={"node-a": price}, expected_duration=1.5 * HOUR, **size
    )  # fmt: skip
    assert found.expected_micro_usd == found.most_micro_usd == cost * DOLLAR
    assert f"about ${cost:.2f} for 1h30m" in found.says


def test_paid_time_costs_nothing_more_and_says_until_when() -> None:
    price = NodePrice(micro_per_gpu_hour=2 * DOLLAR, paid_until=NOW + 5 * HOUR)
    found = forecast(fits=True, prices={"node-a": price}, waiting=1)
    assert found.says == (
        "fits on node-a GPUs 0-1 now, and 1 job waits in pool red already: its time is paid for "
        "until 17:00 UTC"
    )
    assert (found.expected_micro_usd, found.ready_at) == (0, None)
    later = price.model_copy(update={"paid_until": NOW + 125 * HOUR})
    told = forecast(fits=True, prices={"node-a": later}).says
    assert told.endswith("its time is paid for until 2026-11-25 17:00 UTC")


def test_what_would_be_bought_for_it_is_told_with_its_caps() -> None:
    block = a_plan("this", "other", window=Window(start=NOW, end=NOW + 24 * HOUR))
    found = forecast(
        fits=False, bought=decided(a_plan("this"), block, a_plan("other")), left=Left(DOLLAR)
    )
    assert (found.kind, found.most_micro_usd) == (ForecastKind.BUYS, 36 * DOLLAR)
    assert found.says == (
        "would have pool red buy 1 x 8xH100 at prime, while used + 1 x 8xH100 at prime until 21 "
        "Nov 12:00 UTC for it and 1 other job: about $32.00, at most $36.00, ready about 12:08 "
        "UTC; it may commit $1.00 more today"
    )


@pytest.mark.parametrize(
    ("pool", "tenant", "says"),
    [
        (None, None, "it has no cap for a day"),
        (None, 3, "it has no cap for a day, for tenant lab $3.00"),
        (5, 3, "it may commit $5.00 more today, for tenant lab $3.00"),
        (5, 9, "it may commit $5.00 more today"),
    ],
)
def test_what_may_be_bought_for_its_tenant_is_told_where_that_is_less(
    pool: int | None, tenant: int | None, says: str
) -> None:
    left = Left(pool and pool * DOLLAR, tenant and tenant * DOLLAR, "lab")
    found = forecast(fits=False, bought=decided(a_plan("this")), left=left)
    assert found.says.endswith(f"UTC; {says}")


def test_a_job_that_others_are_stopped_for_is_told_whom_and_what_they_lose() -> None:
    def victim(name: str) -> Victim:
        return Victim(job_id=name, priority=1, nodes=("node-a",), gpus=1, recompute=0, write=0,
                      requeue=0, total=DOLLAR)  # fmt: skip

    gains = (GainedGPUs(node_id="node-a", gpu_indices=(0, 1)),)
    soon = NOW + timedelta(seconds=20)
    stops = PreemptionPlan(job_id="this", at=NOW, victims=(victim("low"),), gains=gains,
                           cost=DOLLAR, start=soon, reason="")  # fmt: skip
    found = forecast(fits=False, stops=stops, bought=decided(a_plan("this")))
    assert (found.kind, found.expected_micro_usd) == (ForecastKind.PREEMPTS, 0)
    assert found.ready_at == soon
    assert found.says == (
        "would start on node-a GPUs 0-1 once low is stopped for it, at about 12:00:20 UTC: that "
        "loses $1.00 of work and time; nothing is bought for it"
    )
    many = stops.model_copy(update={"victims": tuple(map(victim, "abcde"))})
    prices = {"node-a": NodePrice(micro_per_gpu_hour=2 * DOLLAR, by_use=True)}
    found = forecast(fits=False, stops=many, prices=prices)
    assert found.expected_micro_usd == 4 * DOLLAR
    assert " once a, b, c and 2 more are stopped for it" in found.says
    shrunk = victim("low").model_copy(update={"gpus_left": 2})
    found = forecast(fits=False, stops=stops.model_copy(update={"victims": (shrunk,)}))
    assert " once low is shrunk to 2 GPUs for it, at about " in found.says
    spare = victim("gang").model_copy(update={"spares_on": ("node-b",)})
    mixed = stops.model_copy(update={"victims": (victim("a"), victim("b"), shrunk, spare)})
    said = " once a, b are stopped and low is shrunk to 2 GPUs and gang gives up spares for it, "
    assert said in forecast(fits=False, stops=mixed).says
    assert forecast(fits=True, stops=many).kind is ForecastKind.STARTS
    nobody = stops.model_copy(update={"victims": ()})
    assert forecast(fits=False, stops=nobody).kind is ForecastKind.WAITS


def test_a_job_that_nothing_is_bought_for_is_told_why_it_waits() -> None:
    found = forecast(fits=False, bought=decided(a_plan("other"), reason="wait: caps.per_day"))
    assert (found.kind, found.expected_micro_usd) == (ForecastKind.WAITS, None)
    assert found.says.startswith("would wait in pool red: no node can take it now")
    assert found.says.endswith("; nothing would be bought for it now: caps.per_day")


def test_what_is_fetched_first_is_told() -> None:
    """Of what a node has a part the rest, of what nobody gave a size the name."""
    data = {
        "set": DataSet.model_validate({"from": "s3://a/set/", "size": 150}),
        "other": DataSet.model_validate({"from": "s3://a/other/"}),
        "mine": DataSet(size=9),
    }
    half = HeldData(name="set", source="s3://a/set/", bytes=50 * 10**9, total=100 * 10**9)
    assert data_says({"mine": data["mine"]}, {}, "node-a") == ""
    one = {"set": data["set"]}
    assert data_says(one, {}, None) == "; first 150GB of data is fetched"
    assert data_says(one, {half.source: half}, "node-a") == (
        "; first 50GB of data is fetched to node-a"
    )
    whole = half.model_copy(update={"bytes": half.total})
    assert data_says(one, {half.source: whole}, "node-a") == "; its data is on node-a"
    assert data_says(data, {}, "node-a") == (
        "; first 150GB of data and other, whose size is not given, are fetched to node-a"
    )


def test_a_job_that_begins_later_says_when_and_promises_no_price() -> None:
    begins_at = NOW + 2 * HOUR
    found = forecast_of_later(forecast(fits=True), begins_at, NOW)
    assert (found.kind, found.begins_at) == (ForecastKind.WAITS, begins_at)
    assert (found.expected_micro_usd, found.most_micro_usd, found.ready_at) == (None, None, None)
    assert found.says.startswith(f"begins at {begins_at:%H:%M} UTC at the earliest")
    assert "what it finds then, and the prices, are not known" in found.says
    assert found.says.endswith("If it began now, it would start now on node-a GPUs 0-1: nothing "
                               "is bought for it")  # fmt: skip
