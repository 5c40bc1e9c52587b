"""The embedded Temporal: its real development server with its Web UI, on a file."""

import json
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any

import psutil

from longshore.models.errors import StackError
from longshore.workers.processes import Processes, wait_until, write_atomically
from longshore.workers.programs import program

NAME = "temporal"
_random = SystemRandom()
HOST = "127.0.0.1"
DOOR = "web-ui"
"""Name of the process before the Web UI."""
_ENDS_WITHIN = 30.0

DYNAMIC_CONFIG = {
    # The HTTP API takes a request that any web page can send, from any site: nobody may use it.
    # No host has a slash. An empty list would let in a request without a host.
    "frontend.httpAllowedHosts": '["/"]',
    # The development server has one shard, and the defaults are limits for one of hundreds:
    # 20 tasks a second. These took a short workflow from 100 ms to 14 ms.
    "history.transferProcessorMaxPollRPS": "1000",
    "history.timerProcessorMaxPollRPS": "1000",
    # Timers fire up to a second late by default.
    "history.timerProcessorMaxTimeShift": '"10ms"',
    # Batches writes for lists: they lag by up to half a second, workflows run 1.7 times faster.
    "history.visibilityProcessorMaxPollRPS": "2",
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}
"""Measured for the development server. Not for production, which has more shards."""

TIME_SKIPPING = {"frontend.WorkflowTimeSkippingEnabled": "true"}
"""Lets a test skip the timers of a workflow."""

SQLITE_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL")
"""Survive a killed process; a crash of the operating system may lose the last moments."""


class LocalTemporal:
    """One Temporal development server on the file `database`."""

    def __init__(
        self,
        database: Path,
        processes: Processes,
        *,
        port: int,
        ui_port: int,
        namespace: str = "default",
        time_skipping: bool = False,
    ) -> None:
        self.database = database
        self.port = port
        self.ui_port = ui_port
        self.namespace = namespace
        self.time_skipping = time_skipping
        self._processes = processes

    @property
    def runs(self) -> bool:
        return self._processes.running(NAME) is not None

    @property
    def address(self) -> str:
        running = self._processes.running(NAME)
        return running.address if running else f"{HOST}:{self.port}"

    @property
    def ui(self) -> str:
        """The address of the Web UI; a server that runs keeps the port that it began with."""
        running = self._processes.running(NAME)
        port = _flag(running.argv, "--ui-port") if running else str(self.ui_port)
        return f"http://{HOST}:{port}"

    @property
    def door_runs(self) -> bool:
        """Whether the stack's own door to the Web UI listens at its port."""
        door = self._processes.running(DOOR)
        return door is not None and door.address == f"http://{HOST}:{self.ui_port}"

    @property
    def hidden_ui(self) -> str:
        """Where the Web UI itself listens, which no web page finds (`workers.web_ui`)."""
        running = self._processes.running(NAME)
        host = self._ui_host()
        if running and "--ui-ip" in running.argv:
            host = _flag(running.argv, "--ui-ip")
        return f"http://{host}:{self.ui.rpartition(':')[2]}"

    def _ui_host(self) -> str:
        """Return an address of the loopback network that is this state folder's own."""
        file = self.database.with_name("ui-host")
        if not file.exists():
            parts = (str(_random.randrange(1, 255)) for _ in range(3))
            write_atomically(file, f"127.{'.'.join(parts)}\n")
        return file.read_text().strip()

    def start(
        self,
        progress: Callable[[str], None],
        search_attributes: Mapping[str, str],
        timeout: float = 30.0,
    ) -> None:
        """Start the server unless it runs, and wait until it answers. Raises StackError."""
        running = self._processes.running(NAME)
        if running and "--ui-ip" not in running.argv:
            progress("Temporal begins again: as an earlier version started it, web pages reach it")
            self._processes.stop(NAME, grace=_ENDS_WITHIN)
            running = None
        if running and self._answers_within(timeout):
            progress(f"Temporal runs already (process {running.pid})")
        else:
            refuse_busy_port(self.port, "LONGSHORE_TEMPORAL_PORT")
            if not self.door_runs:  # it outlives a server that was killed, and serves the next
                refuse_busy_port(self.ui_port, "LONGSHORE_TEMPORAL_UI_PORT")
            self._launch(search_attributes)
            if not self._answers_within(timeout):
                raise StackError(f"Temporal did not start.{self._processes.last_words(NAME)}")
            progress("Temporal is ready")
        self.cli().ensure_search_attributes(search_attributes)

    def cli(self) -> "TemporalCLI":
        """Return the command line of the server, pointed at this server and nothing else."""
        return TemporalCLI(
            "--address", self.address, "--namespace", self.namespace,
            "--disable-config-file", "--disable-config-env",
        )  # fmt: skip

    def _launch(self, search_attributes: Mapping[str, str]) -> None:
        config = DYNAMIC_CONFIG | (TIME_SKIPPING if self.time_skipping else {})
        argv = [
            temporal_program(), "server", "start-dev",
            "--ip", HOST, "--port", str(self.port),
            "--ui-ip", self._ui_host(), "--ui-port", str(self.ui_port),
            "--db-filename", str(self.database), "--namespace", self.namespace,
            "--log-level", "warn",
            *(part for pragma in SQLITE_PRAGMAS for part in ("--sqlite-pragma", pragma)),
            *_pairs("--dynamic-config-value", config),
            *_pairs("--search-attribute", search_attributes),
        ]  # fmt: skip
        # GOGC=400 collects garbage less often: 10 to 20 % more workflows for some memory.
        env = {"GOGC": "400", "TEMPORAL_VERSION_CHECK_DISABLED": "1"}
        self._processes.spawn(NAME, argv, env, address=f"{HOST}:{self.port}", cwd="/")

    def _answers_within(self, timeout: float) -> bool:
        """Return True when the server answers, False when it has ended; StackError if neither."""
        cli = self.cli()

        def answers_or_ended() -> bool:
            return self._processes.running(NAME) is None or cli.answers()

        in_time = wait_until(answers_or_ended, timeout)
        running = self._processes.running(NAME)
        if running and not in_time:
            raise StackError(
                f"Temporal (process {running.pid}) does not answer at {running.address}. "
                f"Run `longshore down`, then try again.{self._processes.last_words(NAME)}"
            )
        return running is not None


class TemporalCLI:
    """The program `temporal` as a client: short questions without the SDK in this process."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags

    def answers(self) -> bool:
        """Return whether the server answers and has the namespace."""
        return self._run("operator", "namespace", "describe").returncode == 0

    def search_attributes(self) -> dict[str, str]:
        """Return name and type of each search attribute that was added to the server."""
        return self._ask("operator", "search-attribute", "list").get("customAttributes") or {}

    def ensure_search_attributes(self, wanted: Mapping[str, str]) -> None:
        """Register the attributes that the server does not have. Raises StackError."""
        for name in sorted(set(wanted) - set(self.search_attributes() if wanted else ())):
            self._do("operator", "search-attribute", "create",
                     "--name", name, "--type", wanted[name])  # fmt: skip

    def polled_since(self, task_queue: str, since: float) -> bool:
        """Return whether a worker has asked a queue for activities after `since` (Unix time)."""
        # The newer form of this question is answered from a cache that is five seconds old.
        reply = self._ask("task-queue", "describe", "--task-queue", task_queue,
                          "--legacy-mode", "--task-queue-type-legacy", "activity")  # fmt: skip
        times = (poller["last_access_time"] for poller in reply["pollers"] or ())
        return any(time["seconds"] + time.get("nanos", 0) / 1e9 >= since for time in times)

    def _ask(self, *words: str) -> Any:
        return json.loads(self._do(*words, "--output", "json"))

    def _do(self, *words: str) -> str:
        done = self._run(*words)
        if done.returncode:
            raise StackError(
                f"Temporal refused `temporal {' '.join(words)}`: {done.stderr.strip()[:600]}"
            )
        return done.stdout

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [temporal_program(), *words, *self._flags, "--command-timeout", "10s"]
        return subprocess.run(argv, capture_output=True, text=True, check=False)


def temporal_program() -> str:
    """Return the path of the program `temporal`. Raises StackError when there is none."""
    return program(NAME, ", or set TEMPORAL_ADDRESS to a running server")


def refuse_busy_port(port: int, setting: str) -> None:
    """Raise StackError where somebody listens on a port; `setting` is what chooses another."""
    # A server that was killed a moment ago may still be closing its port.
    if not wait_until(lambda: is_free(port), 2.0):
        raise StackError(
            f"port {port} is in use by {user_of(port)}. Stop that, or choose another port "
            f"with {setting}."
        )


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def user_of(port: int) -> str:
    """Return who listens on a port, in words."""
    unknown = "another program"
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.AccessDenied, OSError):
        return unknown
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,):
            return _program(connection.pid) or unknown
    return unknown


def _program(pid: int | None) -> str:
    try:
        return f"{psutil.Process(pid).name()} (process {pid})" if pid else ""
    except psutil.Error:
        return ""


def _pairs(flag: str, values: Mapping[str, str]) -> list[str]:
    return [part for key, value in values.items() for part in (flag, f"{key}={value}")]


def _flag(argv: Sequence[str], name: str) -> str:
    return argv[argv.index(name) + 1]
