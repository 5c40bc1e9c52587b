"""An engine that nobody uses leaves for a job of any class and for another engine; one in use for
an engine of its class that has waited for its turn. On a real agent, with real engines."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from longshore.client.api import Longshore
from longshore.client.place import ModelName, place_live
from longshore.client.service_readiness import is_settled
from longshore.models.explanation import Explanation
from longshore.models.job import JobSpec
from longshore.models.job_request import FILLS
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPolicy
from longshore.models.service import ServiceSpec, ServiceState, ServiceView
from longshore.models.service_messages import service_workflow_id
from longshore.models.serving import ModelSpec
from longshore.models.settings import Settings
from tests.support.agent import AgentProcess
from tests.support.control import a_spec, reaches
from tests.support.gguf_models import Model, write
from tests.support.http_client import engine_client
from tests.support.services import until
from tests.support.waiting import eventually

PATIENCE = 180
ALL = "280GB"
"""Of the four simulated GPUs of 80 GB: there is room for one engine."""


@pytest.fixture
async def serve(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
) -> AsyncIterator[Callable[..., Any]]:
    """Serves models that each take all GPUs of a node, on a pool that looks when something has
    happened, or somebody has its turn; all that it served is removed at the end."""
    rules = PreemptionPolicy(max_wait=timedelta(seconds=1))
    spec = PoolSpec(name=pool, interval=timedelta(minutes=10), preemption=rules)
    await longshore.set_pool(spec)
    path = write(Model(layers=31), tmp_path / "tiny.gguf")
    agent.start()
    await eventually(lambda: agent.says("epoch 1"), timeout=PATIENCE)
    served: list[str] = []

    async def begin(name: str, *, prewarm: bool = False, memory: str = ALL, **fields: Any) -> str:
        name = f"{name}-{pool}"
        model = {"name": name, "source": str(path), "memory": memory, "prewarm": prewarm}
        await longshore.add_models([ModelSpec.model_validate(model)])
        spec = {"name": name, "model": name, "pool": pool, "drain": "60s", **fields}
        await longshore.serve(ServiceSpec.model_validate(spec))
        served.append(name)
        return name

    yield begin
    for name in served:
        await longshore.remove_service(name)
    for name in served:
        await until(longshore, name, lambda found: found.state is ServiceState.REMOVED)
        await longshore.temporal.get_workflow_handle(service_workflow_id(name)).result()


def is_idle(found: ServiceView) -> bool:
    return bool(found.replicas) and found.replicas[0].idle_since is not None


@pytest.mark.exhaustive
async def test_one_that_nobody_uses_leaves_for_another_engine_and_for_a_job_of_a_lower_class(
    longshore: Longshore,
    serve: Callable[..., Any],
    pool: str,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LONGSHORE_DATABASE_URL", settings.resolve_database_url())
    first = await serve("first")
    await until(longshore, first, is_idle)
    foreseen, _ = await place_live(ModelName(first), pool, datetime.now(UTC))
    assert foreseen.stops is not None
    assert not foreseen.stops.preempts, "it is of the same model"
    second = f"second-{pool}"
    model = {"name": second, "source": "/m/tiny.gguf", "memory": ALL}
    await longshore.add_models([ModelSpec.model_validate(model)])
    foreseen, _ = await place_live(ModelName(second), pool, datetime.now(UTC))
    assert foreseen.stops is not None
    assert [victim.job_id for victim in foreseen.stops.victims] == [
        each.job_id for each in (await longshore.service(first)).replicas
    ]
    assert await serve("second") == second
    (taken,) = (await until(longshore, second, is_settled)).replicas
    left = await until(longshore, first, lambda found: found.replicas[0].left is not None)
    assert left.replicas[0].left is not None
    assert left.replicas[0].left.for_job == taken.job_id
    assert "idle for" in left.replicas[0].left.why
    plan = (await longshore.explain(left.replicas[0].job_id)).gave_way
    assert plan is not None
    assert "yields since nobody asks it" in plan.reason
    # It comes back where there is room: else the two would have each other stopped for ever.
    left_id = left.replicas[0].job_id
    told = await longshore.explain(left_id)
    assert told.headline.endswith(FILLS)
    evicts = f"have its service start another, which has its turn: `longshore evict {left_id}`"
    assert evicts in told.hints

    await until(longshore, second, is_idle)
    end = tmp_path / "end"
    command = f"until [ -e {end} ]; do sleep 0.1; done"
    job = await longshore.submit(a_spec(pool, gpus=4, priority=0, command=command))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    end.touch()
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED


async def test_one_in_use_leaves_for_an_engine_of_its_class_that_has_waited_for_its_turn(
    longshore: Longshore, serve: Callable[..., Any]
) -> None:
    first = await serve("first")
    (engine,) = (await until(longshore, first, is_settled)).replicas
    answers: list[str] = []
    over = asyncio.Event()

    def answers_or_is_over(found: ServiceView) -> bool:
        return over.is_set() or bool(found.replicas[0].endpoint)

    async def ask() -> None:
        """Use it from its first second on; what was begun is answered, however it leaves."""
        async with engine_client() as http:
            while not over.is_set():
                (found,) = (await until(longshore, first, answers_or_is_over)).replicas
                if not found.endpoint:
                    return
                body = {"prompt": "a", "max_tokens": 200, "stream": True, "ignore_eos": True}
                url = f"{found.endpoint}/completions"
                async with http.stream("POST", url, json=body) as answer:
                    lines = [line async for line in answer.aiter_lines() if line]
                answers.append(lines[-1])

    async with asyncio.TaskGroup() as asking:
        asking.create_task(ask())
        second = await serve("second")
        (taken,) = (await until(longshore, second, is_settled)).replicas
        over.set()
    left = (await longshore.service(first)).replicas[0].left
    assert left is not None
    assert left.for_job == taken.job_id
    assert "in use, of class 5, drained" in left.why
    plan = (await longshore.explain(engine.job_id)).gave_way
    assert plan is not None
    assert "yields since the other has waited for its turn" in plan.reason
    assert set(answers) == {"data: [DONE]"}
    # It had been asked: so it waits for its own turn, and does not only fill what is free.
    assert not (await longshore.explain(engine.job_id)).headline.endswith(FILLS)


@pytest.mark.exhaustive
async def test_each_has_its_turn_also_the_newest_and_while_a_job_waits_before_it(
    longshore: Longshore, serve: Callable[..., Any], pool: str, settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By age the two that came first would have each turn, and the job would keep their place."""
    at_once = timedelta(seconds=1)
    rules = {"max_wait": at_once, "cooldown": at_once, "min_run": at_once, "max_per_hour": 1000}
    spec = {"name": pool, "interval": at_once, "packing": {"order": "age"}, "preemption": rules}
    await longshore.set_pool(PoolSpec.model_validate(spec))
    over = asyncio.Event()
    came: list[str] = []

    async def ask(name: str) -> None:
        async def endpoint_or_over() -> str:
            replicas = (await longshore.service(name)).replicas
            found = next((each.endpoint for each in replicas if each.endpoint), None)
            return found or ("over" if over.is_set() else "")

        async with engine_client() as http:
            while not over.is_set():
                endpoint = await eventually(endpoint_or_over, timeout=PATIENCE)
                body = {"prompt": "a", "max_tokens": 50, "stream": True, "ignore_eos": True}
                with contextlib.suppress(httpx.HTTPError):  # it leaves at this moment
                    async with http.stream("POST", f"{endpoint}/completions", json=body):
                        came.append(name)

    async with asyncio.TaskGroup() as asking:
        names = [await serve("first")]
        await until(longshore, names[0], is_settled)
        asking.create_task(ask(names[0]))
        job = await longshore.submit(a_spec(pool, gpus=4, priority=5, command="true"))
        await reaches(longshore, job.job_id, JobState.QUEUED)
        for name in ("second", "third"):
            names.append(await serve(name))
            asking.create_task(ask(names[-1]))
        monkeypatch.setenv("LONGSHORE_DATABASE_URL", settings.resolve_database_url())
        model = {"name": f"fourth-{pool}", "source": "/m/tiny.gguf", "memory": ALL}
        await longshore.add_models([ModelSpec.model_validate(model)])
        told, _ = await place_live(ModelName(f"fourth-{pool}"), pool, datetime.now(UTC))
        assert told.stops is not None
        assert re.search("it has its turn from .* UTC on: as things are now, ", told.stops.reason)
        assert "waits with the same model already" not in told.stops.reason

        async def told_of_a_turn() -> Explanation | None:
            waiting = [one for name in names for one in (await longshore.service(name)).replicas]
            found = [await longshore.explain(one.job_id) for one in waiting if not one.endpoint]
            told = [one for one in found if "it has its turn" in one.headline]
            # Once another is being stopped for it nothing is weighed.
            return next((one for one in told if one.weighed), None)

        why = await eventually(told_of_a_turn, timeout=PATIENCE)
        assert why is not None
        assert why.weighed is not None
        assert why.job.estimated_start is None, "as jobs end in time it is later"
        assert why.weighed.ways, "each way has its price"

        async def all_came() -> bool:
            return {*came} == {*names}

        came.clear()
        await eventually(all_came, timeout=PATIENCE)
        assert (await longshore.status(job.job_id)).state is JobState.QUEUED
        await longshore.cancel(job.job_id)
        over.set()


@pytest.mark.exhaustive
async def test_one_that_is_prewarmed_fills_free_memory_and_is_stale_from_birth(
    longshore: Longshore, serve: Callable[..., Any], pool: str, tmp_path: Path
) -> None:
    def holds_all(end: str) -> JobSpec:
        command = f"until [ -e {tmp_path / end} ]; do sleep 0.1; done"
        return a_spec(pool, gpus=4, priority=0, command=command)

    job = await longshore.submit(holds_all("first"))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    warm = await serve("warm", prewarm=True, priority=9)
    waits = await until(
        longshore, warm, lambda found: bool(found.replicas and found.replicas[0].message)
    )
    why = await longshore.explain(waits.replicas[0].job_id)
    assert why.headline.endswith(FILLS)
    assert not [hint for hint in why.hints if "evict" in hint], "it would be prewarmed too"
    assert (await longshore.status(job.job_id)).state is JobState.RUNNING
    (tmp_path / "first").touch()
    await until(longshore, warm, is_settled)

    last = await longshore.submit(holds_all("last"))
    await reaches(longshore, last.job_id, JobState.RUNNING)
    (engine,) = (await longshore.service(warm)).replicas
    assert engine.left is not None
    assert engine.left.for_job == last.job_id
    assert "prewarmed and unused" in engine.left.why
    (tmp_path / "last").touch()
    await until(longshore, warm, is_settled)


async def test_of_prewarmed_models_each_has_a_copy_before_one_has_two(
    longshore: Longshore, serve: Callable[..., Any], pool: str, tmp_path: Path
) -> None:
    """The first model came first, with all of its replicas, and there is room for two engines."""
    command = f"until [ -e {tmp_path / 'end'} ]; do sleep 0.1; done"
    job = await longshore.submit(a_spec(pool, gpus=4, priority=0, command=command))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    half = {"prewarm": True, "memory": "150GB", "replicas": 2}
    first, second = await serve("first", **half, priority=9), await serve("second", **half)

    def all_wait(found: ServiceView) -> bool:
        return [bool(each.message) for each in found.replicas] == [True, True]

    for name in (first, second):
        await until(longshore, name, all_wait)
    (tmp_path / "end").touch()
    for name in (first, second):
        await until(longshore, name, lambda found: found.ready == 1)
