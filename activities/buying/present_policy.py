"""The buying policy that a pool has now, for who commits money by an earlier decision."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.snapshot import load_pool
from longshore.models.buying import BuyingPolicy


async def kept_policy(connection: AsyncConnection, pool: str) -> BuyingPolicy:
    """Return the policy of a pool, which stays until the end of the transaction.

    Raises StoredError where it cannot be read.
    """
    await connection.execute(text(_KEEP_POOL), {"pool": pool})
    return (await load_pool(connection, pool)).purchasing


_KEEP_POOL = "SELECT FROM pools WHERE name = :pool FOR SHARE"
