"""Random DAGs whose jobs fail, are lost with their node, are tried again and cancelled, and which
are then retried: on the whole system, beside a small reference."""

import asyncio
import random

import pytest

from longshore.client.api import Longshore
from longshore.models.dag import DagSpec
from longshore.models.dag_view import DagState, DagView, StepState
from longshore.models.errors import RefusedError
from tests.support.reference_dags import a_random_dag, final_state, final_states, run_again
from tests.support.scripted_node import DIED, SUCCESS, USER_ERROR, ScriptedNode
from tests.support.searches import seeds
from tests.support.waiting import eventually

RETRY = {"user": {"max_retries": 1, "backoff": 0}, "node": {"max_retries": 9, "backoff": 0}}
TOO_LARGE = 9
"""GPUs: nothing has room, so that it can be cancelled before it starts."""
S, F, C, N = StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED, StepState.WITHDRAWN
REPORTS = {"ok": SUCCESS, "bad": USER_ERROR, "lost": DIED}
FATES = ((S, "ok"), (S, "ok"), (S, "ok"), (S, "bad ok"), (F, "bad bad"), (C, "cancel"))


class Life:
    """What becomes of the jobs of a DAG from its start, or a retry, to its end."""

    def __init__(
        self, chance: random.Random, longshore: Longshore, node: ScriptedNode, spec: DagSpec,
        dag_id: str, ending: str = "",
    ) -> None:  # fmt: skip
        self._longshore, self._node, self._dag_id, self._ending = longshore, node, dag_id, ending
        self.ends: dict[str, StepState] = {}
        """How each job ends if it runs."""
        self.attempts: dict[str, list[str]] = {}
        """What its attempts come to."""
        for name, job in spec.jobs.items():
            self.ends[name], then = chance.choice(FATES)
            self.attempts[name] = ["lost"] * chance.choice((0, 0, 1, 2)) + then.split()
            if job.gpus == TOO_LARGE:
                self.ends[name], self.attempts[name] = N, []
        self._seen: set[tuple[str, int]] = set()

    async def to_its_end(self) -> DagView:
        async def has_ended() -> DagView:
            dag = await self._longshore.known_dag(self._dag_id)
            for step in dag.steps:
                job_id = f"{self._dag_id}.{step.name}{self._ending}"
                if step.job_id == job_id:
                    await self._go_on(step.name, job_id)
            assert dag.state.ended
            return dag

        return await eventually(has_ended)

    async def _go_on(self, name: str, job_id: str) -> None:
        fates = self.attempts[name]
        if not fates and self.ends[name] is N:
            await self._cancel(job_id)
        here = (job_id, 1 + sum(seen == job_id for seen, _ in self._seen))
        if here in self._node.runs():
            self._seen.add(here)
            fate = fates[here[1] - 1]
            if fate == "cancel":
                await self._cancel(job_id)
            else:
                await self._node.end(*here, report=REPORTS[fate])

    async def _cancel(self, job_id: str) -> None:
        try:
            await self._longshore.cancel(job_id)
        except RefusedError:
            return  # it has been cancelled


async def lives_twice(longshore: Longshore, node: ScriptedNode, pool: str, seed: int) -> None:
    chance = random.Random(seed)
    drawn = a_random_dag(chance, 7, pool=pool)
    given = drawn.model_dump()
    for job in given["jobs"].values():
        job |= {"retry": RETRY, "gpus": TOO_LARGE if chance.random() < 0.1 else 1}
    spec = DagSpec.model_validate(given)
    dag_id = (await longshore.submit_dag(spec)).dag_id
    kept: set[str] = set()
    for ending in ("", ".r2"):
        life = Life(chance, longshore, node, spec, dag_id, ending)
        dag = await life.to_its_end()
        states = {step.name: step.step for step in dag.steps}
        assert states == final_states(spec, life.ends, kept), seed
        assert dag.state is final_state(spec, states), seed
        for name in spec.jobs.keys() - kept:
            ran = sorted(run for run in node.runs() if run[0] == f"{dag_id}.{name}{ending}")
            goes = states[name] in (S, F, C)
            assert len(ran) == (len(life.attempts[name]) if goes else 0), (seed, name)
        if ending or dag.state is DagState.SUCCEEDED:
            break
        again = run_again(spec, states)
        assert set((await longshore.retry_dag(dag_id)).jobs) == again, seed
        kept = spec.jobs.keys() - again


@pytest.mark.parametrize(
    "dags", [seeds(1), pytest.param(seeds(4), marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
async def test_they_end_as_the_reference_says_and_each_attempt_runs_once(
    longshore: Longshore, node: ScriptedNode, pool: str, dags: range
) -> None:
    gate = asyncio.Semaphore(4)

    async def one(seed: int) -> None:
        async with gate:
            await lives_twice(longshore, node, pool, seed)

    await asyncio.gather(*(one(seed) for seed in dags))
    assert set(node.taken.values()) == {1}
