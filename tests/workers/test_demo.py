"""`longshore demo`, run as a person runs it: to its end, and again after everything was killed."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from models.settings import Settings
from tests.support.local_stack import free_ports, temporary_folder
from workers.demo_state import StateFile
from workers.local import local_nodes
from workers.stack import Stack

PROGRAM = str(Path(sys.executable).parent / "longshore")
pytestmark = pytest.mark.timeout(300)


class Home:
    """A state folder of its own, and the environment that names it."""

    def __init__(self, folder: Path) -> None:
        self.stack = Stack(Settings(state_dir=folder / "state"))
        port, ui_port = free_ports(2)
        self._env = os.environ | {
            "LONGSHORE_STATE_DIR": str(self.stack.folder),
            "LONGSHORE_TEMPORAL_PORT": str(port),
            "LONGSHORE_TEMPORAL_UI_PORT": str(ui_port),
        }

    def start_demo(self, *args: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [PROGRAM, "demo", *args],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_everything(self) -> None:
        """Kill with -9 all that the stack started, and what that started."""
        found = [entry.find() for entry in self.stack.processes.recorded()]
        for process in [process for process in found if process]:
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):  # it went with its parent
                    each.kill()


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with temporary_folder() as folder:
        home = Home(folder)
        try:
            yield home
        finally:
            home.stack.stop(lambda line: None)


def test_it_cancels_kills_recovers_and_finds_all_as_it_should_be(home: Home) -> None:
    demo = home.start_demo("--jobs", "8", "--json")
    out, err = demo.communicate(timeout=240)
    assert demo.returncode == 0, err
    report = json.loads(out)
    assert report["problems"] == []
    assert (report["succeeded"], report["cancelled"], report["failed"]) == (7, 1, 0)
    assert report["killed_node"] in ("demo-1", "demo-2", "demo-3")
    assert report["retries"] >= 1
    assert report["placements"] >= 8 + report["retries"]
    assert report["training"].startswith("accuracy 0.9")
    assert 0 < report["utilization"] <= 1
    assert local_nodes(home.stack) == ()
    assert home.stack.remembered_nodes() == {}
    assert StateFile(home.stack.folder).unfinished() is None


def test_it_goes_on_after_everything_was_killed(home: Home) -> None:
    first = home.start_demo("--jobs", "8")
    assert first.stdout is not None
    assert any("  killed  " in line for line in first.stdout), "it never killed an agent"
    first.kill()
    first.communicate()
    home.kill_everything()
    unfinished = StateFile(home.stack.folder).unfinished()
    assert unfinished is not None

    second = home.start_demo("--json", "--keep")
    out, err = second.communicate(timeout=240)
    assert second.returncode == 0, err
    report = json.loads(out)
    assert "found an unfinished demo" in err
    assert (report["batch"], report["interruptions"]) == (unfinished.batch, 1)
    assert (report["jobs"], report["succeeded"], report["cancelled"]) == (8, 7, 1)
    assert report["killed_node"] == unfinished.killed_node
    assert "kill -9" not in err, "it killed an agent a second time"
    assert local_nodes(home.stack) == ("demo-1", "demo-2", "demo-3")
