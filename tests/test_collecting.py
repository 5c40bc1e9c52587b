"""The plugin by which parallel workers begin to collect at other places, and agree at the end."""

import os
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import pytest

from tests.support.collecting import Collecting, in_one_order, rotated
from tests.support.warm import is_copy, starts_copies

FOUND = ["agent", "buying", "client", "models", "test_docs.py"]


@dataclass(frozen=True)
class Item:
    path: Path
    name: str


def test_each_worker_finds_all_and_begins_elsewhere():
    ways = [rotated(FOUND, worker, 3) for worker in range(3)]
    assert [way[0] for way in ways] == ["agent", "buying", "models"]
    assert [sorted(way) for way in ways] == [FOUND] * 3
    assert ways[0] == FOUND


def test_tests_come_in_one_order_and_keep_theirs_within_a_module(request: pytest.FixtureRequest):
    here = request.path.parent
    paths = [here / "agent" / "test_b.py", here / "agent.d" / "test_a.py", here / "test_z.py"]
    for order in permutations(paths):
        items = [Item(path, name) for path in order for name in ("second", "first")]
        assert [(item.path, item.name) for item in in_one_order(items)] == [
            (path, name) for path in paths for name in ("second", "first")
        ]


def test_a_run_on_one_worker_collects_as_pytest_does(pytestconfig: pytest.Config):
    plugins = pytestconfig.pluginmanager.get_plugins()
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    assert parallel == any(isinstance(each, Collecting) for each in plugins)


def test_a_parallel_worker_is_a_copy_of_what_has_imported():
    """It would import packages, models and decisions itself, and so would what starts programs."""
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    assert is_copy(os.getpid()) == (parallel and starts_copies())
