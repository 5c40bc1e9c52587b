"""The speed-up of a malleable job by what its checkpoints say, against Amdahl's law itself."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.scheduling.speedup import MEASURED_FOR, Save, measured
from tests.support.packing import HOUR, NOW

SIZES = Malleable(min=1, max=64)


def stretch(
    gpus: int, seconds_a_step: float, *, begins: datetime = NOW, steps: int = 1000, name: str = ""
) -> list[Save]:
    """Return three saves of a job that kept so many GPUs."""
    return [
        Save(begins + timedelta(seconds=done * seconds_a_step), done, gpus, name or gpus)
        for done in (0, steps // 2, steps)
    ]


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
    saves = [save for gpus in sizes for save in stretch(gpus, by_law(fraction, gpus))]
    found = measured(saves)
    assert found is not None
    assert found.serial_fraction == pytest.approx(fraction, abs=1e-6)
    assert found.sizes == tuple(sorted(sizes))


def test_one_size_says_nothing_nor_does_a_size_of_a_moment() -> None:
    long = stretch(4, 1.0)
    assert measured([]) is measured(long) is None
    steps = int(MEASURED_FOR.total_seconds())
    assert measured([*long, *stretch(8, 0.5, steps=steps)]) is None
    found = measured([*long, *stretch(8, 0.5, steps=2 * steps)])
    assert found is not None
    assert found.serial_fraction == 0


def test_no_time_counts_between_stretches_nor_without_a_step() -> None:
    again = stretch(4, 1.0, begins=NOW + 9 * HOUR, name="later")
    found = measured([*stretch(4, 1.0), *again, *stretch(8, 0.75)])
    assert found is not None
    assert found.serial_fraction == pytest.approx(0.2)  # 1/2 + 2/n seconds a step
    stuck = [Save(NOW, 7, 16, 16), Save(NOW + HOUR, 7, 16, 16)]
    assert measured([*stretch(4, 1.0), *stretch(8, 0.75), *stuck]) == measured(
        [*stretch(4, 1.0), *stretch(8, 0.75)]
    )


@pytest.mark.parametrize(("on_more", "fraction"), [(1.0, 1), (3.0, 1), (0.2, 0)])
def test_more_gpus_than_help_gain_nothing_and_gains_above_their_number_do_not_count(
    on_more: float, fraction: float
) -> None:
    found = measured([*stretch(4, 1.0), *stretch(8, on_more)])
    assert found is not None
    assert found.serial_fraction == fraction
