"""Orders of a database of before, in two tables, are in one after the upgrade, with all rules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString, NamedTuple

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import DictRow, dict_row

from longshore.activities.migrations import upgrade
from longshore.workers.stack import Stack
from tests.support.databases import database_of

BEFORE = "0033"
_ROWS = """
    INSERT INTO pools (name, spec) VALUES ('pool', '{}');
    INSERT INTO purchases (id, pool, tenant, tier, state, request, planned, committed, simulated)
    VALUES ('p', 'pool', 'default', 'FAST', 'READY', '{"ready_within": "PT20M"}', 9, 9, true);
    INSERT INTO purchase_orders (key, purchase_id, number, option, provider, request, is_machine,
                                 gpus_per_node, committed, spent, order_id, nodes, account)
    VALUES ('p.1', 'p', 1, 2, 'sfcompute', '{"limit": 7}', false, 8, 9, 5, 'o-1', 3, 'a');
    INSERT INTO blocks (id, provider, instance_type, tier, price_micro_per_gpu_hour, starts_at,
                        ends_at, purchase_id)
    VALUES ('p.1', 'sfcompute', '8xH100', 'FAST', 7, now(), now() + interval '4 hours', 'p');
    INSERT INTO machines (name, purchase_id, block_id, provider)
    VALUES ('p.1.m1', 'p', 'p.1', 'sfcompute'), ('p.1.m2', 'p', 'p.1', 'sfcompute');
    INSERT INTO sales (key, block_id, number, machine, provider, starts_at, ends_at, request,
                       state, order_id, fee_bps, fee_flat, proceeds, fee, closed_at)
    VALUES ('p.1.s1', 'p.1', 1, 'p.1.m1', 'sfcompute', now(), now() + interval '1 hour',
            '{"limit": 6}', 'SOLD', 'o-1', 3, 4, 50, 2, now()),
           ('p.1.s2', 'p.1', 2, 'p.1.m2', 'sfcompute', now(), now() + interval '1 hour',
            '{"limit": 6}', 'UNSOLD', NULL, 0, 0, 0, 0, now());
    UPDATE market_switch SET stopped = true, reason = 'a test';
"""
_BUY = """
    INSERT INTO purchase_orders (key, purchase_id, number, option, provider, request, is_machine,
                                 gpus_per_node, committed)
    VALUES ('p.2', 'p', 2, 0, 'sfcompute', '{}', false, 8, 9)
"""
_SELL = """
    INSERT INTO sales (key, block_id, number, machine, provider, starts_at, ends_at, request)
    VALUES ('p.1.s3', 'p.1', 3, 'p.1.m2', 'sfcompute', now(), now() + interval '1 hour', '{}')
"""


class Before(NamedTuple):
    """A database of the version before, with orders of both sides."""

    url: str
    connection: psycopg.Connection[DictRow]

    def run(self, statement: LiteralString) -> list[DictRow]:
        found = self.connection.execute(statement)
        return found.fetchall() if found.description else []


@pytest.fixture
def before(stack: Stack) -> Iterator[Before]:
    with _database_of_before(stack) as before:
        yield before


@pytest.fixture(scope="module")
def after(stack: Stack) -> Iterator[Before]:
    """Upgrades such a database, for tests that change nothing in it; 0.5 s."""
    with _database_of_before(stack) as before:
        upgrade(before.url)
        yield before


@contextmanager
def _database_of_before(stack: Stack) -> Iterator[Before]:
    with (
        database_of(stack, BEFORE) as url,
        psycopg.Connection[DictRow].connect(
            url, autocommit=True, row_factory=dict_row
        ) as connection,
    ):
        connection.execute(_ROWS)
        yield Before(url, connection)


def test_every_value_of_both_tables_is_kept(before: Before):
    bought = before.run("SELECT * FROM purchase_orders")
    sold = before.run("SELECT * FROM sales ORDER BY key")
    assert (len(bought), len(sold)) == (1, 2)
    upgrade(before.url)
    after = before.run("SELECT * FROM orders ORDER BY key")
    assert [row["side"] for row in after] == ["buy", "sell", "sell"]
    assert after[0]["simulated"], "as its purchase"
    for was, now in zip([*bought, *sold], after, strict=True):
        assert {name: now[name] for name in was} == was
    with pytest.raises(errors.IntegrityError, match="buying is stopped: a test"):
        before.run(_SELL)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("UPDATE orders SET side = 'sell' WHERE key = 'p.1'", "orders_side"),
        ("UPDATE orders SET side = 'other' WHERE key = 'p.1'", "orders_side"),
        ("UPDATE orders SET purchase_id = NULL WHERE key = 'p.1'", "orders_side"),
        ("UPDATE orders SET gpus_per_node = NULL WHERE key = 'p.1'", "orders_side"),
        ("UPDATE orders SET state = 'SOLD' WHERE key = 'p.1'", "orders_side"),
        ("UPDATE orders SET state = 'CLOSED' WHERE key = 'p.1.s1'", "orders_side"),
        ("UPDATE orders SET committed = 1 WHERE key = 'p.1.s1'", "orders_side"),
        ("UPDATE orders SET machine = NULL WHERE key = 'p.1.s1'", "orders_side"),
        ("UPDATE orders SET ends_at = starts_at WHERE key = 'p.1.s1'", "orders_side"),
        ("UPDATE orders SET machine = 'none' WHERE key = 'p.1.s1'", "orders_machine_fkey"),
        ("UPDATE orders SET machine = 'p.1.m1', state = 'PLACED' WHERE key = 'p.1.s2'",
         "sales_once"),
        ("UPDATE orders SET number = 1 WHERE key = 'p.1.s2'", "sales_numbers"),
        ("UPDATE orders SET order_id = 'o-1' WHERE key = 'p.1.s2'", "orders_at_market"),
        ("UPDATE orders SET fee_bps = 10001 WHERE key = 'p.1.s1'", "orders_fee_bps_check"),
        ("UPDATE orders SET proceeds = -1 WHERE key = 'p.1.s1'", "orders_proceeds_check"),
        ("UPDATE orders SET sent_at = '9500-01-01' WHERE key = 'p.1.s1'",
         "orders_times_in_reach"),
        ("""UPDATE orders SET request = '{"limit": 1.5}' WHERE key = 'p.1.s1'""",
         "orders_request_in_bounds"),
    ],
)  # fmt: skip
def test_the_database_refuses_what_it_refused(after: Before, statement: LiteralString, rule: str):
    with pytest.raises(errors.IntegrityError) as refused:
        after.run(statement)
    assert refused.value.diag.constraint_name == rule


def test_a_control_worker_of_the_version_before_goes_on(before: Before):
    upgrade(before.url)
    before.run("UPDATE market_switch SET stopped = false")
    before.run(_BUY)
    before.run(_SELL)
    before.run("SELECT * FROM sales WHERE key = 'p.1.s3' FOR UPDATE")
    before.run("UPDATE sales SET state = 'SOLD', proceeds = 4 WHERE key = 'p.1.s3'")
    before.run("UPDATE purchase_orders SET state = 'CLOSED' WHERE key = 'p.2'")
    found = before.run("SELECT key, side, state FROM orders WHERE number > 1 ORDER BY key")
    assert [tuple(row.values()) for row in found] == [
        ("p.1.s2", "sell", "UNSOLD"), ("p.1.s3", "sell", "SOLD"), ("p.2", "buy", "CLOSED"),
    ]  # fmt: skip
