"""What a submit says at the simulated market before a job is in a queue."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.activities.views import set_pool
from longshore.client import buying
from longshore.client.api import Longshore
from longshore.client.submit_forecast import say_forecast
from longshore.models.buying import BuyingPolicy, UnmetJob
from longshore.models.deadline import DeadlineOutlook
from longshore.models.errors import RefusedError
from longshore.models.forecast import ForecastKind
from longshore.models.job_request import JobRequest
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPolicy
from tests.buying.buyer import Buyer
from tests.buying.test_pool_buys import may_buy
from tests.support.control import a_spec
from tests.support.scripted_node import ScriptedNode


async def test_a_submit_is_refused_where_what_would_be_bought_costs_more_than_it_may(
    buyer: Buyer, longshore: Longshore, capsys: pytest.CaptureFixture[str]
) -> None:
    await may_buy(buyer, caps={"per_day": "$50", "per_tenant_day": "$45"})
    api = Longshore(
        longshore.temporal, buyer.market.settings(state_dir=longshore.settings.state_dir)
    )
    spec = a_spec(buyer.pool, gpus=8, expected_duration="1h")
    found = await api.forecast(spec)
    assert found is not None
    assert (found.kind, found.simulated) == (ForecastKind.BUYS, True)
    assert f"would have pool {buyer.pool} buy 1 x 8x" in found.says
    assert "it may commit $50.00 more today, for tenant default $45.00" in found.says
    assert 0 < (found.expected_micro_usd or 0) <= (found.most_micro_usd or 0)
    assert found.assumed_duration is None
    unsaid = await api.forecast(a_spec(buyer.pool, gpus=8, expected_duration=None))
    assert unsaid is not None
    assert unsaid.assumed_duration == timedelta(hours=1)
    assert "; bought for 1h, as is assumed of a job that does not say" in unsaid.says
    how = {"dry_run": False, "yes": False, "as_json": False}
    with pytest.raises(RefusedError, match=r"--max-cost is \$0\.01: nothing was submitted"):
        await say_forecast(api, spec, 10_000, **how)
    await say_forecast(api, spec, 50_000_000, **how)
    said = capsys.readouterr().err
    assert "(at a simulated market)." in said
    assert "bounds nothing" not in said
    assert await buyer.rows("SELECT * FROM jobs WHERE pool = :pool", pool=buyer.pool) == []
    await api.close()


@pytest.mark.exhaustive
async def test_a_pool_that_may_not_buy_yet_is_not_said_to_buy(
    buyer: Buyer, longshore: Longshore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await may_buy(buyer, cooldown="10h")
    settings = buyer.market.settings(state_dir=longshore.settings.state_dir)
    now = datetime.now(UTC)

    async def bought_now(*_: object) -> datetime:
        return now

    monkeypatch.setattr(buying, "last_bought_at", bought_now)
    spec = a_spec(buyer.pool, gpus=8, expected_duration="1h")
    beside = UnmetJob(request=JobRequest.of("a", spec, now, 1), start_by=now)
    ran = await buying.decide_on_pool(buyer.pool, now, beside, settings)
    assert ran.decision.plans
    assert ran.not_yet.startswith("within the cooldown: the next purchase may be at ")
    api = Longshore(longshore.temporal, settings)
    found = await api.forecast(spec)
    due = a_spec(buyer.pool, gpus=8, expected_duration="1h", deadline="90m")
    late = await api.forecast(due)
    await api.close()
    assert late is not None
    assert late.meeting is not None
    assert late.meeting.ways == ()
    assert "nothing that its pool buys now" in late.meeting.says
    assert found is not None
    assert (found.kind, found.buys_later, found.ready_at) == (ForecastKind.WAITS, True, None)
    assert found.says.startswith(f"would wait: pool {buyer.pool} buys nothing now: {ran.not_yet}.")
    assert f"If it might, it would have pool {buyer.pool} buy 1 x 8x" in found.says


@pytest.mark.exhaustive
async def test_a_pool_that_may_not_buy_yet_says_when_a_job_may_start_without(
    buyer: Buyer, longshore: Longshore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that stops nobody: an end of what runs is an end there too."""
    buying_soon = BuyingPolicy.model_validate({"enabled": True, "cooldown": "10h"})
    stops_nobody = PreemptionPolicy(enabled=False)
    async with buyer.database.transaction() as connection:
        await set_pool(
            connection, PoolSpec(name=buyer.pool, buying=buying_soon, preemption=stops_nobody)
        )
    settings = buyer.market.settings(state_dir=longshore.settings.state_dir)
    now = datetime.now(UTC)

    async def bought_now(*_: object) -> datetime:
        return now

    monkeypatch.setattr(buying, "last_bought_at", bought_now)
    node = ScriptedNode(longshore.temporal, buyer.pool, settings.resolve_agent_token())
    api = Longshore(longshore.temporal, settings)
    async with node.serving():
        await node.register()
        runs = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
        await node.started(runs.job_id)
        found = await api.forecast(a_spec(buyer.pool, gpus=8, expected_duration="1h"))
        due = a_spec(buyer.pool, gpus=8, expected_duration="1h", deadline="3h")
        dated = await api.forecast(due)
        await longshore.cancel(runs.job_id)
        await node.end(runs.job_id)
    await api.close()
    assert found is not None
    assert found.kind is ForecastKind.WAITS
    assert f"pool {buyer.pool} buys nothing now: " in found.says
    assert ". As it is, it may start at " in found.says
    assert found.ready_at is not None
    assert now + timedelta(minutes=5) < found.ready_at < now + timedelta(minutes=20)
    assert found.start_range is None
    assert dated is not None
    assert dated.deadline is not None
    assert dated.deadline.outlook is DeadlineOutlook.ON_TIME
    assert "may start at " in dated.deadline.told


async def test_who_gives_the_most_that_it_may_cost_hears_what_that_does_not_bound(
    buyer: Buyer, longshore: Longshore, capsys: pytest.CaptureFixture[str]
) -> None:
    await may_buy(buyer, caps={"per_day": "$0.01"})
    settings = buyer.market.settings(state_dir=longshore.settings.state_dir)
    spec = a_spec(buyer.pool, gpus=8, expected_duration="1h")
    how = {"dry_run": False, "yes": False, "as_json": False}
    api = Longshore(longshore.temporal, settings)
    await say_forecast(api, spec, 50_000_000, **how)
    said = capsys.readouterr().err
    assert "It would wait in pool" in said
    assert f"warning: --max-cost bounds nothing that pool {buyer.pool} buys for it later" in said
    await api.close()
    names = ("sfcompute_url", "sfcompute_token", "prime_url", "prime_token")
    without: dict[str, None] = dict.fromkeys(names)
    away = Longshore(longshore.temporal, settings.model_copy(update=without))
    with pytest.raises(RefusedError, match="what would be bought for it is not known: "):
        await say_forecast(away, spec, 50_000_000, **how)
    await away.close()
