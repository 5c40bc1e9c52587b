"""A `slurmctld` of its own: for scenes of its scheduler alone, or with a `slurmd` that runs jobs.

Without one the nodes could be powered up (State=CLOUD) and never are: a job that gets one holds it
until its time limit, and nothing runs. So the controller has real nodes, jobs and ends.
"""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
"""Where Debian puts `slurmctld`, which is not on everybody's PATH."""
MISSING = [
    name
    for name in ("slurmctld", "sbatch", "scontrol", "sdiag", "squeue")
    if shutil.which(name, path=_PATH) is None
]
"""Programs that are needed and not there."""
MISSING_TO_RUN = [*MISSING, *(["slurmd"] if shutil.which("slurmd", path=_PATH) is None else [])]
"""Those for which jobs are to run too."""
_WITHIN = 120.0
"""Seconds for Slurm to get anywhere."""
_LONG = 86_400
_MOST_ELEMENTS = 100_000


class Asked(NamedTuple):
    """What a job asks, of one node."""

    gpus: int
    cpus: int
    ram_gb: int
    minutes: int


class Controller:
    """A `slurmctld` that answers."""

    def __init__(self, environment: dict[str, str], parameters: str) -> None:
        self._environment = environment
        self.parameters = parameters
        self.version = self.said("sdiag", "--version").strip()

    def submit(self, jobs: Sequence[Asked]) -> None:
        for job in jobs:
            self.said(
                "sbatch", f"--time={job.minutes}", f"--gres=gpu:{job.gpus}", "--nodes=1",
                "--ntasks=1", f"--cpus-per-task={job.cpus}", f"--mem={job.ram_gb}G",
                "--output=/dev/null", "--wrap=true",
            )  # fmt: skip

    def wait_for(self, state: str, count: int) -> None:
        """Wait until so many jobs are in a state."""
        deadline = time.monotonic() + _WITHIN
        while (there := len(self.listed("%i", state))) < count:
            if time.monotonic() > deadline:
                sys.exit(f"of {count} jobs {there} are {state}")
            time.sleep(0.5)

    def listed(self, form: str, state: str) -> list[str]:
        """Return a line for each job in a state, in the order that they were submitted in."""
        listing = "squeue", "--noheader", f"--states={state}", "--sort=i", f"--format={form}"
        return self.said(*listing).splitlines()

    def cycles(self, count: int, jobs: int) -> list[float]:
        """Return the milliseconds of so many backfill cycles that looked at all jobs.

        There is none while nothing changes, so a job gets a comment before each.
        """
        took: list[float] = []
        last = self.listed("%i", "PENDING")[-1]
        deadline = time.monotonic() + _WITHIN + 30 * count
        while len(took) < count:
            seen = self._backfill("Total cycles")
            self.said("scontrol", "update", f"JobId={last}", f"Comment={len(took)} cycles")
            while self._backfill("Total cycles") == seen:
                if time.monotonic() > deadline:
                    sys.exit(f"{len(took)} cycles of backfill looked at all {jobs} jobs")
                time.sleep(0.2)
            if self._backfill("Last depth cycle") >= jobs:
                took.append(self._backfill("Last cycle") / 1000)
        return took

    def starts(self) -> list[float]:
        """Return the hours from the start of the first job to the starts that are kept for those
        that wait, in their order."""
        began = min(map(datetime.fromisoformat, self.listed("%S", "CONFIGURING")))
        kept = [line for line in self.listed("%S", "PENDING") if line != "N/A"]
        return [(datetime.fromisoformat(line) - began) / timedelta(hours=1) for line in kept]

    def said(self, *command: str) -> str:
        ran = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            sys.exit(f"{' '.join(command)}: {ran.stderr.strip()}")
        return ran.stdout

    def _backfill(self, name: str) -> int:
        """Return what `sdiag` says of the backfill under this name; 0 before the first cycle."""
        _, _, said = self.said("sdiag").partition("Backfilling stats")
        found = re.search(rf"^\s*{re.escape(name)}:\s*(\d+)", said, re.MULTILINE)
        return int(found[1]) if found else 0


@contextmanager
def slurm(node: Asked, nodes: int, parameters: str) -> Iterator[Controller]:
    """Yield a controller of so many nodes that have what `node` says, and end it. Its folder, its
    ports and its processes are its own."""
    names = f"n[0-{nodes - 1}]"
    settings = {
        "GresTypes": "gpu",
        "ResumeProgram": "/bin/true",
        "SuspendProgram": "/bin/true",
        "SuspendTime": _LONG,
        "SuspendTimeout": _LONG // 2,
        "ResumeTimeout": _LONG // 2,
        "NodeName": f"{names} CPUs={node.cpus} RealMemory={node.ram_gb * 1024} "
        f"Gres=gpu:{node.gpus} State=CLOUD",
    }
    with TemporaryDirectory(prefix="longshore-slurm-") as name:
        environment = _configured(Path(name), names, parameters, settings)
        with _running(environment, Path(name) / "slurmctld.log", "slurmctld", "-D", "-c") as it:
            _wait_for(it, "sdiag")
            yield Controller(environment, parameters)


@contextmanager
def running_slurm(slots: int, parameters: str) -> Iterator[Controller]:
    """Yield a controller with one node of so many processors, whose `slurmd` runs jobs here."""
    settings = {
        "SlurmdUser": getpass.getuser(),
        "SlurmdParameters": "config_overrides",  # more processors than the machine has
        "MaxArraySize": _MOST_ELEMENTS,
        "NodeName": f"n0 NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 CPUs={slots} "
        "RealMemory=100 State=UNKNOWN",
    }
    with TemporaryDirectory(prefix="longshore-slurm-") as name:
        folder = Path(name)
        (folder / "spool").mkdir()
        settings |= {"SlurmdSpoolDir": folder / "spool", "SlurmdPidFile": folder / "slurmd.pid"}
        environment = _configured(folder, "n0", parameters, settings)
        log = folder / "slurmctld.log"
        with _running(environment, log, "slurmctld", "-D", "-c") as controller:
            _wait_for(controller, "sdiag")
            log = folder / "slurmd.log"
            with _running(environment, log, "slurmd", "-D", "-N", "n0") as node:
                _wait_for(node, "sinfo --noheader --states=idle --format=%N", "n0")
                yield Controller(environment, parameters)


class _Program(NamedTuple):
    process: "subprocess.Popen[bytes]"
    environment: dict[str, str]
    log: Path


@contextmanager
def _running(environment: dict[str, str], log: Path, *command: str) -> Iterator[_Program]:
    with log.open("w") as written:
        process = subprocess.Popen(command, env=environment, stdout=written, stderr=written)
    try:
        yield _Program(process, environment, log)
    finally:
        process.terminate()
        try:
            process.wait(_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(program: _Program, ask: str, says: str = "") -> None:
    """Wait until the program's cluster answers a command, with this."""
    deadline = time.monotonic() + _WITHIN
    while True:
        answer = subprocess.run(
            ask.split(), env=program.environment, capture_output=True, text=True, check=False
        )
        if not answer.returncode and says in answer.stdout:
            return
        if program.process.poll() is not None or time.monotonic() > deadline:
            said = program.log.read_text()[-1000:]
            sys.exit(f"{program.log.stem} does not answer: {said}")
        time.sleep(0.2)


def _configured(
    folder: Path, names: str, parameters: str, more: Mapping[str, object]
) -> dict[str, str]:
    """Write a configuration into the folder, and return the environment of its programs."""
    (folder / "state").mkdir()
    settings: dict[str, object] = {
        "ClusterName": "bench",
        "SlurmctldHost": f"{socket.gethostname()}(127.0.0.1)",
        "SlurmUser": getpass.getuser(),
        "SlurmctldPort": _free_port(),
        "SlurmdPort": _free_port(),
        "StateSaveLocation": folder / "state",
        "SlurmctldPidFile": folder / "pid",
        "AuthType": "auth/none",
        "CredType": "cred/none",
        "AccountingStorageType": "accounting_storage/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": parameters,
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "PriorityType": "priority/basic",
        "MaxJobCount": _MOST_ELEMENTS,
        **more,
        "PartitionName": f"all Nodes={names} Default=YES MaxTime=INFINITE State=UP",
    }
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    (folder / "slurm.conf").write_text("".join(lines))
    (folder / "gres.conf").write_text("")
    return {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
