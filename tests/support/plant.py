"""A whole installation for tests: servers, a control worker and an agent, each a real process,
with metrics, /healthz, JSON logs and traces on."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.agent import AgentProcess
from tests.support.home import PROGRAM
from tests.support.local_stack import ROOT, free_ports

POOL = "watched"


class Plant:
    """Start it with `start`, and `end` it however it is."""

    def __init__(self, stack: Stack, folder: Path, collector_url: str) -> None:
        ports = free_ports(4)
        self.stack = stack
        self.collector_url = collector_url
        self.control_metrics, self.control_health, self.agent_metrics, self.agent_health = (
            f"127.0.0.1:{port}" for port in ports
        )
        self.control_log = folder / "control.log"
        self.agent = AgentProcess(
            Settings(state_dir=stack.folder), folder / "agent", POOL, node_id="watched-1"
        )
        self._control: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """What a command needs to use this installation."""
        return os.environ | {
            "LONGSHORE_STATE_DIR": str(self.stack.folder),
            "LONGSHORE_OTLP_ENDPOINT": self.collector_url,
            "LONGSHORE_LOG_FORMAT": "json",
            "LONGSHORE_CONSOLE_ADDRESS": "off",
        }

    def start(self) -> None:
        self.start_control()
        self.agent.start(
            LONGSHORE_METRICS_ADDRESS=self.agent_metrics,
            LONGSHORE_HEALTH_ADDRESS=self.agent_health,
            LONGSHORE_OTLP_ENDPOINT=self.collector_url,
            LONGSHORE_LOG_FORMAT="json",
        )

    def start_control(self) -> None:
        own = {
            "LONGSHORE_METRICS_ADDRESS": self.control_metrics,
            "LONGSHORE_HEALTH_ADDRESS": self.control_health,
        }
        with self.control_log.open("ab") as log:
            self._control = subprocess.Popen(
                [sys.executable, "-m", "longshore.workers.control"],
                cwd=ROOT, env=self.env | own, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def end_control(self) -> int:
        """Ask the control worker to stop; return its exit code."""
        assert self._control
        self._control.send_signal(signal.SIGTERM)
        return self._control.wait(90)

    def end(self) -> None:
        self.agent.end()
        if self._control and self._control.poll() is None:
            self._control.kill()
            self._control.wait(60)

    def longshore(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *args], env=self.env | env, capture_output=True, text=True, timeout=180,
            check=False,
        )  # fmt: skip


def health(address: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of /healthz; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def metrics(address: str) -> dict[str, float]:
    """Return each series and its value, as ``name{label="value"}``; empty where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {series: float(value) for series, value in pairs}


def log_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines that are whole: a process may be in the middle of the last one."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
