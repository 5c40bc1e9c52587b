"""Machines at their end: stopped, read until their market says that they are over, and booked."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.buying import order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.ledger import book_cost
from longshore.activities.database import Database, clock
from longshore.activities.failpoints import failpoint
from longshore.activities.providers.base import Provider
from longshore.models.errors import GoneError, MarketAwayError
from longshore.models.market import Machine, MachineState
from longshore.models.settings import Settings

_RAN = ("STARTING", "READY", "FAILED")
"""States of machines that their market has known."""


class MachineEnds:
    """The steps of a block's activities on one machine. Each may run twice."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    async def record(self, row: rows.Row, found: Machine) -> bool:
        """Write what a machine has cost, and what its market says of it; return whether it is
        over.

        One that is billed as it runs and has failed may be billed until the market has ended it;
        one that has ended is over once its bill is told, or the market has had time for that.
        """
        async with self._database.transaction() as connection:
            order = await order_rows.lock(connection, row["block_id"])
            by_use, failed = order.is_machine, found.state is MachineState.FAILED
            over = found.state is MachineState.ENDED or (failed and not by_use)
            if by_use and (bill_by := self.bill_by(found)) is not None:
                over = await clock(connection) >= bill_by
            if by_use and found.billed is not None and order.state != "CLOSED":
                await book_cost(connection, order, found.billed, simulated=found.simulated)
            if over:
                ended_at = found.ended_at if by_use else None
                values = {
                    "id": found.id, "name": row["name"], "reason": _said(found), "at": ended_at,
                }  # fmt: skip
                await connection.execute(text(_END), values)
                await _mark_node(connection, row["name"])
            elif failed:
                values = {"name": row["name"], "reason": why_failed(found)}
                await connection.execute(text(_FAIL), values)
            await rows.recount(connection, order.purchase_id)
        return over

    def bill_by(self, found: Machine) -> datetime | None:
        """Return by when the bill of a machine that has ended is told, where it is awaited."""
        if found.state is not MachineState.ENDED or found.billed is not None:
            return None
        return found.ended_at + self._settings.market_list_lag if found.ended_at else None

    async def mark_stopped(self, names: Sequence[str], reason: str) -> None:
        """Note why machines are stopped, before they are."""
        async with self._database.transaction() as connection:
            await connection.execute(
                text("UPDATE machines SET stop_reason = coalesce(stop_reason, :reason)"
                     " WHERE name = ANY(:names)"),
                {"names": list(names), "reason": reason or "it is of no more use"},
            )  # fmt: skip

    async def stop(self, market: Provider, row: rows.Row, listed: Machine | None) -> None:
        """Stop a machine, and book what it has cost in the end.

        Raises MarketAwayError until its market says that it is over.
        """
        machine_id = row["machine_id"] or (listed.id if listed else None)
        if machine_id is None and (order := await market.find_order(row["block_id"])) is not None:
            machine_id = order.id
        if machine_id is None:
            # Asked for, and never seen: the list may lag behind the answer that was lost.
            if row["asked_at"] is not None and await self._may_lag(row["asked_at"]):
                raise MarketAwayError(market.name, f"waits whether {row['name']} is listed")
            await self._never_came(row["name"])
            return
        await market.stop_machine(machine_id)
        await failpoint("stop_machines.after-call")
        try:
            found = await market.machine(machine_id)
        except GoneError:
            if not market.capabilities.fixed_window and self._may_be_told(row):
                said = f"waits whether it tells what {row['name']} has cost"
                raise MarketAwayError(market.name, said) from None
            await self._never_came(row["name"])
            return
        if not await self.record(row, found):
            raise MarketAwayError(market.name, f"{row['name']} has not ended yet")

    async def _may_lag(self, since: datetime) -> bool:
        async with self._database.transaction() as connection:
            return await clock(connection) < since + self._settings.market_list_lag

    def _may_be_told(self, row: rows.Row) -> bool:
        """Return whether the bill of a machine that ran may be listed yet: lists lag behind."""
        asked = activity.info().scheduled_time
        return row["state"] in _RAN and datetime.now(UTC) < asked + self._settings.market_list_lag

    async def _never_came(self, name: str) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(text(_NEVER_CAME), {"name": name})
            await _mark_node(connection, name)


async def _mark_node(connection: AsyncConnection, name: str) -> None:
    """Have the next cycle read the node of a machine that has ended, where it is lost: none waits
    for it any more (`activities.snapshot.load_nodes`)."""
    await connection.execute(text(_MARK), {"name": name})


def why_failed(found: Machine) -> str:
    """Return what to say of a machine that has failed and is not over."""
    return f"{_said(found)}; it may be billed until the market has ended it"


def _said(found: Machine) -> str:
    return found.reason or f"the market says {found.native_state}"


_END = """
    UPDATE machines SET state = 'ENDED',
           ended_at = CASE WHEN CAST(:at AS timestamptz) IS NULL THEN clock_timestamp()
                           ELSE least(clock_timestamp(),
                                      greatest(CAST(:at AS timestamptz), created_at)) END,
           machine_id = coalesce(machine_id, :id),
           reason = CASE WHEN state = 'FAILED' THEN reason
                         ELSE coalesce(stop_reason, :reason) END
     WHERE name = :name AND state <> 'ENDED'
"""

_FAIL = """
    UPDATE machines SET state = 'FAILED', reason = :reason
     WHERE name = :name AND state NOT IN ('FAILED', 'ENDED')
"""

_MARK = "UPDATE nodes SET changed_in = DEFAULT WHERE id = :name AND state = 'LOST'"
"""A trigger puts the number of the transaction there."""

_NEVER_CAME = """
    UPDATE machines SET state = 'ENDED', ended_at = clock_timestamp(),
           reason = CASE WHEN state = 'FAILED' THEN reason
                         ELSE 'the market does not know it' END
     WHERE name = :name AND state <> 'ENDED'
"""
