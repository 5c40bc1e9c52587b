"""A spare takes a place in the capacity database: in one transaction, and only once."""

import asyncio
import json
from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.models.failover import SwapReply, SwapRequest
from longshore.models.messages import LeaseEnd
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.models.placement import PlacementKey
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL
from tests.support.funding import (
    SINCE,
    charge,
    envelope,
    funding_drift,
    sums,
    tenant,
    write_charge,
)
from tests.support.ledger import Ledger

FABRIC = {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: "a"}
LIVE = (
    "SELECT rank, spare, node_id AS node FROM placements WHERE attempt = {} AND ended_at IS NULL"
    " ORDER BY rank"
)


@pytest.fixture
async def gang(ledger: Ledger) -> Ledger:
    """A job of 4 GPUs on two nodes of two, with a third node to stand by."""
    for name in ("node-a", "node-b", "node-c"):
        await ledger.register(name)
    await ledger.rows(
        "UPDATE nodes SET labels = CAST(:labels AS jsonb)", labels=json.dumps(FABRIC)
    )
    wish = {"group_gpus": 4, "spares_per_group": 2}
    await ledger.enqueue("wide", gpus=4, cpus=4, gang=wish)
    async with ledger.listening("wide"):
        await ledger.cycle("first")
    return ledger


async def lose(ledger: Ledger, node: str) -> None:
    async with ledger.listening("wide"):
        end = NodeEnd(node_id=node, epoch=1, state=NodeState.LOST, reason="silent")
        await ledger.run(ledger.registry.end_node, end)


async def swap(ledger: Ledger, *, delivery: int = 1) -> SwapReply:
    key = PlacementKey(job_id="wide", attempt=1)
    request = SwapRequest(key=key, end=LeaseEnd.NODE_LOST, message="lost")
    return await ledger.run(ledger.spares.swap, request, attempt=delivery)


async def test_gang_and_spare_are_held_together(gang: Ledger):
    assert await gang.rows(LIVE.format(1)) == [
        {"rank": 0, "spare": False, "node": "node-a"},
        {"rank": 1, "spare": False, "node": "node-b"},
        {"rank": 2, "spare": True, "node": "node-c"},
    ]
    assert await gang.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 6
    assert await gang.drift() == []


async def test_the_next_attempt_begins_with_the_spare_and_a_repeat_finds_it(gang: Ledger):
    await lose(gang, "node-b")
    first = await swap(gang)
    assert first.placement is not None
    assert [rank.node_id for rank in first.placement.ranks] == ["node-a", "node-c"]
    again = await swap(gang, delivery=2)
    assert again == first
    assert await gang.rows(LIVE.format(2)) == [
        {"rank": 0, "spare": False, "node": "node-a"},
        {"rank": 1, "spare": False, "node": "node-c"},
    ]
    waits = await gang.rows("SELECT attempt, waited FROM placements WHERE rank = 0 ORDER BY 1")
    assert waits[0]["waited"] == waits[1]["waited"] > timedelta(0), "it has not waited again"
    ends = "SELECT node_id AS node, end_reason AS why FROM placements WHERE attempt = 1 ORDER BY 1"
    assert [(row["node"], row["why"]) for row in await gang.rows(ends)] == [
        ("node-a", "swapped"), ("node-b", "node-lost"), ("node-c", "swapped"),
    ]  # fmt: skip
    cores = "SELECT cpu_milli_used AS cpu FROM nodes WHERE state = 'READY' ORDER BY id"
    assert await gang.rows(cores) == [{"cpu": 2000}, {"cpu": 2000}]
    assert await gang.drift() == []


@pytest.mark.parametrize(
    "labels", ['[["region"]]', '{"region": ["eu"], "cluster": {"a": 1}, "fabric.domain": 7}']
)
async def test_labels_that_somebody_wrote_by_hand_end_no_swap(gang: Ledger, labels: str):
    """A node has none then, and is a domain of its own."""
    await lose(gang, "node-b")
    await gang.rows("UPDATE nodes SET labels = CAST(:labels AS jsonb)", labels=labels)
    reply = await swap(gang)
    assert reply.reason.endswith("node-b: node-c has 2 in node-c")


async def test_two_deliveries_at_one_time_swap_once(gang: Ledger):
    await lose(gang, "node-b")
    one, other = await asyncio.gather(swap(gang), swap(gang, delivery=2))
    assert one == other
    assert await gang.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 4
    assert await gang.drift() == []


async def test_a_job_that_has_ended_meanwhile_begins_nothing(gang: Ledger):
    await lose(gang, "node-b")
    await gang.finish("wide")
    reply = await swap(gang)
    assert (reply.placement, reply.reason) == (None, "the job has ended")
    assert await gang.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 0


async def test_with_no_spare_left_the_leases_end_and_a_repeat_says_the_same(gang: Ledger):
    await lose(gang, "node-b")
    await lose(gang, "node-c")
    for delivery in (1, 2):
        assert (await swap(gang, delivery=delivery)).placement is None
        assert await gang.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 0
    assert await gang.drift() == []


async def test_a_node_that_is_closed_is_followed_too(gang: Ledger):
    await gang.rows("UPDATE nodes SET state = 'DRAINING' WHERE id = 'node-a'")
    await lose(gang, "node-b")
    reply = await swap(gang)
    assert reply.placement is None
    assert "no spare is left" in reply.reason


async def test_a_spare_and_a_rank_are_never_one_node_and_never_change(gang: Ledger):
    with pytest.raises(IntegrityError, match="takes a place in the next attempt only"):
        await gang.rows("UPDATE placements SET spare = false WHERE rank = 2")
    with pytest.raises(IntegrityError, match="placements_begin_with_a_rank"):
        await gang.rows(
            "INSERT INTO placements (job_id, attempt, rank, spare, cycle_id, node_id, epoch,"
            " gpu_indices, cpu_milli, ram_mb, vram_mb, expected_seconds, decision)"
            " SELECT job_id, 2, 0, true, cycle_id, node_id, epoch, gpu_indices, 0, 0, 0, 1, '{}'"
            " FROM placements WHERE rank = 2"
        )


async def test_the_next_attempt_keeps_who_pays_for_its_gpus(gang: Ledger):
    await tenant(gang, "default")
    await tenant(gang, "other")
    main = await envelope(gang, "default", milli=6000, name="main")
    for rank, since in ((0, SINCE), (1, SINCE), (2, SINCE + timedelta(days=1))):
        await write_charge(gang, charge("wide", main, (0, 1), rank=rank, since=since))
    await lose(gang, "node-b")
    assert (await swap(gang)).placement is not None
    open_ = (
        "SELECT attempt, rank, gpu_indices, since FROM charges WHERE ended_at IS NULL ORDER BY 2"
    )
    assert [tuple(row.values()) for row in await gang.rows(open_)] == [
        (2, 0, [0, 1], SINCE), (2, 1, [0, 1], SINCE + timedelta(days=1)),
    ]  # fmt: skip
    gap = (
        "SELECT n.started_at = p.placed_at AS alike FROM charges n"
        " JOIN placements p USING (job_id, attempt, rank) WHERE attempt = 2"
    )
    assert await gang.rows(gap) == [{"alike": True}] * 2
    assert await sums(gang) == {"default/main": 4000}
    assert await funding_drift(gang) == []


async def test_a_swap_goes_on_without_a_payer_whose_budget_was_cut(gang: Ledger):
    await tenant(gang, "default")
    main = await envelope(gang, "default", milli=6000)
    for rank in range(3):
        await write_charge(gang, charge("wide", main, (0, 1), rank=rank))
    await gang.rows("UPDATE envelopes SET milli = 3000")
    await lose(gang, "node-b")
    assert (await swap(gang)).placement is not None
    assert await sums(gang) == {"default/main": 2000}
    assert await funding_drift(gang) == []
