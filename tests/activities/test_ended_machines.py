"""Nodes of bought machines that have ended while nobody heard of them: no job waits for them."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.testing import ActivityEnvironment

from longshore.activities.buying import block_decisions
from longshore.activities.buying.block_decisions import BlockDecisionActivities
from longshore.activities.buying.block_scene import idle_since
from longshore.activities.buying.blocks import BlockActivities
from longshore.activities.buying.machine_ends import MachineEnds
from longshore.activities.pool_cache import PoolCache
from longshore.activities.providers import registry
from longshore.activities.queue_rows import ensure_pool
from longshore.models.block import BlockRef
from longshore.models.block_end import BlockOptionKind
from longshore.models.errors import GoneError, MarketAwayError
from longshore.models.market import Machine, MachineState, Order, OrderState
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.models.purchase import PurchaseOption, PurchaseRequest
from longshore.models.settings import Settings
from tests.activities.test_pool_cache import look
from tests.support.ledger import Ledger

_BUY = (
    """
    INSERT INTO purchases (id, pool, tenant, tier, state, request, planned, committed)
    VALUES ('p', :pool, 'default', 'FAST', 'READY', '{}', 1, 1)""",
    """
    INSERT INTO orders (key, purchase_id, number, option, provider, request, is_machine,
                                 gpus_per_node, starts_at, ends_at, committed)
    VALUES ('p.1', 'p', 1, 0, 'own', '{}', true, 8, now(), now() + interval '5 hours', 1)""",
    """
    INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at, nodes,
                        price_micro_per_gpu_hour, purchase_id, pool, state)
    VALUES ('p.1', 'own', '8xH100', 'FAST', now(), now() + interval '5 hours', 1, 1, 'p', :pool,
            'OPEN')""",
    """
    INSERT INTO machines (name, purchase_id, block_id, provider, state)
    VALUES ('p.1', 'p', 'p.1', 'own', 'READY')""",
)


@pytest.fixture
async def lost(ledger: Ledger) -> Ledger:
    """A pool with a node of its own and one that was bought, both lost."""
    async with ledger.database.transaction() as connection:
        await ensure_pool(connection, ledger.pool)
    for statement in _BUY:
        await ledger.rows(statement, **({"pool": ledger.pool} if ":pool" in statement else {}))
    for node in ("own", "p.1"):
        await ledger.register(node, gpus=2)
        end = NodeEnd(node_id=node, epoch=1, state=NodeState.LOST, reason="silent")
        await ledger.run(ledger.registry.end_node, end)
    return ledger


async def test_a_job_waits_for_no_machine_that_has_ended(lost: Ledger, settings: Settings):
    kept = PoolCache()
    assert [each.id for each in (await look(lost, kept, random.Random())).nodes.nodes] == [
        "own", "p.1",
    ]  # fmt: skip
    assert await _why(lost, "before") == "each of the 2 nodes that could hold it is not ready"
    await MachineEnds(lost.database, settings).stop(_market(Pods()), await _row(lost), None)
    assert [each.id for each in (await look(lost, kept, random.Random())).nodes.nodes] == ["own"]
    assert await _why(lost, "after") == "the node that could hold it is not ready"


async def test_a_machine_stays_idle_across_registrations_of_its_agent(lost: Ledger):
    """Until a job runs there: its end is later."""
    since = "SELECT ({}) AS at".format(idle_since("'p.1'"))
    first = await lost.value("SELECT came_at FROM nodes WHERE id = 'p.1'")
    assert await lost.value(since) == first
    await lost.register("p.1", boot="boot-2", gpus=2)
    assert await lost.value("SELECT registered_at FROM nodes WHERE id = 'p.1'") > first
    assert await lost.value(since) == first
    async with lost.listening("a"):
        await lost.enqueue("a")
        await lost.cycle("1")
    assert await lost.value(since) is None
    await lost.finish("a")
    assert await lost.value(since) == await lost.value("SELECT ended_at FROM placements")


async def test_a_node_that_comes_with_another_block_has_just_come(lost: Ledger):
    """A host of one's own whose agent was started by hand for a block, months after it came."""
    came = "SELECT came_at FROM nodes WHERE id = 'p.1'"
    first = await lost.value(came)
    await lost.rows("UPDATE nodes SET block_id = NULL WHERE id = 'p.1'")
    await lost.register("p.1", boot="boot-2", gpus=2, block="p.1")
    at = await lost.value(came)
    assert at > first
    await lost.register("p.1", boot="boot-3", gpus=2, block="p.1")
    assert await lost.value(came) == at


class Pods:
    """A market whose machines are billed as they run."""

    name, capabilities = "own", SimpleNamespace(fixed_window=False)

    def __init__(self, found: Machine | None = None, order: Order | None = None) -> None:
        self.found = found
        self.order = order
        self.stopped: list[str] = []

    async def aclose(self) -> None:
        pass

    async def find_order(self, key: str) -> Order | None:
        return self.order

    async def stop_machine(self, machine_id: str) -> None:
        self.stopped.append(machine_id)

    async def machine(self, machine_id: str) -> Machine:
        if self.found is None:
            raise GoneError("own", "no such pod")
        return self.found


def _market(pods: Pods) -> Any:
    return pods


async def _stop(lost: Ledger, pods: Pods, lag: timedelta) -> None:
    step = MachineEnds(lost.database, Settings(market_list_lag=lag))
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, scheduled_time=datetime.now(UTC))
    await environment.run(step.stop, _market(pods), await _row(lost), None)


def _ended(billed: int | None) -> Machine:
    return Machine(
        provider="own", id="pod-1", name="p.1", state=MachineState.ENDED, billed=billed,
        ended_at=datetime.now(UTC), simulated=True,
    )  # fmt: skip


HOUR = timedelta(hours=1)
AT_ONCE = timedelta()


@pytest.mark.parametrize("found", [None, _ended(None)])
async def test_the_bill_of_a_machine_is_waited_for_as_long_as_lists_may_lag(
    lost: Ledger, found: Machine | None
):
    await lost.rows("UPDATE machines SET machine_id = 'pod-1'")
    with pytest.raises(MarketAwayError):
        await _stop(lost, Pods(found), HOUR)
    assert await lost.value("SELECT state FROM machines") == "READY"
    await _stop(lost, Pods(_ended(16_000_000)), HOUR)
    assert await lost.value("SELECT spent FROM orders") == 16_000_000
    assert await lost.value("SELECT state FROM machines") == "ENDED"


@pytest.mark.parametrize("found", [None, _ended(None)])
async def test_a_bill_that_never_comes_is_not_waited_for(lost: Ledger, found: Machine | None):
    await lost.rows("UPDATE machines SET machine_id = 'pod-1'")
    await _stop(lost, Pods(found), AT_ONCE)
    assert await lost.value("SELECT state FROM machines") == "ENDED"


@pytest.mark.parametrize(
    ("by_use", "hours_ago", "hours"), [(True, None, 3), (True, 1, 2), (True, 9, 0), (False, 1, 3)]
)
async def test_a_machine_ends_when_its_market_says_or_else_now(
    lost: Ledger, by_use: bool, hours_ago: int | None, hours: int
):
    await lost.rows("UPDATE machines SET created_at = now() - interval '3 hours'")
    await lost.rows("UPDATE orders SET is_machine = :by_use", by_use=by_use)
    ended_at = None if hours_ago is None else datetime.now(UTC) - hours_ago * HOUR
    found = _ended(None).model_copy(update={"ended_at": ended_at})
    assert await MachineEnds(lost.database, Settings(market_list_lag=AT_ONCE)).record(
        await _row(lost), found
    )
    ran = await lost.value("SELECT ended_at - created_at FROM machines")
    assert abs(ran - hours * HOUR) < timedelta(minutes=1)


async def test_a_block_whose_machine_has_ended_is_looked_at_once_its_bill_may_be_told(
    lost: Ledger, monkeypatch: pytest.MonkeyPatch
):
    option = PurchaseOption(
        provider="own", instance_type="8xH100", gpus_per_node=8, length=HOUR, limit=1
    )
    request = PurchaseRequest(pool=lost.pool, options=(option,)).model_dump_json()
    await lost.rows("UPDATE purchases SET request = CAST(:request AS jsonb)", request=request)
    await lost.rows("UPDATE machines SET machine_id = 'pod-1'")
    found = _ended(None)
    monkeypatch.setattr(registry, "connect", lambda *_: Pods(found))
    steps = BlockActivities(lost.database, lost.temporal, Settings(market_list_lag=HOUR / 60))
    look = await lost.run(steps.look_at_block, BlockRef(block_id="p.1"))
    assert found.ended_at is not None
    assert (look.over, look.look_at) == (False, found.ended_at + HOUR / 60)


@pytest.mark.parametrize(
    ("error", "traceback"),
    [(ValueError("an odd answer"), True), (MarketAwayError("own", "away"), False)],
)
async def test_a_block_is_decided_about_without_prices_and_the_fault_is_logged(
    lost: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    traceback: bool,
):
    async def no_prices(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(block_decisions, "with_markets", no_prices)
    steps = BlockDecisionActivities(lost.database, lost.temporal, Settings())
    verdict = await lost.run(steps.decide_block, BlockRef(block_id="p.1"))
    assert verdict.kind is BlockOptionKind.KEEP
    (record,) = [each for each in caplog.records if "block p.1: no prices" in each.getMessage()]
    assert (record.exc_info is not None) is traceback


async def test_a_machine_that_is_listed_under_another_name_is_found_by_its_order(lost: Ledger):
    order = Order(provider="own", id="pod-7", state=OrderState.FILLED, nodes=1)
    pods = Pods(_ended(1), order)
    await _stop(lost, pods, HOUR)
    assert pods.stopped == ["pod-7"]


async def _row(ledger: Ledger) -> Any:
    async with ledger.database.transaction() as connection:
        return (await connection.execute(text("SELECT * FROM machines"))).mappings().one()


async def _why(ledger: Ledger, job: str) -> str:
    """Return why a job waits that comes now."""
    await ledger.enqueue(job, gpus=2)
    await ledger.cycle(f"{ledger.pool}/{job}")
    reason = await ledger.value("SELECT decision ->> 'reason' FROM queue WHERE job_id = :id",
                                id=job)  # fmt: skip
    return str(reason).rsplit("; ", 1)[-1]
