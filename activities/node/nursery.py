"""Forks the supervisors of a node's processes, so that none has to start a Python of its own.

A process of the agent's (`START` with `python -I -S -c`), from the standard library alone, and
with one thread. A new Python needs 15 ms of processor time until a supervisor can begin, a fork
needs one. It knows nothing of the jobs: it may be killed at any time, those that it forked go on,
and the agent starts another.

Standard input is a socket from the agent. A message is a run folder, with the descriptors that
become the supervisor's standard input, output and error. When the socket ends, so does this.
"""

import contextlib
import gc
import os
import signal
import socket
import sys

from activities.node import supervisor
from activities.node.system import oom_kills

START = (
    "import sys; sys.path[:0] = sys.argv[1:2]; from activities.node.nursery import main; main()"
)
"""Argument: the folder that holds the package `activities`."""
_LONGEST_PATH = 65536
_STREAMS = 3


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: _collect_ended())
    oom_kills()  # imports the codecs that each of them would import
    gc.freeze()  # a collection would write to the pages that all of them share
    agent = socket.socket(fileno=0)
    while True:
        # Descriptors end a read: it never has parts of two messages.
        folder, streams, _, _ = socket.recv_fds(agent, _LONGEST_PATH, _STREAMS)
        if not folder:
            return
        _fork_supervisor(agent, os.fsdecode(folder), streams)
        for stream in streams:
            os.close(stream)


def _fork_supervisor(agent: socket.socket, folder: str, streams: list[int]) -> None:
    try:
        pid = os.fork()
    except OSError as error:  # the agent sees that the supervisor's output has ended
        os.write(streams[2], f"no supervisor could be forked: {error}\n".encode())
        return
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
    except BaseException:  # whatever it is, a supervisor must not live on as a nursery
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        os._exit(1)


def _collect_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
