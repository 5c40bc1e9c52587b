"""Jobs go where their data is: where jobs used data of that name, or where they saved."""

from typing import Any

import pytest

from longshore.activities.views import set_pool
from longshore.models.messages import LeaseEnd, ReleaseRequest
from longshore.models.packing import ScoreWeights
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolPacking, PoolSpec
from tests.support.ledger import Ledger

CHECKPOINT = {"folder": "saved"}


@pytest.fixture
async def three(ledger: Ledger) -> Ledger:
    """A ledger with three equal nodes: of equal ones the first by name is taken."""
    for name in ("node-a", "node-b", "node-c"):
        await ledger.register(name)
    return ledger


async def test_a_job_goes_where_its_data_was_used(three: Ledger):
    assert await _placed(three, "other", gpus=2) == "node-a"
    assert await _placed(three, "first", data={"imagenet": "150GB"}) == "node-b"
    await three.finish("first")
    await three.finish("other")
    assert await _placed(three, "plain") == "node-a"
    assert await _placed(three, "second", data=["imagenet"]) == "node-b"
    decision = await three.value("SELECT decision FROM placements WHERE job_id = 'second'")
    parts = {part["name"]: part["value"] for part in decision["terms"]["parts"]}
    assert parts["data on the node"] == 0.2


async def test_a_job_goes_where_its_image_was_used(ledger: Ledger):
    for name in ("node-a", "node-b"):
        await ledger.register(name, container_runtime="docker")
    assert await _placed(ledger, "other", gpus=2) == "node-a"
    assert await _placed(ledger, "first", image="trainer:1") == "node-b"
    await ledger.finish("first")
    await ledger.finish("other")
    assert await _placed(ledger, "another", image="trainer:2") == "node-a"
    assert await _placed(ledger, "second", image="trainer:1") == "node-b"


async def test_without_weight_data_changes_nothing(three: Ledger):
    weights = ScoreWeights(locality=0)
    async with three.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=three.pool, packing=PoolPacking(weights=weights)))
    assert await _placed(three, "other", gpus=2) == "node-a"
    assert await _placed(three, "first", data=["imagenet"]) == "node-b"
    await three.finish("first")
    await three.finish("other")
    assert await _placed(three, "second", data=["imagenet"]) == "node-a"


async def test_the_disk_of_another_machine_by_the_same_name_is_not_the_old_one(three: Ledger):
    await _placed(three, "first", data=["imagenet"])
    names = "SELECT name FROM node_data WHERE node_id = 'node-a'"
    await three.register("node-a", boot="boot-2")
    assert await three.value(names) == "imagenet"
    await three.rows("UPDATE nodes SET agent_id = 'of another machine'")
    await three.register("node-a", boot="boot-3")
    assert await three.value(names) is None


async def test_data_that_nobody_used_for_long_is_taken_to_be_gone(three: Ledger):
    assert await _placed(three, "other", gpus=2) == "node-a"
    assert await _placed(three, "first", data=["imagenet"]) == "node-b"
    await three.finish("first")
    await three.finish("other")
    await three.rows("UPDATE node_data SET used_at = now() - interval '8 days'")
    assert await _placed(three, "second", data=["imagenet"]) == "node-a"


@pytest.mark.parametrize(
    ("reason", "spec", "node"),
    [
        (LeaseEnd.PREEMPTED, {"checkpoint": CHECKPOINT}, "node-b"),
        (LeaseEnd.HELD, {"checkpoint": CHECKPOINT}, "node-b"),
        (LeaseEnd.FAILED, {"checkpoint": CHECKPOINT}, "node-a"),
        (LeaseEnd.PREEMPTED, {"checkpoint": {**CHECKPOINT, "store": False}}, "node-a"),
        (LeaseEnd.PREEMPTED, {}, "node-a"),
    ],
)
async def test_a_job_goes_on_where_it_saved_unless_it_failed_there(
    three: Ledger, reason: LeaseEnd, spec: dict[str, Any], node: str
):
    assert await _placed(three, "other", gpus=2) == "node-a"
    assert await _placed(three, "job", **spec) == "node-b"
    key = PlacementKey(job_id="job", attempt=1)
    await three.run(three.queue.release, ReleaseRequest(key=key, reason=reason, message=""))
    await three.finish("other")
    assert await _placed(three, "job", attempt=2, **spec) == node
    assert await three.value("SELECT count(*) FROM node_data") == 0


async def _placed(ledger: Ledger, job: str, *, attempt: int = 1, **spec: Any) -> str:
    """Have a cycle place a job; return its node."""
    async with ledger.listening(f"{job}"):
        await ledger.enqueue(job, attempt=attempt, **spec)
        await ledger.cycle(f"{job}/{attempt}")
    return await ledger.value(
        "SELECT node_id FROM placements WHERE job_id = :job AND attempt = :attempt",
        job=job,
        attempt=attempt,
    )
