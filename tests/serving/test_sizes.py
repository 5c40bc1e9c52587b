"""How much of a model each of several GPUs has."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduling.serving.sizes import split_layers
from longshore.scheduling.serving.slots import LayerSplit


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
