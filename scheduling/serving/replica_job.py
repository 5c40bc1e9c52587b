"""The job of one replica of a service. Pure."""

import math
from datetime import timedelta

from longshore.models.data import DataSet
from longshore.models.job import JobSpec
from longshore.models.resources import WHOLE
from longshore.models.retry import RetryPolicy, RetryRule
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSpec, fetched

_AGAIN = RetryRule(
    max_retries=None, backoff=timedelta(seconds=1), max_backoff=timedelta(minutes=5)
)
"""An engine that ends is started again, ever later: it serves until somebody stops it."""
_THREADS = "LLAMA_ARG_THREADS"
"""llama.cpp takes all cores of its node unless it is told, and its threads wait for each other at
each layer: on a busy node it hardly gets on, and neither does who shares it."""
_LEAVES = timedelta(seconds=5)
"""Beyond the time to drain, for the engine to end by itself."""
_BELIEVED = 4
"""Of an engine no more than so many times what was reckoned is believed."""


def corrected(engine: EngineSpec, seen: int) -> EngineSpec:
    """Return an engine with the memory that one like it was seen to take, `seen` bytes in all,
    where that is more than was reckoned.

    Of what its model states each GPU has its part, which need not be the same for all: it gets as
    many times that as was taken in all. Of an estimate each GPU gets as much.
    """
    if (stated := engine.model.memory) is not None:
        taken = -(-engine.memory * seen // max(round(stated * 1e9), 1))
    else:
        taken = -(-seen // ((engine.model.gpus or 1) * 1_000_000))
    taken = min(taken, _BELIEVED * engine.memory)
    return engine if taken <= engine.memory else engine.model_copy(update={"memory": taken})


def part_of(memory: int, gpu_memory: float) -> int:
    """Return the thousandths of a GPU that an engine with so many MB of it counts as, to quotas,
    budgets, prices and the queue: its part of the memory, since who has the memory keeps others
    off the GPU. `gpu_memory` is GB.

    Of the largest GPU that it may be on: so the parts of engines whose memory fits onto a GPU
    never exceed that GPU. A whole GPU is no part: one thousandth less is.
    """
    return min(max(int(memory / gpu_memory), 1), WHOLE - 1)


def replica_spec(service: ServiceSpec, engine: EngineSpec, gpu_memory: float) -> JobSpec:
    """Return the job that runs an engine of this service.

    It holds the memory that the engine needs of each of its GPUs, and shares the rest with others.
    `gpu_memory` is the GB of the largest GPU that it may be on.
    """
    return JobSpec(
        name=service.name,
        tenant=service.tenant,
        pool=service.pool,
        priority=service.priority,
        labels={"service": service.name},
        gpus=engine.model.gpus or 1,
        gpu_type=service.gpu_type,
        vram_per_gpu=engine.memory / 1000,
        milli=part_of(engine.memory, gpu_memory),
        cpus=service.cpus,
        ram=service.ram,
        env={_THREADS: str(max(1, math.ceil(service.cpus)))},
        constraints=service.constraints,
        funding=service.funding,
        engine=engine.model_copy(update={"service": service.name}),
        data={
            name: DataSet.model_validate({"from": source, "start_at": 1.0})
            for name, source in fetched(engine.model).items()
        },
        retry=RetryPolicy(
            user=_AGAIN, start=_AGAIN, out_of_memory=_AGAIN,
            node=RetryRule(max_retries=None, backoff=timedelta(seconds=1)),
        ),
        stop_grace=service.drain + _LEAVES,
    )  # fmt: skip
