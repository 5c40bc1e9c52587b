"""Checks of the pools that may buy: what keeps one from it, and whether what is stored of their
purchases can be read."""

from functools import partial

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.reasons import read_standing
from longshore.activities.buying.stored_documents import unreadable_purchases
from longshore.activities.buying.switch import why_stopped
from longshore.activities.database import Database
from longshore.activities.providers.registry import configured
from longshore.activities.snapshot import load_pool
from longshore.models.settings import Settings
from longshore.models.text import count, listed
from longshore.models.visible import visible
from longshore.workers.doctor.findings import Check, Finding, ok, warn

_CHECK = "buying"
_SHOWN = 5
"""Pools, or purchases, that are named."""
_LONGEST = 200


def checks(database: Database, settings: Settings) -> dict[str, Check]:
    """Return each check by its name."""
    return {_CHECK: partial(_look, database, settings), "purchases": partial(purchases, database)}


async def _look(database: Database, settings: Settings) -> list[Finding]:
    async with database.transaction() as connection:
        pools = (await connection.execute(text(_MAY_BUY))).mappings().all()
        stopped = await why_stopped(connection)
        if not pools:
            return []
        names = [str(pool["name"]) for pool in pools]
        may_buy = f"pool{'s' if len(names) > 1 else ''} {listed(names, _SHOWN)} may buy, and"
        if stopped:
            return [
                warn(
                    _CHECK,
                    f"{may_buy} buying is stopped: {stopped}",
                    "Let pools buy again: `longshore market resume`.",
                )
            ]
        if not configured(settings):
            return [
                warn(
                    _CHECK,
                    f"{may_buy} no market is configured here",
                    "Start a simulated one (`longshore market simulate`), set LONGSHORE_MARKET "
                    "and a token (docs/settings.md), or let it not buy: "
                    f"`longshore pool set {names[0]} --buying enabled=false`.",
                )
            ]
        waiting = [pool for pool in pools if pool["since"] is not None][:_SHOWN]
        found = [await _of_pool(connection, pool) for pool in waiting]
    return [finding for finding in found if finding is not None]


async def purchases(database: Database) -> list[Finding]:
    """Return the purchases that have not ended and whose stored request cannot be read."""
    async with database.transaction() as connection:
        found = await unreadable_purchases(connection)
    named = [f"purchase {id}: {visible(why)[:_LONGEST]}" for id, why in found]
    if not named:
        return [ok("purchases", "what is stored of every purchase under way can be read")]
    return [
        warn(
            "purchases",
            f"the stored request cannot be read of {listed(named, _SHOWN, between='; ')}",
            "Correct the row, or run the version that has stored it. Its pool buys nothing while "
            "that purchase is under way.",
        )
    ]


async def _of_pool(connection: AsyncConnection, pool: RowMapping) -> Finding | None:
    """Return what keeps a pool from buying for the jobs that wait; not that it chose to wait."""
    spec = await load_pool(connection, pool["name"])
    standing = await read_standing(connection, spec, pool["since"])
    if standing.buys or standing.chosen:
        return None
    jobs = count(pool["jobs"], "job")
    waits = "waits" if pool["jobs"] == 1 else "wait"
    helps = f"{standing.helps[:1].upper()}{standing.helps[1:]}."
    return warn(_CHECK, f"pool {spec.name}, where {jobs} {waits}: {standing.says}", helps)


_MAY_BUY = """
    SELECT p.name, count(q.job_id) AS jobs, min(q.queued_at) AS since
      FROM pools p
      LEFT JOIN queue q ON q.pool = p.name AND NOT q.held
     WHERE p.spec #>> '{buying,enabled}' = 'true'
     GROUP BY p.name ORDER BY p.name
"""
