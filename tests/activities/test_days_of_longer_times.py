"""A longer time of a machine counts on its own day, and the caps of that day refuse it.

A GPU costs ten dollars an hour here, and red bought the first hour on the day before.
"""

import random
from datetime import date, timedelta

import psycopg
import pytest

from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.migrations import upgrade
from longshore.models.money import MICRO
from longshore.workers.stack import Stack
from tests.activities.test_longer_times import (
    GO_ON,
    KEEP,
    TEN,
    buy,
    end,
    give,
    go_on,
    recount,
    tree,
)
from tests.buying.buyer import DAYS_DIFFER
from tests.support.databases import database_of
from tests.support.ledger import Ledger

__all__ = ["tree"]
_BEFORE = timedelta(days=1)


@pytest.fixture
async def bought(tree: Ledger) -> date:
    """The purchase `p` of the day before; the day of now."""
    await tree.rows("UPDATE purchases SET committed = 0, planned = 0")
    await tree.rows("UPDATE purchases SET day = day - 1")
    await recount(tree)
    return (await tree.value("SELECT day FROM purchases")) + _BEFORE


async def counted(ledger: Ledger, scope: str = "day") -> dict[tuple[date, str], float]:
    """Return what counts on each day, in dollars."""
    found = await ledger.rows(
        "SELECT day, name, committed FROM purchase_sums WHERE scope = :scope", scope=scope
    )
    return {
        (each["day"], each["name"]): each["committed"] / MICRO
        for each in found
        if each["committed"]
    }


async def test_it_counts_on_the_day_on_which_it_is_committed(tree: Ledger, bought: date):
    assert await counted(tree) == {(bought - _BEFORE, "all"): 10}
    assert (await go_on(tree, 2, "of-blue")).kind is GO_ON
    assert await counted(tree) == {(bought - _BEFORE, "all"): 10, (bought, "all"): 10}
    parts = {(bought - _BEFORE, "red"): 10, (bought, "blue"): 10}
    assert await counted(tree, "part") == parts
    # What it gives back when it ends early, it gives back to its own day.
    await end(tree, 1.1, 11)
    assert await counted(tree) == {(bought - _BEFORE, "all"): 10, (bought, "all"): 1}
    assert await tree.rows(DAYS_DIFFER) == []


async def test_the_cap_of_its_day_refuses_it_and_that_of_the_purchase_does_not(
    tree: Ledger, bought: date
):
    switch = BuyingSwitch(tree.database)
    await switch.set_cap("day", "*", 19 * MICRO)
    assert await buy(tree, "q") == ""
    refused = await go_on(tree, 2, "of-red")
    assert refused.kind is KEEP
    assert f"$20.00 would be committed for day all on {bought}" in refused.reason
    await tree.rows("UPDATE purchases SET committed = 0, planned = 0 WHERE id = 'q'")
    assert (await go_on(tree, 2.5, "of-red")).kind is GO_ON, "the day before has $10.00 of $19.00"
    assert "is the most" in await buy(tree, "again"), "it counts beside what is bought today"
    assert (await go_on(tree, 3, "of-red")).kind is KEEP


async def test_the_budget_of_its_day_refuses_it(tree: Ledger, bought: date):
    await give(tree, "red", 11)
    assert (await go_on(tree, 2, "of-red")).kind is GO_ON
    refused = await go_on(tree, 3, "of-red")
    said = f"with it $20.00 would be committed for the budget of red on {bought}"
    assert (refused.kind, said in refused.reason) == (KEEP, True)


async def test_what_went_on_before_the_day_was_kept_counts_on_that_of_its_purchase(
    tree: Ledger, bought: date
):
    await tree.rows("ALTER TABLE orders DISABLE TRIGGER longer_is_stamped")
    await go_on(tree, 2, "of-blue")
    await tree.rows("ALTER TABLE orders ENABLE TRIGGER longer_is_stamped")
    await go_on(tree, 3, "of-blue")
    assert await counted(tree) == {(bought - _BEFORE, "all"): 20, (bought, "all"): 10}


async def test_the_days_are_the_whole(tree: Ledger, bought: date):
    await tree.rows(
        "UPDATE orders SET request = request || '{\"limit\": 9999991}', committed = 9999991"
    )
    await recount(tree)
    numbers, hours = random.Random(7), 1.0
    for step in range(12):
        hours += numbers.random() / 3
        jobs = ["of-red", "of-blue", "of-root"][: 1 + step % 3]
        assert (await go_on(tree, hours, *jobs)).kind is GO_ON
        assert await tree.rows(DAYS_DIFFER) == []
        before = (await counted(tree))[bought - _BEFORE, "all"]
        assert before == pytest.approx(10, abs=2e-5)
    await end(tree, hours - 0.4, 40)
    assert await tree.rows(DAYS_DIFFER) == []
    parts = await counted(tree, "part")
    assert sum(parts.values()) == pytest.approx(sum((await counted(tree)).values()), abs=1e-9)


def test_the_sums_of_before_stay_after_the_upgrade(stack: Stack):
    with (
        database_of(stack, "0077") as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        for statement in _GONE_ON:
            connection.execute(statement)
        connection.execute("UPDATE purchases SET committed = 20000000 WHERE id = 'p'")
        upgrade(url)
        connection.execute("UPDATE purchases SET spent = 1 WHERE id = 'p'")
        connection.execute("UPDATE purchases SET committed = committed WHERE id = 'p'")
        sums = "SELECT committed FROM purchase_sums WHERE scope = 'day'"
        assert connection.execute(sums).fetchall() == [(2 * TEN,)]
        assert connection.execute(DAYS_DIFFER).fetchall() == []


_GONE_ON = (
    "INSERT INTO pools (name, spec) VALUES ('p', '{}')",
    """
    INSERT INTO purchases (id, pool, tenant, tier, state, request, planned, committed)
    VALUES ('p', 'p', 'red', 'FAST', 'READY', '{}', 0, 0)""",
    """
    INSERT INTO orders (key, purchase_id, number, option, provider, request, is_machine,
                        gpus_per_node, committed, nodes, state, starts_at, ends_at, longer)
    VALUES ('p.1', 'p', 1, 0, 'runpod', '{}', true, 1, 20000000, 1, 'PLACED',
            '2026-11-20 12:00Z', '2026-11-20 14:00Z', '[{"after": 3600, "split": {"blue": 1}}]')
    """,
)
