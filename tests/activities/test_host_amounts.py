"""Storage bandwidth and power as capacities: what cycles place, and what the database refuses."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.activities.observation import observe
from longshore.activities.views import Views
from longshore.models.reconcile import ReconcileRequest
from tests.support.ledger import Ledger


async def test_of_twenty_who_want_the_same_bandwidth_at_once_no_more_get_it_than_there_is(
    ledger: Ledger,
):
    await ledger.register(gpus=20, storage_bandwidth=4)
    assert await _placed_at_once(ledger, storage=1000, power=0) == 4
    assert await ledger.value("SELECT storage_mb_s_used FROM nodes") == 4000


async def test_of_twenty_who_draw_power_at_once_no_more_run_than_the_budget_feeds(ledger: Ledger):
    await ledger.register(gpus=20, power=5600)
    assert await _placed_at_once(ledger, storage=0, power=700_000) == 8
    assert await ledger.value("SELECT milliwatts_used FROM nodes") == 5_600_000


async def test_one_thousandth_over_is_refused_and_the_size_itself_is_not(ledger: Ledger):
    await ledger.register(storage_bandwidth=2, power=1400)
    await ledger.add_job("a")
    with pytest.raises(IntegrityError, match="nodes_storage_within_size"):
        await ledger.place("a", storage=2001)
    with pytest.raises(IntegrityError, match="nodes_power_within_size"):
        await ledger.place("a", power=1_400_001)
    await ledger.place("a", storage=2000, power=1_400_000)
    assert await ledger.drift() == []


async def test_without_a_limit_everything_fits_and_is_counted(ledger: Ledger):
    await ledger.register()
    await ledger.add_job("a")
    await ledger.place("a", storage=10**9, power=10**9)
    assert await ledger.value("SELECT storage_mb_s_used FROM nodes") == 10**9
    assert await ledger.drift() == []


async def test_a_cycle_places_what_storage_and_power_allow_and_says_why_the_rest_waits(
    ledger: Ledger,
):
    await ledger.register(gpus=8, storage_bandwidth=4, power=2000)
    jobs = ("a-reads", "b-reads-too", "c-draws", "d-draws-little")
    async with ledger.listening(*jobs):
        await ledger.enqueue("a-reads", storage_bandwidth=3)
        await ledger.enqueue("b-reads-too", storage_bandwidth=2)
        await ledger.enqueue("c-draws", gpus=2)
        await ledger.enqueue("d-draws-little", gpus=2, power_per_gpu=300)
        await ledger.cycle("one")
        placed = {
            row["job_id"]: (row["storage_mb_s"], row["milliwatts"])
            for row in await ledger.rows(
                "SELECT job_id, storage_mb_s, milliwatts FROM placements WHERE ended_at IS NULL"
            )
        }
        assert placed == {"a-reads": (3000, 700_000), "d-draws-little": (0, 600_000)}
        why = {
            row["job_id"]: row["rejected"]
            for row in await ledger.rows(
                "SELECT job_id, decision->'rejected' AS rejected FROM queue"
            )
        }
        assert why == {
            "b-reads-too": {"not-enough-storage-bandwidth": 1},
            "c-draws": {"not-enough-power": 1},
        }
        await ledger.finish("a-reads")
        await ledger.cycle("two")
        running = "SELECT job_id FROM placements WHERE ended_at IS NULL ORDER BY job_id"
        jobs = [row["job_id"] for row in await ledger.rows(running)]
        assert jobs == ["b-reads-too", "d-draws-little"]
    (node,) = await Views(ledger.database).nodes(pool=ledger.pool)
    assert (node.storage_bandwidth, node.storage_used) == (4, 2)
    assert (node.power, node.power_used) == (2000, 1300)
    assert await ledger.drift() == []


async def test_a_part_of_a_gpu_draws_its_part_of_the_power(ledger: Ledger):
    await ledger.register(gpus=2, mig={1}, power=700)
    async with ledger.listening("half", "instance"):
        await ledger.enqueue("half", milli=500, vram_per_gpu=10)
        await ledger.enqueue("instance", mig="3g.40gb")
        await ledger.cycle("one")
    drawn = "SELECT milliwatts FROM placements WHERE job_id = :job"
    assert await ledger.value(drawn, job="half") == 350_000
    assert await ledger.value(drawn, job="instance") == 350_000


async def test_a_sum_that_went_wrong_is_seen(ledger: Ledger):
    await ledger.register(storage_bandwidth=2, power=1400)
    await ledger.rows("UPDATE nodes SET storage_mb_s_used = 7, milliwatts_used = 9")
    seen = await observe(
        ledger.database, ledger.temporal, ReconcileRequest(), timedelta(seconds=12)
    )
    assert {(row.what, row.counted, row.held) for row in seen.ledgers} == {
        ("storage_mb_s_used", 7, 0),
        ("milliwatts_used", 9, 0),
    }


async def _placed_at_once(ledger: Ledger, *, storage: int, power: int) -> int:
    """Place twenty jobs on GPUs of their own at one time; return how many got there."""
    jobs = [f"job-{number:02}" for number in range(20)]
    for job in jobs:
        await ledger.add_job(job)
    outcomes = await asyncio.gather(
        *(
            ledger.place(job, [number], cpu=1, ram=1, storage=storage, power=power)
            for number, job in enumerate(jobs)
        ),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert all(isinstance(outcome, IntegrityError) for outcome in refused)
    assert all("within_size" in str(outcome) for outcome in refused)
    assert await ledger.drift() == []
    return len(outcomes) - len(refused)
