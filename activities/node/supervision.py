"""The agent's end of a supervisor: starting it, feeding it, stopping it, hearing the end."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from activities.node import nursery
from models.base import Frozen

_ROOT = str(Path(__file__).resolve().parents[2])


class Plan(Frozen):
    """What a supervisor has to start; travels through its pipe and is stored nowhere."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdout: str
    stderr: str
    umask: int = 0o022
    """Of the job; the supervisor's own files are for nobody else."""
    fed: float
    """When the last acknowledged heartbeat was sent, on `system.boot_clock`."""
    fence_after: float
    """Seconds after `fed` at which everything is killed."""
    signal_command: tuple[str, ...] | None = None
    """For a container: the command that signals it; the number goes in before the last word."""
    kill_command: tuple[str, ...] | None = None
    """For a container: the command that removes it."""


class Nursery:
    """The process that forks this agent's supervisors; started again where it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self, folder: Path, streams: Sequence[int]) -> None:
        """Fork a supervisor of a run folder, with these as standard input, output and error.

        Raises OSError when the system refuses; a fork that fails ends the output.
        """
        message = [os.fsencode(folder)]
        try:
            socket.send_fds(self._connected(), message, streams)
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            socket.send_fds(self._connected(), message, streams)

    def close(self) -> None:
        """End it; supervisors that it forked go on."""
        if self._socket and self._process:
            self._socket.close()
            self._process.wait()
        self._socket = self._process = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            ours, its = socket.socketpair()
            with its:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", nursery.START, _ROOT],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    env={n: os.environ[n] for n in ("PATH", "LANG") if n in os.environ},
                )
            ours.setblocking(False)  # one that hangs must not hold up the agent
            self._socket = ours
        return self._socket


class Supervised:
    """A supervisor at work. Feeding and stopping one that has gone does nothing."""

    def __init__(self, orders: asyncio.WriteTransport) -> None:
        self._orders = orders
        self._words = asyncio.StreamReader(limit=2**20)
        self._from_it: asyncio.ReadTransport | None = None

    @classmethod
    async def start(cls, born_in: Nursery, folder: Path, plan: Plan) -> Self:
        """Start the supervisor of a run folder. Raises OSError when the system refuses."""
        with contextlib.ExitStack() as its:
            stdin, orders = _pipe()
            its.enter_context(stdin)
            words, stdout = _pipe()
            its.enter_context(stdout)
            stderr = its.enter_context((folder / "supervisor.log").open("ab"))
            born_in.fork(folder, [stdin.fileno(), stdout.fileno(), stderr.fileno()])
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, orders)
        supervised = cls(transport)
        await supervised._listen(words)
        supervised._send(plan.model_dump(exclude_none=True))
        return supervised

    def feed(self, sent_at: float) -> None:
        """Tell that a heartbeat which was sent at `sent_at` was acknowledged."""
        self._send({"fed": sent_at})

    def signal(self, signal_number: int) -> None:
        """Signal every process of the job; it goes on."""
        self._send({"signal": signal_number})

    def stop(self, signal_number: int, grace: float) -> None:
        """Ask for an end: the signal now, SIGKILL to all that is left after `grace` seconds."""
        self._send({"stop": signal_number, "grace": grace})

    async def end(self, started: asyncio.Future[dict[str, Any]]) -> dict[str, Any] | None:
        """Wait until nothing of the job is left; return what the supervisor says of the end.

        Resolves `started` when the command runs. Returns None when the supervisor was killed.
        """
        end = None
        try:
            async for line in self._words:
                message = json.loads(line)
                if "started" in message and not started.done():
                    started.set_result(message["started"])
                end = message.get("end", end)
        finally:
            self._close()
        return end

    async def _listen(self, words: BinaryIO) -> None:
        loop, protocol = asyncio.get_running_loop(), asyncio.StreamReaderProtocol(self._words)
        self._from_it, _ = await loop.connect_read_pipe(lambda: protocol, words)

    def _close(self) -> None:
        self._orders.close()
        if self._from_it:  # uvloop leaves it open at its end
            self._from_it.close()

    def _send(self, message: dict[str, Any]) -> None:
        if not self._orders.is_closing():
            self._orders.write(json.dumps(message).encode() + b"\n")


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    """Return the two ends of a new pipe, to read and to write."""
    read, write = os.pipe()
    return os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
