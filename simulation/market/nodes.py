"""Machines of the simulated market: a real node agent each, as a process of this computer.

A machine's start-up script is parsed, never run: of its environment LONGSHORE_* and TEMPORAL_* are
passed on, and its last line gives the flags of `longshore agent`. The agent is told to simulate
the GPUs of its machine. When the machine is switched off, its processes are killed.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from longshore.activities.providers.startup import Startup
from longshore.models.errors import StackError
from longshore.workers.processes import Processes
from longshore.workers.programs import program

NOTICE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL where a machine's end is announced."""
_PASSED_ON = ("LONGSHORE_", "TEMPORAL_")
_ALONE = {
    "LONGSHORE_METRICS_ADDRESS": "off",
    "LONGSHORE_HEALTH_ADDRESS": "off",
    "LONGSHORE_MARKET": "off",
}
"""Two agents of one computer cannot listen at one address; and no machine buys others."""


class AgentRoom:
    """Keeps one agent per machine that runs, and remembers them in a folder.

    `say` takes lines for people. Agents of a market that was killed are ended by `clear`.
    """

    def __init__(self, folder: Path, say: Callable[[str], object] = lambda line: None) -> None:
        self._folder = folder
        self._processes = Processes(folder / "run")
        self._say = say

    def start(self, name: str, script: str | None, hardware: str) -> None:
        """Start the agent of a machine; none without a script that starts one."""
        if script is None:
            return
        try:
            startup = Startup.parse(script)
        except ValueError as error:
            self._say(f"simulated machine {name} starts no agent: {error}")
            return
        work = self._folder / "machines" / name
        work.mkdir(parents=True, exist_ok=True)
        try:
            environment = self._environment(startup, work)
            command = self._command(startup, hardware, work)
            entry = self._processes.spawn(
                name, [*_without(environment), *command], environment, cwd=work
            )
        except StackError as error:
            self._say(f"simulated machine {name} has no agent: {error}")
            return
        self._say(f"simulated machine {name}: agent started (process {entry.pid})")

    def end(self, name: str, *, notice: bool) -> None:
        """Switch a machine off: kill all its processes, after a notice if there is one."""
        running = self._processes.running(name)
        process = running.find() if running else None
        if process is None:
            return
        if not notice:
            self._switch_off(name, process)
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
        later = threading.Timer(NOTICE_SECONDS, self._switch_off, (name, process))
        later.daemon = True
        later.start()

    def clear(self) -> tuple[str, ...]:
        """Switch every machine off, also those of an earlier market; return their names."""
        ended: list[str] = []
        for entry in self._processes.recorded():
            if process := entry.find():
                ended.append(entry.name)
                self._switch_off(entry.name, process)
        shutil.rmtree(self._folder / "machines", ignore_errors=True)
        return tuple(ended)

    def running(self) -> dict[str, int]:
        """Return process ids by the name of the machine."""
        return {each.name: each.pid for each in self._processes.recorded() if each.find()}

    def log(self, name: str) -> Path:
        return self._processes.log(name)

    def _command(self, startup: Startup, hardware: str, work: Path) -> list[str]:
        given = {word.partition("=")[0] for word in startup.arguments}
        command = [program("longshore"), "agent", *startup.arguments]
        if "--simulate" not in given:
            command += ["--simulate", hardware]
        if "--work-dir" not in given:
            command += ["--work-dir", str(work / "work")]
        return command

    def _environment(self, startup: Startup, work: Path) -> dict[str, str]:
        return {
            "LONGSHORE_STATE_DIR": str(work),
            "LONGSHORE_CONFIG": os.devnull,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
            ),
            **{k: v for k, v in startup.environment.items() if k.startswith(_PASSED_ON)},
            **_ALONE,
        }

    def _switch_off(self, name: str, process: psutil.Process) -> None:
        _kill(_with_descendants(process))
        self._processes.stop(name, grace=0)
        self._say(f"simulated machine {name}: switched off")


def _without(environment: Mapping[str, str]) -> list[str]:
    """Return how a command begins that is not to know what a shell here says of Longshore.

    A machine elsewhere would not know it; `environment` is what it does know.
    """
    ours = [name for name in os.environ if name.startswith(_PASSED_ON)]
    unset = [name for name in ours if name not in environment]
    return ["env", *(word for name in unset for word in ("-u", name))]


def _with_descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()
