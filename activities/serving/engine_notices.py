"""What agents say of the engines of a service, recorded."""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.service_messages import EngineNotice
from longshore.models.serving import STALE_AFTER, EngineStage


async def hear(connection: AsyncConnection, name: str, notices: Sequence[EngineNotice]) -> bool:
    """Record what agents said of engines of a service; what is older than what is known is not.

    Returns whether one may leave for another now, as it has loaded or has become idle.
    """
    may_leave = False
    for notice in notices:
        said = notice.report
        row = {
            "name": name, "job_id": notice.job_id, "attempt": notice.attempt,
            "stage": said.stage.value, "endpoint": said.endpoint, "memory": said.memory,
            "load_seconds": said.load_seconds, "message": said.message,
            "waits": said.message if said.stage is EngineStage.LOADING else "",
            "idle": said.idle, "idle_for": STALE_AFTER, "uses": said.uses,
        }  # fmt: skip
        may_leave |= bool(await connection.scalar(text(_HEAR), row))
        if said.stage is EngineStage.READY:
            await connection.execute(text(_FIRST_READY), row)
    return may_leave


_HEAR = """
    WITH known AS (
        SELECT job_id, revision, idle_since,
               :stage = 'failed'
               AND (attempt, coalesce(stage, '')) <> (:attempt, 'failed') AS failed,
               (attempt, coalesce(stage, '')) = (:attempt, 'ready') AS was_ready
          FROM replicas
         WHERE job_id = :job_id AND service = :name AND attempt <= :attempt
    ), counted AS (
        UPDATE service_revisions v SET failures = v.failures + 1
          FROM known k
         WHERE k.failed AND v.service = :name AND v.number = k.revision
    )
    UPDATE replicas r
       SET attempt = :attempt, stage = :stage, endpoint = :endpoint,
           memory = CASE WHEN :stage = 'loading' THEN r.memory ELSE :memory END,
           waits = :waits,
           load_seconds = greatest(:load_seconds, r.load_seconds),
           message = CASE :stage WHEN 'failed' THEN :message WHEN 'ready' THEN ''
                                 ELSE r.message END,
           ready_at = CASE WHEN :stage = 'ready' AND NOT k.was_ready THEN clock_timestamp()
                           ELSE r.ready_at END,
           idle_since = CASE WHEN :stage = 'draining' THEN r.idle_since
                             WHEN :stage <> 'ready' OR NOT :idle THEN NULL
                             WHEN k.was_ready AND r.idle_since IS NOT NULL THEN r.idle_since
                             ELSE clock_timestamp() - CAST(:idle_for AS interval) END,
           uses = :uses,
           failures = r.failures + k.failed::integer
      FROM known k
     WHERE r.job_id = k.job_id
    RETURNING r.stage = 'ready'
              AND (NOT k.was_ready OR (k.idle_since IS NULL AND r.idle_since IS NOT NULL))
"""
_FIRST_READY = """
    UPDATE service_revisions v SET ready_at = clock_timestamp()
      FROM replicas r
     WHERE r.job_id = :job_id AND v.service = :name AND r.service = :name
       AND v.number = r.revision AND v.ready_at IS NULL
"""
