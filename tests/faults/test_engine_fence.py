"""Engines outlive the server, and their agent. What runs beside them ends, and no engine is left
without a lease, nor a lease without an engine."""

import asyncio
import json
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore.client.service_readiness import is_settled
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.service import ServiceSpec, ServiceState, ServiceView
from longshore.models.serving import ModelSpec
from tests.faults.chaos.serving import engines_of
from tests.faults.fleet import PATIENCE, TEMPORAL, Fleet, running_fleet
from tests.faults.scenes import until_answered, until_told
from tests.support.agent import AgentProcess
from tests.support.control import new_pool
from tests.support.gguf_models import Model, write
from tests.support.local_stack import temporary_folder
from tests.support.relay import Relay, relay_to
from tests.support.waiting import eventually

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]
LOST_AFTER = timedelta(seconds=16)
"""After an outage half of it is left for a busy machine to register again. Where that takes
longer, the node is lost and the engine replaced."""
PLACEMENTS = """
    SELECT p.attempt, p.epoch, p.node_id, p.end_reason, p.ended_at IS NULL AS live,
           (SELECT count(*) FROM leases l
             WHERE (l.job_id, l.attempt) = (p.job_id, p.attempt) AND l.ended_at IS NULL) AS leases
      FROM placements p WHERE p.job_id = %s ORDER BY p.attempt
"""
MEMORY = "SELECT sum(vram_mb_used) AS used FROM gpus WHERE node_id = %s"


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Starts a stack with a control worker, and without nodes; 5 s."""
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=0, lost_after=LOST_AFTER) as running:
            yield running


@pytest.fixture
async def relay(fleet: Fleet) -> AsyncIterator[Relay]:
    """Starts a relay to Temporal, which can fall silent; 0.01 s."""
    async with relay_to(fleet.stack.temporal.address) as relay:
        yield relay


@pytest.fixture
def agent(fleet: Fleet, scene: "Scene", tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent, which the test starts; 1 s."""
    agent = AgentProcess(fleet.stack.settings, tmp_path / "agent", scene.pool)
    yield agent
    agent.end()


@pytest.fixture
def other(fleet: Fleet, scene: "Scene", tmp_path: Path) -> Iterator[AgentProcess]:
    """Another one."""
    agent = AgentProcess(fleet.stack.settings, tmp_path / "other", scene.pool)
    yield agent
    agent.end()


class Scene:
    """A service with one replica in a pool of its own."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder, self.pool = fleet, folder, new_pool()
        self.name = f"chat-{self.pool}"

    async def serve(self) -> ServiceView:
        """Serve a model; return it once it answers."""
        longshore = self.fleet.longshore
        source = str(write(Model(), self.folder / "tiny.gguf"))
        model = f"tiny-{self.pool}"
        await longshore.add_models([ModelSpec(name=model, source=source, context=1000)])
        spec = ServiceSpec(name=self.name, model=model, pool=self.pool, drain=timedelta(seconds=2))
        await longshore.serve(spec)
        return await self.settled()

    async def view(self) -> ServiceView:
        return await until_answered(lambda: self.fleet.longshore.service(self.name))

    async def settled(self) -> ServiceView:
        """Wait until its one replica is ready; return it."""

        async def is_so() -> ServiceView:
            found = await self.view()
            assert is_settled(found), repr(found)
            assert len(found.replicas) == 1, repr(found)
            return found

        return await eventually(is_so, timeout=PATIENCE, interval=0.1)

    async def submit(self, command: str) -> str:
        """Submit an ordinary job beside it."""
        spec = JobSpec.model_validate(
            {"name": "beside", "command": command, "pool": self.pool, "gpus": 1, "ram": 0.1,
             "retry": {each: {"max_retries": 5, "backoff": 0} for each in ("node", "network")}}
        )  # fmt: skip
        return (await self.fleet.longshore.submit(spec)).job_id

    def engines(self) -> list[psutil.Process]:
        return engines_of(self.folder)

    def placements(self, job_id: str) -> list[dict[str, Any]]:
        return self.fleet.rows(PLACEMENTS, job_id)

    async def remove(self) -> None:
        """Remove it; nothing may be left of it."""
        await until_told(lambda: self.fleet.longshore.remove_service(self.name))

        async def over() -> bool:
            return (await self.view()).state is ServiceState.REMOVED

        await eventually(over, timeout=PATIENCE)
        await eventually(lambda: not self.engines(), timeout=PATIENCE)


@pytest.fixture
def scene(fleet: Fleet, tmp_path: Path) -> Scene:
    return Scene(fleet, tmp_path)


def answers(endpoint: str) -> bool:
    body = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
    request = urllib.request.Request(
        f"{endpoint}/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bool(json.loads(answer.read())["choices"])


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_an_engine_outlives_the_server_and_a_job_does_not(
    fleet: Fleet, scene: Scene, agent: AgentProcess, how: str
) -> None:
    agent.start()
    before = await scene.serve()
    (replica,), (engine,) = before.replicas, scene.engines()
    began = scene.folder / "began"
    job = await scene.submit(f"echo $$ >> {began}; exec sleep 600")
    await eventually(began.exists, timeout=PATIENCE)
    (process,) = map(int, began.read_text().split())
    if how == "killed":
        await asyncio.to_thread(fleet.kill, TEMPORAL)
    else:
        fleet.signal(TEMPORAL, signal.SIGSTOP)
    try:
        words = "all processes end but 1 engine"
        await eventually(lambda: agent.says(words), timeout=PATIENCE)
        await eventually(lambda: not psutil.pid_exists(process), timeout=PATIENCE)
        assert await asyncio.to_thread(answers, replica.endpoint)
    finally:
        if how == "killed":
            await asyncio.to_thread(fleet.start, TEMPORAL)
        else:
            fleet.signal(TEMPORAL, signal.SIGCONT)
    await eventually(lambda: agent.says("epoch 2"), timeout=PATIENCE)
    assert scene.engines() == [engine]
    assert await asyncio.to_thread(answers, replica.endpoint)
    (found,) = (await scene.settled()).replicas
    assert (found.job_id, found.endpoint) == (replica.job_id, replica.endpoint)
    (held,) = scene.placements(replica.job_id)
    assert (held["attempt"], held["epoch"], held["live"], held["leases"]) == (1, 1, True, 1)

    async def runs_again() -> bool:
        status = await until_answered(lambda: fleet.longshore.status(job))
        running = [pid for pid in map(int, began.read_text().split()) if psutil.pid_exists(pid)]
        return status.state is JobState.RUNNING and len(running) == 1 and running != [process]

    try:
        await eventually(runs_again, timeout=PATIENCE)
    except AssertionError:
        print(await fleet.longshore.status(job), began.read_text(), scene.placements(job))
        print(agent.log.read_text()[-6000:])
        raise
    first, *_, last = scene.placements(job)
    assert (first["end_reason"], last["live"], last["epoch"] > 1) == ("node-lost", True, True)
    used = fleet.rows(MEMORY, agent.node_id)[0]["used"]
    await until_answered(lambda: fleet.longshore.cancel(job))
    await scene.remove()
    assert used > 0
    assert fleet.rows(MEMORY, agent.node_id)[0]["used"] == 0


async def test_an_engine_outlives_its_agent_and_is_adopted_by_the_next(
    fleet: Fleet, scene: Scene, agent: AgentProcess
) -> None:
    agent.start()
    (replica,) = (await scene.serve()).replicas
    (engine,) = scene.engines()
    for epoch in (2, 3):
        agent.kill()
        assert await asyncio.to_thread(answers, replica.endpoint)
        agent.start()
        await eventually(lambda epoch=epoch: agent.says(f"epoch {epoch}"), timeout=PATIENCE)
        assert scene.engines() == [engine]
    assert await asyncio.to_thread(answers, replica.endpoint)
    (found,) = (await scene.settled()).replicas
    assert (found.job_id, found.endpoint) == (replica.job_id, replica.endpoint)
    (held,) = scene.placements(replica.job_id)
    assert (held["attempt"], held["epoch"], held["live"], held["leases"]) == (1, 1, True, 1)
    # What nobody fed would end with the fence of other jobs.
    fed = fleet.lost_after.total_seconds()
    await asyncio.sleep(fed)  # the fence is a span of time
    assert scene.engines() == [engine]
    engine.kill()

    async def another() -> bool:
        (now,) = (await scene.view()).replicas
        return now.failures == 1 and now.endpoint not in ("", replica.endpoint)

    await eventually(another, timeout=PATIENCE)
    await scene.remove()


async def test_it_is_replaced_where_its_node_is_lost_and_ends_with_its_own_fence(
    fleet: Fleet, scene: Scene, agent: AgentProcess, other: AgentProcess, relay: Relay
) -> None:
    agent.start(TEMPORAL_ADDRESS=relay.address, LONGSHORE_ENGINE_FENCE="45s")
    (replica,) = (await scene.serve()).replicas
    (engine,) = scene.engines()
    other.start()
    await eventually(lambda: other.says("epoch 1"), timeout=PATIENCE)
    relay.fall_silent()

    async def replaced() -> bool:
        (now,) = (await scene.view()).replicas
        return bool(now.endpoint) and now.endpoint != replica.endpoint

    await eventually(replaced, timeout=PATIENCE)
    assert len(scene.engines()) == 2, "a slot may run twice"
    await eventually(lambda: not engine.is_running(), timeout=PATIENCE)
    lost, live = scene.placements(replica.job_id)
    assert (lost["end_reason"], live["node_id"]) == ("node-lost", other.node_id)
    await scene.remove()


async def test_one_that_was_replaced_ends_as_its_agent_registers(
    fleet: Fleet, scene: Scene, agent: AgentProcess, other: AgentProcess, relay: Relay
) -> None:
    agent.start(TEMPORAL_ADDRESS=relay.address)
    (replica,) = (await scene.serve()).replicas
    (engine,) = scene.engines()
    other.start()
    await eventually(lambda: other.says("epoch 1"), timeout=PATIENCE)
    relay.fall_silent()
    await eventually(lambda: len(scene.engines()) == 2, timeout=PATIENCE)
    assert await asyncio.to_thread(answers, replica.endpoint)
    relay.heal()
    await eventually(lambda: agent.says("epoch 2"), timeout=PATIENCE)
    assert not engine.is_running()
    (found,) = (await scene.settled()).replicas
    assert found.node_id == other.node_id
    assert len(scene.engines()) == 1
    assert fleet.rows(MEMORY, agent.node_id)[0]["used"] == 0
    await scene.remove()
