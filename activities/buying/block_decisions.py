"""Deciding what becomes of a block, and handing its machines over to the block after it."""

import asyncio
import hashlib
import logging
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.block_scene import read_scene, with_markets
from longshore.activities.buying.scale_down import mark_released, released_before
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.heartbeat import heartbeats
from longshore.activities.node_updates import extend_node, undrain_node
from longshore.models.block import ENDING, BlockRef, BlockVerdict, ExtendRequest
from longshore.models.block_end import (
    BlockDecision,
    BlockOptionKind,
    BlockScene,
    Renewal,
    SaleIntent,
)
from longshore.models.errors import LongshoreError
from longshore.models.purchase import AgentsReport, PurchaseOption, PurchaseRequest
from longshore.models.settings import Settings
from longshore.scheduling.buying.block_end import decide_block, kept, lines_of
from longshore.scheduling.buying.caps import tenant_of

_log = logging.getLogger(__name__)


class BlockDecisionActivities:
    """Activities of `BlockWorkflow` and `PurchaseWorkflow` on the end of a block."""

    def __init__(self, database: Database, temporal: Client, settings: Settings) -> None:
        self._database = database
        self._temporal = temporal
        self._settings = settings

    @activity.defn
    @reports_errors
    async def decide_block(self, ref: BlockRef) -> BlockVerdict:
        """Decide what to do with a block now, and store that; of a renewal, its intent too.

        Where the markets cannot be asked, the block stays as it is.
        """
        margins = self._settings.margins
        async with heartbeats():
            async with self._database.snapshot() as connection:
                now = await clock(connection)
                known = await _renewal_under_way(connection, ref.block_id)
                if known is not None:
                    return known
                if reason := await released_before(connection, ref.block_id):
                    return BlockVerdict(kind=BlockOptionKind.LET_GO, reason=reason)
                scene = await read_scene(connection, ref.block_id, now, margins)
                block = await _block(connection, ref.block_id)
            try:
                scene = await with_markets(scene, block["account"], self._settings)
            except LongshoreError as error:
                _log.warning("block %s: no prices: %s", ref.block_id, error)
            except Exception:  # a block is decided about whatever a market answers
                _log.exception("block %s: no prices", ref.block_id)
            decision = await asyncio.to_thread(decide_block, scene)
            return await self._store(scene, block, decision)

    @activity.defn
    @reports_errors
    async def extend_machines(self, request: ExtendRequest) -> AgentsReport:
        """Let machines of a block go on in the time after it: their nodes last until its end.

        Those where a job runs come first. They stay machines of the old block until it ends.
        """
        async with self._database.transaction() as connection:
            block = await _block(connection, request.next_block)
            for block_id in (request.block_id, request.next_block):
                await connection.execute(
                    text("SELECT 1 FROM blocks WHERE id = :id FOR NO KEY UPDATE"), {"id": block_id}
                )
            await connection.execute(
                text(_EXTEND),
                {"old": request.block_id, "new": request.next_block, "nodes": block["nodes"]},
            )
            found = await connection.scalars(
                text("UPDATE nodes n SET expires_at = :ends FROM block_nodes b"
                     " WHERE b.next_block = :new AND n.id = b.node_id AND n.state <> 'GONE'"
                     " RETURNING n.id"),
                {"ends": block["ends_at"], "new": request.next_block},
            )  # fmt: skip
            ready = tuple(sorted(found))
            drained = await connection.scalars(
                text(
                    "SELECT id FROM nodes WHERE id = ANY(:ids) AND starts_with(drain_reason, :end)"
                ),
                {"ids": list(ready), "end": ENDING},
            )
            too_early = tuple(drained)
            await failpoint("extend_machines.before-commit")
        await failpoint("extend_machines.after-commit")
        for node_id in ready:
            await extend_node(self._temporal, node_id, block["ends_at"])
        for node_id in too_early:
            await undrain_node(self._temporal, node_id, "its time goes on")
        return AgentsReport(ready=ready)

    async def _store(
        self, scene: BlockScene, block: rows.Row, decision: BlockDecision
    ) -> BlockVerdict:
        async with self._database.transaction() as connection:
            if decision.kind is BlockOptionKind.LET_GO:
                margins = self._settings.margins
                why = await mark_released(
                    connection, block["id"], decision.reason, scene.now, margins
                )
                decision = kept(decision, BlockOptionKind.LET_GO, why) if why else decision
            await connection.execute(
                text(_DECIDED),
                {
                    "id": decision.block_id, "at": decision.at,
                    "decision": decision.model_dump_json(exclude={"block_id"}),
                    "tried": decision.kind in (BlockOptionKind.SELL, BlockOptionKind.RENEW),
                },
            )  # fmt: skip
            number = await connection.scalar(
                text("SELECT count(*) FROM orders WHERE block_id = :id"), {"id": block["id"]}
            )
        verdict = BlockVerdict(
            kind=decision.kind, reason=decision.reason, considered=lines_of(decision),
            until=decision.until, uses=decision.uses,
        )  # fmt: skip
        if decision.kind is BlockOptionKind.SELL:
            terms = scene.terms
            sales = tuple(
                SaleIntent(
                    block_id=block["id"], number=(number or 0) + place, machine=sale.machine,
                    window=sale.window, limit=sale.limit, fee_bps=terms.fee_bps,
                    fee_flat=terms.fee_flat,
                )
                for place, sale in enumerate(decision.sales, start=1)
            )  # fmt: skip
            return verdict.model_copy(update={"sales": sales})
        if decision.renewal is not None:
            return await self._intend(block, decision, decision.renewal)
        return verdict

    async def _intend(
        self, block: rows.Row, decision: BlockDecision, renewal: Renewal
    ) -> BlockVerdict:
        """Store the intent to buy the time after a block; keep it where that is refused."""
        async with self._database.transaction() as connection:
            bought = (await connection.execute(text(_BOUGHT_BY), {"id": block["id"]})).mappings()
            split = await rows.paying(connection, renewal.uses)
            request = _request(bought.one(), block, decision, renewal, split)
            number = await connection.scalar(
                text("SELECT count(*) FROM purchases WHERE renews = :id"), {"id": block["id"]}
            )
        purchase_id = f"{_prefix(block['id'])}-{(number or 0) + 1}"
        if refused := await rows.store_intent(self._database, purchase_id, request):
            return BlockVerdict(kind=BlockOptionKind.KEEP, reason=f"keep: {refused}")
        return BlockVerdict(
            kind=BlockOptionKind.RENEW, reason=decision.reason, purchase_id=purchase_id,
            renewal=request,
        )  # fmt: skip


def _request(
    bought: rows.Row,
    block: rows.Row,
    decision: BlockDecision,
    renewal: Renewal,
    split: dict[str, int],
) -> PurchaseRequest:
    first = PurchaseRequest.model_validate(bought["request"])
    option = PurchaseOption(
        provider=block["provider"], instance_type=block["instance_type"],
        gpus_per_node=block["gpus_per_node"], length=renewal.window.length,
        start=renewal.window.start, limit=renewal.limit,
        cap=max(renewal.cap, renewal.limit) if renewal.cap else None, place=renewal.place,
        fast_fabric=first.options[0].fast_fabric, for_gang=first.options[0].for_gang,
    )  # fmt: skip
    return PurchaseRequest(
        pool=block["pool"], tenant=tenant_of(split) if split else bought["tenant"],
        split=(split if len(split) > 1 else {}) if split else first.split,
        tier=block["tier"], nodes=renewal.nodes,
        options=(option,), ready_within=first.ready_within, drain_before=first.drain_before,
        renews=block["id"], decision=_record(decision),
    )  # fmt: skip


def _record(decision: BlockDecision) -> dict[str, Any]:
    return {
        "at": decision.at.isoformat(),
        "reason": decision.reason,
        "options": [
            {
                "title": option.title, "kind": option.kind.value, "total": -option.gain,
                "terms": option.terms, "chosen": option.chosen, "lost": option.lost,
            }
            for option in decision.options
        ],
    }  # fmt: skip


def _prefix(block_id: str) -> str:
    return f"p-{hashlib.sha256(block_id.encode()).hexdigest()[:12]}-r"


async def _renewal_under_way(connection: AsyncConnection, block_id: str) -> BlockVerdict | None:
    """Return the renewal whose intent is stored and that has not begun: a repeat begins it."""
    found = await connection.execute(text(_UNBEGUN), {"id": block_id})
    row = found.mappings().first()
    if row is None:
        return None
    return BlockVerdict(
        kind=BlockOptionKind.RENEW, reason="decided before", purchase_id=row["id"],
        renewal=PurchaseRequest.model_validate({**row["request"], "decision": row["decision"]}),
    )  # fmt: skip


async def _block(connection: AsyncConnection, block_id: str) -> rows.Row:
    found = await connection.execute(text("SELECT * FROM blocks WHERE id = :id"), {"id": block_id})
    return found.mappings().one()


_DECIDED = """
    UPDATE blocks SET decision = CAST(:decision AS jsonb), decided_at = :at,
                      tried_at = CASE WHEN :tried THEN :at ELSE tried_at END
     WHERE id = :id
"""

_UNBEGUN = """
    SELECT id, request, decision FROM purchases
     WHERE renews = :id AND state = 'INTENT' ORDER BY created_at DESC LIMIT 1
"""

_BOUGHT_BY = """
    SELECT p.* FROM purchases p JOIN blocks b ON b.purchase_id = p.id WHERE b.id = :id
"""

_EXTEND = """
    INSERT INTO block_nodes (block_id, node_id, next_block)
    SELECT :old, m.name, :new
      FROM machines m JOIN nodes n ON n.id = m.name AND n.state IN ('READY', 'DRAINING')
     WHERE m.block_id = :old AND m.state = 'READY' AND m.sale_key IS NULL
       AND NOT EXISTS (SELECT FROM block_nodes b WHERE b.next_block = :new)
     ORDER BY NOT EXISTS (SELECT FROM placements p
                           WHERE p.node_id = m.name AND p.ended_at IS NULL), m.name
     LIMIT :nodes
    ON CONFLICT DO NOTHING
"""
