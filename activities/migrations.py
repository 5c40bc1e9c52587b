"""Bringing the capacity database up to date. Few processes do: alembic takes time to import."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

import models.records
from activities.database import with_driver
from models.errors import UnavailableError

_MIGRATIONS = Path(models.records.__file__).parent / "migrations"
_UPGRADE_LOCK = 7_302_661  # any constant of ours: one upgrade at a time


def upgrade(url: str) -> str:
    """Bring the database to the newest migration; return that revision.

    Safe to call from several processes at once. Raises UnavailableError when the server does not
    answer.
    """
    engine = create_engine(with_driver(url))
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


def newest_revision() -> str:
    """Return the revision that this version of Longshore needs."""
    return ScriptDirectory.from_config(_alembic_config()).get_current_head() or ""


def current_revision(url: str) -> str | None:
    """Return the revision that the database is at; None for an empty one."""
    engine = create_engine(with_driver(url))
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
