"""The queue of a pool as this process read it last: the next cycle reads what changed since.

By the same marks as the nodes (`activities.pool_cache`): a row carries the transaction that wrote
it last, and of one that was removed `queue_left` has the number. Of a row whose request did not
change only the stored wait reason is read: other cycles write that, also of other workers.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.explanations import STORED_COLUMNS, stored_of
from longshore.activities.queue_entries import QueueEntry, entry_of
from longshore.activities.snapshot import SET_ASIDE_FOR, WAITS_SINCE
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import PlacementKind
from longshore.models.pool import LEAST_INTERVAL
from longshore.scheduling.guarantee import may_come_first
from longshore.scheduling.long_queue import LongQueue, Part
from longshore.scheduling.reason_updates import TELL_AT_MOST, Stored, has_to_hear


class WaitingJobs(NamedTuple):
    """What is to be planned, by job."""

    entries: dict[str, QueueEntry]
    """Without jobs that are held, and without those that were set aside lately."""
    unreadable: dict[str, str]
    """Jobs that cannot be read, with why: another version took them."""
    stored: dict[str, Stored]
    """What is stored of why each waits; of all that are in the queue."""
    set_aside: int = 0
    """How many were set aside lately."""
    unheard: tuple[str, ...] = ()
    """Which of these have not heard that."""
    again_at: datetime | None = None
    """When the first of these is tried again."""

    def again_in(self, now: datetime) -> timedelta | None:
        """Return after which time a cycle tries one again; None where none is set aside."""
        if self.again_at is None:
            return None
        return max(self.again_at - now, timedelta(0)) + LEAST_INTERVAL


NONE = WaitingJobs({}, {}, {})


class QueueCache:
    """The rows of one pool's queue, changed a few at a time."""

    def __init__(self) -> None:
        self._entries: dict[str, QueueEntry] = {}
        self._unreadable: dict[str, str] = {}
        self._stored: dict[str, Stored] = {}
        self._aside: set[str] = set()
        self._unanswered: set[str] = set()
        """Jobs of which no cycle has said anything."""
        self._untold: dict[str, None] = {}
        """Jobs that have not heard what was said of them, in the order of that."""
        self._with_start: set[str] = set()
        """Jobs of which a start was said."""
        self._turns: dict[str, None] = {}
        """Jobs that can be planned, in the order in which they are to be told anew."""
        self._long = LongQueue()
        self._versions: dict[str, int] = {}

    @property
    def versions(self) -> Mapping[str, int]:
        """Of each row, the transaction whose version of it this is."""
        return self._versions

    def waiting(self, now: datetime) -> WaitingJobs:
        """Return what is to be planned at `now`: it stays as it is when this changes."""
        entries, unreadable = dict(self._entries), dict(self._unreadable)
        resting = {job_id for job_id in self._resting(now) if not self._is_held(job_id)}
        at = [then for job_id in resting if (then := self._stored[job_id].at) is not None]
        again_at = min(at) + SET_ASIDE_FOR if at else None
        for job_id in resting:
            entries.pop(job_id, None)
            unreadable.pop(job_id, None)
        unheard = tuple(job_id for job_id in self._untold if job_id in resting)
        return WaitingJobs(
            entries, unreadable, dict(self._stored), len(resting), unheard, again_at
        )

    def _is_held(self, job_id: str) -> bool:
        return job_id not in self._entries and job_id not in self._unreadable

    def to_plan(
        self,
        open_gpus: int,
        gpus: int,
        policy: PackingPolicy,
        now: datetime,
        *,
        share: float,
        whole: bool = False,
        later: int = 0,
        nodes: Iterable[Node] = (),
    ) -> Part | None:
        """Return the jobs of `waiting` without which a plan would be another one, of which those
        are to be told why they wait that have no answer yet, that were given a start or have not
        heard their answer, and of all others a `share`; None where all are. With the `whole` all
        jobs may start; so many without a start kept are to be told when they may start `later`.
        The `nodes` of the pool say who may start on any of them."""
        resting = self._resting(now)
        to_hear = (job for job in self._untold if has_to_hear(self._stored[job], now))
        hear = itertools.islice((job for job in to_hear if job in self._entries), TELL_AT_MOST)
        in_turn = (job for job in self._turns if job not in resting)
        turn = itertools.islice(in_turn, math.ceil(share * len(self._turns)))
        wanted = {*self._unanswered, *self._with_start, *hear, *turn}
        return self._long.to_plan(
            open_gpus, gpus, policy, now, wanted=wanted, without=resting, whole=whole,
            later=later, may_start=may_come_first(policy, nodes),
        )  # fmt: skip

    def to_make_room(
        self,
        gpus_to_come: int,
        gpus: int,
        policy: PackingPolicy,
        now: datetime,
        wanted: Collection[str],
        nodes: Iterable[Node] = (),
    ) -> list[JobRequest] | None:
        """Return the jobs of `waiting` for which others may be stopped, with the `wanted` ones,
        where at most `gpus_to_come` are free or freed for them; None where that is all."""
        part = self._long.to_plan(
            gpus_to_come, gpus, policy, now, wanted=wanted, without=self._resting(now),
            may_start=may_come_first(policy, nodes),
        )  # fmt: skip
        return part and part.jobs

    def were_told(self, job_ids: Iterable[str]) -> None:
        """Note that these jobs were just told why they wait: the others come first now."""
        for job_id in job_ids:
            if job_id in self._turns:
                del self._turns[job_id]
                self._turns[job_id] = None

    def _resting(self, now: datetime) -> set[str]:
        """Return the jobs that were set aside lately."""
        at = {job_id: self._stored[job_id].at for job_id in self._aside}
        return {
            job_id
            for job_id, then in at.items()
            if then is not None and then >= now - SET_ASIDE_FOR
        }

    def remove(self, job_ids: Iterable[str]) -> None:
        """Forget these jobs, where they are known."""
        for job_id in job_ids:
            self._forget_request(job_id)
            self._stored.pop(job_id, None)
            self._versions.pop(job_id, None)
            self._aside.discard(job_id)
            self._unanswered.discard(job_id)
            self._with_start.discard(job_id)
            self._untold.pop(job_id, None)

    def put(self, row: Mapping[Any, Any]) -> None:
        """Take in a row as it is now; where its request is not read anew, what is known stays."""
        job_id = row["job_id"]
        stored = self._stored[job_id] = stored_of(row)
        self._versions[job_id] = row["version"]
        if stored.kind is PlacementKind.SET_ASIDE:
            self._aside.add(job_id)
        else:
            self._aside.discard(job_id)
        if stored.kind is None:
            self._unanswered.add(job_id)
        else:
            self._unanswered.discard(job_id)
        if stored.start is None:
            self._with_start.discard(job_id)
        else:
            self._with_start.add(job_id)
        if stored.kind is not None and stored.told != stored.words:
            self._untold[job_id] = None
        else:
            self._untold.pop(job_id, None)
        if not row["anew"]:
            return
        self._forget_request(job_id)
        if row["held"]:  # nobody plans it
            return
        entry = entry_of(row)
        if isinstance(entry, QueueEntry):
            self._entries[job_id] = entry
            self._turns[job_id] = None
            self._long.put(entry.request)
        else:
            self._unreadable[job_id] = entry

    def _forget_request(self, job_id: str) -> None:
        self._entries.pop(job_id, None)
        self._unreadable.pop(job_id, None)
        self._turns.pop(job_id, None)
        self._long.remove(job_id)


async def read_all(connection: AsyncConnection, pool: str) -> QueueCache:
    """Return the pool's queue as the snapshot of `connection` shows it."""
    cached = QueueCache()
    for row in (await connection.execute(text(_ALL), {"pool": pool})).mappings():
        cached.put(row)
    return cached


async def read_changed(
    connection: AsyncConnection, pool: str, cached: QueueCache, since: int
) -> None:
    """Bring `kept` to what the snapshot of `connection` shows.

    In the snapshot that it shows yet, all transactions with numbers below `since` had ended.
    """
    values: dict[str, object] = {"pool": pool, "since": since}
    left = set(await connection.scalars(text(_LEFT), values))
    # A job that left may have come again: what is there now is read anew, in full.
    cached.remove(left)
    values["left"] = list(left)
    for row in (await connection.execute(text(_CHANGED), values)).mappings():
        cached.put(row)


async def differences(
    connection: AsyncConnection, pool: str, cached: QueueCache
) -> frozenset[str]:
    """Return the jobs of which `cached` has another version than the snapshot of `connection`.

    By the version of each row, which no trigger of ours has a hand in.
    """
    rows = await connection.execute(text(_VERSIONS), {"pool": pool})
    there = {(job_id, version) for job_id, version in rows}
    return frozenset(job_id for job_id, _ in there ^ cached.versions.items())


async def trim_left(connection: AsyncConnection, pool: str) -> None:
    """Forget which jobs left a while ago, and note that: whoever has not read it reads all."""
    await connection.execute(text(_TRIM), {"pool": pool})


async def note_length(
    connection: AsyncConnection, pool: str, length: int, snapshot: str, server: str
) -> None:
    """Note that the pool's queue had so many rows in a snapshot of a run of the server: who counts
    counts from there."""
    values = {"pool": pool, "length": length, "snapshot": snapshot, "server": server}
    await connection.execute(text(_COUNTED), values)


_COUNTED = """
    UPDATE pools SET counted = :length, counted_in = :snapshot, counted_on = :server
     WHERE name = :pool
"""

_VERSION = "CAST(CAST(xmin AS text) AS bigint) AS version"

_COLUMNS = (
    f"job_id, held, queued_at, submitted_at, {WAITS_SINCE} AS waits_since, attained, can_stop,"
    f" duration_known, learnt, tenant, {_VERSION},"
    f" {STORED_COLUMNS}"
)

_ALL = f"SELECT {_COLUMNS}, request, true AS anew FROM queue WHERE pool = :pool"

_LEFT = "SELECT job_id FROM queue_left WHERE pool = :pool AND changed_in >= :since"

_CHANGED = f"""
    SELECT {_COLUMNS}, CASE WHEN anew THEN request END AS request, anew
      FROM queue, LATERAL (SELECT changed_in >= :since OR job_id = ANY(:left)) AS a (anew)
     WHERE pool = :pool AND written_in >= :since
     UNION ALL
    SELECT {_COLUMNS}, request, true
      FROM queue
     WHERE pool = :pool AND written_in < :since AND job_id = ANY(:left)
"""

_VERSIONS = f"SELECT job_id, {_VERSION} FROM queue WHERE pool = :pool"

_TRIM = """
    WITH trimmed AS (
        DELETE FROM queue_left
         WHERE pool = :pool AND left_at < clock_timestamp() - interval '15 minutes'
           AND changed_in < CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)
        RETURNING changed_in
    )
    UPDATE pools SET left_trimmed = greatest(left_trimmed, highest)
      FROM (SELECT max(changed_in) AS highest FROM trimmed) AS t
     WHERE name = :pool AND highest IS NOT NULL
"""
"""What is kept is read anew after ten minutes: of these hardly anybody has use."""
