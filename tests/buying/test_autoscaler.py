"""A pool grows with what it wants and no more, waits for a price or a deadline, and shrinks."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio.service import RPCError

from longshore.activities.database import Database
from longshore.activities.markets.watch import MarketWatchActivities
from longshore.activities.signals import Signals
from longshore.client.api import Longshore
from longshore.models.buying import BuyingPolicy
from longshore.models.job_status import JobState
from longshore.models.market_memory import MarketLookRequest
from longshore.models.pool import PoolSpec
from tests.buying.buyer import Buyer, block_option, pod_option
from tests.buying.test_pool_buys import bought
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually

OFTEN = timedelta(seconds=1)
FULL_MINUTE_AND_MORE = 150.0
"""Seconds: time at a market begins with a full minute, and then a machine starts."""


async def buys_by(
    buyer: Buyer, longshore: Longshore, interval: timedelta = OFTEN, **policy: Any
) -> None:
    """Let the pool buy by a policy, and look so often while jobs wait."""
    buying = BuyingPolicy.model_validate({"enabled": True, **policy})
    await longshore.set_pool(PoolSpec(name=buyer.pool, interval=interval, buying=buying))


@pytest.mark.exhaustive  # test_buying_seed.py decides it, test_warm.py buys for the warm target
async def test_the_safety_factor_has_spare_gpus_bought_beside_those_in_use(
    buyer: Buyer, longshore: Longshore
):
    await buyer.buy(block_option())
    job = await longshore.submit(a_job(buyer))
    await reaches(longshore, job.job_id, JobState.RUNNING, within=FULL_MINUTE_AND_MORE)
    await buys_by(buyer, longshore, fast_safety_factor=2.0)

    async def has_sixteen() -> list[dict[str, Any]]:
        nodes = await ready_nodes(buyer)
        assert sum(node["gpus"] for node in nodes) >= 16
        return nodes

    await eventually(has_sixteen, FULL_MINUTE_AND_MORE)
    nodes = await ready_nodes(buyer)
    assert sum(node["gpus"] for node in nodes) == 16
    extra = [row for row in await bought(buyer) if row["decision"]]
    assert all(row["decision"]["serves"][0].startswith("(warm") for row in extra)
    # Twice what is used is there: the next decision adds nothing.
    before = await decisions(buyer)
    await eventually(lambda: _more(buyer, before), interval=1)
    assert len(await bought(buyer)) == len(extra) + 1
    await finish(buyer, longshore, job.job_id)


@pytest.mark.exhaustive  # test_buying.py decides it, test_buying_status.py says it
async def test_nothing_is_bought_within_the_cooldown_and_something_after_it(
    buyer: Buyer, longshore: Longshore
):
    await buys_by(buyer, longshore, cooldown="10m")
    first = await longshore.submit(a_job(buyer))
    await reaches(longshore, first.job_id, JobState.RUNNING, within=FULL_MINUTE_AND_MORE)
    assert len(await bought(buyer)) == 1
    second = await longshore.submit(a_job(buyer))
    await reaches(longshore, second.job_id, JobState.QUEUED)

    async def is_held_back() -> bool:
        why = (await longshore.explain(second.job_id)).buying
        return why is not None and "within the cooldown" in why.reason

    await eventually(is_held_back, interval=1)
    assert len(await bought(buyer)) == 1
    await buys_by(buyer, longshore, cooldown="0s")

    async def two_are_bought() -> bool:
        return len(await bought(buyer)) == 2

    await eventually(two_are_bought, FULL_MINUTE_AND_MORE)
    await reaches(longshore, second.job_id, JobState.RUNNING, within=FULL_MINUTE_AND_MORE)
    await finish(buyer, longshore, first.job_id, second.job_id)


@pytest.mark.exhaustive  # 40 s; test_buying_trigger.py decides it
async def test_a_flex_job_is_bought_for_when_its_deadline_nears_and_not_before(
    buyer: Buyer, longshore: Longshore
):
    """The price that it hopes for never comes."""
    await buys_by(
        buyer, longshore, flex_price="$0.50", flex_deadline="120s", startup_limit="90s",
        usual_startup="1s",
    )  # fmt: skip
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, tier="FLEX", expected_duration="1m"))
    await eventually(lambda: _says(buyer, "wait"), interval=1)
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    submitted = (await longshore.status(job.job_id)).submitted_at
    waited = purchase["created_at"] - submitted
    assert timedelta(seconds=30) <= waited
    (chosen,) = [each for each in purchase["decision"]["options"] if each["chosen"]]
    assert chosen["tier"] == "FLEX"
    await finish(buyer, longshore)


@pytest.mark.usefixtures("begun_minute")
async def test_a_flex_job_runs_as_soon_as_a_look_at_the_markets_sees_its_price(
    buyer: Buyer, longshore: Longshore, buying: Database
):
    await buys_by(buyer, longshore, timedelta(minutes=10), flex_price="$1.50")
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, gpu_type="H100", tier="FLEX", expected_duration="3h")
    )
    await eventually(lambda: _says(buyer, "wait"), interval=1)
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": "1.20", "nodes": 8})
    watch = MarketWatchActivities(
        buying, buyer.market.settings(market_watch=("8xH100",)), signals=Signals(buyer.temporal)
    )
    looks = 0

    async def has_bought() -> list[dict[str, Any]]:
        # One that comes while a decision is being made changes nothing: looks never cease.
        nonlocal looks
        looks += 1
        await watch.watch_markets(MarketLookRequest(id=f"{buyer.pool}-{looks}"))
        return await bought(buyer)

    await eventually(has_bought, interval=2)
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    assert purchase["decision"]["serves"] == [job.job_id]
    await finish(buyer, longshore)


async def test_a_low_price_for_what_no_waiting_job_can_use_wakes_nobody(
    buyer: Buyer, longshore: Longshore, buying: Database
):
    await buys_by(buyer, longshore, timedelta(minutes=10), flex_price="$1.50",
                  instance_types=["8xH100"])  # fmt: skip
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=8, gpu_type="A100", tier="FLEX", expected_duration="3h")
    )
    await eventually(lambda: _says(buyer, "wait"), interval=1)
    buyer.market.book({"side": "sell", "dollars_per_gpu_hour": "1.20", "nodes": 8})
    watch = MarketWatchActivities(
        buying, buyer.market.settings(market_watch=("8xH100",)), signals=Signals(buyer.temporal)
    )
    report = await watch.watch_markets(MarketLookRequest(id=f"other-{buyer.pool}"))
    assert buyer.pool not in report.woken
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await finish(buyer, longshore)


@pytest.mark.exhaustive
async def test_machines_that_are_billed_as_they_run_leave_before_time_that_is_paid_for(
    buyer: Buyer, longshore: Longshore
):
    """Either alone would be beyond the warm target of one GPU; both together are not."""
    buyer.market.book(
        {"side": "sell", "dollars_per_gpu_hour": "2.10", "nodes": 8},
        {"side": "buy", "dollars_per_gpu_hour": "1.90", "nodes": 8},
    )
    block = await buyer.buy(block_option(length=timedelta(hours=4)))
    pod = await buyer.buy(pod_option(await buyer.an_offer()))
    await buys_by(buyer, longshore, fast_warm_gpus=1, idle_after="1ms")
    await asyncio.gather(*(buyer.wake(key) for key in (*block.orders, *pod.orders)))
    await eventually(lambda: _decided(buyer, pod.orders[0], "let-go"), interval=0.5)
    assert "nothing has run" in (await buyer.ended(pod.orders[0])).reason
    await eventually(lambda: _decided(buyer, block.orders[0], "keep"), interval=0.5)
    await eventually(lambda: _are_ready(buyer, block.nodes))
    assert await buyer.rows("SELECT 1 FROM orders WHERE block_id = :id", id=block.orders[0]) == []
    await finish(buyer, longshore)


@pytest.mark.exhaustive
async def test_of_two_machines_that_are_idle_at_one_moment_the_one_that_is_wanted_stays(
    buyer: Buyer, longshore: Longshore
):
    offer = await buyer.an_offer()
    pods = [await buyer.buy(pod_option(offer)) for _ in range(2)]
    await buys_by(buyer, longshore, fast_warm_gpus=1, idle_after="1ms")
    await asyncio.gather(*(buyer.wake(pod.orders[0]) for pod in pods))

    async def one_has_ended() -> list[str]:
        rows = await buyer.rows("SELECT id FROM blocks WHERE pool = :pool AND state <> 'ENDED'",
                                pool=buyer.pool)  # fmt: skip
        assert len(rows) == 1
        return [row["id"] for row in rows]

    (stays,) = await eventually(one_has_ended)
    await eventually(lambda: _decided(buyer, stays, "keep"), interval=0.5)
    await eventually(lambda: _are_ready(buyer, [stays]))
    assert len(await bought(buyer)) == 2
    await finish(buyer, longshore)


def a_job(buyer: Buyer) -> Any:
    return a_spec(
        buyer.pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="30m"
    )


async def ready_nodes(buyer: Buyer) -> list[dict[str, Any]]:
    return await buyer.rows(
        "SELECT n.id, n.block_id, count(g.*) AS gpus FROM nodes n JOIN gpus g ON g.node_id = n.id"
        " WHERE n.pool = :pool AND n.state = 'READY' GROUP BY n.id ORDER BY n.id",
        pool=buyer.pool,
    )


async def _are_ready(buyer: Buyer, names: Sequence[str]) -> bool:
    return [node["id"] for node in await ready_nodes(buyer)] == list(names)


async def finish(buyer: Buyer, longshore: Longshore, *jobs: str) -> None:
    """End the jobs, buy no more, let all go, and compare the ledger with the market."""
    await longshore.set_pool(PoolSpec(name=buyer.pool))
    for job in jobs:
        await longshore.cancel(job)
        await longshore.wait(job)
    purchases = await bought(buyer)
    await buyer.let_all_go()
    if purchases:
        await buyer.agrees()


async def decisions(buyer: Buyer) -> list[str]:
    """Return the runs of the pool's decisions about buying that have ended."""
    query = f"WorkflowId = 'buying-{buyer.pool}' AND ExecutionStatus = 'Completed'"
    return [run.run_id async for run in buyer.temporal.list_workflows(query)]


async def _more(buyer: Buyer, before: list[str]) -> bool:
    await Signals(buyer.temporal).poke_pool(buyer.pool)
    return len(set(await decisions(buyer)) - set(before)) >= 2


async def _says(buyer: Buyer, words: str) -> str:
    """Fail unless the pool's last decision about buying says this."""
    handle = buyer.temporal.get_workflow_handle(f"buying-{buyer.pool}")
    try:
        result: Any = await handle.result()  # of the run that is, where there is one
    except RPCError as error:
        raise AssertionError("none has been begun yet") from error
    assert words in result["reason"], result["reason"]
    return result["reason"]


async def _decided(buyer: Buyer, block: str, kind: str) -> bool:
    """Wake a block, and fail unless this is what was decided about it last."""
    await buyer.wake(block)
    (row,) = await buyer.rows("SELECT decision FROM blocks WHERE id = :id", id=block)
    assert row["decision"] is not None
    assert row["decision"]["kind"] == kind, row["decision"]["reason"]
    return True
