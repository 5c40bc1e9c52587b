"""The fingerprint of a node that is accepted: jobs that hold a node alone ask for it."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.base import Wire
from longshore.models.errors import NotFoundError, RefusedError


class Accepted(Wire):
    """What is accepted of a node from now on."""

    node_id: str
    pool: str
    fingerprint: str
    before: str | None = None
    """What was accepted before; null where nothing was."""
    notes: tuple[str, ...] = ()
    """That the pool was not told, where that is so."""


async def accept(connection: AsyncConnection, node_id: str) -> Accepted:
    """Accept the fingerprint that a node has. Raises NotFoundError, and RefusedError for a node
    that has none."""
    found = await connection.execute(text(_LOCK), {"id": node_id})
    row = found.mappings().first()
    if row is None:
        raise NotFoundError(f"there is no node {node_id}: `longshore nodes` lists them")
    if row["conformance"] is None:
        raise RefusedError(
            f"node {node_id} has not said what driver and kernel parameters it has: there is no "
            "fingerprint to accept"
        )
    await connection.execute(text(_ACCEPT), {"id": node_id})
    return Accepted(
        node_id=node_id, pool=row["pool"], fingerprint=row["conformance"], before=row["accepted"]
    )


_LOCK = """
    SELECT pool, conformance, accepted FROM nodes WHERE id = :id AND state <> 'GONE'
       FOR NO KEY UPDATE
"""

_ACCEPT = """
    UPDATE nodes SET accepted = conformance
     WHERE id = :id AND accepted IS DISTINCT FROM conformance
"""
