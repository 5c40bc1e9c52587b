"""A state folder of its own for the command line, run as a person runs it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.local_stack import free_ports, temporary_folder

PROGRAM = str(Path(sys.executable).parent / "longshore")


class Home:
    """A state folder of its own, and the environment that names it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self.program = PROGRAM
        self.working_folder: Path | None = None
        port, ui_port = free_ports(2)
        self.env = os.environ | {
            "LONGSHORE_STATE_DIR": str(self.folder),
            "LONGSHORE_TEMPORAL_PORT": str(port),
            "LONGSHORE_TEMPORAL_UI_PORT": str(ui_port),
            "LONGSHORE_CONSOLE_ADDRESS": "off",
        }

    @property
    def stack(self) -> Stack:
        return Stack(Settings(state_dir=self.folder))

    def longshore(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *args],
            cwd=self.working_folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def up(self, *args: str) -> dict[str, Any]:
        done = self.longshore("up", "--json", *args)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, *args: str) -> "subprocess.Popen[str]":
        """Start a command and return at once."""
        return subprocess.Popen(
            [self.program, *args],
            cwd=self.working_folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_everything(self) -> None:
        """Kill with -9 all that the stack started, and what that started, as a power cut would."""
        found = [entry.find() for entry in self.stack.processes.recorded()]
        for process in [process for process in found if process]:
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):  # it went with its parent
                    each.kill()


@contextmanager
def new_home() -> Iterator[Home]:
    """Yield an empty home; what was started in it ends."""
    with temporary_folder() as folder:
        home = Home(folder)
        try:
            yield home
        finally:
            home.stack.stop(lambda line: None)
