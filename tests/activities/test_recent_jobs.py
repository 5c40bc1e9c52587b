"""What a pool placed lately, as the packer hears of it."""

from datetime import timedelta

import pytest

from longshore.activities.buying.job_runtimes import recent_runtimes
from longshore.activities.snapshot import load_recent
from longshore.activities.views import set_pool
from longshore.models.placement import PackingRule
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import EngineSpec, ModelSpec
from longshore.models.topology import Conformance
from longshore.scheduling.placement import mix
from tests.support.ledger import Ledger


async def test_recent_jobs_are_counted_by_shape(ledger: Ledger):
    await ledger.register(gpus=6)
    jobs = {"a": 1, "b": 1, "c": 4}
    async with ledger.listening(*jobs):
        for job, gpus in jobs.items():
            await ledger.enqueue(job, gpus=gpus)
        await ledger.cycle("one")
        await ledger.release("a")
    async with ledger.database.transaction() as connection:
        recent = await load_recent(connection, ledger.pool)
        elsewhere = await load_recent(connection, f"{ledger.pool}-other")
    found = {(of.request.gpus, of.count, of.ended) for of in recent}
    assert found == {(1, 2, 1), (4, 1, 0)}
    assert elsewhere == ()


@pytest.mark.parametrize(("nodes", "placements"), [(0, 3), (1, 3), (2, 4), (3, 5), (9, 5)])
def test_a_larger_pool_remembers_more_placements(
    nodes: int, placements: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mix, "LEAST_PLACEMENTS", 3)
    monkeypatch.setattr(mix, "MOST_PLACEMENTS", 5)
    assert mix.remembered(nodes) == placements


async def test_the_latest_placements_are_remembered_two_for_each_node(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mix, "LEAST_PLACEMENTS", 1)
    await ledger.register("one", gpus=2)
    await ledger.register("two", gpus=4)
    jobs = {"a": 1, "b": 1, "c": 1, "d": 2, "e": 1}
    async with ledger.listening(*jobs):
        for job, gpus in jobs.items():
            await ledger.enqueue(job, gpus=gpus)
            await ledger.cycle(f"cycle of {job}")
    async with ledger.database.transaction() as connection:
        recent = await load_recent(connection, ledger.pool)
    assert {(of.request.gpus, of.count) for of in recent} == {(1, 3), (2, 1)}


async def test_an_engine_counts_as_a_job_of_its_shape(ledger: Ledger):
    model = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
    engine = EngineSpec(model=model, runtime=BUILT_IN["llama.cpp"], memory=1000)
    await ledger.register(gpus=2)
    async with ledger.listening("chat"):
        await ledger.enqueue("chat", command=None, engine=engine.model_dump(mode="json"))
        await ledger.cycle("one")
    async with ledger.database.transaction() as connection:
        (recent,) = await load_recent(connection, ledger.pool)
    assert (recent.request.gpus, recent.count) == (1, 1)
    assert recent.request.runs_engine
    assert recent.request.loads_within == model.start_limit


async def test_a_job_whose_row_somebody_has_written_into_says_nothing_of_what_comes(
    ledger: Ledger,
):
    await ledger.register(gpus=2)
    async with ledger.listening("a", "b"):
        for job in ("a", "b"):
            await ledger.enqueue(job)
        await ledger.cycle("one")
    await ledger.rows("UPDATE jobs SET spec = '{\"x\": 1}' WHERE id = 'a'")
    async with ledger.database.transaction() as connection:
        (recent,) = await load_recent(connection, ledger.pool)
    assert recent.count == 1


async def test_a_shape_keeps_what_it_asked_of_the_fingerprint(ledger: Ledger):
    await ledger.register("other", gpus=2)
    await ledger.register("seen", gpus=2)
    await ledger.rows("UPDATE nodes SET conformance = 'f1' WHERE id = 'seen'")
    allows = Conformance(allowed=("f1",))
    async with ledger.listening("a"):
        await ledger.enqueue("a", conformance=allows)
        await ledger.cycle("one")
    async with ledger.database.transaction() as connection:
        (recent,) = await load_recent(connection, ledger.pool)
    assert recent.request.conformance == allows
    assert await ledger.value("SELECT node_id FROM placements") == "seen"


async def test_a_pool_packs_by_keep_room_unless_it_names_another_rule(ledger: Ledger):
    await ledger.register(gpus=2)
    async with ledger.listening("a", "b"):
        await ledger.enqueue("a")
        await ledger.cycle("one")
        async with ledger.database.transaction() as connection:
            seed = PoolPacking(rule=PackingRule.SEED_SCORE)
            await set_pool(connection, PoolSpec(name=ledger.pool, packing=seed))
        await ledger.enqueue("b")
        await ledger.cycle("two")
    rules = await ledger.rows(
        "SELECT job_id, decision->'terms'->>'rule' AS rule FROM placements ORDER BY job_id"
    )
    assert rules == [
        {"job_id": "a", "rule": "keep-room"},
        {"job_id": "b", "rule": "seed-score"},
    ]


async def test_jobs_that_finished_lately_tell_how_long_they_ran(ledger: Ledger):
    await ledger.register(gpus=4)
    async with ledger.listening("a", "b", "c"):
        for job in ("a", "b", "c"):
            await ledger.enqueue(job, gpus=1, expected_duration=timedelta(hours=2))
        await ledger.cycle("one")
        await ledger.finish("a")
        await ledger.release("b")  # held: it says nothing of how long it would have run
    async with ledger.database.transaction() as connection:
        (ended,) = await recent_runtimes(connection, ledger.pool)
        elsewhere = await recent_runtimes(connection, f"{ledger.pool}-other")
    assert ended.expected == timedelta(hours=2)
    assert timedelta(0) < ended.ran < timedelta(minutes=30)
    assert elsewhere == ()
