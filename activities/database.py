"""The capacity database: connections and transactions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from sqlalchemy import make_url, text
from sqlalchemy.exc import DataError, DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from models.errors import UnavailableError

_LIMITS = "54"
"""The class of errors about a value that is too large for the database, as for an index."""


class Database:
    """A pool of connections to the capacity database.

    Every statement runs in a short transaction; nothing waits on a network call inside one.
    """

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self._engine = create_async_engine(
            with_driver(url), pool_size=pool_size, pool_pre_ping=False, pool_recycle=1800
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection in a transaction: committed at the end, rolled back on an error.

        Raises UnavailableError when the server does not answer, and DataError for a value that
        it cannot take.
        """
        try:
            async with self._engine.begin() as connection:
                yield connection
        except OperationalError as error:
            cause = error.orig
            if cause and (getattr(cause, "sqlstate", None) or "").startswith(_LIMITS):
                raise DataError(error.statement, error.params, cause) from error
            raise UnavailableError(
                f"the capacity database does not answer: {error.orig}"
            ) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise UnavailableError(f"the capacity database went away: {error.orig}") from error
            raise

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection that only reads, and whose statements all see one moment.

        For decisions: what is read in two statements could else be true at no time, as a machine
        that is no longer under way and not yet a node. Raises UnavailableError as `transaction`.
        """
        async with self.transaction() as connection:
            await connection.execute(
                text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            )
            yield connection

    async def close(self) -> None:
        await self._engine.dispose()


async def clock(connection: AsyncConnection) -> datetime:
    """Return the database's time: the one clock of decisions about what is in it.

    What it holds was stamped by that clock. A worker's own may be wrong, or jump.
    """
    now = await connection.scalar(text("SELECT clock_timestamp()"))
    return now.astimezone(UTC)


def with_driver(url: str) -> str:
    """Return the URL of a database with the driver that Longshore uses."""
    parsed = make_url(url)
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
