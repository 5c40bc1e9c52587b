"""What whoever cordons or drains a node is told of its machine, and that it is closed also where
nothing can be told."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from longshore.activities.buying.block_end_views import BlockEndViews
from longshore.activities.buying.closed_machines import what_closing_costs
from longshore.activities.database import Database
from longshore.activities.views import set_pool
from longshore.client.node_control import NodeControl
from longshore.models.buying_policy import BuyingPolicy
from longshore.models.errors import NewerTablesError, StoredError
from longshore.models.money import MICRO
from longshore.models.node_messages import NodeStatus
from longshore.models.pool import PoolSpec
from tests.activities.test_longer_times import buy, machine
from tests.support.ledger import Ledger


async def note_of(ledger: Ledger) -> str:
    async with ledger.database.transaction() as connection:
        return await what_closing_costs(connection, "m")


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


async def test_hours_that_are_paid_in_advance_are_given_up_and_not_billed(closed: Ledger):
    views = BlockEndViews(closed.database)
    assert "billed as it runs" in await note_of(closed)
    prepaid = '{"offer": {"prepaid": "PT24H"}}'
    await closed.rows("UPDATE orders SET request = request || CAST(:of AS jsonb)", of=prepaid)
    began = (
        "UPDATE blocks SET starts_at = clock_timestamp() - make_interval(hours => :hours),"
        " ends_at = clock_timestamp() + interval '1 hour'"
    )
    await closed.rows(began, hours=22)
    note = await note_of(closed)
    assert "m is paid until " in note
    assert "(block m): 2h of it, $20.00, are of no use" in note
    given_up = await views.given_up("m")
    assert given_up is not None
    assert (given_up.nodes, given_up.sold) == (1, False)
    assert abs(given_up.paid_micro_usd - 20 * MICRO) < MICRO / 10
    await closed.rows(began, hours=25)
    assert "billed as it runs" in await note_of(closed)
    assert await views.given_up("m") is None


async def test_the_rest_of_a_window_is_told_to_whoever_closes_its_node(closed: Ledger):
    await closed.rows("UPDATE orders SET is_machine = false")
    await closed.rows("UPDATE blocks SET ends_at = clock_timestamp() + interval '90 minutes'")
    assert "1h30m of it, $15.00, are of no use" in await note_of(closed)


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
