"""One installation for all tests here, and a collector for its traces."""

from collections.abc import Iterator

import pytest

from longshore.activities.migrations import upgrade
from longshore.workers.processes import wait_until
from tests.support.collector import Collector, collecting
from tests.support.local_stack import running_stack, settings_in, temporary_folder
from tests.support.plant import POOL, Plant, health


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Starts a server that takes traces; 0.1 s."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="session")
def plant(collector: Collector) -> Iterator[Plant]:
    """Starts a whole installation, with its agent registered; 6 s.

    Not the stack of the other tests: their control worker would take a part of the work.
    """
    with (
        temporary_folder() as folder,
        running_stack(settings_in(folder / "state"), migrate=upgrade) as stack,
    ):
        plant = Plant(stack, folder, collector.url)
        try:
            plant.start()
            assert wait_until(lambda: health(plant.control_health)[0] == 200, 120.0), (
                health(plant.control_health), plant.control_log.read_text(),
            )  # fmt: skip
            assert wait_until(lambda: health(plant.agent_health)[0] == 200, 120.0), (
                plant.agent.log.read_text()
            )
            yield plant
        finally:
            plant.end()


@pytest.fixture(scope="session")
def jobs(plant: Plant) -> dict[str, str]:
    """Ids of one job that succeeded, one that failed, and one that waits; 4 s."""
    commands = {
        "good": ("--gpus", "1", "--wait", "--", "sh", "-c", "echo hi"),
        "bad": ("--gpus", "2", "--wait", "--", "sh", "-c", "exit 3"),
        "wide": ("--gpus", "5", "--", "true"),
    }
    ids: dict[str, str] = {}
    for name, args in commands.items():
        done = plant.longshore("submit", "--pool", POOL, "--name", name, "--quiet", *args)
        assert done.stdout, done.stderr
        ids[name] = done.stdout.split()[0]
    return ids
