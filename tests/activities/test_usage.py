"""A score on PostgreSQL: what tenants have had, whose job waits, and what people are shown."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.database import clock
from longshore.activities.funding.edits import set_tenant
from longshore.activities.queue_views import QueueViews
from longshore.activities.snapshot import read_place
from longshore.activities.usage import load_pool_to_plan, load_usage
from longshore.activities.views import set_pool
from longshore.models.funding import Tenant
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PriceSeries
from tests.support.ledger import Ledger

WEEK = timedelta(days=7).total_seconds()
HOUR = timedelta(hours=1)


async def scored(ledger: Ledger, **score: Any) -> None:
    packing = {"score": score} if score else {}
    spec = PoolSpec.model_validate({"name": ledger.pool, "packing": packing})
    async with ledger.database.transaction() as connection:
        await set_pool(connection, spec)


async def rewritten(ledger: Ledger, what: str) -> None:
    """Have placements begin and end at other times: the database rewrites none, and a test may
    not wait."""
    await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await ledger.rows(f"UPDATE placements SET {what}")
    await ledger.rows("ALTER TABLE placements ENABLE TRIGGER USER")


async def told(ledger: Ledger, name: str, parent: str | None = None, shares: float = 1.0) -> None:
    async with ledger.database.transaction() as connection:
        await set_tenant(connection, Tenant(name=name, parent=parent, shares=shares))


async def usage_of(ledger: Ledger, half_life: float = WEEK) -> dict[str, float]:
    async with ledger.database.transaction() as connection:
        now = await clock(connection)
        return (await load_usage(connection, ledger.pool, half_life, now)).usage


async def test_gpu_time_counts_half_after_a_half_life(ledger: Ledger):
    await ledger.register(gpus=4)
    async with ledger.listening("a", "b"):
        await ledger.enqueue("a", gpus=3, tenant="heavy")
        await ledger.enqueue("b", gpus=1, tenant="light")
        assert (await ledger.cycle("first")).placed == 2
        await ledger.enqueue("c", gpus=4, tenant="new")
        await rewritten(
            ledger,
            "placed_at = clock_timestamp() - interval '7 days 1 hour',"
            " ended_at = clock_timestamp() - interval '7 days', end_reason = 'FINISHED'"
            " WHERE job_id = 'a'",
        )
        await rewritten(
            ledger, "placed_at = clock_timestamp() - interval '1 hour' WHERE job_id = 'b'"
        )
        found = await usage_of(ledger)
    assert found == {
        "heavy": pytest.approx(3 * 3600 / 2, rel=0.01), "light": pytest.approx(3600, rel=0.01),
        "new": 0,
    }  # fmt: skip
    assert "heavy" not in await usage_of(ledger, WEEK / 7), "of long ago nothing is read"


async def test_what_runs_for_a_thousand_half_lives_is_no_error(ledger: Ledger):
    """PostgreSQL raises one where exp() is below the least number that it has."""
    await ledger.register(gpus=1)
    async with ledger.listening("a"):
        await ledger.enqueue("a", gpus=1, tenant="heavy")
        assert (await ledger.cycle("first")).placed == 1
    await rewritten(ledger, "placed_at = clock_timestamp() - interval '1 day'")
    assert await usage_of(ledger, 60) == {"heavy": pytest.approx(60 / math.log(2))}


async def test_the_starved_tenant_goes_first_and_both_are_told_why(ledger: Ledger):
    """B8 of the worked cases, through the database."""
    await ledger.register(gpus=1)
    async with ledger.listening("had", "heavy", "starved"):
        await ledger.enqueue("had", gpus=1, tenant="heavy")
        await ledger.cycle("first")
        await rewritten(ledger, "placed_at = placed_at - interval '1 hour'")
        await ledger.enqueue("heavy", gpus=1, tenant="heavy")
        await ledger.enqueue("starved", gpus=1, tenant="starved")
        views = QueueViews(ledger.database)
        before = await views.queue(ledger.pool)
        assert [job.job_id for job in before.jobs] == ["heavy", "starved"]
        assert before.weights is None
        assert "score" not in before.jobs[0].model_dump()
        await scored(ledger, profile="hpc-batch")
        after = await views.queue(ledger.pool)
        assert [job.job_id for job in after.jobs] == ["starved", "heavy"]
        assert after.weights
        assert [job.score.fair_share for job in after.jobs if job.score] == [1.0, 0.0]
        assert [job.score.backlog for job in after.jobs if job.score] == [1.0, 1.0]
        async with ledger.database.transaction() as connection:
            spec = await load_pool_to_plan(connection, ledger.pool)
            assert (await read_place(connection, ledger.pool, "starved", spec.packing))() == 1
        assert await ledger.rows("SELECT job_id, tenant FROM queue ORDER BY job_id") == [
            {"job_id": "heavy", "tenant": "heavy"}, {"job_id": "starved", "tenant": "starved"},
        ]  # fmt: skip
        await ledger.release("had")
        assert (await ledger.cycle("second")).placed == 1
        assert await ledger.rows("SELECT job_id FROM queue") == [{"job_id": "heavy"}]


async def test_the_shares_of_the_tree_decide_who_goes_first(ledger: Ledger):
    """Both had as much: who is to have more goes first, unless the pool says otherwise."""
    name = f"tree-{ledger.pool}"
    few, many, lab = f"{name}-few", f"{name}-many", f"{name}-lab"
    await told(ledger, lab, shares=3)
    await told(ledger, few, parent=lab)
    await told(ledger, many, parent=lab, shares=2)
    await ledger.register(gpus=2)
    async with ledger.listening("had-few", "had-many", "few", "many"):
        for tenant in (few, many):
            await ledger.enqueue(f"had-{tenant[len(name) + 1 :]}", gpus=1, tenant=tenant)
        assert (await ledger.cycle("first")).placed == 2
        await rewritten(ledger, "placed_at = clock_timestamp() - interval '1 hour'")
        await ledger.enqueue("few", gpus=1, tenant=few)
        await ledger.enqueue("many", gpus=1, tenant=many)
        await scored(ledger, profile="hpc-batch")
        views = QueueViews(ledger.database)
        found = await views.queue(ledger.pool)
        assert [job.job_id for job in found.jobs] == ["many", "few"]
        assert [part.target for part in found.tenants] == pytest.approx([1 / 3, 2 / 3])
        assert [part.actual for part in found.tenants] == pytest.approx([1 / 2] * 2, rel=1e-3)
        assert found.tenants[1].whence == (
            f"{many} 2 of 3 shares below {lab}, {lab} 3 of 3 shares"
        )
        await scored(ledger, profile="hpc-batch", shares={few: 8.0}, half_life="6d")
        found = await views.queue(ledger.pool)
        assert [job.job_id for job in found.jobs] == ["few", "many"]
        assert f"`shares.{few}`" in found.tenants[0].whence
        await ledger.release("had-few")
        assert (await ledger.cycle("second")).placed == 1
        assert await ledger.rows("SELECT job_id FROM queue") == [{"job_id": "many"}]


async def test_a_job_below_the_threshold_is_not_placed_and_is_told(ledger: Ledger):
    await scored(ledger, profile="sensitive", start_above=0.9)
    await ledger.register(gpus=1)
    async with ledger.listening("low"):
        await ledger.enqueue("low", gpus=1)
        assert (await ledger.cycle("first")).placed == 0
        (row,) = await ledger.rows("SELECT decision->>'reason' AS reason FROM queue")
        assert "is below the pool's `start_above` of 0.9" in row["reason"]
        await scored(ledger)
        assert (await ledger.cycle("second")).placed == 1


async def test_a_pool_without_a_score_reads_no_usage(ledger: Ledger):
    await scored(ledger)
    async with ledger.database.transaction() as connection:
        assert not (await load_pool_to_plan(connection, ledger.pool)).packing.usage


async def test_the_price_of_a_pool_is_the_energy_of_its_score(ledger: Ledger):
    async def energy(score: dict[str, Any], reference: str | None) -> float | None:
        asked = {"source": "file prices.csv"} | ({"reference": reference} if reference else {})
        spec = PoolSpec.model_validate(
            {"name": ledger.pool, "packing": {"score": score}, "price": asked}
        )
        now = datetime.now(UTC)
        series = PriceSeries(
            points=((now - HOUR, 1_000_000),), ends_at=now + HOUR, whence="file prices.csv"
        )
        async with ledger.database.transaction() as connection:
            await set_pool(connection, spec, series)
            return (await load_pool_to_plan(connection, ledger.pool)).packing.energy_price

    assert await energy({"profile": "service"}, "$4/gpu-hour") == 0.25
    assert await energy({"profile": "service"}, None) is None, "nobody said what counts as dear"
    assert await energy({"profile": "balanced"}, "$4/gpu-hour") is None, "it weighs nothing"
