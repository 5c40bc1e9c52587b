"""A scripted market on a real socket, and clients of it that do not wait."""

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from activities.providers.access import Access
from activities.providers.http import MarketHTTP, Patience
from activities.providers.prime import Prime
from activities.providers.sfcompute import SFCompute
from tests.providers.told import NOW, TOKEN, Sleeps
from tests.support.scripted_http import ScriptedHTTP

HASTY = Patience(
    connect=2, each=0.3, total=30, tries=4, first_wait=0.5, longest_wait=2, looks=5, look_every=1
)
"""Waits are recorded and not slept, so that only `each` takes real time."""


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHTTP]:
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
    client = Prime(access, patience=HASTY, sleep=sleeps)
    yield client
    await client.aclose()
