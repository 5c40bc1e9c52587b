"""A plugin of the test suite: a program of Longshore starts in a tenth of the processor's time.

Nearly all of a start is imports of other people's packages. So one process of each parallel worker
imports those once, and turns a copy of itself into each program that a test starts
(tests/support/warm_server.py). So is what `longshore up` starts, and a market on this machine: a
copy of these, as it was before it did anything, turns copies of itself into that
(`copies_from_here`). Plainly start what other programs start, whatever has other options or
variables than such a copy can have, and everything with `TESTS_WARM=0`.
"""

import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.warm_server import CLONE, PADDING, become_server

if TYPE_CHECKING:
    import pytest  # programs import this module too: it takes them a tenth of a second

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "TESTS_WARM"
STARTERS = ("up", "demo", "market")
"""Commands of `longshore` that start programs of Longshore."""
_SCRIPT = str(Path(sys.executable).parent / "longshore")
_OF_XDIST = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""What a parallel worker begins with: its own words come through its standard input."""
_OWN = re.compile(r"(longshore\.(client|workers)|tests\.faults|tests\.support)\.\w+")
_STARTUP = re.compile(r"(PYTHON(?!PATH$)|LC_|LANG|LD_|MALLOC_|TZ$)")
"""Variables that are obeyed when an interpreter starts."""
_NOT_GIVEN = {
    "executable": None, "preexec_fn": None, "close_fds": True, "pass_fds": (), "shell": False,
    "gid": None, "gids": None, "uid": None, "umask": -1,
}  # fmt: skip
"""With other values of these a program is started plainly."""
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_NAMES = (
    "args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo",
    "creationflags", "shell", *_PIPES, "restore_signals", "gid", "gids", "uid", "umask",
    "start_new_session", "process_group",
)  # fmt: skip
"""What `Popen._execute_child` takes, in Python 3.11 to 3.14."""

_Plain = subprocess.Popen[Any]


class WarmPopen(_Plain):
    """subprocess.Popen, but a program of Longshore is a copy of the process that has imported."""

    def _execute_child(self, *given: Any) -> None:
        values: dict[str, Any] = dict(zip(_NAMES, given, strict=True))
        call = _call(values)
        if call is None:
            super()._execute_child(*given)  # pyright: ignore
            return
        streams = [
            own if values[name] == -1 else values[name]
            for name, own in (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2))
        ]
        try:
            self.pid = _server.start(call, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*(values[name] for name in _PIPES))  # pyright: ignore


class _Server:
    """The process that has imported, started when it is needed first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.process: subprocess.Popen[Any] | None = None
        self.environment: dict[str, str] = {}

    def start(self, call: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Have it turn a copy of itself, a child of this process, into a program; its id.

        Raises OSError for a folder that is not there, ConnectionError where the server has gone;
        the next start has a new one.
        """
        text = json.dumps(call).encode()
        with self._lock:
            server = self._socket or self._begin(alone="code" not in call)
            try:
                socket.send_fds(server, [struct.pack("!I", len(text))], streams)
                server.sendall(text)
                answer = server.recv(8, socket.MSG_WAITALL)
                if len(answer) < 8:
                    raise ConnectionError("the process of which programs are copies has gone")
            except BaseException:
                server.close()  # what it answers late is not to be taken for another answer
                self._socket = None
                raise
        pid, error = struct.unpack("!ii", answer)
        if error:
            os.waitpid(pid, 0)
            raise OSError(error, os.strerror(error), call["cwd"])
        return pid

    def _begin(self, *, alone: bool) -> socket.socket:
        """Start it, in a session of its own if `alone`: Ctrl-C at a terminal is for the parallel
        workers too, which are in the session of the process that they are copies of."""
        self._socket, theirs = socket.socketpair()
        self.environment = dict(os.environ)
        with theirs:
            self.process = _Plain(
                [sys.executable, "-m", "tests.support.warm_server", str(theirs.fileno()), PADDING],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT,
                env=self.environment | {"OPENBLAS_NUM_THREADS": "1", "PADDING": PADDING},
                start_new_session=alone,
            )  # fmt: skip
        return self._socket

    def begin_here(self) -> None:
        """Have a fork of this process, which has one thread, be the server of what it starts.

        It ends with this process, whose end of their connection is then closed.
        """
        self._socket, theirs = socket.socketpair()
        self.environment = dict(os.environ)
        if os.fork() == 0:
            # Here: a copy would close it late, and with it what has its number by then.
            self._socket.close()
            self._socket = None
            become_server(theirs)
        theirs.close()


_server = _Server()


def is_server(pid: int) -> bool:
    """Return whether this is the process from which programs come; it ends with this one."""
    return _server.process is not None and _server.process.pid == pid


def is_copy(pid: int) -> bool:
    """Return whether a process is such a copy."""
    # The kernel separates the words of a program that was started plainly by zero bytes.
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    return b" " in words and b"\0" not in words


def copies_from_here() -> None:
    """Start programs as copies of this process from now on."""
    if os.environ.get(VARIABLE) != "0":
        _server.begin_here()
        subprocess.Popen = WarmPopen


def starts_others(command: Sequence[str]) -> bool:
    """Return whether a command, the words behind `longshore`, is there to start programs."""
    return bool(command) and command[0] in STARTERS


def _call(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how to become a program; None for one that is started plainly."""
    if os.environ.get(VARIABLE) == "0":
        return None
    if any(values[name] != usual for name, usual in _NOT_GIVEN.items()):
        return None
    if isinstance(values["args"], str | bytes | os.PathLike) or not values["args"]:
        return None
    env = dict(os.environ if values["env"] is None else values["env"])
    words = _without_env([os.fsdecode(word) for word in values["args"]], env)
    if _at_startup(env) != _at_startup(_server.environment or os.environ):
        return None
    how = _how(words)
    return how and {
        **how, "words": words, "env": env, "cwd": str(Path.cwd() / (values["cwd"] or "")),
        "session": values["start_new_session"], "group": values["process_group"],
    }  # fmt: skip


def _at_startup(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _STARTUP.match(name)}


def _without_env(words: Sequence[str], env: dict[str, str]) -> list[str]:
    """Do what `env -u NAME ... program` would; return the rest."""
    if words[0] != "env":
        return list(words)
    rest = list(words[1:])
    while len(rest) > 1 and rest[0] == "-u":
        env.pop(rest[1], None)
        rest = rest[2:]
    return rest


def _how(words: Sequence[str]) -> dict[str, Any] | None:
    if not words:
        return None
    if words[0] == _SCRIPT:
        return {"script": _SCRIPT, "argv": words}
    if words[0] != sys.executable:
        return None
    safe = words[1:2] == ["-P"]
    rest = words[2:] if safe else words[1:]
    if rest == _OF_XDIST:
        return {"code": rest[2], "argv": ["-c"], "safe": False}
    if len(rest) < 2 or rest[0] != "-m" or not _OWN.fullmatch(rest[1]):
        return None
    return {"module": rest[1], "argv": rest[1:], "safe": safe}


def starts_copies() -> bool:
    """Return whether programs of this run are copies, and so are the parallel workers."""
    there = sys.platform == "linux" and platform.machine() in CLONE
    return there and os.environ.get(VARIABLE) != "0"


def pytest_configure(config: "pytest.Config") -> None:
    """Start programs so from now on."""
    if sys.platform == "linux" and platform.machine() in CLONE:
        subprocess.Popen = WarmPopen
