"""Who takes a mutex, who waits for whom, and that nobody waits in a circle."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduling.mutexes import (
    Holder,
    Waiter,
    grants,
    in_order,
    next_dags,
    waits_for_mutex,
)

T0 = datetime(2026, 11, 24, tzinfo=UTC)


def waiter(name: str, *mutexes: str, priority: int = 5, after: int = 0, dag: str = "d") -> Waiter:
    return Waiter(dag, name, mutexes, priority, T0 + timedelta(seconds=after))


def test_the_higher_class_goes_first_then_who_was_ready_first():
    low = waiter("low", "m", priority=1)
    late, early = waiter("late", "m", after=9), waiter("early", "m", after=1)
    high = waiter("high", "m", priority=9, after=99)
    assert in_order([low, late, early, high]) == (high, early, late, low)
    assert grants([low, late, early, high], held=[]) == (high,)
    assert grants([low, late, early, high], held=["m"]) == ()


def test_several_are_taken_at_once_or_not_at_all_and_keep_their_place():
    both, second = waiter("both", "a", "b"), waiter("second", "a", after=1)
    third = waiter("third", "c", after=2)
    assert grants([third, second, both], held=["b"]) == (third,), "a is kept for the first"
    assert grants([third, second, both], held=[]) == (both, third)
    assert waits_for_mutex(second, [both, second], {"b": Holder("x.y")}) == (
        "waits for mutex a, for which d.both waits before it"
    )
    assert waits_for_mutex(both, [both, second], {"b": Holder("x.y")}) == (
        "waits for mutex b, which x.y holds"
    )
    assert waits_for_mutex(both, [both, second], {}) == ""


def test_a_holder_that_waits_for_room_is_told_of():
    told = waits_for_mutex(waiter("a", "m"), [], {"m": Holder("x.y", queued=True)})
    assert told == "waits for mutex m, which x.y holds, and waits in a queue itself"


def test_the_dags_of_those_that_come_first_look_again():
    found = [waiter("a", "m", dag="one"), waiter("b", "m", after=1, dag="two"),
             waiter("c", "n", dag="three"), waiter("d", "o", dag="four")]  # fmt: skip
    assert next_dags(found, {"m", "n"}) == {"one", "three"}
    assert next_dags(found, {"z"}) == frozenset()


WAITERS = st.lists(
    st.builds(
        waiter,
        st.uuids().map(str),
        st.sampled_from("abc"),
        st.sampled_from("abcd"),
        priority=st.integers(1, 3),
        after=st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@given(WAITERS)
def test_all_have_their_turn_one_at_a_time(waiters: list[Waiter]):
    """Whoever holds ends some time: then all that wait have been served, nobody out of turn."""
    left, running, served = list(waiters), list[Waiter](), list[Waiter]()
    while left or running:
        held = [name for each in running for name in each.mutexes]
        for each in grants(left, held):
            assert not set(each.mutexes) & {n for other in running for n in other.mutexes}
            ahead = in_order(left)[: in_order(left).index(each)]
            assert not any(set(each.mutexes) & set(other.mutexes) for other in ahead)
            left.remove(each)
            running.append(each)
        assert running, "nobody waits in a circle"
        served.append(running.pop(0))
    assert len(served) == len(waiters)
