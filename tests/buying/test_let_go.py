"""A block that is let go while jobs run there: they leave with their grace, and run again."""

import asyncio
import os
import re
import subprocess
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from longshore.activities.buying.block_scene import read_scene
from longshore.activities.buying.machines import MachineActivities
from longshore.activities.buying.market_refusals import closed_markets
from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.database import clock
from longshore.client.api import Longshore
from longshore.models.block import ENDING
from longshore.models.errors import NotFoundError, RefusedError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.margins import Margins
from longshore.models.pool import PoolSpec
from longshore.models.purchase import MachineStart, PurchaseState
from longshore.models.settings import Settings
from tests.buying.buyer import SOON, Buyer, block_option, pod_option
from tests.buying.test_pool_buys import may_buy
from tests.buying.test_resale import settled
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.home import PROGRAM
from tests.support.waiting import eventually


def a_job(buyer: Buyer, at_stop: str, **fields: object) -> JobSpec:
    """Return a job that runs on, and does this when it is asked to stop."""
    command = (
        f"trap '{at_stop}' TERM; echo '1/2 ready' > $LONGSHORE_PROGRESS_FILE;"
        " while :; do sleep 0.1; done"
    )
    return a_spec(buyer.pool, command=command, cpus=0.1, ram=0.1, expected_duration="1s", **fields)


@pytest.mark.exhaustive
async def test_no_machine_is_started_on_a_block_that_was_let_go(buyer: Buyer, settings: Settings):
    """Its purchase may still be looking for the first one's agent when that has gone already."""
    bought = await buyer.buy(block_option())
    await buyer.let_go(bought.orders[0])
    steps = MachineActivities(buyer.database, buyer.temporal, buyer.market.settings())
    second = MachineStart(block_id=bought.orders[0], number=2)
    refused = await ActivityEnvironment().run(steps.start_machine, second)
    assert refused.reason == "its block ends: the test is over"
    machines = await buyer.rows("SELECT name FROM machines WHERE block_id = :id",
                                id=bought.orders[0])  # fmt: skip
    assert [row["name"] for row in machines] == list(bought.nodes)
    await buyer.agrees()


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("fault", ["malformed_json", "unauthorized"])
async def test_a_block_is_followed_to_its_end_whatever_its_market_answers(
    buyer: Buyer, fault: str
):
    bought = await buyer.buy(pod_option(await buyer.an_offer()))
    buyer.market.fault(fault)
    look = await buyer.look(bought.orders[0])
    assert not look.over
    buyer.market.clear_faults()
    buyer.market.fault(fault, times=3)
    end = await buyer.let_go(bought.orders[0])
    assert end.reason == "the test is over"
    await buyer.agrees()


async def test_a_purchase_whose_block_is_let_go_orders_nothing_more(buyer: Buyer):
    buyer.market.fault("machine_silent")
    buying = await buyer.start(buyer.request(block_option(reprices=2, cap=5_000_000)))
    starting = "SELECT block_id FROM machines WHERE purchase_id = :id AND state = 'STARTING'"

    async def its_block() -> str:
        rows = await buyer.rows(starting, id=buyer.purchases[0])
        return rows[0]["block_id"] if rows else ""

    block = await eventually(its_block)
    await buyer.let_go(block)
    status = await buying.result()
    assert (status.state, status.orders) == (PurchaseState.ENDED, (block,))
    assert status.reason == "its block ends: the test is over"
    machines = "SELECT name FROM machines WHERE purchase_id = :id"
    assert len(await buyer.rows(machines, id=buyer.purchases[0])) == 1
    await buyer.agrees()


async def test_jobs_of_a_block_that_is_let_go_end_within_their_grace_and_are_queued_again(
    buyer: Buyer, longshore: Longshore
):
    bought = await buyer.buy(block_option())
    (block,), (node,) = bought.orders, bought.nodes
    # It ends a second after it was asked to; the machine has to outlast that.
    job = await longshore.submit(a_job(buyer, "sleep 1; exit 0"))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: is_ready(longshore, job.job_id))
    await longshore.let_go(block, "too dear")
    waiting = await reaches(longshore, job.job_id, JobState.QUEUED)
    (attempt,) = waiting.attempts
    assert (attempt.moved, attempt.failure, attempt.exit_code) == (True, None, 0)
    assert "too dear" in attempt.message
    assert await lease_ends(buyer.database, job.job_id) == ["moved"]
    end = await buyer.ended(block)
    assert (end.reason, end.used > 0) == ("too dear", True)
    (machine,) = await buyer.rows("SELECT ended_at FROM machines WHERE name = :id", id=node)
    assert attempt.ended_at is not None
    assert attempt.ended_at < machine["ended_at"]
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    with pytest.raises(RefusedError, match="ended already"):
        await longshore.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_job_that_does_not_end_in_its_grace_does_not_keep_the_machine(
    buyer: Buyer, longshore: Longshore
):
    bought = await buyer.buy(block_option())
    job = await longshore.submit(a_job(buyer, "", stop_grace="1s"))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: is_ready(longshore, job.job_id))
    await longshore.let_go(bought.orders[0])
    waiting = await reaches(longshore, job.job_id, JobState.QUEUED)
    assert "did not end in time and was killed" in waiting.attempts[0].message
    assert (await buyer.ended(bought.orders[0])).reason == "terminated by hand"
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.agrees()


async def test_time_that_is_given_up_is_told_and_sold(
    buyer: Buyer, longshore: Longshore, settings: Settings
):
    buyer.market.fault("empty_availability", times=-1)  # the job could run on what else is there
    await may_buy(buyer)
    bought = await buyer.buy(block_option(length=timedelta(hours=4)))
    (block,) = bought.orders
    job = await longshore.submit(a_job(buyer, "exit 0", gpus=8))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: is_ready(longshore, job.job_id))
    refused = await command(settings, "let-go", block)
    assert refused.returncode == RefusedError.exit_code, refused.stderr
    # 8 GPUs at $2.10 for most of four hours.
    assert re.search(r"gives up \$6[5-7]\.\d\d, 3h ?\d\dm of 1 node", refused.stderr), refused
    assert (await longshore.status(job.job_id)).state is JobState.RUNNING
    # Nothing is for sale: once all is sold, the job could be bought for again.
    buyer.market.book({"side": "buy", "dollars_per_gpu_hour": "1.50", "nodes": 1})
    done = await command(settings, "terminate", block, "--force", "--reason", "too dear")
    assert done.returncode == 0, done.stderr
    end = await buyer.ended(block)
    (sale,) = await settled(buyer, block)
    assert (end.reason, sale["state"], end.resold) == ("too dear", "SOLD", sale["proceeds"])
    assert end.resold > 0
    await reaches(longshore, job.job_id, JobState.QUEUED)
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_time_that_was_let_go_and_not_sold_is_used_again_once_a_person_says_so(
    buyer: Buyer, longshore: Longshore
):
    buyer.market.fault("empty_availability", times=-1)
    await may_buy(buyer)
    bought = await buyer.buy(block_option(length=timedelta(hours=4)))
    (block,) = bought.orders
    job = await longshore.submit(a_job(buyer, "exit 0", gpus=8))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: is_ready(longshore, job.job_id))
    await longshore.terminate_block(block)
    end = await buyer.ended(block)
    assert end.resold == 0

    async def says_so() -> bool:
        why = (await longshore.explain(job.job_id)).buying
        return why is not None and f"{block} was terminated" in why.reason

    await eventually(says_so, SOON, interval=1)
    purchases = "SELECT id FROM purchases WHERE pool = :pool"
    assert len(await buyer.rows(purchases, pool=buyer.pool)) == 1
    await BuyingSwitch(buyer.database).resume()

    async def runs_again() -> bool:
        status = await longshore.status(job.job_id)
        return (status.state, status.attempt) == (JobState.RUNNING, 2)

    await eventually(runs_again, SOON, interval=1)
    machines = "SELECT name, state FROM machines WHERE block_id = :id ORDER BY name"
    names = [row["name"] for row in await buyer.rows(machines, id=block)]
    assert names == [f"{block}.m1", f"{block}.m2"]
    assert len(await buyer.rows(purchases, pool=buyer.pool)) == 1
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.let_go(block)
    again = await buyer.ended(block)
    assert (again.cost, again.resold) == (end.cost, 0)
    assert again.used > end.used > 0
    assert again.used + again.idle == again.cost
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_window_that_drains_for_its_end_is_not_given_up(buyer: Buyer):
    """Where a job needs long to stop that begins hours before."""
    bought = await buyer.buy(block_option(length=timedelta(hours=4)))
    drain = "UPDATE blocks SET state = 'DRAINING', reason = :reason WHERE id = :id"
    await buyer.rows(drain, reason=f"{ENDING} 18:00 UTC", id=bought.orders[0])
    async with buyer.database.transaction() as connection:
        now, pool = await clock(connection), PoolSpec(name=buyer.pool)
        assert await closed_markets(connection, pool, now) == {}
        scene = await read_scene(connection, bought.orders[0], now, Margins())
        assert not scene.block.given_up
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()


async def command(settings: Settings, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a thread: the control worker that answers it is of this process."""
    env = {**os.environ, "LONGSHORE_STATE_DIR": str(settings.state_dir), "COLUMNS": "400"}
    return await asyncio.to_thread(
        subprocess.run, [PROGRAM, *words], env=env, capture_output=True, text=True, check=False
    )


async def test_a_block_that_nobody_knows_is_said_to_be_unknown(longshore: Longshore):
    with pytest.raises(NotFoundError, match=r"no block nowhere\.1"):
        await longshore.let_go("nowhere.1")


async def is_ready(longshore: Longshore, job_id: str) -> bool:
    """Return whether it has said that it hears the signal."""
    progress = await longshore.progress(job_id)
    return progress is not None and progress.message == "ready"
