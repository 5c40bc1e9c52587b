"""Which objects and snapshots are stored, and what keeps them there: the authority over removal.

An upload leases what it counts on, in one transaction, before it stores anything. A job in the
queue, a DAG that has not ended and a schedule keep their snapshots, a snapshot keeps its objects:
triggers of the database refuse to delete those.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.artifacts.store import ArtifactStore, content_of
from longshore.activities.checkpoints.rows import sweep_checkpoints
from longshore.activities.database import Database
from longshore.activities.failpoints import failpoint
from longshore.activities.node.publisher import in_thread
from longshore.models.data import OF_A_JOB
from longshore.models.errors import StaleError
from longshore.models.job import JobSpec
from longshore.models.snapshot import Snapshot
from longshore.models.visible import shown

LEASE = timedelta(days=2)
"""How long an upload may take, and then the way from the submit into the queue."""
SWEEP_EVERY = timedelta(minutes=5)
_AT_ONCE = 500
_SLOWEST = 50_000
"""Bytes a second over which a snapshot is stored at least, before its lock is given up."""

_log = logging.getLogger(__name__)


async def why_no_code(connection: AsyncConnection, spec: JobSpec) -> str:
    """Return why a job cannot have its code; empty where it can, or has none.

    What is there stays until the end of the transaction, and then because of the job.
    """
    code = spec.code
    if code is None:
        return ""
    if code.snapshot is None:
        return (
            "code: was not stored: `longshore submit` stores a folder or a commit, and submits "
            "its snapshot"
        )
    found = await connection.scalar(
        text(_COUNT_ON_SNAPSHOT), {"tenant": spec.tenant, "digest": code.snapshot}
    )
    if found:
        return ""
    return (
        f"code: the snapshot {code.snapshot[:12]} is not stored for tenant {spec.tenant}, or not "
        "any more (setting keep_code_for): submit the job again"
    )


async def why_no_files(connection: AsyncConnection, spec: JobSpec) -> str:
    """Return why a job cannot read the outputs of a job that its data names; empty where it can,
    or names none."""
    jobs = {name: data.job for name, data in spec.data.items() if data.job is not None}
    if not jobs:
        return ""
    values = {"tenant": spec.tenant, "ids": sorted(set(jobs.values()))}
    ended = {row.id: row.ended for row in await connection.execute(text(_OF_TENANT), values)}
    for name, job in jobs.items():
        if job not in ended:
            return (
                f"data.{name}: tenant {spec.tenant} has no job {shown(job)}: {OF_A_JOB} goes "
                "before the id of a job, as `longshore jobs --all` lists it"
            )
        if not ended[job]:
            return (
                f"data.{name}: job {job} has not ended: wait for it, or submit both as a DAG, in "
                "which this one comes after it"
            )
    return ""


async def lease_snapshot(connection: AsyncConnection, tenant: str, digest: str) -> bool:
    """Keep a snapshot for a submit; return whether it is stored."""
    values = {"tenant": tenant, "digest": digest, "lease": LEASE}
    return await connection.scalar(text(_LEASE_SNAPSHOT), values) is not None


async def lease_objects(
    connection: AsyncConnection, tenant: str, names: Collection[str]
) -> frozenset[str]:
    """Keep objects that were stored before for an upload; return those that are there."""
    values = {"tenant": tenant, "names": list(names), "lease": LEASE}
    return frozenset(await connection.scalars(text(_LEASE_OBJECTS), values))


async def announce_objects(
    connection: AsyncConnection, tenant: str, sizes: Mapping[str, int]
) -> None:
    """Put objects on record that are about to be stored: whatever happens, they are swept."""
    await connection.execute(
        text(_ANNOUNCE),
        {
            "tenant": tenant, "names": list(sizes), "sizes": list(sizes.values()),
            "lease": LEASE,
        },
    )  # fmt: skip


async def store_snapshot(
    database: Database,
    store: ArtifactStore,
    tenant: str,
    snapshot: Snapshot,
    *,
    anew: bool = False,
) -> None:
    """Store a snapshot whose objects are stored, and put it on record; nothing where it is.
    With `anew` what is stored is replaced by it, since it is damaged.

    Under a lock: of two equal ones the first is stored, and what the store has is what is on
    record. Raises StaleError where one of its objects, or an older one like it, is being removed:
    another try helps. Raises StoreError.
    """
    values = {
        "tenant": tenant, "digest": snapshot.digest, "files": len(snapshot.files),
        "bytes": snapshot.bytes, "lease": LEASE, "objects": sorted(snapshot.objects),
    }  # fmt: skip
    content = await in_thread(partial(content_of, snapshot))
    longer = timedelta(seconds=len(content) / _SLOWEST)
    try:
        async with database.transaction(longer=longer) as connection:
            await connection.execute(text(_LOCK), values)
            if await lease_snapshot(connection, tenant, snapshot.digest):
                if not anew:
                    return
                await connection.execute(text(_FORGET_OBJECTS), values)
            else:
                await connection.execute(text(_RECORD), values)
            await connection.execute(text(_RECORD_OBJECTS), values)
            await failpoint("upload.before-snapshot")
            await in_thread(lambda: store.put_snapshot(tenant, snapshot.digest, content))
            await failpoint("upload.before-commit")
    except IntegrityError as error:
        raise StaleError(f"what is stored goes at this moment: {error.orig}") from error


async def hold_snapshot(
    connection: AsyncConnection, tenant: str, digest: str, holder: str
) -> None:
    """Keep a snapshot for a schedule. Raises StaleError where it is not stored."""
    values = {"tenant": tenant, "digest": digest, "holder": holder}
    try:
        await connection.execute(text(_HOLD), values)
    except IntegrityError as error:
        raise StaleError(str(error.orig)) from error


async def release_snapshots(connection: AsyncConnection, holder: str) -> None:
    """Keep nothing for a schedule any more."""
    await connection.execute(
        text("DELETE FROM snapshot_holders WHERE holder = :holder"), {"holder": holder}
    )


async def sweep_artifacts(
    database: Database, store: ArtifactStore, keep_for: timedelta
) -> tuple[int, int]:
    """Remove what nothing needs: snapshots first, then objects; return how many of each.

    What is marked can be counted on no more; it is removed under a lock, so that of two sweeps
    one does it. A sweep that is cut off is gone on with by the next. Raises StoreError and
    UnavailableError.
    """
    async with database.transaction() as connection:
        await connection.execute(text(_MARK_SNAPSHOTS), {"keep_for": keep_for, "most": _AT_ONCE})
    await failpoint("sweep_artifacts.marked")
    async with database.transaction() as connection:
        snapshots = (await connection.execute(text(_GOING_SNAPSHOTS))).mappings().all()
        for row in snapshots:
            await in_thread(partial(store.remove_snapshot, row["tenant"], row["digest"]))
            await connection.execute(text(_DELETE_SNAPSHOT), dict(row))
        await failpoint("sweep_artifacts.before-commit")
    async with database.transaction() as connection:
        await connection.execute(text(_MARK_OBJECTS), {"most": _AT_ONCE})
    async with database.transaction() as connection:
        objects = (await connection.execute(text(_GOING_OBJECTS))).mappings().all()
        for row in objects:
            await in_thread(partial(store.remove, row["tenant"], row["name"]))
            await connection.execute(text(_DELETE_OBJECT), dict(row))
    return len(snapshots), len(objects)


async def sweep_outputs(database: Database, outputs: OutputStore, keep_for: timedelta) -> int:
    """Remove the outputs of jobs that ended longer ago, and that no job reads; return of how many.

    Raises StoreError and UnavailableError.
    """
    free = f"id NOT IN ({_READ_BY_OTHERS})"
    return await sweep_checkpoints(database, outputs, keep_for, free)


async def keep_sweeping(
    database: Database, store: ArtifactStore, keep_for: timedelta, keep_outputs_for: timedelta
) -> None:
    """Sweep again and again until cancelled."""
    outputs = OutputStore(store.url)
    while True:
        try:
            if jobs := await sweep_outputs(database, outputs, keep_outputs_for):
                _log.info("removed the outputs of %d ended jobs", jobs)
            snapshots, objects = await sweep_artifacts(database, store, keep_for)
            if snapshots or objects:
                _log.info("removed %d snapshots and %d objects", snapshots, objects)
        except Exception as error:  # the next sweep is never far
            _log.warning("artifacts cannot be swept now: %s", error)
        await asyncio.sleep(SWEEP_EVERY.total_seconds())


_COUNT_ON_SNAPSHOT = """
    SELECT true FROM snapshots
     WHERE tenant = :tenant AND digest = :digest AND NOT going FOR SHARE
"""

_READ_BY_OTHERS = """
    SELECT substr(d.value->>'from', 5)
      FROM jobs r
     CROSS JOIN LATERAL jsonb_each(
           CASE jsonb_typeof(r.spec->'data') WHEN 'object' THEN r.spec->'data' END) d
     WHERE r.ended_at IS NULL AND d.value->>'from' LIKE 'job:%'
    UNION
    SELECT d.job_id FROM dag_jobs d JOIN dags g ON g.id = d.dag_id
     WHERE g.ended_at IS NULL AND d.job_id IS NOT NULL
"""
"""Jobs whose outputs jobs read that have not ended, or may in their DAG."""

_OF_TENANT = """
    SELECT id, ended_at IS NOT NULL AS ended FROM jobs WHERE tenant = :tenant AND id = ANY(:ids)
"""

_LEASE_SNAPSHOT = """
    UPDATE snapshots
       SET leased_until = greatest(leased_until, clock_timestamp() + CAST(:lease AS interval))
     WHERE tenant = :tenant AND digest = :digest AND NOT going
    RETURNING digest
"""

_LEASE_OBJECTS = """
    WITH wanted AS (
        SELECT tenant, name FROM artifact_objects
         WHERE tenant = :tenant AND name = ANY (:names) AND NOT going
         ORDER BY name FOR UPDATE
    )
    UPDATE artifact_objects o
       SET leased_until = greatest(leased_until, clock_timestamp() + CAST(:lease AS interval))
      FROM wanted w WHERE o.tenant = w.tenant AND o.name = w.name
    RETURNING o.name
"""

_ANNOUNCE = """
    INSERT INTO artifact_objects (tenant, name, bytes, leased_until)
    SELECT :tenant, o.name, o.bytes, clock_timestamp() + CAST(:lease AS interval)
      FROM unnest(CAST(:names AS text[]), CAST(:sizes AS bigint[])) AS o (name, bytes)
"""

_LOCK = "SELECT pg_advisory_xact_lock(hashtext('snapshots'), hashtext(:tenant || :digest))"

_RECORD = """
    INSERT INTO snapshots (tenant, digest, files, bytes, leased_until)
    VALUES (:tenant, :digest, :files, :bytes, clock_timestamp() + CAST(:lease AS interval))
"""

_FORGET_OBJECTS = "DELETE FROM snapshot_objects WHERE tenant = :tenant AND digest = :digest"

_RECORD_OBJECTS = """
    INSERT INTO snapshot_objects (tenant, digest, object)
    SELECT :tenant, :digest, name FROM unnest(CAST(:objects AS text[])) AS o (name) ORDER BY name
"""

_HOLD = """
    INSERT INTO snapshot_holders (tenant, digest, holder) VALUES (:tenant, :digest, :holder)
    ON CONFLICT DO NOTHING
"""

_MARK_SNAPSHOTS = """
    UPDATE snapshots s SET going = true
      FROM (SELECT tenant, digest FROM snapshots f
             WHERE NOT going AND leased_until < clock_timestamp()
               AND NOT EXISTS (SELECT FROM snapshot_holders h
                                WHERE h.tenant = f.tenant AND h.digest = f.digest)
               AND NOT EXISTS (
                   SELECT FROM jobs j
                    WHERE j.tenant = f.tenant AND j.spec->'code'->>'snapshot' = f.digest
                      AND (j.ended_at IS NULL
                           OR j.ended_at > clock_timestamp() - CAST(:keep_for AS interval)))
               AND NOT EXISTS (
                   SELECT FROM dags d
                    WHERE d.tenant = f.tenant
                      AND (d.ended_at IS NULL
                           OR d.ended_at > clock_timestamp() - CAST(:keep_for AS interval))
                      AND position(f.digest IN d.spec::text) > 0)
             ORDER BY leased_until LIMIT :most FOR UPDATE SKIP LOCKED) free
     WHERE s.tenant = free.tenant AND s.digest = free.digest
"""

_GOING_SNAPSHOTS = """
    SELECT tenant, digest FROM snapshots WHERE going LIMIT 500 FOR UPDATE SKIP LOCKED
"""

_DELETE_SNAPSHOT = """
    DELETE FROM snapshots WHERE tenant = :tenant AND digest = :digest AND going
"""

_MARK_OBJECTS = """
    UPDATE artifact_objects o SET going = true
      FROM (SELECT tenant, name FROM artifact_objects f
             WHERE NOT going AND leased_until < clock_timestamp()
               AND NOT EXISTS (SELECT FROM snapshot_objects s
                                WHERE s.tenant = f.tenant AND s.object = f.name)
             ORDER BY leased_until LIMIT :most FOR UPDATE SKIP LOCKED) free
     WHERE o.tenant = free.tenant AND o.name = free.name
"""

_GOING_OBJECTS = """
    SELECT tenant, name FROM artifact_objects WHERE going LIMIT 500 FOR UPDATE SKIP LOCKED
"""

_DELETE_OBJECT = """
    DELETE FROM artifact_objects WHERE tenant = :tenant AND name = :name AND going
"""
