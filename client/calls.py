"""Calling Longshore from a command: connect, do one thing, close, and say errors as ours."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from longshore.client.process import run
from longshore.client.terminal import note
from longshore.models.errors import NoRecordError, NotFoundError, UnavailableError
from longshore.models.pool import no_such_pool
from longshore.models.settings import Settings

if TYPE_CHECKING:  # these are slow to import, and many commands need neither
    from temporalio.runtime import Runtime

    from longshore.client.api import Longshore
    from longshore.models.views import JobView, PoolView

T = TypeVar("T")

_NOT_OURS_YET = {"42P01", "42703", "3F000"}
"""PostgreSQL's codes for a table, column or schema that is not there."""
_ENQUEUE_PATIENCE = 3.0
"""Seconds that a job may take to be in the queue."""
_BUSY_PATIENCE = 30.0
"""The same, where a control worker asks for work, and has not come to it yet."""


def call(task: "Callable[[Longshore], Awaitable[T]]") -> T:
    """Connect to where the settings say, await the task, close, and return what it returned.

    Raises LongshoreError; a database without our tables is one too.
    """
    return run(_call(task))


async def known_job(api: "Longshore", ref: str) -> "JobView":
    """Return a job as the database sees it, by its id or the newest of a name; one that was
    submitted this instant is waited for.

    Raises NotFoundError, NoRecordError where it is over and never came there, and
    UnavailableError where no control worker takes the job up.
    """
    job_id = await api.id_of(ref)
    try:
        return await api.job(job_id)
    except NoRecordError:
        raise
    except NotFoundError:
        pass
    job = await _queued_within(api, job_id, _ENQUEUE_PATIENCE)
    if job is None and await _has_control_worker(api):
        job = await _queued_within(api, job_id, _BUSY_PATIENCE - _ENQUEUE_PATIENCE)
    if job is None:
        from longshore.client.no_record import not_taken_up

        raise UnavailableError(not_taken_up(job_id))
    return job


async def _queued_within(api: "Longshore", ref: str, seconds: float) -> "JobView | None":
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.1)
        try:
            return await api.job(ref)
        except NoRecordError:
            raise
        except NotFoundError:
            continue
    return None


async def _has_control_worker(api: "Longshore") -> bool:
    from temporalio.service import RPCError

    from longshore.client.control_worker import who_asks

    try:
        return not (await who_asks(api.temporal)).missing
    except RPCError:
        return False


async def known_pool(api: "Longshore", name: str) -> "PoolView":
    """Return a pool. Raises NotFoundError, with the pools that there are."""
    pools = {pool.spec.name: pool for pool in await api.pools()}
    if name not in pools:
        raise no_such_pool(name, pools)
    return pools[name]


async def _call(task: "Callable[[Longshore], Awaitable[T]]") -> T:
    from sqlalchemy.exc import DBAPIError

    from longshore.client.api import Longshore

    api = await Longshore.connect(
        Settings(), on_away=_say_away, on_back=_say_back, runtime=quiet_runtime()
    )
    try:
        return await task(api)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) not in _NOT_OURS_YET:
            raise
        raise UnavailableError(
            "the capacity database has no tables of this version of Longshore: "
            "`longshore db upgrade` makes them"
        ) from error
    finally:
        await api.close()


def quiet_runtime() -> "Runtime | None":
    """Return a runtime that writes no warnings: what matters is said once, in our words."""
    from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    if os.environ.get("LONGSHORE_DEBUG"):
        return None
    logging.getLogger("temporalio").setLevel(logging.ERROR)
    only_errors = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=only_errors)))


def _say_away(reason: str) -> None:
    note(f"note: {reason.rstrip('.')}. Trying again until it is back; jobs are not affected.")


def _say_back() -> None:
    note("note: it answers again")
