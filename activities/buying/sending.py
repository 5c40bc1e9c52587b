"""Sending an order to its market once, however often a step runs: to buy and to sell alike.

The row says that an order is being sent before it is sent. Whoever finds the mark does not know
whether it arrived: the same key is sent again, or looked for.
"""

from contextlib import aclosing

from sqlalchemy import func
from temporalio import activity

from longshore.activities.buying import order_rows as rows
from longshore.activities.database import Database
from longshore.activities.providers import registry
from longshore.models.errors import (
    AnswerError,
    CredentialsError,
    GoneError,
    InvalidOrderError,
    LongshoreError,
    MarketAwayError,
    MarketError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from longshore.models.market import Order
from longshore.models.records.buying import OrderRow
from longshore.models.settings import Settings

TRIES = 4
"""What cannot have arrived is given up after so many tries: there are other ways."""
_SAYS_NOTHING = (CredentialsError, RefusedError, NotFoundError, AnswerError)
"""Whoever may not ask does not learn whether an order arrived before."""
_MAY_BE_WRONG = (GoneError, InvalidOrderError)


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


def _is_of_a_look(error: LongshoreError) -> bool:
    """Return whether a market refused what comes before an order, and not the order itself."""
    return isinstance(error, MarketError) and error.status is not None and not error.creates


def _id(row: OrderRow) -> str:
    assert row.order_id is not None, "its market knows it"
    return row.order_id
