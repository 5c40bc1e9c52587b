"""Forks the supervisors of a node's processes, so that none has to start a Python of its own.

A process of the agent's (`START` with `python -I -S -c`), from the standard library alone, and
with one thread. A new Python needs 15 ms of processor time until a supervisor can begin, a fork
needs one. It knows nothing of the jobs: it may be killed at any time, those that it forked go on,
and the agent starts another.

A supervisor keeps all that descends from its job. Where a job kills its supervisor, what is left
of it becomes a child of this process, and is killed: whatever comes here that was not forked here
is such an orphan.

Standard input is a socket from the agent. A message is a run folder, with the descriptors that
become the supervisor's standard input, output and error. When the socket ends, so does this.
"""

import contextlib
import gc
import os
import signal
import socket
import sys

from longshore.activities.node import supervisor
from longshore.activities.node.system import become_subreaper, oom_kills, processes, send

START = (
    "import sys; sys.path[:0] = sys.argv[1:2]; "
    "from longshore.activities.node.fork_server import main; main()"
)
"""Argument: the folder that holds the package `longshore`."""
_LONGEST_PATH = 65536
_STREAMS = 3
_SCANS = 100
"""Looks for orphans that were not there a moment ago, before those found are killed."""


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    supervisors = set[int]()
    signal.signal(signal.SIGCHLD, lambda *_: _collect_ended(supervisors))
    oom_kills()  # imports the codecs that each of them would import
    gc.freeze()  # a collection would write to the pages that all of them share
    agent = socket.socket(fileno=0)
    while True:
        # Descriptors end a read: it never has parts of two messages.
        folder, streams, _, _ = socket.recv_fds(agent, _LONGEST_PATH, _STREAMS)
        if not folder:
            return
        _fork_supervisor(agent, os.fsdecode(folder), streams, supervisors)
        for stream in streams:
            os.close(stream)


def _fork_supervisor(
    agent: socket.socket, folder: str, streams: list[int], supervisors: set[int]
) -> None:
    # Not heard of before it is known: it would be taken for an orphan.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        pid = os.fork()
        if pid:
            supervisors.add(pid)
    except OSError as error:  # the agent sees that the supervisor's output has ended
        os.write(streams[2], f"no supervisor could be forked: {error}\n".encode())
        return
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    if pid:
        return
    try:
        agent.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        supervisor.main(folder)
        os._exit(0)
    except BaseException:  # whatever it is, a supervisor must not live on as a fork server
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        os._exit(1)


def _collect_ended(supervisors: set[int]) -> None:
    """Reap what has ended, and kill what came here from a supervisor that was killed.

    The end of an orphan, and of what that leaves behind, calls this again.
    """
    crashed = False
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            crashed = crashed or pid not in supervisors or status != 0
            supervisors.discard(pid)
    if crashed:
        _kill_orphans(supervisors)


def _kill_orphans(supervisors: set[int]) -> None:
    """Kill what came here, and all that descends from it.

    All are stopped first, until there are no new ones: so none starts another when one ends.
    """
    # The handler that calls this is not called again for each of them meanwhile.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    stopped = set[int]()
    for _ in range(_SCANS):
        new = _orphans(supervisors) - stopped
        if not new:
            break
        for pid in new:
            send(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        send(pid, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _orphans(supervisors: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent, _ in processes():
        children.setdefault(parent, []).append(pid)
    left = [pid for pid in children.get(os.getpid(), []) if pid not in supervisors]
    found = set[int]()
    while left:
        pid = left.pop()
        found.add(pid)
        left += children.get(pid, [])
    return found
