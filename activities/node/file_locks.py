"""Locks by files: between the threads of an agent, and between the agents of one machine.

The kernel lets go of them when their process ends, however it ends.
"""

import contextlib
import fcntl
import os
import threading
import time
from pathlib import Path

from longshore.activities.storage import GivenUp

_ASK_EVERY = 0.05
"""Seconds between two tries: whoever waits must hear that nobody wants it any more."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Held:
    """A lock that is held until `release`. A context manager too."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._open = True

    def release(self) -> None:
        """Release the lock; a repeat changes nothing."""
        if self._open:
            self._open = False
            os.close(self.fd)

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def try_lock(path: Path, *, shared: bool = False) -> Held | None:
    """Lock a file, which is made where it is missing; None where another has it.

    The lock is of the file that is at the path once it is held: one that was removed or renamed
    meanwhile does not count. Raises OSError.
    """
    fd = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False)):
                return Held(path, fd)
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def lock(path: Path, given_up: threading.Event, *, shared: bool = False) -> Held:
    """The same, once it can be had. Raises GivenUp."""
    while (held := try_lock(path, shared=shared)) is None:
        if given_up.is_set():
            raise GivenUp
        time.sleep(_ASK_EVERY)
    return held
