"""In which order a node fetches the data sets that jobs want there."""

from datetime import UTC, datetime, timedelta
from itertools import permutations

from longshore.scheduling.staging import Wanted, order

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
PLACED = Wanted("placed", 900, placed=True)
SOON = Wanted("soon", 500, start=NOW + timedelta(minutes=5))
SMALL = Wanted("small", 10, start=NOW + timedelta(minutes=20))
LACKS = Wanted("lacks", 50, start=NOW + timedelta(minutes=20), deficit=0.5)
HAS = Wanted("has", 50, start=NOW + timedelta(minutes=20))
UNKNOWN = Wanted("unknown", 1)


def test_gpus_that_wait_come_first_then_the_start_the_size_and_the_share():
    wanted = [PLACED, SOON, SMALL, LACKS, HAS, UNKNOWN]
    keys = [each.key for each in wanted]
    for given in permutations(wanted):
        assert list(order(list(given))) == keys


def test_a_set_that_several_want_has_the_place_of_the_first():
    late = Wanted("both", 500, start=NOW + timedelta(hours=2))
    placed = Wanted("both", 500, placed=True)
    assert order([late, SOON, placed]) == ("both", "soon")
    assert order([]) == ()
