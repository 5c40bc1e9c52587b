"""Rows of nodes and GPUs into which somebody has written by hand: their pool goes on with what can
be read, other pools as if nothing was, and whoever looks is answered."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.activities.cycle import CycleActivities
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_nodes, load_running
from longshore.activities.views import Views
from longshore.client.explainer import Explainer
from longshore.client.topology import topology_in
from longshore.models.settings import Settings
from longshore.models.topology import FABRIC_LABELS, MOST_GPUS
from tests.activities.test_damaged_rows import some_of
from tests.support.control import new_pool
from tests.support.ledger import Ledger

ANY_VALUE = (
    "null", "7", "true", '"x"', "[]", "[1]", "{}", '{"a": null}', '{"a": 1}', '{"a": [1]}',
    '{"a": {"b": []}}', '[["a"]]', "[" * 3000 + "]" * 3000, '{"a": %s}' % ("9" * 5000),
    '{"a": 1e400}',
)  # fmt: skip
"""Values of JSON, also such as Python does not read."""
OF_COLUMN = {
    "nodes.labels": tuple(
        json.dumps({**dict.fromkeys(FABRIC_LABELS, "x"), name: value})
        for name in FABRIC_LABELS
        for value in ([1], {"b": 1}, 7, None)
    ),
    "nodes.topology": (
        '{"gpus": [0, 1], "links": [[null, {}], [[], null]]}',
        '{"gpus": [[0], 1], "links": [[null, null], [null, null]]}',
        '{"gpus": [0, 99999999], "links": [[null, "nvlink"], ["nvlink", null]]}',
        '{"gpus": [0], "links": [[null]], "nics": [["a"]]}',
    ),
    "nodes.firmware": ('[{"part": ["x"]}]', '[{"part": "BIOS", "facts": {"a": 1}}]', "[[1]]"),
    "gpus.mig": (
        '{"1g.10gb": 1}', '{"1g.10gb": [[1]]}', '{"1g.10gb": [1]}', '{"zzz": [1]}',
        '{"1g.10gb": [99999999]}', '{"1g.10gb": {"a": 1}}',
    ),
    "gpus.mig_instances": ('[{"profile": ["x"]}]', '[[1]]'),
}  # fmt: skip
"""The columns of JSON, each with values that look like what belongs there."""

JOBS = ("running", "shared", "waits", "gang")


@pytest.mark.parametrize(
    "all_values", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
@pytest.mark.parametrize("place", OF_COLUMN)
async def test_no_value_of_json_ends_a_cycle_or_a_look_at_nodes(
    ledger: Ledger, place: str, all_values: bool
):
    table, column = place.split(".")
    values: Sequence[str] = (*ANY_VALUE, *OF_COLUMN[place])
    if not all_values:
        values = some_of(values, list(OF_COLUMN).index(place))
    other = Ledger(ledger.database, ledger.temporal, new_pool())
    await other.keep_order_of_age()
    await other.register("theirs", gpus=64, cpus=64, ram=1000)
    explainer = Explainer(ledger.database, Settings(), _no_temporal)
    views = Views(ledger.database)
    async with ledger.listening(*JOBS):
        await _fill(ledger)
        for number, value in enumerate(values):
            await ledger.rows(
                f"UPDATE {table} SET {column} = CAST(:value AS jsonb)"
                f" WHERE {'node_id' if table == 'gpus' else 'id'} LIKE 'node-%'",
                value=value,
            )
            try:
                ledger.cycles = CycleActivities(ledger.database, Signals(ledger.temporal))
                await ledger.rows("UPDATE queue SET decision = NULL")
                await ledger.cycle(f"{number}")
                decisions = "SELECT count(*) FROM queue WHERE decision IS NULL AND pool = :pool"
                assert not await ledger.value(decisions, pool=ledger.pool)
                await other.enqueue(f"other-{number}", gpus=1)
                async with ledger.listening(f"other-{number}"):
                    assert (await other.cycle(f"other-{number}")).placed == 1
                nodes = await views.nodes(pool=ledger.pool)
                assert [node.id for node in nodes] == ["node-a", "node-b", "node-c"]
                await topology_in(ledger.database, None)
                for job in JOBS:
                    await explainer.explanation(await views.job(job))
            except Exception as error:
                raise AssertionError(f"{place} = {value[:60]}: {error!r}") from error


async def test_labels_that_are_none_leave_a_node_without_labels(ledger: Ledger):
    await ledger.register("node-a", gpus=2)
    await ledger.rows("""UPDATE nodes SET labels = '{"a": [1], "region": "eu"}'""")
    async with ledger.database.snapshot() as connection:
        (node,) = await load_nodes(connection, ledger.pool)
    assert node.labels == {}
    (shown,) = await Views(ledger.database).nodes(pool=ledger.pool)
    assert "labels cannot be read" in shown.state_reason


async def test_a_gpu_has_no_index_beyond_that_of_the_last(ledger: Ledger):
    await ledger.register("node-a", gpus=2)
    for index in (MOST_GPUS, 99_999_999):
        with pytest.raises(IntegrityError, match="gpus_index_in_bounds"):
            await ledger.rows("UPDATE gpus SET index = :to WHERE index = 1", to=index)
    await ledger.rows("UPDATE gpus SET index = :to WHERE index = 1", to=MOST_GPUS - 1)


async def test_a_gpu_with_an_index_that_none_has_is_left_out(ledger: Ledger):
    """A plan took minutes, with all pools waiting: its time grew by the square of the index."""
    await ledger.register("node-a", gpus=2)
    await ledger.rows("ALTER TABLE gpus DROP CONSTRAINT IF EXISTS gpus_index_in_bounds")
    await ledger.rows("UPDATE gpus SET index = 99999999 WHERE index = 1")
    async with ledger.listening("held", "one", "two"):
        await ledger.enqueue("held", gpus=1)
        await ledger.rows("DELETE FROM queue")
        await ledger.place("held", gpus=(99_999_999,))
        await ledger.enqueue("one", gpus=1)
        await ledger.enqueue("two", gpus=1)
        async with ledger.database.snapshot() as connection:
            (node,) = await load_nodes(connection, ledger.pool)
            (running,) = await load_running(connection, ledger.pool)
        assert [gpu.index for gpu in node.gpus] == [0]
        assert (running.job_id, running.gpu_indices) == ("held", ())
        async with asyncio.timeout(60):
            assert (await ledger.cycle("one")).placed == 1
    assert await ledger.value("SELECT gpu_indices FROM placements WHERE job_id = 'one'") == [0]


async def _fill(ledger: Ledger) -> None:
    """Give the pool a node that a job has, one that jobs share, and one that is free."""
    for node in ("node-a", "node-b", "node-c"):
        await ledger.register(node, gpus=2)
    await ledger.enqueue("running", gpus=2)
    await ledger.enqueue("shared", milli=500, vram_per_gpu=30)
    assert (await ledger.cycle("before")).placed == 2
    await ledger.enqueue("waits", gpus=3)
    gang = {"group_gpus": 8, "unlabelled_nodes": True}
    await ledger.enqueue("gang", gpus=8, gang=gang)


async def _no_temporal() -> None:
    return None
