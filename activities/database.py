"""The capacity database: connections and transactions."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import psycopg
from sqlalchemy import make_url, text
from sqlalchemy.exc import DataError, DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from longshore.activities.error_translation import bound_broken
from longshore.activities.revisions import refuse_newer
from longshore.models.errors import LockedError, SpecError, UnavailableError

PATIENCE = timedelta(seconds=8)
"""For how long somebody who looks waits for a connection, and for what another session has locked:
less than a check of `longshore doctor` may take."""
SILENCE = timedelta(seconds=30)
"""For how long somebody who looks waits for a whole transaction: more than the slowest takes."""
_LOCKED = "55P03"
_FULL = "53100"
_LIMITS = "54"
"""The class of errors about a value that is too large for the database, as for an index."""
_SILENT = (
    "the capacity database has not answered for {:g} s: its server is stopped, or has too much to "
    "do. `longshore doctor` looks at it."
)


class Database:
    """A pool of connections to the capacity database.

    Every statement runs in a short transaction; nothing waits on a network call inside one, but
    who stores a snapshot, of which the store is to have what is on record.
    """

    def __init__(
        self, url: str, *, pool_size: int = 10, patience: timedelta | None = None
    ) -> None:
        """With `patience` a connection, and each wait for a lock, may take so long, and no
        transaction longer than `SILENCE`; without, a statement waits until it has its lock, as
        whoever would only ask again should."""
        self._patience = patience
        self._looks_at_revision = False
        self._engine = create_async_engine(
            with_driver(url), pool_size=pool_size, pool_pre_ping=False, pool_recycle=1800,
            connect_args=connect_args(patience), json_deserializer=_read_json,
        )  # fmt: skip

    @classmethod
    def for_people(cls, url: str, *, pool_size: int, any_revision: bool = False) -> Self:
        """Return one for somebody who waits for an answer: a command, or a page.

        Its first transaction raises RefusedError where a newer version has upgraded the tables,
        unless `any_revision` will do.
        """
        database = cls(url, pool_size=pool_size, patience=PATIENCE)
        database._looks_at_revision = not any_revision
        return database

    @asynccontextmanager
    async def transaction(
        self, *, longer: timedelta = timedelta(0)
    ) -> AsyncIterator[AsyncConnection]:
        """Yield a connection in a transaction: committed at the end, rolled back on an error. It
        may take `longer` than others where it has to wait for more than the database.

        Raises UnavailableError when the server does not answer, or what is needed stays locked
        for longer than the patience; and for a value that it cannot take DataError, of a database
        for people SpecError.
        """
        watch, silence = _Watch(), SILENCE + longer
        try:
            await self._look_at_revision(watch)
            async with self._engine.begin() as connection:
                if self._patience is not None:
                    await watch.begin(connection, silence)
                    await connection.execute(text(lock_timeout(self._patience)))
                yield connection
        except OperationalError as error:
            if watch.has_cut:
                raise UnavailableError(_SILENT.format(silence.total_seconds())) from error
            cause = error.orig
            if cause and (getattr(cause, "sqlstate", None) or "").startswith(_LIMITS):
                raise DataError(error.statement, error.params, cause) from error
            if getattr(cause, "sqlstate", None) == _FULL:
                why = str(cause).partition("\n")[0]
                raise UnavailableError(f"the capacity database's disk is full: {why}") from error
            raise unanswered(error) from error
        except DBAPIError as error:
            if self._patience is not None and (bound := bound_broken(error.orig)):
                raise _no_value(f"it is beyond the bounds of {bound}") from error
            if error.connection_invalidated:
                raise UnavailableError(f"the capacity database went away: {error.orig}") from error
            if isinstance(error, DataError) and self._patience is not None:
                why = str(error.orig).partition("\n")[0]
                raise _no_value(why) from error
            raise
        except UnicodeEncodeError as error:  # the driver's, before anything is sent
            if self._patience is None:
                raise
            why = "half of a pair of surrogates is no character, and in no row"
            raise _no_value(why) from error
        finally:
            watch.end()

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

    async def _look_at_revision(self, watch: "_Watch") -> None:
        """Refuse unknown tables, in a transaction of its own: a snapshot must not have begun."""
        if not self._looks_at_revision:
            return
        async with self._engine.begin() as connection:
            await watch.begin(connection, SILENCE)
            await connection.execute(text(lock_timeout(self._patience or PATIENCE)))
            await refuse_newer(connection)
        watch.end()
        self._looks_at_revision = False


def _read_json(stored: str | bytes) -> Any:
    """Return a value of JSON; as text where Python takes none such, as a number of thousands of
    digits: whoever reads it finds that it is not what belongs there, and reads the other rows."""
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return stored if isinstance(stored, str) else stored.decode()


def _no_value(why: str) -> SpecError:
    return SpecError("input", (f"the capacity database takes no such value: {why}",))


class _Watch:
    """Cuts a connection that takes longer than anybody waits.

    A server that is stopped keeps its connections and answers on none; its machine still
    acknowledges what is sent, so no timeout of the network ends them. To cancel the statement
    would be to wait for that server's answer once more.
    """

    def __init__(self) -> None:
        self.has_cut = False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, connection: AsyncConnection, limit: timedelta) -> None:
        driver = (await connection.get_raw_connection()).driver_connection
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limit.total_seconds(), self._cut, driver)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _cut(self, driver: Any) -> None:
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(driver.fileno())) as its,
        ):
            its.shutdown(socket.SHUT_RDWR)
            self.has_cut = True


async def clock(connection: AsyncConnection) -> datetime:
    """Return the database's time: the one clock of decisions about what is in it.

    What it holds was stamped by that clock. A worker's own may be wrong, or jump.
    """
    now = await connection.scalar(text("SELECT clock_timestamp()"))
    return now.astimezone(UTC)


def connect_args(patience: timedelta | None) -> dict[str, int]:
    """Return what the driver is told about connections that may take so long."""
    return {} if patience is None else {"connect_timeout": max(round(patience.total_seconds()), 1)}


def lock_timeout(patience: timedelta) -> str:
    """Return the statement that bounds the waits of its transaction for locks.

    Of the transaction and not of the connection: a pooler in between may not know the option, or
    give the connection to somebody else afterwards.
    """
    return f"SET LOCAL lock_timeout = {round(patience.total_seconds() * 1000)}"


def unanswered(error: OperationalError) -> UnavailableError:
    """Return, in our words, that the database cannot be asked, or is locked."""
    if getattr(error.orig, "sqlstate", None) == _LOCKED:
        return LockedError(
            "the capacity database is locked: another session keeps a table or row that is needed "
            "here. `longshore doctor` names it."
        )
    return UnavailableError(f"the capacity database does not answer: {error.orig}")


def with_driver(url: str) -> str:
    """Return the URL of a database with the driver that Longshore uses."""
    parsed = make_url(url)
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
