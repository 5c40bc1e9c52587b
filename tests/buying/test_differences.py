"""The comparison of ledger and market, by which faults are judged, sees what does not agree."""

import contextlib
import copy
from typing import Any

import pytest
from sqlalchemy import text

from tests.buying.buyer import Buyer, block_option, differences

_OURS = "purchase_id = '{purchase}'"
_OUR_PURCHASE = "id = '{purchase}'"
HARM = {
    "was paid": f"UPDATE orders SET spent = spent + 1 WHERE {_OURS}",
    "'booked'": f"DELETE FROM ledger WHERE {_OURS} AND credit LIKE 'market:%'",
    "nobody here knows": f"UPDATE orders SET order_id = 'another' WHERE {_OURS}",
    "is left of a block": f"UPDATE ledger SET micro = micro + 1 WHERE {_OURS} AND kind = 'usage'",
    "still reserved": f"UPDATE purchases SET committed = committed + 1 WHERE {_OUR_PURCHASE}",
    "the caps count otherwise": "UPDATE purchase_sums SET committed = committed + 1",
}


@pytest.fixture
async def bought(buyer: Buyer) -> Buyer:
    """Buys a block and lets it go, so that its account is closed; 5 s."""
    status = await buyer.buy(block_option())
    await buyer.let_go(status.orders[0])
    await buyer.agrees()
    return buyer


async def test_every_difference_is_seen(bought: Buyer):
    before, after = bought.before, bought.market.state()
    for found, statement in HARM.items():
        wrong = await _after_harm(bought, statement, after)
        assert any(found in each for each in wrong), (found, wrong)
    for change in (_runs_again, _an_order_more):
        state = copy.deepcopy(after)
        change(state)
        assert await differences(bought.rows, bought.pool, before, state), change
    assert not await differences(bought.rows, bought.pool, before, after)


def _runs_again(state: Any) -> None:
    state["instances"][-1]["status"] = "running"


def _an_order_more(state: Any) -> None:
    state["orders"].append({**state["orders"][-1], "id": "nobody's"})


class _UndoneError(Exception):
    """Ends a transaction without a trace."""


async def _after_harm(buyer: Buyer, statement: str, after: Any) -> list[str]:
    """Return the differences in a transaction that harms the rows, and is undone."""
    wrong: list[str] = []
    with contextlib.suppress(_UndoneError):
        async with buyer.database.transaction() as connection:

            async def rows(query: str) -> list[dict[str, Any]]:
                return [dict(row) for row in (await connection.execute(text(query))).mappings()]

            await connection.execute(text("SET LOCAL session_replication_role = replica"))
            done = await connection.execute(text(statement.format(purchase=buyer.purchases[-1])))
            assert done.rowcount, statement
            wrong += await differences(rows, buyer.pool, buyer.before, after)
            raise _UndoneError
    return wrong
