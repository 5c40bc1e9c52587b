"""What orders of before have cost beyond what was committed for them counts after the upgrade."""

import psycopg
from psycopg.rows import DictRow, dict_row

from longshore.activities.migrations import upgrade
from longshore.workers.stack import Stack
from tests.support.databases import database_of

BEFORE = "0070"
_ROWS = """
    INSERT INTO pools (name, spec) VALUES ('pool', '{}');
    INSERT INTO purchase_caps (scope, name, micro) VALUES ('day', '*', 200);
    INSERT INTO purchases (id, pool, tenant, tier, state, request, planned, committed, spent,
                           buying)
    VALUES ('p', 'pool', 'default', 'FAST', 'READY', '{}', 9, 9, 384, false),
           ('q', 'pool', 'default', 'FAST', 'READY', '{}', 9, 9, 5, false),
           ('r', 'pool', 'default', 'FAST', 'STARTING', '{}', 100, 100, 15, true);
    INSERT INTO orders (key, purchase_id, number, option, provider, request, is_machine,
                        gpus_per_node, committed, spent)
    VALUES ('p.1', 'p', 1, 0, 'prime', '{}', true, 8, 2, 384),
           ('p.2', 'p', 2, 0, 'prime', '{}', true, 8, 7, 0),
           ('q.1', 'q', 1, 0, 'prime', '{}', true, 8, 9, 5),
           ('r.1', 'r', 1, 0, 'prime', '{}', true, 8, 10, 15);
"""


def test_what_was_spent_beyond_a_commitment_is_counted_once_above_any_cap(stack: Stack):
    with (
        database_of(stack, BEFORE) as url,
        psycopg.Connection[DictRow].connect(
            url, autocommit=True, row_factory=dict_row
        ) as connection,
    ):
        connection.execute(_ROWS)
        for _ in range(2):
            upgrade(url)
            found = connection.execute("SELECT id, committed FROM purchases ORDER BY id")
            assert [row["committed"] for row in found.fetchall()] == [391, 9, 100]
        (day,) = connection.execute(
            "SELECT committed FROM purchase_sums WHERE scope = 'day'"
        ).fetchall()
        assert day["committed"] == 500
        function = connection.execute(
            "SELECT pg_get_functiondef('purchase_commits()'::regprocedure) AS said"
        ).fetchone()
    assert function is not None
    assert "NEW.spent - OLD.spent" in function["said"]
