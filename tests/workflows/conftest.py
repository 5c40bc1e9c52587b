"""A control worker for all workflow tests, and a scripted node per test."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from activities.database import Database
from client.api import Longshore
from models.settings import Settings
from tests.support.control import new_pool, serving_control
from tests.support.scripted_node import ScriptedNode


@pytest.fixture(scope="module")  # one worker at a time may take from the task queue
async def control(temporal: Client, settings: Settings) -> AsyncIterator[Database]:
    """The control worker's database, while the worker runs."""
    async with serving_control(temporal, settings) as database:
        yield database


@pytest.fixture
async def longshore(temporal: Client, settings: Settings) -> AsyncIterator[Longshore]:
    client = Longshore(temporal, settings)
    yield client
    await client.close()


@pytest.fixture
def pool() -> str:
    return new_pool()


@pytest.fixture
async def node(
    temporal: Client, settings: Settings, control: Database, pool: str
) -> AsyncIterator[ScriptedNode]:
    """A registered node of 8 GPUs in the test's pool."""
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    async with node.serving():
        await node.register()
        yield node


@pytest.fixture
def skipper(temporal: Client) -> TimeSkipper:
    """Starts workflows whose clock jumps over timers; the only place that knows how.

    Time does not jump while an activity runs: what waits for a process waits in real time.
    """
    return TimeSkipper(temporal)


@pytest.fixture
async def hasty(skipper: TimeSkipper, settings: Settings) -> AsyncIterator[Longshore]:
    """A client whose jobs skip the time that they would wait on a timer."""
    client = Longshore(skipper.client, settings)
    yield client
    await client.close()
