"""Something is killed at each step of a purchase and of a block: one purchase, and no more.

Afterwards the ledger is what the market says that it was paid, and nothing runs there that nobody
here knows. A few of the cases run always, all of them with `make faults`.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, get_args

import pytest

from activities.failpoints import BuyingPoint
from models.messages import CONTROL_TASK_QUEUE, CommandReason
from models.purchase import PurchaseOption, PurchaseRequest, purchase_workflow_id
from models.settings import MarketInfo
from simulation.market.background import Profile
from simulation.market.nodes import AgentRoom
from tests.buying.buyer import an_offer, block_option, differences, pod_option
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet, running_fleet
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket, running_market
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

BLOCK, POD = "block", "pod"
LATER = ("clear_block", "stop_machines", "close_block")
"""Steps of the end of a block."""
OF_A_POD = (
    "open_purchase", "intend_order", "place_order", "await_agents", "settle_purchase", *LATER,
)  # fmt: skip
ALWAYS = {
    ("place_order.after-call", CONTROL, BLOCK),
    ("place_order.after-call", CONTROL, POD),
    ("start_machine.after-call", CONTROL, BLOCK),
    ("stop_machines.after-call", CONTROL, POD),
    ("close_block.before-commit", POSTGRES, BLOCK),
}
ALSO_OF = ("place_order.before-call", "look_at_order.after-call", "close_block.before-commit")
"""Here the servers are killed too."""


def _cases() -> list[object]:
    cases = [
        (point, victim, what)
        for point in get_args(BuyingPoint)
        for what in (BLOCK, POD)
        for victim in (CONTROL, *((POSTGRES, TEMPORAL) if point in ALSO_OF else ()))
        if what == BLOCK or point.startswith(OF_A_POD)
    ]
    assert set(cases) >= ALWAYS
    return [
        pytest.param(
            *case, id="-".join(case), marks=() if case in ALWAYS else pytest.mark.exhaustive
        )
        for case in cases
    ]


@pytest.fixture(scope="module")
def market() -> Any:
    with temporary_folder() as folder:
        room = AgentRoom(folder)
        try:
            with running_market(Profile.CALM, speed=1.0, machines=room, balance=10**12) as market:
                market.knobs(instance_start_seconds=0, pod_start_seconds=1, spot_loss_per_hour=0)
                yield market
        finally:
            room.clear()


@pytest.fixture(scope="module")
async def buyers(market: RunningMarket) -> AsyncIterator[Fleet]:
    """A stack without nodes of its own, whose control worker buys at the market."""
    os.environ["LONGSHORE_MARKET_LIST_LAG"] = "3s"
    with temporary_folder() as folder:
        info = MarketInfo(url=market.url, token=market.token, pid=os.getpid())
        (folder / "market.json").write_text(info.model_dump_json())
        try:
            async with running_fleet(folder, nodes=0) as fleet:
                yield fleet
        finally:
            del os.environ["LONGSHORE_MARKET_LIST_LAG"]


@pytest.mark.parametrize(("point", "victim", "what"), _cases())
async def test_one_purchase_and_no_more(
    buyers: Fleet, market: RunningMarket, point: BuyingPoint, victim: str, what: str
):
    market.book({"side": "sell", "dollars_per_gpu_hour": "2.10", "nodes": 8})
    before = market.state()
    pool = f"buys-{uuid.uuid4().hex[:8]}"
    option = block_option() if what == BLOCK else pod_option(await an_offer(market))
    if not point.startswith(LATER):
        buyers.arm(point)
    try:
        purchase = await _start(buyers, pool, option)
        if not point.startswith(LATER):
            await _kill_at(buyers, point, victim)
        await eventually(lambda: _is_ready(buyers, purchase), timeout=PATIENCE, interval=0.2)
        if point.startswith(LATER):
            buyers.arm(point)
        await _let_go(buyers, purchase)
        if point.startswith(LATER):
            await _kill_at(buyers, point, victim)
        await eventually(lambda: _has_ended(buyers, purchase), timeout=PATIENCE, interval=0.2)
    finally:
        buyers.let_go(point)
        await asyncio.to_thread(buyers.start_what_is_missing)

    async def rows(statement: str) -> list[dict[str, Any]]:
        return buyers.rows(statement)

    wrong = await differences(rows, pool, before, market.state())
    assert not wrong, "\n".join(wrong)
    bought = "SELECT key FROM purchase_orders WHERE purchase_id = %s AND nodes > 0"
    assert len(buyers.rows(bought, purchase)) == 1
    assert len(buyers.rows("SELECT name FROM machines WHERE purchase_id = %s", purchase)) == 1


async def _start(fleet: Fleet, pool: str, option: PurchaseOption) -> str:
    purchase = f"p-{uuid.uuid4().hex[:8]}"
    request = PurchaseRequest(pool=pool, options=(option,), ready_within=timedelta(seconds=60))
    await fleet.longshore.temporal.start_workflow(
        "PurchaseWorkflow", request, id=purchase_workflow_id(purchase),
        task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    return purchase


async def _kill_at(fleet: Fleet, point: BuyingPoint, victim: str) -> None:
    """Wait until the control worker has stopped at the point, and kill the victim exactly then."""
    await fleet.reached(point)
    await asyncio.to_thread(fleet.kill, victim)
    fleet.let_go(point)
    await asyncio.to_thread(fleet.start_what_is_missing)


async def _let_go(fleet: Fleet, purchase: str) -> None:
    for row in fleet.rows("SELECT id FROM blocks WHERE purchase_id = %s", purchase):
        handle = fleet.longshore.temporal.get_workflow_handle(f"block-{row['id']}")
        await handle.signal("let_go", CommandReason(reason="the test is over"))


def _is_ready(fleet: Fleet, purchase: str) -> bool:
    rows = fleet.rows("SELECT state, reason, buying FROM purchases WHERE id = %s", purchase)
    assert [(row["state"], row["buying"]) for row in rows] == [("READY", False)], rows
    return True


def _has_ended(fleet: Fleet, purchase: str) -> bool:
    rows = fleet.rows("SELECT state, reason FROM purchases WHERE id = %s", purchase)
    assert [row["state"] for row in rows] == ["ENDED"], rows
    return True
