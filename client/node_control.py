"""Steering nodes: cordon, drain, and the way back; and blocks, which end for good."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.workflow import UpdateMethodMultiParam

from longshore.activities.buying.closed_machines import what_closing_costs
from longshore.client.errors import as_ours
from longshore.client.late_answers import carried_out
from longshore.client.reading import Reading
from longshore.models.block import block_workflow_id
from longshore.models.departures import NodeDrain
from longshore.models.errors import EndedError, LongshoreError, RefusedError
from longshore.models.messages import CommandReason, node_workflow_id
from longshore.models.node_messages import NodeStatus
from longshore.workflows.block import BlockWorkflow
from longshore.workflows.node import NodeWorkflow

C = TypeVar("C")


class NodeControl(Reading):
    """What the client can ask of nodes and blocks."""

    temporal: Client

    async def cordon(self, node_id: str, reason: str = "") -> NodeStatus:
        """Place nothing more on a node; what runs there goes on.

        A bought machine that is billed as it runs ends when it has been idle so for ten minutes,
        or for `idle_after` of its pool where that is longer: the `note` of the answer says so.
        """
        command = CommandReason(reason=reason)
        return await self._closed(await self._update_node(node_id, NodeWorkflow.cordon, command))

    async def uncordon(self, node_id: str, reason: str = "") -> NodeStatus:
        """Let a node take jobs again, after a cordon or a drain."""
        command = CommandReason(reason=reason)
        return await self._update_node(node_id, NodeWorkflow.uncordon, command)

    async def drain(
        self,
        node_id: str,
        reason: str = "",
        *,
        deadline: timedelta | None = None,
        now: bool = False,
    ) -> NodeStatus:
        """Cordon a node and have its jobs leave: those that can save at once, the others finish.

        With a `deadline` all of them stay until they have to go to be gone by then; with `now`
        all go at once. Each has its grace, and is queued again. A replica of a service stays until
        another is ready elsewhere, or has to go.
        """
        by = datetime.now(UTC) + deadline if deadline is not None else None
        drain = NodeDrain(reason=reason, move=True, by=by, at_once=now)
        return await self._closed(await self._update_node(node_id, NodeWorkflow.drain, drain))

    async def terminate_block(self, block_id: str, reason: str = "") -> None:
        """End a block early: its jobs are moved with their grace, then its machines stop.

        Raises NotFoundError for a block that is not known, RefusedError for one that has ended.
        """
        handle = self.temporal.get_workflow_handle_for(
            BlockWorkflow.run, block_workflow_id(block_id)
        )
        try:
            await handle.signal(BlockWorkflow.let_go, CommandReason(reason=reason))
        except RPCError as error:
            ours = as_ours(error, f"block {block_id}", listed_by="longshore blocks")
            if isinstance(ours, RefusedError):
                ours = RefusedError(
                    f"block {block_id} has ended already, or only its workflow has: where "
                    "`longshore blocks` still lists it, run `longshore reconcile`, which starts "
                    "that again, and terminate it then"
                )
            raise ours from error

    let_go = terminate_block
    """Its name before; for one version."""

    async def _closed(self, status: NodeStatus) -> NodeStatus:
        """Return how a node is that takes no job any more, with what becomes of its machine."""
        # It is closed, whatever can be said of it, as where its pool cannot be read.
        with suppress(LongshoreError, DBAPIError, TimeoutError):
            async with self._db().transaction() as connection:
                note = await what_closing_costs(connection, status.node_id)
            return status.model_copy(update={"note": note})
        return status

    async def _update_node(
        self,
        node_id: str,
        update: UpdateMethodMultiParam[[NodeWorkflow, C], NodeStatus],
        command: C,
    ) -> NodeStatus:
        handle = self.temporal.get_workflow_handle_for(NodeWorkflow.run, node_workflow_id(node_id))
        try:
            return await carried_out(handle.execute_update(update, command), f"node {node_id}")
        except WorkflowUpdateFailedError as error:
            raise RefusedError(str(error.cause)) from error
        except RPCError as error:
            ours = as_ours(error, f"live node {node_id}", listed_by="longshore nodes")
            if isinstance(ours, EndedError):
                ours = EndedError(
                    f"node {node_id} is gone, or only its workflow has ended: where `longshore "
                    "nodes` still lists it, its agent registers it again while it runs "
                    "(`longshore doctor` says whether it does), else `longshore reconcile` "
                    "settles it"
                )
            raise ours from error
