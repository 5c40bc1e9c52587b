"""Rolling real control workers from one version to the next."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from client.api import Longshore
from client.deployments import Deployments
from models.job import JobState
from models.messages import job_workflow_id, node_workflow_id, pool_workflow_id
from models.settings import Settings
from tests.support.control import a_spec, new_pool, reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually
from tests.support.worker_processes import Place, own_place
from workers.stack import Stack

NAME = "test"


@pytest.fixture
async def place(stack: Stack, database_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    async with own_place(stack, database_url, tmp_path) as place:
        yield place


@pytest.fixture
async def longshore(
    place: Place, settings: Settings, database_url: str
) -> AsyncIterator[Longshore]:
    own = settings.model_copy(update={"database_url": SecretStr(database_url)})
    client = Longshore(place.temporal, own)
    yield client
    await client.close()


async def test_a_roll_under_load_loses_no_job_and_moves_everything(
    place: Place, longshore: Longshore, settings: Settings
):
    pool, deployment = new_pool(), Deployments(place.temporal, NAME)
    node = ScriptedNode(place.temporal, pool, settings.resolve_agent_token(), gpus=4)
    with place.worker("build-a", *worker("--set-current")) as old, place.worker("build-b") as new:
        await eventually(lambda: is_current(deployment, "build-a"), timeout=30)
        async with node.serving():
            await node.register()
            running = [(await longshore.submit(a_spec(pool))).job_id for _ in range(4)]
            for job_id in running:
                await node.started(job_id)
            load = asyncio.create_task(arriving(longshore, pool, 30))
            await eventually(lambda: has_workers(deployment, "build-b"), timeout=30)
            moved = await deployment.set_current("build-b")
            assert moved.previous == "build-a"
            assert not moved.stayed
            assert set(moved.moved) == {pool_workflow_id(pool), node_workflow_id(node.id)}

            old.terminate()
            assert await old.ends(within=15) == 0
            queued = await load
            ended = asyncio.create_task(end_as_they_come(node, [*running, *queued]))
            results = await asyncio.gather(*(longshore.wait(each) for each in running + queued))
            await ended
            assert {result.state for result in results} == {JobState.SUCCEEDED}
            assert {result.attempts for result in results} == {1}
            assert sorted(node.runs()) == sorted((each, 1) for each in running + queued)

            for workflow_id in (*moved.moved, job_workflow_id(running[0])):
                assert await build_of(place, workflow_id) == "build-b"
            view = await deployment.status()
            assert (view.current, view.advice) == ("build-b", "")
            assert new.exit_code is None


def worker(*flags: str) -> tuple[str, ...]:
    """Return the command line of `longshore worker`."""
    import sys

    return (sys.executable, "-P", "-m", "client.cli", "worker", *flags)


async def arriving(longshore: Longshore, pool: str, count: int) -> list[str]:
    """Submit jobs one after another, and return their ids."""
    return [(await longshore.submit(a_spec(pool))).job_id for _ in range(count)]


async def end_as_they_come(node: ScriptedNode, jobs: list[str]) -> None:
    await asyncio.gather(*(node.end(job_id) for job_id in jobs))


async def is_current(deployment: Deployments, build_id: str) -> bool:
    return (await deployment.status()).current == build_id


async def has_workers(deployment: Deployments, build_id: str) -> bool:
    versions = (await deployment.status()).versions
    return any(each.build_id == build_id and each.workers for each in versions)


async def build_of(place: Place, workflow_id: str) -> str:
    description = await place.temporal.get_workflow_handle(workflow_id).describe()
    info = description.raw_description.workflow_execution_info.versioning_info
    return info.deployment_version.build_id
