"""Takes a database away from everybody for a while, as a server that restarts does."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from longshore.workers.stack import Stack


@contextmanager
def database_away(stack: Stack, url: str) -> Iterator[None]:
    """End every session of the database at `url` and let no new one in until the block ends."""
    name = make_url(url).database or ""
    with psycopg.connect(stack.postgres.url("postgres"), autocommit=True) as admin:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        admin.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
        try:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("true")))
