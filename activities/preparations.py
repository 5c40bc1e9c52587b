"""Where a job that waits is expected to start: its workflow has brought there what it needs.

A cycle keeps GPUs for jobs that cannot start yet. Of those with code, an environment or data that
nodes fetch, it notes in the queue where each was told to prepare, in the transaction of the plan,
and signals that afterwards. What was noted is not told again, so a job that waits long for the
same node costs one signal.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.job_request import JobRequest
from longshore.models.node_messages import Prepare
from longshore.models.packing import PackingPolicy
from longshore.models.placement import CyclePlan
from longshore.models.protocol import PREPARES
from longshore.scheduling.score import share_deficit

AGAIN_AFTER = timedelta(minutes=1)
"""No job is told of another node sooner: what was begun there would be in vain."""
Told = list[tuple[str, Prepare]]
"""Job ids, each with what it is to hear."""


async def note_preparations(
    connection: AsyncConnection,
    cycle_id: str,
    decided: CyclePlan,
    queue: Mapping[str, JobRequest],
    packing: PackingPolicy,
) -> Told:
    """Note where the jobs of the plan's reservations are to be prepared; return those of which
    that is new. Nodes whose agents are too old are left out. `packing` says who lacks of a share.
    """
    if not decided.reservations:
        return []
    starts: dict[str, datetime] = {}
    nodes: dict[str, set[str]] = {}
    for kept in decided.reservations:
        nodes.setdefault(kept.job_id, set()).add(kept.node_id)
        starts[kept.job_id] = max(kept.start, starts.get(kept.job_id, kept.start))
    deficit = cache(partial(share_deficit, packing))
    rows = [
        {
            "job_id": job_id,
            "attempt": queue[job_id].attempt,
            "nodes": sorted(names),
            "start": starts[job_id].isoformat(),
            "deficit": deficit(queue[job_id].tenant),
        }
        for job_id, names in sorted(nodes.items())
        if job_id in queue
    ]
    found = await connection.execute(
        text(_NOTE),
        {
            "rows": json.dumps(rows), "cycle": cycle_id, "prepares": PREPARES,
            "again_after": AGAIN_AFTER,
        },
    )  # fmt: skip
    return list(_told(found.mappings()))


async def noted_preparations(connection: AsyncConnection, pool: str, cycle_id: str) -> Told:
    """Return what a committed cycle has noted: whoever noted it may not have told it."""
    found = await connection.execute(text(_NOTED), {"pool": pool, "cycle": cycle_id})
    return list(_told(found.mappings()))


def _told(rows: Iterable[Mapping[Any, Any]]) -> Iterator[tuple[str, Prepare]]:
    for row in rows:
        # Of what somebody has written there by hand nobody is told.
        with contextlib.suppress(ValidationError):
            said = {**row["preparing"], "attempt": row["attempt"]}
            yield (
                row["job_id"],
                Prepare.model_validate(
                    {**said, "node_ids": said.get("nodes"), "expected_start": said.get("start")}
                ),
            )


BRINGS = """(j.spec->'code'->>'snapshot' IS NOT NULL
             OR jsonb_typeof(j.spec->'environment') = 'object'
             OR jsonb_path_exists(j.spec, '$.data.*.from'))"""
"""Whether a job `j` has something to be brought."""

_NOTE = f"""
    WITH wanted AS (
        SELECT w.job_id, w.attempt, w.start, w.deficit,
               (SELECT jsonb_agg(n.id ORDER BY n.id) FROM nodes n
                 WHERE w.nodes ? n.id AND n.agent_protocol >= :prepares) AS nodes
          FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS w (
               job_id text, attempt integer, nodes jsonb, start timestamptz,
               deficit double precision)
    )
    UPDATE queue q
       SET preparing = jsonb_build_object(
           'nodes', w.nodes, 'start', w.start, 'deficit', w.deficit, 'cycle', CAST(:cycle AS text),
           'told_at', extract(epoch FROM clock_timestamp()))
      FROM wanted w JOIN jobs j ON j.id = w.job_id
     WHERE q.job_id = w.job_id AND q.attempt = w.attempt AND NOT q.held
       AND w.nodes IS NOT NULL AND {BRINGS}
       AND (q.preparing IS NULL
            OR q.preparing->'nodes' IS DISTINCT FROM w.nodes
               AND coalesce(q.preparing->'told_at', '0') <= to_jsonb(
                   extract(epoch FROM clock_timestamp() - CAST(:again_after AS interval))))
    RETURNING q.job_id, q.attempt, q.preparing
"""
"""What was noted may not be what we wrote: nothing of it is cast."""

_NOTED = """
    SELECT job_id, attempt, preparing FROM queue
     WHERE pool = :pool AND NOT held AND preparing->>'cycle' = :cycle
"""
