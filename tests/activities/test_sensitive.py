"""Jobs that hold their nodes alone, in the database: it refuses whoever would join."""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.activities.fingerprints import accept
from longshore.activities.held_differences import HELD_DIFFERENCES
from longshore.activities.snapshot import load_nodes, load_running
from longshore.activities.views import Views
from longshore.models.errors import NotFoundError, RefusedError
from longshore.models.failover import SwapRequest
from longshore.models.messages import LeaseEnd, PlacementKey
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL
from tests.support.ledger import Ledger

FABRIC = {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: "a"}
ON = "SELECT node_id, spare FROM placements WHERE job_id = 'wide' AND attempt = 1 ORDER BY rank"
OLD, NEW = "1111111111111111", "2222222222222222"
HELD_BY = "SELECT held_alone_by FROM nodes WHERE id = 'node-a'"


@pytest.fixture
async def node(ledger: Ledger) -> Ledger:
    await ledger.register(gpus=4, conformance=OLD)
    for job in ("a", "b", "c"):
        await ledger.add_job(job)
    return ledger


async def test_nobody_joins_a_job_that_holds_its_node_alone(node: Ledger):
    await node.place("a", [0], alone=True)
    assert await node.value(HELD_BY) == "a"
    for alone in (False, True):
        with pytest.raises(IntegrityError, match="held alone by another job"):
            await node.place("b", [2], alone=alone)
    await end(node, "a")
    assert await node.value(HELD_BY) is None
    await node.place("b", [2])
    assert await node.rows(HELD_DIFFERENCES) == []


async def test_a_job_does_not_hold_alone_what_others_are_on(node: Ledger):
    await node.place("a", [0])
    with pytest.raises(IntegrityError, match="another job is on node node-a"):
        await node.place("b", [1, 2, 3], alone=True)
    assert await node.value(HELD_BY) is None
    await end(node, "a")
    await node.place("b", [1, 2, 3], alone=True)
    assert await node.value(HELD_BY) == "b"


@pytest.mark.parametrize("alone", [1, 8, 16])
async def test_of_many_at_once_one_holds_the_node_or_nobody_does(ledger: Ledger, alone: int):
    """Each wants a GPU of its own: only who holds the node alone is in the way."""
    await ledger.register(gpus=16)
    jobs = [f"job-{number:02}" for number in range(16)]
    for job in jobs:
        await ledger.add_job(job)
    outcomes = await asyncio.gather(
        *(ledger.place(job, [i], alone=i < alone, cpu=1) for i, job in enumerate(jobs)),
        return_exceptions=True,
    )
    assert all(outcome is None or isinstance(outcome, IntegrityError) for outcome in outcomes)
    placed = [job for job, outcome in zip(jobs, outcomes, strict=True) if outcome is None]
    held_by = await ledger.value(HELD_BY)
    if held_by is None:
        assert placed == jobs[alone:]
    else:
        assert placed == [held_by]
    assert await ledger.rows(HELD_DIFFERENCES) == []


async def test_idle_gpus_are_held_and_only_of_a_node_that_is_held_alone(node: Ledger):
    for fields in ({"idle": [3], "alone": True}, {"idle": [0]}):
        with pytest.raises(IntegrityError, match="placements_idle"):
            await node.place("a", [0, 1], **fields)


async def test_a_cycle_gives_a_sensitive_job_the_whole_node_and_its_process_what_it_asked_for(
    ledger: Ledger,
):
    await ledger.register("node-a", gpus=4, conformance=OLD)
    await ledger.register("node-b", gpus=4, conformance=OLD)
    jobs: dict[str, dict[str, Any]] = {
        "a-alone": {"gpus": 1, "vram_per_gpu": 40, "sensitive": True}, "b-other": {"gpus": 1},
        "c-alone": {"gpus": 2, "sensitive": True},
    }  # fmt: skip
    async with ledger.listening(*jobs):
        for job, spec in jobs.items():
            await ledger.enqueue(job, **{"ram": 1, **spec})
        reply = await ledger.cycle("c/1")
        assert reply.placed == 2
        assert await ledger.drift() == []
        assert await ledger.rows(HELD_DIFFERENCES) == []
        (told,) = await ledger.signals("a-alone", "placed")
        assert len(told["gpu_indices"]) == 1
        held = await ledger.rows(
            "SELECT l.gpu_index, l.vram_mb FROM leases l WHERE job_id = 'a-alone' ORDER BY 1"
        )
        assert [row["gpu_index"] for row in held] == [0, 1, 2, 3]
        assert sorted(row["vram_mb"] for row in held) == [0, 0, 0, 40_000]
        async with ledger.database.transaction() as connection:
            nodes = await load_nodes(connection, ledger.pool)
            running = await load_running(connection, ledger.pool)
        alone = next(job for job in running if job.job_id == "a-alone")
        assert alone.gpu_indices == (0, 1, 2, 3)
        on = {job.job_id: job.node_id for job in running}
        assert on["a-alone"] != on["b-other"]
        assert sum(gpu.is_free for node in nodes for gpu in node.gpus) == 3
        rejected = await ledger.value("SELECT decision->'rejected' FROM queue")
        assert rejected == {"not-alone": 2}
        await ledger.finish("b-other")
        assert (await ledger.cycle("c/2")).placed == 1
        assert await ledger.rows(HELD_DIFFERENCES) == []


@pytest.mark.parametrize("spares", [0, 3], ids=["none", "spare"])
async def test_a_sensitive_gang_that_loses_a_node_holds_alone_what_it_has_and_nothing_more(
    ledger: Ledger, spares: int
):
    """Where a spare takes the place, it is held alone too; else nothing is held any more."""
    for name in ("node-a", "node-b", "node-c"):
        await ledger.register(name, gpus=3, conformance=OLD)
    await ledger.rows(
        "UPDATE nodes SET labels = CAST(:labels AS jsonb)", labels=json.dumps(FABRIC)
    )
    gang = {"group_gpus": 4, "spares_per_group": spares}
    await ledger.enqueue("wide", gpus=4, cpus=4, ram=2, sensitive=True, gang=gang)
    async with ledger.listening("wide", "other"):
        assert (await ledger.cycle("c/1")).placed == 1
        ranks = await ledger.rows(ON)
        lost, kept = (each["node_id"] for each in ranks if not each["spare"])
        stands_by = [each["node_id"] for each in ranks if each["spare"]]
        assert await held(ledger) == {each["node_id"] for each in ranks}
        end = NodeEnd(node_id=lost, epoch=1, state=NodeState.LOST, reason="silent")
        await ledger.run(ledger.registry.end_node, end)
        assert await ledger.rows(HELD_DIFFERENCES) == []
        request = SwapRequest(
            key=PlacementKey(job_id="wide", attempt=1), end=LeaseEnd.NODE_LOST, message="lost"
        )
        reply = await ledger.run(ledger.spares.swap, request)
        if spares:
            assert reply.placement is not None
            assert await held(ledger) == {kept, *stands_by}
            leases = "SELECT count(*) FROM leases WHERE ended_at IS NULL"
            assert await ledger.value(leases) == 6, "of two nodes all GPUs, those that idle too"
        else:
            assert (reply.placement, await held(ledger)) == (None, set())
        await ledger.enqueue("other", gpus=1, ram=1)
        placed = (await ledger.cycle("c/2")).placed
        assert placed == (0 if spares else 1), "nobody joins what is held"
        assert await ledger.rows(HELD_DIFFERENCES) == []
        assert await ledger.drift() == []
        await ledger.finish("wide", 2 if spares else 1)
        assert await held(ledger) == set()


async def held(ledger: Ledger) -> set[str]:
    """Return the nodes that the gang holds alone."""
    found = await ledger.rows("SELECT id FROM nodes WHERE held_alone_by = 'wide'")
    return {each["id"] for each in found}


async def test_a_node_whose_fingerprint_has_changed_gets_no_sensitive_job_until_it_is_accepted(
    ledger: Ledger,
):
    await ledger.register(gpus=2, conformance=OLD)
    assert await changed(ledger) is False
    await ledger.register(gpus=2, boot="boot-2", conformance=NEW)
    assert await changed(ledger) is True
    async with ledger.listening("alone"):
        await ledger.enqueue("alone", ram=1, sensitive=True)
        assert (await ledger.cycle("c/1")).placed == 0
        rejected = await ledger.value("SELECT decision->'rejected' FROM queue")
        assert rejected == {"conformance-changed": 1}
        async with ledger.database.transaction() as connection:
            found = await accept(connection, "node-a")
        assert (found.fingerprint, found.before) == (NEW, OLD)
        assert await changed(ledger) is False
        assert (await ledger.cycle("c/2")).placed == 1


async def test_a_node_that_says_nothing_later_is_not_changed_but_not_known(ledger: Ledger):
    await ledger.register(gpus=2, conformance=OLD)
    await ledger.register(gpus=2, boot="boot-2")
    async with ledger.listening("alone"):
        await ledger.enqueue("alone", ram=1, sensitive=True)
        await ledger.cycle("c/1")
        rejected = await ledger.value("SELECT decision->'rejected' FROM queue")
        assert rejected == {"conformance-unknown": 1}
    async with ledger.database.transaction() as connection:
        with pytest.raises(RefusedError, match="no fingerprint to accept"):
            await accept(connection, "node-a")
        with pytest.raises(NotFoundError, match="there is no node elsewhere"):
            await accept(connection, "elsewhere")
    await ledger.register(gpus=2, boot="boot-3", conformance=OLD)
    assert await changed(ledger) is False


async def changed(ledger: Ledger) -> bool:
    (seen,) = await Views(ledger.database).nodes(pool=ledger.pool)
    async with ledger.database.transaction() as connection:
        (node,) = await load_nodes(connection, ledger.pool)
    assert node.changed is seen.changed
    return seen.changed


async def end(ledger: Ledger, job: str) -> None:
    key = PlacementKey(job_id=job, attempt=1)
    await ledger.rows(
        "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'finished'"
        f" WHERE job_id = '{key.job_id}'"
    )
