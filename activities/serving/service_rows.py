"""Rows of services, of their revisions and replicas: recorded, read, and changed by a plan."""

import contextlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.serving.replica_stages import failed_last, stage_of, tried_again
from longshore.activities.serving.revisions import BY_HAND, revision_of, sizes_of
from longshore.models.base import as_reason
from longshore.models.errors import NotFoundError, RefusedError, SpecError, StoredError
from longshore.models.service import MOST_REPLICAS, ServiceSpec, ServiceState
from longshore.models.serving import EngineSize, EngineSpec
from longshore.models.visible import shown
from longshore.scheduling.serving.replicas import (
    FORGOTTEN_AFTER,
    Replica,
    ServiceFacts,
    ServicePlan,
)


async def record_service(
    connection: AsyncConnection,
    spec: ServiceSpec,
    engine: EngineSpec,
    model_revision: int,
    sizes: Sequence[EngineSize] = (),
) -> int:
    """Have a service be as it is given; return its revision. Its replicas have one of `sizes`, or
    that of the engine where there are none.

    That is a new one where more than the number of replicas is another, or the files of
    the model are. Raises RefusedError while one of the name is being removed.
    """
    row = {"name": spec.name, "replicas": spec.replicas}
    # Of two at a time one waits here for the other.
    await connection.execute(text(_INSERT_SERVICE), row)
    service = await lock_service(connection, spec.name)
    if service["state"] == ServiceState.REMOVING:
        raise RefusedError(
            f"service {spec.name} is being removed: its replicas end what they have begun. Try "
            "again when `longshore services` no longer lists it"
        )
    before = None
    if service["revision"]:
        with contextlib.suppress(StoredError):  # what cannot be read is another
            before = (
                *await revision_of(connection, spec.name, service["revision"]),
                await sizes_of(connection, spec.name, service["revision"]),
            )
    number = service["revision"]
    if (
        before is None
        or service["state"] == ServiceState.REMOVED
        or not _same(before, spec, engine, tuple(sizes))
        or await connection.scalar(
            text(_OTHER_FILES),
            {**row, "number": number, "model": spec.model},
        )
    ):
        number = await connection.scalar(
            text(_INSERT_REVISION),
            {
                **row, "spec": spec.model_dump_json(), "engine": engine.model_dump_json(),
                "model_revision": model_revision,
                "sizes": json.dumps([each.model_dump() for each in sizes]) if sizes else None,
            },
        )  # fmt: skip
    await connection.execute(text(_SET_SERVICE), {**row, "revision": number})
    return int(number or 0)


def _same(
    before: tuple[ServiceSpec, EngineSpec, tuple[EngineSize, ...]],
    spec: ServiceSpec,
    engine: EngineSpec,
    sizes: tuple[EngineSize, ...],
) -> bool:
    old, old_engine, old_sizes = before
    if old_sizes and old_sizes != sizes:  # one of before 0063 has none
        return False
    return (old.model_copy(update={"replicas": spec.replicas}), old_engine) == (spec, engine)


async def lock_service(connection: AsyncConnection, name: str) -> RowMapping:
    """Hold a service's row until the end of the transaction; return it. Raises NotFoundError."""
    rows = await connection.execute(text(_LOCK), {"name": name})
    row = rows.mappings().one_or_none()
    if row is None:
        raise no_such_service(name)
    return row


def no_such_service(name: str) -> NotFoundError:
    return NotFoundError(f"no service {shown(name)}: `longshore services` lists them")


async def scale_service(connection: AsyncConnection, name: str, replicas: int) -> None:
    """Want so many replicas. Raises NotFoundError, RefusedError of one that is removed, SpecError
    for a number that no service can have."""
    if not 0 <= replicas <= MOST_REPLICAS:
        raise SpecError("replicas", (f"replicas: must be 0 to {MOST_REPLICAS:,}, got {replicas}",))
    service = await lock_service(connection, name)
    _refuse_removed(service)
    row = {"name": name, "replicas": replicas, "revision": service["revision"]}
    await connection.execute(text(_SET_SERVICE), row)


async def undo_rollout(connection: AsyncConnection, name: str, number: int | None) -> int:
    """Go back to a revision, or to that which ran before and was ever ready; return it.

    Raises NotFoundError where there is none, RefusedError of a service that is removed, and where
    its newest revision was undone by itself to what it has now: who asks may not know, and would
    go back twice.
    """
    service = await lock_service(connection, name)
    _refuse_removed(service)
    if number is None:
        number = await connection.scalar(text(_PREVIOUS), dict(service))
        if number and (undone := await connection.scalar(text(_UNDONE_BY_ITSELF), dict(service))):
            raise RefusedError(
                f"revision {undone} of service {name} never got ready and was undone by itself: "
                f"it is back at revision {service['revision']}. `longshore rollout undo {name} "
                f"--to {number}` goes back further"
            )
    if number is None:
        raise NotFoundError(
            f"service {name} has no revision to go back to: none but {service['revision']} was "
            "ever ready"
        )
    await revision_of(connection, name, number)
    row = {"name": name, "replicas": service["replicas"], "revision": number}
    left = {"name": name, "revision": service["revision"], "why": f"{BY_HAND}{number}"}
    await connection.execute(text(_LEFT), left)
    await connection.execute(text(_ANEW), row)
    await connection.execute(text(_SET_SERVICE), row)
    return number


async def remove_service(connection: AsyncConnection, name: str) -> None:
    """Have all replicas of a service end. Raises NotFoundError."""
    await lock_service(connection, name)
    await connection.execute(text(_REMOVE), {"name": name})


def _refuse_removed(service: RowMapping) -> None:
    if service["state"] != ServiceState.RUNNING:
        state = ServiceState(service["state"]).in_words
        raise RefusedError(
            f"service {service['name']} is {state}: `longshore serve FILE` starts it again"
        )


async def facts_of(
    connection: AsyncConnection, service: RowMapping, spec: ServiceSpec | None, now: datetime
) -> ServiceFacts:
    """Return what is so of a service that is locked; note which of its replicas have ended.

    One that is being removed, or was, needs no `spec`.
    """
    row = {"name": service["name"], "revision": service["revision"], "now": now}
    await connection.execute(text(_NOTE_ENDS), row)
    live = (await connection.execute(text(_LIVE), row)).mappings().all()
    revision = (await connection.execute(text(_REVISION_FACTS), row)).mappings().one()
    since = {**row, "since": now - FORGOTTEN_AFTER}
    ends = list(await connection.scalars(text(_ENDS), since))
    return ServiceFacts(
        revision=service["revision"],
        wanted=service["replicas"],
        surge=spec.surge if spec else 0,
        unavailable=spec.unavailable if spec else 0,
        replicas=tuple(_replica(each) for each in live),
        was_ready=revision["ready_at"] is not None,
        failures=revision["failures"],
        last_failure=await connection.scalar(text(_LAST_FAILURE), row) or "",
        previous=await connection.scalar(text(_PREVIOUS), row),
        ends=tuple(ends),
        removing=service["state"] != ServiceState.RUNNING,
    )


def _replica(row: RowMapping) -> Replica:
    return Replica(
        job_id=row["job_id"], revision=row["revision"], created_at=row["created_at"],
        stage=stage_of(row), endpoint=row["endpoint"] or "", pool=row["pool"] or "",
        failed_last=failed_last(row), tried_again=tried_again(row),
        queued_at=row["queued_at"],
        stopping=row["stopping_at"] is not None, failures=row["failures"],
        leaves_at=row["expires_at"], node_drains=row["node_drains"], left_idle=row["left_idle"],
        load_time=timedelta(seconds=row["load_seconds"]),
    )  # fmt: skip


async def store_plan(
    connection: AsyncConnection, service: RowMapping, plan: ServicePlan, job_ids: Sequence[str]
) -> bool:
    """Record what is about to be done, with the ids of jobs to be started; return whether the
    service is over."""
    row = {"name": service["name"], "revision": service["revision"]}
    if plan.undo is not None:
        undo = {"to": plan.undo.revision, "why": as_reason(plan.undo.reason)}
        await connection.execute(text(_UNDO), row | undo)
    for stop in plan.stop:
        await stop_replica(connection, stop.job_id, stop.reason)
    for job_id in job_ids:
        await connection.execute(text(_INSERT_REPLICA), {**row, "job_id": job_id})
    over = await connection.scalar(text(_LOOKED), {**row, "message": plan.reason})
    return over == ServiceState.REMOVED


async def stop_replica(connection: AsyncConnection, job_id: str, why: str) -> None:
    """Have one replica stop."""
    await connection.execute(text(_STOP), {"job_id": job_id, "why": why})


async def to_start(connection: AsyncConnection, name: str) -> Sequence[tuple[str, int]]:
    """Return jobs of replicas that are recorded and not known to be there, with the revision."""
    found = await connection.execute(text(_TO_START), {"name": name})
    return [(row.job_id, row.revision) for row in found]


async def to_cancel(connection: AsyncConnection, name: str) -> Sequence[tuple[str, str]]:
    """Return jobs of replicas that have to be told to stop, with why."""
    found = await connection.execute(text(_TO_CANCEL), {"name": name})
    return [(row.job_id, row.stop_reason) for row in found]


async def mark(
    connection: AsyncConnection,
    *,
    started: Sequence[str],
    told: Sequence[str],
    never: Sequence[str] = (),
) -> None:
    """Note which jobs are there, which were told to stop, and which never were there."""
    row = {"started": list(started), "told": list(told), "never": list(never)}
    await connection.execute(text(_MARK), row)


_INSERT_SERVICE = """
    INSERT INTO services (name, revision, replicas) VALUES (:name, 0, :replicas)
    ON CONFLICT (name) DO NOTHING
"""
_LOCK = "SELECT * FROM services WHERE name = :name FOR UPDATE"
_INSERT_REVISION = """
    INSERT INTO service_revisions (service, number, spec, engine, model_revision, sizes)
    SELECT :name, coalesce(max(number), 0) + 1, CAST(:spec AS jsonb), CAST(:engine AS jsonb),
           CAST(:model_revision AS integer), CAST(:sizes AS jsonb)
      FROM service_revisions WHERE service = :name
    RETURNING number
"""
_OTHER_FILES = """
    SELECT v.model_revision < coalesce((m.facts ->> 'files_since')::integer, 0)
      FROM service_revisions v, models m
     WHERE v.service = :name AND v.number = :number AND m.name = :model
"""
"""Whether its model has got other files since: an engine may be the same by all else."""
_SET_SERVICE = """
    UPDATE services
       SET revision = :revision, replicas = :replicas, state = 'RUNNING',
           message = CASE WHEN state = 'RUNNING' THEN message ELSE '' END,
           model = (SELECT m.name FROM models m
                      JOIN service_revisions v ON v.spec ->> 'model' = m.name
                     WHERE v.service = :name AND v.number = :revision),
           updated_at = clock_timestamp()
     WHERE services.name = :name
"""
_LEFT = """
    UPDATE service_revisions SET undone = :why WHERE service = :name AND number = :revision
"""
_ANEW = """
    UPDATE service_revisions SET failures = 0, undone = NULL
     WHERE service = :name AND number = :revision
"""
_REMOVE = """
    UPDATE services SET state = 'REMOVING', updated_at = clock_timestamp()
     WHERE name = :name AND state = 'RUNNING'
"""
_PREVIOUS = f"""
    SELECT v.number
      FROM service_revisions v
     WHERE v.service = :name AND v.number <> :revision
       AND v.ready_at IS NOT NULL AND (v.undone IS NULL OR v.undone LIKE '{BY_HAND}%')
     ORDER BY (SELECT max(r.created_at) FROM replicas r
                WHERE r.service = v.service AND r.revision = v.number) DESC NULLS LAST,
              v.number DESC
     LIMIT 1
"""
_UNDONE_BY_ITSELF = f"""
    SELECT number
      FROM service_revisions v
     WHERE v.service = :name AND v.number <> :revision
       AND v.number = (SELECT max(number) FROM service_revisions WHERE service = :name)
       AND v.undone NOT LIKE '{BY_HAND}%'
       AND substring(v.undone FROM ': back to revision ([0-9]+)') = CAST(:revision AS text)
"""
_NOTE_ENDS = """
    UPDATE replicas r SET ended_at = j.ended_at
      FROM jobs j
     WHERE r.service = :name AND r.ended_at IS NULL AND j.id = r.job_id
       AND j.ended_at IS NOT NULL
"""
_LIVE = """
    SELECT r.*, p.attempt AS placed_as, n.expires_at, n.pool,
           q.job_id IS NOT NULL AS queued, q.queued_at,
           coalesce(n.state = 'DRAINING' AND n.clearing, false) AS node_drains,
           r.attempt > 0 AND (q.request->'fills' = 'true') IS TRUE AS left_idle
      FROM replicas r
      LEFT JOIN queue q ON q.job_id = r.job_id
      LEFT JOIN placements p ON p.job_id = r.job_id AND p.rank = 0 AND p.ended_at IS NULL
      LEFT JOIN nodes n ON n.id = p.node_id
     WHERE r.service = :name AND r.ended_at IS NULL
     ORDER BY r.created_at, r.job_id
"""
_REVISION_FACTS = """
    SELECT ready_at, failures FROM service_revisions
     WHERE service = :name AND number = :revision
"""
_LAST_FAILURE = """
    SELECT message FROM replicas
     WHERE service = :name AND revision = :revision AND message <> ''
     ORDER BY created_at DESC LIMIT 1
"""
_ENDS = """
    SELECT ended_at FROM replicas
     WHERE service = :name AND revision = :revision AND stopping_at IS NULL
       AND ended_at > :since
     ORDER BY ended_at
"""
_UNDO = """
    WITH undone AS (
        UPDATE service_revisions SET undone = :why WHERE service = :name AND number = :revision
    )
    UPDATE services
       SET revision = :to,
           model = (SELECT m.name FROM models m
                      JOIN service_revisions v ON v.spec ->> 'model' = m.name
                     WHERE v.service = :name AND v.number = :to),
           updated_at = clock_timestamp()
     WHERE services.name = :name
"""
_STOP = """
    UPDATE replicas SET stopping_at = clock_timestamp(), stop_reason = :why
     WHERE job_id = :job_id AND stopping_at IS NULL
"""
_INSERT_REPLICA = """
    INSERT INTO replicas (job_id, service, revision) VALUES (:job_id, :name, :revision)
"""
_LOOKED = """
    UPDATE services
       SET message = :message,
           model = CASE WHEN state = 'REMOVING' THEN NULL ELSE model END,
           state = CASE WHEN state = 'REMOVING'
                             AND NOT EXISTS (SELECT FROM replicas
                                              WHERE service = :name AND ended_at IS NULL)
                        THEN 'REMOVED' ELSE state END
     WHERE name = :name
    RETURNING state
"""
_TO_START = """
    SELECT job_id, revision FROM replicas
     WHERE service = :name AND NOT started AND ended_at IS NULL
     ORDER BY created_at, job_id
"""
_TO_CANCEL = """
    SELECT job_id, stop_reason FROM replicas
     WHERE service = :name AND stopping_at IS NOT NULL AND NOT cancel_sent AND ended_at IS NULL
"""
_MARK = """
    UPDATE replicas
       SET started = started OR job_id = ANY (:started),
           cancel_sent = cancel_sent OR job_id = ANY (:told),
           ended_at = CASE WHEN job_id = ANY (:never) THEN clock_timestamp() ELSE ended_at END
     WHERE job_id = ANY (:started) OR job_id = ANY (:told)
"""
