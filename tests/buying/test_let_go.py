"""A block that is let go while jobs run there: they leave with their grace, and run again."""

import pytest
from temporalio.testing import ActivityEnvironment

from activities.buying.machines import MachineActivities
from client.api import Longshore
from models.errors import NotFoundError, RefusedError
from models.job import JobSpec, JobState
from models.purchase import MachineStart, PurchaseState
from models.settings import Settings
from tests.buying.buyer import Buyer, block_option, pod_option
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.waiting import eventually


def a_job(buyer: Buyer, at_stop: str, **fields: object) -> JobSpec:
    """Return a job that runs on, and does this when it is asked to stop."""
    command = (
        f"trap '{at_stop}' TERM; echo '1/2 ready' > $LONGSHORE_PROGRESS_FILE;"
        " while :; do sleep 0.1; done"
    )
    return a_spec(buyer.pool, command=command, cpus=0.1, ram=0.1, expected_duration="1s", **fields)


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
    assert (await buyer.ended(bought.orders[0])).reason == "let go by hand"
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.agrees()


async def test_a_block_that_nobody_knows_is_said_to_be_unknown(longshore: Longshore):
    with pytest.raises(NotFoundError, match=r"no block nowhere\.1"):
        await longshore.let_go("nowhere.1")


async def is_ready(longshore: Longshore, job_id: str) -> bool:
    """Return whether it has said that it hears the signal."""
    progress = await longshore.progress(job_id)
    return progress is not None and progress.message == "ready"
