"""Which GPUs a job gets, against the best of all possible choices."""

import time
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.placement import GPUChoice
from longshore.scheduling.placement.gpus import (
    average_gap,
    choose,
    indices_of,
    mask_of,
    run_lengths,
)

CONTIGUOUS, FIRST_FREE = GPUChoice.CONTIGUOUS, GPUChoice.FIRST_FREE


@st.composite
def questions(draw: st.DrawFn) -> tuple[int, int, int]:
    """Usable GPUs, free GPUs (a superset), and how many are wanted."""
    usable = draw(st.sets(st.integers(0, 9), min_size=1))
    free = usable | draw(st.sets(st.integers(0, 9)))
    return mask_of(usable), mask_of(free), draw(st.integers(1, len(usable)))


@given(questions())
def test_the_choice_is_the_best_of_all(question: tuple[int, int, int]) -> None:
    usable, free, count = question
    options = list(combinations(indices_of(usable), count))
    least = min(average_gap(option) for option in options)
    close = [option for option in options if average_gap(option) == pytest.approx(least)]
    longest = max(run_lengths(free & ~mask_of(option)) for option in close)
    best = [option for option in close if run_lengths(free & ~mask_of(option)) == longest]

    chosen = choose(usable, free, count, CONTIGUOUS)

    assert chosen.indices == min(best)
    assert chosen.mask == mask_of(chosen.indices)
    assert chosen.gap == pytest.approx(least)


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        pytest.param({0, 2, 3, 4, 5, 6, 7}, 1, (0,), id="an isolated GPU before a run"),
        pytest.param({0, 1, 2, 3, 6, 7}, 2, (6, 7), id="a run that fits exactly"),
        pytest.param({0, 1, 2, 3, 4, 5, 6, 7}, 3, (0, 1, 2), id="the edge of an empty node"),
        pytest.param({1, 2, 3, 5, 6, 7}, 2, (1, 2), id="the lowest of equals"),
        pytest.param({0, 3, 5, 7}, 2, (3, 5), id="the closest when none are neighbours"),
        pytest.param(set(range(16)), 16, tuple(range(16)), id="all sixteen"),
    ],
)
def test_contiguous_takes(free: set[int], count: int, expected: tuple[int, ...]) -> None:
    mask = mask_of(free)
    assert choose(mask, mask, count, CONTIGUOUS).indices == expected


def test_a_free_gpu_that_the_job_cannot_use_still_makes_a_run() -> None:
    # GPU 3 has too little memory for this job, but 2-3-4 is a run for others.
    usable, free = mask_of({0, 2, 4}), mask_of({0, 2, 3, 4})
    assert choose(usable, free, 1, CONTIGUOUS).indices == (0,)


def test_first_free_takes_by_index() -> None:
    mask = mask_of({0, 1, 3, 4, 5, 6})
    assert choose(mask, mask, 4, FIRST_FREE).indices == (0, 1, 3, 4)


@pytest.mark.parametrize("count", [0, 3])
def test_an_impossible_choice_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="cannot choose"):
        choose(0b101, 0b101, count, CONTIGUOUS)


@given(st.sets(st.integers(0, 30)))
def test_masks_and_indices_are_the_same_thing(indices: set[int]) -> None:
    assert indices_of(mask_of(indices)) == tuple(sorted(indices))
    assert sum(run_lengths(mask_of(indices))) == len(indices)


def test_gpus_are_read_from_a_set_in_no_time_that_grows_with_the_highest_index() -> None:
    """It grew by its square: this took half a minute."""
    begin = time.process_time()
    assert indices_of(mask_of((0, 1_000_000))) == (0, 1_000_000)
    assert time.process_time() - begin < 1
