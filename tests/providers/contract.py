"""What every provider must do, whatever market it speaks to.

A class of tests inherits `ProviderContract` and has a fixture `market`: a client, and the controls
of a market that has stock of `TYPE`. What is asked follows from the client's capabilities.
"""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import pytest

from longshore.activities.providers.base import Provider
from longshore.models.errors import (
    CredentialsError,
    FundsError,
    GoneError,
    InvalidOrderError,
)
from longshore.models.market import (
    InstanceType,
    Machine,
    MachineRequest,
    MachineState,
    NoQuote,
    NoQuoteReason,
    Order,
    OrderBook,
    OrderRequest,
    OrderState,
    Preview,
    Side,
    Window,
)

TYPE = InstanceType.parse("8xH100")
SCRIPT = "#!/bin/sh\nexec longshore agent\n"
_names = itertools.count(1)


class MarketControl(Protocol):
    """What a test may do to a market behind the client's back."""

    async def now(self) -> datetime:
        """Return the market's own time."""
        ...

    async def advance(self, by: timedelta) -> None: ...

    async def fault(self, name: str, times: int = 1, route: str | None = None) -> None:
        """Have something go wrong: dropped, rate_limited, server_error, unauthorized, funds,
        unknown_status. `route` is a method and path of the market's API."""
        ...


@dataclass(frozen=True)
class Market:
    provider: Provider
    control: MarketControl
    create_route: str
    """Method and path on which orders are placed."""

    def key(self) -> str:
        return f"contract-{next(_names)}"

    async def window(self, hours: int = 2) -> Window:
        """Return whole hours from the next one on."""
        hour = (await self.control.now()).replace(minute=0, second=0, microsecond=0)
        start = hour + timedelta(hours=1)
        return Window(start=start, end=start + timedelta(hours=hours))

    async def request(self, **changed: Any) -> OrderRequest:
        """Return an order that should come true: at the dearest ask, or of the cheapest offer."""
        fields: dict[str, Any] = {"key": self.key(), "instance_type": str(TYPE), "nodes": 1}
        if self.provider.capabilities.fixed_window:
            fields["window"] = window = changed.get("window") or await self.window()
            book = await self.provider.book(TYPE, window)
            assert isinstance(book, OrderBook)
            fields["limit"] = max(ask.price for ask in book.asks)
            fields["account"] = await self.provider.make_account("contract")
        else:
            kept = [offer for offer in await self.provider.offers(TYPE) if not offer.spot]
            offer = next(offer for offer in kept if not (offer.prepaid or offer.unusable))
            fields |= {"offer": offer, "limit": offer.price, "startup_script": SCRIPT}
        return OrderRequest.model_validate({**fields, **changed})

    async def settled(self, order_id: str) -> Order:
        """Let market time pass until an order is filled or over."""
        return await self._until(
            lambda: self.provider.order_by_id(order_id),
            lambda order: order.state.final or order.state is OrderState.FILLED,
        )

    async def reached(self, machine_id: str, state: MachineState) -> Machine:
        """Let market time pass until a machine is in a state."""
        return await self._until(
            lambda: self.provider.machine(machine_id), lambda machine: machine.state is state
        )

    async def start(self) -> Machine:
        """Return a machine of a filled order; its start is repeated with the same name."""
        request = await self.request(key=self.key())
        order = await self.settled((await self.provider.order(request)).id)
        if not self.provider.capabilities.fixed_window:
            return await self.provider.machine(order.id)
        assert request.account
        assert request.window
        await self.control.advance(request.window.start - await self.control.now())
        wanted = MachineRequest(
            name=self.key(), account=request.account, instance_type=str(TYPE),
            startup_script=SCRIPT,
        )  # fmt: skip
        machine = await self.provider.start_machine(wanted)
        assert (await self.provider.start_machine(wanted)).id == machine.id
        return machine

    async def _until(self, read: Callable[[], Awaitable[Any]], done: Callable[[Any], bool]) -> Any:
        found = await read()
        for _ in range(60):
            if done(found):
                return found
            await self.control.advance(timedelta(seconds=30))
            found = await read()
        raise AssertionError(f"still {found!r} after half an hour of the market's time")


class ProviderContract:
    """Inherit it with a fixture `market`."""

    async def test_the_account_can_be_read(self, market: Market):
        account = await market.provider.account()
        assert account.provider == market.provider.name
        assert account.id
        assert account.balance is not None
        assert account.balance > 0
        assert account.simulated

    async def test_the_types_are_known(self, market: Market):
        kinds = await market.provider.instance_types()
        assert any(TYPE.takes(kind) for kind in kinds)
        assert len({str(kind) for kind in kinds}) == len(kinds)

    async def test_there_is_a_book(self, market: Market):
        book = await market.provider.book(TYPE, await market.window())
        assert isinstance(book, OrderBook)
        assert book.asks
        assert book.simulated
        assert book.provider == market.provider.name
        prices = [ask.price for ask in book.asks]
        assert prices == sorted(prices)
        assert min(prices) > 100_000  # a GPU-hour costs more than ten cents
        assert all(ask.gpus >= book.lot for ask in book.asks)

    async def test_a_type_that_nobody_trades_has_no_quote(self, market: Market):
        quote = await market.provider.book(InstanceType.parse("3xABACUS"))
        assert isinstance(quote, NoQuote)
        assert quote.reason is NoQuoteReason.UNKNOWN_TYPE

    async def test_offers_are_there_where_they_are_promised(self, market: Market):
        offers = await market.provider.offers()
        assert bool(offers) is market.provider.capabilities.offer_list
        assert [o.price for o in offers] == sorted(o.price for o in offers)
        assert len({o.id for o in offers}) == len(offers)

    async def test_a_preview_says_what_an_order_would_cost(self, market: Market):
        request = await market.request()
        preview = await market.provider.preview(request)
        assert isinstance(preview, Preview)
        assert 0 < preview.price <= request.limit
        assert preview.simulated

    async def test_an_order_comes_true_at_its_limit_or_better(self, market: Market):
        request = await market.request()
        placed = await market.provider.order(request)
        assert placed.key == request.key
        order = await market.settled(placed.id)
        assert order.state is OrderState.FILLED
        assert sum(fill.nodes for fill in order.fills) == 1
        assert all(0 < fill.price <= request.limit for fill in order.fills)
        assert order.simulated
        assert order.id in {each.id for each in await market.provider.orders()}

    async def test_the_same_key_again_is_the_same_order(self, market: Market):
        request = await market.request()
        first = await market.provider.order(request)
        again = await market.provider.order(request)
        assert again.id == first.id
        before = {order.id for order in await market.provider.orders()}
        assert first.id in before
        await market.provider.order(request)
        assert {order.id for order in await market.provider.orders()} == before

    @pytest.mark.parametrize("trouble", ["dropped", "malformed_json"])
    async def test_an_order_whose_answer_was_lost_is_one_order(self, market: Market, trouble: str):
        request = await market.request()
        before = {order.id for order in await market.provider.orders()}
        await market.control.fault(trouble, route=market.create_route)
        order = await market.provider.order(request)
        after = {order.id for order in await market.provider.orders()}
        assert after - before == {order.id}

    async def test_a_key_is_looked_up_or_the_order_can_be_repeated(self, market: Market):
        assert await market.provider.find_order("contract-never-sent") is None
        placed = await market.provider.order(await market.request())
        found = await market.provider.find_order(placed.key or "")
        if found is None:
            assert market.provider.capabilities.idempotent
        else:
            assert found.id == placed.id

    async def test_an_order_below_the_market_buys_nothing(self, market: Market):
        request = await market.request(limit=1000)
        if not market.provider.capabilities.fixed_window:
            with pytest.raises(InvalidOrderError):
                await market.provider.order(request)
            return
        order = await market.settled((await market.provider.order(request)).id)
        assert order.state is OrderState.CANCELLED
        assert order.fills == ()

    async def test_a_standing_order_is_cancelled_once_and_twice(self, market: Market):
        window = market.provider.capabilities.fixed_window
        changed = {"standing": True, "limit": 1000} if window else {}
        placed = await market.provider.order(await market.request(**changed))
        await market.provider.cancel_order(placed.id)
        order = await market.settled(placed.id)
        assert order.state is OrderState.CANCELLED
        await market.provider.cancel_order(placed.id)

    async def test_a_machine_is_started_once_and_stopped(self, market: Market):
        machine = await market.start()
        ready = await market.reached(machine.id, MachineState.READY)
        assert ready.gpus == TYPE.gpus
        assert ready.simulated
        assert machine.id in {each.id for each in await market.provider.machines()}
        await market.provider.stop_machine(machine.id)
        ended = await market.reached(machine.id, MachineState.ENDED)
        assert ended.id == machine.id
        assert machine.id not in {each.id for each in await market.provider.machines()}
        await market.provider.stop_machine(machine.id)

    async def test_an_account_of_a_name_is_one(self, market: Market):
        if not market.provider.capabilities.fixed_window:
            with pytest.raises(InvalidOrderError):
                await market.provider.make_account("contract-place")
            return
        first = await market.provider.make_account("contract-place")
        assert await market.provider.make_account("contract-place") == first

    async def test_bought_time_can_be_sold_where_that_is_promised(self, market: Market):
        if not market.provider.capabilities.resellable:
            with pytest.raises(InvalidOrderError):
                await market.provider.order(await market.request(side=Side.SELL))
            return
        bought = await market.request()
        await market.settled((await market.provider.order(bought)).id)
        sale = bought.model_copy(
            update={"key": market.key(), "side": Side.SELL, "standing": True, "limit": 10**9}
        )
        order = await market.provider.order(sale)
        assert order.side is Side.SELL
        await market.provider.cancel_order(order.id)
        assert (await market.settled(order.id)).state is OrderState.CANCELLED

    async def test_what_nobody_knows_has_gone(self, market: Market):
        with pytest.raises(GoneError):
            await market.provider.order_by_id("never-was")
        with pytest.raises(GoneError):
            await market.provider.machine("never-was")
        with pytest.raises(GoneError):
            await self._cancel_unknown(market)
        await market.provider.stop_machine("never-was")

    async def _cancel_unknown(self, market: Market) -> None:
        await market.provider.cancel_order("never-was")
        if not market.provider.capabilities.fixed_window:
            raise GoneError("", "where an order is a machine, ending what has gone is no error")

    @pytest.mark.parametrize("trouble", ["rate_limited", "unavailable", "server_error"])
    async def test_passing_trouble_is_waited_out(self, market: Market, trouble: str):
        await market.control.fault(trouble, 2 if trouble != "rate_limited" else 1)
        assert (await market.provider.account()).id

    async def test_refusals_have_their_kinds(self, market: Market):
        request = await market.request()
        for fault, kind in (("unauthorized", CredentialsError), ("forbidden", CredentialsError)):
            await market.control.fault(fault)
            with pytest.raises(kind):
                await market.provider.account()
        await market.control.fault("funds", route=market.create_route)
        with pytest.raises(FundsError):
            await market.provider.order(request)

    async def test_a_state_that_nobody_knows_is_not_final(self, market: Market):
        placed = await market.provider.order(await market.request())
        await market.control.fault("unknown_status")
        order = await market.provider.order_by_id(placed.id)
        assert not order.state.final
        assert order.native_state
        assert (await market.settled(placed.id)).state is OrderState.FILLED
