"""Restarts machines of a bought window that have ended, on the time that is paid for.

While a purchase still buys, its workflow starts its machines. Afterwards the workflow of the block
does, at its looks.
"""

from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.purchase_rows import Row
from longshore.activities.buying.startup_failures import FAILED, SILENT
from longshore.activities.snapshot import load_pool
from longshore.models.base import Frozen
from longshore.models.buying import BuyingPolicy
from longshore.models.margins import Margins
from longshore.models.purchase import PurchaseRequest, machine_name
from longshore.scheduling.buying.start_backoff import next_start

_WHILE_IT_BUYS = timedelta(seconds=20)
"""Between two polls of a block that lacks a machine while its purchase buys on."""
_LOST_POLL = timedelta(seconds=10)
"""Between two polls of a node that was lost of late: its market may say soon why."""


class Restart(Frozen):
    """The machines that a block lacks."""

    numbers: tuple[int, ...] = ()
    """To start now."""
    awaits: timedelta | None = None
    """How long agents of machines that start are waited for; None where none starts."""
    silent: tuple[str, ...] = ()
    """Machines to stop now: their agents have been silent for too long."""
    look_at: datetime | None = None
    """When to look next, where that is sooner than usual."""
    possible: bool = False
    """Whether a machine may come up there yet."""


def silent_until(since: datetime, policy: BuyingPolicy) -> datetime:
    """Return until when an agent that fell silent may come back to its machine, which its market
    says is up: for as long as another machine takes to start."""
    return since + policy.usual_startup


def least_use(policy: BuyingPolicy) -> timedelta:
    """Return how much of paid time has to be left for a start to be of use."""
    return policy.usual_startup + policy.safety_margin


async def look_for_restart(
    connection: AsyncConnection, block: Row, now: datetime, margins: Margins
) -> Restart:
    """Return which machines of a bought window are to be started again, now or later, and which
    are to be stopped for that.

    None of a block that ends, that is billed as it runs, or whose time has not begun, which is
    looked at when it does; and none for a node whose time is for sale or sold.
    """
    if block["state"] not in ("STARTING", "OPEN"):
        return Restart()
    if now < block["starts_at"]:
        return Restart(look_at=block["starts_at"])
    found = await connection.execute(text(_LACKS), {"id": block["id"], "now": now})
    row = found.mappings().first()
    if row is None:
        return Restart()
    policy = (await load_pool(connection, block["pool"], margins)).purchasing
    due: dict[int, datetime | None] = {}
    refused = (await connection.execute(text(_ASKED_FOR), {"id": block["id"]})).all()
    for each in refused:
        since = each.refused_at or block["starts_at"]
        due[_number(block["id"], each.name)] = next_start(
            each.tries, since, now, block["ends_at"], least_use(policy)
        )
    names = await connection.scalars(
        text("SELECT name FROM machines WHERE starts_with(name, :prefix)"),
        {"prefix": machine_name(block["id"], 1)[:-1]},
    )
    last = max((_number(block["id"], name) for name in names), default=0)
    for number in range(last + 1, last + 1 + max(row["lacking"], 0)):
        since = row["failed_at"] or block["starts_at"]
        due[number] = next_start(row["failures"], since, now, block["ends_at"], least_use(policy))
    moments = [at for at in due.values() if at is not None]
    later = [at for at in moments if at > now]
    silent: list[str] = []
    for each in await connection.execute(text(_SILENT), {"id": block["id"]}):
        until = silent_until(each.state_since, policy)
        if until > now:
            later.append(until)
        elif now + least_use(policy) <= block["ends_at"]:
            silent.append(each.name)
    if row["just_lost"]:
        later.append(now + _LOST_POLL)
    if row["buying"]:
        return Restart(
            silent=tuple(silent), look_at=now + _WHILE_IT_BUYS if moments else None,
            possible=bool(moments),
        )  # fmt: skip
    numbers = tuple(number for number, at in due.items() if at is not None and at <= now)
    within = PurchaseRequest.model_validate(row["request"]).ready_within
    return Restart(
        numbers=numbers,
        silent=tuple(silent),
        awaits=within if numbers or row["starting"] else None,
        look_at=min(later, default=None),
        possible=bool(moments),
    )


def _number(block_id: str, name: str) -> int:
    return int(name.removeprefix(machine_name(block_id, 1)[:-1]))


_LACKS = f"""
    WITH {FAILED}
    SELECT p.buying, p.request,
           b.nodes - (SELECT count(*) FROM of_block
                       WHERE sale_key IS NOT NULL OR state NOT IN ('FAILED', 'ENDED'))
                   - (SELECT count(*) FROM block_nodes g JOIN machines m ON m.name = g.node_id
                       WHERE g.next_block = b.id AND g.handed_over_at IS NULL
                         AND m.state NOT IN ('FAILED', 'ENDED')) AS lacking,
           (SELECT count(*) FROM failed) AS failures,
           (SELECT max(coalesce(ended_at, asked_at)) FROM of_block
             WHERE sale_key IS NULL AND state IN ('FAILED', 'ENDED')) AS failed_at,
           EXISTS (SELECT FROM of_block WHERE state = 'STARTING') AS starting,
           EXISTS (SELECT FROM of_block m JOIN nodes n ON n.id = m.name
                    WHERE {SILENT}
                      AND n.state_since + CAST(p.request ->> 'ready_within' AS interval) > :now)
               AS just_lost
      FROM blocks b
      JOIN orders o ON o.key = b.id AND NOT o.is_machine
      JOIN purchases p ON p.id = b.purchase_id
     WHERE b.id = :id
"""

_SILENT = f"""
    SELECT m.name, n.state_since
      FROM machines m JOIN nodes n ON n.id = m.name
     WHERE m.block_id = :id AND m.sale_key IS NULL AND {SILENT}
     ORDER BY m.name
"""
_ASKED_FOR = """
    SELECT name, tries, refused_at FROM machines
     WHERE block_id = :id AND state = 'INTENT' AND sale_key IS NULL ORDER BY name
"""
