"""A machine that is billed as it runs goes on while its work is worth what that costs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from longshore.activities.buying.block_end_views import BlockEndViews
from longshore.activities.buying.machine_extension import MachineExtensionActivities
from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.database import Database
from longshore.activities.node_updates import extend_node
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.models.block import BlockVerdict
from longshore.models.block_end import BlockDecision, BlockOption, BlockOptionKind, GoOnRequest
from longshore.models.buying_policy import BuyingPolicy
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from longshore.models.purchase import worst_cost
from longshore.models.settings import Settings
from tests.buying.buyer import DOLLAR, Buyer, pod_option
from tests.buying.test_pool_buys import may_buy
from tests.support.control import a_spec, reaches, serving_control
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

GO_ON, KEEP = BlockOptionKind.GO_ON, BlockOptionKind.KEEP
WAITING = """
    SELECT pid FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock'
       AND query LIKE '%FROM market_switch FOR SHARE%'
"""


@pytest.fixture(scope="module")
async def buying(
    temporal: Client, settings: Settings, market: RunningMarket
) -> AsyncIterator[Database]:
    """Starts a control worker that lets jobs stay until a second before the end; 0.3 s."""
    changed = market.settings(
        state_dir=settings.state_dir,
        market_list_lag=timedelta(seconds=2),
        buying_every=timedelta(seconds=2),
        node_end_margin=timedelta(seconds=1),
    )
    async with serving_control(temporal, changed) as database:
        yield database


async def a_pod(buyer: Buyer) -> tuple[str, str]:
    """Buy a machine that is billed as it runs; return its block and its node."""
    bought = await buyer.buy(pod_option(await buyer.an_offer()))
    return bought.orders[0], bought.nodes[0]


async def until_touched(buyer: Buyer, longshore: Longshore, file: Path) -> str:
    """Start a job that was to take a second, and ends when there is such a file."""
    command = f"until [ -e '{file}' ]; do sleep 0.1; done"
    job = await longshore.submit(
        a_spec(buyer.pool, command=command, cpus=0.1, ram=0.1, expected_duration="1s",
               stop_grace="1s")
    )  # fmt: skip
    await reaches(longshore, job.job_id, JobState.RUNNING)
    return job.job_id


async def ends_in(buyer: Buyer, block: str, node: str, seconds: float) -> datetime:
    """Have the committed time of a block end so soon, as far as anybody here knows."""
    ends_at = datetime.now(UTC) + timedelta(seconds=seconds)
    for change in (
        "UPDATE blocks SET starts_at = starts_at - interval '2 hours', ends_at = :at"
        " WHERE id = :id",
        "UPDATE orders SET starts_at = starts_at - interval '2 hours', ends_at = :at"
        " WHERE key = :id",
    ):
        await buyer.rows(change, id=block, at=ends_at)
    await extend_node(buyer.temporal, node, ends_at)
    return ends_at


async def the_block(buyer: Buyer, block: str) -> dict[str, Any]:
    (row,) = await buyer.rows(
        "SELECT b.state, b.ends_at, b.decision, o.committed, o.ends_at AS order_ends,"
        " o.starts_at, p.committed AS of_purchase"
        " FROM blocks b JOIN orders o ON o.key = b.id"
        " JOIN purchases p ON p.id = b.purchase_id WHERE b.id = :id",
        id=block,
    )
    return row


async def test_a_job_that_overruns_finishes_where_it_runs_in_one_attempt(
    buyer: Buyer, longshore: Longshore, tmp_path: Path
):
    block, node = await a_pod(buyer)
    job = await until_touched(buyer, longshore, tmp_path / "done")
    old = await ends_in(buyer, block, node, 20)
    committed = (await the_block(buyer, block))["of_purchase"]
    await buyer.wake(block)

    async def drains() -> bool:
        (row,) = await buyer.rows("SELECT drain_reason FROM nodes WHERE id = :id", id=node)
        return "the block ends at" in (row["drain_reason"] or "")

    # The pool may not buy: the node is being emptied for its end. Now it may.
    await eventually(drains)
    await may_buy(buyer, idle_after="1s")
    await buyer.wake(block)

    async def goes_on() -> bool:
        (row,) = await buyer.rows("SELECT state, expires_at FROM nodes WHERE id = :id", id=node)
        status = await buyer.temporal.get_workflow_handle(f"node-{node}").query("status")
        ends = datetime.fromisoformat(status["expires_at"])
        assert (row["state"], ends) == ("READY", row["expires_at"]), (row, status)
        return ends > old

    await eventually(goes_on)
    row = await the_block(buyer, block)
    assert row["state"] == "OPEN"
    assert row["ends_at"] == row["order_ends"] > old + timedelta(minutes=10)
    assert row["of_purchase"] > committed
    view = await BlockEndViews(buyer.database).of_block(block)
    assert view.decision is not None
    assert (view.decision.kind, view.decision.until) == (GO_ON, row["ends_at"])
    assert "billed as it runs: gains $" in view.decision.reason

    # Beyond the time that was committed first.
    await eventually(lambda: datetime.now(UTC) > old, timeout=120)
    status = await longshore.status(job)
    assert (status.state, status.attempt) == (JobState.RUNNING, 1)
    buyer.market.advance(7200)  # its market bills by a clock of its own
    (tmp_path / "done").touch()
    result = await longshore.wait(job)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)

    async def is_let_go() -> bool:
        # A look right after the job has nothing against a node that was busy a moment ago.
        if (await the_block(buyer, block))["state"] == "OPEN":
            await buyer.wake(block)
            return False
        return True

    await eventually(is_let_go, interval=0.5)
    end = await buyer.ended(block)
    assert "nothing has run there" in end.reason
    assert (end.used > 0, end.cost) == (True, end.used + end.idle)
    await buyer.agrees()


@pytest.mark.exhaustive  # 20 s; every cap refuses it below
async def test_where_a_cap_refuses_it_the_job_leaves_in_time_and_is_queued_again(
    buyer: Buyer, longshore: Longshore, tmp_path: Path
):
    block, node = await a_pod(buyer)
    job = await until_touched(buyer, longshore, tmp_path / "never")
    await may_buy(buyer, caps={"per_purchase": "$0.01"})
    old = await ends_in(buyer, block, node, 15)
    await buyer.wake(block)

    async def refused() -> dict[str, Any]:
        row = await the_block(buyer, block)
        assert row["decision"], row
        assert row["decision"]["kind"] == "keep", row  # it was to go on, until that was refused
        return row

    row = await eventually(refused)
    assert row["ends_at"] == old
    assert "a purchase may cost $0.01 at most" in row["decision"]["reason"]
    waiting = await reaches(longshore, job, JobState.QUEUED)
    (attempt,) = waiting.attempts
    assert (attempt.moved, attempt.failure) == (True, None)
    assert (await buyer.ended(block)).reason == "its time is over"
    await longshore.cancel(job)
    await longshore.wait(job)
    await buyer.agrees()


# --- what the database refuses ------------------------------------------------------------


async def go_on(buyer: Buyer, block: str, until: datetime) -> BlockVerdict:
    steps = MachineExtensionActivities(buyer.database, buyer.temporal)
    request = GoOnRequest(block_id=block, until=until)
    return await ActivityEnvironment().run(steps.go_on, request)


async def a_decided_pod(buyer: Buyer) -> tuple[str, dict[str, Any]]:
    """Return a block of which it was decided that it goes on, with its row."""
    await may_buy(buyer)
    block, _ = await a_pod(buyer)
    return block, await decided(buyer, block)


async def decided(buyer: Buyer, block: str) -> dict[str, Any]:
    """Have it be decided that a block goes on; return its row."""
    decision = BlockDecision(
        block_id=block, at=datetime.now(UTC), kind=GO_ON, reason="go on",
        options=(
            BlockOption(kind=KEEP, title="leave it as it is", lost="gains less"),
            BlockOption(kind=GO_ON, title="go on for 1h after it", chosen=True),
        ),
    )  # fmt: skip
    await buyer.rows(
        "UPDATE blocks SET decision = CAST(:decision AS jsonb) WHERE id = :id",
        id=block, decision=decision.model_dump_json(exclude={"block_id"}),
    )  # fmt: skip
    return await the_block(buyer, block)


async def test_however_often_and_in_whatever_order_a_machine_ends_once_and_latest(buyer: Buyer):
    block, before = await a_decided_pod(buyer)
    hour = timedelta(hours=1)
    ends = [before["ends_at"] + number * hour for number in (1, 3, 2, 3)]
    verdicts = await asyncio.gather(*(go_on(buyer, block, until) for until in ends))
    assert {verdict.kind for verdict in verdicts} == {GO_ON}
    after = await the_block(buyer, block)
    (order,) = await buyer.rows(
        "SELECT (request ->> 'limit')::bigint AS limit FROM orders WHERE key = :id",
        id=block,
    )
    assert after["ends_at"] == after["order_ends"] == before["ends_at"] + 3 * hour
    worst = worst_cost(order["limit"], 1, after["ends_at"] - after["starts_at"])
    assert after["committed"] == after["of_purchase"] == worst > before["committed"]
    assert (await go_on(buyer, block, ends[0])).kind is GO_ON
    assert await the_block(buyer, block) == after
    nodes = "SELECT id, expires_at FROM nodes WHERE block_id = :id"
    (node,) = await buyer.rows(nodes, id=block)
    assert node["expires_at"] == after["ends_at"]
    # Who was slow to tell the node tells it after the others.
    await extend_node(buyer.temporal, node["id"], ends[0])
    assert await buyer.rows(nodes, id=block) == [node]
    status = await buyer.temporal.get_workflow_handle(f"node-{node['id']}").query("status")
    assert datetime.fromisoformat(status["expires_at"]) == node["expires_at"]
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_node_that_hears_of_its_end_waits_for_no_block_that_goes_on(buyer: Buyer):
    # It holds its row and looks at its block; going on holds the block and wants the node.
    block, before = await a_decided_pod(buyer)
    until = before["ends_at"] + timedelta(hours=1)
    (node,) = await buyer.rows("SELECT id FROM nodes WHERE block_id = :id", id=block)
    async with buyer.database.transaction() as connection:
        await connection.execute(text("SELECT FROM market_switch FOR UPDATE"))
        going = asyncio.create_task(go_on(buyer, block, until))
        await eventually(lambda: buyer.rows(WAITING))
        await extend_node(buyer.temporal, node["id"], until)
        assert not going.done()
    assert (await going).kind is GO_ON
    assert (await the_block(buyer, block))["ends_at"] == until
    await buyer.let_go(block)
    await buyer.agrees()


async def test_every_cap_of_a_purchase_holds_for_a_machine_that_goes_on(buyer: Buyer):
    await may_buy(buyer)
    block, _ = await a_pod(buyer)
    (name,) = await buyer.rows("SELECT pool, tier, tenant FROM purchases WHERE id = :id",
                               id=buyer.purchases[-1])  # fmt: skip
    switch = BuyingSwitch(buyer.database)
    for scope in ("purchase", "day", "pool", "tier", "tenant"):
        before = await decided(buyer, block)
        await switch.set_cap(scope, name.get(scope, "*"), 1)
        try:
            refused = await go_on(buyer, block, before["ends_at"] + timedelta(hours=1))
        finally:
            await switch.set_cap(scope, name.get(scope, "*"), None)
        await as_it_was(buyer, block, before, refused, "is the most|at most")
    await buyer.let_go(block)


async def test_no_machine_goes_on_while_buying_is_stopped(buyer: Buyer):
    block, before = await a_decided_pod(buyer)
    switch = BuyingSwitch(buyer.database)
    await switch.stop("a test")
    try:
        refused = await go_on(buyer, block, before["ends_at"] + timedelta(hours=1))
    finally:
        await switch.resume()
    await as_it_was(buyer, block, before, refused, "buying is stopped: a test")


@pytest.mark.exhaustive
async def test_no_machine_goes_on_against_the_policy_of_now(buyer: Buyer):
    """Between the decision and the money the markets were asked, or a worker was away."""
    block, before = await a_decided_pod(buyer)
    (of,) = await buyer.rows(
        "SELECT request -> 'offer' ->> 'seller' AS seller, provider FROM orders WHERE key = :id",
        id=block,
    )
    await buyer.rows(  # of what is bought by hand it asks less
        "UPDATE purchases SET decision = '{}'"
        " WHERE id = (SELECT purchase_id FROM blocks WHERE id = :id)", id=block,
    )  # fmt: skip
    for policy, why in (
        ({"enabled": False}, "`enabled`"),
        ({"max_price": {"FAST": DOLLAR // 100}}, "over the cap of $0.01"),
        ({"instance_types": ["8xB200"]}, "`instance_types`"),
        ({"sellers": {"exclude": [of["seller"] or of["provider"]]}}, "`sellers`"),
    ):
        before = await decided(buyer, block)
        await may_buy(buyer, **policy)
        refused = await go_on(buyer, block, before["ends_at"] + timedelta(hours=24))
        await as_it_was(buyer, block, before, refused, why)
    await decided(buyer, block)
    await may_buy(buyer)
    assert (await go_on(buyer, block, before["ends_at"] + timedelta(hours=1))).kind is GO_ON
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_policy_that_is_being_changed_is_waited_for(buyer: Buyer):
    block, before = await a_decided_pod(buyer)
    changed = PoolSpec(name=buyer.pool, buying=BuyingPolicy(enabled=False))
    waiting = WAITING.replace("FROM market_switch FOR", "FROM pools WHERE name = $1 FOR")
    async with buyer.database.transaction() as connection:
        await set_pool(connection, changed)
        going = asyncio.create_task(go_on(buyer, block, before["ends_at"] + timedelta(hours=1)))
        await eventually(lambda: buyer.rows(waiting))
    await as_it_was(buyer, block, before, await going, "`enabled`")
    await buyer.let_go(block)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_no_machine_goes_on_that_ends_for_another_reason(buyer: Buyer):
    block, before = await a_decided_pod(buyer)
    await buyer.rows("UPDATE blocks SET state = 'DRAINING', reason = 'too dear' WHERE id = :id",
                     id=block)  # fmt: skip
    refused = await go_on(buyer, block, before["ends_at"] + timedelta(hours=1))
    await as_it_was(buyer, block, before, refused, "before its time: too dear", state="DRAINING")
    await buyer.let_go(block)
    late = await go_on(buyer, block, before["ends_at"] + timedelta(hours=1))
    assert "its order is over" in late.reason
    await buyer.agrees()


async def as_it_was(
    buyer: Buyer, block: str, before: dict[str, Any], verdict: BlockVerdict, why: str,
    state: str = "OPEN",
) -> None:  # fmt: skip
    """Fail unless the block is as it was, and its decision says why."""
    assert verdict.kind is KEEP
    after = await the_block(buyer, block)
    assert any(part in after["decision"]["reason"] for part in why.split("|")), after["decision"]
    assert after["decision"]["reason"] == verdict.reason
    assert after == {**before, "state": state, "decision": after["decision"]}
