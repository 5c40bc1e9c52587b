"""Runs the elements of a batch one after another, in the place of a job's process.

The child that a supervisor forks calls `run` where it would otherwise turn into the command. It
keeps a journal, a line of JSON before each start and one at each end, so that whoever comes later
knows what may have run; and writes nothing else. From the standard library alone.

What elements write goes by pipes to the same two files: the journal says which part of each is
whose. SIGTERM, or whatever stops the job, goes on to the element that runs, and is the end
of the batch; SIGUSR1 has the runner look which elements were cancelled.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence

from longshore.activities.node.descendants import descendants, signal_groups
from longshore.activities.node.output_pipes import OutputPipes, Spool
from longshore.activities.node.system import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    become_subreaper,
    boot_clock,
    is_exiting,
    oom_kills,
    send,
)

JOURNAL = "journal"
UNWRITTEN = "unwritten"
"""A file of the run folder: how many bytes of the element that runs a full disk did not take, for
who finds that the runner was killed."""
CANCELLED = "cancelled-elements"
"""A file of the run folder: the indices that are not to run, a line each."""
_LINES_OF_ONE = 512
"""Bytes that the start and the end of an element take in the journal, and some more."""
_POLL = 0.2
"""Seconds between two looks for what a signal has asked for."""
_LEFTOVER_SECONDS = 10.0
"""In which what an element left behind has ended, once it is killed."""


class Runner:
    """The elements of one batch."""

    def __init__(self, folder: str, plan: dict) -> None:
        self._folder = folder
        self._argv: list[str] = plan["argv"]
        self._env: dict[str, str] = plan["env"]
        self._elements: Sequence[dict] = plan["elements"]
        self._grace: float = plan["grace"]
        self._limit: float | None = plan.get("limit")
        """Seconds that an element may run."""
        self._pid = 0
        self._stop = 0
        """The signal that asks for the end; 0 where none did."""
        self._cancelled = set[int]()
        self._kill_at: float | None = None
        """When an element that was asked to stop, and not the batch, is killed."""
        self._stop_at: float | None = None
        """When the time of the element that runs is over."""
        self._over_time = False
        self._index = -1
        self._oom = oom_kills()
        self._spools = Spool(1, self._note_unwritten), Spool(2, self._note_unwritten)
        self._pipes: OutputPipes | None = None
        self._unwritten = os.open(
            f"{folder}/{UNWRITTEN}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        self._note_unwritten()  # now: it takes no more room later
        self._journal = os.open(
            f"{folder}/{JOURNAL}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        # Room for all lines: an element may fill the disk, and has ended all the same.
        _write_all(self._journal, b" " * (_LINES_OF_ONE * len(self._elements)))
        os.lseek(self._journal, 0, os.SEEK_SET)

    def run(self) -> None:
        become_subreaper()
        for number in signal.valid_signals() - {
            signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGUSR1,
        }:  # fmt: skip
            # Any other may be what the job is stopped by.
            if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
                signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_cancel)
        self._look_for_cancelled()
        for element in self._elements:
            if self._stop:
                break
            if element["index"] in self._cancelled:
                self._write(
                    {
                        "left_out": element["index"],
                        "attempt": element["attempt"],
                        "at": time.time(),
                    }
                )
                continue
            self._run_one(element)
        os.ftruncate(self._journal, os.lseek(self._journal, 0, os.SEEK_CUR))

    def _run_one(self, element: dict) -> None:
        index = self._index = element["index"]
        for spool in self._spools:  # of those before it: it is in nobody's part then
            spool.tell()
        self._write(
            {
                "start": index, "attempt": element["attempt"], "at": time.time(),
                "out": _size(1), "err": _size(2),
            }
        )  # fmt: skip
        end: dict = {"end": index}
        pipes = self._pipes = OutputPipes(self._spools)
        self._note_unwritten()
        try:
            pid = self._spawn(element["env"], pipes)
        except FileNotFoundError:
            end |= {"code": NOT_FOUND, "message": f"command not found: {self._argv[0]}"}
        except OSError as error:
            why = error.strerror or "it cannot be executed"
            end |= {"code": NOT_EXECUTABLE, "message": f"{self._argv[0]}: {why}"}
        else:
            self._pid, self._over_time = pid, False
            self._stop_at = None if self._limit is None else boot_clock() + self._limit
            if self._stop:  # asked for while it was being started
                self._signal(self._stop)
            if index in self._cancelled:
                self._on_cancel()
            end["status"] = self._wait(pid)
            if (left := _end_leftovers()) > 0:
                end["leftovers"] = left
            if end["status"] in (-signal.SIGKILL, 128 + signal.SIGKILL):
                now = oom_kills()
                end["oom"], self._oom = now > self._oom, now
            if self._stop:
                end["stopped"] = True
            if index in self._cancelled:
                end["cancelled"] = True
            if self._over_time:
                end["time_limit"] = self._limit
        pipes.finish()
        if (lost := pipes.lost) > 0:
            end["unwritten"] = lost
        self._index, self._kill_at = -1, None
        self._write({**end, "at": time.time(), "out": _size(1), "err": _size(2)})

    def _spawn(self, env: dict[str, str], pipes: OutputPipes) -> int:
        to_pipes = [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(pipes.ends, start=1)]
        try:
            return os.posix_spawnp(
                self._argv[0], self._argv, self._env | env, setsid=True,
                setsigmask=[], setsigdef=_DEFAULT, file_actions=to_pipes,
            )  # fmt: skip
        finally:
            pipes.start()

    def _wait(self, pid: int) -> int:
        """Wait for the end of the element; its number is nobody else's before it is collected."""
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if self._stop_at is not None and boot_clock() >= self._stop_at:
                self._stop_for_time()
            if self._kill_at is not None and boot_clock() >= self._kill_at:
                self._signal(signal.SIGKILL)
            _sleep_until_an_end()
        self._pid, self._stop_at = 0, None
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _on_stop(self, number: int, _frame: object) -> None:
        self._stop = self._stop or number
        self._signal(number)

    def _on_cancel(self, *_: object) -> None:
        self._look_for_cancelled()
        if self._pid and self._index in self._cancelled and self._kill_at is None:
            self._kill_at = boot_clock() + self._grace
            self._signal(signal.SIGTERM)

    def _stop_for_time(self) -> None:
        self._stop_at = None
        if is_exiting(self._pid):
            return  # it has ended by itself, and has its own outcome
        if not self._stop and self._kill_at is None:  # else it is being stopped already
            self._over_time = True
            self._kill_at = boot_clock() + self._grace
            self._signal(signal.SIGTERM)

    def _look_for_cancelled(self) -> None:
        path = f"{self._folder}/{CANCELLED}"
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:  # noqa: PTH123 (pathlib takes long to load)
            self._cancelled |= {int(line) for line in file if line.strip()}

    def _signal(self, number: int) -> None:
        if self._pid:
            signal_groups({self._pid, *(group for _, group in descendants(os.getpid()))}, number)

    def _note_unwritten(self) -> None:
        """As far as the disk takes it: what carries the output, and the element, goes on."""
        lost = self._pipes.lost if self._pipes else 0
        with contextlib.suppress(OSError):
            os.pwrite(self._unwritten, b"%20d" % lost, 0)

    def _write(self, line: dict) -> None:
        _write_all(self._journal, json.dumps(line).encode() + b"\n")


def _write_all(file: int, data: bytes) -> None:
    while data:  # a disk that gets full takes a part
        data = data[os.write(file, data) :]


def _sleep_until_an_end() -> None:
    """Sleep until a child has ended, or for a moment."""
    if hasattr(signal, "sigtimedwait"):
        signal.sigtimedwait([signal.SIGCHLD], _POLL)
    else:  # macOS
        time.sleep(_POLL)


def _size(stream: int) -> int:
    return os.fstat(stream).st_size


def _end_leftovers() -> int:
    """Kill what an element left behind, and wait for its end; return how many that were."""
    found, until = set[int](), boot_clock() + _LEFTOVER_SECONDS
    while boot_clock() < until:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            break
        below = {pid for pid, _ in descendants(os.getpid())}
        for pid in below:
            send(pid, signal.SIGKILL)
        found |= below
        time.sleep(0.002)
    return len(found)


_DEFAULT = [
    number for number in signal.valid_signals()
    if number not in (signal.SIGKILL, signal.SIGSTOP)
]  # fmt: skip


def run(folder: str, plan: dict) -> None:
    """Run the elements of a plan. Returns when none is left, or when it was asked to stop."""
    # Blocked, so that `sigtimedwait` hears of each end; an element starts with nothing blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    # The command is looked for on the PATH of this process, and not on that of the element.
    if "PATH" in plan["env"]:
        os.environ["PATH"] = plan["env"]["PATH"]
    Runner(folder, plan).run()
