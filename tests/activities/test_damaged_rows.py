"""Rows that a cycle reads, with all that the database lets somebody write into them by hand: the
pool goes on for its other jobs, and the job that cannot be read is named."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from longshore.activities.cycle import CycleActivities
from longshore.activities.signals import Signals
from longshore.client.topology import topology_in
from longshore.workers.doctor.pools import set_aside
from tests.support.ledger import Ledger

NO_REQUESTS = ("null", "[1]", '"x"', "7", "true", "{}", '{"gpus": "many"}')
ABSURD = {
    "timestamptz": ("infinity", "-infinity", "294000-01-01", "4000-01-01 BC", "9999-12-31Z"),
    "interval": ("200000 years", "-200000 years", "9000 years", "-9000 years", "1000000 days"),
    "int4": ("2147483647", "-1"),
    "int8": ("9223372036854775807", "-1"),
    "_int4": ("{-1}", "{NULL}", "{99999999}"),
    "float8": ("Infinity", "-Infinity", "NaN", "1e308", "-1"),
    "jsonb": ("null", "[1]", '"x"', '{"x": {"y": [1e308]}}'),
}
"""By the type of a column."""
DECISIONS = (
    '{"kind": ["x"]}',
    '{"kind": "REQUEST_MORE_CAPACITY", "counted_as": ["x"], "reason": ["x"]}',
    '{"kind": "REQUEST_MORE_CAPACITY", "rejected": [["x"]]}',
    '{"kind": "REQUEST_MORE_CAPACITY", "rejected": {"gpus-busy": 2},'
    ' "estimated_start": "2026-01-01"}',
)  # fmt: skip
WRITTEN_INTO = {
    "blocks": "id = 'block'",
    "gpus": "node_id = 'node-a'",
    "job_checkpoints": "job_id = 'running'",
    "jobs": "id IN ('broken', 'running')",
    "node_data": "node_id = 'node-a'",
    "nodes": "id = 'node-a'",
    "placements": "job_id = 'running'",
    "preemptions": "true",
    "queue": "job_id = 'broken'",
}
"""The rows of each table."""
ASKS: dict[str, Any] = {"gpus": 2, "priority": 7, "expected_duration": "10m"}
GANG: dict[str, Any] = {**ASKS, "gpus": 4, "gang": {"group_gpus": 2}}
JOBS = ("broken", "gang", "first", "second", "running", "other")


@pytest.mark.parametrize("stored", NO_REQUESTS)
async def test_a_request_that_cannot_be_read_is_set_aside_and_named(ledger: Ledger, stored: str):
    await ledger.enqueue("broken", gpus=2)
    await ledger.enqueue("held", gpus=2, held=True)
    async with ledger.listening("broken", "held", "next", "late"):
        assert (await ledger.cycle("first")).placed == 0
        await ledger.register(gpus=2)
        await ledger.rows("UPDATE queue SET request = CAST(:stored AS jsonb)", stored=stored)
        await ledger.enqueue("next", gpus=1)
        assert (await ledger.cycle("what-changed")).placed == 1
        await ledger.enqueue("late", gpus=1)
        ledger.cycles = CycleActivities(ledger.database, Signals(ledger.temporal))
        assert (await ledger.cycle("all-anew")).placed == 1
    reason = await ledger.value("SELECT decision->>'reason' FROM queue WHERE job_id = 'broken'")
    assert reason.startswith("set aside: its stored form cannot be read (")
    (found,) = await set_aside(ledger.database)
    assert f"job broken is {reason}" in found.says


async def test_a_request_of_another_job_is_its_own_jobs(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.enqueue("other", gpus=8)
    await ledger.enqueue("broken", gpus=1)
    await ledger.rows(
        'UPDATE queue SET request = request || \'{"id": "other", "attempt": 7}\''
        " WHERE job_id = 'broken'"
    )
    async with ledger.listening("other", "broken"):
        assert (await ledger.cycle("one")).placed == 1
    assert await ledger.value("SELECT job_id FROM placements") == "broken"


@pytest.mark.parametrize(
    "all_values", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
@pytest.mark.parametrize("table", WRITTEN_INTO)
async def test_no_value_that_the_database_takes_ends_a_cycle(
    ledger: Ledger, table: str, all_values: bool
):
    await _fill(ledger)
    # The database rewrites no placement and no use of a node: here it is as if it were new.
    if table == "placements":
        await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    where = WRITTEN_INTO[table]
    rows = f"{table} WHERE {where}"
    columns = await ledger.rows(COLUMNS, table=table)
    assert columns
    number = 0
    async with ledger.listening(*JOBS):
        await ledger.cycle("before")
        assert await ledger.value(f"SELECT count(*) FROM {rows}")
        for place, (column, kind) in enumerate((each["name"], each["kind"]) for each in columns):
            absurd = ABSURD.get(kind, ())
            values = DECISIONS if column == "decision" else ()
            for value in (*(absurd if all_values else some_of(absurd, place)), *values):
                was = await ledger.value(f"SELECT CAST({column} AS text) FROM {rows} LIMIT 1")
                if not await is_written(ledger, table, where, column, kind, value):
                    continue
                number += 1
                try:
                    await ledger.rows("UPDATE queue SET decision = NULL WHERE job_id = 'first'")
                    ledger.cycles = CycleActivities(ledger.database, Signals(ledger.temporal))
                    await ledger.cycle(f"{number}")
                    await topology_in(ledger.database, ledger.pool)
                except Exception as error:
                    raise AssertionError(f"{table}.{column} = {value}: {error!r}") from error
                first = "SELECT decision IS NULL FROM queue WHERE job_id = 'first'"
                assert not await ledger.value(first), f"{table}.{column} = {value}"
                assert await is_written(ledger, table, where, column, kind, was)


def some_of(values: Sequence[str], place: int, *, every: int = 6) -> Sequence[str]:
    """Return each so manyth of the values, at least one, and others for the next column.

    All are tried on every column by `make faults`.
    """
    return values[place % min(every, len(values)) :: every] if values else values


async def is_written(
    ledger: Ledger, table: str, where: str, column: str, kind: str, value: str | None
) -> bool:
    """Write a value into a column, unless the database refuses it; return whether it took it."""
    try:
        await ledger.rows(
            f"UPDATE {table} SET {column} = CAST(:value AS {kind}) WHERE {where}", value=value
        )
    except DBAPIError:
        return False
    return True


async def _fill(ledger: Ledger) -> None:
    """Give the pool nodes that are full, one of them bought, and jobs that wait for others to give
    way."""
    await ledger.enqueue("broken", **ASKS)
    await ledger.rows(
        "INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at, pool,"
        " price_micro_per_gpu_hour) VALUES ('block', 'own', '', 'FAST', now(),"
        " now() + interval '10 days', :pool, 1000000)",
        pool=ledger.pool,
    )
    for job, node in (("running", "node-a"), ("other", "node-b")):
        await ledger.register(node, gpus=2)
        saves: dict[str, Any] = {"checkpoint": {"folder": "/saves"}, "data": {"set": "1GB"}}
        await ledger.enqueue(job, gpus=2, priority=0, expected_duration="100h", **saves)
        await ledger.place(job, gpus=(0, 1), node=node)
    await ledger.rows(
        "UPDATE nodes SET block_id = 'block', expires_at = now() + interval '9 days'"
        " WHERE id = 'node-a'"
    )
    await ledger.rows("INSERT INTO node_data (node_id, name) VALUES ('node-a', 'set')")
    await ledger.rows(
        "INSERT INTO job_checkpoints (job_id, attempt, number, ranks, bytes, write_seconds,"
        " saved_at, simulated) VALUES ('running', 1, 1, 1, 1000, 1, now(), false)"
    )
    await ledger.rows("DELETE FROM queue WHERE job_id IN ('running', 'other')")
    for job in ("first", "second"):
        await ledger.enqueue(job, **ASKS, data={"set": "1GB"})
    await ledger.rows(
        "INSERT INTO preemptions (job_id, attempt, pool, cycle_id, for_job, for_attempt, priority,"
        " for_priority, plan, frees_by) VALUES ('other', 1, :pool, 'before', 'first', 1, 0, 7,"
        " CAST(:plan AS jsonb), now() + interval '1 minute')",
        pool=ledger.pool,
        plan='{"job_id": "first", "at": "2026-11-20T12:00:00Z", "reason": "costs less"}',
    )
    await ledger.enqueue("gang", **GANG)


COLUMNS = """
    SELECT a.attname AS name, t.typname AS kind
      FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
     WHERE a.attrelid = CAST(:table AS regclass) AND a.attnum > 0 AND NOT a.attisdropped
       AND a.attname NOT IN ('changed_in', 'written_in')
"""
"""Without what a trigger writes whatever is written."""


async def test_a_request_for_more_gpus_than_anybody_has_takes_no_memory(ledger: Ledger):
    """Who pays lists them one by one: such a row took that of the control worker."""
    await ledger.enqueue("broken", gpus=1)
    await ledger.rows(
        "UPDATE queue SET request = request || '{\"gpus\": 1000000000}' WHERE job_id = 'broken'"
    )
    async with ledger.listening("broken"):
        await ledger.cycle("one")
    reason = await ledger.value("SELECT decision->>'reason' FROM queue WHERE job_id = 'broken'")
    assert reason.startswith("set aside: its stored form cannot be read (gpus: must be at most")
