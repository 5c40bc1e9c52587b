"""Which ranks stay when a gang goes on with fewer, and what that takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.scheduling.ranks import fewest_nodes, most_nodes, named, staying

BY_8 = Malleable(min=8, max=32, step=8)


@pytest.mark.parametrize(
    ("gpus", "sizes", "at_most", "stay"),
    [
        ({0: 8, 1: 8, 2: 8, 3: 8}, BY_8, 24, (0, 1, 2)),
        ({0: 8, 1: 8, 2: 8, 3: 8}, BY_8, 8, (0,)),
        ({0: 8, 1: 8}, BY_8, 4, ()),  # below min
        ({0: 8, 1: 8}, BY_8, None, (0, 1)),  # it is a size already
        ({0: 8, 2: 8, 3: 8}, BY_8, 16, (0, 2)),  # rank 1 was lost before
        ({1: 8, 2: 8}, BY_8, None, ()),  # rank 0 was lost
        ({0: 8, 1: 4, 2: 4}, BY_8, None, (0, 1, 2)),
        ({0: 8, 1: 4}, BY_8, None, (0,)),  # 12 is none of its sizes
        ({0: 4, 1: 8}, BY_8, None, ()),  # nor is 4
        ({0: 8, 1: 8, 2: 8}, Malleable(min=8, max=24, step=16), None, (0, 1, 2)),
        ({0: 8, 2: 8}, Malleable(min=8, max=24, step=16), None, (0,)),
    ],
)
def test_the_highest_leave_until_what_stays_is_a_size(
    gpus: dict[int, int], sizes: Malleable, at_most: int | None, stay: tuple[int, ...]
):
    assert staying(gpus, sizes, at_most) == stay


@given(
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=12),
    lost=st.sets(st.integers(0, 11)),
    low=st.integers(1, 12),
    step=st.integers(1, 8),
    steps=st.integers(0, 12),
    at_most=st.none() | st.integers(1, 96),
)
def test_what_stays_has_a_size_and_rank_0_and_everybody_below_its_highest(
    gpus: list[int], lost: set[int], low: int, step: int, steps: int, at_most: int | None
):
    sizes = Malleable(min=low, max=low + steps * step, step=step)
    has = {rank: number for rank, number in enumerate(gpus) if rank not in lost}
    stay = staying(has, sizes, at_most)
    prefixes = [sorted(has)[:number] for number in range(1, len(has) + 1)]

    def fits(ranks: list[int]) -> bool:
        total = sum(has[rank] for rank in ranks)
        return 0 in ranks and total in sizes.sizes and (at_most is None or total <= at_most)

    fitting = [ranks for ranks in prefixes if fits(ranks)]
    assert list(stay) == (fitting[-1] if fitting else [])


@pytest.mark.parametrize(
    ("nodes", "fewest"),
    [([8, 8, 8], 1), ([4, 4, 4], 2), ([2, 6, 4], 2), ([2, 2, 2, 2], 4), ([8], 1), ([1, 8], 1)],
)
def test_the_fewest_nodes_that_hold_the_smallest_size(nodes: list[int], fewest: int):
    assert fewest_nodes(nodes, BY_8) == fewest


def test_who_leaves_is_named():
    assert named([3]) == "rank 3 leaves"
    assert named([1, 2, 3]) == "ranks 1, 2 and 3 leave"
    assert named(list(range(4, 20))) == "ranks 4 to 19 leave"
    assert named([2], "join") == "rank 2 joins"
    assert named([2, 3], "join") == "ranks 2 and 3 join"


@pytest.mark.parametrize(("nodes", "most"), [([8, 8], 3), ([4], 6), ([8, 4], 6), ([8, 8, 8], 3)])
def test_the_most_nodes_that_it_can_ever_have(nodes: list[int], most: int):
    assert most_nodes(nodes, Malleable(min=4, max=24, step=4)) == most
