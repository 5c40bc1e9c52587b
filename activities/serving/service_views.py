"""Services and their replicas, as lists show them."""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.serving.replica_stages import (
    failure_of,
    is_current,
    stage_of,
    tried_again,
)
from longshore.activities.serving.revisions import BY_HAND, read_revision
from longshore.activities.serving.service_rows import no_such_service
from longshore.activities.snapshot import WAITS_SINCE
from longshore.models.base import as_reason
from longshore.models.errors import StoredError
from longshore.models.service import (
    LeftGPUs,
    ReplicaView,
    RevisionView,
    ServiceSpec,
    ServiceState,
    ServiceView,
)
from longshore.models.serving import EngineStage
from longshore.scheduling.serving.replicas import stages_in_words

_COUNTS = re.compile(r"of [\d,]+ replicas?: ")
"""Begins what an earlier version stored of replicas, and what is no longer so."""

_KNOWN = (EngineStage.READY, EngineStage.FAILED, EngineStage.DRAINING)


async def services_view(connection: AsyncConnection) -> tuple[ServiceView, ...]:
    """Return the services that are not over, by name, with their replicas; one that cannot be read
    with its `trouble`."""
    rows = (await connection.execute(text(_SERVICES), {"name": None})).mappings().all()
    replicas = await _replica_rows(connection)
    return tuple(_service(row, replicas) for row in rows)


async def service_view(connection: AsyncConnection, name: str) -> ServiceView:
    """Return a service with its revisions. Raises NotFoundError, StoredError."""
    rows = await connection.execute(text(_SERVICES), {"name": name})
    row = rows.mappings().one_or_none()
    if row is None:
        raise no_such_service(name)
    found = _service(row, await _replica_rows(connection, name))
    if found.trouble:
        raise StoredError(f"service {name}", (found.trouble,))
    revisions = (await connection.execute(text(_REVISIONS), {"name": name})).mappings()
    told = tuple(RevisionView.model_validate(dict(each)) for each in revisions)
    return found.model_copy(update={"revisions": told})


async def replicas_view(
    connection: AsyncConnection, service: str | None = None
) -> tuple[ReplicaView, ...]:
    """Return the replicas that have not ended, of one service or of all."""
    return tuple(_replica(row) for row in await _replica_rows(connection, service))


async def _replica_rows(
    connection: AsyncConnection, service: str | None = None
) -> Sequence[RowMapping]:
    return (await connection.execute(text(_REPLICAS), {"name": service})).mappings().all()


def _service(row: RowMapping, replicas: Sequence[RowMapping]) -> ServiceView:
    rows = [each for each in replicas if each["service"] == row["name"]]
    own = tuple(_replica(each) for each in rows)
    trouble = ""
    try:
        spec, _ = read_revision(row["name"], row["revision"], row)
    except StoredError as error:
        trouble = "; ".join(error.problems)
        spec = ServiceSpec(name=row["name"], model=row["model"] or "unknown")
    return ServiceView(
        name=row["name"], state=ServiceState(row["state"]), revision=row["revision"],
        spec=spec.model_copy(update={"replicas": row["replicas"]}),
        ready=sum(bool(each.endpoint) for each in own), replicas=own,
        message=_says(row, rows), trouble=trouble, updated_at=row["updated_at"],
    )  # fmt: skip


def _says(row: RowMapping, replicas: Sequence[RowMapping]) -> str:
    """Return what the last look found, or what the replicas do now."""
    if row["state"] == ServiceState.REMOVED:
        return ""
    stored = "" if _COUNTS.match(row["message"]) else row["message"]
    if stored or row["state"] != ServiceState.RUNNING:
        return stored
    staying = [
        each
        for each in replicas
        if each["stopping_at"] is None and each["revision"] == row["revision"]
    ]
    again = sum(tried_again(each) for each in staying)
    return stages_in_words(row["replicas"], map(stage_of, staying), again)


def _replica(row: RowMapping) -> ReplicaView:
    current, stage = is_current(row), stage_of(row)
    answers = stage is EngineStage.READY and row["stopping_at"] is None
    values: dict[str, Any] = {
        "job_id": row["job_id"], "service": row["service"], "model": row["model"],
        "revision": row["revision"], "stage": stage, "stopping": row["stopping_at"] is not None,
        "node_id": row["node_id"], "gpu_indices": tuple(row["gpu_indices"] or ()),
        "endpoint": row["endpoint"] if answers else "", "leased": row["leased"],
        "estimated": row["estimated"],
        # While it loads that is of the attempt before: it says what one like it takes.
        "used": -(-row["memory"] // 1_000_000) if stage in _KNOWN else 0,
        "load_seconds": row["load_seconds"], "failures": row["failures"],
        "failed": bool(failure_of(row)),
        "message": "" if answers else _message(row, placed=stage is not None, current=current),
        "created_at": row["created_at"], "ready_at": row["ready_at"], "left": _left(row),
        "simulated": row["simulated"],
        "idle_since": row["idle_since"] if answers else None,
        "uses": row["uses"] if current else 0,
    }  # fmt: skip
    return ReplicaView(**values)


async def runs_an_engine(connection: AsyncConnection, pool: str) -> bool:
    """Return whether an engine runs on the nodes of a pool."""
    return bool(await connection.scalar(text(_RUNS_ENGINE), {"pool": pool}))


async def waits_to_load(connection: AsyncConnection, job_id: str) -> str:
    """Return for whom the engine of a job waits before it loads; empty where it does not."""
    return await connection.scalar(text(_WAITS), {"job_id": job_id}) or ""


async def last_failure(connection: AsyncConnection, job_id: str) -> tuple[str, str]:
    """Return the service of a replica, and why its engine failed last; empty of any other job."""
    row = (await connection.execute(text(_LAST_FAILURE), {"job_id": job_id})).one_or_none()
    return (row.service, row.message) if row else ("", "")


async def replica_to_explain(connection: AsyncConnection, service: str) -> str | None:
    """Return the job of the replica of a service of which somebody would want to know most; None
    where it has none, is removed, or where that is a job's id.

    Of those in the queue the one that has waited longest, then one that failed, one that loads,
    the newest that serves, one that stops, and one that has ended last.
    """
    return await connection.scalar(text(_TO_EXPLAIN), {"service": service})


async def leaves_drained(connection: AsyncConnection, job_id: str) -> str:
    """Return when the engine of a job leaves its node that drains; empty where that does not."""
    row = (await connection.execute(text(_DRAINED), {"job_id": job_id})).one_or_none()
    if row is None:
        return ""
    return f"{row.node_id} drains: it leaves when another replica of {row.service} is ready"


def _message(row: RowMapping, *, placed: bool, current: bool) -> str:
    """Return for whom it waits before it loads, or why it has no GPU and why it failed last."""
    if current and row["waits"]:
        return row["waits"]
    failure, queue = failure_of(row), "" if placed else row["why_waits"] or ""
    return (
        f"{queue}; its engine failed before: {failure}" if queue and failure else queue or failure
    )


def _left(row: RowMapping) -> LeftGPUs | None:
    if row["left_for"] is None:
        return None
    return LeftGPUs(for_job=row["left_for"], at=row["left_at"], why=as_reason(row["left_why"]))


_SERVICES = """
    SELECT s.*, v.spec, v.engine
      FROM services s
      JOIN service_revisions v ON v.service = s.name AND v.number = s.revision
     WHERE CASE WHEN CAST(:name AS text) IS NULL THEN s.state <> 'REMOVED' ELSE s.name = :name END
     ORDER BY s.name
"""
_WAITS = """
    SELECT r.waits FROM replicas r
      JOIN placements p USING (job_id, attempt)
     WHERE r.job_id = :job_id AND p.ended_at IS NULL
"""
_LAST_FAILURE = "SELECT service, message FROM replicas WHERE job_id = :job_id"
_TO_EXPLAIN = f"""
    SELECT r.job_id
      FROM services s
      JOIN replicas r ON r.service = s.name
      JOIN jobs j ON j.id = r.job_id
      LEFT JOIN (SELECT job_id, {WAITS_SINCE} AS since FROM queue) q ON q.job_id = r.job_id
      LEFT JOIN placements p ON p.job_id = r.job_id AND p.rank = 0 AND p.ended_at IS NULL
      LEFT JOIN LATERAL (
            SELECT CASE WHEN j.ended_at IS NOT NULL OR r.ended_at IS NOT NULL THEN 6
                        WHEN r.stopping_at IS NOT NULL THEN 5
                        WHEN q.job_id IS NOT NULL THEN 1
                        WHEN p.job_id IS NULL THEN 2
                        WHEN r.attempt IS DISTINCT FROM p.attempt OR r.stage IS NULL THEN 3
                        WHEN r.stage = 'failed' THEN 2
                        WHEN r.stage = 'ready' THEN 4
                        ELSE 3 END AS place) o ON true
     WHERE s.name = :service AND s.state <> 'REMOVED'
       AND NOT EXISTS (SELECT FROM jobs WHERE id = :service)
     ORDER BY o.place, CASE WHEN o.place = 1 THEN q.since END, j.submitted_at DESC, r.job_id
     LIMIT 1
"""
_RUNS_ENGINE = """
    SELECT EXISTS (SELECT FROM replicas r
                     JOIN placements p ON p.job_id = r.job_id AND p.ended_at IS NULL
                     JOIN nodes n ON n.id = p.node_id
                    WHERE r.ended_at IS NULL AND n.pool = :pool)
"""
_DRAINED = """
    SELECT r.service, p.node_id FROM replicas r
      JOIN placements p ON p.job_id = r.job_id AND p.rank = 0 AND p.ended_at IS NULL
      JOIN nodes n ON n.id = p.node_id AND n.state = 'DRAINING' AND n.clearing
     WHERE r.job_id = :job_id AND r.stopping_at IS NULL
"""
_REVISIONS = f"""
    SELECT number, coalesce(engine -> 'model' ->> 'name', '') AS model, model_revision,
           coalesce(engine -> 'runtime' ->> 'name', '') AS runtime,
           created_at, ready_at, coalesce(undone, '') AS undone, failures,
           coalesce((SELECT r.message FROM replicas r
                      WHERE r.service = v.service AND r.revision = v.number AND r.message <> ''
                      ORDER BY r.created_at DESC LIMIT 1), '') AS last_failure,
           EXISTS (SELECT FROM service_revisions o
                    WHERE o.service = v.service AND o.number <> v.number
                      AND o.ready_at IS NOT NULL
                      AND (o.undone IS NULL OR o.undone LIKE '{BY_HAND}%')) AS can_go_back
      FROM service_revisions v WHERE service = :name
     ORDER BY number DESC LIMIT 20
"""
_REPLICAS = """
    SELECT r.*, coalesce(v.engine -> 'model' ->> 'name', '') AS model,
           CASE WHEN coalesce(j.spec -> 'engine', v.engine) ->> 'memory' ~ '^[0-9]{1,13}$'
                THEN (coalesce(j.spec -> 'engine', v.engine) ->> 'memory')::bigint
                ELSE 0 END AS leased,
           CASE WHEN e.memory ~ '^[0-9]{1,13}$' THEN e.memory::bigint ELSE 0 END AS estimated,
           p.attempt AS placed_as, p.node_id, p.gpu_indices,
           coalesce(n.simulated, false) AS simulated,
           d.for_job AS left_for, d.decided_at AS left_at, coalesce(d.why, '') AS left_why,
           q.job_id IS NOT NULL AS queued, q.decision ->> 'reason' AS why_waits
      FROM replicas r
      JOIN service_revisions v ON v.service = r.service AND v.number = r.revision
      LEFT JOIN jobs j ON j.id = r.job_id
      LEFT JOIN queue q ON q.job_id = r.job_id
      LEFT JOIN LATERAL (
            SELECT coalesce(
                jsonb_path_query_first(
                    v.sizes, '$[*] ? (@.gpus == $n).memory', jsonb_build_object(
                        'n', coalesce(j.spec #> '{engine,model,gpus}', to_jsonb(1)))),
                v.engine -> 'memory') #>> '{}' AS memory) e ON true
      LEFT JOIN placements p ON p.job_id = r.job_id AND p.rank = 0 AND p.ended_at IS NULL
      LEFT JOIN nodes n ON n.id = p.node_id
      LEFT JOIN LATERAL (
            SELECT for_job, decided_at, jsonb_path_query_first(
                       plan, '$.victims[*] ? (@.job_id == $id).reason',
                       jsonb_build_object('id', r.job_id)) #>> '{}' AS why
              FROM preemptions
             WHERE job_id = r.job_id ORDER BY attempt DESC LIMIT 1) d ON true
     WHERE r.ended_at IS NULL AND (CAST(:name AS text) IS NULL OR r.service = :name)
     ORDER BY r.service, r.created_at, r.job_id
"""
