"""A plugin of the test suite: of a dear test with many cases, the first run always.

`@pytest.mark.exhaustive(always=1)` leaves the first case to `make test`, and the others to
`make faults`.
"""

from collections import Counter
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = Counter[tuple[Path, str]]()
    for item in items:
        mark = next(item.iter_markers("exhaustive"), None)
        if mark is None or not (always := mark.kwargs.get("always", 0)):
            continue
        test = item.path, item.nodeid.partition("[")[0]
        if seen[test] < always:
            item.own_markers.remove(mark)
        seen[test] += 1
