"""What every scene of `tests/histories/record.py` needs: jobs, nodes, and what is recorded."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from longshore.activities.database import Database
from longshore.models.job_status import JobResult
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    JobInput,
    job_workflow_id,
    node_workflow_id,
)
from longshore.models.reconcile import ReconcileRequest
from longshore.models.settings import Settings
from longshore.workflows.job import JobWorkflow
from longshore.workflows.reconcile import ReconcileWorkflow
from tests.support.control import a_spec
from tests.support.market import RunningMarket
from tests.support.scripted_node import ScriptedNode

LOST_AFTER = timedelta(seconds=2)
AT_ONCE = timedelta(milliseconds=100)

Job = WorkflowHandle[JobWorkflow, JobResult]


class Recorder:
    """Starts workflows; keeps the ids of those to be recorded."""

    def __init__(
        self, temporal: Client, settings: Settings, database: Database, market: RunningMarket
    ) -> None:
        self.recorded: list[str] = []
        self._market = market
        self._temporal = temporal
        self._settings = settings
        self._database = database

    async def _change(self, statement: str) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(text(statement))

    async def _has(self, question: str, name: str) -> bool:
        async with self._database.transaction() as connection:
            return bool(await connection.scalar(text(question), {"name": name}))

    async def ended(self) -> None:
        """Wait until every recorded job and node has ended; pools never do."""
        for workflow_id in self.recorded:
            if not workflow_id.startswith("pool-"):
                try:
                    await self._temporal.get_workflow_handle(workflow_id).result()
                except WorkflowFailureError:
                    continue  # what some of the scenarios are about

    async def _has_findings(self) -> bool:
        return await self._reconcile(f"dry-{uuid.uuid4().hex[:8]}", dry_run=True) > 0

    async def _reconcile(self, name: str, *, dry_run: bool = False) -> int:
        """Return how much was found. Each dry run has an id of its own, and is not recorded."""
        workflow_id = f"reconcile-{name}"
        report = await self._temporal.execute_workflow(
            ReconcileWorkflow.run,
            ReconcileRequest(dry_run=dry_run, margin=AT_ONCE, second_look=AT_ONCE),
            id=workflow_id if dry_run else self._record(workflow_id),
            task_queue=CONTROL_TASK_QUEUE,
        )
        return len(report.findings)

    async def _start_job(
        self,
        name: str,
        *,
        pool: str = "jobs",
        recorded: bool = True,
        held: bool = False,
        max_attempts_per_run: int = 100,
        **spec: Any,
    ) -> Job:
        workflow_id = job_workflow_id(name)
        return await self._temporal.start_workflow(
            JobWorkflow.run,
            JobInput(
                spec=a_spec(pool, **spec), held=held, max_attempts_per_run=max_attempts_per_run
            ),
            id=self._record(workflow_id) if recorded else workflow_id,
            task_queue=CONTROL_TASK_QUEUE,
        )

    @asynccontextmanager
    async def _node(
        self,
        name: str,
        *,
        pool: str | None = None,
        labels: dict[str, str] | None = None,
        recorded: bool = False,
    ) -> AsyncIterator[ScriptedNode]:
        if recorded:
            self._record(node_workflow_id(name))
        token = self._settings.resolve_agent_token()
        node = ScriptedNode(self._temporal, pool or name, token, node_id=name, labels=labels)
        async with node.serving():
            await node.register()
            yield node

    def _record(self, workflow_id: str) -> str:
        self.recorded.append(workflow_id)
        return workflow_id
