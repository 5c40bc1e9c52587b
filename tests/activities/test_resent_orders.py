"""An order whose answer was lost is one order, whatever its market says when it is sent again."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from longshore.activities.buying import order_rows, sending
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.orders import OrderActivities
from longshore.activities.database import clock
from longshore.activities.providers import registry
from longshore.activities.views import set_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.errors import (
    FundsError,
    GoneError,
    MarketAwayError,
    MarketError,
    OrderConflictError,
)
from longshore.models.market import Fill, Order, OrderRequest, OrderState, Side, Window
from longshore.models.pool import PoolSpec
from longshore.models.purchase import OrderIntent, OrderRef, PurchaseOption, PurchaseRequest
from longshore.models.settings import Settings
from tests.support.ledger import Ledger

LAG = timedelta(seconds=0.2)
INTENT = OrderIntent(purchase_id="p-1", number=1, option=0, nodes=1, limit=2_000_000)


class Lagging:
    """A market that loses the answer to the first order, and whose list of accounts lags behind:
    each look for one makes another."""

    name = "sfcompute"

    def __init__(self) -> None:
        self.taken: dict[str, Order] = {}
        self.accounts = 0
        self.refuses: MarketError | None = None
        self.lists = True

    async def check_start(self, request: OrderRequest) -> None:
        pass

    async def make_account(self, name: str) -> str:
        self.accounts += 1
        return f"pool_{self.accounts}"

    async def order(self, request: OrderRequest) -> Order:
        if self.refuses is not None:
            raise self.refuses
        known = self.taken.get(request.key)
        if known is not None and known.account != request.account:
            raise _of_post(OrderConflictError, 409)
        if known is not None:
            return known
        self.taken[request.key] = _taken(request)
        raise MarketAwayError(self.name, "the answer broke off", uncertain=True)

    async def orders(self) -> list[Order]:
        return list(self.taken.values()) if self.lists else []

    async def aclose(self) -> None:
        pass


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch) -> Lagging:
    market = Lagging()
    monkeypatch.setattr(registry, "connect", lambda *_: market)
    monkeypatch.setattr(sending, "_LOOK_EVERY", 0.05)
    return market


Place = Callable[..., Any]


@pytest.fixture
async def place(ledger: Ledger) -> Place:
    """Stores an order of one node, and returns what sends it."""
    await _store(ledger)
    steps = OrderActivities(ledger.database, ledger.temporal, Settings(market_list_lag=LAG))

    async def place(attempt: int) -> Any:
        return await ledger.run(steps.place_order, OrderRef(key=INTENT.key), attempt=attempt)

    return place


async def test_an_order_is_sent_again_with_the_account_that_it_was_sent_with(
    ledger: Ledger, market: Lagging, place: Place
):
    with pytest.raises(ApplicationError, match="broke off"):
        await place(1)
    assert (await place(2)).nodes == 1
    (order,) = await ledger.rows("SELECT account, spent, refused FROM orders")
    assert (order["account"], order["refused"]) == ("pool_1", "")
    assert order["spent"] == 16_000_000
    assert market.accounts == 1


@pytest.mark.parametrize(
    "refused",
    [
        lambda: _of_post(FundsError, 402),
        lambda: _of_post(OrderConflictError, 409),
        lambda: GoneError("sfcompute", "8xH100 is not traded in isku_1 any more"),
    ],
)
@pytest.mark.parametrize("attempt", [2, sending.TRIES])
async def test_what_is_refused_when_it_is_sent_again_is_read_first(
    ledger: Ledger, market: Lagging, place: Place, refused: Any, attempt: int
):
    with pytest.raises(ApplicationError):
        await place(1)
    market.refuses = refused()
    assert (await place(attempt)).nodes == 1
    (order,) = await ledger.rows("SELECT state, order_id, refused FROM orders")
    assert (order["state"], order["order_id"], order["refused"]) == ("CLOSED", "o-1", "")


async def test_an_order_that_was_sent_before_its_account_was_stored_is_found_in_any(
    ledger: Ledger, market: Lagging, place: Place
):
    with pytest.raises(ApplicationError):
        await place(1)
    await ledger.rows("UPDATE orders SET account = NULL")
    assert (await place(2)).nodes == 1
    (order,) = await ledger.rows("SELECT account, order_id FROM orders")
    assert (order["account"], order["order_id"]) == ("pool_1", "o-1")


async def test_a_refusal_is_believed_once_the_list_that_lags_no_more_lacks_the_order(
    ledger: Ledger, market: Lagging, place: Place
):
    with pytest.raises(ApplicationError):
        await place(1)
    market.taken.clear()
    market.refuses = _of_post(FundsError, 402)
    assert "too little money" in (await place(2)).refused
    (order,) = await ledger.rows("SELECT state FROM orders")
    assert order["state"] == "CLOSED"


async def test_an_order_whose_key_its_market_knows_is_never_given_up(
    ledger: Ledger, market: Lagging, place: Place
):
    with pytest.raises(ApplicationError):
        await place(1)
    market.lists, market.refuses = False, _of_post(OrderConflictError, 409)
    with pytest.raises(ApplicationError, match="knows the key") as raised:
        await place(sending.TRIES)
    assert not raised.value.non_retryable
    (order,) = await ledger.rows("SELECT state FROM orders")
    assert order["state"] == "INTENT"


async def test_an_order_of_another_purchase_is_not_taken_for_it(
    ledger: Ledger, market: Lagging, place: Place
):
    with pytest.raises(ApplicationError):
        await place(1)
    market.refuses = _of_post(FundsError, 402)
    (taken,) = market.taken.values()
    market.taken = {"a": taken.model_copy(update={"nodes": 2}),
                    "b": taken.model_copy(update={"account": "pool_9"}),
                    "c": taken.model_copy(update={"side": Side.SELL}),
                    "d": taken.model_copy(update={"limit": 2_100_000}),
                    "e": taken.model_copy(update={"instance_type": "8xH200"})}  # fmt: skip
    assert "too little money" in (await place(2)).refused


async def test_an_order_that_may_be_another_s_is_taken_by_neither(
    ledger: Ledger, market: Lagging, place: Place
):
    with pytest.raises(ApplicationError):
        await place(1)
    await ledger.rows(
        """INSERT INTO orders (key, purchase_id, number, option, provider, request, is_machine,
                               gpus_per_node, state, committed, account, sent_at)
           SELECT 'p-1.2', purchase_id, 2, option, provider, request, is_machine, gpus_per_node,
                  state, committed, account, sent_at FROM orders"""
    )
    market.refuses = _of_post(FundsError, 402)
    with pytest.raises(ApplicationError, match="or another that was sent"):
        await place(2)
    # The other was told of it: what is left was never there.
    await ledger.rows("UPDATE orders SET order_id = 'o-1' WHERE key = 'p-1.2'")
    assert "too little money" in (await place(3)).refused


@pytest.mark.parametrize("kind", [OrderConflictError, FundsError])
async def test_an_order_of_an_unknown_account_is_found_however_often_it_is_tried(
    ledger: Ledger, market: Lagging, place: Place, kind: type[MarketError]
):
    with pytest.raises(ApplicationError):
        await place(1)
    await ledger.rows("UPDATE orders SET account = NULL")
    market.lists, market.refuses = False, _of_post(OrderConflictError, 409)
    with pytest.raises(ApplicationError, match="knows the key"):
        await place(2)
    market.lists, market.refuses = True, _of_post(kind, 409)
    assert (await place(3)).nodes == 1


async def test_the_list_is_waited_for_from_when_the_order_was_sent(
    ledger: Ledger, market: Lagging, place: Place
):
    with pytest.raises(ApplicationError):
        await place(1)
    await ledger.rows("UPDATE orders SET sent_at = sent_at - interval '2 hours'")
    market.taken.clear()
    market.refuses = _of_post(FundsError, 402)
    steps = OrderActivities(
        ledger.database, ledger.temporal, Settings(market_list_lag=timedelta(hours=1))
    )
    ref = OrderRef(key=INTENT.key)
    async with asyncio.timeout(20):
        assert "too little money" in (await ledger.run(steps.place_order, ref, attempt=2)).refused


async def _store(ledger: Ledger) -> None:
    option = PurchaseOption(
        provider="sfcompute", instance_type="8xH100", gpus_per_node=8, length=timedelta(hours=1),
        limit=2_000_000,
    )  # fmt: skip
    async with ledger.database.transaction() as connection:
        now = await clock(connection)
        window = Window(start=now, end=now + timedelta(hours=1))
        order = OrderRequest(
            key=INTENT.key, instance_type="8xH100", nodes=1, window=window, limit=2_000_000
        )
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True)))
        await rows.insert_purchase(
            connection, "p-1", PurchaseRequest(pool=ledger.pool, options=(option,))
        )
        await order_rows.insert_order(
            connection, INTENT, "sfcompute", order, 8, window.end, is_machine=False, now=now
        )


def _taken(request: OrderRequest) -> Order:
    assert request.window is not None
    fill = Fill(
        at=request.window.start, nodes=1, window=request.window, price=2_000_000, cost=16_000_000
    )
    return Order(
        provider="sfcompute", id="o-1", state=OrderState.FILLED, instance_type="8xH100", nodes=1,
        window=request.window, account=request.account, limit=request.limit - 7,
        fills=(fill,), simulated=True,
    )  # fmt: skip


def _of_post(kind: type[MarketError], status: int) -> MarketError:
    error = kind("sfcompute", "POST /orders was refused: too little money", status=status)
    error.creates = True
    return error
