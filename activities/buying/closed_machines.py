"""What becomes of a bought machine that somebody cordons or drains: whoever does that is told."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.block_scene import CLOSED_SINCE, PREPAID_UNTIL
from longshore.activities.snapshot import load_pool
from longshore.models.text import count, format_duration
from longshore.scheduling.buying.scale_down import closed_grace


async def ends_closed(connection: AsyncConnection, node_id: str) -> str:
    """Return that a node which is cordoned or drained is billed as it runs and ends when that has
    lasted, in one sentence; nothing of any other. What is paid in advance is not billed yet."""
    row = (await connection.execute(text(_CLOSED), {"id": node_id})).one_or_none()
    if row is None:
        return ""
    policy = (await load_pool(connection, row.pool)).buying
    if not (policy.enabled or row.decided):
        return ""  # nothing is decided about it: it runs to the end of its block
    ends = "it ends once nothing has run there"
    if row.machines > 1:  # a cluster ends as one: the warm target may want the others
        machines = count(row.machines, "machine")
        ends = f"it may end once nothing has run on the {machines} of its block"
    return (
        f"{node_id} is billed as it runs (block {row.id}): {ends} "
        f"for {format_duration(closed_grace(policy))}, unless it is uncordoned, or its agent "
        f"starts anew, before; `longshore block {row.id}` says when"
    )


_CLOSED = f"""
    SELECT b.id, b.pool,
           (SELECT count(*) FROM machines m
             WHERE m.block_id = b.id AND m.state NOT IN ('FAILED', 'ENDED')) AS machines,
           EXISTS (SELECT FROM purchases p WHERE p.id = b.purchase_id AND p.decision IS NOT NULL)
               AS decided
      FROM nodes n
      JOIN blocks b ON b.id = n.block_id
      JOIN orders o ON o.key = b.id AND o.is_machine
     WHERE n.id = :id AND b.state IN ('STARTING', 'OPEN') AND ({CLOSED_SINCE}) IS NOT NULL
       AND coalesce({PREPAID_UNTIL} <= clock_timestamp(), true)
"""
