"""Detached processes of the local stack: started, recorded, found again, stopped.

Each process has two files in the folder `run` of the state folder: `NAME.json` says which process
it is, `NAME.log` has what it prints. A process is ours only while its id *and* its start time are
those recorded: an id alone may belong to somebody else by now.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from longshore.models.addresses import host_and_port
from longshore.models.base import Wire
from longshore.models.errors import StackError

LOG_LIMIT = 10_000_000
"""Bytes after which a log is set aside when its process starts again."""

_children: list[subprocess.Popen[Any]] = []  # keeps the handles: they warn when collected


class Recorded(Wire):
    """A process that the stack started."""

    name: str
    pid: int
    started: float
    """When the system says that it began, in seconds since 1970."""
    argv: tuple[str, ...]
    address: str = ""
    """Where it can be reached, as people write it."""
    stop_signal: int = int(signal.SIGTERM)

    def find(self) -> psutil.Process | None:
        """Return the running process, or None when it has ended."""
        return find_process(self.pid, self.started)


class Processes:
    """The processes recorded in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        address: str = "",
        stop_signal: signal.Signals = signal.SIGTERM,
        **options: Any,
    ) -> Recorded:
        """Start `argv` detached from this terminal and record it as `name`.

        `env` is added to this process's own environment. `options` go to subprocess.Popen.
        Raises StackError when a process of that name runs already or cannot be started.
        """
        if running := self.running(name):
            raise StackError(f"{name} runs already, as process {running.pid}.")
        self._make_room(name)
        with self.log(name).open("ab") as log:
            try:
                child = subprocess.Popen(
                    argv,
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **options,
                )
            except OSError as error:
                raise StackError(f"cannot start {name} ({argv[0]}): {error.strerror}.") from error
        _children.append(child)
        return self.record(name, child.pid, argv, address=address, stop_signal=stop_signal)

    def record(
        self,
        name: str,
        pid: int,
        argv: Sequence[str],
        *,
        address: str = "",
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> Recorded:
        """Remember process `pid` as `name`. Raises StackError when it has already ended."""
        try:
            started = psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            raise StackError(f"{name} ended at once.{self.last_words(name)}") from None
        entry = Recorded(
            name=name, pid=pid, started=started, argv=tuple(argv), address=address,
            stop_signal=int(stop_signal),
        )  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"{name}.json", entry.model_dump_json())
        return entry

    def recorded(self) -> tuple[Recorded, ...]:
        """Return every process that was started and not stopped, running or not, by name."""
        return tuple(
            entry
            for path in sorted(self.folder.glob("*.json"))
            if (entry := _read(path)) is not None
        )

    def running(self, name: str) -> Recorded | None:
        """Return the process recorded as `name` while it runs, else None."""
        entry = _read(self.folder / f"{name}.json")
        return entry if entry is not None and entry.find() else None

    def stop(self, *names: str, grace: float = 10.0) -> tuple[str, ...]:
        """Ask all of `names` to stop, kill after `grace` seconds what still runs, forget them.

        Each is asked once: some programs take a second signal for "at once". Returns those that
        were running. Raises StackError when one is not ours to stop.
        """
        asked = {name: process for name in names if (process := self._ask_to_stop(name))}
        _, late = psutil.wait_procs(list(asked.values()), timeout=grace)
        for process in late:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(late, timeout=10.0)
        for name in names:
            (self.folder / f"{name}.json").unlink(missing_ok=True)
        return tuple(asked)

    def resume(self, name: str) -> bool:
        """Let the process recorded as `name` go on where it is paused (SIGSTOP); return whether it
        was. Raises StackError when it is not ours to resume."""
        entry = _read(self.folder / f"{name}.json")
        process = entry.find() if entry else None
        if entry is None or process is None:
            return False
        try:
            if process.status() != psutil.STATUS_STOPPED:
                return False
            process.resume()
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            raise StackError(
                f"{name} (process {entry.pid}) is paused and belongs to another user: let it go "
                f"on (`kill -CONT {entry.pid}`) as that user."
            ) from None
        return True

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def last_words(self, name: str, lines: int = 8) -> str:
        """Return the end of the log of `name`, indented, after a line that says where it is."""
        try:
            text = self.log(name).read_bytes()[-20_000:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        last = [line[:400] for line in text.splitlines() if line.strip()][-lines:]
        return "".join((f" The end of {self.log(name)}:", *(f"\n    {line}" for line in last)))

    def _ask_to_stop(self, name: str) -> psutil.Process | None:
        entry = _read(self.folder / f"{name}.json")
        process = entry.find() if entry else None
        if entry is None or process is None:
            return None
        try:
            process.send_signal(entry.stop_signal)
            process.resume()  # a paused one (SIGSTOP) would never come to the signal
        except psutil.NoSuchProcess:
            return None  # it ended by itself in between
        except psutil.AccessDenied:
            raise StackError(
                f"{name} (process {entry.pid}) belongs to another user: stop it as that user."
            ) from None
        return process

    def _make_room(self, name: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.log(name)
        if log.exists() and log.stat().st_size > LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))


def find_process(pid: int, started: float) -> psutil.Process | None:
    """Return the process with this id and start time, or None when it has ended."""
    for child in _children:
        child.poll()  # collects those that ended, so that they do not stay as zombies
    try:
        process = psutil.Process(pid)
        # The system's idea of a start time moves a little when its clock is set.
        same = abs(process.create_time() - started) < 2.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def wait_until(ready: Callable[[], bool], timeout: float, interval: float = 0.05) -> bool:
    """Ask `ready` every `interval` seconds until it is true; False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace the file `path` as one step, so that no reader sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _read(path: Path) -> Recorded | None:
    try:
        return Recorded.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        return None  # an older version wrote it, or a full disk cut it: the process is not ours


def listens(address: str) -> bool:
    """Return whether somebody takes connections at this address."""
    host, port = host_and_port(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
