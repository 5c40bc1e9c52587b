"""Anything is killed at any moment while many jobs run, with DAGs, arrays and elastic jobs among
them, and two control workers plan: nothing is lost or doubled.

The seed that is printed with a failure chooses victims and moments again: `LONGSHORE_SEED=...`.
"""

import asyncio
import os
import random
from typing import Any

import pytest

from tests.faults import scenes
from tests.faults.chaos.many import ManyAsOne
from tests.faults.fleet import PATIENCE, Fleet
from tests.faults.invariants import check
from tests.faults.kills import (
    AGENT,
    BACKEND,
    PARTS,
    SUPERVISOR,
    kill_now_and_then,
    planned_in_turn,
)

VICTIMS = (*PARTS, BACKEND, AGENT, SUPERVISOR, SUPERVISOR)


@pytest.mark.parametrize(
    ("jobs", "kills"),
    [
        pytest.param(20, 6, id="small"),
        pytest.param(50, 40, id="large"),
    ],
)
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled(large_fleet: Fleet, jobs: int, kills: int) -> None:
    seed = int(os.environ.get("LONGSHORE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"the seed is LONGSHORE_SEED={seed}")
    chance = random.Random(seed)
    many = ManyAsOne(large_fleet)
    submitting = asyncio.create_task(_submit(large_fleet, many, random.Random(seed + 1), jobs))
    try:
        # Lines of the journal: a job that is not cancelled writes two, more where it is repeated.
        moments = sorted(chance.randrange(3 * jobs // 2) for _ in range(kills))
        await kill_now_and_then(
            large_fleet, chance, [(moment, chance.choice(VICTIMS)) for moment in moments]
        )
        async with asyncio.timeout(PATIENCE):
            submitted, cancelled = await submitting
        await many.wait()
        of_dags, problems = await many.to_check()
        assert not problems, "\n".join(problems)
        await check(large_fleet, [*submitted, *of_dags], cancelled)
        assert await planned_in_turn(large_fleet, "default")
    finally:
        submitting.cancel()


async def _submit(
    fleet: Fleet, many: ManyAsOne, chance: random.Random, count: int
) -> tuple[list[str], list[str]]:
    """Submit so many jobs, with a DAG, an array and an elastic job to every twenty of them; cancel
    every tenth at once. Return ids of the rest and of those."""
    submitted: list[str] = []
    cancelled: list[str] = []
    for number in range(count):
        if number % 20 == 5:
            submitted.append(await many.submit_elastic(chance, f"elastic-{number}"))
            await many.submit_array(chance, f"array-{number}")
            await many.submit_dag(chance, f"dag-{number}")
        if number % 20 == 15:
            for elastic, sizes in many.elastic.items():
                gpus = chance.choice(sizes)
                await scenes.tell(
                    lambda elastic=elastic, gpus=gpus: fleet.longshore.resize(
                        elastic, gpus, from_start=True
                    )
                )
        size: dict[str, Any] = {"gpus": chance.randint(1, 3)}
        if number % 5 == 4:  # more than a node has
            size = {"gpus": chance.randint(5, 8), "gang": {"unlabelled_nodes": True}}
        spec = fleet.journal.job(f"job-{number}", round(chance.uniform(0.1, 1.5), 2), **size)
        job_id = await scenes.submit(fleet, spec)
        if number % 10 == 9:
            await scenes.tell(lambda job_id=job_id: fleet.longshore.cancel(job_id))
            cancelled.append(job_id)
        else:
            submitted.append(job_id)
    return submitted, cancelled
