"""Keeps one process of a job: starts it, fences it, stops it, and writes down how it ended.

Runs as a process of its own (forked by `activities.node.fork_server`), from the standard library
alone, so that it starts in a few milliseconds and outlives a crash of the node agent long enough
to clean up after it.

Standard input is a pipe from the agent with one JSON object per line. The first is the plan
(see `activities.node.supervision.Plan`), the others are `{"fed": T}`, the time at which the agent
sent a heartbeat that the server acknowledged, `{"signal": SIGNAL}`, which is passed on to a job
that is not being stopped, and `{"stop": SIGNAL, "grace": SECONDS}`. Times are seconds of
`boot_clock`. When the pipe ends, the agent is dead and so is the job; but where the plan names a
FIFO for orders (engines), the job goes on until its fence falls, and the next agent sends the same
lines by that. Standard output tells the agent that it is here, of the start and of the end; the
files `started.json` and `end.json` of the folder say the last two to an agent that has been
restarted.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

from longshore.activities.node.container_signals import with_signal
from longshore.activities.node.descendants import descendants, signal_groups
from longshore.activities.node.job_command import become_job
from longshore.activities.node.output_pipes import OutputPipes, Spool, open_spools
from longshore.activities.node.output_times import OutputTimes
from longshore.activities.node.system import (
    Message,
    become_subreaper,
    boot_clock,
    group_lives,
    keep_room,
    oom_kills,
    start_ticks,
    write_in_room,
    write_whole,
)

HELPER_SECONDS = 20.0
"""How long a container command may take before it is given up."""
REMOVALS = 5
"""Tries to remove a container: where its runtime tidies up after it at the same moment, neither
may come through."""
SIGNAL_AGAIN_SECONDS = 0.5
"""Between two signals to a container that is not there yet: its image may be on its way."""
RESCAN_SECONDS = 0.05
"""Between two looks for processes that must die, while some are left."""


class Supervisor:
    """One process of a job and everything that descends from it."""

    def __init__(self, folder: str, inbox: "Inbox", plan: dict) -> None:
        self._folder = folder
        self._inbox = inbox
        self._plan = plan
        self._fence_at: float = plan["fed"] + plan["fence_after"]
        self._leader = 0
        self._helpers: dict[int, float] = {}
        self._signalling: dict[int, int] = {}
        """The signal that each of the helpers sends that ask for the end."""
        self._unheard: tuple[int, float] | None = None
        """A signal that asks for the end and did not arrive, and when to send it again."""
        self._status: int | None = None
        self._ended_at = 0.0
        self._cause = "exited"
        self._kill_at: float | None = None
        self._killing = False
        self._removal = self._removals = 0
        """The helper that removes the container, and how many did."""
        self._had_grace = self._overdue = False
        self._leftovers = 0
        self._oom_kills = oom_kills()
        self._times = OutputTimes(f"{folder}/times", plan["stdout"], plan["stderr"])
        self._orders: str | None = plan.get("orders")
        self._pipes: OutputPipes | None = None

    def run(self) -> None:
        wake = _wake_on_child()
        self._times.note()  # what stands there was written before the job began
        error = self._start()
        if error:
            self._report_end({"cause": "start", **error})
            return
        while not self._empty():
            self._enforce()
            listened = [self._inbox.fd, wake] if self._inbox.open else [wake]
            select.select(listened, [], [], self._patience())
            _drain(wake)
            self._obey()
            self._reap()
            self._times.look()
        if self._pipes:
            self._pipes.finish()
        self._times.note()
        self._report_end({"cause": self._cause})

    def _start(self) -> Message | None:
        """Fork, write it down, and only then let it go; return why it could not start."""
        try:
            output = open_spools(self._plan["stdout"], self._plan["stderr"])
        except OSError as error:
            return _unwritable(error)
        if not self._plan.get("elements"):  # what runs those has pipes for each
            self._pipes = OutputPipes([Spool(file) for file in output])
            output = self._pipes.ends
        go_read, go_write = os.pipe()
        error_read, error_write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            become_job(self._plan, parent, go_read, error_write, output)
        os.close(go_read)
        os.close(error_write)
        self._leader = pid
        started: Message = {
            "pid": pid,
            "ticks": start_ticks(pid),
            "supervisor": parent,
            "supervisor_ticks": start_ticks(parent),
            "at": time.time(),
        }
        try:
            if self._orders:
                os.mkfifo(self._orders, 0o600)
            keep_room(f"{self._folder}/end.json")
            write_whole(f"{self._folder}/started.json", started)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return _unwritable(error)
        if boot_clock() >= self._fence_at:
            # The agent stood still on its way here, and the job may have begun elsewhere.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"cause": "fenced"}
        os.write(go_write, b"g")
        os.close(go_write)
        failure = _read_all(error_read)
        if failure:
            os.waitpid(pid, 0)
            return json.loads(failure)
        if self._pipes:
            self._pipes.start()
        _tell({"started": started})
        return None

    def _patience(self) -> float:
        """Seconds until something must be done even if nobody says anything."""
        if self._killing or self._helpers or self._status is not None:
            return RESCAN_SECONDS
        times = [self._fence_at] + ([self._kill_at] if self._kill_at is not None else [])
        times += [self._unheard[1]] if self._unheard else []
        # A clock that ran on during a sleep is seen at the next wake: look now and then.
        return min(max(min(times) - boot_clock(), 0.0), self._times.patience)

    def _obey(self) -> None:
        for message in self._inbox.messages():
            if "fed" in message:
                fed = float(message["fed"])  # pyright: ignore[reportArgumentType]
                self._fence_at = max(self._fence_at, fed + self._plan["fence_after"])
            elif "signal" in message:
                if self._status is None and self._kill_at is None:
                    self._signal_all(int(message["signal"]), stop=False)  # pyright: ignore[reportArgumentType]
            elif "stop" in message:
                self._stop(int(message["stop"]), float(message["grace"]))  # pyright: ignore[reportArgumentType]

    def _stop(self, signal_number: int, grace: float) -> None:
        kill_at = boot_clock() + grace
        if self._kill_at is None:
            self._had_grace = grace > 0
            if self._had_grace:  # else SIGKILL follows at once
                self._signal_all(signal_number, stop=True)
        self._kill_at = min(kill_at, self._kill_at) if self._kill_at is not None else kill_at
        if self._status is None:
            self._cause = "stopped"

    def _enforce(self) -> None:
        now = boot_clock()
        if self._unheard and self._unheard[1] <= now and self._status is None:
            number, self._unheard = self._unheard[0], None
            self._signal_all(number, stop=True)
        if not self._inbox.open and not self._goes_on_alone():
            self._kill("agent-gone")
        elif now >= self._fence_at:
            self._kill("fenced")
        elif self._kill_at is not None and now >= self._kill_at:
            self._overdue = self._had_grace
            self._kill("stopped")
        elif self._status is not None and (self._kill_at is None or self._orders):
            # The job is over when its first process is. A stop waits for the rest, which may
            # be saving while a shell in front of it has already gone. The first process of an
            # engine waits for that itself: what is left has nothing to save, and may have GPU
            # memory, as workers of vLLM have that live on.
            if self._kill_at is None and not self._plan.get("kill_command"):  # else the runtime's
                self._leftovers = max(self._leftovers, len(self._tree()))
            self._kill(self._cause)

    def _goes_on_alone(self) -> bool:
        """Listen to the next agent, where there may be one; return whether that is so."""
        ends = self._killing or self._kill_at is not None or self._status is not None
        return self._orders is not None and not ends and self._inbox.reopen(self._orders)

    def _kill(self, cause: str) -> None:
        if not self._killing:
            self._killing = True
            if self._status is None:
                self._cause = cause
            self._remove()
        # A container that has ended is left to its runtime while that tidies up after it.
        if self._status is None or not self._helpers:
            signal_groups(self._groups(), signal.SIGKILL)
            for pid, _ in self._tree():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid, deadline in self._helpers.items():
            if boot_clock() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _remove(self) -> None:
        """Have the runtime remove the container, if it is one."""
        self._removals += 1
        self._removal = self._help(self._plan.get("kill_command"))

    def _signal_all(self, signal_number: int, *, stop: bool) -> None:
        """Signal all processes of the job, those of its container instead of its client."""
        command = self._plan.get("signal_command")
        if command:
            pid = self._help(with_signal(command, signal_number, stop=stop))
            if pid and stop:
                self._signalling[pid] = signal_number
        else:
            # What runs elements gives a stop on; of an engine, when its last request is over.
            ours = self._status is None and (self._plan.get("elements") or self._orders)
            signal_groups({self._leader} if ours else self._groups(), signal_number)

    def _help(self, command: list[str] | None) -> int:
        """Start a helper; return its process id, 0 where there is none."""
        if not command:
            return 0
        pid, null = 0, os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
        with contextlib.suppress(OSError):
            pid = os.posix_spawnp(command[0], command, self._plan["env"], file_actions=actions)
            self._helpers[pid] = boot_clock() + HELPER_SECONDS
        os.close(null)
        return pid

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._helpers.pop(pid, None)
                number = self._signalling.pop(pid, None)
                if number is not None and status:
                    self._unheard = number, boot_clock() + SIGNAL_AGAIN_SECONDS
                if pid == self._removal and status and self._removals < REMOVALS:
                    self._remove()
                if pid == self._leader:
                    self._status = os.waitstatus_to_exitcode(status)
                    self._ended_at = time.time()

    def _empty(self) -> bool:
        """True when the leader was reaped and nothing of the job is left."""
        if self._status is None:
            return False
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return sys.platform == "linux" or not group_lives(self._leader)
        return False

    def _tree(self) -> list[tuple[int, int]]:
        """Return (pid, group) of all that descends from here, but for the helpers."""
        return descendants(os.getpid(), self._helpers)

    def _groups(self) -> set[int]:
        """Return the groups of the job."""
        # Once the leader has been reaped its number may be given away, unless somebody in the
        # group still holds it.
        leader = {self._leader} if self._status is None else set[int]()
        return leader | {group for _, group in self._tree()}

    def _report_end(self, end: Message) -> None:
        if self._status is not None:
            end |= {
                "status": self._status,
                "ended_at": self._ended_at,
                "leftovers": self._leftovers,
                "unwritten": self._pipes.lost if self._pipes else 0,
                "overdue": self._overdue,
                # Also where its first process had gone by then: others may have been saving.
                "killed": self._killing and self._kill_at is not None,
                "oom": oom_kills() > self._oom_kills,
            }
        _tell({"end": end})
        # The next agent may know it by this alone, and the job may have filled the disk.
        write_in_room(f"{self._folder}/end.json", end)


class Inbox:
    """Lines of JSON from the agent, read without ever waiting for the rest of a line."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.open = True
        self._rest = b""

    def first(self) -> Message | None:
        """Wait for the first message; None when the agent went before it sent one."""
        while self.open and b"\n" not in self._rest:
            self._read()
        line, _, self._rest = self._rest.partition(b"\n")
        os.set_blocking(self.fd, False)
        return json.loads(line) if line else None

    def messages(self) -> Iterator[Message]:
        self._read()
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            yield json.loads(line)

    def reopen(self, fifo: str) -> bool:
        """Read from a FIFO in place of a pipe that has ended; return whether it can be opened.

        It has no end: this process has it open to write too.
        """
        try:
            fd = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        os.dup2(fd, self.fd, inheritable=False)
        os.close(fd)
        self.open, self._rest = True, b""
        return True

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.open:
                piece = os.read(self.fd, 65536)
                self.open = bool(piece)
                self._rest += piece
                if os.get_blocking(self.fd):
                    return


def _unwritable(error: OSError) -> Message:
    return {"code": None, "message": f"the run folder cannot be written: {error}"}


def _wake_on_child() -> int:
    """Return a file descriptor that becomes readable when a child ends."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    return wake_read


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def _read_all(fd: int) -> bytes:
    pieces = []
    while piece := os.read(fd, 65536):
        pieces.append(piece)
    os.close(fd)
    return b"".join(pieces)


def _tell(message: Message) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def main(folder: str) -> None:
    # Only the pipe gives orders: a signal to everybody here (a terminal's Ctrl-C, a service
    # manager's stop) reaches the agent too, which stops its jobs with their grace.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    inbox = Inbox(0)
    _tell({"here": os.getpid()})
    plan = inbox.first()
    if plan:
        Supervisor(folder, inbox, plan).run()
