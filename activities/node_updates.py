"""Updates of a node's workflow: drain, notice, undrain, extension."""

from datetime import datetime, timedelta

from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError

from longshore.activities.rpc_errors import is_unknown
from longshore.models.base import Wire
from longshore.models.departures import ExpiryChange, NodeDrain, SpotNotice
from longshore.models.messages import CommandReason, node_workflow_id

_ANSWER_WITHIN = timedelta(seconds=10)


async def drain_node(temporal: Client, node_id: str, reason: str) -> None:
    """Have a node take no new job; one without an agent, or that has gone, takes none anyway."""
    await _update(temporal, node_id, "drain", reason)


async def clear_node(temporal: Client, node_id: str, reason: str) -> None:
    """Have a node take no new job, and all that run there leave now, each with its grace."""
    await _send(temporal, node_id, "drain", NodeDrain(reason=reason, move=True, at_once=True))


async def undrain_node(temporal: Client, node_id: str, reason: str) -> None:
    """Have a node take jobs again, unless it has gone."""
    await _update(temporal, node_id, "undrain", reason)


async def extend_node(temporal: Client, node_id: str, expires_at: datetime) -> None:
    """Tell a node that it ends at another time: nobody has to leave for the old one."""
    await _send(temporal, node_id, "expiry_changed", ExpiryChange(expires_at=expires_at))


async def give_notice(temporal: Client, node_id: str, reason: str) -> None:
    """Tell a node that its machine is being taken away: its jobs leave at once, if they can."""
    handle = temporal.get_workflow_handle(node_workflow_id(node_id))
    try:
        await handle.signal("spot_notice", SpotNotice(reason=reason), rpc_timeout=_ANSWER_WITHIN)
    except RPCError as error:
        if not is_unknown(error):
            raise


async def _update(temporal: Client, node_id: str, update: str, reason: str) -> None:
    await _send(temporal, node_id, update, CommandReason(reason=reason))


async def _send(temporal: Client, node_id: str, update: str, message: Wire) -> None:
    handle = temporal.get_workflow_handle(node_workflow_id(node_id))
    try:
        await handle.execute_update(update, message, rpc_timeout=_ANSWER_WITHIN)
    except WorkflowUpdateFailedError:
        return  # it has no agent any more
    except RPCError as error:
        if not is_unknown(error):
            raise
