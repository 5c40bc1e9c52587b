"""What `longshore doctor` looks at: each part of an installation, and its mend where it is ill."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

from sqlalchemy import text
from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.database import Database
from longshore.client.calls import quiet_runtime
from longshore.client.connection import connect
from longshore.models.addresses import without_secrets
from longshore.models.errors import LockedError, LongshoreError, SpecError
from longshore.models.settings import Settings
from longshore.models.settings_sources import unknown_variables
from longshore.workers.doctor import buying as buying_checks
from longshore.workers.doctor import database as database_checks
from longshore.workers.doctor import jobs as job_checks
from longshore.workers.doctor import machine as machine_checks
from longshore.workers.doctor import markets as market_checks
from longshore.workers.doctor import temporal as temporal_checks
from longshore.workers.doctor.findings import Check, Finding, Level, fail, ok, warn

ANSWER_WITHIN = 10.0
"""Seconds that one check may take."""


async def examine() -> AsyncIterator[Finding]:
    """Yield what each check finds, as it is found.

    What needs a server that does not answer is left out: there is that to mend first.
    """
    try:
        settings = Settings()
    except SpecError as error:
        for problem in error.problems:
            yield fail("settings", problem, "Correct it; docs/settings.md lists every setting.")
        return
    for finding in _look_at_settings(settings):
        yield finding
    for finding in await asyncio.to_thread(lambda: list(machine_checks.look_at(settings))):
        yield finding
    async for finding in _all(market_checks.checks(settings)):
        yield finding
    temporal = await _connect(settings)
    if isinstance(temporal, Finding):
        yield temporal
        temporal = None
    else:
        async for finding in _all(temporal_checks.checks(temporal)):
            yield finding
    database = await _reach(settings)
    if isinstance(database, Finding):
        yield database
        return
    ready = True
    async for finding in _all(database_checks.checks(database, settings)):
        ready = ready and not (finding.check == "schema" and finding.level is Level.FAIL)
        yield finding
    if ready:
        async for finding in _all(job_checks.checks(database)):
            yield finding
        async for finding in _all(buying_checks.checks(database, settings)):
            yield finding
    if temporal is not None and ready:
        async for finding in _all(temporal_checks.checks_of_nodes(temporal, database)):
            yield finding
    await database.close()


def _look_at_settings(settings: Settings) -> Iterator[Finding]:
    remarks = unknown_variables(type(settings).model_fields)
    for remark in remarks:
        yield warn("settings", remark, "Rename the variable, or unset it.")
    if not remarks:
        yield ok("settings", "they can be read; `longshore config` shows them")


async def _connect(settings: Settings) -> Client | Finding:
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            return await connect(settings, runtime=quiet_runtime())
    except LongshoreError as error:
        return fail("temporal", str(error), _LOOK)
    except TimeoutError:
        return _no_answer("temporal")


async def _reach(settings: Settings) -> Database | Finding:
    try:
        url = settings.resolve_database_url()
        database = Database.for_people(url, pool_size=2, any_revision=True)  # a check names it
        async with asyncio.timeout(ANSWER_WITHIN), database.transaction() as connection:
            await connection.execute(text("SELECT 1"))
    except LongshoreError as error:
        return fail("database", without_secrets(str(error)), _LOOK)
    except TimeoutError:
        return _no_answer("database")
    return database


async def _all(checks: Mapping[str, Check]) -> AsyncIterator[Finding]:
    """Yield the findings of checks one after the other; a check that breaks is a finding too."""
    for name, check in checks.items():
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                found = await check()
        except TimeoutError:
            found = [_no_answer(name)]
        except RPCError as error:
            found = [fail(name, f"Temporal refused to answer: {error.message}.", _LOOK)]
        except LockedError:
            found = [fail(name, "another session keeps what is looked at here locked", _LOCKED)]
        except LongshoreError as error:
            found = [fail(name, without_secrets(str(error)), _LOOK)]
        except Exception as error:  # one check that breaks must not hide what the others find
            why = without_secrets(f"{type(error).__name__}: {error}")
            found = [fail(name, f"this could not be looked at: {why}", _LOOK)]
        for finding in found:
            yield finding


def _no_answer(name: str) -> Finding:
    return fail(name, f"there was no answer within {ANSWER_WITHIN:g} s", _LOOK)


_LOOK = "Look at the server and its log; for the local stack, `longshore up` starts what stopped."
_LOCKED = "The line on database locks names it, and how to end it."
