"""Wait reasons, as they are stored with the queue and signalled to jobs."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.messages import Waiting
from longshore.models.placement import CyclePlan, PlacementKind
from longshore.scheduling.reason_updates import TELL_AT_MOST, Stored, to_tell, to_write

STORED_COLUMNS = "attempt, decision, decided_at, told_reason, told_at"
"""What `stored_of` reads of a row of the queue."""


def stored_of(row: Mapping[Any, Any]) -> Stored:
    """Return what is stored of a job that waits, from its row."""
    said = row["decision"]
    told = {"told": row["told_reason"], "told_at": row["told_at"]}
    # A newer version, or somebody by hand, may have stored what this one cannot read: as nothing.
    try:
        kind = PlacementKind(said["kind"])
        return Stored(
            attempt=row["attempt"], kind=kind, codes=frozenset(said.get("rejected", ())),
            counted_as=said.get("counted_as"),
            start=_time_of(said.get("estimated_start")),
            start_told=_time_of(said.get("start_told")),
            start_kept=bool(said.get("start_kept", True)),
            words=said.get("reason", ""), at=row["decided_at"], **told,
        )  # fmt: skip
    except (TypeError, ValueError, KeyError):
        return Stored(attempt=row["attempt"], **told)


def _time_of(said: str | None) -> datetime | None:
    if said is None:
        return None
    time = datetime.fromisoformat(said)
    if time.tzinfo is None:
        raise ValueError("a time without a zone")
    return time


async def explain_waiting(
    connection: AsyncConnection,
    decided: CyclePlan,
    stored: Mapping[str, Stored],
    now: datetime,
    unheard: Sequence[str] = (),
) -> list[tuple[str, Waiting]]:
    """Store why jobs wait where that has changed (`to_write`); return those that are to hear it.

    `stored` has each job of the plan, as the plan's snapshot showed it; `unheard` are jobs without
    a part in it that are to hear what is stored of them, after the others.
    """
    waiting = [
        decision
        for decision in decided.decisions
        if decision.kind is not PlacementKind.EXISTING_NODE
    ]
    written = to_write(waiting, stored, now)
    if written:
        rows = [
            {
                "job_id": each.decision.job_id,
                "attempt": each.attempt,
                "decision": each.decision.model_dump(mode="json"),
                "is_news": each.is_news,
            }
            for each in written
        ]
        await connection.execute(text(_EXPLAIN), {"rows": json.dumps(rows), "now": now})
    ids = [*to_tell(waiting, stored, written, now), *unheard][:TELL_AT_MOST]
    if not ids:
        return []
    told = await connection.execute(text(_TELL), {"ids": ids, "now": now})
    return [
        (row["job_id"], Waiting(attempt=row["attempt"], reason=row["reason"]))
        for row in told.mappings()
    ]


_EXPLAIN = """
    WITH explained AS (
        UPDATE queue q
           SET decision = w.decision, decided_at = :now,
               told_reason = CASE WHEN NOT w.is_news AND q.told_reason = q.decision->>'reason'
                                  THEN w.decision->>'reason' ELSE q.told_reason END
          FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS w (
               job_id text, attempt integer, decision jsonb, is_news boolean)
         WHERE q.job_id = w.job_id AND q.attempt = w.attempt AND NOT q.held
        RETURNING q.job_id, q.attempt, q.pool, w.decision->>'estimated_start' AS starts_at,
                  w.decision->'start_range' AS range,
                  coalesce(CAST(w.decision->'start_kept' AS boolean), true) AS kept, w.is_news)
    INSERT INTO start_estimates (
           job_id, attempt, pool, made_at, starts_at, earliest, latest, kept_until)
    SELECT job_id, attempt, pool, :now, CAST(starts_at AS timestamptz),
           CAST(range->>'earliest' AS timestamptz), CAST(range->>'latest' AS timestamptz),
           CASE WHEN kept THEN CAST(coalesce(range->>'latest', starts_at) AS timestamptz) END
      FROM explained
     WHERE starts_at IS NOT NULL
    ON CONFLICT (job_id, attempt) DO UPDATE SET kept_until = EXCLUDED.kept_until
     WHERE start_estimates.kept_until IS NULL AND EXCLUDED.kept_until IS NOT NULL
"""
"""Who has heard the like has heard it. The first estimate of an attempt stays on record, and so
does the first start for which a place was kept."""

_TELL = """
    UPDATE queue SET told_at = :now, told_reason = decision->>'reason'
     WHERE job_id = ANY(:ids) AND NOT held AND decision IS NOT NULL
    RETURNING job_id, attempt, told_reason AS reason
"""
