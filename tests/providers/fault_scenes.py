"""Scenes of the faults of the simulated market: what the real clients make of each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from longshore.activities.providers.http import Patience
from longshore.activities.providers.prime import Prime
from longshore.activities.providers.sfcompute import SFCompute
from longshore.models.errors import (
    AnswerError,
    CredentialsError,
    FundsError,
    InvalidOrderError,
    MarketAwayError,
    MarketError,
)
from longshore.models.market import (
    MachineRequest,
    MachineState,
    NoQuote,
    OrderBook,
    OrderState,
    Preview,
)
from longshore.simulation.market.faults import BOTH, FOREVER, PRIME
from longshore.simulation.market.faults import SFCOMPUTE as SFC
from longshore.simulation.market.market import Market as SimulatedMarket
from longshore.simulation.market.server import MarketServer
from tests.providers.contract import SCRIPT, TYPE, Market
from tests.providers.told import Sleeps
from tests.support.market_contract import QUICK, Control, Room, access_to

CREATE = {SFC: "POST /orders", PRIME: "POST /pods/"}
AWAY = {"unavailable": 503, "server_error": 500, "bare_error": 503, "old_error": 503}


@dataclass(frozen=True)
class Shop(Market):
    """A market, its inside, and a client that does not really wait."""

    control: Control
    simulated: SimulatedMarket
    server: MarketServer
    room: Room
    sleeps: Sleeps

    @property
    def name(self) -> str:
        return self.provider.name

    def made(self) -> set[str]:
        """Return the ids of all orders that came into being, whatever the client was told."""
        if self.name == SFC:
            return set(self.simulated.exchange.orders)
        return set(self.simulated.cloud.pods)

    def happened(self, fault: str) -> int:
        return self.simulated.world.faults.happened.get(fault, 0)

    async def fault_at(self, route: str, fault: str, times: int = 1) -> None:
        await self.control.fault(fault, times, route)

    async def machine_state(self, machine_id: str) -> MachineState:
        return (await self.provider.machine(machine_id)).state


Scene = Callable[[Shop, str], Awaitable[None]]
SCENES: dict[tuple[str, str], Scene] = {}
ROWS: list[str] = []
"""Of the table in docs/providers.md."""


def meets(faults: str, providers: tuple[str, ...], makes: str) -> Callable[[Scene], Scene]:
    """Mark a function that shows what clients make of one or more faults, and say it."""

    def keep(scene: Scene) -> Scene:
        names = faults.split()
        SCENES.update({(fault, provider): scene for fault in names for provider in providers})
        cells = (", ".join(f"`{name}`" for name in names), ", ".join(providers), makes)
        ROWS.append(f"| {' | '.join(cells)} |")
        return scene

    return keep


def client_of(
    provider: str,
    server: MarketServer,
    sleep: Callable[[float], Awaitable[object]],
    patience: Patience = QUICK,
) -> SFCompute | Prime:
    access = access_to(server)
    if provider == SFC:
        return SFCompute(access, patience=patience, sleep=sleep)
    return Prime(access, template="any", patience=patience, sleep=sleep)


@meets(
    "slow", BOTH, "waits for the answer; asks again when it takes too long. An order is one order"
)
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    await shop.control.knobs(slow_seconds=0.01)
    assert (await shop.provider.account()).id
    assert shop.sleeps == []
    await shop.control.knobs(slow_seconds=0.9)
    patience = replace(QUICK, each=0.45)
    hasty = client_of(shop.name, shop.server, shop.sleeps, patience)
    await shop.fault_at("GET /me" if shop.name == SFC else "GET /user/whoami", fault)
    assert (await hasty.account()).id
    assert shop.sleeps
    request = await shop.request()
    await shop.fault_at(shop.create_route, fault)
    order = await hasty.order(request)
    assert shop.made() == {order.id}
    await hasty.aclose()


@meets(
    "dropped", BOTH,
    "reads again; an order, pool or machine whose answer was lost is found, and is one. "
    "`MarketAwayError` when no answer comes, `uncertain` for an order",
)  # fmt: skip
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    assert (await shop.provider.account()).id
    await shop.control.fault(fault, FOREVER)
    with pytest.raises(MarketAwayError, match="broke off") as raised:
        await shop.provider.orders()
    assert (raised.value.status, raised.value.uncertain) == (None, False)
    await shop.control.clear_faults()
    request = await shop.request()
    await shop.control.fault(fault, FOREVER, shop.create_route)
    if shop.name == SFC:
        with pytest.raises(MarketAwayError) as raised:
            await shop.provider.order(request)
        assert raised.value.uncertain
        assert len(shop.made()) == 1
    else:
        await shop.provider.order(request)
    await shop.control.clear_faults()
    assert {(await shop.provider.order(request)).id} == shop.made()
    if shop.name == SFC:
        await lost_pool_and_machine(shop, fault)


async def lost_pool_and_machine(shop: Shop, fault: str) -> None:
    await shop.fault_at("POST /pools", fault)
    pool = await shop.provider.make_account("lost")
    named = [each.id for each in shop.simulated.instances.pools.values() if each.name == "lost"]
    assert named == [pool]
    await shop.fault_at("POST /instances", fault)
    machine = await shop.start()
    assert [each.id for each in await shop.provider.machines()].count(machine.id) == 1
    await shop.fault_at("POST /instances/{id}/terminate", fault)
    await shop.provider.stop_machine(machine.id)
    assert await shop.machine_state(machine.id) is MachineState.ENDED


@meets(
    "malformed_json", BOTH,
    "`AnswerError` for what is read; an order is looked for, or sent again under its key",
)  # fmt: skip
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    with pytest.raises(AnswerError, match="is no JSON"):
        await shop.provider.account()
    request = await shop.request()
    await shop.fault_at(shop.create_route, fault)
    order = await shop.provider.order(request)
    assert (shop.made(), order.key) == ({order.id}, request.key)


@meets(
    "rate_limited", BOTH,
    "waits as long as it asks for; `MarketAwayError` with `retry_after` when it goes on",
)  # fmt: skip
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    assert (await shop.provider.account()).id
    (waited,) = shop.sleeps
    assert 1 <= waited <= 1 + QUICK.first_wait
    request = await shop.request()
    await shop.control.fault(fault, FOREVER, shop.create_route)
    with pytest.raises(MarketAwayError) as raised:
        await shop.provider.order(request)
    told = raised.value
    assert (told.status, told.retry_after, told.uncertain) == (429, 1, False)
    assert shop.made() == set()


async def away(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault, 2)
    assert (await shop.provider.account()).id
    assert len(shop.sleeps) == 2
    await shop.control.fault(fault, FOREVER)
    with pytest.raises(MarketAwayError) as raised:
        await shop.provider.instance_types()
    assert (raised.value.status, raised.value.uncertain) == (AWAY[fault], False)
    await shop.control.clear_faults()
    request = await shop.request()
    await shop.control.fault(fault, FOREVER, shop.create_route)
    with pytest.raises(MarketAwayError) as raised:
        await shop.provider.order(request)
    assert (raised.value.status, raised.value.uncertain) == (AWAY[fault], True)
    if fault in ("bare_error", "old_error"):
        assert "simulated: " in str(raised.value)  # its words are found in every shape
    assert shop.made() == set()
    await shop.control.clear_faults()
    assert {(await shop.provider.order(request)).id} == shop.made()


_MAKES = "asks again; `MarketAwayError` when it goes on, `uncertain` for an order"
meets("unavailable server_error", BOTH, _MAKES)(away)
meets("bare_error old_error", (SFC,), _MAKES)(away)


@meets("unauthorized forbidden", BOTH, "`CredentialsError` at once; it names the setting")
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault, 2)
    with pytest.raises(CredentialsError, match=f"LONGSHORE_{shop.name.upper()}_TOKEN") as raised:
        await shop.provider.account()
    assert raised.value.status == (401 if fault == "unauthorized" else 403)
    assert shop.server.token not in str(raised.value)
    assert (shop.happened(fault), shop.sleeps) == (1, [])


async def refused(shop: Shop, fault: str, kind: type[MarketError], status: int, said: str) -> None:
    """An order is refused once, nothing comes of it, and the same key works afterwards."""
    request = await shop.request()
    await shop.control.fault(fault)
    with pytest.raises(kind, match=said) as raised:
        await shop.provider.order(request)
    assert (type(raised.value), raised.value.status) == (kind, status)
    assert (shop.made(), shop.happened(fault)) == (set(), 1)
    assert {(await shop.provider.order(request)).id} == shop.made()


@meets("funds", BOTH, "`FundsError`")
async def _(shop: Shop, fault: str) -> None:
    await refused(shop, fault, FundsError, 402, "balance.*too low")


@meets(
    "list_lag", BOTH,
    "knows what it made itself; what it may have made is looked for until lists have caught up",
)  # fmt: skip
async def _(shop: Shop, fault: str) -> None:
    request = await shop.request()
    await shop.fault_at(shop.create_route, "dropped")
    await shop.control.fault(fault, 2)
    order = await shop.provider.order(request)
    await shop.control.fault(fault)
    assert (await shop.provider.order(request)).id == order.id
    assert shop.made() == {order.id}
    await shop.control.fault(fault)
    assert await shop.provider.orders() == []
    assert [each.id for each in await shop.provider.orders()] == [order.id]
    if shop.name == SFC:
        await lagging_pools_and_machines(shop, fault)


async def lagging_pools_and_machines(shop: Shop, fault: str) -> None:
    pool = await shop.provider.make_account("lagging")
    await shop.control.fault(fault)
    assert await shop.provider.make_account("lagging") == pool
    machine = await shop.start()
    await shop.control.fault(fault)
    again = await shop.provider.start_machine(
        MachineRequest(
            name=machine.name, account=machine.account or "", instance_type=str(TYPE),
            startup_script=SCRIPT,
        )
    )  # fmt: skip
    assert again.id == machine.id
    assert len(shop.simulated.instances.by_id) == 1


@meets("unknown_status", BOTH, "never final, never READY; `native_state` has the word")
async def _(shop: Shop, fault: str) -> None:
    order = await shop.provider.order(await shop.request())
    await shop.control.fault(fault)
    odd = await shop.provider.order_by_id(order.id)
    assert (odd.state, odd.native_state.lower()) == (OrderState.PENDING, "reticulating")
    assert (await shop.settled(order.id)).state is OrderState.FILLED
    machine = await shop.start()
    await shop.reached(machine.id, MachineState.READY)
    await shop.control.fault(fault)
    assert await shop.machine_state(machine.id) is MachineState.STARTING
    assert await shop.machine_state(machine.id) is MachineState.READY


@meets("notice", BOTH, "ENDED at once by the market's word; the agent gets SIGTERM, then goes")
async def _(shop: Shop, fault: str) -> None:
    machine = await shop.start()
    await shop.reached(machine.id, MachineState.READY)
    assert shop.room.running == {machine.id: SCRIPT}
    await shop.control.fault(fault)
    await shop.provider.stop_machine(machine.id)
    assert await shop.machine_state(machine.id) is MachineState.ENDED
    assert shop.room.asked_to_stop == {machine.id: True}


@meets("machine_silent", BOTH, "READY by the market's word: only an agent that registers is proof")
async def _(shop: Shop, fault: str) -> None:
    """No client can see it. The machine gets no script, so no agent of it ever registers."""
    await shop.control.fault(fault)
    machine = await shop.start()
    await shop.reached(machine.id, MachineState.READY)
    assert shop.room.running == {machine.id: None}


@meets("order_invalid", (SFC,), "`InvalidOrderError` with a line for each field")
async def _(shop: Shop, fault: str) -> None:
    said = "\nallocation_schedule_delta: the fault order_invalid"
    await refused(shop, fault, InvalidOrderError, 422, said)


@meets("order_rejected", (SFC,), "order REJECTED, without fills")
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    order = await shop.settled((await shop.provider.order(await shop.request())).id)
    assert (order.state, order.fills) == (OrderState.REJECTED, ())


@meets("order_unfilled", (SFC,), "order CANCELLED, without fills")
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    order = await shop.settled((await shop.provider.order(await shop.request())).id)
    assert (order.state, order.fills) == (OrderState.CANCELLED, ())


@meets("order_partial", (SFC,), "order PARTIAL, then CANCELLED; its fills and their cost count")
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    request = await shop.request(partial=True, nodes=2)
    placed = await shop.provider.order(request)
    settle = timedelta(seconds=shop.simulated.world.knobs.settle_seconds)
    await shop.control.advance(settle)
    part = await shop.provider.order_by_id(placed.id)
    assert (part.state, sum(fill.nodes for fill in part.fills)) == (OrderState.PARTIAL, 1)
    order = await shop.settled(placed.id)
    assert (order.state, order.fills) == (OrderState.CANCELLED, part.fills)
    paid = shop.simulated.options.balance - shop.simulated.ledger.balance
    assert sum(fill.cost or 0 for fill in order.fills) == paid > 0


@meets("cancel_race", (SFC,), "order CANCELLED with fills, or FILLED: read until it is final")
async def _(shop: Shop, fault: str) -> None:
    for partial, state, nodes in (
        (True, OrderState.CANCELLED, 1),
        (False, OrderState.FILLED, 2),
    ):
        request = await shop.request(standing=True, partial=partial, nodes=2, limit=1000)
        placed = await shop.provider.order(request)
        await shop.control.fault(fault)
        await shop.provider.cancel_order(placed.id)
        order = await shop.settled(placed.id)
        assert (order.state, sum(fill.nodes for fill in order.fills)) == (state, nodes)
        await shop.provider.cancel_order(placed.id)


@meets("cursor_missing cursor_repeated", (SFC,), "`AnswerError` in place of a list without an end")
async def _(shop: Shop, fault: str) -> None:
    placed = [(await shop.provider.order(await shop.request())).id for _ in range(2)]
    await shop.control.fault(fault, 2)
    with pytest.raises(AnswerError, match=r"no cursor|a cursor twice"):
        await shop.provider.orders()
    await shop.control.clear_faults()
    if fault == "cursor_repeated":  # once is a page that is shown again: its rows count once
        await shop.control.fault(fault)
    assert [order.id for order in await shop.provider.orders()] == placed[::-1]


@meets(
    "machine_falls_silent",
    (SFC,),
    "READY by the market's word; its block [stops it](purchases.md#time-that-is-paid-for) after"
    " a while",
)
async def _(shop: Shop, fault: str) -> None:
    machine = await shop.start()
    await shop.reached(machine.id, MachineState.READY)
    await shop.control.fault(fault)
    assert await shop.machine_state(machine.id) is MachineState.READY
    assert shop.room.running == {}


@meets("maintenance", (SFC,), "a notice in the `Preview`")
async def _(shop: Shop, fault: str) -> None:
    request = await shop.request()
    await shop.control.fault(fault)
    preview = await shop.provider.preview(request)
    assert isinstance(preview, Preview)
    assert [notice.partition(":")[0] for notice in preview.notices] == ["Simulated maintenance"]
    again = await shop.provider.preview(request)
    assert isinstance(again, Preview)
    assert again.notices == ()


@meets("instance_failed", (SFC,), "machine FAILED; the bought time stays for another")
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    machine = await shop.start()
    failed = await shop.reached(machine.id, MachineState.FAILED)
    wanted = MachineRequest(
        name=shop.key(), account=failed.account or "", instance_type=str(TYPE),
        startup_script=SCRIPT,
    )  # fmt: skip
    other = await shop.provider.start_machine(wanted)
    await shop.reached(other.id, MachineState.READY)


@meets("price_spike", BOTH, "a dearer book; an order at the limit of before buys nothing")
async def _(shop: Shop, fault: str) -> None:
    best = min([ask.price for ask in await asks(shop)])
    request = await shop.request(**({"limit": best} if shop.name == SFC else {}))
    await shop.control.fault(fault)
    assert min([ask.price for ask in await asks(shop)]) > 1.5 * best
    if shop.name == SFC:
        order = await shop.settled((await shop.provider.order(request)).id)
        assert (order.state, order.fills) == (OrderState.CANCELLED, ())
        return
    quote = await shop.provider.preview(request)
    assert isinstance(quote, NoQuote) or quote.price > request.limit
    with pytest.raises(InvalidOrderError, match="over max_price"):
        await shop.provider.order(request)
    assert shop.made() == set()


async def asks(shop: Shop):
    book = await shop.provider.book(TYPE, await shop.window())
    assert isinstance(book, OrderBook)
    return book.asks
