"""`reconcile` looks at everything: a module finds nothing but what it has made."""

from datetime import timedelta

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.queue_rows import ensure_pool
from longshore.models.settings import Settings
from tests.support.control import new_pool
from tests.support.ledger import Ledger

LOST_AFTER = timedelta(seconds=6)


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    """Nodes are lost sooner."""
    return settings.model_copy(update={"node_lost_after": LOST_AFTER})


@pytest.fixture
async def ledger(temporal: Client, control: Database) -> Ledger:
    """A hand on the control worker's own database."""
    ledger = Ledger(control, temporal, new_pool())
    async with control.transaction() as connection:
        await ensure_pool(connection, ledger.pool)
    return ledger
