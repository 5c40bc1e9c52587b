"""Both clients against the simulated market, which speaks both APIs over real HTTP."""

import os
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from activities.providers import registry
from activities.providers.access import Access
from activities.providers.http import Patience
from activities.providers.prime import Prime
from activities.providers.sfcompute import SFCompute
from models.market import MachineState, OrderBook, OrderState
from models.money import MICRO
from models.settings import MarketInfo, Settings
from simulation.market.market import Market as SimulatedMarket
from simulation.market.market import Options
from simulation.market.server import MarketServer
from tests.providers.contract import TYPE, Market, ProviderContract, utc

QUICK = Patience(first_wait=0.02, longest_wait=0.1, looks=3, look_every=0.05)


class Control:
    """The simulated market's own controls, for one provider."""

    def __init__(self, client: httpx.AsyncClient, provider: str) -> None:
        self._client = client
        self._provider = provider

    async def now(self) -> datetime:
        return utc((await self._said("GET", "/clock"))["now"])

    async def advance(self, by: timedelta) -> None:
        await self._said("POST", "/clock", advance_seconds=max(by.total_seconds(), 0))

    async def fault(self, name: str, times: int = 1, route: str | None = None) -> None:
        body = {"name": name, "times": times, "provider": self._provider, "route": route}
        await self._said("POST", "/faults", **body)

    async def _said(self, method: str, path: str, **body: Any) -> Any:
        answer = await self._client.request(method, f"/simulation{path}", json=body or None)
        answer.raise_for_status()
        return answer.json()


@pytest.fixture
def running() -> Iterator[MarketServer]:
    """A market whose clock stands still until it is moved."""
    options = Options(seed=7, speed=0, balance=100_000 * MICRO)
    simulated = SimulatedMarket(options)
    simulated.world.knobs = simulated.world.knobs.model_copy(update={"pod_trouble": 0.0})
    server = MarketServer(simulated)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def controls(running: MarketServer) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {running.token}"}
    async with httpx.AsyncClient(base_url=running.url, headers=headers, trust_env=False) as client:
        yield client


def access_to(running: MarketServer) -> Access:
    return Access(running.url, SecretStr(running.token), "simulated")


async def test_a_running_market_is_found_by_its_file(running: MarketServer, tmp_path: Path):
    info = MarketInfo(url=running.url, token=running.token, pid=os.getpid())
    (tmp_path / "market.json").write_text(info.model_dump_json())
    found = registry.connect_all(Settings(state_dir=tmp_path))
    for name, provider in found.items():
        account = await provider.account()
        assert (account.provider, account.simulated) == (name, True)
        await provider.aclose()
    assert set(found) == {"prime", "sfcompute"}


class TestSFCompute(ProviderContract):
    @pytest.fixture
    async def market(
        self, running: MarketServer, controls: httpx.AsyncClient
    ) -> AsyncIterator[Market]:
        client = SFCompute(access_to(running), patience=QUICK)
        yield Market(client, Control(controls, "sfcompute"), "POST /orders")
        await client.aclose()

    async def test_the_next_hour_is_found_on_a_clock_that_ran_ahead(self, market: Market):
        await market.provider.book(TYPE)
        await market.control.advance(timedelta(hours=30))
        book = await market.provider.book(TYPE)
        assert isinstance(book, OrderBook)
        assert book.window == await market.window(hours=1)

    async def test_fills_after_a_cancellation_are_counted(self, market: Market):
        placed = await market.provider.order(
            await market.request(standing=True, partial=True, nodes=2, limit=1000)
        )
        await market.control.fault("cancel_race")
        await market.provider.cancel_order(placed.id)
        order = await market.settled(placed.id)
        assert order.state in (OrderState.CANCELLED, OrderState.FILLED)
        assert order.fills

    async def test_part_of_an_order_is_counted(self, market: Market):
        await market.control.fault("order_partial")
        request = await market.request(partial=True, nodes=2)
        order = await market.settled((await market.provider.order(request)).id)
        assert order.state is OrderState.CANCELLED
        assert sum(fill.nodes for fill in order.fills) == 1
        assert all(fill.cost for fill in order.fills)

    async def test_a_machine_that_fails_is_said_to_have_failed(self, market: Market):
        await market.control.fault("instance_failed")
        machine = await self.start(market)
        await market.reached(machine.id, MachineState.FAILED)


class TestPrime(ProviderContract):
    @pytest.fixture
    async def market(
        self, running: MarketServer, controls: httpx.AsyncClient
    ) -> AsyncIterator[Market]:
        client = Prime(access_to(running), patience=QUICK)
        yield Market(client, Control(controls, "prime"), "POST /pods/")
        await client.aclose()

    async def test_a_list_that_lags_behind_does_not_make_two_pods(self, market: Market):
        request = await market.request()
        await market.control.fault("dropped", route="POST /pods/")
        await market.control.fault("list_lag", 3)
        order = await market.provider.order(request)
        assert [each.id for each in await market.provider.orders()] == [order.id]

    async def test_an_empty_list_is_not_believed_at_once(self, market: Market):
        await market.control.fault("empty_availability", 1)
        assert await market.provider.offers()

    async def test_a_pod_that_ends_in_error_was_no_order(self, market: Market):
        await market.control.fault("pod_error")
        placed = await market.provider.order(await market.request())
        assert (await market.settled(placed.id)).state is OrderState.REJECTED
        assert (await market.provider.machine(placed.id)).state is MachineState.FAILED

    async def test_a_pod_without_ssh_is_not_ready(self, market: Market):
        await market.control.fault("pod_without_ssh")
        placed = await market.provider.order(await market.request())
        await market.settled(placed.id)
        await market.control.advance(timedelta(minutes=30))
        assert (await market.provider.machine(placed.id)).state is MachineState.STARTING

    async def test_a_lost_spot_pod_has_ended_and_is_billed(self, market: Market):
        placed = await market.provider.order(await market.request())
        await market.settled(placed.id)
        await market.control.advance(timedelta(minutes=10))
        await market.control.fault("spot_lost")
        machine = await market.provider.machine(placed.id)
        assert machine.state is MachineState.ENDED
        assert machine.billed
        order = await market.provider.order_by_id(placed.id)
        assert (order.state, order.fills[0].cost) == (OrderState.CANCELLED, machine.billed)
