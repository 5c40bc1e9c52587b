"""Jobs go where their data is: where jobs used data of that name, or where they saved."""

from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.activities.views import set_pool
from longshore.models.data import HeldData, HeldReport
from longshore.models.environment import JobEnvironment
from longshore.models.messages import LeaseEnd, ReleaseRequest
from longshore.models.node_messages import Holdings
from longshore.models.packing import ScoreWeights
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolPacking, PoolSpec
from tests.support.ledger import Ledger

SOURCE = "s3://sets/set/"
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


async def test_a_job_goes_where_an_agent_says_that_its_image_is(ledger: Ledger):
    for name in ("node-a", "node-b"):
        await ledger.register(name, container_runtime="docker")
    await _holds(ledger, "node-b", HeldData(name="image trainer:1", bytes=9, total=9))
    assert await _placed(ledger, "another", image="trainer:2") == "node-a"
    assert await _placed(ledger, "first", image="trainer:1") == "node-b"
    # That it was used there says nothing: the agent does.
    assert await ledger.value("SELECT count(*) FROM node_data WHERE NOT held") == 0


async def test_a_job_goes_where_its_environment_is_built(ledger: Ledger):
    for name in ("node-a", "node-b"):
        await ledger.register(name)
    asked = JobEnvironment(requirements=("numpy",), digest="a" * 32)
    await _holds(ledger, "node-b", HeldData(name=f"environment {'a' * 32}", bytes=9, total=9))
    other = asked.model_copy(update={"digest": "b" * 32})
    assert await _placed(ledger, "another", environment=other) == "node-a"
    assert await _placed(ledger, "unknown", environment=asked.as_asked) == "node-a"
    assert await _placed(ledger, "first", environment=asked) == "node-b"


async def test_a_job_goes_where_what_nodes_fetch_really_is(three: Ledger):
    asks: dict[str, Any] = {"data": {"set": {"from": SOURCE, "size": "10GB"}}}
    assert await _placed(three, "other", gpus=2) == "node-a"
    assert await _placed(three, "first", **asks) == "node-b"
    await three.finish("first")
    await three.finish("other")
    # A placement alone is no sign of it any more.
    assert await _placed(three, "second", **asks) == "node-a"
    await three.finish("second")
    await _holds(three, "node-c", _a_set(bytes=100))
    # By the same name, of another tenant or from another place, it is another.
    assert await _placed(three, "theirs", tenant="ada", **asks) == "node-a"
    await three.finish("theirs")
    elsewhere: dict[str, Any] = {"data": {"set": {"from": "s3://else/set/"}}}
    assert await _placed(three, "elsewhere", **elsewhere) == "node-a"
    await three.finish("elsewhere")
    renamed: dict[str, Any] = {"data": {"renamed": SOURCE}}
    assert await _placed(three, "third", **renamed) == "node-c"
    await three.finish("third")
    await _holds(three, "node-c")
    assert await _placed(three, "fourth", **asks) == "node-a"


async def test_what_a_node_has_in_part_counts_in_part(three: Ledger):
    await _holds(three, "node-b", _a_set(bytes=55))
    await _holds(three, "node-c", _a_set(bytes=20))
    asks: dict[str, Any] = {"data": {"set": {"from": SOURCE, "size": "10GB"}, "mine": "10GB"}}
    assert await _placed(three, "first", **asks) == "node-b"
    decision = await three.value("SELECT decision FROM placements WHERE job_id = 'first'")
    parts = {part["name"]: part["value"] for part in decision["terms"]["parts"]}
    assert parts["data on the node"] == pytest.approx(0.2 * 0.25)  # half of one of two
    await three.finish("first")
    await _holds(three, "node-c", _a_set(bytes=96))
    await three.rows("DELETE FROM node_data WHERE NOT held")
    assert await _placed(three, "second", **asks) == "node-c"
    decision = await three.value("SELECT decision FROM placements WHERE job_id = 'second'")
    parts = {part["name"]: part["value"] for part in decision["terms"]["parts"]}
    assert parts["data on the node"] == pytest.approx(0.2 * 0.5)


async def test_a_report_replaces_what_was_held_and_leaves_what_was_used(three: Ledger):
    await _placed(three, "first", data=["mine"])
    await _holds(three, "node-a", _a_set(bytes=10), HeldData(name="image a:1", bytes=5, total=5))
    again = _a_set(bytes=100)
    for _ in range(2):
        await _holds(three, "node-a", again, again)
    rows = await three.rows("SELECT name, tenant, source, bytes, total, held FROM node_data"
                            " ORDER BY name")  # fmt: skip
    assert [tuple(row.values()) for row in rows] == [
        ("mine", "", "", 0, 0, False),
        ("set", "default", SOURCE, 100, 100, True),
    ]


async def test_a_report_of_a_registration_that_is_over_is_dropped(three: Ledger):
    await three.register("node-a", boot="boot-2")
    await _holds(three, "node-a", _a_set(bytes=10), epoch=1)
    assert await three.value("SELECT count(*) FROM node_data") == 0
    await _holds(three, "node-a", _a_set(bytes=10), epoch=2)
    assert await three.value("SELECT count(*) FROM node_data") == 1


async def test_the_database_refuses_more_than_all_of_a_data_set(three: Ledger):
    with pytest.raises(IntegrityError, match="node_data_part_of_all"):
        await three.rows("INSERT INTO node_data (node_id, name, bytes, total, held)"
                         " VALUES ('node-a', 'set', 2, 1, true)")  # fmt: skip


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


def _a_set(bytes: int) -> HeldData:
    return HeldData(name="set", tenant="default", source=SOURCE, bytes=bytes, total=100)


async def _holds(ledger: Ledger, node: str, *held: HeldData, epoch: int = 1) -> None:
    """Have an agent say what its node holds."""
    report = HeldReport(held=held)
    await ledger.run(
        ledger.holdings.store_holdings, Holdings(node_id=node, epoch=epoch, report=report)
    )


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
