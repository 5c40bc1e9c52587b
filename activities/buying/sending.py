"""Sending an order to its market once, however often a step runs: to buy and to sell alike.

The row says that an order is being sent before it is sent. Whoever finds the mark does not know
whether it arrived: the same key is sent again, or looked for.
"""

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import func, text
from temporalio import activity

from longshore.activities.buying import order_rows as rows
from longshore.activities.database import Database, clock
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.models.errors import (
    AnswerError,
    CredentialsError,
    GoneError,
    InvalidOrderError,
    LongshoreError,
    MarketAwayError,
    MarketError,
    NotFoundError,
    OrderConflictError,
    RefusedError,
    UnavailableError,
)
from longshore.models.market import InstanceType, Order, OrderRequest
from longshore.models.records.buying import OrderRow
from longshore.models.settings import Settings

TRIES = 4
"""What cannot have arrived is given up after so many tries: there are other ways."""
_SAYS_NOTHING = (CredentialsError, RefusedError, NotFoundError, AnswerError)
"""Whoever may not ask does not learn whether an order arrived before."""
_MAY_BE_WRONG = (GoneError, InvalidOrderError)
_SKEW = timedelta(minutes=2)
"""By so much the clock of a market may be behind ours."""
_LOOK_EVERY = 5.0
_GRAIN = 60
"""Micro-dollars per GPU-hour by which a limit may differ at a market that rounds it."""


class Sending:
    """Orders by their keys."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    async def row(self, key: str) -> OrderRow:
        """Return the row of an order. Raises NotFoundError."""
        async with self._database.transaction() as connection:
            return await rows.lock(connection, key)

    async def mark(self, key: str) -> tuple[OrderRow, bool]:
        """Note that an order is being sent; return its row, and whether it was before."""
        async with self._database.transaction() as connection:
            row = await rows.lock(connection, key)
            if row.sent_at is not None or row.state != "INTENT":
                return row, True
            await rows.change(connection, key, sent_at=func.clock_timestamp())
            return row, False

    async def is_final(self, row: OrderRow, error: LongshoreError, sent_before: bool) -> bool:
        """Return whether an error means that there is no such order and will be none.

        Raises MarketAwayError where it says nothing of an order that was sent before.
        """
        if isinstance(error, MarketAwayError):
            if error.uncertain or sent_before:
                return False
            async with self._database.transaction() as connection:
                await rows.change(connection, row.key, sent_at=None)
            return activity.info().attempt >= TRIES
        if isinstance(error, UnavailableError):
            return False
        # A market that refuses what it may have taken before is asked a few times more.
        says_nothing = (
            isinstance(error, _SAYS_NOTHING)
            or _is_of_a_look(error)
            or (isinstance(error, _MAY_BE_WRONG) and activity.info().attempt < TRIES)
        )
        if sent_before and says_nothing:
            raise MarketAwayError(row.provider, str(error), uncertain=True) from error
        return True

    async def found(
        self, market: Provider, row: OrderRow, request: OrderRequest, refused: MarketError
    ) -> Order:
        """Return an order that was sent before, and whose key its market now refuses: a refusal
        of the one says nothing of the other. Its list is read until it cannot lag any more.

        Raises `refused` where there is no such order, and MarketAwayError where there has to be
        one, as a market that knows the key has taken it, and where it may be another's.
        """
        assert row.sent_at is not None
        if row.account is None:
            # Sent by a version that did not store the account: it may be any.
            request = request.model_copy(update={"account": None})
        until = row.sent_at + self._settings.market_list_lag
        while True:
            now = await self._now()
            late = now > until
            if (order := await self._listed(market, row, request)) is not None:
                return order
            if late and isinstance(refused, OrderConflictError):
                said = f"it knows the key of {row.key}, and lists no such order: {refused}"
                raise MarketAwayError(row.provider, said, uncertain=True) from refused
            if late:
                raise refused
            await asyncio.sleep(min(_LOOK_EVERY, (until - now).total_seconds() + 0.01))

    async def _listed(
        self, market: Provider, row: OrderRow, request: OrderRequest
    ) -> Order | None:
        """Return the order of the market's list that was asked for, and is stored as no other."""
        assert row.sent_at is not None
        since = row.sent_at - _SKEW
        fitting = [order for order in await market.orders() if _is_as_asked(order, request, since)]
        async with self._database.transaction() as connection:
            stored = await connection.scalars(
                text("SELECT order_id FROM orders WHERE provider = :provider"
                     " AND order_id = ANY(:ids)"),
                {"provider": row.provider, "ids": [order.id for order in fitting]},
            )  # fmt: skip
            known = set(stored)
            others = await rows.sent_without_id(connection, row)
        found = next((order for order in fitting if order.id not in known), None)
        if found is not None and any(map(partial(_may_be_of, found), others)):
            said = f"{found.id} may be the order {row.key}, or another that was sent"
            raise MarketAwayError(row.provider, said, uncertain=True)
        return found

    async def _now(self) -> datetime:
        async with self._database.transaction() as connection:
            return await clock(connection)

    async def read(self, row: OrderRow) -> Order | GoneError:
        """Return what the market says of an order, or that it knows it no more."""
        async with aclosing(registry.connect(self._settings, row.provider)) as market:
            try:
                return await market.order_by_id(_id(row))
            except GoneError as error:
                return error

    async def cancel(self, row: OrderRow) -> None:
        """Ask the market for the end of an order. Raises GoneError for one that it lists."""
        try:
            async with aclosing(registry.connect(self._settings, row.provider)) as market:
                await market.cancel_order(_id(row))
        except GoneError:
            found = await self.read(row)
            if isinstance(found, Order) and not found.state.final:
                raise


def _is_as_asked(order: Order, request: OrderRequest, since: datetime) -> bool:
    """Return whether an order may be what was sent after `since`."""
    return (
        (order.side, order.nodes, order.window) == (request.side, request.nodes, request.window)
        and (not order.instance_type or _takes(request.instance_type, order.instance_type))
        and (order.limit is None or abs(order.limit - request.limit) <= _GRAIN)
        and request.account in (None, order.account)
        and request.place in (None, order.place)
        and (order.created_at is None or order.created_at >= since)
    )


def _may_be_of(order: Order, row: OrderRow) -> bool:
    """Return whether an order may be that of a row which was sent."""
    assert row.sent_at is not None
    request = OrderRequest.model_validate(row.request)
    request = request.model_copy(update={"account": row.account})
    return _is_as_asked(order, request, row.sent_at - _SKEW)


def _takes(asked: str, found: str) -> bool:
    return InstanceType.parse(asked).takes(InstanceType.parse(found))


def _is_of_a_look(error: LongshoreError) -> bool:
    """Return whether a market refused what comes before an order, and not the order itself."""
    return isinstance(error, MarketError) and error.status is not None and not error.creates


def _id(row: OrderRow) -> str:
    assert row.order_id is not None, "its market knows it"
    return row.order_id
