"""Finding processes by a mark in their environment, whoever their parent is now."""

import contextlib

import psutil


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that live with MARK=`mark` in their environment."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def names_of_marked(mark: str) -> list[str]:
    """Return the names of the processes that `marked` returns, and that have not gone since."""
    names: list[str] = []
    for process in marked(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process is no more, or only waits to be reaped."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def running(word: str) -> list[psutil.Process]:
    """Return the processes that have this among their arguments."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if word in process.cmdline():
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
