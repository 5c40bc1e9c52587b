"""Models and runtimes in the database: what it refuses whatever the code does, and revisions."""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from longshore.activities.queue_rows import ensure_pool
from longshore.activities.serving.examination import Examined
from longshore.activities.serving.model_room import model_in_full
from longshore.activities.serving.stored_models import (
    load_gpus,
    load_model,
    load_models,
    load_runtime,
    load_runtimes,
    remove_model,
    remove_runtime,
    store_models,
    store_runtimes,
)
from longshore.models.errors import NotFoundError, RefusedError, StoredError
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import ModelSpec, Runtime
from tests.support.ledger import WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually

_SERVICE = (
    "INSERT INTO services (name, revision, replicas, model) VALUES ('s', 1, 0, 'm')",
    "INSERT INTO service_revisions (service, number, spec, engine, model_revision)"
    " VALUES ('s', 1, '{}', '{}', 1)",
)
OWN = Runtime(name="own", command=("serve", "{port}"))


def model(name: str, **fields: Any) -> Examined:
    given = {"source": "/m", "memory": 2, "context": 8, "concurrency": 1, **fields}
    return Examined(ModelSpec.model_validate({"name": name, **given}), None, (), ())


async def store(ledger: Ledger, *models: Examined, by: str = "ann") -> None:
    async with ledger.database.transaction() as connection:
        await store_models(connection, models, by)


async def store_own(ledger: Ledger, runtime: Runtime = OWN) -> None:
    async with ledger.database.transaction() as connection:
        await store_runtimes(connection, [runtime], "ann")


async def test_the_built_in_runtimes_are_those_of_the_code(ledger: Ledger):
    rows = await ledger.rows("SELECT name FROM runtimes WHERE spec IS NULL")
    assert {row["name"] for row in rows} == set(BUILT_IN)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("INSERT INTO models (name, runtime, spec) VALUES ('x', 'nothing', "
         "'{\"name\": \"x\", \"runtime\": \"nothing\"}')", "models_runtime_fkey"),
        ("INSERT INTO models (name, runtime, spec) VALUES ('x', 'vllm', "
         "'{\"name\": \"x\", \"runtime\": \"ollama\"}')", "models_spec"),
        ("INSERT INTO models (name, runtime, spec) VALUES ('x', 'vllm', "
         "'{\"name\": \"y\", \"runtime\": \"vllm\"}')", "models_spec"),
        ("INSERT INTO runtimes (name, spec) VALUES ('x', '{}')", "runtimes_spec"),
        ("DELETE FROM runtimes WHERE name = 'own'", "models_runtime_fkey"),
        ("DELETE FROM runtimes WHERE name = 'vllm'", "vllm is built in"),
        ("UPDATE runtimes SET changed_by = 'bob' WHERE name = 'vllm'", "vllm is built in"),
        ("UPDATE runtimes SET name = 'other' WHERE name = 'own'", "own keeps its name"),
        ("UPDATE models SET name = 'other' WHERE name = 'm'", "m keeps its name"),
        ("UPDATE models SET created_at = 'epoch' WHERE name = 'm'", "m keeps its name"),
        ("UPDATE runtimes SET spec = spec || '{\"split\": \"heads\"}' WHERE name = 'own'",
         "own keeps memory and split while models have it, such as m"),
        ("UPDATE runtimes SET spec = spec || '{\"memory\": \"header\"}' WHERE name = 'own'",
         "own keeps memory and split"),
    ],
)  # fmt: skip
async def test_the_database_refuses(ledger: Ledger, statement: str, why: str):
    await store_own(ledger)
    await store(ledger, model("m", runtime="own"))
    with pytest.raises(IntegrityError) as refused:
        await ledger.rows(statement)
    assert why in str(refused.value)


async def test_a_revision_rises_with_a_change_and_with_nothing_else(ledger: Ledger):
    await store(ledger, model("m"))
    await store(ledger, model("m"), by="bob")
    async with ledger.database.snapshot() as connection:
        first = await load_model(connection, "m")
    assert (first.revision, first.changed_by) == (1, "ann")
    await store(ledger, model("m", memory=3), by="bob")
    await ledger.rows("UPDATE models SET revision = 70, changed_by = 'eve' WHERE name = 'm'")
    async with ledger.database.snapshot() as connection:
        second = await load_model(connection, "m")
    assert (second.revision, second.changed_by, second.memory) == (2, "eve", 3_000_000_000)
    assert first.created_at == second.created_at < second.changed_at


async def test_changes_are_told_one_after_another(ledger: Ledger):
    """Two at one time: the second one says what it changes of what the first has stored."""
    await store(ledger, model("m"))
    async with ledger.database.transaction() as first:
        (a,) = await store_models(first, [model("m", context=9)], "ann")

        async def change() -> Any:
            async with ledger.database.transaction() as second:
                return await store_models(second, [model("m", context=10)], "bob")

        other = asyncio.create_task(change())

        async def waits() -> bool:
            return await ledger.value(WAITING_FOR_LOCKS) == 1

        await eventually(waits)
    (b,) = await other
    assert (a.fields, a.revision) == (("context 8 to 9",), 2)
    assert (b.fields, b.revision) == (("context 9 to 10",), 3)


async def test_a_runtime_that_goes_meanwhile_is_told(ledger: Ledger):
    with pytest.raises(RefusedError, match="model m is not stored: its runtime was removed"):
        await store(ledger, model("m", runtime="own"))


async def test_a_model_that_a_service_has_stays(ledger: Ledger):
    await store(ledger, model("m"))
    async with ledger.database.transaction() as connection:
        for statement in _SERVICE:
            await connection.execute(text(statement))
    with pytest.raises(RefusedError, match="model m is served: `longshore services` lists"):
        async with ledger.database.transaction() as connection:
            await remove_model(connection, "m")
    await store(ledger, model("m", memory=3))  # and may be changed
    assert await ledger.value("SELECT revision FROM models") == 2


async def test_a_runtime_that_models_have_stays(ledger: Ledger):
    await store_own(ledger)
    await store(ledger, model("a", runtime="own"), model("b", runtime="own"))
    async with ledger.database.transaction() as connection:
        with pytest.raises(RefusedError, match=r"runtime own serves a, b: give them another one"):
            await remove_runtime(connection, "own")
    await store(ledger, model("a"), model("b"))
    async with ledger.database.transaction() as connection:
        await remove_runtime(connection, "own")
        with pytest.raises(NotFoundError, match="there is no runtime 'own'"):
            await load_runtime(connection, "own")


async def test_a_model_that_cannot_be_read_hides_no_other(ledger: Ledger):
    await store(ledger, model("a"), model("b"), model("c"))
    spoilt = json.dumps({"newer": 1})
    await ledger.rows(
        "UPDATE models SET spec = spec || CAST(:s AS jsonb) WHERE name <> 'c'", s=spoilt
    )
    async with ledger.database.snapshot() as connection:
        with pytest.raises(StoredError, match="what is stored of model a cannot be read: newer"):
            await load_model(connection, "a")
        a, _, c = await load_models(connection)
    assert (a.spec.name, a.spec.runtime, c.trouble) == ("a", "llama.cpp", "")
    assert "`longshore models rm a` removes it" in a.trouble
    async with ledger.database.transaction() as connection:
        (change,) = await store_models(connection, [model("a")], "ann")
        await remove_model(connection, "b")
    assert change.fields == ("what is stored, which cannot be read",)
    async with ledger.database.snapshot() as connection:
        assert [each.trouble for each in await load_models(connection)] == ["", ""]


async def test_a_runtime_that_cannot_be_read_hides_no_other(ledger: Ledger):
    await store_own(ledger)
    await ledger.rows("UPDATE runtimes SET spec = spec || '{\"newer\": 1}' WHERE name = 'own'")
    async with ledger.database.snapshot() as connection:
        assert (await load_runtime(connection, "vllm")).built_in
        with pytest.raises(StoredError, match="what is stored of runtime own cannot be read"):
            await load_runtime(connection, "own")
    async with ledger.database.transaction() as connection:
        (change,) = await store_runtimes(connection, [OWN], "ann")
    assert change.fields == ("what is stored, which cannot be read",)
    await ledger.rows("UPDATE runtimes SET spec = spec || '{\"newer\": 1}' WHERE name = 'own'")
    async with ledger.database.transaction() as connection:
        await remove_runtime(connection, "own")
    assert await ledger.value("SELECT count(*) FROM runtimes WHERE spec IS NOT NULL") == 0


async def test_a_runtime_that_a_newer_version_has_built_in_is_passed_over(ledger: Ledger):
    await ledger.rows("INSERT INTO runtimes (name) VALUES ('newer')")
    async with ledger.database.snapshot() as connection:
        assert set(await load_runtimes(connection)) == set(BUILT_IN)


async def test_models_are_counted_by_runtime(ledger: Ledger):
    await store(ledger, model("a"), model("b"), model("c", runtime="vllm"))
    async with ledger.database.snapshot() as connection:
        found = await load_runtimes(connection)
    assert {name: view.models for name, view in found.items()} == {
        "llama.cpp": 2, "ollama": 0, "vllm": 1,
    }  # fmt: skip


async def test_the_gpus_of_nodes_that_are_there(ledger: Ledger):
    await ledger.register("a", gpus=2)
    await ledger.register("gone")
    await ledger.rows("UPDATE nodes SET state = 'GONE' WHERE id = 'gone'")
    async with ledger.database.snapshot() as connection:
        (found,) = await load_gpus(connection)
    assert (found.node_id, found.gpus, found.each) == ("a", 2, 80.0)


async def test_where_a_model_has_room_and_where_it_would_when_nodes_are_empty(ledger: Ledger):
    await store(ledger, model("m", memory=60))
    for node in ("free", "full", "lost", "drained", "cordoned", "ends"):
        await ledger.register(node, gpus=1)
    await ledger.add_job("job")
    await ledger.place("job", node="full")
    async with ledger.database.transaction() as connection:
        await connection.execute(text("UPDATE nodes SET state = 'LOST' WHERE id = 'lost'"))
        ends = "UPDATE nodes SET expires_at = now() + interval '4m' WHERE id = 'ends'"
        await connection.execute(text(ends))
        takes_none = "UPDATE nodes SET state = 'DRAINING' WHERE id = ANY(:ids)"
        await connection.execute(text(takes_none), {"ids": ["drained", "cordoned"]})
        (size, *_) = (await model_in_full(connection, "m")).sizes
    assert (size.nodes, size.when_empty) == (("free",), ("full",))


async def test_room_is_for_its_part_of_the_gpus_of_each_pool(ledger: Ledger):
    """A replica there counts so, however large the GPUs of another pool are."""
    await store(ledger, model("m", memory=40))
    for node in ("shared", "large"):
        await ledger.register(node, gpus=1)
    await ledger.add_job("job")
    await ledger.place("job", node="shared", milli=600)
    async with ledger.database.transaction() as connection:
        await ensure_pool(connection, "other")
        await connection.execute(text("UPDATE nodes SET pool = 'other' WHERE id = 'large'"))
        await connection.execute(text("UPDATE gpus SET vram_mb = 192000 WHERE node_id = 'large'"))
        (size, *_) = (await model_in_full(connection, "m")).sizes
    assert (size.nodes, size.when_empty) == (("large",), ("shared",))
