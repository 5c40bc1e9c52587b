"""A plugin of the test suite: what the long tests cost before they begin, and a share of them.

`--share 3/8` runs the third of eight shares. Each has cases of every module, so that eight of them
take about the same time and are all of it together.
"""

import re
from collections.abc import Sequence

import pytest

SECONDS = {
    "tests/agent/test_in_place.py": 60,
    "tests/buying/test_autoscaler.py": 40,
    "tests/buying/test_clusters.py": 45,
    "tests/buying/test_gangs.py": 55,
    "tests/buying/test_patience.py": 60,
    "tests/buying/test_purchases.py": 8,
    "tests/buying/test_resale.py": 55,
    "tests/console/test_api_schema.py": 8,
    "tests/faults/test_block_end_points.py": 14,
    "tests/faults/test_buying_points.py": 14,
    "tests/faults/test_chaos.py": 60,
    "tests/faults/test_clocks.py": 20,
    "tests/faults/test_demo_purchase.py": 30,
    "tests/faults/test_faulty_trade.py": 1200,
    "tests/faults/test_full_disk.py": 50,
    "tests/faults/test_hung_agent.py": 20,
    "tests/faults/test_kills.py": 350,
    "tests/faults/test_partition.py": 20,
    "tests/faults/test_points.py": 10,
    "tests/faults/test_random.py": 90,
    "tests/faults/test_training.py": 120,
    "tests/workers/test_demo.py": 60,
    "tests/workers/test_wheel.py": 30,
    "tests/workflows/test_random_dags.py": 20,
}
"""Roughly what a case of a module takes; estimates, so that one can plan."""
OTHERWISE = 5


class Share:
    """Says what the chosen tests cost, once."""

    def __init__(self, config: pytest.Config, number: int, of: int) -> None:
        self._config = config
        self._number, self._of = number, of
        self._told = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = {item.nodeid for item in items[self._number - 1 :: self._of]}
        self._config.hook.pytest_deselected(
            items=[item for item in items if item.nodeid not in chosen]
        )
        items[:] = [item for item in items if item.nodeid in chosen]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._tell([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._tell(ids)

    def _tell(self, ids: Sequence[str]) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if self._told or reporter is None:
            return
        self._told = True
        seconds = sum(SECONDS.get(each.partition("::")[0], OTHERWISE) for each in ids)
        reporter.write_line(
            f"Share {self._number} of {self._of}: {len(ids)} tests, about {seconds / 60:.0f} "
            "minutes of them; parallel workers share these."
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        metavar="K/N",
        help="run the K-th of N shares of the tests, and say their cost",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (share := config.getoption("--share")) is None:
        return
    found = re.fullmatch(r"(\d+)/(\d+)", share)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--share {share}: give it as 1/8, the first of eight")
    config.pluginmanager.register(Share(config, int(found[1]), int(found[2])), "share")
