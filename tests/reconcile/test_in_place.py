"""A job that goes on in place with fewer nodes: nothing of that is for reconcile to mend."""

import uuid
from datetime import timedelta

from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.node_messages import joined_id
from longshore.models.reconcile import ReconcileRequest
from longshore.models.settings import Settings
from longshore.workflows.reconcile import ReconcileWorkflow
from tests.support.control import a_spec, reaches
from tests.support.scripted_node import serving_one_fabric
from tests.support.waiting import eventually

AT_ONCE = timedelta(milliseconds=1)


async def findings(temporal: Client, job_id: str) -> list[str]:
    """Return what a look that changes nothing finds wrong with a job, however short it is so."""
    report = await temporal.execute_workflow(
        ReconcileWorkflow.run,
        ReconcileRequest(margin=AT_ONCE, missing_margin=AT_ONCE, dry_run=True),
        id=f"reconcile-{uuid.uuid4().hex[:8]}",
        task_queue=CONTROL_TASK_QUEUE,
    )
    return [each.problem for each in report.findings if each.subject == f"job {job_id}"]


async def test_ranks_that_left_or_were_lost_are_no_findings(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str
):
    spec = a_spec(
        pool, gpus=24, gang={}, malleable={"min": 8, "max": 24, "step": 8, "in_place": True},
        checkpoint={"folder": "saved", "store": False, "save_file": True},
    )  # fmt: skip
    token = settings.resolve_agent_token()

    async def changed(times: int) -> bool:
        return (await longshore.status(job_id)).resizes == times

    async with serving_one_fabric(temporal, pool, token, "abc") as nodes:
        job_id = (await longshore.submit(spec)).job_id
        by_rank = {(await node.started(job_id)).placement.rank: node for node in nodes}
        await longshore.resize(job_id, 16)
        await eventually(lambda: changed(1))
        assert await findings(temporal, job_id) == []
        by_rank[1].leave()
        await eventually(lambda: changed(2))
        assert await findings(temporal, job_id) == []
        assert (await longshore.resize(job_id, 16)).in_place == 16
        await eventually(lambda: changed(3))
        assert await findings(temporal, job_id) == []
        await reaches(longshore, job_id, JobState.RUNNING)
        await by_rank[0].end(job_id)
        await by_rank[2].end(joined_id(job_id, 3))
        await longshore.wait(job_id)
