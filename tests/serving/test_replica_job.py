"""The job of a replica: what its engine is told of the machine."""

import pytest

from longshore.models.runtimes import BUILT_IN
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSize, EngineSpec, ModelSpec
from longshore.scheduling.serving.replica_job import corrected, replica_spec

MODEL = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
ENGINE = EngineSpec(model=MODEL, runtime=BUILT_IN["llama.cpp"], memory=1000)


@pytest.mark.parametrize(("cpus", "threads"), [(0, "1"), (1, "1"), (2.5, "3"), (8, "8")])
def test_llama_cpp_computes_in_as_many_threads_as_its_replica_has_cores(cpus: float, threads: str):
    job = replica_spec(ServiceSpec(name="s", model="tiny", cpus=cpus), ENGINE)
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
