"""Where a cycle has jobs prepared that wait: who is told, how often, and who is not."""

from typing import Any

import pytest

from longshore.activities.views import set_pool
from longshore.models.messages import HoldRequest, job_workflow_id
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolSpec
from longshore.models.protocol import PREPARES
from tests.support.histories import signals_to
from tests.support.ledger import Ledger

DATA: dict[str, Any] = {"data": {"set": "s3://sets/set/", "mine": "1GB"}}
BRINGS: dict[str, str] = {
    "data": '{"data": {"set": {"from": "s3://sets/set/", "size": 1}}}',
    "code": f'{{"code": {{"snapshot": "{"0" * 64}"}}}}',
    "environment": '{"environment": {"requirements": ["numpy"]}}',
}
"""As their specs have it; a snapshot has to be stored before a job may name it."""
WHERE = "SELECT preparing->'nodes' FROM queue WHERE job_id = :job"


@pytest.fixture
async def full(ledger: Ledger) -> Ledger:
    """A ledger with a node that a job has all of for an hour."""
    await ledger.register("node-a")
    async with ledger.listening("running"):
        await ledger.enqueue("running", gpus=2, expected_duration="1h")
        await ledger.cycle("first")
    return ledger


@pytest.mark.parametrize("brings", BRINGS)
async def test_a_job_that_waits_for_a_node_is_told_once_to_prepare_there(
    full: Ledger, brings: str
):
    async with full.listening("job", "plain"):
        await full.enqueue("job", gpus=2)
        await full.rows(
            "UPDATE jobs SET spec = spec || CAST(:brings AS jsonb) WHERE id = 'job'",
            brings=BRINGS[brings],
        )
        await full.enqueue("plain", gpus=2, data={"mine": "1GB"})
        await full.cycle("second")
        await full.cycle("third")
        (told,) = await signals_to(full.temporal, job_workflow_id("job"), "prepare")
        assert await signals_to(full.temporal, job_workflow_id("plain"), "prepare") == []
    assert (told["attempt"], told["node_ids"]) == (1, ["node-a"])
    start = await full.value("SELECT decision->>'estimated_start' FROM queue WHERE job_id = 'job'")
    assert told["expected_start"][:19] == start[:19]
    assert await full.value(WHERE, job="job") == ["node-a"]
    assert await full.value(WHERE, job="plain") is None


async def test_a_repeat_of_a_cycle_tells_what_it_has_noted(full: Ledger):
    async with full.listening("job"):
        await full.enqueue("job", gpus=2, **DATA)
        await full.cycle("second")
        await full.cycle("second", delivery=2)
        told = await signals_to(full.temporal, job_workflow_id("job"), "prepare")
    assert [each["node_ids"] for each in told] == [["node-a"], ["node-a"]]


async def test_an_agent_that_cannot_prepare_is_not_asked(full: Ledger):
    await full.rows("UPDATE nodes SET agent_protocol = :old", old=PREPARES - 1)
    async with full.listening("job"):
        await full.enqueue("job", gpus=2, environment={"requirements": ("numpy",)})
        await full.cycle("second")
        assert await signals_to(full.temporal, job_workflow_id("job"), "prepare") == []
    assert await full.value("SELECT decision->>'estimated_start' FROM queue") is not None
    assert await full.value(WHERE, job="job") is None


async def test_an_agent_that_cannot_fetch_is_given_no_job_whose_data_nodes_fetch(ledger: Ledger):
    """It could not even read what it is to run."""
    await ledger.register("node-a")
    await ledger.rows("UPDATE nodes SET agent_protocol = :old", old=PREPARES - 1)
    async with ledger.listening("job"):
        await ledger.enqueue("job", **DATA)
        await ledger.cycle("first")
        assert await ledger.value("SELECT decision->'rejected' FROM queue") == {"agent-too-old": 1}
        await ledger.register("node-a", boot="boot-2")
        await ledger.cycle("second")
    assert await ledger.value("SELECT node_id FROM placements") == "node-a"


async def test_another_node_is_told_after_a_minute_at_the_soonest(full: Ledger):
    async with full.listening("job", "short"):
        await full.enqueue("job", gpus=2, **DATA)
        await full.cycle("second")
        await full.register("node-b")
        await full.enqueue("short", gpus=2, priority=9, expected_duration="1m")
        await full.cycle("third")
        await full.cycle("fourth")
        assert await full.value(WHERE, job="job") == ["node-a"]
        await full.rows(
            "UPDATE queue SET preparing = preparing"
            " || jsonb_build_object('told_at', extract(epoch FROM now()) - 120)"
        )
        await full.cycle("fifth")
        told = await signals_to(full.temporal, job_workflow_id("job"), "prepare")
    assert [each["node_ids"] for each in told] == [["node-a"], ["node-b"]]


async def test_a_job_that_was_held_is_told_again(full: Ledger):
    async with full.listening("job"):
        await full.enqueue("job", gpus=2, **DATA)
        await full.cycle("second")
        key = PlacementKey(job_id="job", attempt=1)
        await full.run(full.queue.set_hold, HoldRequest(key=key, held=True))
        await full.cycle("third")
        assert await full.value(WHERE, job="job") is None
        await full.run(full.queue.set_hold, HoldRequest(key=key, held=False))
        await full.cycle("fourth")
        told = await signals_to(full.temporal, job_workflow_id("job"), "prepare")
    assert len(told) == 2


async def test_a_job_is_told_how_much_of_its_share_its_tenant_lacks(full: Ledger):
    async with full.listening("job", "other"):
        await full.enqueue("job", gpus=2, tenant="new", **DATA)
        await full.cycle("second")
        spec = PoolSpec.model_validate(
            {"name": full.pool, "packing": {"score": {"profile": "hpc-batch"}}}
        )
        async with full.database.transaction() as connection:
            await set_pool(connection, spec)
        await full.enqueue("other", gpus=2, tenant="new", **DATA)
        await full.cycle("third")
        (unscored,) = await signals_to(full.temporal, job_workflow_id("job"), "prepare")
        (scored,) = await signals_to(full.temporal, job_workflow_id("other"), "prepare")
    assert (unscored["deficit"], scored["deficit"]) == (0, 1)
