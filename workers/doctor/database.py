"""Checks of the capacity database."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import text

from activities.database import Database
from activities.migrations import current_revision, mismatch
from models.settings import Settings
from workers.doctor.findings import Check, Finding, fail, ok

OLDEST_POSTGRESQL = 16
CLOCKS_APART = timedelta(seconds=5)


def checks(database: Database, settings: Settings) -> dict[str, Check]:
    """Return each check by its name."""
    return {
        "database": partial(_version, database),
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


async def _schema(settings: Settings) -> list[Finding]:
    found = await asyncio.to_thread(current_revision, settings.resolve_database_url())
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
