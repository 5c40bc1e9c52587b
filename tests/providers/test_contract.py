"""Both clients against the simulated market, which speaks both APIs over real HTTP.

What they say to each other passes a recorder, and has to be as the vendors publish it.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from longshore.activities.providers import registry
from longshore.activities.providers.access import Access
from longshore.activities.providers.prime import Prime
from longshore.activities.providers.sfcompute import SFCompute
from longshore.models.market import OrderBook
from longshore.models.settings import MarketInfo, Settings
from longshore.simulation.market.server import MarketServer
from tests.providers import published_prime, published_sfcompute
from tests.providers.contract import TYPE, Market, ProviderContract
from tests.providers.exchanges import Endpoint, Recorder, mistakes
from tests.support.market_contract import QUICK, Control

BREAKING = {"dropped", "malformed_json", "unknown_status"}
"""Faults whose answers no vendor publishes."""


async def test_a_running_market_is_found_by_its_file(running: MarketServer, tmp_path: Path):
    info = MarketInfo(url=running.url, token=running.token, pid=os.getpid())
    (tmp_path / "market.json").write_text(info.model_dump_json())
    found = registry.connect_all(Settings(state_dir=tmp_path))
    for name, provider in found.items():
        account = await provider.account()
        assert (account.provider, account.simulated) == (name, True)
        await provider.aclose()
    assert set(found) == {"prime", "sfcompute"}


@asynccontextmanager
async def recorded(
    running: MarketServer, control: Control, published: Sequence[Endpoint]
) -> AsyncIterator[Access]:
    """Yield access to a market through a recorder, and check at the end what was recorded."""
    async with Recorder(running.url) as recorder:
        yield Access(recorder.url, SecretStr(running.token), "simulated")
    if not control.set & BREAKING:
        found = [line for each in recorder.exchanges for line in mistakes(each, published)]
        assert list(dict.fromkeys(found)) == []


class TestSFCompute(ProviderContract):
    @pytest.fixture
    async def market(
        self, running: MarketServer, controls: httpx.AsyncClient
    ) -> AsyncIterator[Market]:
        control = Control(controls, "sfcompute")
        async with recorded(running, control, published_sfcompute.ENDPOINTS) as access:
            client = SFCompute(access, patience=QUICK)
            yield Market(client, control, "POST /orders")
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
        control = Control(controls, "prime")
        async with recorded(running, control, published_prime.ENDPOINTS) as access:
            client = Prime(access, template="any", patience=QUICK)
            yield Market(client, control, "POST /pods/")
            await client.aclose()
