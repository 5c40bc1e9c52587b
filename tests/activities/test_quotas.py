"""Hard quotas of tenants in the database: refused at commit with used, asked and limit."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from longshore.activities.funding.planning import read_funding
from longshore.activities.funding.quotas import quota_room
from longshore.models.funding import Quotas
from longshore.models.placement import PlacementKey
from longshore.scheduling.funding.facts import Wall
from tests.support.funding import job_of, tenant
from tests.support.ledger import WAITING_FOR_LOCKS, Ledger
from tests.support.packing import a_job
from tests.support.waiting import eventually


@pytest.fixture
async def tree(ledger: Ledger) -> Ledger:
    """A tenant `root` over `a` and `b`, none with a budget, and two nodes of eight GPUs."""
    await ledger.register("node-a", gpus=8)
    await ledger.register("node-b", gpus=8)
    for name, parent in (("root", None), ("a", "root"), ("b", "root")):
        await tenant(ledger, name, parent, budget=False)
    return ledger


async def set_quotas(ledger: Ledger, name: str, **quotas: Any) -> None:
    await ledger.rows(
        "UPDATE tenants SET quotas = CAST(:quotas AS jsonb) WHERE name = :name",
        name=name, quotas=Quotas(**quotas).model_dump_json(exclude_none=True),
    )  # fmt: skip


async def test_a_quota_is_for_all_below_and_is_told_with_used_asked_and_limit(ledger: Ledger):
    """Q1 of the seed on quotas: 195 GPUs are used, 10 more are asked for, and 200 may be held."""
    await ledger.register(gpus=205)
    await tenant(ledger, "root", budget=False)
    await tenant(ledger, "a", "root", budget=False)
    await set_quotas(ledger, "root", max_gpus=200)
    await job_of(ledger, "large", "a", tuple(range(195)))
    with pytest.raises(IntegrityError, match=r"quota of tenant root: max_gpus: 195 \+ 10 > 200"):
        await job_of(ledger, "more", "root", tuple(range(195, 205)))
    await job_of(ledger, "less", "root", tuple(range(195, 200)))
    await job_of(ledger, "other", "elsewhere", (200, 201))
    with pytest.raises(IntegrityError, match=r"max_gpus: 200 \+ 0.5 > 200"):
        await job_of(ledger, "part", "a", (203,), milli=500)
    with pytest.raises(IntegrityError, match=r"max_gpus: 200 \+ 0.75 > 200"):
        await job_of(ledger, "parts", "a", (202, 203, 204), milli=250)


@pytest.mark.parametrize(
    ("quotas", "said"),
    [
        ({"max_nodes": 1}, r"max_nodes: 1 \+ 1 > 1"),
        ({"max_jobs": 1}, r"max_jobs: 1 \+ 1 > 1"),
        ({"max_gpus": 2}, r"max_gpus: 2 \+ 1 > 2"),
        ({"sensitive_nodes": 0}, r"sensitive_nodes: 0 \+ 1 > 0"),
        ({"max_nodes": 2, "max_jobs": 2, "max_gpus": 3, "sensitive_nodes": 1}, None),
        ({"max_queued": 0, "gpu_hours": 1}, None),
    ],
)
async def test_each_quota_is_a_wall(tree: Ledger, quotas: dict[str, Any], said: str | None):
    await set_quotas(tree, "root", **quotas)
    await job_of(tree, "first", "a", (0, 1))
    if said is None:
        await job_of(tree, "second", "b", node="node-b", alone=True)
        return
    with pytest.raises(IntegrityError, match=said):
        await job_of(tree, "second", "b", node="node-b", alone=True)


async def test_a_lowered_quota_ends_nothing_and_what_adds_nothing_is_taken(tree: Ledger):
    await job_of(tree, "first", "a", (0, 1))
    await job_of(tree, "second", "a", (0,), node="node-b")
    await set_quotas(tree, "a", max_nodes=1, max_gpus=100, max_jobs=100)
    await job_of(tree, "third", "a", (2,))
    assert await tree.value("SELECT count(*) FROM placements WHERE ended_at IS NULL") == 3
    await set_quotas(tree, "a", max_gpus=1)
    with pytest.raises(IntegrityError, match=r"max_gpus: 4 \+ 1 > 1"):
        await job_of(tree, "fourth", "a", (3,))
    # A spare goes on with an attempt: in one transaction the one ends and the next begins.
    async with tree.database.transaction() as connection:
        for statement in (
            "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'swapped'"
            " WHERE job_id = 'first'",
            "INSERT INTO placements (job_id, attempt, rank, cycle_id, node_id, epoch, gpu_indices,"
            " cpu_milli, ram_mb, vram_mb, expected_seconds, decision)"
            " SELECT job_id, 2, rank, cycle_id, node_id, epoch, gpu_indices, 0, 0, 0, 60, '{}'"
            "   FROM placements WHERE job_id = 'first'",
        ):
            await connection.execute(text(statement))


async def test_of_many_at_once_as_many_run_as_the_quota_allows(tree: Ledger):
    await set_quotas(tree, "root", max_gpus=3)
    outcomes = await asyncio.gather(
        *(
            job_of(tree, f"j{number}", "ab"[number % 2], (number // 2,), node=f"node-{at}")
            for number, at in enumerate("ab" * 6)
        ),
        return_exceptions=True,
    )
    placed = [each for each in outcomes if isinstance(each, str)]
    assert len(placed) == 3, outcomes
    assert all(isinstance(each, str | IntegrityError) for each in outcomes)


async def test_what_is_within_a_quota_is_taken_and_one_job_more_is_refused(tree: Ledger):
    """Q2 and Q3 of the seed on quotas: 4 + 4 of 10 GPUs, and a sixth job where five may run."""
    await set_quotas(tree, "root", max_gpus=10, max_jobs=5)
    await job_of(tree, "first", "a", tuple(range(4)))
    await job_of(tree, "second", "b", tuple(range(4)), node="node-b")
    await set_quotas(tree, "root", max_jobs=5)
    for number in range(4, 7):
        await job_of(tree, f"small-{number}", "a", (number,))
    with pytest.raises(IntegrityError, match=r"max_jobs: 5 \+ 1 > 5"):
        await job_of(tree, "sixth", "b", (7,), node="node-b")


async def test_of_two_at_once_that_fit_each_alone_one_is_placed(tree: Ledger):
    """Q11 of the seed on quotas: two of 6 GPUs where 10 may be held."""
    await set_quotas(tree, "root", max_gpus=10)
    outcomes = await asyncio.gather(
        *(job_of(tree, f"six-{at}", at, tuple(range(6)), node=f"node-{at}") for at in "ab"),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in outcomes) == ["IntegrityError", "str"], outcomes
    assert "max_gpus: 6 + 6 > 10" in str([each for each in outcomes if not isinstance(each, str)])


async def test_tenants_without_quotas_wait_for_nobody(tree: Ledger):
    await set_quotas(tree, "a", max_gpus=8)
    async with tree.database.transaction() as connection:
        await connection.execute(text("SELECT FROM tenants WHERE name = 'a' FOR UPDATE"))
        await job_of(tree, "free", "b", (0,))
        waits = asyncio.create_task(job_of(tree, "walled", "a", (1,)))
        await eventually(lambda: tree.value(WAITING_FOR_LOCKS))
    await waits


async def test_a_job_over_max_queued_is_refused_and_on_record(tree: Ledger):
    await set_quotas(tree, "root", max_queued=2)
    async with tree.listening("q1", "q2", "q3"):
        for job in ("q1", "q2"):
            assert (await tree.enqueue(job, tenant="a", held=True)).queued
        refused = await tree.enqueue("q3", tenant="b")
        assert not refused.queued
        assert refused.refusal == "quota of tenant root: max_queued: 2 + 1 > 2"
        assert await tree.value("SELECT count(*) FROM jobs WHERE id = 'q3'") == 1
        again = await tree.enqueue("q1", tenant="a", held=True, delivery=2)
        assert again.queued
        # A further attempt of a job that is there already is asked nothing.
        await set_quotas(tree, "root", max_queued=0)
        await tree.release("q1")
        assert (await tree.enqueue("q1", attempt=2, tenant="a")).queued


async def test_a_job_that_is_more_than_a_quota_alone_is_refused_at_once(tree: Ledger):
    await set_quotas(tree, "root", max_gpus=4)
    refused = await tree.enqueue("wide", tenant="a", gpus=5)
    assert refused.refusal == (
        "quota of tenant root: max_gpus: it asks for 5, and 4 is the most that the tenant and "
        "those below it may hold; `longshore tenant set root --max-gpus 5` raises it"
    )
    assert (await tree.enqueue("fits", tenant="a", gpus=4)).queued
    assert (await tree.enqueue("free", tenant="c", gpus=5)).queued


async def test_a_cycle_can_ask_what_is_left(tree: Ledger):
    async with tree.database.transaction() as connection:
        assert await quota_room(connection) == ()
    await set_quotas(tree, "root", max_gpus=3, max_nodes=1)
    await set_quotas(tree, "b", max_queued=3)
    await job_of(tree, "j", "a", (0, 1))
    async with tree.database.transaction() as connection:
        (wall,) = await quota_room(connection)
    assert wall == Wall(
        "root", frozenset({"root", "a", "b"}), Quotas(max_gpus=3, max_nodes=1), 2000, 1,
        frozenset({"node-a"}), frozenset(),
    )  # fmt: skip
    assert wall.refuses(1000, ["node-a"]) == ""
    assert wall.refuses(1500, ["node-a"]) == "quota of tenant root: max_gpus: 2 + 1.5 > 3"
    assert wall.refuses(500, ["node-b"]) == "quota of tenant root: max_nodes: 1 + 1 > 1"
    assert wall.having(1000).refuses(500) == "quota of tenant root: max_gpus: 3 + 0.5 > 3"
    for gpus, node in (((2, 3), "node-a"), ((0,), "node-b")):
        said = wall.refuses(1000 * len(gpus), [node])
        with pytest.raises(IntegrityError, match=said.replace("+", r"\+")):
            await job_of(tree, f"j-{node}", "b", gpus, node=node)
    key = PlacementKey(job_id="j", attempt=1)
    await tree.release(key.job_id)
    async with tree.database.transaction() as connection:
        (wall,) = await quota_room(connection)
    assert wall.milli == 0


async def test_a_cycle_plans_nobody_onto_a_node_that_a_quota_refuses(tree: Ledger):
    await set_quotas(tree, "root", max_nodes=1)
    await job_of(tree, "j", "a", tuple(range(8)))
    async with tree.listening("first", "alone", "behind"):
        await tree.enqueue("first", tenant="b", gpus=1, priority=9)
        await tree.enqueue("alone", tenant="a", gpus=1, priority=9, sensitive=True)
        await tree.enqueue("behind", tenant="free", gpus=8)
        assert (await tree.cycle("cycle-1")).placed == 1
    (placed,) = await tree.rows(
        "SELECT job_id, node_id FROM placements WHERE cycle_id = 'cycle-1'"
    )
    assert placed == {"job_id": "behind", "node_id": "node-b"}
    refused = await tree.value("SELECT refused FROM cycles WHERE id = 'cycle-1'")
    assert refused == 0
    reasons = {
        row["job_id"]: row["decision"]["reason"]
        for row in await tree.rows("SELECT job_id, decision FROM queue")
    }
    assert "over-quota" in reasons["first"]
    assert reasons["alone"].startswith("quota of tenant root: max_nodes: 1 + 1 > 1: ")


async def test_how_large_nodes_are_is_read_where_a_sensitive_job_asks(tree: Ledger):
    await set_quotas(tree, "root", max_gpus=16)
    plain, alone = a_job("p", 1, tenant="a"), a_job("s", 1, tenant="a", sensitive=True)
    async with tree.database.transaction() as connection:
        found = await read_funding(connection, tree.pool, [plain])
        assert found is not None
        assert found.facts.sizes == {}
        found = await read_funding(connection, tree.pool, [plain, alone])
        assert found is not None
        assert list(found.facts.sizes.values()) == [(8,)]
