"""Removes old runs of a node, with their spool files and folders."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.service import RPCError

from longshore.activities.failpoints import wall_clock
from longshore.activities.node.code_folder import remove_unpacked
from longshore.activities.node.removal import remove_tree
from longshore.activities.node.runs import RunRecord, RunStore
from longshore.models.placement import PlacementKey

PRUNE_EVERY = timedelta(minutes=1)
STUCK_AGAIN = timedelta(hours=1)
"""Between two tries to remove what cannot be removed, as files of another user."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Keeping:
    """How much a node keeps of runs that have ended: what is over either limit may go."""

    runs: int
    age: timedelta


class Pruner:
    """Prunes the folders of one agent.

    A run goes only when its report cannot be asked for again: when its job is over, or a newer
    attempt of its job was here. One whose logs did not reach the log store goes by age alone.
    With the last run of a job that is over goes the job's private folder, unless the job keeps
    checkpoints there.
    """

    def __init__(
        self, folder: Path, keeping: Keeping, is_over: Callable[[str], Awaitable[bool]]
    ) -> None:
        """`folder` is the agent's work folder; `is_over` says whether a job (by id) is over."""
        self._store = RunStore(folder / "runs")
        self._jobs = folder / "jobs"
        self._keeping = keeping
        self._is_over = is_over
        self._stuck: dict[PlacementKey, datetime] = {}
        """Runs that cannot be removed, and when that was tried last."""

    async def keep_pruning(self, every: timedelta = PRUNE_EVERY) -> None:
        """Prune again and again, until cancelled; a server that is away is asked next time."""
        while True:
            try:
                if pruned := await self.prune(wall_clock()):
                    _log.info("removed what was left of %d old runs", pruned)
            except (RPCError, OSError) as error:
                _log.warning("old runs cannot be removed now: %s", error)
            await asyncio.sleep(every.total_seconds())

    async def prune(self, now: datetime) -> int:
        """Remove what may go at `now`; return how many runs that were.

        What cannot be removed is told once, and tried again later. Raises what `is_over` raises,
        and OSError where the records cannot be read.
        """
        records = await asyncio.to_thread(list, self._store.all())
        newest: dict[str, int] = {}
        left = Counter(record.owner for record in records)
        for record in records:
            newest[record.job_id] = max(record.attempt, newest.get(record.job_id, 0))
        pruned = 0
        for record in self._surplus(records, now):
            if now - self._stuck.get(record.key, _LONG_AGO) < STUCK_AGAIN:
                continue
            # The folder of a slot of an array outlives its batches.
            last = record.attempt == newest[record.job_id] and (
                record.folder is None or left[record.owner] == 1
            )
            if last and not await self._is_over(record.owner):
                continue
            try:
                await asyncio.to_thread(self._remove, record)
            except OSError as error:
                if record.key not in self._stuck:
                    _log.warning("what is left of %s cannot be removed: %s", record.key, error)
                self._stuck[record.key] = now
                continue
            self._stuck.pop(record.key, None)
            left[record.owner] -= 1
            pruned += 1
        return pruned

    def _surplus(self, records: Iterable[RunRecord], now: datetime) -> list[RunRecord]:
        """Return the finished runs that are over a limit, oldest first."""
        finished = [record for record in records if record.report is not None]
        finished.sort(key=_ended_at)
        too_many = max(len(finished) - self._keeping.runs, 0)
        return [
            record
            for place, record in enumerate(finished)
            if now - _ended_at(record) > self._keeping.age
            or (place < too_many and not _lacks_logs(record))
        ]

    def _remove(self, record: RunRecord) -> None:
        folder = self._jobs / record.owner
        # Before its last record goes: nothing else says that the folder is to go.
        if self._store.is_last(record):
            if not record.checkpoints:
                with contextlib.suppress(FileNotFoundError):
                    remove_tree(folder)
            elif record.code:
                remove_unpacked(folder)
        self._store.remove(record.key)


def _ended_at(record: RunRecord) -> datetime:
    return (record.report and record.report.ended_at) or record.claimed_at


def _lacks_logs(record: RunRecord) -> bool:
    return bool(record.report and record.report.log_error)
