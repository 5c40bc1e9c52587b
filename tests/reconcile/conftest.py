"""A stack of its own: `reconcile` looks at everything, and other tests leave much behind."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.database import Database, upgrade
from activities.queue import ensure_pool
from client.api import Longshore
from models.settings import Settings
from tests.support.control import new_pool, serving_control
from tests.support.ledger import Ledger
from tests.support.local_stack import running_stack, settings_in, temporary_folder
from tests.support.scripted_node import ScriptedNode

LOST_AFTER = timedelta(seconds=6)


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Settings of a running stack that nobody else uses."""
    with (
        temporary_folder() as folder,
        running_stack(settings_in(folder), migrate=upgrade) as stack,
    ):
        yield stack.settings.model_copy(update={"node_lost_after": LOST_AFTER})


@pytest.fixture(scope="module")
async def temporal(settings: Settings) -> Client:
    address = settings.stack().temporal_address
    return await Client.connect(address, data_converter=pydantic_data_converter)


@pytest.fixture(scope="module")
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
async def ledger(temporal: Client, control: Database) -> Ledger:
    """A hand on the control worker's own database."""
    ledger = Ledger(control, temporal, new_pool())
    async with control.transaction() as connection:
        await ensure_pool(connection, ledger.pool)
    return ledger
