"""What whoever cordons or drains a node is told of its machine, and that it is closed also where
nothing can be told."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from longshore.activities.buying.closed_machines import ends_closed
from longshore.activities.database import Database
from longshore.activities.views import set_pool
from longshore.client.node_control import NodeControl
from longshore.models.buying_policy import BuyingPolicy
from longshore.models.errors import NewerTablesError, StoredError
from longshore.models.node_messages import NodeStatus
from longshore.models.pool import PoolSpec
from tests.activities.test_longer_times import buy, machine
from tests.support.ledger import Ledger


async def note_of(ledger: Ledger) -> str:
    async with ledger.database.transaction() as connection:
        return await ends_closed(connection, "m")


@pytest.fixture
async def closed(ledger: Ledger) -> Ledger:
    """A machine `m` that is billed as it runs, and is cordoned."""
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True)))
    assert await buy(ledger, owner="default") == ""
    await machine(ledger, "m")
    await ledger.register("m")
    await ledger.rows("UPDATE nodes SET state = 'DRAINING', drain_reason = 'x', block_id = 'm'")
    return ledger


async def test_hours_that_are_paid_in_advance_are_not_billed_as_they_run(closed: Ledger):
    assert "billed as it runs" in await note_of(closed)
    prepaid = '{"offer": {"prepaid": "PT24H"}}'
    await closed.rows("UPDATE orders SET request = request || CAST(:of AS jsonb)", of=prepaid)
    began = (
        "UPDATE blocks SET starts_at = clock_timestamp() - make_interval(hours => :hours),"
        " ends_at = clock_timestamp() + interval '1 hour'"
    )
    await closed.rows(began, hours=23)
    assert await note_of(closed) == ""
    await closed.rows(began, hours=25)
    assert "billed as it runs" in await note_of(closed)


class Away(NodeControl):
    """Steers nodes whose machines the database says nothing of."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _db(self) -> Database:
        raise self._error

    async def _update_node(self, node_id: str, update: Any, command: Any) -> NodeStatus:
        return NodeStatus(node_id=node_id, state="DRAINING", epoch=1)


@pytest.mark.parametrize(
    "error",
    [
        StoredError("pool", ("it cannot be read",)),
        NewerTablesError("a newer version has upgraded the database"),
        OperationalError("SELECT", None, Exception("away")),
        TimeoutError(),
    ],
)
async def test_a_node_is_closed_whatever_can_be_said_of_its_machine(error: Exception):
    assert (await Away(error).cordon("m")).state == "DRAINING"
    assert (await Away(error).drain("m", deadline=timedelta(hours=1))).state == "DRAINING"
