"""Bringing the capacity database up to date, and whether it is. Few processes do the first:
alembic takes time to import."""

from datetime import timedelta
from pathlib import Path

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError

import models.records
from activities.database import connect_args, lock_timeout, unanswered, with_driver
from models.errors import RefusedError

_MIGRATIONS = Path(models.records.__file__).parent / "migrations"
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
            if (found := _revision(connection)) and found not in _revisions():
                raise RefusedError(mismatch(found))
            config = Config()
            config.set_main_option("script_location", str(_MIGRATIONS))
            config.set_main_option("path_separator", "os")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OperationalError as error:
        raise unanswered(error) from error
    finally:
        engine.dispose()
    return newest_revision()


def newest_revision() -> str:
    """Return the revision that this version of Longshore needs."""
    return _revisions()[-1]


def mismatch(found: str | None) -> str:
    """Return what is wrong with a database at revision `found`, and what to do; or nothing."""
    newest = newest_revision()
    if found == newest:
        return ""
    if found is not None and found not in _revisions():
        return (
            f"the database is at revision {found}, which this version of Longshore does not know "
            f"(its newest is {newest}): a newer one has upgraded it. Run that version, or restore "
            "a backup from before."
        )
    return (
        f"the database is at {f'revision {found}' if found else 'no revision'}, and this version "
        f"of Longshore needs {newest}. Run `longshore db upgrade`."
    )


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
    if not connection.scalar(text("SELECT to_regclass('alembic_version') IS NOT NULL")):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))


def _revisions() -> list[str]:
    """Return the revisions that this version knows, oldest first: their files begin with them."""
    files = (_MIGRATIONS / "versions").glob("[0-9]*_*.py")
    return sorted(file.name.partition("_")[0] for file in files)
