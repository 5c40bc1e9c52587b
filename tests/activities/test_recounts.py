"""What a purchase has committed where an older worker counts it too, or no cap bears it."""

from typing import Any

import pytest

from longshore.activities.buying.machine_ends import MachineEnds
from longshore.models.market import Machine, MachineState
from longshore.models.settings import Settings
from tests.activities.test_longer_times import GO_ON, KEEP, buy, end, give, go_on, recount, spent
from tests.activities.test_longer_times import tree as tree
from tests.support.ledger import Ledger


@pytest.fixture
async def longer(tree: Ledger) -> Ledger:
    """Has `m` go on for blue while its purchase buys another one; root has no more money."""
    await tree.rows("UPDATE purchases SET planned = planned * 2, buying = true")
    await recount(tree)
    await give(tree, "root", 30)
    assert (await go_on(tree, 2, "of-blue")).kind is GO_ON
    assert await spent(tree) == {"red": 20, "blue": 10}
    return tree


async def look(ledger: Ledger, state: MachineState, billed: int) -> bool:
    row: Any = (await ledger.rows("SELECT * FROM machines"))[0]
    found = Machine(
        provider="runpod", id="pod", name="m", state=state, billed=billed, simulated=True
    )
    return await MachineEnds(ledger.database, Settings()).record(row, found)


async def test_older_workers_that_look_at_a_machine_give_no_longer_time_back(longer: Ledger):
    await longer.rows(_AS_BEFORE_0076)
    assert await spent(longer) == {"red": 20, "blue": 10}
    assert "for the budget of root" in await buy(longer, "again", "blue")
    await recount(longer)
    await longer.rows("UPDATE purchases SET buying = false")
    await longer.rows(_AS_BEFORE_0076)
    assert await spent(longer) == {"red": 10, "blue": 10}


async def test_what_was_given_back_before_keeps_no_machine_from_its_end(longer: Ledger):
    """As 0080 finds it: it raises nothing, and neither version is refused."""
    await longer.rows("UPDATE purchases SET buying = false, planned = 10000000")
    await longer.rows(_AS_BEFORE_0076)
    assert await buy(longer, "again", "blue") == ""
    await longer.rows("UPDATE purchases SET buying = true, planned = 20000000 WHERE id = 'p'")
    await longer.rows(_AS_BEFORE_0076)
    assert await spent(longer) == {"red": 10, "blue": 20}
    assert not await look(longer, MachineState.READY, 7_000_000)
    assert await spent(longer) == {"red": 10, "blue": 20}
    assert await longer.value("SELECT spent FROM purchases WHERE id = 'p'") == 7_000_000
    assert (await go_on(longer, 3, "of-blue")).kind is KEEP
    assert await look(longer, MachineState.ENDED, 15_000_000)
    await longer.rows("UPDATE purchases SET buying = false WHERE id = 'p'")
    await end(longer, 1.5, 15)
    assert await spent(longer) == {"red": 10, "blue": 15}


async def test_orders_that_were_written_by_hand_keep_no_machine_from_its_end(tree: Ledger):
    await go_on(tree, 2, "of-blue")
    await give(tree, "blue", 10)
    await tree.rows("UPDATE orders SET ends_at = ends_at + interval '2 hours'")
    assert not await look(tree, MachineState.READY, 2_000_000)
    assert await tree.value("SELECT spent FROM purchases") == 2_000_000
    assert await spent(tree) == {"red": 10, "blue": 10}
    await end(tree, 1.5, 15)
    assert await spent(tree) == {"red": 10, "blue": 5}


async def test_another_error_than_a_refusal_is_told(tree: Ledger):
    await tree.rows("ALTER TABLE purchases ADD CONSTRAINT some_rule CHECK (spent < 5)")
    with pytest.raises(Exception, match="some_rule"):
        await look(tree, MachineState.READY, 7_000_000)


_AS_BEFORE_0076 = """
    UPDATE purchases p
       SET spent = o.spent,
           committed = CASE WHEN p.buying THEN greatest(p.planned, o.committed)
                            ELSE o.committed END
      FROM (SELECT coalesce(sum(spent), 0) AS spent,
                   coalesce(sum(greatest(committed, spent)), 0) AS committed
              FROM orders WHERE purchase_id = 'p') AS o
     WHERE p.id = 'p' AND p.state <> 'REFUSED'
"""
"""What a worker from before 0076 does at each look at a machine."""
