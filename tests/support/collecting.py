"""A plugin of the test suite: each parallel worker begins to collect at another place.

pytest writes each module of tests anew, with asserts that explain themselves, and keeps that for
later: eight seconds of the processor for all of them in a new checkout. Workers that begin at one
place would all do that at one time; so each does its part, and finds the rest done. What they have
collected has one order then.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

T = TypeVar("T")


class InModule(Protocol):
    @property
    def path(self) -> Path: ...


Test = TypeVar("Test", bound=InModule)


def rotated(found: list[T], worker: int, workers: int) -> list[T]:
    """Return what is found, from the place on where this of so many workers begins."""
    begin = len(found) * worker // workers
    return found[begin:] + found[:begin]


def in_one_order(items: list[Test]) -> list[Test]:
    """Return tests by their module, and in a module as they come."""
    return sorted(items, key=lambda item: item.path.parts)


class Collecting:
    """What a parallel worker does beside collecting."""

    def __init__(self, worker: int, workers: int) -> None:
        self._place = worker, workers

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if isinstance(collector, pytest.Directory) and report.passed:
            report.result = rotated(report.result, *self._place)
        return report

    # Around all others: what shuffles finds the same in each worker.
    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        items[:] = in_one_order(items)
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    if name := os.environ.get("PYTEST_XDIST_WORKER"):
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        worker = Collecting(int(name.removeprefix("gw")), workers)
        config.pluginmanager.register(worker, "collecting-of-tests")
