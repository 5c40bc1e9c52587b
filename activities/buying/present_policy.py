"""The buying policy that a pool has now, for who commits money by an earlier decision."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.snapshot import load_pool
from longshore.models.buying import BuyingPolicy


async def kept_policy(
    connection: AsyncConnection, pool: str, *, first: bool = False
) -> BuyingPolicy:
    """Return the policy of a pool, which stays until the end of the transaction; `first` for what
    no job of it has started on.

    Raises StoredError where it cannot be read.
    """
    await connection.execute(text(_KEEP_POOL), {"pool": pool})
    spec = await load_pool(connection, pool)
    return spec.first_purchases if first else spec.purchasing


_KEEP_POOL = "SELECT FROM pools WHERE name = :pool FOR SHARE"
