"""Services whose model does not fit on one GPU: engines on shares of several, on a real agent."""

import json
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore.client.api import Longshore
from longshore.client.service_readiness import is_settled
from longshore.models.job_status import JobState
from longshore.models.service import ReplicaView, ServiceSpec, ServiceState, ServiceView
from longshore.models.service_messages import service_workflow_id
from longshore.models.serving import ModelSpec
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.gguf_models import Model, write
from tests.support.services import until
from tests.support.waiting import eventually

PATIENCE = 120


@pytest.fixture
async def serve(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
) -> AsyncIterator[Callable[..., Any]]:
    """Serves a model of 31 layers of which it is said how much it needs, on four simulated GPUs
    of 80 GB; all that it served is removed at the end."""
    path = write(Model(layers=31), tmp_path / "tiny.gguf")
    agent.start()
    served: list[str] = []

    async def begin(name: str, memory: str, *, settled: bool = True, **fields: Any) -> ServiceView:
        name = f"{name}-{pool}"
        model = {"name": name, "source": str(path), "memory": memory, "context": 1000}
        model |= {"overhead": "0GB"}
        await longshore.add_models([ModelSpec.model_validate(model)])
        spec = {"name": name, "model": name, "pool": pool, "drain": "1s", **fields}
        await longshore.serve(ServiceSpec.model_validate(spec))
        served.append(name)
        if settled:
            await until(longshore, name, is_settled)
        return await longshore.service(name)

    yield begin
    for name in served:
        await longshore.remove_service(name)
        await until(longshore, name, lambda found: found.state is ServiceState.REMOVED)
        await longshore.temporal.get_workflow_handle(service_workflow_id(name)).result()


def answer_of(replica: ReplicaView) -> str:
    request = urllib.request.Request(
        f"{replica.endpoint}/completions",
        json.dumps({"prompt": "abc", "max_tokens": 4, "temperature": 0}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())["choices"][0]["text"]


@pytest.mark.exhaustive
async def test_an_engine_has_a_share_of_each_of_as_many_gpus_as_it_needs(
    longshore: Longshore, serve: Callable[..., Any], agent: AgentProcess, pool: str
) -> None:
    # Most likely the node is not there yet: then it waits for one GPU at first, and is made anew.
    (wide,) = (await serve("wide", "90GB")).replicas
    # The output is a layer more: 16 of them on one.
    assert (wide.gpu_indices, wide.leased) == ((0, 1), 47_007)
    assert not wide.over
    assert answer_of(wide)
    # Other engines and jobs have the rest: GPUs that are in use are filled first.
    (beside,) = (await serve("beside", "50GB", gpu_type="H100")).replicas
    assert (beside.gpu_indices, beside.leased) == ((2,), 50_000)
    (third,) = (await serve("third", "60GB")).replicas
    assert (third.gpu_indices, third.leased) == ((3,), 60_000)
    # There is room for 60 GB on no GPU now, but on two that have 32.99 each.
    assert third.node_id is not None
    one, two, *_ = (await longshore.model(f"third-{pool}")).sizes
    assert (one.gpus, one.memory, two.gpus, two.memory) == (1, 60_000, 2, 31_338)
    assert third.node_id in one.when_empty
    assert third.node_id not in one.nodes
    assert third.node_id in two.nodes
    (fourth,) = (await serve("fourth", "60GB")).replicas
    assert (fourth.gpu_indices, fourth.leased) == ((0, 1), 31_338)
    (node,) = [each for each in await longshore.nodes() if each.pool == pool]
    assert [gpu.milli_used for gpu in node.gpus] == [978, 978, 625, 750]
    assert [gpu.vram_used for gpu in node.gpus] == pytest.approx([78.345, 78.345, 50, 60])
    environments = [
        each.environ()
        for each in psutil.Process(agent.process.pid).children(recursive=True)
        if "longshore.activities.serving.llama_server" in each.cmdline()
    ]
    seen = sorted(each["CUDA_VISIBLE_DEVICES"] for each in environments)
    assert seen == ["0,1", "0,1", "2", "3"]
    splits = [
        each.cmdline()[each.cmdline().index("--tensor-split") + 1]
        for each in psutil.Process(agent.process.pid).children(recursive=True)
        if "longshore.activities.serving.llama_server" in each.cmdline()
    ]
    assert sorted(splits) == ["1", "1", "1,1", "1,1"]
    small = await longshore.submit(
        a_spec(pool, gpus=2, milli=200, vram_per_gpu=20, command='echo "$CUDA_VISIBLE_DEVICES"')
    )
    assert (await longshore.wait(small.job_id)).state is JobState.SUCCEEDED
    pieces = [piece async for piece in longshore.logs(small.job_id, follow=True)]
    assert b"".join(pieces) == b"2,3\n"


async def test_what_has_room_nowhere_waits_in_the_size_that_an_empty_node_holds(
    longshore: Longshore, serve: Callable[..., Any], pool: str
) -> None:
    async def is_there() -> bool:
        return any(each.pool == pool for each in await longshore.nodes())

    await eventually(is_there, timeout=PATIENCE)
    (first,) = (await serve("first", "280GB")).replicas
    assert (first.gpu_indices, first.leased) == ((0, 1, 2, 3), 74_907)
    found = await serve("second", "150GB", settled=False)

    async def waits() -> str:
        replicas = (await longshore.service(found.name)).replicas
        return next((each.job_id for each in replicas if "1 shares-busy" in each.message), "")

    job = await longshore.job(await eventually(waits, timeout=PATIENCE))
    assert (job.gpus, job.milli) == (2, 979)
