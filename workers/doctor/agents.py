"""Checks of agents: whether each asks for work and is heard, and its clock and version agree."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from sqlalchemy import text
from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.database import Database
from longshore.activities.pollers import is_polled, poll_time
from longshore.models.block import closed_by_its_block
from longshore.models.departures import DISK_REFUSES, mend_of_disk
from longshore.models.messages import WATCH_ACTIVITY, node_task_queue, node_workflow_id
from longshore.models.node_messages import Heartbeat
from longshore.models.proof import MAX_AGE
from longshore.models.protocol import PROTOCOL
from longshore.workers.doctor.database import CLOCKS_APART
from longshore.workers.doctor.findings import Finding, Level, fail, ok, warn

_AT_ONCE = 20
_NEW_AGENT = (
    "Install this version there, drain the node, and start its agent again: until then it lacks "
    "what is newer (docs/operations.md, Upgrade)."
)
_NEW_CONTROL = (
    "Install its version here and for the control workers: until then they ignore what is newer "
    "of it (docs/operations.md, Upgrade)."
)
_NODES = """
    SELECT n.id, n.state, n.state_reason, n.drain_reason, n.hostname, n.agent_version,
           n.agent_protocol, b.id AS block_id, b.provider, b.reason AS block_reason,
           coalesce(b.ends_at <= clock_timestamp(), false) AS is_over
      FROM nodes n LEFT JOIN blocks b ON b.id = n.block_id
     WHERE n.state <> 'GONE' AND NOT (n.state = 'LOST' AND coalesce(b.state = 'ENDED', false))
     ORDER BY n.id
"""
"""A lost node whose block has ended does not come back, and nothing is to be done about it."""


async def agents(temporal: Client, database: Database) -> list[Finding]:
    """Return what is wrong with the agents of all nodes that are not gone."""
    async with database.transaction() as connection:
        found = (await connection.execute(text(_NODES))).mappings()
    rows = [dict(row) for row in found]
    live = [row for row in rows if row["state"] != "LOST"]
    gate = asyncio.Semaphore(_AT_ONCE)
    now = await poll_time(temporal)

    async def look_at(row: Mapping[str, Any]) -> list[Finding]:
        async with gate:
            asks = await is_polled(temporal, node_task_queue(row["id"]), now)
            found = await _clock(temporal, row["id"]) if asks else [silent(row)]
        return found + version_of(row["id"], row["agent_version"], row["agent_protocol"])

    wrong: list[Finding] = []
    for findings in await asyncio.gather(*map(look_at, live)):
        wrong += findings
    wrong += [lost(row) for row in rows if row["state"] == "LOST"]
    closed = [found for row in live if row["state"] == "DRAINING" for found in cordoned(row)]
    wrong += [found for found in closed if found.level is not Level.OK]
    leaving = [found for found in closed if found.level is Level.OK]
    return [
        *(wrong or [ok("agents", f"nodes: {len(live)}; the agent of each asks for work")]),
        *leaving,
    ]


def cordoned(row: Mapping[str, Any]) -> list[Finding]:
    """Return why Longshore has a node take no more jobs, and what to do; nothing of one that
    somebody has cordoned."""
    by_hand, node_id = row["drain_reason"], row["id"]
    says = f"node {node_id} takes no more jobs: {by_hand or row['state_reason']}"
    if by_hand is not None and by_hand.startswith(DISK_REFUSES):
        mend = mend_of_disk(by_hand, node_id, row["hostname"] or "its machine")
        return [warn("agents", says, f"{mend[0].upper()}{mend[1:]}.")]
    # Its own end or that of its block, its machine that is taken away, its time that is for sale.
    if by_hand is None or closed_by_its_block(by_hand, row["block_reason"]):
        return [ok("agents", f"{says}; its jobs leave in time, and nothing is to be done")]
    return []


async def _clock(temporal: Client, node_id: str) -> list[Finding]:
    """Compare an agent's clock with Temporal's, by the last heartbeat that this has of it."""
    try:
        flow = await temporal.get_workflow_handle(node_workflow_id(node_id)).describe()
    except RPCError:
        return []
    for pending in flow.raw_description.pending_activities:
        if pending.activity_type.name == WATCH_ACTIVITY and pending.HasField("heartbeat_details"):
            said = await temporal.data_converter.decode(
                pending.heartbeat_details.payloads[:1], [Heartbeat]
            )
            heard_at = pending.last_heartbeat_time.ToDatetime(tzinfo=UTC)
            # The SDK may send a heartbeat on when it is old, but no older than this.
            late = pending.activity_options.heartbeat_timeout.ToTimedelta()
            return clock_of(node_id, said[0].sent_at, heard_at, late)
    return []


def clock_of(
    node_id: str, sent_at: datetime, heard_at: datetime, late: timedelta
) -> list[Finding]:
    """Return what is wrong with the clock of an agent whose heartbeat came up to `late` late."""
    apart = max(sent_at - heard_at, heard_at - sent_at - late)
    if apart <= CLOCKS_APART:
        return []
    return [
        warn(
            "agents",
            f"the clock of node {node_id} is {apart.total_seconds():.0f} s away from Temporal's",
            "Set it by NTP: an agent that is more than "
            f"{MAX_AGE // timedelta(minutes=1)} minutes away is not admitted again.",
        )
    ]


def silent(row: Mapping[str, Any]) -> Finding:
    """Return that the agent of a node asks for no work, and what helps."""
    says = f"node {row['id']} is in the database, and its agent asks for no work"
    if row["is_over"]:
        return warn("agents", f"{says}; its time is over", _leaves(row))
    if row["block_id"]:
        return fail("agents", says, _of_a_market(row))
    return fail(
        "agents", says,
        "Look at the agent's log on that machine, or start it again: `longshore agent "
        f"--node-id {row['id']}`.",
    )  # fmt: skip


def _of_a_market(row: Mapping[str, Any]) -> str:
    return (
        f"It was bought at {row['provider']}. Where it stays silent its machine is stopped, and "
        f"another is started while its time is paid for: `longshore block {row['block_id']}`."
    )


def _leaves(row: Mapping[str, Any]) -> str:
    """Return what becomes of a node whose bought time is over."""
    return (
        f"Nothing is to be started again: it leaves when its block {row['block_id']} has ended at "
        f"{row['provider']} (`longshore block {row['block_id']}`)."
    )


def version_of(node_id: str, their_version: str, their_protocol: int) -> list[Finding]:
    """Return in what an agent differs: its protocol, or where that is ours its package."""
    if their_protocol < PROTOCOL:
        return [_other_protocol(node_id, "older", their_protocol, _NEW_AGENT)]
    if their_protocol > PROTOCOL:
        return [_other_protocol(node_id, "newer", their_protocol, _NEW_CONTROL)]
    ours = version("longshore")
    if not their_version or their_version == ours:
        return []
    return [
        warn(
            "agents",
            f"the agent of node {node_id} has version {their_version}, and this is {ours}; both "
            f"speak protocol {PROTOCOL}",
            _NEW_AGENT,
        )
    ]


def _other_protocol(node_id: str, what: str, theirs: int, mend: str) -> Finding:
    says = f"the agent of node {node_id} is {what}: it speaks protocol {theirs}"
    return warn("agents", f"{says}, this is {PROTOCOL}", mend)


def lost(row: Mapping[str, Any]) -> Finding:
    """Return that a node is lost, and how it comes back, where it can."""
    machine = row["hostname"] or "its machine"
    says = f"node {row['id']} is lost: {row['state_reason']}"
    if row["is_over"]:
        return warn("agents", f"{says}; its time is over", _leaves(row))
    if row["block_id"]:
        return warn("agents", says, _of_a_market(row))
    return warn(
        "agents",
        says,
        f"If it is to come back, end its agent on {machine} where it still runs, and start it "
        "again.",
    )
