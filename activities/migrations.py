"""Bringing the capacity database up to date, and whether it is. Few processes do the first:
alembic takes time to import."""

from datetime import timedelta

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError

from longshore.activities.database import connect_args, lock_timeout, unanswered, with_driver
from longshore.activities.revisions import (
    HAS_REVISION,
    MIGRATIONS,
    REVISION,
    newer,
    newest_revision,
)
from longshore.models.errors import RefusedError

_UPGRADE_LOCK = 7_302_661  # any constant of ours: one upgrade at a time


def upgrade(url: str) -> str:
    """Bring the database to the newest migration; return that revision.

    Safe to call from several processes at once. Raises UnavailableError when the server does not
    answer, RefusedError for a database of a newer version.
    """
    from alembic import command
    from alembic.config import Config

    engine = create_engine(with_driver(url))
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            if why := newer(_revision(connection)):
                raise RefusedError(why)
            config = Config()
            config.set_main_option("script_location", str(MIGRATIONS))
            config.set_main_option("path_separator", "os")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OperationalError as error:
        raise unanswered(error) from error
    finally:
        engine.dispose()
    return newest_revision()


def current_revision(url: str, *, patience: timedelta | None = None) -> str | None:
    """Return the revision that the database is at; None for an empty one.

    Raises UnavailableError when the server does not answer; `patience` as with `Database`.
    """
    engine = create_engine(with_driver(url), connect_args=connect_args(patience))
    try:
        with engine.connect() as connection:
            if patience is not None:
                connection.execute(text(lock_timeout(patience)))
            return _revision(connection)
    except OperationalError as error:
        raise unanswered(error) from error
    finally:
        engine.dispose()


def _revision(connection: Connection) -> str | None:
    if not connection.scalar(HAS_REVISION):
        return None
    return connection.scalar(REVISION)
