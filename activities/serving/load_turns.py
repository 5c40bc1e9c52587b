"""On a GPU one engine loads at a time: a lock for each GPU of a node, which its loader holds.

The kernel lets go of a lock when the last process that has its file open is gone. The engine has
it open beside the process that started it: where either is killed, the next loads once nothing of
both is left. All take the locks of several GPUs in one order, so that none waits in a circle.
"""

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from longshore.activities.node.file_locks import Held, try_lock
from longshore.activities.serving.engine_command import LOADING

GPUS, JOB = "LONGSHORE_GPU_INDICES", "LONGSHORE_JOB_ID"
_ASK_EVERY = 0.1
_LONGEST_NAME = 300


class Turn:
    """The locks of the GPUs on which an engine loads, from `take` until `give_up`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._job = environ.get(JOB, "")
        folder, gpus = environ.get(LOADING), environ.get(GPUS, "").split(",")
        own = {int(each) for each in gpus if each.isdigit()} if folder else set[int]()
        self._paths = [(gpu, Path(folder or "", f"gpu-{gpu}")) for gpu in sorted(own)]
        self._held: list[Held] = []

    @property
    def files(self) -> Sequence[int]:
        """The open files that the engine has to have too."""
        return [held.fd for held in self._held]

    def take(self, unwanted: threading.Event, say: Callable[[str], None]) -> bool:
        """Wait until nothing else loads on any of the GPUs; return False where the engine is
        `unwanted` before that. `say` hears for whom it waits. Raises OSError."""
        for gpu, path in self._paths:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while (held := try_lock(path)) is None:
                say(f"waits for {_loader(path) or 'another engine'} to load on gpu {gpu}")
                if unwanted.wait(_ASK_EVERY):
                    return False
            self._held.append(held)
            os.truncate(held.fd, 0)
            os.pwrite(held.fd, self._job.encode()[:_LONGEST_NAME], 0)
        return not unwanted.is_set()

    def give_up(self) -> None:
        """Let the next load. The engine has the files open too: so this lets go of the locks, and
        does not leave that to the kernel. A repeat changes nothing."""
        for held in self._held:
            fcntl.flock(held.fd, fcntl.LOCK_UN)
            held.release()
        self._held = []


def _loader(path: Path) -> str:
    """Return the job that has the lock; empty where it has not said so yet."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return file.read(_LONGEST_NAME).decode()
    return ""
