"""How long a job of a high class waits for one that has to save and leave, on a real stack.

Run by `python -m benchmarks.preemption --live`. One node of eight simulated GPUs; a job of class 1
holds all of them, and saves for S seconds when it is asked to stop. A job of class 9 is submitted;
what counts is the time from just before that until its process starts, less S. The job of class 1
then goes on, and the next round begins once its process runs.
"""

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import text

from benchmarks.installation import installed
from longshore.activities.database import Database
from longshore.activities.node.runs import RunStore
from longshore.client.api import Longshore
from longshore.models.job import CheckpointContract, JobSpec
from longshore.models.job_status import JobState
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPolicy
from longshore.models.settings import Settings

STEPS = ("decided", "asked", "saved", "gone", "freed", "placed", "started")
"""In this order; each is measured from the one before it, the first from the submit."""
LONGEST_WAIT = 60.0
GPUS = 8


@dataclass(frozen=True)
class Round:
    """One preemption; seconds of each step since the one before."""

    saves_for: float
    steps: dict[str, float]

    @property
    def beside_the_save(self) -> float:
        """Seconds from the submit to the start, less those that the other job saved for."""
        return sum(self.steps.values()) - self.saves_for


@dataclass(frozen=True)
class LiveRow:
    """All rounds with one time of saving; medians, in seconds."""

    saves_for: float
    rounds: int
    start: float
    beside_the_save: float
    worst: float
    """The most that any round took beside the save."""
    steps: dict[str, float]


async def measure_live(saves: Sequence[float], rounds: int, megabytes: int) -> list[LiveRow]:
    """Return a row for each time of saving; each save writes so many megabytes."""
    with installed({"node-1": f"{GPUS}xH100-80GB"}) as stack:
        settings = Settings(state_dir=stack.folder)
        api = await Longshore.connect(settings)
        database = Database(settings.resolve_database_url(), pool_size=1)
        try:
            await api.set_pool(_at_once())
            bench = _Bench(stack.folder, api, database, megabytes)
            return [await bench.row(seconds, rounds) for seconds in saves]
        finally:
            await database.close()
            await api.close()


def print_live(rows: Sequence[LiveRow]) -> None:
    print(f"{'saves for':>9} {'rounds':>6} {'start':>7} {'less save':>9} {'worst':>6}  of that: "
          + " ".join(f"{step:>7}" for step in STEPS))  # fmt: skip
    for row in rows:
        print(
            f"{row.saves_for:>7.1f} s {row.rounds:>6} {row.start:>5.2f} s "
            f"{row.beside_the_save:>7.2f} s {row.worst:>5.2f}s           "
            + " ".join(f"{row.steps[step]:>7.2f}" for step in STEPS)
        )


class _Bench:
    def __init__(self, folder: Path, api: Longshore, database: Database, megabytes: int) -> None:
        self._folder = folder
        self._api = api
        self._database = database
        self._megabytes = megabytes
        self._runs = RunStore(folder / "agents" / "node-1" / "runs")

    async def row(self, saves_for: float, rounds: int) -> LiveRow:
        journal = self._folder / f"journal-{saves_for}"
        victim = (await self._api.submit(_victim(saves_for, self._megabytes, journal))).job_id
        found = [
            await self._round(victim, number, saves_for, journal)
            for number in range(1, rounds + 1)
        ]
        await self._api.cancel(victim)
        await self._api.wait(victim)
        beside = [each.beside_the_save for each in found]
        return LiveRow(
            saves_for=saves_for,
            rounds=rounds,
            start=statistics.median(each + saves_for for each in beside),
            beside_the_save=statistics.median(beside),
            worst=max(beside),
            steps={step: statistics.median(each.steps[step] for each in found) for step in STEPS},
        )

    async def _round(self, victim: str, attempt: int, saves_for: float, journal: Path) -> Round:
        await _written(journal, attempt, "began")
        began = time.time()
        urgent = (await self._api.submit(_urgent())).job_id
        result = await self._api.wait(urgent)
        if result.state is not JobState.SUCCEEDED:
            sys.exit(f"{urgent} ended as {result.state}: {result.message}")
        moments = [
            began,
            *await self._decided(victim, attempt),
            await _written(journal, attempt, "asked"),
            await _written(journal, attempt, "saved"),
            self._said(self._runs.end(PlacementKey(job_id=victim, attempt=attempt)), "ended_at"),
            *await self._freed_and_placed(victim, attempt, urgent),
            self._said(self._runs.started(PlacementKey(job_id=urgent, attempt=1)), "at"),
        ]
        spans = [later - earlier for earlier, later in itertools.pairwise(moments)]
        return Round(saves_for, dict(zip(STEPS, spans, strict=True)))

    async def _decided(self, victim: str, attempt: int) -> list[float]:
        return await self._times(
            "SELECT decided_at FROM preemptions WHERE job_id = :id AND attempt = :attempt",
            victim, attempt,
        )  # fmt: skip

    async def _freed_and_placed(self, victim: str, attempt: int, urgent: str) -> list[float]:
        freed = "SELECT ended_at FROM placements WHERE job_id = :id AND attempt = :attempt"
        placed = "SELECT placed_at FROM placements WHERE job_id = :id AND attempt = :attempt"
        return [
            *await self._times(freed, victim, attempt), *await self._times(placed, urgent, 1)
        ]  # fmt: skip

    async def _times(self, query: str, job_id: str, attempt: int) -> list[float]:
        async with self._database.transaction() as connection:
            values = {"id": job_id, "attempt": attempt}
            at: datetime = (await connection.execute(text(query), values)).scalar_one()
        return [at.timestamp()]

    def _said(self, said: dict[str, float] | None, word: str) -> float:
        if said is None:
            sys.exit("the agent has stored nothing of a process that ran")
        return said[word]


async def _written(journal: Path, attempt: int, word: str) -> float:
    """Return the time of a line in the journal, once it is there."""
    deadline = time.monotonic() + LONGEST_WAIT
    while (found := _find(journal, attempt, word)) is None:
        if time.monotonic() > deadline:
            sys.exit(f"attempt {attempt} did not say {word!r} within {LONGEST_WAIT:g} s")
        await asyncio.sleep(0.05)
    return found


def _find(journal: Path, attempt: int, word: str) -> float | None:
    for line in journal.read_text().splitlines() if journal.exists() else ():
        match line.split():
            case [number, said, at] if (number, said) == (str(attempt), word):
                return float(at)
            case _:
                pass
    return None


def _at_once() -> PoolSpec:
    """A pool where the same job is preempted again and again."""
    never = timedelta(0)
    policy = PreemptionPolicy(near_end=never, min_run=never, cooldown=never, max_per_hour=1000)
    return PoolSpec(preemption=policy)


def _victim(saves_for: float, megabytes: int, journal: Path) -> JobSpec:
    program = str(Path(__file__).with_name("slow_saver.py"))
    return JobSpec(
        name="saver", gpus=GPUS, priority=1, expected_duration=timedelta(hours=1),
        command=(
            sys.executable, "-I", "-S", program, str(saves_for), str(megabytes), str(journal),
        ),
        checkpoint=CheckpointContract(folder="saved", grace=timedelta(seconds=30)),
    )  # fmt: skip


def _urgent() -> JobSpec:
    return JobSpec(
        name="urgent", gpus=GPUS, priority=9, expected_duration=timedelta(minutes=10),
        command=("true",),
    )  # fmt: skip
