"""What becomes of a bought machine that somebody cordons or drains: whoever does that is told."""

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.block_scene import CLOSED_SINCE, PAID_UNTIL
from longshore.activities.snapshot import load_pool
from longshore.models.text import count, dollars, format_duration
from longshore.scheduling.buying.scale_down import closed_grace


async def what_closing_costs(connection: AsyncConnection, node_id: str) -> str:
    """Return what becomes of the machine of a node that is cordoned or drained, in one sentence:
    it ends when that has lasted, where it is billed as it runs; or its time is paid for, and of no
    use meanwhile. Nothing of a node of one's own."""
    row = (await connection.execute(text(_CLOSED), {"id": node_id})).one_or_none()
    if row is None:
        return ""
    if row.paid_until is not None:
        left = timedelta(minutes=-(-row.left // timedelta(minutes=1)))
        worth = round(row.hourly * (row.left / timedelta(hours=1)))
        return (
            f"{node_id} is paid until {row.paid_until:%Y-%m-%d %H:%M} UTC (block {row.id}): "
            f"{format_duration(left)} of it, {dollars(worth)}, are of no use unless it is "
            "uncordoned, or its agent starts anew, before"
        )
    if not row.by_use:
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
    SELECT b.id, b.pool, o.is_machine AS by_use, p.until AS paid_until,
           p.until - clock_timestamp() AS left,
           b.price_micro_per_gpu_hour * b.gpus_per_node AS hourly,
           (SELECT count(*) FROM machines m
             WHERE m.block_id = b.id AND m.state NOT IN ('FAILED', 'ENDED')) AS machines,
           EXISTS (SELECT FROM purchases p WHERE p.id = b.purchase_id AND p.decision IS NOT NULL)
               AS decided
      FROM nodes n
      JOIN blocks b ON b.id = n.block_id
      JOIN orders o ON o.key = b.id
      LEFT JOIN LATERAL (SELECT {PAID_UNTIL} AS until) AS p ON p.until > clock_timestamp()
     WHERE n.id = :id AND b.state IN ('STARTING', 'OPEN') AND ({CLOSED_SINCE}) IS NOT NULL
"""
