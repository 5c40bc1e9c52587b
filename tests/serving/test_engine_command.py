"""The command line of an engine, from its runtime's template and what the node leased to it."""

from pathlib import Path

import pytest

from longshore.activities.serving.engine_command import GPU_MEMORY, arguments, path_of_model
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import EngineSpec, ModelSpec, files_of

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


def test_files_that_were_fetched_each_by_itself_lie_beside_each_other(tmp_path: Path) -> None:
    source = "https://models.example/m-00001-of-00003.gguf"
    environ: dict[str, str] = {}
    for number, variable in enumerate(("MODEL", "MODEL_2", "MODEL_3"), 1):
        folder = tmp_path / variable
        folder.mkdir()
        (folder / f"m-{number:05}-of-00003.gguf").write_text(f"part {number}")
        environ[f"LONGSHORE_DATA_{variable}"] = str(folder)
    first = path_of_model(source, environ, tmp_path)
    assert first.name == "m-00001-of-00003.gguf"
    assert [each.read_text() for each in sorted(first.parent.iterdir())] == [
        "part 1", "part 2", "part 3",
    ]  # fmt: skip
    del environ["LONGSHORE_DATA_MODEL_2"]
    with pytest.raises(ValueError, match=r"m-00002-of-00003.gguf was not fetched"):
        path_of_model(source, environ, tmp_path)


def test_files_of_a_node_stay_where_they_are(tmp_path: Path) -> None:
    for source in ("/m/a.gguf", "/m/a-00001-of-00002.gguf"):
        assert path_of_model(source, {}, tmp_path) == Path(source)
    assert not list(tmp_path.iterdir())
    odd = "https://models.example/m-00001-of-09999.gguf"
    assert files_of(odd) == {"model": odd}, "more than any model has"


def test_llama_cpp_has_the_context_of_all_its_requests_and_each_gpu_a_part_of_its_layers() -> None:
    engine = an_engine("llama.cpp", source="/m/a.gguf", context=1000, concurrency=3)
    command = list(arguments(engine, Path("/m/a.gguf"), 8000, OF_TWO))
    assert value_of("--ctx-size", command) == str(3 * 1024)  # each in steps of 256
    assert value_of("--parallel", command) == "3"
    assert value_of("--tensor-split", command) == "1,1"
