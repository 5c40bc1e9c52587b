"""Reading purchases, blocks and costs for people: the client and the console show these."""

from typing import Any

from sqlalchemy import text

from activities.database import Database
from models.base import Instant, Wire
from models.purchase import BlockState, PurchaseState


class PurchaseView(Wire):
    """Amounts are micro-dollars."""

    id: str
    pool: str
    tenant: str
    tier: str
    state: PurchaseState
    reason: str
    committed: int
    spent: int
    simulated: bool
    orders: int
    nodes: tuple[str, ...]
    """Machines that have not ended."""
    created_at: Instant
    ended_at: Instant | None = None


class BlockView(Wire):
    """Amounts are micro-dollars, the price micro-dollars per GPU-hour."""

    id: str
    purchase_id: str | None = None
    pool: str | None = None
    provider: str
    instance_type: str
    state: BlockState
    reason: str
    nodes: int
    gpus_per_node: int
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    price: int
    cost: int
    simulated: bool


class CostView(Wire):
    """What one pool, tenant, job or block has cost, in micro-dollars."""

    name: str
    spent: int
    """Paid for it at the markets; of a job or a tenant, its share of what was paid."""
    used: int = 0
    """By jobs, of blocks whose account is closed."""
    idle: int = 0
    resold: int = 0
    open: int = 0
    """Paid for blocks that have not ended: not yet divided into used and idle."""


class PurchaseViews:
    """Read-only views. Every call may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def purchases(
        self, *, pool: str | None = None, with_ended: bool = False, limit: int = 100
    ) -> tuple[PurchaseView, ...]:
        """Return purchases, the newest first."""
        found = await self._rows(_PURCHASES, pool=pool, ended=with_ended, limit=limit)
        return tuple(PurchaseView.model_validate(row) for row in found)

    async def blocks(
        self, *, pool: str | None = None, with_ended: bool = False, limit: int = 100
    ) -> tuple[BlockView, ...]:
        """Return blocks that were bought, the newest first."""
        found = await self._rows(_BLOCKS, pool=pool, ended=with_ended, limit=limit)
        return tuple(BlockView.model_validate(row) for row in found)

    async def costs(self, by: str, *, limit: int = 100) -> tuple[CostView, ...]:
        """Return costs by `pool`, `tenant`, `job` or `block`, the dearest first."""
        found = await self._rows(_COSTS[by], limit=limit)
        return tuple(CostView.model_validate(row) for row in found)

    async def _rows(self, statement: str, **values: object) -> list[dict[str, Any]]:
        async with self._database.transaction() as connection:
            return [
                dict(r) for r in (await connection.execute(text(statement), values)).mappings()
            ]


_PURCHASES = """
    SELECT p.id, p.pool, p.tenant, p.tier, p.state, p.reason, p.committed, p.spent, p.simulated,
           p.created_at, p.ended_at,
           (SELECT count(*) FROM purchase_orders o WHERE o.purchase_id = p.id) AS orders,
           ARRAY(SELECT name FROM machines m WHERE m.purchase_id = p.id AND m.state <> 'ENDED'
                  ORDER BY name) AS nodes
      FROM purchases p
     WHERE (CAST(:pool AS text) IS NULL OR p.pool = :pool)
       AND (:ended OR p.state NOT IN ('ENDED', 'REFUSED'))
     ORDER BY p.created_at DESC, p.id
     LIMIT :limit
"""

_BLOCKS = """
    SELECT b.id, b.purchase_id, b.pool, b.provider, b.instance_type, b.state, b.reason, b.nodes,
           b.gpus_per_node, b.starts_at, b.ends_at, b.price_micro_per_gpu_hour AS price,
           b.simulated, coalesce(o.spent, 0) AS cost
      FROM blocks b JOIN purchase_orders o ON o.key = b.id
     WHERE (CAST(:pool AS text) IS NULL OR b.pool = :pool) AND (:ended OR b.state <> 'ENDED')
     ORDER BY b.created_at DESC, b.id
     LIMIT :limit
"""

_MOVED = """
    SELECT b.id AS block, b.pool,
           coalesce(sum(CASE WHEN l.kind = 'purchase' THEN l.micro
                             WHEN l.kind = 'refund' THEN -l.micro
                             WHEN l.kind = 'fee' THEN l.micro END), 0)::bigint AS spent,
           coalesce(sum(l.micro) FILTER (WHERE l.debit LIKE 'job:%'), 0)::bigint AS used,
           coalesce(sum(l.micro) FILTER (WHERE l.debit LIKE 'idle:%'), 0)::bigint AS idle,
           coalesce(sum(l.micro) FILTER (WHERE l.kind = 'resale'), 0)::bigint AS resold,
           b.state
      FROM blocks b LEFT JOIN ledger l ON l.block_id = b.id
     WHERE b.purchase_id IS NOT NULL
     GROUP BY b.id
"""

_SUMS = """
    SELECT {name} AS name, sum(spent)::bigint AS spent, sum(used)::bigint AS used,
           sum(idle)::bigint AS idle, sum(resold)::bigint AS resold,
           coalesce(sum(spent) FILTER (WHERE state <> 'ENDED'), 0)::bigint AS open
      FROM ({moved}) AS m GROUP BY 1 ORDER BY spent DESC, name LIMIT :limit
"""

_SHARES = """
    SELECT {name} AS name, sum(l.micro)::bigint AS spent, sum(l.micro)::bigint AS used
      FROM ledger l JOIN jobs j ON l.debit = 'job:' || j.id
     WHERE l.kind = 'usage' GROUP BY 1 ORDER BY spent DESC, name LIMIT :limit
"""

_COSTS = {
    "pool": _SUMS.format(name="coalesce(pool, '')", moved=_MOVED),
    "block": _SUMS.format(name="block", moved=_MOVED),
    "tenant": _SHARES.format(name="j.tenant"),
    "job": _SHARES.format(name="j.id"),
}
