"""Checks of jobs: whether what is stored of each can be read."""

import asyncio
from collections.abc import Mapping
from functools import partial

from sqlalchemy import text

from longshore.activities.database import Database
from longshore.activities.stored_specs import why_unreadable
from longshore.models.text import listed
from longshore.models.visible import visible
from longshore.workers.doctor.findings import Check, Finding, ok, warn

_MOST = 5_000
"""Jobs that are looked at: a second or two."""
_SHOWN = 5
"""Jobs that are named; how many there are in all is said."""
_LONGEST = 200


def checks(database: Database) -> dict[str, Check]:
    """Return each check by its name."""
    return {"jobs": partial(jobs, database)}


async def jobs(database: Database) -> list[Finding]:
    """Return the jobs that have not ended and whose stored spec cannot be read."""
    async with database.transaction() as connection:
        found = await connection.execute(text(_OPEN), {"most": _MOST})
        rows = {row.id: row.spec for row in found}
    # In a thread: thousands take a while.
    unreadable = await asyncio.to_thread(_unreadable, rows)
    if not unreadable:
        which = "every job that has not ended"
        if len(rows) == _MOST:
            which = f"the {_MOST} jobs that were looked at, first those that run,"
        return [ok("jobs", f"what is stored of {which} can be read")]
    named = [f"job {job_id}: {visible(why)}" for job_id, why in unreadable]
    return [
        warn(
            "jobs",
            f"the stored spec cannot be read of {listed(named, _SHOWN, between='; ')}",
            "`longshore cancel JOB` ends one into whose row somebody wrote; where a newer version "
            "has stored it, run that one. Until then it goes on, and is not preempted.",
        )
    ]


def _unreadable(rows: Mapping[str, object]) -> list[tuple[str, str]]:
    found = ((job_id, why_unreadable(spec)) for job_id, spec in rows.items())
    return [(job_id, why[:_LONGEST]) for job_id, why in found if why]


_OPEN = """
    SELECT j.id, j.spec FROM jobs j
     WHERE j.ended_at IS NULL
     ORDER BY EXISTS (SELECT FROM placements p
                       WHERE p.job_id = j.id AND p.ended_at IS NULL) DESC,
              j.submitted_at, j.id
     LIMIT :most
"""
