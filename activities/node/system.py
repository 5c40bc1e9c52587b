"""What supervisor and agent ask of the operating system, from the standard library alone.

Linux tells all of it; where /proc or prctl is missing (macOS) the answers are empty, and a job is
held together by its process group alone.
"""

import contextlib
import ctypes
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator

USERS_UMASK = "_LONGSHORE_UMASK"
"""In the environment of our processes: the umask that their user has, in octal digits."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes that a shell gives for a command."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4
"""Among the flags of a thread."""
_ROOM = 4096
"""Bytes: a block of most disks. A longer text asks for more."""
Message = dict[str, object]
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def boot_clock() -> float:
    """Return seconds on a clock common to all processes; it runs on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None where /proc does not say."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def is_there(pid: int) -> bool:
    """Return whether there is a process of this number, a zombie too.

    For what /proc does not tell: it asks for no file, of which this process may have none left.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def is_same(pid: int, ticks: int | None) -> bool:
    """Return whether the process of this number is the one that started then.

    Where /proc does not tell, now or when it came (`ticks` is None then), one that is there counts
    as the same: nobody knows that it has gone.
    """
    now = start_ticks(pid)
    return is_there(pid) if now is None or ticks is None else now == ticks


def has_ended(pid: int, ticks: int | None) -> bool:
    """Return whether the process that started then has ended, collected or not."""
    fields = stat_fields(pid)
    return (fields is not None and fields[0] == "Z") or not is_same(pid, ticks)


def write_whole(path: str, content: Message) -> None:
    """Replace a file so that a reader sees the old or the new one, never a part."""
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123 (pathlib starts slowly)
        json.dump(content, file)
    os.replace(temporary, path)  # noqa: PTH105 (as above)


def keep_room(path: str) -> None:
    """Have the disk give now what `write_in_room` of that file takes later."""
    with open(f"{path}.new", "wb") as file:  # noqa: PTH123 (as above)
        file.write(b" " * _ROOM)


def write_in_room(path: str, content: Message) -> None:
    """As `write_whole`, also on a disk that is full by now, where room was kept."""
    file = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as writing:
        writing.write(json.dumps(content).encode().ljust(_ROOM))
    os.replace(f"{path}.new", path)  # noqa: PTH105 (as above)


def oom_kills() -> int:
    """Return how often the kernel killed for memory here, counted from some fixed time."""
    for path, key in _oom_counters():
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:  # noqa: PTH123 (as above)
            for line in file:
                name, _, count = line.partition(" ")
                if name == key:
                    return int(count)
    return 0


def _oom_counters() -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="ascii") as file:  # noqa: PTH123 (as above)
        for line in file:
            _, controllers, path = line.strip().split(":", 2)
            if "memory" in controllers.split(","):
                yield f"/sys/fs/cgroup/memory{path}/memory.oom_control", "oom_kill"
            elif not controllers:
                yield f"/sys/fs/cgroup{path}/memory.events", "oom_kill"
    yield "/proc/vmstat", "oom_kill"


def processes() -> Iterator[tuple[int, int, int]]:
    """Yield (pid, parent, group) of every process, where /proc tells."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):  # noqa: PTH208 (as above)
            if name.isdigit() and (fields := stat_fields(int(name))):
                yield int(name), int(fields[1]), int(fields[2])


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, which may hold anything itself.

    None where it cannot be read: that alone does not say that the process has gone (`is_there`).
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 (as above)
            return file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None


def is_exiting(pid: int) -> bool:
    """Return whether a process has come to its end, and at most frees what it had: each of its
    threads is past the last instruction of its program. False where /proc does not tell."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 (as above)
    except OSError:
        return False
    found = [stat_fields(int(thread)) for thread in threads]
    return bool(found) and all(fields and int(fields[6]) & _PF_EXITING for fields in found)


def is_stopped(pid: int) -> bool:
    """Return whether somebody stopped a process (SIGSTOP, or a debugger)."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] in ("T", "t")


def send(pid: int, number: int) -> None:
    """Send a signal to a process, where it is there and ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def signal_number(name: str) -> int:
    """Return the number of a signal; SIGTERM's for a name that this system does not know."""
    with contextlib.suppress(KeyError):
        return signal.Signals[name]
    return signal.SIGTERM


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def become_subreaper() -> bool:
    """Make orphaned descendants children of this process, so that none can slip away.

    Returns whether they come, and /proc tells of them.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    return _libc is not None and stat_fields(os.getpid()) is not None


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def keep_private() -> None:
    """Have only this user read what this process and its children make; see `users_umask`."""
    before = os.umask(0o077)
    os.environ.setdefault(USERS_UMASK, f"{before:o}")


def close_to_others(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Take from others what an earlier version let them do with files and folders of this user.

    Nobody passes a closed folder, so what is in one is not looked at. Links stay as they are.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            mode = stat.S_IMODE(found.st_mode)
            if mode & 0o077 and found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode):
                os.chmod(path, mode & ~0o077)  # noqa: PTH101 (pathlib starts slowly)


def users_umask() -> int:
    """Return the umask of the user's own programs, such as jobs: this process's own where it was
    not made private, or 022 where /proc does not say.

    To ask by `os.umask` would set it, also for files that other threads make.
    """
    if (given := os.environ.get(USERS_UMASK)) is not None:
        return int(given, 8)
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:  # noqa: PTH123
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _prctl(option: int, value: int) -> None:
    if _libc:
        _libc.prctl(option, value, 0, 0, 0)
