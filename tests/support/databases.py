"""Databases of a stack for one module or one test: copies of one that was migrated once."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from alembic import command
from alembic.config import Config
from psycopg import sql
from sqlalchemy import create_engine

from longshore.activities.database import with_driver
from longshore.activities.revisions import MIGRATIONS
from longshore.workers.stack import Stack

TEMPLATE = "longshore_template"


def make_template(stack: Stack) -> None:
    """Copy the stack's own database, migrated and empty, for `own_database`."""
    _administer(stack, "CREATE DATABASE {} TEMPLATE longshore", TEMPLATE)


@contextmanager
def own_database(stack: Stack) -> Iterator[str]:
    """Yield the URL of a new database: migrated, empty, gone afterwards; 0.1 s.

    Its files are copied as they are: through the log, as by default, it takes twice the time of
    the processor, and so does the end of it.
    """
    name = f"test_{uuid.uuid4().hex[:12]}"
    _administer(stack, f"CREATE DATABASE {{}} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY", name)
    yield stack.postgres.url(name)
    _administer(stack, "DROP DATABASE {} WITH (FORCE)", name)


@contextmanager
def database_of(stack: Stack, revision: str) -> Iterator[str]:
    """Yield the URL of a new database with the tables of an earlier revision; 1 s."""
    name = f"before_{uuid.uuid4().hex[:12]}"
    _administer(stack, "CREATE DATABASE {}", name)
    url = stack.postgres.url(name)
    engine = create_engine(with_driver(url))
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()
    yield url
    _administer(stack, "DROP DATABASE {} WITH (FORCE)", name)


def _administer(stack: Stack, statement: str, database: str) -> None:
    with psycopg.connect(stack.postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(database)))  # pyright: ignore[reportArgumentType]
