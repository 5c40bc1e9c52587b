"""Reading what was decided about a block, and what of its time was sold, for people."""

from sqlalchemy import text

from activities.buying.purchase_details import PurchaseDetails
from activities.database import Database
from models.base import Instant, Wire
from models.block_end import BlockDecision
from models.spending import BlockDetail


class SaleView(Wire):
    """One sale of a node's time."""

    key: str
    machine: str
    state: str
    starts_at: Instant
    ends_at: Instant
    limit_micro_usd: int
    """No less than this for a GPU-hour."""
    resold_micro_usd: int
    """What it brought, before the fee."""
    fee_micro_usd: int
    refused: str = ""
    """Why the market did not take it."""
    created_at: Instant


class BlockEndView(Wire):
    """A block with what was decided about it last, and its sales."""

    block: BlockDetail
    decision: BlockDecision | None = None
    sales: tuple[SaleView, ...] = ()
    renewed_by: str | None = None
    """The purchase of the time after it."""


class BlockEndViews:
    """Read-only. Every call may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_block(self, block_id: str) -> BlockEndView:
        """Return a block with its last decision and its sales. Raises NotFoundError."""
        block = await PurchaseDetails(self._database).block(block_id)
        async with self._database.transaction() as connection:
            sales = (await connection.execute(text(_SALES), {"id": block_id})).mappings().all()
            renewed_by = await connection.scalar(text(_RENEWAL), {"id": block_id})
        return BlockEndView(
            block=block,
            decision=block.decision,
            sales=tuple(SaleView.model_validate(dict(row)) for row in sales),
            renewed_by=renewed_by,
        )


_SALES = """
    SELECT key, machine, state, starts_at, ends_at, (request ->> 'limit')::bigint
               AS limit_micro_usd,
           proceeds AS resold_micro_usd, fee AS fee_micro_usd, refused, created_at
      FROM sales WHERE block_id = :id ORDER BY number
"""

_RENEWAL = """
    SELECT id FROM purchases WHERE renews = :id AND state <> 'REFUSED'
     ORDER BY created_at DESC LIMIT 1
"""
