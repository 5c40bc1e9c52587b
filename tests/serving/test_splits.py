"""On how many GPUs an engine may run, and whether a model has room anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.model_memory import ModelMemory, Serving
from longshore.models.model_registry import ModelFacts
from longshore.models.serving import ModelSpec, Split
from longshore.scheduling.serving.fits import NodeGPUs, Room, room_for
from longshore.scheduling.serving.splits import sizes, why_not_so_many

GB = 10**9
MARKET = {"H100": 80.0, "B300": 288.0}
NODES = (NodeGPUs("a", "H100", 8, 80.0), NodeGPUs("b", "H200", 2, 141.0))


@pytest.mark.parametrize(
    ("heads", "key_heads", "allowed"),
    [
        (32, 8, (1, 2, 4, 8, 16, 32)),
        (40, 8, (1, 2, 4, 8, 40)),  # 20 and 10 go into the heads, and not with 8
        (14, 2, (1, 2, 14)),  # Qwen2.5 0.5B
        (28, 4, (1, 2, 4, 28)),
        (12, 0, (1, 2, 3, 4, 6, 12)),
        (71, 1, (1,)),  # Falcon 7B: 71 GPUs are more than a node has
        (0, 0, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_heads_go_into_gpus(heads: int, key_heads: int, allowed: tuple[int, ...]):
    assert sizes(heads, key_heads, Split.HEADS) == allowed


@given(st.integers(1, 256), st.integers(0, 256), st.sampled_from(Split))
def test_one_gpu_is_first_and_each_number_is_allowed(heads: int, key_heads: int, split: Split):
    allowed = sizes(heads, key_heads, split)
    assert allowed[0] == 1
    assert list(allowed) == sorted(set(allowed))
    for number in range(1, 80):
        assert (why_not_so_many(number, heads, key_heads, split) == "") == (number in allowed)


def test_a_refusal_names_what_would_do():
    why = why_not_so_many(3, 12, 4, Split.HEADS)
    assert why == (
        "is 3, which does not go into 12 attention heads and 4 KV heads: 1, 2, 4 or 12 would do"
    )
    assert why_not_so_many(2, 12, 4, Split.NONE) == "is 2, and its runtime runs on one GPU"
    assert why_not_so_many(17, 0, 0, Split.LAYERS) == "is 17: 16 are the most"
    assert why_not_so_many(3, 0, 0, Split.HEADS) == ""  # nobody knows the heads


def facts(total: int, overhead: int = 0, heads: int = 0) -> ModelFacts:
    memory = ModelMemory(
        source="", architecture="llama", serving=Serving(), weights=total - overhead,
        tensor_types={}, cache=0, cells=0, state=0, compute=0, overhead=overhead, total=total,
        exact=True,
    )  # fmt: skip
    return ModelFacts(memory=memory, heads=heads, key_heads=heads)


def room(
    gb: float, split: Split, nodes: tuple[NodeGPUs, ...] = NODES, *, gpus: int | None = None,
    overhead: float = 0, heads: int = 0,
) -> Room:  # fmt: skip
    spec = ModelSpec(name="m", source="/m", gpus=gpus)
    said = facts(round(gb * GB), round(overhead * GB), heads)
    return room_for(spec, said.memory.total, said, split, nodes, MARKET)


@pytest.mark.parametrize("split", Split)
def test_nothing_is_said_of_what_has_room(split: Split):
    assert room(141, split) == Room()
    assert room(288, split, ()) == Room()


def test_on_one_gpu_the_largest_that_is_known_is_the_limit():
    assert room(288, Split.NONE).warning == (
        "needs 288.0GB on one GPU, and no node that there is has room: the largest GPU has 141GB "
        "(H200 of b), the node with the most 640GB (8 GPUs of a)"
    )
    assert room(289, Split.NONE).refused == (
        "needs 289.0GB on one GPU: the largest that is known has 288GB (B300)"
    )
    own = (NodeGPUs("c", "X", 1, 300.0),)
    assert room(300, Split.NONE, own) == Room()
    assert room(301, Split.NONE, own).refused.endswith("the largest that is known has 300GB")
    assert room(289, Split.HEADS, gpus=1).refused


def test_what_is_split_has_room_on_a_node():
    assert room(640, Split.LAYERS) == Room()
    assert room(641, Split.LAYERS).warning.startswith(
        "needs 641.0GB on 1 to 16 GPUs (80.125GB of each of 8), and no node"
    )
    # 6 of 8 GPUs: 12 heads do not go into 8.
    assert room(480, Split.HEADS, heads=12) == Room()
    assert room(481, Split.HEADS, heads=12).warning
    assert room(161, Split.HEADS, heads=12, gpus=2) == Room()
    assert "on 4 GPUs" in room(400, Split.HEADS, gpus=4).warning


def test_each_gpu_has_the_overhead_of_its_engine():
    assert room(633, Split.LAYERS, overhead=1) == Room()
    assert room(634, Split.LAYERS, overhead=1).warning
