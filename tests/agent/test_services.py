"""Services on a real agent, with real engines: replaced without a gap, undone, killed, removed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import psutil
import pytest
from temporalio.common import SearchAttributeKey

from longshore.activities.database import Database
from longshore.activities.metrics import Metrics
from longshore.activities.node.file_locks import try_lock
from longshore.activities.node.launch import LOADING_FOLDER
from longshore.client.api import Longshore
from longshore.client.service_readiness import is_settled, until_ready
from longshore.client.service_view import problems
from longshore.models import search
from longshore.models.errors import NeverReadyError, NotFoundError, RefusedError
from longshore.models.job_request import FILLS
from longshore.models.job_status import JobState
from longshore.models.service import ServiceSpec, ServiceState
from longshore.models.service_messages import service_workflow_id
from longshore.models.serving import EngineStage, ModelSpec
from longshore.models.settings import Settings
from longshore.workers import sampling
from longshore.workers.sampling import OTHERS, sample_slots
from tests.support.agent import AgentProcess
from tests.support.control import a_spec, reaches
from tests.support.gguf_models import Model, write
from tests.support.http_client import engine_client
from tests.support.services import until
from tests.support.waiting import eventually

PATIENCE = 60


@pytest.fixture
async def models(longshore: Longshore, tmp_path: Path, pool: str) -> tuple[str, str]:
    """Two models that are added: one that works and one that no engine reads; 0.1 s."""
    good, bad = f"good-{pool}", f"bad-{pool}"
    path = write(Model(), tmp_path / "tiny.gguf")
    await longshore.add_models([ModelSpec(name=good, source=str(path), context=1000)])
    # As a file that was damaged after it was added.
    broken = write(Model(), tmp_path / "broken.gguf")
    await longshore.add_models([ModelSpec(name=bad, source=str(broken), context=1000)])
    broken.write_text("garbage")
    return good, bad


@pytest.fixture
async def service(
    longshore: Longshore, agent: AgentProcess, pool: str, models: tuple[str, str]
) -> AsyncIterator[ServiceSpec]:
    """What serves the model that works, on an agent that runs; removed at the end; 2 s."""
    agent.start()
    drain = timedelta(seconds=PATIENCE)
    spec = ServiceSpec(name=f"chat-{pool}", model=models[0], pool=pool, drain=drain)
    yield spec
    with contextlib.suppress(NotFoundError):
        await longshore.remove_service(spec.name)
        await until(longshore, spec.name, lambda found: found.state is ServiceState.REMOVED)
        await longshore.temporal.get_workflow_handle(service_workflow_id(spec.name)).result()


@pytest.mark.exhaustive
async def test_an_update_under_traffic_drops_nothing(
    longshore: Longshore, service: ServiceSpec
) -> None:
    two = service.model_copy(update={"replicas": 2})
    assert (await longshore.serve(two))[0] == 1
    first = await until(longshore, service.name, is_settled)
    assert len(first.endpoints) == 2
    over = asyncio.Event()
    answers: list[int] = []

    async def ask(number: int) -> None:
        async with engine_client() as http:
            while not over.is_set():
                endpoints = (await longshore.service(service.name)).endpoints
                endpoint = endpoints[number % len(endpoints)]
                body = {"prompt": "a", "max_tokens": 100, "stream": True, "ignore_eos": True}
                async with http.stream("POST", f"{endpoint}/completions", json=body) as answer:
                    lines = [line async for line in answer.aiter_lines() if line]
                assert lines[-1] == "data: [DONE]", "a request that was begun is answered"
                answers.append(number)

    async with asyncio.TaskGroup() as asking:
        for number in range(2):
            asking.create_task(ask(number))
        assert (await longshore.serve(two.model_copy(update={"cpus": 0.5})))[0] == 2
        second = await until(longshore, service.name, is_settled)
        over.set()
    assert {each.revision for each in second.replicas if not each.stopping} == {2}
    assert not set(first.endpoints) & set(second.endpoints)
    assert len(answers) > 2
    assert (await longshore.serve(two.model_copy(update={"cpus": 0.5})))[0] == 2, "as it is"
    assert await longshore.undo_rollout(service.name) == (1, ())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "deadline",
    [pytest.param(None, marks=pytest.mark.exhaustive), timedelta(minutes=1)], ids=["none", "1m"],
)  # fmt: skip
async def test_an_engine_of_a_drained_node_is_replaced_before_it_leaves(
    longshore: Longshore, service: ServiceSpec, agent: AgentProcess, settings: Settings,
    tmp_path: Path, pool: str, deadline: timedelta | None,
) -> None:  # fmt: skip
    await longshore.serve(service)
    first = await until(longshore, service.name, is_settled)
    other = AgentProcess(settings, tmp_path / "other", pool)
    over = asyncio.Event()
    answers = 0

    async def ask() -> None:
        nonlocal answers
        async with engine_client() as http:
            while not over.is_set():
                endpoints = (await longshore.service(service.name)).endpoints
                assert endpoints, "one answers at every moment"
                body = {"prompt": "a", "max_tokens": 100, "stream": True, "ignore_eos": True}
                url = f"{endpoints[0]}/completions"
                async with http.stream("POST", url, json=body) as answer:
                    lines = [line async for line in answer.aiter_lines() if line]
                assert lines[-1] == "data: [DONE]", "a request that was begun is answered"
                answers += 1

    async def is_drained() -> bool:
        found = {each.id: each.drained for each in await longshore.nodes(pool=pool)}
        return found[agent.node_id]

    try:
        other.start()
        await eventually(lambda: other.says("registered as node"), timeout=PATIENCE)
        async with asyncio.TaskGroup() as asking:
            asking.create_task(ask())
            await longshore.drain(agent.node_id, "new disk", deadline=deadline)
            await eventually(is_drained, timeout=PATIENCE)
            over.set()
        second = await until(longshore, service.name, is_settled)
        # The one before it has left its node, and may not be over yet.
        (taken,) = [each for each in second.replicas if not each.stopping]
        assert taken.node_id == other.node_id
        assert taken.job_id != first.replicas[0].job_id
        assert second.revision == 1
        assert answers > 2
        await longshore.remove_service(service.name)
        await until(longshore, service.name, lambda found: not found.replicas)
    finally:
        other.end()


@pytest.mark.exhaustive
async def test_an_engine_of_a_drained_node_stays_while_there_is_no_room_elsewhere(
    longshore: Longshore, service: ServiceSpec, agent: AgentProcess
) -> None:
    await longshore.serve(service)
    first = await until(longshore, service.name, is_settled)
    await longshore.drain(agent.node_id, "new disk")
    waits = await until(
        longshore,
        service.name,
        lambda found: len(found.replicas) == 2 and bool(found.replicas[1].message),
    )
    assert waits.endpoints == first.endpoints
    says = "1 replica to be replaced (1 on a node that drains): 0 of 1 new ones ready"
    assert waits.message == says
    handle = longshore.temporal.get_workflow_handle(service_workflow_id(service.name))
    card = (await handle.query("__temporal_workflow_metadata")).current_details
    first_id, second_id = (each.job_id for each in waits.replicas)
    assert f"Model `{service.model}`, revision 1: 1 of 1 replica ready\n\n{says}\n" in card
    assert f"- `job-{first_id}`, revision 1: ready at {first.endpoints[0]}\n" in card
    assert card.endswith(f"- `job-{second_id}`, revision 1: waits for a GPU")
    found = (await handle.describe()).typed_search_attributes
    assert found[SearchAttributeKey.for_keyword(search.POOL)] == service.pool
    told = (await longshore.explain(first.replicas[0].job_id)).headline
    leaves = f"{agent.node_id} drains: it leaves when another replica of {service.name} is ready"
    assert told.endswith(f"; {leaves}")
    await longshore.uncordon(agent.node_id)
    again = await until(
        longshore, service.name, lambda found: is_settled(found) and len(found.replicas) == 1
    )
    assert [each.job_id for each in again.replicas] == [first.replicas[0].job_id]
    assert (again.endpoints, again.message) == (first.endpoints, "")


async def test_the_client_of_openai_streams_from_it_as_it_is(
    longshore: Longshore, service: ServiceSpec, models: tuple[str, str]
) -> None:
    await longshore.serve(service)
    (endpoint,) = (await until(longshore, service.name, is_settled)).endpoints
    from openai import AsyncOpenAI  # 0.3 s for each worker that collects this module

    async with AsyncOpenAI(base_url=endpoint, api_key="none is asked for") as client:
        assert [each.id async for each in client.models.list()] == [models[0]]
        stream = await client.chat.completions.create(
            model=models[0], messages=[{"role": "user", "content": "a"}], max_tokens=20,
            stream=True,
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    assert len(chunks) > 2
    assert chunks[-1].choices[0].finish_reason in {"stop", "length"}


@pytest.mark.exhaustive
async def test_a_revision_that_no_engine_can_serve_is_undone(
    longshore: Longshore, service: ServiceSpec, models: tuple[str, str]
) -> None:
    await longshore.serve(service)
    (before,) = (await until(longshore, service.name, is_settled)).endpoints
    broken = service.model_copy(update={"model": models[1]})
    assert (await longshore.serve(broken))[0] == 2
    found = await until(
        longshore, service.name, lambda found: found.revision == 1 and is_settled(found)
    )
    assert found.endpoints == (before,), "what served all along"
    assert found.revisions
    undone = found.revisions[0]
    assert undone.number == 2
    assert undone.undone.startswith("revision 2 never got ready (3 engines failed)")
    assert "invalid magic characters" in undone.undone


@pytest.mark.exhaustive
async def test_a_first_revision_that_no_engine_can_serve_is_waited_for_no_longer(
    longshore: Longshore, service: ServiceSpec, models: tuple[str, str]
) -> None:
    """It goes on trying, and `why` says when the next engine is started."""
    broken = service.model_copy(update={"model": models[1]})
    await longshore.serve(broken)
    with pytest.raises(NeverReadyError) as ended:
        await until_ready(longshore, service.name, 1, quiet=True)
    why = f"service {service.name}: revision 1 never got ready (3 engines failed), and there is no"
    assert str(ended.value).startswith(why)
    assert "invalid magic characters" in str(ended.value)
    found = await longshore.service(service.name)
    assert (found.state, found.ready) == (ServiceState.RUNNING, 0)

    async def told() -> str:
        explained = await longshore.explain(service.name)
        says = "attempts have failed in a row; the next waits for GPUs from " in explained.headline
        return explained.headline if says else ""

    headline = await eventually(told, timeout=PATIENCE)
    assert "; the last line of its engine: " in headline


@pytest.mark.exhaustive
async def test_one_that_waits_for_another_to_load_says_so(
    longshore: Longshore, service: ServiceSpec, agent: AgentProcess
) -> None:
    folder = agent.folder / "work" / LOADING_FOLDER
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as loading:
        for gpu in range(4):
            (folder / f"gpu-{gpu}").write_text("chat-2")
            held = try_lock(folder / f"gpu-{gpu}")
            assert held is not None
            loading.enter_context(held)
        await longshore.serve(service)
        found = await until(
            longshore,
            service.name,
            lambda found: any("to load" in each.message for each in found.replicas),
        )
        (waits,) = found.replicas
        assert waits.stage is EngineStage.LOADING
        says = f"waits for chat-2 to load on gpu {waits.gpu_indices[0]}"
        assert waits.message == says
        assert problems([waits], datetime.now(UTC)) == [f"{waits.job_id}: {says}"]
        assert (await longshore.explain(waits.job_id)).headline.endswith(f"; {says}")

        async def job_says() -> bool:
            progress = (await longshore.report(waits.job_id)).progress
            return progress is not None and progress.message == says

        await eventually(job_says, timeout=PATIENCE)
    (ready,) = (await until(longshore, service.name, is_settled)).replicas
    assert ready.message == ""


async def test_an_engine_that_is_killed_comes_again_and_one_whose_agent_is_killed_goes_on(
    longshore: Longshore, service: ServiceSpec, agent: AgentProcess
) -> None:
    await longshore.serve(service)
    first = await until(longshore, service.name, is_settled)
    (engine,) = [
        each for each in psutil.Process(agent.process.pid).children(recursive=True)
        if "longshore.activities.serving.llama_server" in each.cmdline()
    ]  # fmt: skip
    engine.kill()
    second = await until(
        longshore,
        service.name,
        lambda found: is_settled(found) and found.endpoints != first.endpoints,
    )
    assert second.replicas[0].job_id == first.replicas[0].job_id, "its job tries again"
    assert second.replicas[0].failures == 1
    agent.kill()
    agent.start()
    await eventually(lambda: agent.says("epoch 2"), timeout=PATIENCE)
    third = await until(longshore, service.name, is_settled)
    assert third.endpoints == second.endpoints, "it went on without its agent"


@pytest.mark.exhaustive
async def test_what_engines_hold_and_take_is_measured_by_service_and_model(
    longshore: Longshore, service: ServiceSpec, control: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await longshore.serve(service.model_copy(update={"replicas": 2}))
    found = await until(longshore, service.name, is_settled)
    gauges: dict[tuple[str, str, str], float] = {}

    class Gauges:
        def set(self, _: object, value: float, *, service: str, model: str, memory: str) -> None:
            gauges[service, model, memory] = value

    metrics = cast(Metrics, Gauges())
    shown = await sample_slots(control, metrics)
    key = service.name, service.model
    assert key in shown
    leased = [each.leased_in_all for each in found.replicas]
    assert leased == [each.estimated for each in found.replicas]
    assert gauges[*key, "leased"] == gauges[*key, "estimated"] == sum(leased) * 1_000_000
    assert 0 < gauges[*key, "used"] <= gauges[*key, "leased"]
    monkeypatch.setattr(sampling, "MOST_SERVICES", 0)
    await sample_slots(control, metrics, shown)
    assert gauges[*key, "leased"] == 0
    assert gauges[OTHERS, OTHERS, "leased"] >= sum(leased) * 1_000_000


async def test_it_is_scaled_an_engine_is_evicted_and_all_is_removed(
    longshore: Longshore, service: ServiceSpec
) -> None:
    await longshore.serve(service)
    served = await until(longshore, service.name, is_settled)
    assert served.simulated
    (first,) = served.replicas
    evicted = await longshore.evict(first.job_id)
    assert (evicted.stopping, evicted.endpoint) == (True, "")
    with pytest.raises(RefusedError, match="is being stopped already"):
        await longshore.evict(first.job_id)
    (second,) = (
        await until(
            longshore,
            service.name,
            lambda found: is_settled(found) and found.replicas[0].job_id != first.job_id,
        )
    ).replicas
    await longshore.scale(service.name, 0)
    await until(longshore, service.name, lambda found: not found.replicas)
    with pytest.raises(NotFoundError, match="no engine"):
        await longshore.evict(second.job_id)
    await longshore.remove_service(service.name)
    await until(longshore, service.name, lambda found: found.state is ServiceState.REMOVED)
    with pytest.raises(RefusedError, match="is removed"):
        await longshore.scale(service.name, 1)
    assert service.name not in [each.name for each in await longshore.services()]
    with pytest.raises(RefusedError, match="is removed"):
        await longshore.undo_rollout(service.name)
    assert (await longshore.serve(service))[0] == 2
    await until(longshore, service.name, is_settled)


@pytest.mark.exhaustive
async def test_an_engine_that_nobody_uses_leaves_for_a_job_and_comes_back(
    longshore: Longshore, service: ServiceSpec, pool: str, tmp_path: Path
) -> None:
    await longshore.serve(service)
    first = await until(longshore, service.name, is_settled)
    await until(longshore, service.name, lambda found: found.replicas[0].idle_since is not None)
    (engine,) = first.replicas
    end = tmp_path / "end"
    job = await longshore.submit(
        a_spec(pool, gpus=4, command=f"until [ -e {end} ]; do sleep 0.1; done")
    )
    await reaches(longshore, job.job_id, JobState.RUNNING)
    plan = (await longshore.explain(engine.job_id)).gave_way
    assert plan is not None
    assert plan.job_id == job.job_id
    assert "idle for" in plan.victims[0].reason
    waits = await until(longshore, service.name, lambda found: bool(found.replicas[0].message))
    assert waits.replicas[0].job_id == engine.job_id, "its job waits for a GPU"
    assert waits.endpoints == ()
    left = waits.replicas[0].left
    assert left is not None
    assert (left.for_job, left.why) == (job.job_id, plan.victims[0].reason)
    told = await longshore.explain(engine.job_id)
    assert told.headline.endswith(FILLS)
    end.touch()
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    again = await until(longshore, service.name, is_settled)
    assert again.replicas[0].job_id == engine.job_id
