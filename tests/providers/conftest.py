"""A scripted market on a real socket, clients of it that do not wait, and a simulated market."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from pydantic import SecretStr

from longshore.activities.providers.access import Access
from longshore.activities.providers.http import MarketHTTP, Patience
from longshore.activities.providers.prime import Prime
from longshore.activities.providers.sfcompute import SFCompute
from longshore.models.money import MICRO
from longshore.simulation.market.market import Market as SimulatedMarket
from longshore.simulation.market.market import Options
from longshore.simulation.market.server import MarketServer
from tests.providers.told import NOW, TOKEN, Sleeps
from tests.support.market_contract import Room
from tests.support.scripted_http import ScriptedHTTP

HASTY = Patience(
    connect=5, each=1.5, total=60, tries=4, first_wait=0.5, longest_wait=2, looks=5, look_every=1
)
"""Waits are recorded and not slept, so that only `each` takes real time."""


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHTTP]:
    """Starts a scripted HTTP server; 0.01 s."""
    async with ScriptedHTTP() as running:
        yield running


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
def access(server: ScriptedHTTP) -> Access:
    return Access(server.url, SecretStr(TOKEN), "simulated")


@pytest.fixture
async def http(access: Access, sleeps: Sleeps) -> AsyncIterator[MarketHTTP]:
    client = MarketHTTP("bazaar", access, token_name="THE_TOKEN", patience=HASTY, sleep=sleeps)
    yield client
    await client.aclose()


@pytest.fixture
async def sfcompute(access: Access, sleeps: Sleeps) -> AsyncIterator[SFCompute]:
    client = SFCompute(access, patience=HASTY, sleep=sleeps, clock=lambda: NOW)
    yield client
    await client.aclose()


@pytest.fixture
async def prime(access: Access, sleeps: Sleeps) -> AsyncIterator[Prime]:
    client = Prime(access, template="tmpl-1", patience=HASTY, sleep=sleeps)
    yield client
    await client.aclose()


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def running(room: Room) -> Iterator[MarketServer]:
    """Starts a simulated market whose clock stands still until it is moved; 0.02 s."""
    simulated = SimulatedMarket(Options(seed=7, speed=0, balance=100_000 * MICRO), room)
    simulated.world.knobs = simulated.world.knobs.model_copy(update={"pod_trouble": 0.0})
    server = MarketServer(simulated)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def controls(running: MarketServer) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {running.token}"}
    async with httpx.AsyncClient(
        base_url=running.url, headers=headers, trust_env=False, timeout=60
    ) as client:
        yield client
