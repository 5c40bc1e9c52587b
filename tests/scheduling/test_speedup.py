"""The speed-up of a malleable job by what its checkpoints say, against Amdahl's law itself."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.scheduling.speedup import MEASURED_FOR, Stretch, measured

SIZES = Malleable(min=1, max=64)


def stretch(gpus: int, seconds_a_step: float, steps: int = 1000) -> Stretch:
    return Stretch(gpus, steps, timedelta(seconds=seconds_a_step * steps))


def by_law(fraction: float, gpus: int) -> float:
    """Return the seconds of a step that one GPU does in ten."""
    return 10 / SIZES.model_copy(update={"serial_fraction": fraction}).speed(gpus)


@given(
    fraction=st.floats(0, 0.99),
    sizes=st.lists(st.integers(1, 64), min_size=2, max_size=5, unique=True),
)
def test_the_fraction_of_a_job_that_follows_the_law_is_found(
    fraction: float, sizes: list[int]
) -> None:
    found = measured([stretch(gpus, by_law(fraction, gpus)) for gpus in sizes])
    assert found is not None
    assert found.serial_fraction == pytest.approx(fraction, abs=1e-4)  # microseconds are rounded
    assert found.sizes == tuple(sorted(sizes))


def test_one_size_says_nothing_nor_does_a_size_of_a_moment() -> None:
    long = stretch(4, 1.0)
    assert measured([]) is measured([long, long]) is None
    half = Stretch(8, 240, MEASURED_FOR / 2)
    assert measured([long, half]) is None
    found = measured([long, half, half])  # they add up
    assert found is not None
    assert found.serial_fraction == 0


def test_each_size_counts_by_its_time_and_one_without_a_step_not_at_all() -> None:
    found = measured([stretch(4, 1.0), stretch(8, 0.75)])
    assert found is not None
    assert found.serial_fraction == pytest.approx(0.2)  # 1/2 + 2/n seconds a step
    stuck = Stretch(16, 0, timedelta(hours=1))
    assert measured([stretch(4, 1.0), stretch(8, 0.75), stuck]) == found
    odd = stretch(16, 0.9, steps=400)
    for_long = measured([*([stretch(4, 1.0), stretch(8, 0.75)] * 100), odd])
    briefly = measured([stretch(4, 1.0), stretch(8, 0.75), odd])
    assert for_long is not None
    assert briefly is not None
    assert for_long.serial_fraction == pytest.approx(0.2, abs=0.01)
    assert briefly.serial_fraction > 0.3


@pytest.mark.parametrize(("on_more", "fraction"), [(1.0, 1), (3.0, 1), (0.2, 0)])
def test_more_gpus_than_help_gain_nothing_and_gains_above_their_number_do_not_count(
    on_more: float, fraction: float
) -> None:
    found = measured([stretch(4, 1.0), stretch(8, on_more)])
    assert found is not None
    assert found.serial_fraction == fraction
