"""What a change of the size of a malleable job costs and earns."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.scheduling.elastic import Running, change_cost, growth, shrunk_by
from tests.support.packing import HOUR, a_job

_DOLLAR = 1_000_000
J2, J4, J17 = (
    Malleable(min=8, max=24, step=8), Malleable(min=96, max=160, step=32),
    Malleable(min=8, max=16, step=8),
)  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "now", "missing", "left"),
    [
        (J17, 16, 2, 8),  # one group, though 2 GPUs are enough
        (J17, 8, 2, None),
        (J4, 160, 32, 128),
        (J4, 160, 33, 96),
        (J4, 160, 65, None),
        (J2, 24, 8, 16),  # J1e
        (Malleable(min=16, max=48, step=8), 16, 8, None),  # J2c: the text goes to 0, below min
        (J2, 24, 0, 24),
    ],
)
def test_a_shrink_takes_whole_steps_and_stays_above_min(
    sizes: Malleable, now: int, missing: int, left: int | None
):
    assert shrunk_by(sizes, now, missing) == left


def test_a_job_of_another_size_takes_its_share_of_the_rest():
    job = a_job("j2", gpus=24, cpus=48, ram=240, storage_bandwidth=6, malleable=J2)
    small = job.at_size(8)
    assert (small.gpus, small.cpus, small.ram, small.storage_bandwidth) == (8, 16, 80, 2)
    assert small.expected_duration == 3 * HOUR
    assert small.malleable is None
    assert job.smallest == small


def test_a_serial_part_makes_a_smaller_size_less_slow():
    sizes = J2.model_copy(update={"serial_fraction": 0.5})
    job = a_job("j2", gpus=24, malleable=sizes)
    assert job.at_size(8).expected_duration == HOUR * ((0.5 + 0.5 / 8) / (0.5 + 0.5 / 24))


def test_a_rigid_job_stays_as_it_is():
    job = a_job("plain", gpus=2)
    assert job.smallest is job
    assert job.at_size(1) is job


def test_a_change_costs_its_pause_and_the_work_that_may_be_lost():
    job = Running(
        J2, 8, remaining=HOUR, price=2 * _DOLLAR, price_of_waiting=10 * _DOLLAR,
        save=timedelta(minutes=1), restart=timedelta(minutes=2),
        unsaved=timedelta(minutes=30), save_risk=0.1,
    )  # fmt: skip
    cost = change_cost(job)
    assert cost.pause == 8 * 12 * _DOLLAR * 3 // 60
    assert cost.lost == round(8 * 2 * _DOLLAR * 0.5 * 0.1)
    assert cost.reason == ("it pauses for 3m ($4.80); 30m of work is lost with chance 0.1 ($0.80)")


def a_growth(job: Running, gpus: int, *, idle: float = 0, added: float = 0, chance: float = 0):
    return growth(job, gpus, idle_price=idle, added_idle_price=added, shrink_chance=chance)


def test_idle_gpus_of_ones_own_cost_nothing_so_time_is_all_that_counts():
    job = Running(J2, 8, remaining=HOUR, price_of_waiting=_DOLLAR, restart=timedelta(minutes=2))
    grown = a_growth(job, 16)
    assert grown.grows
    assert grown.saved == timedelta(minutes=28)
    assert grown.reason == (
        "with 8 more GPUs it would end 28m sooner, worth $3.73, which is more than the $0.00 that "
        "it costs (the GPUs would bring $0.00 otherwise)"
    )


def test_a_pause_that_takes_longer_than_the_time_that_is_saved_is_worth_nothing():
    job = Running(J2, 8, remaining=timedelta(minutes=3), price_of_waiting=_DOLLAR,
                  restart=timedelta(minutes=2))  # fmt: skip
    grown = a_growth(job, 16)
    assert not grown.grows
    assert grown.earns < 0
    assert "would end 30s later" in grown.reason


def test_machines_that_are_billed_as_they_run_pay_only_for_a_speed_up_near_linear():
    # Trap 49: half of the time at twice the price is the same money; any less of a speed-up loses.
    worse = J2.model_copy(update={"serial_fraction": 0.02})
    price = 3 * _DOLLAR
    for sizes, value, grows in ((J2, 0, False), (worse, 0, False), (worse, 3 * price, True)):
        job = Running(sizes, 8, remaining=4 * HOUR, price=price, price_of_waiting=value)
        assert a_growth(job, 16, idle=price, added=price).grows is grows


def test_paid_time_costs_its_resale():
    job = Running(J2, 8, remaining=4 * HOUR, price_of_waiting=_DOLLAR)
    assert a_growth(job, 16, added=_DOLLAR / 2).grows
    assert not a_growth(job, 16, added=2 * _DOLLAR).grows


def test_what_has_to_be_given_back_soon_is_not_taken():
    job = Running(J2, 8, remaining=timedelta(minutes=12), price_of_waiting=_DOLLAR,
                  restart=timedelta(minutes=2))  # fmt: skip
    assert a_growth(job, 16).grows
    assert not a_growth(job, 16, chance=1).grows


def test_a_growth_is_to_a_larger_size():
    with pytest.raises(ValueError, match="8 GPUs are not more than the 16 that it has"):
        a_growth(Running(J2, 16, remaining=HOUR), 8)


minutes = st.integers(0, 600).map(lambda each: timedelta(minutes=each))
prices = st.integers(0, 50 * _DOLLAR)
running = st.builds(
    Running, sizes=st.builds(Malleable, min=st.just(8), max=st.just(24), step=st.just(8),
                             serial_fraction=st.floats(0, 1)),
    gpus=st.sampled_from([8, 16]), remaining=minutes, price=prices, price_of_waiting=prices,
    save=minutes, restart=minutes, unsaved=minutes, save_risk=st.floats(0, 1),
)  # fmt: skip


@given(running, prices, prices, st.floats(0, 1), minutes, prices)
def test_what_costs_more_never_makes_a_job_grow(
    job: Running, idle: int, added: int, chance: float, longer: timedelta, dearer: int
):
    if a_growth(job, 24, idle=idle, added=added, chance=chance).grows:
        return
    assert not a_growth(job, 24, idle=idle, added=added + dearer, chance=chance).grows
    assert not a_growth(job, 24, idle=idle, added=added, chance=1).grows
    slower = replace(job, restart=job.restart + longer)
    assert not a_growth(slower, 24, idle=idle, added=added, chance=chance).grows


@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 6), st.integers(0, 60), st.data())
def test_a_shrunk_job_has_one_of_its_sizes_and_gives_up_enough(
    least: int, step: int, steps: int, missing: int, data: st.DataObject
):
    sizes = Malleable(min=least, max=least + step * steps, step=step)
    now = data.draw(st.sampled_from([*sizes.sizes]))
    left = shrunk_by(sizes, now, missing)
    enough = [size for size in sizes.sizes if now - size >= missing]
    assert left == (enough[-1] if enough else None)
