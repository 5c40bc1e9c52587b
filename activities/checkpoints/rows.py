"""What the checkpoint store says of jobs: observed into the database, listed, and cleared up."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import RowMapping, text
from temporalio import activity

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.database import Database
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import wall_clock
from longshore.activities.node.publisher import in_thread
from longshore.activities.placements import ATTAINED
from longshore.models.base import Frozen
from longshore.models.checkpoint import (
    CheckpointInfo,
    CheckpointsRequest,
    CheckpointsSeen,
    Manifest,
    info_of,
)
from longshore.models.errors import DamagedError, StoreError, UnavailableError
from longshore.scheduling.checkpoints import gathered

POLL_EVERY = timedelta(minutes=1)
"""How often a control worker looks at all pools by itself."""

_log = logging.getLogger(__name__)


class StoredCheckpoints(Frozen):
    """What is stored of one job."""

    job_id: str
    checkpoints: tuple[CheckpointInfo, ...]
    """Newest first, whole or not."""
    damaged: tuple[str, ...] = ()
    """Manifests that cannot be used."""


class CheckpointActivities:
    """Observes the checkpoint store for the jobs of a pool."""

    def __init__(self, database: Database, store: CheckpointStore) -> None:
        self._database = database
        self._store = store
        self._away_since: datetime | None = None

    @activity.defn
    @reports_errors
    async def observe_checkpoints(self, request: CheckpointsRequest) -> CheckpointsSeen:
        """Store the newest whole checkpoint of each open job of a pool, and return them by job.

        Only jobs with a contract that were placed once are looked at, and only manifests that
        are not in the database yet are read. With a store that is away the answer is what the
        database knows, and says so. Raises UnavailableError for the database alone.
        """
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(_OPEN), {"pool": request.pool})
            known = {row["id"]: _info(row) for row in rows.mappings()}
        try:
            seen = await asyncio.gather(*(self._look(*each) for each in known.items()))
        except StoreError as error:
            self._away_since = self._away_since or wall_clock()
            stale = tuple(info for info in known.values() if info is not None)
            return CheckpointsSeen(newest=stale, away_since=self._away_since, reason=str(error))
        self._away_since = None
        newest = tuple(info for info in seen if info is not None)
        await self._keep([info for info in newest if info != known[info.job_id]])
        return CheckpointsSeen(newest=newest)

    async def _look(self, job_id: str, last: CheckpointInfo | None) -> CheckpointInfo | None:
        return await in_thread(partial(self._newest, job_id, last))

    def _newest(self, job_id: str, last: CheckpointInfo | None) -> CheckpointInfo | None:
        """Return the newest whole checkpoint of a job whose manifests can be read. Blocks."""
        for names in gathered(self._store.names(job_id)):
            if len(names) < names[0].ranks:
                continue
            if last is not None and last.order == names[0].order:
                return last
            try:
                return info_of(tuple(self._store.manifest(job_id, name) for name in names))
            except DamagedError as error:
                _log.warning("%s", error)
        return None

    async def _keep(self, infos: Sequence[CheckpointInfo]) -> None:
        if infos:
            await keep_seen(self._database, infos)


async def keep_seen(database: Database, infos: Sequence[CheckpointInfo]) -> None:
    """Put checkpoints on record, and what their jobs have attained by them."""
    async with database.transaction() as connection:
        rows = [info.model_dump(exclude={"published", "whole"}) for info in infos]
        await connection.execute(text(_KEEP), rows)
        ids = [info.job_id for info in infos]
        await connection.execute(text(_RAISE_ATTAINED), {"ids": ids})


async def keep_observing(database: Database, store: CheckpointStore, keep_for: timedelta) -> None:
    """Observe every pool, and clear up, again and again until cancelled."""
    activities = CheckpointActivities(database, store)
    while True:
        try:
            async with database.transaction() as connection:
                pools = list(await connection.scalars(text("SELECT name FROM pools ORDER BY 1")))
            seen = [
                await activities.observe_checkpoints(CheckpointsRequest(pool=p)) for p in pools
            ]
            if away := next((each.reason for each in seen if each.away_since), None):
                _log.warning("%s", away)
            elif cleared := await sweep_checkpoints(database, store, keep_for):
                _log.info("removed the stored checkpoints of %d ended jobs", cleared)
        except Exception as error:  # the next look is never far
            _log.warning("checkpoints cannot be looked at now: %s", error)
        await asyncio.sleep(POLL_EVERY.total_seconds())


async def sweep_checkpoints(
    database: Database, store: CheckpointStore, keep_for: timedelta, only: str = "true"
) -> int:
    """Delete what is stored of jobs that ended longer ago; return of how many. `only` is a
    condition on the row of a job.

    Jobs that the database does not know are left alone. Raises StoreError and UnavailableError.
    """
    stored = await in_thread(store.jobs)
    if not stored:
        return 0
    async with database.transaction() as connection:
        over = list(
            await connection.scalars(
                text(f"{_ENDED} AND {only}"),
                {"ids": list(stored), "keep_for": keep_for},
            )
        )
    for job_id in over:
        await in_thread(partial(store.delete, job_id))
    return len(over)


def stored_checkpoints(store: CheckpointStore, job_id: str) -> StoredCheckpoints:
    """Return what is stored of a job, whole or not. Blocks. Raises StoreError."""
    found: list[CheckpointInfo] = []
    damaged: list[str] = []
    for names in gathered(store.names(job_id)):
        manifests: list[Manifest] = []
        for name in names:
            try:
                manifests.append(store.manifest(job_id, name))
            except DamagedError as error:
                damaged.append(str(error))
        if manifests:
            found.append(info_of(tuple(manifests)))
    return StoredCheckpoints(job_id=job_id, checkpoints=tuple(found), damaged=tuple(damaged))


async def checkpoints_of(url: str, job_id: str, within: float = 10.0) -> StoredCheckpoints:
    """Return what the store at `url` has of a job. Raises StoreError and UnavailableError."""
    reading = in_thread(partial(stored_checkpoints, CheckpointStore(url), job_id))
    try:
        return await asyncio.wait_for(reading, within)
    except TimeoutError:
        raise UnavailableError(
            f"the checkpoint store did not answer within {within:g} s: check the setting "
            "checkpoint_store"
        ) from None


def _info(row: RowMapping) -> CheckpointInfo | None:
    if row["number"] is None:
        return None
    values = {key: value for key, value in row.items() if key not in ("id", "job_id")}
    return CheckpointInfo(job_id=row["id"], **values, published=True, whole=True)


_ENDED = "SELECT id FROM jobs WHERE id = ANY(:ids) AND ended_at < now() - :keep_for"

_OPEN = """
    SELECT j.id, c.*
      FROM jobs j
      LEFT JOIN LATERAL (SELECT * FROM job_checkpoints WHERE job_id = j.id
                          ORDER BY attempt DESC, number DESC LIMIT 1) c ON true
     WHERE j.pool = :pool AND j.ended_at IS NULL
       AND j.spec #>> '{checkpoint,folder}' IS NOT NULL
       AND coalesce(j.spec #>> '{checkpoint,store}', 'true') = 'true'
       AND EXISTS (SELECT FROM placements WHERE job_id = j.id)
     ORDER BY j.id
"""

_RAISE_ATTAINED = f"""
    UPDATE queue q SET attained = n.ran, can_stop = q.can_stop OR n.preemptible
      FROM (SELECT p.job_id, p.attempt, {ATTAINED} AS ran,
                   j.spec -> 'preemptible' IS DISTINCT FROM 'false'::jsonb AS preemptible
              FROM placements p JOIN jobs j ON j.id = p.job_id
             WHERE p.rank = 0 AND p.job_id = ANY(:ids)) n
     WHERE q.job_id = n.job_id AND q.attempt = n.attempt + 1 AND n.ran > q.attained
"""
"""A job that was stopped waits again before its last save is seen."""

_KEEP = """
    INSERT INTO job_checkpoints (job_id, attempt, number, step, ranks, bytes, write_seconds,
                                 saved_at, simulated)
    VALUES (:job_id, :attempt, :number, :step, :ranks, :bytes, :write_seconds,
            -- The clock of its node may be ahead.
            least(CAST(:saved_at AS timestamptz), clock_timestamp()), :simulated)
    ON CONFLICT (job_id, attempt, number) DO UPDATE
       SET step = excluded.step, ranks = excluded.ranks, bytes = excluded.bytes,
           write_seconds = excluded.write_seconds, saved_at = excluded.saved_at
"""
