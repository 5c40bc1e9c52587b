"""Real node agents for tests: `longshore agent` in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

from longshore.activities.node.system import start_ticks
from longshore.models.settings import Settings
from tests.support.local_stack import ROOT


class AgentProcess:
    """One agent; `start` it as often as you like, in the same work folder."""

    def __init__(
        self, settings: Settings, folder: Path, pool: str, *flags: str, node_id: str = ""
    ) -> None:
        self.node_id = node_id or f"box-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.log = folder / "agent.log"
        self._env = {
            **os.environ,
            "LONGSHORE_STATE_DIR": str(settings.state_dir),
            "TEMPORAL_CONFIG_FILE": os.devnull,
        }
        self._flags = [
            *("--node-id", self.node_id, "--pool", pool, "--work-dir", str(folder / "work")),
            *("--simulate", "4xH100-80GB", *flags),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **env: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.agent_command", *self._flags],
                cwd=ROOT,
                env={**self._env, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def says(self, words: str) -> bool:
        return words in self.log.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as a crash does, and wait until it has gone."""
        self.process.kill()
        self.process.wait(60)

    def supervisors(self) -> list[psutil.Process]:
        return supervisors_of(self.process.pid)

    def end(self) -> None:
        """End it however it is, with the engines that would outlive it."""
        if self._process and self._process.poll() is None:
            self.kill()
        end_engines(self.folder / "work")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process
        return self._process


def end_engines(work: Path) -> None:
    """End what outlives its agent in a work folder: engines, with their supervisors."""
    for orders in work.glob("runs/*/orders"):
        with contextlib.suppress(FileNotFoundError, ValueError, psutil.Error):
            started = json.loads((orders.parent / "started.json").read_text())
            if start_ticks(started["supervisor"]) != started["supervisor_ticks"]:
                continue
            supervisor = psutil.Process(started["supervisor"])
            every = [supervisor, *supervisor.children(recursive=True)]
            for each in every:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(every, timeout=30)


def supervisors_of(agent: int) -> list[psutil.Process]:
    """Return the supervisors of the agent with this process id: children of its fork server."""
    found: list[psutil.Process] = []
    for child in psutil.Process(agent).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a tool of the agent, which has ended
            # That tool may be a script which starts another: `python3` on the PATH, of pyenv.
            found += [each for each in child.children() if each.name() not in ("bash", "sh")]
    return found
