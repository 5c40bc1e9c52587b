"""A capacity database of its own for each test that asks for a ledger."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from tests.support.control import new_pool
from tests.support.ledger import Ledger


@pytest.fixture
async def ledger(temporal: Client, database_url: str) -> AsyncIterator[Ledger]:
    """The activities on a database of this test's own, with the real Temporal to signal; 0.1 s."""
    database = Database(database_url, pool_size=20)
    try:
        made = Ledger(database, temporal, new_pool())
        await made.keep_order_of_age()
        yield made
    finally:
        await database.close()
