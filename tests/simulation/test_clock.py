"""The market's clock: stands still or runs, and lets things happen in order."""

import pytest

from longshore.simulation.market.clock import Clock


class RealTime:
    """Real time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 50.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def real() -> RealTime:
    return RealTime()


def test_a_standing_clock_moves_only_when_it_is_advanced(real: RealTime):
    clock = Clock(1000, 0, real)
    real.seconds += 500
    clock.catch_up()
    assert clock.now == 1000
    clock.advance(30)
    assert clock.now == 1030


def test_a_running_clock_follows_real_time_at_its_factor(real: RealTime):
    clock = Clock(1000, 60, real)
    real.seconds += 2
    assert clock.now == 1000  # until it is asked to catch up, one request sees one time
    clock.catch_up()
    assert clock.now == 1120
    clock.set_factor(1)
    real.seconds += 2
    clock.catch_up()
    assert clock.now == 1122


def test_events_happen_at_their_time_and_in_order(real: RealTime):
    clock = Clock(0, 0, real)
    seen: list[tuple[str, float]] = []
    for name, when in (("late", 20), ("first", 5), ("second", 5), ("never", 99)):
        clock.at(when, lambda name=name: seen.append((name, clock.now)))
    clock.advance(30)
    assert seen == [("first", 5), ("second", 5), ("late", 20)]
    assert clock.now == 30


def test_an_event_may_schedule_another_on_the_way(real: RealTime):
    clock = Clock(0, 0, real)
    seen: list[float] = []

    def again() -> None:
        seen.append(clock.now)
        clock.after(10, again)

    clock.after(10, again)
    clock.advance(35)
    assert seen == [10, 20, 30]


def test_what_is_past_happens_with_the_next_move(real: RealTime):
    clock = Clock(100, 0, real)
    seen: list[float] = []
    clock.at(7, lambda: seen.append(clock.now))
    assert seen == []
    clock.catch_up()
    assert seen == [100]


def test_it_never_runs_backwards(real: RealTime):
    clock = Clock(100, 1, real)
    real.seconds -= 40
    clock.catch_up()
    assert clock.now == 100
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="backwards"):
        clock.set_factor(-1)
