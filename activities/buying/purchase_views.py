"""Reading purchases, blocks and costs for people: the client and the console show these."""

from datetime import datetime
from typing import Any

from sqlalchemy import text

from longshore.activities.buying.accounts import (
    ACCOUNT_OF_BLOCK,
    ACCOUNT_OF_PURCHASE,
    OF_BLOCK,
    OF_LEDGER,
    OF_PURCHASE,
    SUMMED,
)
from longshore.activities.database import Database
from longshore.models.purchase import PurchaseState
from longshore.models.spending import BlockView, CostView, PurchaseView


class PurchaseViews:
    """Read-only views. Every call may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def purchases(
        self,
        *,
        pool: str | None = None,
        tenant: str | None = None,
        state: PurchaseState | None = None,
        with_ended: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[PurchaseView, ...]:
        """Return purchases, the newest first.

        With a state, those that have ended count too. `after` is the id of the last one of the
        page before.
        """
        found = await self._rows(
            _PURCHASES, pool=pool, tenant=tenant, state=state and state.value,
            ended=with_ended or state is not None, after=after, limit=limit,
        )  # fmt: skip
        return tuple(PurchaseView.model_validate(row) for row in found)

    async def blocks(
        self,
        *,
        pool: str | None = None,
        with_ended: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[BlockView, ...]:
        """Return blocks that were bought, the newest first. `after` as in `purchases`."""
        found = await self._rows(_BLOCKS, pool=pool, ended=with_ended, after=after, limit=limit)
        return tuple(BlockView.model_validate(row) for row in found)

    async def costs(
        self,
        by: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> tuple[CostView, ...]:
        """Return costs by `pool`, `tenant`, `job` or `block`, the dearest first.

        What was booked from `since` on and before `until` counts; all of it without.
        """
        found = await self._rows(_COSTS[by], since=since, until=until, limit=limit)
        return tuple(CostView.model_validate(row) for row in found)

    async def _rows(self, statement: str, **values: object) -> list[dict[str, Any]]:
        async with self._database.transaction() as connection:
            return [
                dict(r) for r in (await connection.execute(text(statement), values)).mappings()
            ]


_PURCHASES = f"""
    SELECT p.id, p.pool, p.tenant, p.tier, p.state, p.reason, p.committed AS committed_micro_usd,
           p.simulated, p.created_at, p.ended_at, {OF_PURCHASE},
           (SELECT count(*) FROM orders o WHERE o.purchase_id = p.id) AS orders,
           ARRAY(SELECT name FROM machines m
                  WHERE m.purchase_id = p.id AND m.state NOT IN ('FAILED', 'ENDED')
                  ORDER BY name) AS nodes
      FROM purchases p {ACCOUNT_OF_PURCHASE}
     WHERE (CAST(:pool AS text) IS NULL OR p.pool = :pool)
       AND (CAST(:tenant AS text) IS NULL OR p.tenant = :tenant)
       AND (CAST(:state AS text) IS NULL OR p.state = :state)
       AND (:ended OR p.state NOT IN ('ENDED', 'REFUSED'))
       AND (CAST(:after AS text) IS NULL OR EXISTS (
                SELECT 1 FROM purchases a WHERE a.id = :after
                   AND (p.created_at < a.created_at
                        OR p.created_at = a.created_at AND p.id > a.id)))
     ORDER BY p.created_at DESC, p.id
     LIMIT :limit
"""

_BLOCKS = f"""
    SELECT b.id, b.purchase_id, b.pool, b.provider, b.instance_type, b.state, b.reason, b.nodes,
           b.gpus_per_node, b.starts_at, b.ends_at, b.ended_at,
           b.price_micro_per_gpu_hour AS price_micro_usd, b.simulated,
           coalesce(b.decision ->> 'reason', '') AS decided, {OF_BLOCK}
      FROM blocks b JOIN orders o ON o.key = b.id {ACCOUNT_OF_BLOCK}
     WHERE (CAST(:pool AS text) IS NULL OR b.pool = :pool) AND (:ended OR b.state <> 'ENDED')
       AND (CAST(:after AS text) IS NULL OR EXISTS (
                SELECT 1 FROM blocks a WHERE a.id = :after
                   AND (b.created_at < a.created_at
                        OR b.created_at = a.created_at AND b.id > a.id)))
     ORDER BY b.created_at DESC, b.id
     LIMIT :limit
"""

_BOOKED_THEN = """
    (CAST(:since AS timestamptz) IS NULL OR l.at >= :since)
    AND (CAST(:until AS timestamptz) IS NULL OR l.at < :until)
"""

_UNDER_LIMIT = """
    greatest(coalesce((o.request ->> 'limit')::numeric, 0) - b.price_micro_per_gpu_hour, 0)
        / nullif(b.price_micro_per_gpu_hour, 0)
"""
"""By what share of its price a block was below the limit of its order."""

_MOVED = f"""
    SELECT b.id AS block, b.pool, b.simulated, {_UNDER_LIMIT} AS under, {OF_LEDGER},
           b.state = 'ENDED' AS ended
      FROM blocks b
      JOIN orders o ON o.key = b.id
      JOIN ledger l ON l.block_id = b.id
     WHERE b.purchase_id IS NOT NULL AND {_BOOKED_THEN}
     GROUP BY b.id, o.key
"""

_SUMS = """
    SELECT {name} AS name, {summed},
           coalesce(sum(a.paid * a.under), 0)::bigint AS saved_micro_usd,
           bool_or(a.simulated) AS simulated
      FROM ({moved}) AS a GROUP BY 1 ORDER BY paid_micro_usd DESC, name LIMIT :limit
"""

_SHARES = f"""
    SELECT {{name}} AS name, sum(l.micro)::bigint AS paid_micro_usd,
           sum(l.micro)::bigint AS used_micro_usd,
           coalesce(sum(l.micro * {_UNDER_LIMIT}), 0)::bigint AS saved_micro_usd,
           bool_or(l.simulated) AS simulated
      FROM ledger l
      JOIN jobs j ON l.debit = 'job:' || j.id
      JOIN blocks b ON b.id = l.block_id
      JOIN orders o ON o.key = b.id
     WHERE l.kind = 'usage' AND {_BOOKED_THEN}
     GROUP BY 1 ORDER BY paid_micro_usd DESC, name LIMIT :limit
"""

_COSTS = {
    "pool": _SUMS.format(name="coalesce(a.pool, '')", moved=_MOVED, summed=SUMMED),
    "block": _SUMS.format(name="a.block", moved=_MOVED, summed=SUMMED),
    "tenant": _SHARES.format(name="j.tenant"),
    "job": _SHARES.format(name="j.id"),
}
