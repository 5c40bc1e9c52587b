"""Checks of pools: whether each that has work is decided on, and all of its jobs are."""

import asyncio
from datetime import datetime, timedelta

from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database, clock
from longshore.activities.observation import describe
from longshore.activities.prices.views import price_view
from longshore.activities.stored_pools import pool_and_trouble
from longshore.models.messages import CONTROL_TASK_QUEUE, POOL_WORKFLOW, pool_workflow_id
from longshore.models.placement import PlacementKind
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PriceView, Unknown
from longshore.models.reconcile_seen import WorkflowState
from longshore.models.text import listed
from longshore.workers.doctor.findings import Finding, fail, ok, warn

_SHOWN = 5
"""Pools and jobs that are named; how many there are in all is said."""
_ASKED_FOR = 5.0
"""Seconds in which workflows are asked: less than a check may take, which would end it first."""

_ENDS_SOON = timedelta(hours=6)
"""A series that ends so soon, and is not read again, is told of."""

_PRICED = """
    SELECT p.name, p.spec,
           (SELECT count(*) FROM queue q
             WHERE q.pool = p.name AND q.start_below IS NOT NULL) AS below
      FROM pools p WHERE jsonb_exists(p.spec, 'price') ORDER BY p.name
"""

_WITH_WORK = """
    SELECT name FROM pools p
     WHERE poked OR EXISTS (SELECT FROM queue q WHERE q.pool = p.name AND NOT q.held)
"""


async def pools(temporal: Client, database: Database) -> list[Finding]:
    """Return what is wrong with pools: no workflow, cycles that fail, jobs that are set aside."""
    found = await unreadable(database)
    found += await _without_workflow(temporal, database)
    found += await _failing(temporal, database)
    found += await set_aside(database)
    found += await prices(database)
    return found or [ok("pools", "every pool with work has its workflow, and plans all jobs")]


async def prices(database: Database) -> list[Finding]:
    """Return which pools have a price that nobody knows, or soon will not, and which is old."""
    async with database.transaction() as connection:
        rows = (await connection.execute(text(_PRICED))).all()
        now = await clock(connection)
        read = [pool_and_trouble(row.name, row.spec) for row in rows]
        specs = [spec for spec, trouble in read if not trouble]
        views = [(spec, await price_view(connection, spec, now, 0)) for spec in specs]
        below = {row.name: row.below for row in rows}
    found = [
        warn("pools", f"{says}{_held_up(spec, below[spec.name])}", mend)
        for spec, view in views
        if view is not None
        for says, mend in _ill_price(spec, view, now)
    ]
    return found[:_SHOWN]


def _ill_price(spec: PoolSpec, view: PriceView, now: datetime) -> list[tuple[str, str]]:
    """Return what is wrong with a price, and its mend; nothing where it is known and lasts."""
    again = f"longshore pool set {spec.name} --price"
    of = f"the price of pool {spec.name}"
    if view.price is None:
        mend = f"See `longshore pool price {spec.name}`; `{again} FILE` reads another series."
        return [(f"{of} is {view.says}", mend)]
    if view.trouble:
        read = "" if view.read_at is None else f" since {view.read_at:%Y-%m-%d %H:%M} UTC"
        mend = "Mend what it names. Until then the prices of then count, as long as they go on."
        return [(f"{of} could not be read{read}: {view.trouble}", mend)]
    once = spec.price is not None and not spec.price.is_read_again
    if once and view.ends_at is not None and view.ends_at - now < _ENDS_SOON:
        ends = f"{view.ends_at:%Y-%m-%d %H:%M} UTC"
        return [(f"{of} is known until {ends} alone", f"Set the next one: `{again} FILE`.")]
    return []


def _held_up(spec: PoolSpec, with_threshold: int) -> str:
    """Return what comes of a price that nobody knows."""
    if spec.price is None or (spec.start_below is None and not with_threshold):
        return ""
    if spec.price.unknown is Unknown.WAIT:
        return "; jobs with a threshold wait while nobody knows it"
    return "; jobs with a threshold start as all others while nobody knows it"


async def unreadable(database: Database) -> list[Finding]:
    """Return the pools whose stored settings cannot be read."""
    async with database.transaction() as connection:
        rows = (await connection.execute(text("SELECT name, spec FROM pools ORDER BY name"))).all()
    troubles = [(row.name, pool_and_trouble(row.name, row.spec)[1]) for row in rows]
    return [
        fail(
            "pools",
            trouble,
            f"Run `longshore pool set {name}` with what it shall have, such as `--growth open`: "
            "what is not named is as it is by default then. Its jobs wait until then.",
        )
        for name, trouble in [each for each in troubles if each[1]][:_SHOWN]
    ]


def forgotten(pool: str) -> Finding:
    """Return what is wrong with a pool that has work and no workflow."""
    return fail(
        "pools",
        f"pool {pool} has work, and no workflow {pool_workflow_id(pool)} runs",
        "Run `temporal workflow signal-with-start --signal-name poke --workflow-id "
        f"{pool_workflow_id(pool)} --type {POOL_WORKFLOW} --task-queue {CONTROL_TASK_QUEUE} "
        f'--input \'{{"pool": "{pool}"}}\'`; its jobs wait until then.',
    )


async def _without_workflow(temporal: Client, database: Database) -> list[Finding]:
    pools = await _forgotten(temporal, database)
    if pools:
        # A poke that is on its way right now looks the same for a moment.
        await asyncio.sleep(2.0)
        pools &= await _forgotten(temporal, database)
    return [forgotten(pool) for pool in sorted(pools)]


async def _forgotten(temporal: Client, database: Database) -> set[str]:
    async with database.transaction() as connection:
        with_work = list(await connection.scalars(text(_WITH_WORK)))
    return {
        pool
        for pool in with_work
        if (await describe(temporal, pool_workflow_id(pool), ask=False)).state
        is not WorkflowState.RUNNING
    }


async def _failing(temporal: Client, database: Database) -> list[Finding]:
    async with database.transaction() as connection:
        waiting = await connection.scalars(
            text("SELECT DISTINCT pool FROM queue WHERE NOT held ORDER BY pool")
        )
        names = list(waiting)
    seen = [(name, await describe(temporal, pool_workflow_id(name), ask=False)) for name in names]
    try:
        async with asyncio.timeout(_ASKED_FOR):
            seen = [(name, await describe(temporal, pool_workflow_id(name))) for name in names]
        unasked: list[Finding] = []
    except TimeoutError:  # what Temporal itself knows is there
        unasked = [_nobody_says(names)]
    return unasked + [
        fail(
            "pools",
            f"the cycle of pool {name} fails: {flow.trouble}",
            "Its jobs wait until it succeeds. Mend what it names; where it names nothing, look at "
            "the log of the control worker, and report it.",
        )
        for name, flow in seen
        if flow.trouble
    ]


def _nobody_says(names: list[str]) -> Finding:
    return fail(
        "pools",
        f"no control worker has said within {_ASKED_FOR:g} s how the cycles of the pools with "
        f"waiting jobs go: {listed(names, _SHOWN)}",
        "The line on the control worker says what to do; one that is busy answers later.",
    )


async def set_aside(database: Database) -> list[Finding]:
    """Return which jobs no cycle can plan, if there are any."""
    async with database.transaction() as connection:
        rows = await connection.execute(text(_ASIDE), {"aside": PlacementKind.SET_ASIDE.value})
        jobs = list(rows)
    if not jobs:
        return []
    named = [f"job {job.job_id} is {job.reason}" for job in jobs]
    return [
        fail(
            "pools",
            listed(named, _SHOWN, between="; "),
            "Do what the reason says. Each is tried again every ten minutes; `longshore hold JOB` "
            "and then `release` have it tried at once, `longshore cancel JOB` gives it "
            "up. All other jobs go on.",
        )
    ]


_ASIDE = """
    SELECT job_id, decision->>'reason' AS reason FROM queue
     WHERE NOT held AND decision->>'kind' = :aside ORDER BY submitted_at, job_id
"""
