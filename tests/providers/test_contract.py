"""Both clients against the simulated market, which speaks both APIs over real HTTP."""

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from activities.providers import registry
from activities.providers.prime import Prime
from activities.providers.sfcompute import SFCompute
from models.market import OrderBook
from models.settings import MarketInfo, Settings
from simulation.market.server import MarketServer
from tests.providers.contract import TYPE, Market, ProviderContract
from tests.support.market_contract import QUICK, Control, access_to


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


class TestPrime(ProviderContract):
    @pytest.fixture
    async def market(
        self, running: MarketServer, controls: httpx.AsyncClient
    ) -> AsyncIterator[Market]:
        client = Prime(access_to(running), patience=QUICK)
        yield Market(client, Control(controls, "prime"), "POST /pods/")
        await client.aclose()
