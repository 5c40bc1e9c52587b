"""On how many GPUs an engine may run, with how much of each, and which of these sizes it gets."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.activities.serving.gguf import read_header
from longshore.activities.serving.model_facts import read_files
from longshore.models.gguf import GGUFHeader
from longshore.models.job_request import JobRequest
from longshore.models.model_memory import ModelMemory, Serving
from longshore.models.model_registry import ModelFacts
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy
from longshore.models.serving import EngineSize, ModelSpec, Split
from longshore.scheduling.serving.engine_sizes import engine_sizes
from longshore.scheduling.serving.replica_sizes import choose_sizes
from tests.scheduling.test_parts import node_of
from tests.support.gguf_models import Model, write
from tests.support.packing import NOW, a_job

GB = 10**9
_BASE = Model(layers=7, width=512, heads=8, key_heads=2, inner=1024, vocabulary=4000)
MODELS = {
    "plain": _BASE,
    "tied": replace(_BASE, tied=True, layers=5, vocabulary=20_000),
    "windows": replace(_BASE, architecture="gemma3", key=64, window=512, layers=12),
    "states": replace(_BASE, architecture="mamba"),
    "blocks": replace(_BASE, type=gguf.GGMLQuantizationType.Q8_0, layers=31),
}


def sizes_of(
    split: Split, total: float = 0, facts: ModelFacts | None = None, **model: Any
) -> list[tuple[int, int]]:
    spec = ModelSpec.model_validate({"name": "m", "source": "/m", "overhead": 0, **model})
    found = engine_sizes(spec, facts, split, round(total * GB))
    return [(size.gpus, size.memory) for size in found]


def facts(heads: int = 0, key_heads: int = 0, layers: int = 0, **parts: int) -> ModelFacts:
    usual = {"weights": 0, "cache": 0, "state": 0, "compute": 0, "overhead": 0} | parts
    said = {"source": "", "architecture": "llama", "serving": {}, "tensor_types": {}}
    said |= {"cells": 0, "exact": True, "total": sum(usual.values())}
    memory = ModelMemory.model_validate(said | usual)
    return ModelFacts(memory=memory, heads=heads, key_heads=key_heads, layers=layers)


def test_what_is_stated_is_divided_by_the_sizes_that_the_runtime_can():
    heads = facts(heads=12, key_heads=4)
    assert sizes_of(Split.HEADS, 60, heads, memory="60GB") == [
        (1, 60_000), (2, 30_000), (4, 15_000), (12, 5_000),
    ]  # fmt: skip
    assert sizes_of(Split.NONE, 10, memory="10GB") == [(1, 10_000)]
    assert sizes_of(Split.HEADS, 60, heads, memory="60GB", gpus=4) == [(4, 15_000)]
    assert sizes_of(Split.NONE, 0.0000001, memory="1kB") == [(1, 1)]


def test_what_is_stated_is_in_the_proportion_of_layers():
    """The output is one layer more: of seven on five GPUs one has two."""
    assert sizes_of(Split.LAYERS, 400, facts(layers=6), memory="400GB") == [
        (1, 400_000), (2, 266_667), (3, 200_000), (4, 133_334),
    ]  # fmt: skip
    assert sizes_of(Split.LAYERS, 400, facts(layers=6), memory="400GB", gpus=5) == [(5, 133_334)]
    # What is in no layer may be on any.
    of = facts(layers=6)
    memory = of.memory.model_copy(update={"layers": 6, "largest_layer": 3, "outside": 2})
    of = of.model_copy(update={"memory": memory})
    assert sizes_of(Split.LAYERS, 400, of, memory="400GB", gpus=4) == [(4, 160_000)]
    # Nobody knows the layers of a file that is on nodes alone.
    assert sizes_of(Split.LAYERS, 400, None, memory="400GB", gpus=4) == [(4, 100_000)]


def test_no_gpu_has_less_than_the_overhead_of_what_is_stated():
    stated: dict[str, Any] = {"memory": "900MB", "overhead": "750MB"}
    assert sizes_of(Split.LAYERS, 0.9, facts(layers=5), **stated) == [
        (1, 900), (2, 750),
    ]  # fmt: skip
    assert sizes_of(Split.HEADS, 160, memory="160GB", overhead="1GB", gpus=2) == [(2, 80_000)]
    # What is stated is below the overhead.
    assert sizes_of(Split.HEADS, 0.5, memory="500MB", overhead="1GB", gpus=2) == [(2, 500)]


def test_by_heads_a_kv_head_is_on_as_many_gpus_as_it_has_to_be():
    of = facts(heads=8, key_heads=2, weights=32 * GB, cache=8 * GB, compute=GB, overhead=GB)
    assert sizes_of(Split.HEADS, 42, of) == [
        (1, 42_000), (2, 22_000), (4, 14_000), (8, 10_000),
    ]  # fmt: skip


def test_more_gpus_that_leave_no_less_on_each_are_no_size():
    """What is computed and the output are on each: three layers are soon divided."""
    of = facts(layers=3, weights=3 * GB, compute=GB).model_copy(deep=True)
    memory = of.memory.model_copy(update={"layers": 3, "largest_layer": GB, "outside": 0})
    found = sizes_of(Split.LAYERS, 4, of.model_copy(update={"memory": memory}))
    assert found[0] == (1, 4_000)
    assert [gpus for gpus, _ in found] == [1]  # 4 GB of what is computed on each of two


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("gpus", [2, 3, 5])
def test_no_gpu_gets_more_layers_of_llama_cpp_than_its_size_says(
    tmp_path: Path, name: str, gpus: int
):
    model = MODELS[name]
    path = write(model, tmp_path / "model.gguf", None)
    serving = Serving(context=4096, concurrency=3, overhead=0.0)
    read = read_files(str(path)).facts(serving, context_is_said=True)
    spec = ModelSpec(name="m", source=str(path), gpus=gpus, overhead=0.0)
    (size,) = engine_sizes(spec, read, Split.LAYERS, read.memory.total)
    with path.open("rb") as file:
        header = read_header(file, path.stat().st_size, path.name)
    most = max(_bytes_by_gpu(header, model, gpus).values())
    caches = (read.memory.cache + read.memory.state) / model.layers
    layers = max(Counter(_gpu_of(at, model.layers, gpus) for at in range(model.layers)).values())
    assert size.memory * 10**6 >= most + layers * caches + read.memory.compute
    # And not a whole model on each.
    body = read.memory.total - read.memory.outside - read.memory.compute
    share = -(-(model.layers + 1) // gpus) / model.layers
    assert size.memory * 10**6 <= (
        2 * share * body + read.memory.outside + 4 * read.memory.compute + 10**6
    )


def _gpu_of(layer: int, layers: int, gpus: int) -> int:
    """Where llama.cpp puts a layer, of which the output is one more."""
    return layer * gpus // (layers + 1)


def _bytes_by_gpu(header: GGUFHeader, model: Model, gpus: int) -> Counter[int]:
    found = Counter[int]()
    for tensor in header.tensors:
        if tensor.name.startswith("blk."):
            layer = int(tensor.name.split(".")[1])
            found[_gpu_of(layer, model.layers, gpus)] += tensor.size
        elif tensor.name.startswith("output") or model.tied:
            found[gpus - 1] += tensor.size
    return found


def options(*sizes: tuple[int, float]) -> list[JobRequest]:
    return [
        a_job("", gpus, milli=1, vram_per_gpu=gb, cpus=1, ram=1, serves=True) for gpus, gb in sizes
    ]


def chosen(
    wanted: list[JobRequest], nodes: list[Node], count: int = 1, largest: float = 80
) -> tuple[int, ...]:
    return choose_sizes(wanted, count, nodes, PackingPolicy(), NOW, largest)


def full(gb: float) -> dict[str, Any]:
    return {"milli_used": 1, "vram_used": gb}


def test_the_fewest_gpus_that_have_room_now_are_taken():
    wanted = options((1, 60), (2, 31), (4, 16))
    assert chosen(wanted, [node_of({}, {}, {}, {})]) == (0,)
    assert chosen(wanted, [node_of(full(30), full(40), full(70), full(70))]) == (1,)
    assert chosen(wanted, [node_of(*[full(60)] * 4)]) == (2,)
    # On one node, not on two.
    assert chosen(wanted, [node_of(full(30), name="a"), node_of(full(40), name="b")]) == (0,)


def test_each_replica_is_beside_those_before_it():
    wanted = options((1, 60), (2, 31))
    assert chosen(wanted, [node_of({}, {}, {})], count=3) == (0, 0, 0)
    assert chosen(wanted, [node_of({}, full(45), full(45))], count=3) == (0, 1, 0)


def test_where_none_has_room_it_is_what_an_empty_node_would_hold():
    wanted = options((1, 100), (2, 50), (4, 25))
    assert chosen(wanted, [node_of(*[full(79)] * 4)]) == (1,)
    assert chosen(options((1, 400), (2, 200), (4, 100)), [node_of({}, {}), node_of({})]) == (2,)
    assert chosen(wanted, [], largest=80) == (1,)
    assert chosen(wanted, [], largest=180) == (0,)


@given(
    st.lists(st.integers(0, 79), min_size=1, max_size=6),
    st.integers(1, 120),
    st.integers(1, 4),
)
def test_what_is_chosen_has_room_beside_the_others(used: list[int], gb: int, count: int):
    wanted = options(*((gpus, gb / gpus) for gpus in (1, 2, 4)))
    found = chosen(wanted, [node_of(*map(full, used))], count)
    assert found == chosen(wanted, [node_of(*map(full, used))], count)
    assert len(found) == count
    free = sorted((80 - gb for gb in used), reverse=True)
    fits = [gpus <= len(free) and free[gpus - 1] >= gb / gpus for gpus in (1, 2, 4)]
    if any(fits):
        assert found[0] == fits.index(True)


def test_sizes_are_told_as_they_are_stored():
    assert EngineSize.model_validate({"gpus": 2, "memory": 40}).model_dump() == {
        "gpus": 2, "memory": 40,
    }  # fmt: skip
