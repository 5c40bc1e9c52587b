"""Many jobs as one in the load: DAGs, arrays and elastic jobs, and what must have come of them.

Each element of an array runs at most once per attempt, and never twice at a time; each job of a
DAG once for what its conditions say, and the DAG ends as a small reference does. Elastic jobs are
ordinary jobs to the other checks, and are resized by a fault.
"""

import random
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

from longshore.models.dag import DagSpec
from longshore.models.dag_view import DagState, StepState
from longshore.models.elements import ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.packing import QueueOrder
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.preemption import PreemptionPolicy
from tests.faults import scenes
from tests.faults.fleet import Fleet
from tests.faults.journal import SAVES, SLEEP, violations
from tests.support.reference_dags import a_random_dag, final_state, final_states

MOST_ELEMENTS = 24
MANY_GROWTHS = 5
"""Growths in place that were asked for, of which one at least has to be seen."""
_ELEMENT = """
say() { read -r up _ < /proc/uptime; \
echo "$1 $LONGSHORE_ARRAY_ID $LONGSHORE_ARRAY_INDEX $LONGSHORE_ELEMENT_ATTEMPT" \
>> "$JOURNAL/elements"; }
exec 9>> "$JOURNAL/$LONGSHORE_ARRAY_ID.$LONGSHORE_ARRAY_INDEX.element"
flock --nonblock 9 || say TWICE
exec 8>> "$JOURNAL/$LONGSHORE_NODE_ID.$CUDA_VISIBLE_DEVICES.gpu"
flock --nonblock 8 || say BUSY
say start
sleep "$SECONDS_TO_RUN"
say end
[ "$LONGSHORE_ARRAY_INDEX" != "$FAILS" ] || exit 3
"""
_PAIR = ("prepare", "train")
_JOINED = "SELECT FROM placements WHERE joined"
_LEFT = """
    SELECT FROM placements p JOIN placements first USING (job_id, attempt)
     WHERE first.rank = 0 AND p.rank > 0 AND p.ended_at < first.ended_at - interval '0.2 s'
       AND p.end_reason IN ('resized', 'node-lost')
"""
_FAILS = f"{SLEEP}\nsay end\nexit 3\n"


class ManyAsOne:
    """The DAGs, arrays and elastic jobs of a run."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.dags: dict[str, tuple[DagSpec, dict[str, StepState]]] = {}
        """With how each job ends if it runs."""
        self.arrays: dict[str, int] = {}
        """With the element that fails; -1 for none."""
        self.pairs: dict[str, int] = {}
        """DAGs of two arrays element to element, with the elements that each has."""
        self.cancelled: defaultdict[str, set[int]] = defaultdict(set)
        """Of arrays, the elements that somebody cancelled, perhaps too late."""
        self.elastic: dict[str, range] = {}
        """With the sizes of each."""
        self.asked_to_grow = 0
        """How often a gang was to grow in place, with room for it."""

    async def begin(self) -> None:
        """Have jobs of the pool that they run in grow by themselves soon, and such that save yield
        to others of their class after seconds: here nobody runs for ten minutes."""
        packing = PoolPacking(order=QueueOrder.ATTAINED_SERVICE)
        soon = timedelta(seconds=2)
        yields = PreemptionPolicy(yields_after=soon, restart=timedelta(0), cooldown=soon)
        spec = PoolSpec(grow_after=timedelta(seconds=3), packing=packing, preemption=yields)
        await scenes.until_answered(lambda: self._fleet.longshore.set_pool(spec))

    async def submit_dag(self, chance: random.Random, name: str) -> None:
        """Submit a random DAG, some of whose jobs fail, and one may be an array."""
        spec = a_random_dag(chance, 6, pool="default")
        ends: dict[str, StepState] = {}
        jobs: dict[str, Any] = {}
        for job, drawn in spec.jobs.items():
            fails = chance.random() < 0.2
            ends[job] = StepState.FAILED if fails else StepState.SUCCEEDED
            seconds = round(chance.uniform(0.1, 1), 2)
            work = _FAILS if fails else SLEEP
            what = self._fleet.journal.job(job, seconds, work=work, gpus=chance.randint(1, 2))
            if not fails and chance.random() < 0.2:
                what = self._array(chance, job)
            jobs[job] = drawn.model_dump(exclude_unset=True) | what.model_dump(exclude_unset=True)
        given = spec.model_copy(update={"name": name}).model_dump(exclude_unset=True)
        spec = DagSpec.model_validate(given | {"jobs": jobs})
        submission = await scenes.until_answered(
            lambda: self._fleet.longshore.submit_dag(spec, key=name)
        )
        self.dags[submission.dag_id] = spec, ends

    async def submit_pair(self, chance: random.Random, name: str) -> None:
        """Submit a DAG of two arrays, of which each element waits for the one with its index."""
        first, then = (self._array(chance, each).model_dump(exclude_unset=True) for each in _PAIR)
        then |= {"array": first["array"], "after": {_PAIR[0]: "corresponding"}}
        spec = DagSpec.model_validate(
            {"name": name, "jobs": dict(zip(_PAIR, (first, then), strict=True))}
        )
        submission = await scenes.until_answered(
            lambda: self._fleet.longshore.submit_dag(spec, key=name)
        )
        array = spec.jobs[_PAIR[0]].array
        assert array is not None
        self.pairs[submission.dag_id] = array.most_elements

    async def submit_array(self, chance: random.Random, name: str) -> None:
        fails = chance.choice((-1, -1, 0, 3))
        await self.submit_elements(name, *_drawn(chance), fails)

    async def submit_elastic(self, chance: random.Random, name: str) -> str:
        """Submit a job of one to four GPUs, or a gang of two to eight that changes its size in
        place; return its id."""
        if len(self.elastic) % 3 < 2:
            return await self.submit_in_place(
                name, chance.randint(8, 16), 2 * chance.randint(1, 4)
            )
        sizes: dict[str, Any] = {"min": 1, "max": 4, "desired": chance.randint(1, 4)}
        return await self._submit_elastic(
            self._fleet.journal.job(name, round(chance.uniform(1, 4), 2), malleable=sizes)
        )

    async def submit_in_place(self, name: str, seconds: int, desired: int) -> str:
        """Submit a gang of two to eight GPUs that changes its size in place; return its id."""
        sizes = {"min": 2, "max": 8, "step": 2, "desired": desired, "in_place": True}
        return await self._submit_elastic(self._fleet.journal.job(
            name, seconds, work=SAVES, priority=8,
            malleable=sizes, gang={"unlabelled_nodes": True},
            checkpoint={"folder": "saved", "store": False, "save_file": True, "grace": 5},
        ))  # fmt: skip

    async def _submit_elastic(self, spec: JobSpec) -> str:
        job_id = await scenes.submit(self._fleet, spec)
        assert spec.malleable
        self.elastic[job_id] = spec.malleable.sizes
        return job_id

    async def submit_elements(self, name: str, seconds: float, array: str, fails: int = -1) -> str:
        """Submit an array of these elements, each of so many seconds; return its id."""
        spec = self._array_of(name, seconds, array, fails)
        array_id = await scenes.submit(self._fleet, spec)
        self.arrays[array_id] = fails
        return array_id

    def _array(self, chance: random.Random, name: str) -> JobSpec:
        return self._array_of(name, *_drawn(chance))

    def _array_of(self, name: str, seconds: float, array: str, fails: int = -1) -> JobSpec:
        plain = self._fleet.journal.job(name, seconds)
        return JobSpec.model_validate(
            plain.model_dump(exclude_unset=True)
            | {"command": _ELEMENT, "env": {**plain.env, "FAILS": fails}, "array": array}
        )

    def has_begun(self, array_id: str) -> bool:
        return any(line[:2] == ("start", array_id) for line in self._lines())

    async def wait(self) -> None:
        """Wait until the DAGs and arrays have ended."""
        longshore = self._fleet.longshore
        for dag_id in (*self.dags, *self.pairs):
            await scenes.until_answered(lambda dag_id=dag_id: longshore.wait_dag(dag_id))
        for array_id in self.arrays:
            await scenes.until_answered(lambda array_id=array_id: longshore.wait(array_id))

    def unfinished(self) -> list[str]:
        """Return the DAGs and arrays that have not ended, by their rows."""
        dags = self._fleet.rows("SELECT id FROM dags WHERE ended_at IS NULL ORDER BY id")
        return [*(row["id"] for row in dags), *self.open_arrays()]

    def open_arrays(self) -> list[str]:
        """Return the arrays of the load that have not ended, without those of DAGs."""
        rows = self._fleet.rows("SELECT id FROM jobs WHERE ended_at IS NULL ORDER BY id")
        return [row["id"] for row in rows if row["id"] in self.arrays]

    async def to_check(self) -> tuple[list[str], list[str]]:
        """Once all have ended, return the jobs of DAGs that have to have succeeded, for the checks
        of jobs, and what is wrong with DAGs and arrays."""
        problems = [*self._of_elements(), *self._of_pairs(), *self._of_growth()]
        jobs: list[str] = []
        for dag_id in self.pairs:
            dag = await scenes.until_answered(
                lambda dag_id=dag_id: self._fleet.longshore.wait_dag(dag_id)
            )
            if dag.state is not DagState.SUCCEEDED:
                problems.append(f"DAG {dag_id} of two arrays ended {dag.state}")
        journal = self._fleet.journal.by_job()
        for dag_id, (spec, ends) in self.dags.items():
            dag = await scenes.until_answered(
                lambda dag_id=dag_id: self._fleet.longshore.wait_dag(dag_id)
            )
            states = {step.name: step.step for step in dag.steps}
            wanted = final_states(spec, ends)
            if states != wanted or dag.state is not final_state(spec, wanted):
                problems.append(f"DAG {dag_id} ended {dag.state} with {states}, not {wanted}")
            for name, state in wanted.items():
                job_id = f"{dag_id}.{name}"
                if state is StepState.SKIPPED and journal[job_id]:
                    problems.append(f"{job_id} was to be skipped, and ran: {journal[job_id]}")
                elif state is StepState.FAILED:
                    problems += violations(journal[job_id])
                elif state is StepState.SUCCEEDED and spec.jobs[name].array is None:
                    jobs.append(job_id)
        return jobs, problems

    def _of_elements(self) -> list[str]:
        said = Counter(self._lines())
        problems = [f"{line} {times} times" for line, times in said.items() if times > 1]
        problems += [" ".join(line) for line in said if line[0] in ("TWICE", "BUSY")]
        rows = self._fleet.rows(
            "SELECT e.array_id, e.index, e.attempt, e.state, e.newest, j.end_state FROM elements e"
            " JOIN jobs j ON j.id = e.array_id"
        )
        known = {(row["array_id"], str(row["index"]), str(row["attempt"])) for row in rows}
        problems += [f"{line} is not on record" for line in said if line[1:] not in known]
        for row in rows:
            name, index = row["array_id"], row["index"]
            which = f"element {index} of {name}, attempt {row['attempt']},"
            fails = index == self.arrays.get(name, -1)
            wanted = {ElementState.FAILED if fails else ElementState.SUCCEEDED}
            if index in self.cancelled[name]:
                wanted.add(ElementState.CANCELLED)
            if row["newest"] and row["state"] not in wanted:
                problems.append(f"{which} is {row['state']}")
            run = (name, str(index), str(row["attempt"]))
            if row["state"] == ElementState.SUCCEEDED and not said["end", *run]:
                problems.append(f"{which} succeeded, and never came to its end")
        for name in {row["array_id"] for row in rows}:
            ends = {row["state"] for row in rows if row["array_id"] == name and row["newest"]}
            whole = ends == {ElementState.SUCCEEDED}
            (state,) = {row["end_state"] for row in rows if row["array_id"] == name}
            if whole is not (state == JobState.SUCCEEDED):
                problems.append(f"array {name} ended {state}, and its elements {ends}")
        return problems

    def _of_pairs(self) -> list[str]:
        """Return which elements did not wait for the one with their index, or are missing."""
        problems: list[str] = []
        lines = self._lines()
        for dag_id, count in self.pairs.items():
            first, then = (f"{dag_id}.{name}" for name in _PAIR)
            over: dict[str, set[str]] = {first: set(), then: set()}
            for word, array_id, index, _ in lines:
                if array_id == then and word == "start" and index not in over[first]:
                    problems.append(
                        f"element {index} of {then} began before that of {first} ended"
                    )
                if array_id in over and word == "end":
                    over[array_id].add(index)
            for array_id, ended in over.items():
                if len(ended) != count:
                    problems.append(
                        f"{len(ended)} of {count} elements of {array_id} came to an end"
                    )
        return problems

    def _of_growth(self) -> list[str]:
        """Return that nothing joins any more: faults prevent some of it, and not all."""
        if self.asked_to_grow < MANY_GROWTHS or self._fleet.rows(_JOINED):
            return []
        return [f"no rank joined: {self.asked_to_grow} times there was room for one"]

    def _lines(self) -> list[tuple[str, ...]]:
        """Return what elements wrote: (word, array, index, attempt)."""
        file = self._fleet.journal.folder / "elements"
        return (
            [tuple(line.split()) for line in file.read_text().splitlines()]
            if file.exists()
            else []
        )

    def summary(self) -> str:
        started = sum(line[0] == "start" for line in self._lines())
        elements = {line[1:3] for line in self._lines()}
        dags, arrays, elastic = len(self.dags), len(self.arrays), len(self.elastic)
        began = f"{len(elements)} elements began {started} times"
        joined, left = (len(self._fleet.rows(each)) for each in (_JOINED, _LEFT))
        return (
            f"{dags} DAGs, {len(self.pairs)} pairs of arrays, {arrays} arrays and {elastic} "
            f"elastic jobs; {began}; {self.asked_to_grow} times a job was to grow where there was "
            f"room, {joined} ranks joined a running attempt and {left} left one"
        )


def _drawn(chance: random.Random) -> tuple[float, str]:
    """Return how long the elements of an array run, and which it has."""
    seconds = round(chance.uniform(0.05, 1.5), 2)
    return seconds, f"0-{chance.randint(4, MOST_ELEMENTS)}%{chance.randint(1, 4)}"
