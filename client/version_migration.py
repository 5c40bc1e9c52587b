"""Migrates pools and nodes to another version of the control worker.

Each of their runs stays with the version that it began on. Told that another one is current, it
continues as new there; a run that sleeps must be woken to hear it.
"""

import asyncio
from collections.abc import Iterable

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from longshore.models.deployment import WorkerVersion
from longshore.models.messages import CONTROL_TASK_QUEUE, NODE_WORKFLOW, POOL_WORKFLOW

MOVES_WITHIN = 5.0
_AT_ONCE = 20
"""So many move at a time: nobody watches a node for the moment that it takes."""
_WAKE_AGAIN = 1.0
"""Parts of the server learn late what is current: who is woken too early, sleeps on."""
_LISTED_AFTER = 2.0
"""Seconds after which a workflow is listed that was started before."""
_POLL_EVERY = 0.1
_WAKE = {POOL_WORKFLOW: "poke", NODE_WORKFLOW: "wake"}
_LONG_LIVED = (
    f"ExecutionStatus = 'Running' AND TaskQueue = '{CONTROL_TASK_QUEUE}' "
    f"AND WorkflowType IN ('{POOL_WORKFLOW}', '{NODE_WORKFLOW}')"
)


class Mover:
    """Brings pools and nodes to one version, which must be current already."""

    def __init__(self, temporal: Client, version: WorkerVersion) -> None:
        self._temporal = temporal
        self._version = version
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._woken: set[str] = set()

    async def wake(self) -> tuple[set[str], set[str]]:
        """Wake whatever is on another version; return the ids that moved, and those that did not
        within `MOVES_WITHIN`.

        A run is woken by one call alone: one that no worker answers for must not gather signals
        for ever. Raises RPCError.
        """
        moved: set[str] = set()
        stayed: set[str] = set()
        seen: set[str] = set()
        began = _now()
        while True:
            asked_at = _now()
            found = await self._long_lived()
            new = [each for each in found if each[0] not in seen]
            seen |= {workflow_id for workflow_id, _ in new}
            answers = await asyncio.gather(*(self._wake(*each) for each in new))
            for (workflow_id, _), has_moved in zip(new, answers, strict=True):
                if has_moved is not None:
                    (moved if has_moved else stayed).add(workflow_id)
            if not new and asked_at - began > _LISTED_AFTER:
                return moved, stayed
            await asyncio.sleep(_POLL_EVERY)

    async def force(self, workflow_ids: Iterable[str]) -> tuple[set[str], set[str]]:
        """Move workflows in the middle of their run, for which their version's worker is not
        needed; return those that moved and those that did not. Raises RPCError."""
        ids = tuple(workflow_ids)
        answers = await asyncio.gather(*(self._force(each) for each in ids))
        moved = {each for each, has_moved in zip(ids, answers, strict=True) if has_moved}
        return moved, set(ids) - moved

    async def _long_lived(self) -> list[tuple[str, str]]:
        """Return id and type of each running pool and node."""
        found = self._temporal.list_workflows(_LONG_LIVED)
        return [(each.id, each.workflow_type) async for each in found]

    async def _wake(self, workflow_id: str, workflow_type: str) -> bool | None:
        """Return whether it has moved; None when it need not."""
        async with self._gate:
            run_id = await self._elsewhere(workflow_id)
            if run_id is None or run_id in self._woken:
                return None if run_id is None else False
            self._woken.add(run_id)
            handle = self._temporal.get_workflow_handle(workflow_id)
            deadline = _now() + MOVES_WITHIN
            while _now() < deadline:
                try:
                    await handle.signal(_WAKE[workflow_type])
                except RPCError as error:
                    if error.status is RPCStatusCode.NOT_FOUND:
                        return None  # it has ended meanwhile
                    raise
                if await self._arrives(workflow_id, within=_WAKE_AGAIN):
                    return True
            return False

    async def _force(self, workflow_id: str) -> bool:
        async with self._gate:
            target = WorkerDeploymentVersion(
                deployment_name=self._version.deployment, build_id=self._version.build_id
            )
            once = VersioningOverride.OneTimeOverride(target_deployment_version=target)
            await self._temporal.workflow_service.update_workflow_execution_options(
                UpdateWorkflowExecutionOptionsRequest(
                    namespace=self._temporal.namespace,
                    workflow_execution=WorkflowExecution(workflow_id=workflow_id),
                    workflow_execution_options=WorkflowExecutionOptions(
                        versioning_override=VersioningOverride(one_time=once)
                    ),
                    update_mask=FieldMask(paths=["versioning_override"]),
                    identity=self._temporal.identity,
                )
            )
            return await self._arrives(workflow_id, within=MOVES_WITHIN)

    async def _arrives(self, workflow_id: str, within: float) -> bool:
        deadline = _now() + within
        while await self._elsewhere(workflow_id):
            if _now() > deadline:
                return False
            await asyncio.sleep(_POLL_EVERY)
        return True

    async def _elsewhere(self, workflow_id: str) -> str | None:
        """Return the id of the run whose last step was not taken by this version, if it runs."""
        try:
            description = await self._temporal.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return None
        info = description.raw_description.workflow_execution_info.versioning_info
        found = info.deployment_version
        ours = (self._version.deployment, self._version.build_id)
        return None if (found.deployment_name, found.build_id) == ours else description.run_id


def _now() -> float:
    return asyncio.get_running_loop().time()
