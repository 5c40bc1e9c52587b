"""The command line in a process that has loaded it already: each command is a fork of that.

A start of `longshore` costs a second of a processor, all of it imports. The pages run a hundred
commands, so here one process imports, and forks for each. What the fork runs is `client.cli.main`
with the arguments, folder, environment, streams and exit code of the caller, so a shell sees no
difference. Run as `python -m tests.support.warm_cli SOCKET`.
"""

import json
import os
import runpy
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path

from tests.support.warm import copies_from_here, starts_others

PROGRAM = """#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import json, os, signal, socket, sys
ask = socket.socket(socket.AF_UNIX)
ask.connect({socket!r})
call = json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)])
socket.send_fds(ask, [b"streams"], [0, 1, 2])
ask.sendall(call.encode() + b"\\n")
answers = ask.makefile()
pid = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda got, frame: os.kill(pid, got))
sys.exit(int(answers.readline()))
"""
"""What stands on the PATH as `longshore` and `warm-python`: it hands its call over, and waits.

A shell and Python read it: the path of an interpreter in a first line must have no blank."""
_LOADED = (
    "longshore.activities.buying.purchase_views", "longshore.activities.providers.registry",
    "longshore.client.api", "longshore.client.buy_view", "longshore.client.job_view",
    "longshore.client.live", "longshore.client.market_view", "longshore.client.markets",
    "longshore.client.node_view", "longshore.client.place", "longshore.client.place_view",
    "longshore.client.preempt", "longshore.client.topology",
    "longshore.scheduling.buying.plan", "sqlalchemy.dialects.postgresql.psycopg", "uvloop",
    "longshore.workers.doctor.commands", "longshore.workers.stack",
)  # fmt: skip
"""What commands import when they run."""


def main() -> None:
    from longshore.client.cli import command_line

    command_line()
    for module in _LOADED:
        import_module(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a handler ended
    print("ready", flush=True)
    while True:
        call, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _handle(call)
        call.close()


def _handle(call: socket.socket) -> None:
    """Run one command in a fork of its own, tell the caller its process and its code, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(call, 7, 3)
    name, args, folder, environment = json.loads(call.makefile().readline())
    if (pid := os.fork()) == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        call.close()
        _become(name, args)
    for stream in streams:
        os.close(stream)
    call.sendall(f"{pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    call.sendall(f"{code if code >= 0 else 128 - code}\n".encode())
    os._exit(0)


def _become(name: str, args: list[str]) -> None:
    from longshore.client.cli import run
    from longshore.client.process import leave

    sys.argv = [name, *args]
    if name == "longshore":
        if starts_others(args):
            copies_from_here()
        leave(run(args))
    sys.path.insert(0, str(Path.cwd()))
    try:
        runpy.run_path(args[0], run_name="__main__")
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        leave(1)
    leave(0)


if __name__ == "__main__":
    main()
