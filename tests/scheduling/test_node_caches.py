"""Which caches of a node go, and when."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduling.node_caches import Cached, CacheLimits, Disk, evict, is_too_full

TB = 10**12
GB = 10**9


def entry(key: str, size: int, used_at: float, *, in_use: bool = False) -> Cached:
    return Cached(key, size, used_at, in_use)


def test_nothing_goes_where_there_is_room():
    found = evict(Disk(TB, 200 * GB), CacheLimits(), [entry("a", GB, 1)])
    assert (found.keys, found.reason) == ((), "")


def test_above_nine_tenths_the_least_recently_used_go_until_seven_tenths_are_left():
    cached = [entry("new", 150 * GB, 3), entry("old", 150 * GB, 1), entry("between", 150 * GB, 2)]
    found = evict(Disk(TB, 90 * GB), CacheLimits(), cached)
    assert (found.keys, found.bytes) == (("old", "between"), 300 * GB)
    assert found.reason == (
        "91% of the disk are in use, 90.0 GB are free; 90%, or less than 50.0 GB, is too full"
    )


def test_what_is_in_use_stays():
    cached = [entry("old", 300 * GB, 1, in_use=True), entry("new", GB, 2)]
    assert evict(Disk(TB, 0), CacheLimits(), cached).keys == ("new",)


def test_fifty_gigabytes_stay_free_and_of_a_small_disk_a_quarter():
    limits = CacheLimits()
    assert is_too_full(Disk(300 * GB, 49 * GB), limits)
    assert not is_too_full(Disk(300 * GB, 51 * GB), limits)
    assert is_too_full(Disk(40 * GB, 9 * GB), limits)
    assert not is_too_full(Disk(40 * GB, 11 * GB), limits)


@given(
    st.integers(1, 100), st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.booleans()), max_size=12),
)  # fmt: skip
def test_no_more_goes_than_has_to(total: int, free: int, given: list[tuple[int, int, bool]]):
    disk = Disk(total, min(free, total))
    cached = [entry(str(n), size, at, in_use=busy) for n, (size, at, busy) in enumerate(given)]
    found = evict(disk, CacheLimits(), cached)
    by_key = {each.key: each for each in cached}
    gone = [by_key[key] for key in found.keys]
    assert not any(each.in_use for each in gone)
    assert gone == sorted(gone, key=lambda each: (each.used_at, each.key))
    if gone:  # without the last one there would not have been enough room
        rest = sum(each.bytes for each in gone[:-1])
        assert disk.free + rest < max(0.3 * total, 0.25 * total) + 1e-9
