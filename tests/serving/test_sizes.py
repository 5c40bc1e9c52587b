"""On how many GPUs a model can be, and how much of it each has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.errors import UnsatisfiableError
from longshore.scheduling.serving.sizes import (
    even_sizes,
    parallel_sizes,
    split_layers,
    why_not_parallel,
)
from longshore.scheduling.serving.slots import LayerSplit


@pytest.mark.parametrize(
    ("heads", "key_heads", "sizes"),
    [
        (32, 8, (1, 2, 4, 8, 16, 32)),  # Llama 3 8B: KV heads are copied beyond 8
        (28, 4, (1, 2, 4, 28)),  # Qwen2.5 7B: 7 and 14 divide the heads, and not the KV heads
        (12, 12, (1, 2, 3, 4, 6, 12)),
        (14, 2, (1, 2, 14)),
        (71, 1, (1,)),  # Falcon 7B, on 64 GPUs at most
    ],
)
def test_sizes_divide_the_heads(heads: int, key_heads: int, sizes: tuple[int, ...]):
    assert parallel_sizes(heads, key_heads) == sizes


def test_it_is_said_what_does_not_divide():
    assert why_not_parallel(3, 32, 8) == "3 does not divide 32 attention heads"
    assert why_not_parallel(7, 28, 4) == "7 neither divides 4 KV heads nor is a multiple of them"
    assert why_not_parallel(4, 32, 8) is None
    with pytest.raises(UnsatisfiableError, match="0 attention heads"):
        parallel_sizes(0, 8)


def test_an_equal_part_is_rounded_up():
    assert even_sizes(140_001, (2, 1), 500) == ((140_501,), (70_501, 70_501))


def test_layers_go_where_room_is():
    split = LayerSplit(layers=30, mb=3_000, fixed=1_000)
    assert split_layers(split, [80_000, 40_000]) == (61_000, 31_000)
    assert split_layers(split, [91_000]) == (91_000,)
    assert split_layers(split, [90_999]) is None
    assert split_layers(split, [90_000, 3_999]) is None


@given(
    st.integers(1, 80), st.integers(1, 50), st.integers(0, 100),
    st.lists(st.integers(0, 4000), min_size=1, max_size=6),
)  # fmt: skip
def test_all_layers_are_somewhere_and_within_the_rooms(
    layers: int, mb: int, fixed: int, rooms: list[int]
) -> None:
    made = split_layers(LayerSplit(layers, mb, fixed), rooms)
    fits = [max(room - fixed, 0) // mb for room in rooms]
    possible = min(fits) >= 1 and sum(fits) >= layers >= len(rooms)
    assert (made is not None) is possible
    if made is not None:
        assert all(each <= room for each, room in zip(made, rooms, strict=True))
        assert sum(each - fixed for each in made) == layers * mb
        assert all(each > fixed for each in made)
