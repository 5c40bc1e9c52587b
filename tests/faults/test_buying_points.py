"""Something is killed at each step of a purchase and of a block: one purchase, and no more.

Afterwards the ledger is what the market says that it was paid, and nothing runs there that nobody
here knows. A few of the cases run always, all of them with `make faults`.
"""

import asyncio
import uuid
from typing import get_args

import pytest

from longshore.activities.failpoints import BuyingPoint
from tests.buying.buyer import block_option, pod_option, steady_offers
from tests.faults.buyers import disagreements
from tests.faults.cases import cases_of
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.faults.purchases import has_ended, is_ready, let_go, start_purchase
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

BLOCK, POD = "block", "pod"
LATER = ("clear_block", "stop_machines", "close_block")
"""Steps of the end of a block."""
OF_A_POD = (
    "open_purchase", "intend_order", "place_order", "await_agents", "settle_purchase", *LATER,
)  # fmt: skip
ALWAYS = {
    ("place_order.after-call", CONTROL, POD),
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
    return cases_of(cases, ALWAYS)


@pytest.mark.parametrize(("point", "victim", "what"), _cases())
async def test_one_purchase_and_no_more(
    buyers: Fleet, market: RunningMarket, point: BuyingPoint, victim: str, what: str
):
    market.book({"side": "sell", "dollars_per_gpu_hour": "2.10", "nodes": 8})
    before = market.state()
    pool = f"buys-{uuid.uuid4().hex[:8]}"
    # An offer may be gone when it is taken: then the next one is.
    pods = [pod_option(offer) for offer in (await steady_offers(market))[:3]]
    options = [block_option()] if what == BLOCK else pods
    if not point.startswith(LATER):
        buyers.arm(point)
    try:
        purchase = await start_purchase(buyers, pool, options)
        if not point.startswith(LATER):
            await _kill_at(buyers, point, victim)
        await eventually(lambda: is_ready(buyers, purchase), timeout=PATIENCE, interval=0.2)
        if point.startswith(LATER):
            buyers.arm(point)
        await let_go(buyers, purchase)
        if point.startswith(LATER):
            await _kill_at(buyers, point, victim)
        await eventually(lambda: has_ended(buyers, purchase), timeout=PATIENCE, interval=0.2)
    finally:
        buyers.let_go(point)
        await asyncio.to_thread(buyers.start_what_is_missing)

    wrong = await disagreements(buyers, market, pool, before)
    assert not wrong, "\n".join(wrong)
    bought = "SELECT key FROM orders WHERE purchase_id = %s AND nodes > 0"
    assert len(buyers.rows(bought, purchase)) == 1
    assert len(buyers.rows("SELECT name FROM machines WHERE purchase_id = %s", purchase)) == 1


async def _kill_at(fleet: Fleet, point: BuyingPoint, victim: str) -> None:
    """Wait until the control worker has stopped at the point, and kill the victim exactly then."""
    await fleet.reached(point)
    await asyncio.to_thread(fleet.kill, victim)
    fleet.let_go(point)
    await asyncio.to_thread(fleet.start_what_is_missing)
