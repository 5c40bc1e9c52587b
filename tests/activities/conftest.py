"""What tests of the activities ask for: a database of their own, a service that is on record."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from tests.support.control import new_pool
from tests.support.ledger import Ledger
from tests.support.recorded_service import RecordedService


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


@pytest.fixture
def served(control: Database, temporal: Client, pool: str) -> RecordedService:
    """A service of the test's pool, which the test records; 0.01 s."""
    return RecordedService(control, temporal, pool)
