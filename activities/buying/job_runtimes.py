"""Actual and expected runtimes of jobs of a pool that ended lately."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.buying import JobEnd
from longshore.models.messages import LeaseEnd

_PLACEMENTS, _ENDS = 400, 100
"""So many of a pool's last placements are looked at, and so many that ended are told of."""


async def recent_runtimes(connection: AsyncConnection, pool: str) -> tuple[JobEnd, ...]:
    """Return the last jobs of a pool that ended as they should, newest first.

    What failed, was moved, cancelled or lost says nothing of how long jobs run.
    """
    found = await connection.execute(
        text(_ENDED),
        {
            "pool": pool, "placements": _PLACEMENTS, "ends": _ENDS,
            "finished": LeaseEnd.FINISHED.value,
        },
    )  # fmt: skip
    return tuple(JobEnd.model_validate(dict(row)) for row in found.mappings())


_ENDED = """
    WITH latest AS (
        SELECT p.placed_at, p.ended_at, p.end_reason, p.expected_seconds
          FROM cycles c JOIN placements p ON p.cycle_id = c.id AND p.rank = 0
         WHERE c.pool = :pool ORDER BY c.committed_at DESC LIMIT :placements
    )
    SELECT make_interval(secs => expected_seconds) AS expected, ended_at - placed_at AS ran
      FROM latest WHERE end_reason = :finished AND ended_at IS NOT NULL
     ORDER BY ended_at DESC LIMIT :ends
"""
