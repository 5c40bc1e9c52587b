"""How far off told starts were: by hand, and what no estimate may hide."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.start_range import StartRange
from longshore.scheduling.estimates import BOUNDS, Told, start_errors

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def told(ahead: float, off: float | None, *, made: float = -600) -> Told:
    """Made `made` minutes from now, `ahead` minutes before the start, which came `off` later."""
    made_at = NOW + made * MINUTE
    starts_at = made_at + ahead * MINUTE
    return Told(made_at, starts_at, None if off is None else starts_at + off * MINUTE)


def test_starts_are_apart_by_how_long_before_they_were_told():
    soon = [told(5, off) for off in (0, 0.5, -3, 20)]
    found = start_errors([*soon, told(10, 2), told(11, -30), told(3000, 600, made=-4000)], NOW)
    assert [(row.within, row.jobs) for row in found] == [
        (10 * MINUTE, 5), (60 * MINUTE, 1), (None, 1),
    ]  # fmt: skip
    first = found[0]
    assert (first.median, first.p90) == (2 * MINUTE, 20 * MINUTE)
    assert (first.earlier, first.later, first.waiting) == (1, 2, 0)
    assert (found[1].median, found[1].earlier) == (30 * MINUTE, 1)


def test_a_job_that_waits_still_counts_once_its_start_was_to_have_come():
    (row,) = start_errors([told(30, None), told(30, 5), told(601, None), told(700, None)], NOW)
    assert (row.jobs, row.waiting, row.later) == (2, 1, 2)
    assert row.p90 == timedelta(minutes=570)  # 600 ago it was told to start 30 later


@given(
    st.lists(st.tuples(st.floats(0, 5000), st.none() | st.floats(-300, 300), st.floats(-9000, 0)))
)
def test_none_is_lost_and_none_counts_twice(drawn: list[tuple[float, float | None, float]]):
    all_told = [told(ahead, off, made=made) for ahead, off, made in drawn]
    rows = start_errors(all_told, NOW)
    to_count = [each for each in all_told if each.started_at or each.starts_at < NOW]
    assert sum(row.jobs for row in rows) == len(to_count)
    assert sum(row.waiting for row in rows) == sum(each.started_at is None for each in to_count)
    assert [BOUNDS.index(row.within) for row in rows] == sorted(
        {BOUNDS.index(row.within) for row in rows}
    )
    for row in rows:
        assert row.median <= row.p90
        assert row.earlier + row.later <= row.jobs


def test_of_ranges_it_is_told_how_many_held_and_which_way_the_others_missed():
    start = NOW - 300 * MINUTE
    between = StartRange(earliest=start - 20 * MINUTE, latest=start + 40 * MINUTE)
    offs = (-30, -20.5, 0, 40.5, 60, None)
    given = [told(300, off)._replace(between=between) for off in offs]
    alone = told(300, 5)
    (row,) = start_errors([*given, alone], NOW)
    assert (row.jobs, row.with_range, row.in_range, row.before_range) == (7, 6, 3, 1)
    # One that waits still is after its range once that is over, and in none before.
    ends_later = between.model_copy(update={"latest": NOW + MINUTE})
    (row,) = start_errors([told(300, None)._replace(between=ends_later)], NOW)
    assert (row.waiting, row.with_range) == (1, 0)
