"""A plugin of the test suite: a test that leaves a process, a port or a file behind fails.

What a fixture for several tests starts may stay for as long as that fixture lives, and what comes
from it or works in a folder of it may too. All else that is there after a test and was not there
when the run began is left behind: processes that come from this run, ports on which this process
listens, files in the folder for temporary files, in the checkout and in the working folder.
"""

import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from tests.support.local_stack import ROOT
from tests.support.warm import is_server

MARK = "TESTS_RUN"
"""In the environment of this process, and so of all that come from it: who started them."""
PATIENCE = 30.0
"""Seconds in which something that is ending may end."""
_CRASHPAD = "chrome_crashpad_handler"
"""Chromium starts it again and again, in nobody's family, and it ends with its browser."""
_COMPILER = "longshore.scheduling.bulk.warm"
"""A control worker that lives on compiles beside its work once a plan took long: on a clean clone
for half a minute. It ends with the worker."""
_PLACE = "TESTS_TEMP"
"""Where the folder for temporary files of each worker lies."""
_MEMORY = "/dev/shm"
_ROOMY = 8 * 2**30
"""Bytes: of six workers' servers, each keeps up to a gigabyte of its log. All took 0.9 at most."""
_CACHES = {".pytest_cache", "__pycache__", ".hypothesis", ".ruff_cache"}

Thing = tuple[str, Any]
"""A kind, and what names it: a process and when it began, a port, a path."""


class Leftovers:
    """What runs, listens and lies about, and which of it may stay for now."""

    def __init__(self, folder: Path) -> None:
        self._mark = uuid4().hex
        self._folders = {folder, ROOT, Path.cwd()}
        self._ours: dict[tuple[int, float], bool] = {}
        """Which processes, by id and begin, come from here."""
        self._kept: dict[object, set[Thing]] = {}
        """What each fixture that lives on has started."""
        self._told: set[Thing] = set()
        os.environ[MARK] = self._mark
        self._start = self._all()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._all()
        try:
            return (yield)
        finally:
            self._kept[fixturedef] = self._all() - before

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[object]) -> None:
        self._kept.pop(fixturedef, None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        try:
            result = yield
        except BaseException:
            self._told |= self._left()  # not to be laid to the next test
            raise
        deadline = time.monotonic() + PATIENCE
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.02)  # between two looks: what is ending may end
        if left:
            self._told |= left
            pytest.fail(f"left behind: {'; '.join(sorted(map(_name, left)))}", pytrace=False)
        return result

    def _left(self) -> set[Thing]:
        new = self._all() - self._start - self._told
        return {thing for thing in new if not self._may_stay(thing)} if new else new

    def _may_stay(self, thing: Thing) -> bool:
        kept = set[Thing]().union(*self._kept.values())
        if thing in kept:
            return True
        kind, what = thing
        if kind != "process":
            return False
        folders = [str(path) for kind, path in kept if kind == "file"]
        try:
            process = psutil.Process(what[0])
            if process.name().startswith(_CRASHPAD[:15]):  # the kernel keeps 15 letters
                return True
            if _COMPILER in process.cmdline():
                return True
            return any(
                ("process", (each.pid, each.create_time())) in kept or _works_in(each, folders)
                for each in [process, *process.parents()]
            )
        except psutil.Error:
            return True  # it has ended meanwhile

    def _all(self) -> set[Thing]:
        return {*self._processes(), *_ports(), *self._files()}

    def _processes(self) -> Iterator[Thing]:
        for process in psutil.process_iter():
            try:
                key = (process.pid, process.create_time())
                if key not in self._ours:
                    self._ours[key] = self._is_ours(process)
                if self._ours[key] and process.status() != psutil.STATUS_ZOMBIE:
                    yield "process", key
            except psutil.Error:
                continue  # ended meanwhile

    def _is_ours(self, process: psutil.Process) -> bool:
        if process.pid == os.getpid() or is_server(process.pid):
            return False
        try:
            if process.environ().get(MARK) == self._mark:
                return True
        except (psutil.Error, OSError):
            return False  # of another user, of the kernel, or gone
        # A process may have another environment, or write over it.
        return _comes_from_here(process.pid)

    def _files(self) -> Iterator[Thing]:
        for folder in self._folders:
            for file in folder.iterdir():
                if file.name not in _CACHES:
                    yield "file", file


def _works_in(process: psutil.Process, folders: Sequence[str]) -> bool:
    """Return whether a process was started for one of the folders, as a server that a test kills
    and starts again."""
    try:
        words = [*process.cmdline(), *process.environ().values()]
    except psutil.Error:
        return False
    return any(word.startswith(folder) for word in words for folder in folders)


def _words(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def _ports() -> Iterator[Thing]:
    # Of its own sockets: to read the kernel's list of all connections takes it milliseconds.
    for path in Path("/dev/fd").iterdir():
        try:
            if not stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(int(path.name)))
        except OSError:
            continue  # closed meanwhile
        with copy:
            of_the_net = copy.family in (socket.AF_INET, socket.AF_INET6)
            if of_the_net and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield "port", copy.getsockname()[1]


def _comes_from_here(pid: int) -> bool:
    # psutil reads for each ancestor when the machine began: ten times the time of the processor.
    here = os.getpid()
    try:
        while pid not in (0, here):
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return False  # it has ended
    return pid == here


def _name(thing: Thing) -> str:
    kind, what = thing
    if kind != "process":
        return f"{kind} {what}"
    return f"process {what[0]} ({' '.join(_words(what[0]))[:200]})"


_FOLDER = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a home and a folder for temporary files that nobody else uses."""
    # pytest's own folders stay where a person finds them after the run.
    outside = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    inside = os.environ.setdefault(_PLACE, _in_memory() or outside)
    # Short: a Unix socket has about 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="longshore-", dir=inside))
    config.stash[_FOLDER] = folder
    for variable, name in (("TMPDIR", "tmp"), ("HOME", "home")):
        (folder / name).mkdir()
        os.environ[variable] = str(folder / name)
    tempfile.tempdir = None  # read TMPDIR again
    config.pluginmanager.register(Leftovers(folder / "tmp"), "leftovers-of-tests")


def _in_memory() -> str | None:
    """Return a folder of the machine's memory; None where it is small, or programs may not run
    there, or the person chose a folder.

    A database costs 0.05 s there and 0.5 s on a disk: a run of all makes 450 of them.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return None
    free = min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available)
    programs_run = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    return _MEMORY if programs_run and free >= _ROOMY else None


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)
