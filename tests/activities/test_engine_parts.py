"""An engine counts as its part of the memory of a GPU, to quotas as to all else."""

import pytest
from sqlalchemy import text

from longshore.activities.serving.model_engine import largest_gpu
from longshore.models.job import JobSpec
from longshore.models.serving import EngineSize
from tests.support.recorded_service import RecordedService
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

SIZE = (EngineSize(gpus=1, memory=60_000),)


async def first_job(served: RecordedService) -> JobSpec:
    await served.look()
    return await served.start_of((await served.view()).replicas[0].job_id)


async def test_it_is_of_the_largest_gpu_of_the_pool(served: RecordedService, node: ScriptedNode):
    """The node has GPUs of 80 GB."""
    assert served.pool == node.pool
    await served.record(SIZE)
    job = await first_job(served)
    assert (job.milli, job.vram_per_gpu) == (750, 60)
    await served.end()


@pytest.mark.parametrize(("gpu_type", "gb"), [("H100", 80), ("h100", 80), ("L4", 24), (None, 80)])
async def test_another_type_than_there_is_counts_as_it_is_known(
    served: RecordedService, node: ScriptedNode, gpu_type: str | None, gb: float
):
    async with served.control.transaction() as connection:
        assert await largest_gpu(connection, node.pool, gpu_type) == gb


async def test_where_there_is_no_node_it_is_of_the_usual_gpu(served: RecordedService):
    await served.record(SIZE)
    assert (await first_job(served)).milli == 750
    await served.end()


async def test_a_quota_holds_for_engines(served: RecordedService, node: ScriptedNode):
    """Two with 0.75 of a GPU each are more than one GPU, though both would fit onto the node."""
    tenant = f"t-{served.pool}"
    async with served.control.transaction() as connection:
        await connection.execute(
            text("INSERT INTO tenants (name, quotas) VALUES (:name, '{\"max_gpus\": 1}')"),
            {"name": tenant},
        )
    await served.record(SIZE, replicas=2, tenant=tenant)
    await served.look()
    ids = [each.job_id for each in (await served.view()).replicas]

    async def told() -> list[str] | None:
        async with served.control.transaction() as connection:
            rows = await connection.scalars(
                text("SELECT decision ->> 'reason' FROM queue WHERE job_id = ANY (:ids)"),
                {"ids": ids},
            )
        found = [reason for reason in rows if reason]
        return found if found and "quota" in found[0] else None

    (reason,) = await eventually(told) or []
    assert reason.startswith(f"quota of tenant {tenant}: max_gpus: 0.75 + 0.75 > 1")
    await served.end()
