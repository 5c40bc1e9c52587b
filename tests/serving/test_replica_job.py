"""The job of a replica: what its engine is told of the machine."""

import pytest

from longshore.models.runtimes import BUILT_IN
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSpec, ModelSpec
from longshore.scheduling.serving.replica_job import replica_spec

MODEL = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
ENGINE = EngineSpec(model=MODEL, runtime=BUILT_IN["llama.cpp"], memory=1000)


@pytest.mark.parametrize(("cpus", "threads"), [(0, "1"), (1, "1"), (2.5, "3"), (8, "8")])
def test_llama_cpp_computes_in_as_many_threads_as_its_replica_has_cores(cpus: float, threads: str):
    job = replica_spec(ServiceSpec(name="s", model="tiny", cpus=cpus), ENGINE)
    assert job.env == {"LLAMA_ARG_THREADS": threads}
