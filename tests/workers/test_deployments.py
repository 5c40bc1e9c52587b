"""Versions of the control worker, as real processes: rolling, waiting to be current, stuck."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from temporalio.api.workflowservice.v1 import (
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentCurrentVersionResponse,
)

from longshore.client import control_worker, deployments
from longshore.client.api import Longshore
from longshore.client.deployments import Deployments, trouble_with
from longshore.models.deployment import DeploymentView, VersionState, VersionView, WorkerVersion
from longshore.models.errors import SpecError
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id, node_workflow_id, pool_workflow_id
from longshore.models.settings import Settings
from longshore.workers.doctor import temporal as temporal_checks
from longshore.workers.doctor.findings import Level
from longshore.workers.stack import Stack
from tests.support.control import a_spec, new_pool
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually
from tests.support.worker_processes import Place, own_place

DEPLOYMENT = "test"
ASK_EVERY = 0.3
"""The server takes few questions about one deployment."""
BECOMES_CURRENT = (sys.executable, "-P", "-m", "longshore.client.cli", "worker", "--set-current")


@pytest.fixture
async def place(stack: Stack, database_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    """A namespace and a database for control workers that the test starts; 1 s."""
    async with own_place(stack, database_url, tmp_path) as place:
        yield place


@pytest.fixture
def deployment(place: Place) -> Deployments:
    return Deployments(place.temporal, DEPLOYMENT)


@pytest.fixture
async def longshore(
    place: Place, settings: Settings, database_url: str
) -> AsyncIterator[Longshore]:
    """A client of the test's own namespace and database; starts nothing."""
    own = settings.model_copy(update={"database_url": SecretStr(database_url)})
    client = Longshore(place.temporal, own)
    yield client
    await client.close()


@pytest.fixture
def node(place: Place, settings: Settings) -> ScriptedNode:
    return ScriptedNode(place.temporal, new_pool(), settings.resolve_agent_token(), gpus=4)


@pytest.mark.exhaustive  # those below move pools and nodes, without load
async def test_a_roll_under_load_loses_no_job_and_moves_pools_and_nodes(
    place: Place, deployment: Deployments, longshore: Longshore, node: ScriptedNode
):
    with place.worker("a", *BECOMES_CURRENT) as old, place.worker("b"):
        await becomes_current(deployment, "a")
        async with node.serving():
            await node.register()
            running = await submit(longshore, node, 4)
            for job_id in running:
                await node.started(job_id)
            arriving = asyncio.create_task(submit(longshore, node, 30))
            await gets_workers(deployment, "b")
            moved = await deployment.set_current("b")
            assert (moved.previous, moved.stayed) == ("a", ())

            old.terminate()
            assert await old.ends(within=60) == 0
            queued = await arriving
            assert len(node.runs()) == 4, "a job was placed where all GPUs are taken"
            async with asyncio.timeout(90):
                await asyncio.gather(*(node.end(job_id) for job_id in running + queued))
                ends = (longshore.wait(job_id) for job_id in running + queued)
                results = await asyncio.gather(*ends)
            assert {result.state for result in results} == {JobState.SUCCEEDED}
            assert sorted(node.runs()) == sorted((each, 1) for each in running + queued)

            for workflow_id in (*long_lived(node), *map(job_workflow_id, running + queued)):
                assert await build_of(place, workflow_id) == "b"
            assert (await deployment.status()).trouble is None


async def test_a_version_gets_no_work_until_it_is_current_and_status_says_so(
    place: Place, deployment: Deployments, longshore: Longshore, node: ScriptedNode
):
    with place.worker("a"):
        await gets_workers(deployment, "a")
        job_id = (await submit(longshore, node, 1))[0]
        shown = await place.run("deployment", "status", "--name", DEPLOYMENT)
        assert shown.stdout.split()[6:9] == ["a", "inactive", "1"]
        assert "no version is current" in shown.stderr
        assert "`longshore deployment set-current a --name test`" in shown.stderr
        found = await temporal_checks.checks(place.temporal)["control worker"]()
        assert [(each.level, each.says) for each in found] == [
            (
                Level.FAIL,
                "deployment test: no version is current, so the workers that there are get no "
                "work",
            )
        ]
        handle = place.temporal.get_workflow_handle(job_workflow_id(job_id))
        history = await handle.fetch_history()
        assert len(history.events) == 2, "started, and its first task waits for a worker"

        done = await place.run("deployment", "set-current", "a", "--name", DEPLOYMENT, "--json")
        assert (done.returncode, json.loads(done.stdout)["build_id"]) == (0, "a")
        async with node.serving():
            await node.register()
            await node.end(job_id)
            assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
        missing = await place.run("deployment", "set-current", "nowhere", "--name", DEPLOYMENT)
        assert missing.returncode == 66
        assert "has no version nowhere" in missing.stderr


@pytest.mark.exhaustive
async def test_the_version_before_is_named_when_the_first_answer_was_lost(
    place: Place, deployment: Deployments, monkeypatch: pytest.MonkeyPatch
):
    service = place.temporal.workflow_service
    asked = service.set_worker_deployment_current_version

    async def made_twice(*args: Any, **options: Any) -> SetWorkerDeploymentCurrentVersionResponse:
        await asked(*args, **options)
        return await asked(*args, **options)

    with place.worker("a", *BECOMES_CURRENT), place.worker("b"):
        await becomes_current(deployment, "a")
        await gets_workers(deployment, "b")
        monkeypatch.setattr(service, "set_worker_deployment_current_version", made_twice)
        assert (await deployment.set_current("b")).previous == "a"


@pytest.mark.exhaustive
async def test_an_installation_without_versions_gets_them(
    place: Place, deployment: Deployments, longshore: Longshore, node: ScriptedNode
):
    with place.worker() as plain:
        async with node.serving():
            await node.register()
            running = (await submit(longshore, node, 1))[0]
            await node.started(running)
            with place.worker("a", *BECOMES_CURRENT):
                for workflow_id in long_lived(node):
                    await eventually(lambda id=workflow_id: is_on(place, id, "a"))
                plain.terminate()
                assert await plain.ends(within=60) == 0
                queued = (await submit(longshore, node, 1))[0]
                for job_id in (running, queued):
                    await node.end(job_id)
                    async with asyncio.timeout(90):
                        assert (await longshore.wait(job_id)).attempts == 1
                    assert await build_of(place, job_workflow_id(job_id)) == "a"


@pytest.mark.exhaustive
async def test_what_a_dead_version_holds_is_named_and_can_be_moved_by_force(
    place: Place, deployment: Deployments, longshore: Longshore, node: ScriptedNode
):
    with place.worker("a", *BECOMES_CURRENT) as old, place.worker("b"):
        await becomes_current(deployment, "a")
        async with node.serving():
            await node.register()
            running = (await submit(longshore, node, 1))[0]
            await node.started(running)
            old.kill()
            await gets_workers(deployment, "b")
            moved = await deployment.set_current("b")
            assert (moved.moved, set(moved.stayed)) == ((), long_lived(node))

            forced = await deployment.set_current("b", force=True)
            assert (set(forced.moved), forced.stayed) == (long_lived(node), ())
            queued = (await submit(longshore, node, 1))[0]
            for job_id in (running, queued):
                await node.end(job_id)
                async with asyncio.timeout(90):
                    assert (await longshore.wait(job_id)).attempts == 1
            for workflow_id in long_lived(node):
                assert await build_of(place, workflow_id) == "b"


@pytest.mark.exhaustive
async def test_a_current_version_whose_workers_have_died_is_named_beside_others_at_work(
    place: Place, deployment: Deployments, monkeypatch: pytest.MonkeyPatch
):
    with place.worker(), place.worker("a", *BECOMES_CURRENT) as dead:
        await becomes_current(deployment, "a")
        dead.kill()
        # As if what it asked last were long ago.
        monkeypatch.setattr(deployments, "ASKED_WITHIN", timedelta(0))
        (found,) = await temporal_checks.checks(place.temporal)["control worker"]()
        trouble = (await deployment.status()).trouble
        assert trouble is not None
        assert trouble.says == "version a is current, and no worker of it asks for work"
        assert (found.level, found.mend) == (Level.FAIL, trouble.mend)
        assert found.says == f"deployment test: {trouble.says}"
        monkeypatch.setattr(control_worker, "POLL_SEEN_WITHIN", timedelta(0))
        assert await temporal_checks.checks(place.temporal)["control worker"]() == [found]


@pytest.mark.exhaustive
async def test_what_a_dead_version_holds_is_named_also_where_no_version_is_current(
    place: Place, deployment: Deployments, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
):
    with place.worker("a", *BECOMES_CURRENT) as dead:
        await becomes_current(deployment, "a")
        async with node.serving():
            await node.register()
            for workflow_id in long_lived(node):
                await eventually(lambda id=workflow_id: is_on(place, id, "a"))
            dead.kill()
        await place.temporal.workflow_service.set_worker_deployment_current_version(
            SetWorkerDeploymentCurrentVersionRequest(
                namespace=place.temporal.namespace, deployment_name=DEPLOYMENT, build_id="",
                identity="test",
            )
        )  # fmt: skip
    monkeypatch.setattr(deployments, "ASKED_WITHIN", timedelta(0))

    async def named() -> bool:
        return await deployments.deployments_in_use(place.temporal) == (DEPLOYMENT,)

    await eventually(named)
    (found,) = await temporal_checks.checks(place.temporal)["control worker"]()
    assert found.level is Level.FAIL
    assert found.says == (
        "deployment test: 1 pool and 1 node are on version a, which has no worker left, and no "
        "version is current"
    )


@pytest.mark.parametrize(
    ("serving", "unversioned", "helps"),
    [
        ({}, 1, "shows no pools and nodes on it: they go over with their next run."),
        ({"c": 1}, 1, "has workers: `longshore deployment set-current c --name test --force`."),
    ],
)
def test_what_to_do_about_a_dead_version_where_none_is_current(
    serving: dict[str, int], unversioned: int, helps: str
):
    held = VersionView(
        build_id="a", state=VersionState.DRAINING, workers=0, pools=2, nodes=1, jobs=0
    )
    others = [
        VersionView(build_id=b, state=VersionState.INACTIVE, workers=n, pools=0, nodes=0, jobs=0)
        for b, n in serving.items()
    ]
    view = DeploymentView(name="test", versions=(held, *others), unversioned_workers=unversioned)
    trouble = trouble_with(view)
    assert trouble is not None
    assert trouble.holds_up_work
    assert trouble.says == (
        "2 pools and 1 node are on version a, which has no worker left, and no version is current"
    )
    start = "TEMPORAL_DEPLOYMENT_NAME=test TEMPORAL_WORKER_BUILD_ID=a longshore worker"
    assert trouble.mend.startswith(f"Start one: `{start}`, and stop it once")
    assert trouble.mend.endswith(helps)
    at_work = held.model_copy(update={"workers": 1})
    assert trouble_with(view.model_copy(update={"versions": (at_work, *others)})) is None


@pytest.mark.parametrize(
    ("workers", "unversioned", "helps"),
    [
        ({"a b": 0}, 0, ""),
        ({"a b": 0, "c": 0}, 1, "set-current-version --deployment-name test --unversioned` while"),
        ({"a b": 0, "c": 1}, 1, "make one current that has: `longshore deployment set-current c "),
    ],
)
def test_what_to_do_about_a_current_version_without_workers(
    workers: dict[str, int], unversioned: int, helps: str
):
    versions = tuple(
        VersionView(
            build_id=build_id, state=VersionState.INACTIVE, workers=count, pools=0, nodes=0, jobs=0
        )
        for build_id, count in workers.items()
    )
    view = DeploymentView(
        name="test", current="a b", versions=versions, unversioned_workers=unversioned
    )
    trouble = trouble_with(view)
    assert trouble is not None
    start = "TEMPORAL_DEPLOYMENT_NAME=test TEMPORAL_WORKER_BUILD_ID='a b' longshore worker"
    assert trouble.mend.startswith(f"Start one: `{start}`")
    assert helps in trouble.mend


@pytest.mark.parametrize("current", ["a", None])
def test_a_version_with_a_share_of_new_work_and_without_workers_is_named(current: str | None):
    versions = (
        VersionView(
            build_id="a", state=VersionState.INACTIVE, workers=1, pools=1, nodes=0, jobs=0
        ),
        VersionView(build_id="b", state=VersionState.RAMPING, workers=0, pools=1, nodes=0, jobs=0),
    )
    view = DeploymentView(
        name="test", current=current, ramping="b", ramp_percent=25, versions=versions,
        unversioned_workers=1,
    )  # fmt: skip
    trouble = trouble_with(view)
    assert trouble is not None
    assert trouble.holds_up_work
    assert trouble.says == "version b gets 25 % of new work, and no worker of it asks for any"
    assert trouble.mend == (
        "Start one: `TEMPORAL_DEPLOYMENT_NAME=test TEMPORAL_WORKER_BUILD_ID=b longshore worker`; "
        "or give it no more work: `longshore deployment ramp b --name test --percent 0`."
    )
    assert trouble_with(view.model_copy(update={"ramp_percent": 0})) is None


async def test_pools_and_nodes_follow_whoever_makes_a_version_current(
    place: Place, deployment: Deployments, longshore: Longshore, node: ScriptedNode
):
    with place.worker("a", *BECOMES_CURRENT), place.worker("b"):
        await becomes_current(deployment, "a")
        await gets_workers(deployment, "b")
        async with node.serving():
            await node.register()
            await node.end((await submit(longshore, node, 1))[0])
            ramped = await place.run(
                "deployment", "ramp", "b", "--percent", "25", TEMPORAL_DEPLOYMENT_NAME=DEPLOYMENT
            )
            assert ramped.returncode == 0, ramped.stderr
            view = await deployment.status()
            assert (view.current, view.ramping, view.ramp_percent) == ("a", "b", 25)
            await deployment.ramp("b", 0)
            assert (await deployment.status()).ramp_percent == 0

            await place.temporal.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=place.temporal.namespace, deployment_name=DEPLOYMENT, build_id="b"
                )
            )
            for workflow_id in long_lived(node):
                await eventually(lambda id=workflow_id: is_on(place, id, "b"))


@pytest.mark.exhaustive
async def test_a_worker_with_half_a_version_says_which_half_is_missing(place: Place):
    with place.worker(TEMPORAL_DEPLOYMENT_NAME="test") as worker:
        assert await worker.ends(within=60) == SpecError.exit_code
        assert "set without TEMPORAL_WORKER_BUILD_ID" in worker.log


@pytest.mark.parametrize(
    ("environment", "version"),
    [
        ({}, None),
        ({"TEMPORAL_DEPLOYMENT_NAME": "", "TEMPORAL_WORKER_BUILD_ID": ""}, None),
        (
            {"TEMPORAL_DEPLOYMENT_NAME": "d", "TEMPORAL_WORKER_BUILD_ID": "b"},
            WorkerVersion(deployment="d", build_id="b"),
        ),
    ],
)
def test_the_environment_names_a_version_or_none(
    environment: dict[str, str], version: WorkerVersion | None
):
    assert WorkerVersion.of_environment(environment) == version


async def submit(longshore: Longshore, node: ScriptedNode, count: int) -> list[str]:
    """Submit jobs of one GPU to the node's pool, one after another."""
    return [(await longshore.submit(a_spec(node.pool))).job_id for _ in range(count)]


def long_lived(node: ScriptedNode) -> set[str]:
    return {pool_workflow_id(node.pool), node_workflow_id(node.id)}


async def becomes_current(deployment: Deployments, build_id: str) -> None:
    async def is_current() -> bool:
        return (await deployment.status()).current == build_id

    await eventually(is_current, interval=ASK_EVERY)


async def gets_workers(deployment: Deployments, build_id: str) -> None:
    async def has_workers() -> bool:
        versions = (await deployment.status()).versions
        return any(each.build_id == build_id and each.workers for each in versions)

    await eventually(has_workers, interval=ASK_EVERY)


async def is_on(place: Place, workflow_id: str, build_id: str) -> bool:
    return await build_of(place, workflow_id) == build_id


async def build_of(place: Place, workflow_id: str) -> str:
    description = await place.temporal.get_workflow_handle(workflow_id).describe()
    info = description.raw_description.workflow_execution_info.versioning_info
    return info.deployment_version.build_id
