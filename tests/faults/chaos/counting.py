"""Jobs that count, and save: what they come to must be the same whatever happens to them.

Each step depends on the one before, so a step that is lost, done twice or mixed with another's
state changes the result. And an attempt must not begin before what the store had of the job.
"""

import asyncio
from collections import defaultdict
from typing import Any

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.node.system import boot_clock
from longshore.models.errors import LongshoreError
from longshore.models.job import JobSpec
from longshore.scheduling.checkpoints import whole
from tests.faults.fleet import Fleet
from tests.faults.journal import Journal

POLL_EVERY = 0.5
_FIRST, _FACTOR, _MODULUS = 7, 31, 1_000_003
_WORK = f"""
state=$LONGSHORE_CHECKPOINT_DIR/state
now="0 {_FIRST}"
[ ! -f "$state" ] || read -r now < "$state"
read -r up _ < /proc/uptime
echo "from $LONGSHORE_JOB_ID $LONGSHORE_ATTEMPT ${{now% *}} $up" >> "$JOURNAL/steps"
save() {{
  echo "$now" > "$state.draft" && mv "$state.draft" "$state" &&
    echo "saved, step ${{now% *}}" >> "$LONGSHORE_SAVED"
}}
trap 'save; exit 143' TERM
while [ "${{now% *}}" -lt "$STEPS" ]; do
  sleep 0.1
  step=$((${{now% *}} + 1))
  now="$step $(((${{now#* }} * {_FACTOR} + step) % {_MODULUS}))"
  [ $((step % 5)) -ne 0 ] || save
done
echo "result $LONGSHORE_JOB_ID $LONGSHORE_ATTEMPT ${{now#* }} 0" >> "$JOURNAL/steps"
"""


def counting_job(journal: Journal, name: str, steps: int, **fields: Any) -> JobSpec:
    """Return a job that counts to `steps`, ten a second, and saves at every fifth."""
    checkpoint = {"folder": "saves", "grace": 3, "keep": 3}
    return journal.job(name, work=_WORK, env={"STEPS": steps}, checkpoint=checkpoint, **fields)


class Counting:
    """What counting jobs were asked for, and what the store had of them at which time."""

    def __init__(self, journal: Journal, store: CheckpointStore) -> None:
        self._steps_file = journal.folder / "steps"
        self._store = store
        self._asked: dict[str, int] = {}
        self._stored: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        """Seconds since boot, and the step of the newest checkpoint, when that was new."""
        self.damaged: set[str] = set()
        """Jobs of which a stored checkpoint was damaged: they may go on from an older one."""

    def add(self, job_id: str, steps: int) -> None:
        self._asked[job_id] = steps

    def jobs(self) -> list[str]:
        return list(self._asked)

    def saw(self, job_id: str, step: int, at: float) -> None:
        """Note that the store had a checkpoint of this step, so many seconds after boot."""
        known = self._stored[job_id]
        if not known or known[-1][1] < step:
            known.append((at, step))

    def whole_ones(self, job_id: str) -> int:
        """Return how many whole checkpoints of a job are stored; 0 where the store is away."""
        try:
            return len(whole(self._store.names(job_id)))
        except LongshoreError:
            return 0

    async def keep_looking(self) -> None:
        """Look what the store has, again and again, until cancelled."""
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(POLL_EVERY)  # samples over time, until cancelled

    def violations(self) -> list[str]:
        """Return wrong results, and attempts that began before what was stored."""
        problems: list[str] = []
        results: dict[str, str] = {}
        for line in self._lines():
            word, job_id, attempt, value, at = line.split()
            if word == "result":
                results[job_id] = value
                continue
            stored = [step for when, step in self._stored[job_id] if when < float(at)]
            if job_id not in self.damaged and int(value) < max(stored, default=0):
                problems.append(
                    f"attempt {attempt} of {job_id} went on from step {value}, and step "
                    f"{max(stored)} was stored"
                )
        for job_id, value in results.items():
            if value != str(result_of(self._asked[job_id])):
                problems.append(f"{job_id} came to {value}, not {result_of(self._asked[job_id])}")
        return problems

    def resumed(self) -> int:
        """Return how many attempts went on from a checkpoint."""
        return sum(line.startswith("from") and line.split()[3] != "0" for line in self._lines())

    def _look(self) -> None:
        for job_id in self.jobs():
            try:
                newest = self._store.newest(job_id)
            except LongshoreError:
                continue  # it is away: that is one of the faults
            if newest and newest.step:
                self.saw(job_id, newest.step, boot_clock())

    def _lines(self) -> list[str]:
        return self._steps_file.read_text().splitlines() if self._steps_file.exists() else []


def counting_of(fleet: Fleet) -> Counting:
    """Return what watches the counting jobs of a fleet."""
    store = CheckpointStore(fleet.stack.settings.resolve_checkpoint_store())
    return Counting(fleet.journal, store)


def result_of(steps: int) -> int:
    """Return what a job comes to that counts so far and is not disturbed."""
    value = _FIRST
    for step in range(1, steps + 1):
        value = (value * _FACTOR + step) % _MODULUS
    return value
