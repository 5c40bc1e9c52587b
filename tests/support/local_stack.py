"""A real local stack for tests: free ports, a folder of its own, and gone at the end."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

from longshore.models.errors import StackError
from longshore.models.search import SEARCH_ATTRIBUTES
from longshore.models.settings import Settings
from longshore.workers.stack import Stack

ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder with a short path: a Unix socket allows about 100 bytes.

    Not below pytest's own temporary folder: that is closed to the account of PostgreSQL again
    by each pytest that starts.
    """
    folder = Path(tempfile.mkdtemp(prefix="longshore-test-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def settings_in(folder: Path) -> Settings:
    """Return settings of a stack in `folder` with ports that nobody uses."""
    return at_free_ports(Settings(state_dir=folder))


def at_free_ports(settings: Settings) -> Settings:
    port, ui_port = free_ports(2)
    return settings.model_copy(update={"temporal_port": port, "temporal_ui_port": ui_port})


@contextmanager
def running_stack(
    settings: Settings,
    *,
    search_attributes: Mapping[str, str] = SEARCH_ATTRIBUTES,
    migrate: Callable[[str], object] | None = None,
) -> Iterator[Stack]:
    """Yield a started stack whose server can skip time; stopped even if this process is killed.

    Where it does not start, it tries once more at other ports: all tests of a worker lean on it,
    and somebody may have taken a port before it did.
    """

    def stack_with(settings: Settings) -> Stack:
        return Stack(
            settings, search_attributes=search_attributes, migrate=migrate, time_skipping=True
        )

    stack = stack_with(settings)
    with guarded(settings):
        try:
            try:
                stack.start(lambda line: None)
            except StackError:
                stack.stop(lambda line: None)
                stack = stack_with(at_free_ports(settings))
                stack.start(lambda line: None)
            yield stack
        finally:
            stack.stop(lambda line: None)


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listened on a moment ago.

    Not those that the system gives to clients (on Linux from 32768 on), and each only once;
    parallel workers have ranges of their own. Who else took a port before it is used has it.
    """
    found: list[int] = []
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    each = 22_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while len(found) < count:
        port = 10_000 + each * worker + _random.randrange(each)
        if port == 10_080:  # Chromium opens no page there
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            found.append(port)
    return found


_given: set[int] = set()
_random = SystemRandom()
"""Not `random`: each parallel worker of a test run seeds that alike."""


@contextmanager
def guarded(settings: Settings) -> Iterator[None]:
    """Run a process that stops the stack as soon as this one has gone, however it went."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "tests.support.guard", str(settings.state_dir)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    assert guard.stdin
    try:
        yield
    finally:
        guard.stdin.close()
        guard.wait(60)
