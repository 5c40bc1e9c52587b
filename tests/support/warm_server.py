"""A process that has imported what programs import, and becomes one as often as it is asked.

The copy is a child of whoever asks (CLONE_PARENT), which waits for it and kills it as any other:
it has the arguments, environment, folder, streams, session and signals that it would have had, and
shows them in /proc. Run as `python -m tests.support.warm_server FD PADDING`, where the descriptor
is a socket.
"""

import contextlib
import ctypes
import errno
import gc
import json
import os
import platform
import runpy
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, NoReturn

CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call, by machine."""
_CLONE_PARENT = 0x8000
PADDING = "x" * 30_000
"""An argument and a variable of this process: a program writes its own over them."""
_PACKAGES = (
    "anyio", "fsspec.implementations.local", "google.protobuf.json_format", "httpx",
    "numpy.typing", "psutil", "psycopg", "pydantic_settings", "pynvml",
    "rich.console", "rich.table", "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.ext.asyncio", "sqlmodel", "temporalio.client", "temporalio.contrib.pydantic",
    "temporalio.envconfig", "temporalio.runtime", "temporalio.worker",
    "temporalio.worker.workflow_sandbox", "typer", "uv", "yaml",
)  # fmt: skip
_PURE = ("longshore.models", "longshore.scheduling")
"""Of Longshore itself these alone: other modules look at the environment when imported."""
_NOT_SHARED = ("longshore.models.records.migrations.", "longshore.scheduling.bulk.")
"""What few programs import: Alembic's scripts, and what loads numba, for a second."""

_libc = ctypes.PyDLL(None)  # which keeps the lock of the interpreter
_python = ctypes.pythonapi


def main() -> None:
    server = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with who asks; the copies obey
    for module in (*_PACKAGES, *_pure_modules(), "tests.support.warm"):
        import_module(module)
    gc.collect()
    gc.freeze()  # a copy need not look through what it shares
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "a copy would have one of them"
    _serve(server)


def become_server(server: socket.socket) -> NoReturn:
    """Be a process that turns copies of itself into programs, until nobody is connected to it.

    It is in a session of its own and has none of the streams of the process that it came from, of
    which what it starts is a child. The copies leave this function by the end of their program.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.closerange(3, server.fileno())
    os.closerange(server.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    _show([f"starts what {os.getppid()} starts"], os.environ)
    _serve(server)
    sys.exit()


def _serve(server: socket.socket) -> None:
    """Answer those who start programs; in a copy, run the program."""
    while True:
        head, streams, _, _ = socket.recv_fds(server, 4, 3)
        if not head:
            return
        (size,) = struct.unpack("!I", head)
        call = json.loads(server.recv(size, socket.MSG_WAITALL))
        if _copy() == 0:
            _prepare(call, server)
            _run(call, streams)
            return
        for stream in streams:
            os.close(stream)


def _pure_modules() -> Iterator[str]:
    for name in _PURE:
        for module in walk_packages(import_module(name).__path__, f"{name}."):
            if not module.name.startswith(_NOT_SHARED):
                yield module.name


def _copy() -> int:
    """Fork a child of the process that this one is a child of. Returns as fork does."""
    _python.PyOS_BeforeFork()
    pid: int = _libc.syscall(
        ctypes.c_long(CLONE[platform.machine()]),
        *map(ctypes.c_long, (_CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)),
    )
    if pid == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("this process cannot be copied")
    return pid


def _prepare(call: Mapping[str, Any], server: socket.socket) -> None:
    """Have session, folder and environment, and tell who asked, which waits for that."""
    error = 0
    try:
        if call["session"]:
            os.setsid()
        elif call["group"] != -1:
            os.setpgid(0, call["group"])
        os.chdir(call["cwd"])
        os.environ.clear()
        os.environ.update(call["env"])
        _show(call["words"], call["env"])
    except OSError as mistake:
        error = mistake.errno or errno.EIO
    server.sendall(struct.pack("!ii", os.getpid(), error))
    server.close()
    if error:
        os._exit(127)


def _run(call: Mapping[str, Any], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        stream.reconfigure(line_buffering=name == "stderr" or stream.isatty())
    sys.argv = list(call["argv"])
    script = call.get("script")
    folders = list(filter(None, call["env"].get("PYTHONPATH", "").split(os.pathsep)))
    first = [str(Path(script).parent)] if script else [] if call["safe"] else [call["cwd"]]
    sys.path[0:1] = [*first, *folders]
    # Here: it imports this module, and is there since before the folders were others.
    from tests.support.warm import copies_from_here, starts_others

    if code := call.get("code"):
        copies_from_here()
        sys.modules["__main__"] = own = ModuleType("__main__")
        exec(code, vars(own))
    elif script:
        if starts_others(sys.argv[1:]):
            copies_from_here()
        runpy.run_path(script, run_name="__main__")
    else:
        runpy.run_module(call["module"], run_name="__main__", alter_sys=True)


def _show(words: list[str], env: Mapping[str, str]) -> None:
    """Write the program's arguments and environment where /proc shows them."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    args, args_end, variables, end = map(int, numbers[45:49])
    # Without a zero byte at its end the kernel shows the arguments up to the first one.
    title = os.fsencode(" ".join(words))[: args_end - args - 2]
    ctypes.memset(args, 0, args_end - args)
    ctypes.memmove(args, title, len(title))
    ctypes.memset(args_end - 1, ord("x"), 1)
    text = b"\0".join(os.fsencode(f"{name}={value}") for name, value in env.items())
    ctypes.memset(variables, 0, end - variables)
    ctypes.memmove(variables, text[: end - variables - 1], min(len(text), end - variables - 1))
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(Path(words[0]).name)


if __name__ == "__main__":
    main()
