"""The capacity database: connections, transactions, migrations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import models.records
from models.errors import UnavailableError

_MIGRATIONS = Path(models.records.__file__).parent / "migrations"
_UPGRADE_LOCK = 7_302_661  # any constant of ours: one upgrade at a time


class Database:
    """A pool of connections to the capacity database.

    Every statement runs in a short transaction; nothing waits on a network call inside one.
    """

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self._engine = create_async_engine(
            _with_driver(url), pool_size=pool_size, pool_pre_ping=False, pool_recycle=1800
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection in a transaction: committed at the end, rolled back on an error.

        Raises UnavailableError when the server does not answer.
        """
        try:
            async with self._engine.begin() as connection:
                yield connection
        except OperationalError as error:
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


def upgrade(url: str) -> str:
    """Bring the database to the newest migration; return that revision.

    Safe to call from several processes at once. Raises UnavailableError when the server does not
    answer.
    """
    engine = create_engine(_with_driver(url))
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            config = _alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OperationalError as error:
        raise UnavailableError(f"the capacity database does not answer: {error.orig}") from error
    finally:
        engine.dispose()
    return newest_revision()


async def clock(connection: AsyncConnection) -> datetime:
    """Return the database's time: the one clock of decisions about what is in it.

    What it holds was stamped by that clock. A worker's own may be wrong, or jump.
    """
    now = await connection.scalar(text("SELECT clock_timestamp()"))
    return now.astimezone(UTC)


def newest_revision() -> str:
    """Return the revision that this version of Longshore needs."""
    return ScriptDirectory.from_config(_alembic_config()).get_current_head() or ""


def current_revision(url: str) -> str | None:
    """Return the revision that the database is at; None for an empty one."""
    engine = create_engine(_with_driver(url))
    try:
        with engine.connect() as connection:
            if not connection.scalar(text("SELECT to_regclass('alembic_version') IS NOT NULL")):
                return None
            return connection.scalar(text("SELECT version_num FROM alembic_version"))
    except OperationalError as error:
        raise UnavailableError(f"the capacity database does not answer: {error.orig}") from error
    finally:
        engine.dispose()


def _alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def _with_driver(url: str) -> str:
    parsed = make_url(url)
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
