"""Extends a machine that is billed as it runs: commits its money, and moves its node's expiry.

Its market is asked for nothing: it bills the machine until somebody stops it.
"""

import json
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying import order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.block_scene import read_facts
from longshore.activities.buying.present_policy import kept_policy
from longshore.activities.buying.stored_documents import stored_decision
from longshore.activities.database import Database
from longshore.activities.error_translation import reports_errors
from longshore.activities.node_updates import extend_node, undrain_node
from longshore.activities.snapshot import load_pool
from longshore.models.block import ENDING, BlockVerdict
from longshore.models.block_end import BlockDecision, BlockOptionKind, GoOnRequest
from longshore.models.errors import StaleError, StoredError
from longshore.models.job import Tier
from longshore.models.market import OrderRequest
from longshore.models.purchase import worst_cost
from longshore.scheduling.buying.block_end import kept, lines_of
from longshore.scheduling.buying.caps import DEFAULT_TENANT
from longshore.scheduling.buying.machine_extension import decides_from
from longshore.scheduling.buying.present_policy import why_not_longer


class MachineExtensionActivities:
    """Activities of `BlockWorkflow` on a machine whose work overruns its committed time."""

    def __init__(self, database: Database, temporal: Client) -> None:
        self._database = database
        self._temporal = temporal

    @activity.defn
    @reports_errors
    async def go_on(self, request: GoOnRequest) -> BlockVerdict:
        """Have a machine go on until then, and never end sooner than it would have; in the answer.

        The caps count it as they count a purchase, and the policy of now says whether it may be.
        Where these refuse it, as any other rule of the database does, or buying is stopped, or the
        block ends already, it stays as it is, and the stored decision says why.
        """
        try:
            async with self._database.transaction() as connection:
                refused = await _commit(connection, request)
        except IntegrityError as error:
            # Whatever rule that is, it holds at the next try too, and the machine has its end.
            refused = rows.refusal_of(error) or str(error.orig).partition("\n")[0]
        except (StaleError, StoredError) as error:
            refused = str(error)
        if refused:
            async with self._database.transaction() as connection:
                return await _keep(connection, request.block_id, refused)
        return await self._tell_nodes(request.block_id)

    async def _tell_nodes(self, block_id: str) -> BlockVerdict:
        """Tell the nodes of a block when it ends now, also where an earlier try has done so."""
        async with self._database.transaction() as connection:
            found = await connection.execute(text(_NODES), {"id": block_id, "ending": ENDING})
            nodes = found.all()
            verdict = _verdict(BlockOptionKind.GO_ON, await _decision(connection, block_id))
        for node in nodes:
            await extend_node(self._temporal, node.id, node.expires_at)
            if node.ending:
                await undrain_node(self._temporal, node.id, "its time goes on")
        return verdict


async def store_extension(
    connection: AsyncConnection, block: rows.Row, now: datetime
) -> tuple[bool, datetime | None]:
    """Return whether to decide now if a block's machine goes on, and when to look for that next:
    for the work there, or for the pool's warm target.

    Also of one that drains, where it does so for its end alone. Work that overruns is seen when
    it should have ended.
    """
    policy = (await load_pool(connection, block["pool"])).purchasing
    drains = block["state"] == "DRAINING" and block["reason"].startswith(ENDING)
    if not policy.enabled or not (block["state"] == "OPEN" or drains):
        return False, None
    found = await connection.execute(text(_WORK), {"id": block["id"], "now": now})
    work = found.one()
    keeps_warm = work.by_use and policy.keeps_warm and block["tier"] == Tier.FAST
    if not (work.jobs or keeps_warm) or now >= block["ends_at"]:
        return False, None
    due = decides_from(block["starts_at"], block["ends_at"], policy, Tier(block["tier"]))
    if now < due:
        return False, due
    return True, work.next_end


async def _commit(connection: AsyncConnection, request: GoOnRequest) -> str:
    """Commit the money of the longer time, and move all ends; return why that is refused.

    Raises StaleError, or StoredError, where the policy of now refuses it: nothing is to stay of it
    then.
    """
    order = await order_rows.lock(connection, request.block_id)
    found = await connection.execute(
        text("SELECT * FROM blocks WHERE id = :id FOR NO KEY UPDATE"), {"id": request.block_id}
    )
    block = found.mappings().one()
    if not order.is_machine or order.state == "CLOSED":
        return "its order is over"
    if block["state"] == "DRAINING" and not block["reason"].startswith(ENDING):
        return f"it ends before its time: {block['reason']}"
    if block["state"] not in ("OPEN", "DRAINING"):
        return "it is not in use"
    if request.until <= block["ends_at"]:
        return ""  # an earlier try has done it
    # As for an order: whoever stops buying waits for this, and nothing comes after it.
    switch = await connection.execute(text("SELECT stopped, reason FROM market_switch FOR SHARE"))
    stopped = switch.one()
    if stopped.stopped:
        return f"buying is stopped: {stopped.reason}"
    limit = OrderRequest.model_validate(order.request).limit
    assert order.gpus_per_node is not None
    assert order.starts_at is not None
    gpus = order.gpus_per_node * max(order.nodes, 1)
    worst = worst_cost(limit, gpus, request.until - order.starts_at)
    values = {
        "id": request.block_id, "until": request.until, "worst": worst, "ending": ENDING,
        "split": await _split(connection, request),
    }  # fmt: skip
    for statement in (_ORDER_GOES_ON, _BLOCK_GOES_ON, _NODES_GO_ON):
        await connection.execute(text(statement), values)
    await rows.recount(connection, order.purchase_id, asks=True)
    # So does whoever changes the policy. Last: a pool's row is locked after all others.
    policy = await kept_policy(connection, block["pool"], first=request.uses == {})
    if why := why_not_longer(await read_facts(connection, request.block_id), policy):
        raise StaleError(why)
    return ""


async def _split(connection: AsyncConnection, request: GoOnRequest) -> str | None:
    """Return by what weights tenants pay for the longer time, as JSON: the GPU-seconds of their
    jobs there, or the default tenant where there are none. None where an older version decided
    that does not say it: whoever has paid by then pays for that too."""
    uses = request.uses
    if uses is None and (decision := await _decision(connection, request.block_id)) is not None:
        uses = decision.uses
    if uses is None:
        return None
    return json.dumps(await rows.paying(connection, uses) or {DEFAULT_TENANT: 1})


async def _keep(connection: AsyncConnection, block_id: str, why: str) -> BlockVerdict:
    decision = await _decision(connection, block_id)
    if decision is None:
        return BlockVerdict(kind=BlockOptionKind.KEEP, reason=f"keep: {why}")
    decision = kept(decision, BlockOptionKind.GO_ON, why)
    await connection.execute(
        text("UPDATE blocks SET decision = CAST(:decision AS jsonb) WHERE id = :id"),
        {"id": block_id, "decision": decision.model_dump_json(exclude={"block_id"})},
    )
    return _verdict(BlockOptionKind.KEEP, decision)


def _verdict(kind: BlockOptionKind, decision: BlockDecision | None) -> BlockVerdict:
    if decision is None:
        return BlockVerdict(kind=kind, reason="what was decided cannot be read here")
    return BlockVerdict(kind=kind, reason=decision.reason, considered=lines_of(decision))


async def _decision(connection: AsyncConnection, block_id: str) -> BlockDecision | None:
    """Return what was decided; None where only another version can read it."""
    stored = await connection.scalar(
        text("SELECT decision FROM blocks WHERE id = :id"), {"id": block_id}
    )
    return stored_decision(block_id, stored)


_WORK = """
    SELECT count(p.job_id) AS jobs, bool_or(o.is_machine) AS by_use,
           min(p.placed_at + make_interval(secs => p.expected_seconds))
               FILTER (WHERE p.placed_at + make_interval(secs => p.expected_seconds) > :now)
               AS next_end
      FROM orders o
      JOIN machines m ON m.block_id = o.key AND m.state = 'READY'
      LEFT JOIN placements p ON p.node_id = m.name AND p.ended_at IS NULL
     WHERE o.key = :id AND o.is_machine
"""

_ORDER_GOES_ON = """
    UPDATE orders
       SET ends_at = :until, committed = greatest(committed, :worst),
           longer = CASE WHEN CAST(:split AS jsonb) IS NULL THEN longer
                         ELSE coalesce(longer, '[]') || jsonb_build_object(
                             'after', extract(epoch FROM ends_at - starts_at),
                             'split', CAST(:split AS jsonb)) END
     WHERE key = :id
"""

_BLOCK_GOES_ON = """
    UPDATE blocks
       SET ends_at = :until, state = 'OPEN',
           reason = CASE WHEN starts_with(reason, :ending) THEN '' ELSE reason END
     WHERE id = :id
"""

_NODES_GO_ON = """
    UPDATE nodes n SET expires_at = :until
      FROM machines m
     WHERE m.block_id = :id AND n.id = m.name AND n.state <> 'GONE' AND n.expires_at < :until
"""

_NODES = """
    SELECT n.id, n.expires_at, starts_with(coalesce(n.drain_reason, ''), :ending) AS ending
      FROM machines m JOIN nodes n ON n.id = m.name AND n.state IN ('READY', 'DRAINING')
     WHERE m.block_id = :id AND m.state = 'READY' ORDER BY n.id
"""
