"""A gang in the capacity database: a placement for each node, all or none."""

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.activities.views import Views
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.scheduling import unplannable_jobs
from tests.support.ledger import Ledger

LIVE = "SELECT count(*) FROM leases WHERE ended_at IS NULL"


@pytest.fixture
async def two(ledger: Ledger) -> Ledger:
    """Two nodes of two GPUs, and a job that is on record."""
    await ledger.register("node-a")
    await ledger.register("node-b")
    await ledger.add_job("wide")
    await ledger.add_job("other")
    return ledger


async def test_both_ranks_are_held_against_their_own_node(two: Ledger):
    await two.place("wide", (0, 1), rank=0, node="node-a", cpu=9000)
    await two.place("wide", (0, 1), rank=1, node="node-b", cpu=7000)
    used = await two.rows("SELECT cpu_milli_used AS cpu FROM nodes ORDER BY id")
    assert used == [{"cpu": 9000}, {"cpu": 7000}]
    assert await two.drift() == []


async def test_two_ranks_on_one_node_are_refused(two: Ledger):
    await two.place("wide", (0,), rank=0)
    with pytest.raises(IntegrityError, match="placements_one_rank_per_node"):
        await two.place("wide", (1,), rank=1)


async def test_another_attempt_is_refused_while_one_rank_is_left(two: Ledger):
    await two.place("wide", (0,), rank=0, node="node-a")
    await two.place("wide", (0,), rank=1, node="node-b")
    async with two.listening("wide"):
        await two.run(
            two.registry.end_node,
            NodeEnd(node_id="node-a", epoch=1, state=NodeState.LOST, reason="silent"),
        )
        assert await two.told("wide", "node_lost") == 1
    assert await two.value(LIVE) == 1, "the other node's process may still run"
    with pytest.raises(IntegrityError, match="another attempt of job wide is live"):
        await two.place("wide", (1,), rank=0, node="node-b", attempt=2)
    await two.release("wide")
    assert await two.value(LIVE) == 0
    await two.place("wide", (1,), rank=0, node="node-b", attempt=2)
    assert await two.drift() == []


async def test_a_release_ends_all_ranks_and_only_once(two: Ledger):
    for rank, node in enumerate(("node-a", "node-b")):
        await two.place("wide", (0, 1), rank=rank, node=node)
    for delivery in (1, 2):
        await two.release("wide", delivery=delivery)
        assert await two.value(LIVE) == 0
    ends = await two.rows("SELECT DISTINCT end_reason AS why FROM placements")
    assert ends == [{"why": "held"}]
    assert await two.drift() == []


async def test_a_gang_on_more_nodes_than_its_job_can_be_told_of_holds_up_nobody(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(unplannable_jobs, "MOST_BYTES", 3_000)
    await ledger.register("node-a")
    await ledger.register("node-b")
    async with ledger.listening("wide", "other"):
        await ledger.enqueue("wide", gpus=4, gang={"unlabelled_nodes": True})
        assert (await ledger.cycle("one")).placed == 0
        (waiting,) = await Views(ledger.database).jobs()
        assert waiting.reason.startswith("set aside: it would be on 2 nodes")
        await ledger.enqueue("other", gpus=2)
        assert (await ledger.cycle("two")).placed == 1
        assert await ledger.told("other", "placed") == 1
        assert await ledger.told("wide", "placed") == 0
