"""The agent's end of a supervisor: starting it, feeding it, stopping it, hearing the end.

A supervisor says that it is there before it is told what to start. So one that does not come in
time can be asked for again: nothing runs twice.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from longshore.activities.node import fork_server, orphans
from longshore.activities.node.supervisor_input import SupervisorInput
from longshore.activities.node.system import (
    become_subreaper,
    boot_clock,
    has_ended,
    is_same,
    is_stopped,
    start_ticks,
)
from longshore.models.base import Frozen

FORK_SERVER_PATIENCE = 30.0
"""Seconds in which a fork is made, and a child that has ended is collected: many times what a
loaded machine takes."""
_REAP_EVERY = 1.0
_POLL_EVERY = 1.0
"""Seconds between two polls of a supervisor that says nothing."""
_TRIES = 2
"""How often a supervisor is asked for: a stopped fork server forks none, the next one does."""
_log = logging.getLogger(__name__)
_ROOT = str(Path(__file__).parents[3])
"""The folder that holds the package `longshore`: a path that follows no link of a checkout."""


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
    """For a container: the command that signals it; the number and `stop` or `go-on` follow."""
    kill_command: tuple[str, ...] | None = None
    """For a container: the command that removes it."""
    orders: str | None = None
    """Of an engine: the FIFO by which the next agent tells it on, where this one has died."""
    elements: tuple[dict[str, Any], ...] | None = None
    """Of a batch: index, attempt and environment of each element, in place of one process."""
    folder: str | None = None
    """Of a batch: where its journal goes."""
    grace: float | None = None
    """Of a batch: seconds that an element which is stopped has to end."""
    limit: float | None = None
    """Of a batch: seconds that an element may run."""


class NotForkedError(Exception):
    """No supervisor came: the node has no process to give one, or somebody stops what forks it."""


class ForkServer:
    """The process that forks this agent's supervisors; started again where it has ended.

    A job of the same user may stop it. Then it forks nothing and collects no orphan: it is ended,
    with the orphans that it has, and another is started.

    Or kill it: then its supervisors, and the orphans that it had, come to this process where that
    has said `adopt`.
    """

    def __init__(self) -> None:
        self._adopts = self._lost_one = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._supervisors: dict[int, int | None] = {}
        """Those that have come, by process id, and when they started."""
        self._ending: dict[subprocess.Popen[bytes], asyncio.Task[None]] = {}
        self._unended = orphans.Unended()
        self._heard_at = 0.0
        """When the last of them came, on `boot_clock`."""

    def fork(self, folder: Path, streams: Sequence[int]) -> subprocess.Popen[bytes]:
        """Fork a supervisor of a run folder, with these as standard input, output and error.

        Returns the process that was told to. Raises OSError when the system refuses, and
        NotForkedError when it ends before it was told; a fork that fails ends the output.
        """
        message = [os.fsencode(folder)]
        try:
            socket.send_fds(self._connected()[0], message, streams)
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            try:
                socket.send_fds(self._connected()[0], message, streams)
            except (BrokenPipeError, ConnectionResetError, BlockingIOError) as error:
                raise NotForkedError(f"what forks supervisors ends at once: {error}") from error
        return self._connected()[1]

    def has_come(self, pid: int) -> None:
        """Note a supervisor that has come: it is no orphan."""
        self._supervisors[pid] = start_ticks(pid)
        self._heard_at = boot_clock()

    def has_gone(self, pid: int) -> None:
        self._supervisors.pop(pid, None)

    def heard_since(self, moment: float) -> bool:
        """Return whether any supervisor has come since then."""
        return self._heard_at > moment

    def adopt(self) -> None:
        """Adopt the orphans of a killed fork server; `keep_reaping` belongs to it.

        For a process whose own children are all in its session, but for the fork server. Does
        nothing where the system has no subreaper (macOS).
        """
        self._adopts = become_subreaper()

    async def keep_reaping(self) -> None:
        """For ever, look for a fork server that was killed: end the orphans that came from it, and
        collect what has ended of all that came. At once done where nothing comes to this one."""
        while self._adopts:
            if orphans.a_child_has_ended():
                self._reap()
            if self._lost_one:
                self._lost_one = False
                self._unended.told_to_nobody(await self._end_adopted())
            await asyncio.sleep(_REAP_EVERY)

    async def collected(
        self, process: subprocess.Popen[bytes], pid: int, ticks: int | None
    ) -> list[int]:
        """Wait until a supervisor that was killed, and what it left, is no concern any more.

        A fork server that does not collect it in time is ended. Returns what could not be ended.
        """
        until = boot_clock() + FORK_SERVER_PATIENCE
        while is_same(pid, ticks) and (self._adopts or self._process is process):
            self._reap()
            late = boot_clock() > until
            if self._process is process and (late or is_stopped(process.pid)):
                await self.end(process)
            elif late:
                break
            else:
                await asyncio.sleep(0.01)
        if ending := self._ending.get(process):  # for another start, or another run
            await asyncio.shield(ending)
        left = [*await self._killed_by(process), *await self._end_adopted()]
        return [*left, *self._unended.to_tell_of()]

    async def _killed_by(self, process: subprocess.Popen[bytes]) -> list[int]:
        """Wait until a fork server has ended its orphans; return those that still run."""
        found = set(orphans.strays(process.pid, self._stays))
        until = boot_clock() + orphans.STRAY_PATIENCE
        while self._process is process and found and boot_clock() < until:
            await asyncio.sleep(0.01)
            self._reap()  # it may have been killed meanwhile
            # What comes after the first look may be a supervisor that is being forked.
            found &= set(orphans.strays(process.pid, self._stays))
        return self._unended.give_up(sorted(found)) if self._process is process else []

    async def _end_adopted(self) -> list[int]:
        """Kill the orphans that came to this process; return those that still run after a while.

        Among them may be a supervisor that was forked a moment before its fork server was
        killed: it has been told nothing yet, and another is asked for.
        """
        until = boot_clock() + orphans.STRAY_PATIENCE
        told = orphans.Told()
        tried = False  # on a busy machine the first look alone may take as long
        while self._adopts and (found := orphans.adopted_strays(self._stays)):
            if tried and boot_clock() > until:
                return self._unended.give_up(found)
            tried = True
            told.killing(found)
            orphans.kill(found)
            await asyncio.sleep(0.01)  # the end of one may leave others, and takes a moment
        self._reap()
        return []

    def _reap(self) -> None:
        """Collect what has ended of what came here, and a fork server that was killed."""
        if self._adopts:
            if self._process and self._process.poll() is not None:
                self.close()  # the next start has another
            orphans.reap_adopted(self._is_fork_server)

    async def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a fork server that does not answer, and the orphans that came to it."""
        if self._process is process and self._socket:
            _log.warning("the process that forks supervisors does not answer and is killed")
            its = self._socket
            self._socket = self._process = None  # who starts meanwhile gets another one
            self._ending[process] = asyncio.create_task(self._ended(process, its))
        if ending := self._ending.get(process):
            await asyncio.shield(ending)

    async def _ended(self, process: subprocess.Popen[bytes], its: socket.socket) -> None:
        try:
            await asyncio.to_thread(self._end, process)
        finally:
            its.close()  # not before: one that still runs would end, and leave its orphans
            self._lost_one = True
            del self._ending[process]

    def close(self) -> None:
        """End it; supervisors that it forked go on."""
        if self._socket and self._process:
            self._socket.close()
            try:
                self._process.wait(0 if is_stopped(self._process.pid) else FORK_SERVER_PATIENCE)
            except subprocess.TimeoutExpired:
                self._end(self._process)
        self._socket = self._process = None
        self._lost_one = True

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGSTOP)  # it forks and reaps nothing meanwhile
        try:
            orphans.end_strays(process.pid, self._stays)
        finally:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(FORK_SERVER_PATIENCE)

    def _is_supervisor(self, pid: int) -> bool:
        return pid in self._supervisors and is_same(pid, self._supervisors[pid])

    def _is_fork_server(self, pid: int) -> bool:
        mine = [*self._ending, *([self._process] if self._process else [])]
        return any(process.pid == pid for process in mine)

    def _stays(self, pid: int) -> bool:
        """Return whether a process belongs to the agent, or could not be ended before."""
        known = self._is_supervisor(pid) or self._is_fork_server(pid)
        return known or pid in self._unended

    def _connected(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        if self._socket is None or self._process is None:
            ours, its = socket.socketpair()
            with its:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", fork_server.START, _ROOT],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    env={n: os.environ[n] for n in ("PATH", "LANG") if n in os.environ},
                )
            ours.setblocking(False)  # one that hangs must not hold up the agent
            self._socket = ours
        return self._socket, self._process


class Supervised(SupervisorInput):
    """A supervisor at work. Feeding and stopping one that has gone does nothing."""

    def __init__(
        self,
        born_in: ForkServer,
        forked_by: subprocess.Popen[bytes],
        orders: asyncio.WriteTransport,
    ) -> None:
        self._fork_server = born_in
        self._forked_by = forked_by
        self._orders = orders
        self._words = asyncio.StreamReader(limit=2**20)
        self._from_it: asyncio.ReadTransport | None = None
        self._pid = 0
        self._ticks: int | None = None
        self.left: list[int] = []
        """What could not be ended of a job that killed it, once `end` has returned."""

    @classmethod
    async def start(cls, born_in: ForkServer, folder: Path) -> Self:
        """Return a supervisor of a run folder, which waits for its plan.

        Raises OSError when the system refuses, NotForkedError when none comes.
        """
        for _ in range(_TRIES):
            asked_at = boot_clock()
            supervised = await cls._forked(born_in, folder)
            # One that comes too late finds its orders closed, and starts nothing.
            if await supervised._comes():
                return supervised
            supervised._close()
            late = boot_clock() - asked_at >= FORK_SERVER_PATIENCE
            stopped = is_stopped(supervised._forked_by.pid)
            if stopped or (late and not born_in.heard_since(asked_at)):
                await born_in.end(supervised._forked_by)
        raise NotForkedError("no supervisor could be started for the process")

    def begin(self, plan: Plan) -> None:
        """Have it start its process. To be called once."""
        self._send(plan.model_dump(exclude_none=True))

    def leave(self) -> None:
        """Have it end without having started anything."""
        self._close()
        self._fork_server.has_gone(self._pid)

    def kill(self) -> bool:
        """Kill it where it still lives, and what it keeps with it; return whether it did."""
        if start_ticks(self._pid) != self._ticks:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        return True

    async def end(self, started: asyncio.Future[dict[str, Any]]) -> dict[str, Any] | None:
        """Wait until nothing of the job is left; return what the supervisor says of the end.

        Resolves `started` when the command runs. Returns None when the supervisor was killed:
        then what it left is killed too, but for what its mark tells of.
        """
        end = None
        try:
            async for line in self._said():
                message = json.loads(line)
                if "started" in message and not started.done():
                    started.set_result(message["started"])
                end = message.get("end", end)
        finally:
            self.leave()
        if end is None:
            self.left = await self._fork_server.collected(self._forked_by, self._pid, self._ticks)
        return end

    async def _said(self) -> AsyncIterator[bytes]:
        """Yield what it says until it has gone.

        A fork server that a job stopped right after the fork holds the pipe open, which then does
        not end with the supervisor.
        """
        while True:
            gone = has_ended(self._pid, self._ticks)
            try:
                line = await asyncio.wait_for(self._words.readline(), _POLL_EVERY)
            except TimeoutError:
                if gone:
                    return
                continue
            if not line:
                return
            yield line

    @classmethod
    async def _forked(cls, born_in: ForkServer, folder: Path) -> Self:
        with contextlib.ExitStack() as its:
            stdin, orders = _pipe()
            its.enter_context(stdin)
            words, stdout = _pipe()
            its.enter_context(stdout)
            stderr = its.enter_context((folder / "supervisor.log").open("ab"))
            forked_by = born_in.fork(folder, [stdin.fileno(), stdout.fileno(), stderr.fileno()])
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, orders)
        supervised = cls(born_in, forked_by, transport)
        await supervised._listen(words)
        return supervised

    async def _comes(self) -> bool:
        """Wait for its first word; return whether it came in time."""
        reading = asyncio.ensure_future(self._words.readline())
        until = boot_clock() + FORK_SERVER_PATIENCE
        while not reading.done() and boot_clock() < until:
            if is_stopped(self._forked_by.pid):
                break
            await asyncio.wait({reading}, timeout=0.2)
        if not reading.done():
            reading.cancel()
            return False
        if not (line := reading.result()):
            return False
        self._pid = json.loads(line)["here"]
        self._ticks = start_ticks(self._pid)
        self._fork_server.has_come(self._pid)
        return True

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
