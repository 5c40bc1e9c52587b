"""Tests of benchmarks: `make bench-test` runs them, and `make test` does not."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Import none of them, nor scipy, where none is asked for."""
    named = any(FOLDER.name in word for word in config.args)
    return True if "not benchmark" in config.option.markexpr and not named else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    inside = f"{FOLDER}/"
    for item in items:
        if str(item.path).startswith(inside):
            item.add_marker("benchmark")
