"""Reading what was decided about a block, and what of its time was sold, for people."""

from datetime import timedelta

from sqlalchemy import text

from longshore.activities.buying.block_scene import PAID_UNTIL
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.stored_documents import why_left_alone
from longshore.activities.database import Database
from longshore.models.base import Instant, Wire
from longshore.models.block import BlockState
from longshore.models.block_end import BlockDecision
from longshore.models.spending import BlockDetail
from longshore.models.units import Duration


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
    left_alone: str = ""
    """Why nothing is decided about it but its end: what it was bought by cannot be read."""


class GivenUp(Wire):
    """What is lost of paid time when its block is terminated, but for what others pay for it."""

    nodes: int
    ends_at: Instant
    length: Duration
    sold: bool = True
    """Whether others may buy it: a window."""
    paid_micro_usd: int


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
            ended = block.state is BlockState.ENDED
            left_alone = "" if ended else await why_left_alone(connection, block_id)
        return BlockEndView(
            block=block,
            decision=block.decision,
            sales=tuple(SaleView.model_validate(dict(row)) for row in sales),
            renewed_by=renewed_by,
            left_alone=left_alone,
        )

    async def given_up(self, block_id: str) -> GivenUp | None:
        """Return what would be lost if a block were terminated now; None where nothing would.

        Nodes whose time is sold, and those that go on in the block after it, lose nothing.
        """
        async with self._database.transaction() as connection:
            found = await connection.execute(text(_GIVEN_UP), {"id": block_id})
            row = found.mappings().first()
        if row is None:
            return None
        hours = row["length"] / timedelta(hours=1)
        return GivenUp(
            nodes=row["nodes"], ends_at=row["ends_at"], length=row["length"],
            sold=not row["is_machine"],
            paid_micro_usd=round(row["hourly"] * row["nodes"] * hours),
        )  # fmt: skip


_GIVEN_UP = f"""
    SELECT b.nodes - u.nodes AS nodes, p.until AS ends_at,
           p.until - greatest(b.starts_at, clock_timestamp()) AS length,
           b.price_micro_per_gpu_hour * b.gpus_per_node AS hourly, o.is_machine
      FROM blocks b
      JOIN orders o ON o.key = b.id
      JOIN LATERAL (SELECT {PAID_UNTIL} AS until) AS p ON p.until > clock_timestamp()
     CROSS JOIN LATERAL (
           SELECT (SELECT count(*) FROM orders WHERE block_id = b.id AND state = 'SOLD')
                  + (SELECT count(*) FROM block_nodes WHERE block_id = b.id) AS nodes) AS u
     WHERE b.id = :id AND b.state <> 'ENDED'
       AND u.nodes < b.nodes
"""

_SALES = """
    SELECT key, machine, state, starts_at, ends_at,
           coalesce((request ->> 'limit')::bigint, 0) AS limit_micro_usd,
           proceeds AS resold_micro_usd, fee AS fee_micro_usd, refused, created_at
      FROM orders WHERE block_id = :id ORDER BY number
"""

_RENEWAL = """
    SELECT id FROM purchases WHERE renews = :id AND state <> 'REFUSED'
     ORDER BY created_at DESC LIMIT 1
"""
