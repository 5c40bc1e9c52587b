"""The job of a replica: what its engine is told of the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.runtimes import BUILT_IN
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSize, EngineSpec, ModelSpec
from longshore.scheduling.serving.replica_job import corrected, part_of, replica_spec

MODEL = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
ENGINE = EngineSpec(model=MODEL, runtime=BUILT_IN["llama.cpp"], memory=1000)


@pytest.mark.parametrize(("cpus", "threads"), [(0, "1"), (1, "1"), (2.5, "3"), (8, "8")])
def test_llama_cpp_computes_in_as_many_threads_as_its_replica_has_cores(cpus: float, threads: str):
    job = replica_spec(ServiceSpec(name="s", model="tiny", cpus=cpus), ENGINE, 80.0)
    assert job.env == {"LLAMA_ARG_THREADS": threads}


def test_what_an_engine_took_is_on_each_gpu_in_the_proportion_of_its_size():
    """A quarter more than was stated in all is a quarter more on the GPU with the most layers."""
    stated = ModelSpec(name="six", source="/m/six.gguf", context=8, concurrency=1, memory=400)
    engine = EngineSpec(model=stated, runtime=BUILT_IN["llama.cpp"], memory=400_000)
    four = engine.of_size(EngineSize(gpus=4, memory=133_334))
    assert corrected(four, 500 * 10**9).memory == 166_668
    assert corrected(four, 400 * 10**9) == four
    assert corrected(engine, 500 * 10**9).memory == 500_000
    # Of an estimate, which is a bound for each GPU, each gets as much.
    two = ENGINE.of_size(EngineSize(gpus=2, memory=1000))
    assert corrected(two, 1900 * 10**6) == two
    assert corrected(two, 2100 * 10**6).memory == 1050
    # Of one that took more than is believed as much as that is.
    assert corrected(ENGINE, 4000 * 10**6).memory == 4000
    assert corrected(ENGINE, 7000 * 10**6).memory == 4000


@pytest.mark.parametrize(
    ("memory", "gpu_memory", "milli"),
    [
        (60_000, 80.0, 750), (10_000, 80.0, 125), (60_000, 141.0, 425), (10, 80.0, 1),
        (80_000, 80.0, 999), (300_000, 80.0, 999),
    ],
)  # fmt: skip
def test_an_engine_counts_as_its_part_of_the_memory_of_a_gpu(
    memory: int, gpu_memory: float, milli: int
):
    engine = ENGINE.model_copy(update={"memory": memory})
    job = replica_spec(ServiceSpec(name="s", model="tiny"), engine, gpu_memory)
    assert (job.milli, job.vram_per_gpu) == (milli, memory / 1000)


@given(st.floats(16, 300), st.lists(st.integers(600, 300_000), max_size=40), st.floats(0, 300))
def test_engines_whose_memory_fits_onto_a_gpu_fit_onto_it_by_their_parts(
    size: float, engines: list[int], larger: float
):
    """Whatever larger GPUs there are beside it."""
    held = list[int]()
    for memory in engines:
        if sum(held) + memory <= size * 1000:
            held.append(memory)
    parts = [part_of(memory, size + larger) for memory in held]
    assert sum(parts) <= 1000
