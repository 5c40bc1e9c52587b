"""A whole installation for a measurement: servers, control worker, agents, in a folder that goes.

Nothing of the caller's environment points it elsewhere, and it is stopped however a measurement
ends, but for SIGKILL.
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from longshore.activities.migrations import upgrade
from longshore.models.search import SEARCH_ATTRIBUTES
from longshore.models.settings import Settings
from longshore.workers import postgres
from longshore.workers.local import start_agents, start_control_worker
from longshore.workers.stack import AGENT_PREFIX, Stack


def forget_environment() -> None:
    """Drop what the caller's shell says of servers and settings; SIGTERM ends as Ctrl-C does."""
    for name in [name for name in os.environ if name.startswith(("LONGSHORE_", "TEMPORAL_"))]:
        del os.environ[name]
    os.environ["TEMPORAL_CONFIG_FILE"] = os.environ["LONGSHORE_CONFIG"] = os.devnull
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))


@contextlib.contextmanager
def installed(
    nodes: Mapping[str, str], *, env: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """Yield a stack with a control worker and an agent for each node, all ready.

    `nodes` are simulated GPUs by node id, such as ``{"node-1": "8xH100-80GB"}``; each node has
    more cores and memory than its GPUs can use. `env` is added to the environment of the
    control worker and the agents. Raises StackError.
    """
    os.environ.update(env or {})
    folder = Path(tempfile.mkdtemp(prefix="longshore-bench-"))
    port, ui_port = _free_ports(2)
    settings = Settings(state_dir=folder, temporal_port=port, temporal_ui_port=ui_port)
    stack = Stack(settings, search_attributes=SEARCH_ATTRIBUTES, migrate=upgrade)
    try:
        stack.start(_say)
        start_control_worker(stack, _say)
        flags = {
            name: ("--simulate", gpus, "--cpus", "100000", "--ram", "1000TB")
            for name, gpus in nodes.items()
        }
        start_agents(stack, flags, _say)
        yield stack
    finally:
        stack.stop(_say)
        shutil.rmtree(folder, ignore_errors=True)


def processes_of(stack: Stack) -> dict[str, list[psutil.Process]]:
    """Return the processes by part: `temporal`, `postgres` and `agents` (with all below them),
    `control`, and by its name what else was started beside them.
    """
    found: dict[str, list[psutil.Process]] = {}
    for entry in stack.processes.recorded():
        process = entry.find()
        part = "agents" if entry.name.startswith(AGENT_PREFIX) else entry.name
        if process:
            found.setdefault(part, []).append(process)
            if part in (postgres.NAME, "agents"):
                found[part] += process.children(recursive=True)
    return found


def cpu_seconds(stack: Stack) -> dict[str, float]:
    """Return the processor time of each part so far, with that of ended children."""
    return {
        part: sum(_cpu_seconds(process) for process in processes)
        for part, processes in processes_of(stack).items()
    }


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _say(line: str) -> None:
    sys.stderr.write(f"  {line}\n")
