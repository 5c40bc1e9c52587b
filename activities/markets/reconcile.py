"""Comparing what the markets list and bill with what is known here. Nothing is changed.

An account may be used by others too: what nobody here knows is reported with what it has cost so
far, for a person to end.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import text

from longshore.activities.database import Database
from longshore.activities.providers.base import Provider
from longshore.models.base import Instant, Wire
from longshore.models.errors import LongshoreError
from longshore.models.market import Machine, Order, Side
from longshore.models.purchase import worst_cost
from longshore.models.text import count, format_dollars
from longshore.scheduling.prices.fills import cost

MARGIN = timedelta(minutes=2)
"""What is younger may be a step under way."""


class Mismatch(StrEnum):
    ORDER = "order"
    """The market has it, and nobody here knows it."""
    MACHINE = "machine"
    MISSING = "missing"
    """It is to be running, and the market does not list it."""
    BILL = "bill"
    """It is over, and the market has billed another amount than is booked."""
    AWAY = "away"
    """The market did not answer: nothing is known."""


NEXT = {
    Mismatch.ORDER: "If nobody else uses this account, cancel the order at the market.",
    Mismatch.MACHINE: "If nobody else uses this account, end the machine at the market: it costs"
    " money as long as it runs.",
    Mismatch.MISSING: "Ask the market why the machine ended; its jobs go elsewhere by themselves.",
    Mismatch.BILL: "The next pass of `longshore reconcile` books it; a sale is for a person to"
    " settle with the market.",
    Mismatch.AWAY: "See what `longshore doctor` says of the market, and compare again.",
}
"""What a person can do about each: Longshore ends nothing that it does not know."""


class Booked(NamedTuple):
    """What is booked for an order whose account is closed."""

    key: str
    micro: int
    """Below zero for a sale."""
    sold: bool


class Known(NamedTuple):
    """What is stored of a market."""

    ids: set[str]
    names: set[str]
    """Keys of orders and names of machines whose id is not known yet: they were just asked for."""

    def has(self, id_: str, name: str) -> bool:
        """Return whether a thing is stored; of two with one name, only that of its id is."""
        return id_ in self.ids or name in self.names


class MarketFinding(Wire):
    """One difference between a market and the capacity database."""

    provider: str
    kind: Mismatch
    id: str
    name: str = ""
    cost_micro_usd: int = 0
    """What it has cost so far: by what the market says of it, below zero for a
    sale; of a machine that is missing, what was paid for its block."""
    order: str | None = None
    """Of a bill that differs: the key of the order that it is for; none of a sale."""
    since: Instant | None = None
    detail: str = ""


async def compare(
    database: Database, markets: Sequence[Provider], now: datetime, margin: timedelta = MARGIN
) -> tuple[MarketFinding, ...]:
    """Return every difference; a market that does not answer is one. Raises UnavailableError."""
    found: list[MarketFinding] = []
    for market in markets:
        try:
            orders, machines = await market.orders(), await market.machines()
        except LongshoreError as error:
            found.append(_away(market.name, error))
            continue
        # Rows after lists: what was listed has been stored by now, or is a step under way.
        known = await _known(database, market.name)
        found += [
            _unknown_order(order)
            for order in orders
            if market.capabilities.fixed_window and _is_unknown_order(order, known, now - margin)
        ]
        found += [
            _unknown_machine(machine, now)
            for machine in machines
            if not known.has(machine.id, machine.name)
            and not _is_young(machine.created_at, now - margin)
        ]  # fmt: skip
        booked = await _booked(database, market.name, now - margin)
        found += [_misbilled(o, booked[o.id]) for o in orders if _is_misbilled(o, booked)]
        listed = {machine.id for machine in machines}
        found += [
            missing
            for missing in await _running(database, market.name, now - margin)
            if missing.id not in listed
        ]
    return tuple(found)


def _is_unknown_order(order: Order, known: Known, before: datetime) -> bool:
    if known.has(order.id, order.key or ""):
        return False
    if order.state.final and not order.fills:
        return False
    return not _is_young(order.created_at, before)


def _is_young(created_at: datetime | None, before: datetime) -> bool:
    return created_at is not None and created_at > before


def _unknown_order(order: Order) -> MarketFinding:
    return MarketFinding(
        provider=order.provider, kind=Mismatch.ORDER, id=order.id, name=order.key or "",
        cost_micro_usd=_taken(order), since=order.created_at,
        detail=f"{order.side.value} {count(order.nodes, 'node')} of {order.instance_type}: "
        f"{order.state.value}",
    )  # fmt: skip


def _unknown_machine(machine: Machine, now: datetime) -> MarketFinding:
    micro = machine.billed
    if micro is None and machine.price is not None and machine.created_at is not None:
        ran = max(now - machine.created_at, timedelta(0))
        micro = worst_cost(machine.price, machine.gpus, ran)
    return MarketFinding(
        provider=machine.provider, kind=Mismatch.MACHINE, id=machine.id, name=machine.name,
        cost_micro_usd=micro or 0, since=machine.created_at,
        detail=f"{machine.instance_type}, {machine.native_state}",
    )  # fmt: skip


def _is_misbilled(order: Order, booked: Mapping[str, Booked]) -> bool:
    known = booked.get(order.id)
    if known is None or not order.state.final:
        return False
    # A market that does not say yet what it has billed says nothing.
    said = all(fill.cost is not None for fill in order.fills)
    return said and _taken(order) != known.micro


def _misbilled(order: Order, booked: Booked) -> MarketFinding:
    return MarketFinding(
        provider=order.provider, kind=Mismatch.BILL, id=order.id, name=booked.key,
        cost_micro_usd=_taken(order), since=order.created_at,
        order=None if booked.sold else booked.key,
        detail=f"the market says {format_dollars(abs(_taken(order)))}, and "
        f"{format_dollars(abs(booked.micro))} is booked",
    )  # fmt: skip


def _taken(order: Order) -> int:
    return cost(order.fills) * (-1 if order.side is Side.SELL else 1)


def _away(provider: str, error: LongshoreError) -> MarketFinding:
    return MarketFinding(provider=provider, kind=Mismatch.AWAY, id="", detail=str(error))


async def _known(database: Database, provider: str) -> Known:
    """Return the orders and machines of a market, also those just asked for."""
    async with database.transaction() as connection:
        rows = list(await connection.execute(text(_KNOWN), {"provider": provider}))
    with_id = {row.name for row in rows if row.id}
    return Known(
        ids={row.id for row in rows if row.id},
        names={row.name for row in rows if row.under_way} - with_id,
    )


async def _booked(database: Database, provider: str, before: datetime) -> dict[str, Booked]:
    """Return what is booked for each order that was closed by then, by its id at the market."""
    async with database.transaction() as connection:
        rows = await connection.execute(
            text(_BOOKED), {"provider": provider, "before": before.astimezone(UTC)}
        )
        return {row.order_id: Booked(row.key, row.micro, row.sold) for row in rows}


async def _running(database: Database, provider: str, before: datetime) -> Sequence[MarketFinding]:
    """Return the machines that are to run at a market, each as what it is if it is missing."""
    async with database.transaction() as connection:
        rows = await connection.execute(
            text(_RUNNING), {"provider": provider, "before": before.astimezone(UTC)}
        )
        return [
            MarketFinding(
                provider=provider, kind=Mismatch.MISSING, id=row.machine_id, name=row.name,
                cost_micro_usd=row.spent, since=row.created_at,
                detail=f"its block {row.block_id} has cost {format_dollars(row.spent)} so far",
            )
            for row in rows
        ]  # fmt: skip


_KNOWN = """
    SELECT order_id AS id, key AS name, closed_at IS NULL AS under_way
      FROM orders WHERE provider = :provider
    UNION ALL
    SELECT machine_id, name, state <> 'ENDED' FROM machines WHERE provider = :provider
"""

_BOOKED = """
    SELECT order_id, key, spent - proceeds AS micro, side = 'sell' AS sold FROM orders
     WHERE provider = :provider AND closed_at < :before AND order_id IS NOT NULL
"""

_RUNNING = """
    SELECT DISTINCT ON (m.machine_id) m.machine_id, m.name, m.block_id, m.created_at, o.spent
      FROM machines m JOIN orders o ON o.key = m.block_id
     WHERE m.provider = :provider AND m.state = 'READY' AND m.machine_id IS NOT NULL
       AND m.created_at < :before
     ORDER BY m.machine_id, m.name
"""
