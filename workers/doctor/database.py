"""Checks of the capacity database."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import text

from longshore.activities.database import PATIENCE, Database
from longshore.activities.migrations import current_revision
from longshore.activities.revisions import mismatch
from longshore.models.settings import Settings
from longshore.workers.doctor.findings import Check, Finding, fail, ok

OLDEST_POSTGRESQL = 16
CLOCKS_APART = timedelta(seconds=5)
LOCKED_FOR = timedelta(seconds=5)
"""What a session locks for a shorter time is a step of its work."""

_LOCKING = """
    WITH waited AS (
        SELECT DISTINCT unnest(pg_blocking_pids(w.pid)) AS pid FROM pg_stat_activity w
         WHERE w.datname = current_database() AND w.wait_event_type = 'Lock'
           AND clock_timestamp() - w.query_start > :after),
    held AS (
        SELECT l.pid, string_agg(c.relname, ', ' ORDER BY c.relname) AS tables
          FROM pg_locks l
          JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
          JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
          JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = current_schema()
         WHERE l.granted AND l.mode = 'AccessExclusiveLock'
         GROUP BY l.pid)
    SELECT a.pid, h.tables AS what, a.xact_start AT TIME ZONE 'UTC' AS since,
           concat_ws(', ', a.usename, nullif(a.application_name, ''), host(a.client_addr)) AS who
      FROM pg_stat_activity a LEFT JOIN held h ON h.pid = a.pid
     WHERE (h.pid IS NOT NULL OR a.pid IN (SELECT pid FROM waited))
       AND a.wait_event_type IS DISTINCT FROM 'Lock'
       AND coalesce(clock_timestamp() - a.xact_start > :after, true)
     ORDER BY a.xact_start NULLS LAST, a.pid
"""
"""Of other accounts' sessions PostgreSQL may not say since when: those are named at once."""


def checks(database: Database, settings: Settings) -> dict[str, Check]:
    """Return each check by its name."""
    return {
        "database": partial(_version, database),
        "database locks": partial(_locks, database),
        "schema": partial(_schema, settings),
        "database clock": partial(_clock, database),
    }


def clocks(check: str, whose: str, theirs: datetime, before: datetime) -> Finding:
    """Return whether a clock that showed `theirs` between `before` and now agrees with ours."""
    after = datetime.now(UTC)
    apart = max(before - theirs, theirs - after, timedelta(0))
    seconds = apart.total_seconds()
    if apart > CLOCKS_APART:
        return fail(
            check,
            f"the clock of {whose} is {seconds:.0f} s away from this machine's",
            "Set both clocks by NTP: agents that register are judged by them.",
        )
    within = max(seconds, (after - before).total_seconds())
    return ok(check, f"the clock of {whose} and this machine's agree within {within:.2f} s")


async def _version(database: Database) -> list[Finding]:
    async with database.transaction() as connection:
        number = int(await connection.scalar(text("SHOW server_version_num")) or 0)
    if number // 10000 < OLDEST_POSTGRESQL:
        return [
            fail(
                "database",
                f"it is PostgreSQL {number // 10000}",
                f"Move it to PostgreSQL {OLDEST_POSTGRESQL} or later.",
            )
        ]
    return [ok("database", f"PostgreSQL {number // 10000}.{number % 10000} answers")]


async def _locks(database: Database) -> list[Finding]:
    """Name each session that keeps others waiting, or would: commands give up on what it holds."""
    async with database.transaction() as connection:
        rows = (await connection.execute(text(_LOCKING), {"after": LOCKED_FOR})).mappings().all()
    if not rows:
        return [ok("database locks", "no session keeps tables or rows from others")]
    return [
        fail(
            "database locks",
            f"session {row['pid']} ({row['who']}) keeps {row['what'] or 'rows'} locked"
            + (f", since {row['since']:%Y-%m-%d %H:%M:%S} UTC" if row["since"] else ""),
            f"Let it finish, or end it: SELECT pg_terminate_backend({row['pid']}).",
        )
        for row in rows
    ]


async def _schema(settings: Settings) -> list[Finding]:
    url = settings.resolve_database_url()
    found = await asyncio.to_thread(current_revision, url, patience=PATIENCE)
    if why := mismatch(found):
        what, _, mend = why.partition(". ")
        return [fail("schema", what, mend)]
    return [ok("schema", f"the database is at revision {found}")]


async def _clock(database: Database) -> list[Finding]:
    async with database.transaction() as connection:
        before = datetime.now(UTC)
        theirs = await connection.scalar(text("SELECT clock_timestamp()"))
    assert isinstance(theirs, datetime)
    return [clocks("database clock", "the database", theirs, before)]
