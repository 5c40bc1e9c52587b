"""Time for the first test that plans by the compiled pass, where it was never compiled."""

import pytest

COMPILING = 900
"""Seconds. It compiles for 45 of the processor: six minutes where others compute beside it."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(COMPILING))
