"""What a look at a block says by the policy of its pool: when it is idle, and whether to decide.

A row of a block is that of `blocks` with `is_machine` of its order and `decided` of its purchase.
"""

from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.block_scene import CLOSED_SINCE, idle_since
from longshore.activities.buying.purchase_rows import Row
from longshore.activities.buying.startup_failures import failed_machines
from longshore.models.buying import BuyingPolicy
from longshore.models.job import Tier
from longshore.scheduling.buying.block_end import resale_window
from longshore.scheduling.buying.scale_down import closed_until


async def idle_at(
    connection: AsyncConnection, block: Row, policy: BuyingPolicy
) -> datetime | None:
    """Return when a machine will have been idle for as long as its pool's policy bears.

    None while something runs there, before its agent has come, and where its time is paid for
    anyway.
    """
    since = await connection.scalar(text(idle_since(":id")), {"id": block["id"]})
    return since + policy.idle_after if since is not None and _may_leave(block, policy) else None


async def may_end_at(
    connection: AsyncConnection,
    block: Row,
    policy: BuyingPolicy,
    idle: datetime | None,
    now: datetime,
) -> datetime | None:
    """Return when a machine may end that is `idle` from then on, and cordoned or drained or left
    by its agent; None where it may already, or is not."""
    if idle is None:
        return None
    closed = await connection.scalar(text(_CLOSED), {"id": block["id"]})
    if closed is None:
        return None
    until = closed_until(closed, idle - policy.idle_after, policy)
    return until if until > now else None


def _may_leave(block: Row, policy: BuyingPolicy) -> bool:
    """Return whether the policy says when machines end and what is sold (`BlockScene.may_leave`):
    also where it buys no more, of what it has bought."""
    return policy.enabled or block["decided"]


def sells(block: Row, policy: BuyingPolicy, now: datetime) -> bool:
    """Return whether the rest of a block may be sold to others by its pool's policy."""
    is_window = not block["is_machine"]
    traded = is_window and resale_window(block["ends_at"], now) is not None
    return traded and _may_leave(block, policy) and policy.resell


def may_be_warm(block: Row, policy: BuyingPolicy) -> bool:
    """Return whether the pool keeps machines of the block's tier that nothing runs on."""
    return policy.keeps_warm and block["tier"] == Tier.FAST


async def decides_now(
    connection: AsyncConnection,
    block: Row,
    policy: BuyingPolicy,
    idle: datetime | None,
    now: datetime,
    *,
    lost_its_jobs: bool,
) -> bool:
    """Return whether there is something to decide: a machine to terminate, time to sell or to buy.

    The markets are asked only then.
    """
    if idle is not None:
        return idle <= now
    if not _may_leave(block, policy):
        return False
    if lost_its_jobs:
        return True
    unstarted = await failed_machines(connection, block["id"], now)
    if not (block["state"] == "OPEN" or unstarted):
        return False
    found = (await connection.execute(text(_USE), {"id": block["id"]})).one()
    if found.is_machine:
        return False
    spare = (found.idle or unstarted) and resale_window(block["ends_at"], now) is not None
    ending = (found.busy or found.waiting) and now >= block["ends_at"] - 2 * policy.startup_limit
    renews = policy.enabled and policy.renew and ending
    return bool((policy.resell and spare) or renews)


_USE = """
    SELECT o.is_machine,
           coalesce(bool_or(n.state = 'READY' AND NOT u.held), false) AS idle,
           coalesce(bool_or(u.held), false) AS busy,
           EXISTS (SELECT FROM queue q WHERE q.pool = max(b.pool) AND NOT q.held) AS waiting
      FROM orders o
      JOIN blocks b ON b.id = o.key
      LEFT JOIN machines m ON m.block_id = o.key AND m.state = 'READY' AND m.sale_key IS NULL
      LEFT JOIN nodes n ON n.id = m.name
      LEFT JOIN LATERAL (
          SELECT EXISTS (SELECT FROM placements p
                          WHERE p.node_id = n.id AND p.ended_at IS NULL) AS held) AS u ON true
     WHERE o.key = :id GROUP BY o.is_machine
"""

_CLOSED = f"SELECT max({CLOSED_SINCE}) FROM nodes n WHERE n.block_id = :id"
