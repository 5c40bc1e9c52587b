"""The command line of an engine, from its runtime's template and what the node leased to it."""

from pathlib import Path

import pytest

from longshore.activities.serving.engine_command import GPU_MEMORY, arguments
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import EngineSpec, ModelSpec

OF_TWO = {"LONGSHORE_GPU_COUNT": "2", GPU_MEMORY: "81559"}


def an_engine(runtime: str, memory: int = 30_750, **fields: object) -> EngineSpec:
    given = {"name": "v", "source": "/m/st", "context": 4096, "concurrency": 256, **fields}
    return EngineSpec(
        model=ModelSpec.model_validate(given), runtime=BUILT_IN[runtime], memory=memory
    )


def value_of(option: str, command: list[str]) -> str:
    return command[command.index(option) + 1]


def test_vllm_has_a_part_of_each_of_its_gpus() -> None:
    engine = an_engine("vllm", adapters={"formal": "/m/f"})
    command = list(arguments(engine, Path("/m/st"), 8000, OF_TWO))
    assert command[:3] == ["vllm", "serve", "/m/st"]
    assert value_of("--tensor-parallel-size", command) == "2"
    assert value_of("--max-model-len", command) == "4096"
    assert value_of("--max-num-seqs", command) == "256"
    assert value_of("--gpu-memory-utilization", command) == "0.3770"
    assert command[-3:] == ["--enable-lora", "--lora-modules", "formal=/m/f"]


@pytest.mark.parametrize(
    ("memory", "whole", "part"),
    [
        (500, 81_559, "0.0061"), (1, 3, "0.3333"), (2, 3, "0.6666"), (81_559, 81_559, "1.00"),
        (90_000, 81_559, "1.00"),
    ],
)  # fmt: skip
def test_the_part_is_never_more_than_its_lease(memory: int, whole: int, part: str) -> None:
    command = list(
        arguments(an_engine("vllm", memory), Path("/m"), 1, {**OF_TWO, GPU_MEMORY: str(whole)})
    )
    assert value_of("--gpu-memory-utilization", command) == part


def test_llama_cpp_has_the_context_of_all_its_requests_and_each_gpu_a_part_of_its_layers() -> None:
    engine = an_engine("llama.cpp", source="/m/a.gguf", context=1000, concurrency=3)
    command = list(arguments(engine, Path("/m/a.gguf"), 8000, OF_TWO))
    assert value_of("--ctx-size", command) == str(3 * 1024)  # each in steps of 256
    assert value_of("--parallel", command) == "3"
    assert value_of("--tensor-split", command) == "1,1"
