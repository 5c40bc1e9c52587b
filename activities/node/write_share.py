"""Keeps what a node fetches for later from slowing down the writes of the jobs that run there."""

import os
import threading
from collections.abc import Callable

from longshore.activities.node.system import boot_clock

PIECE = 8_000_000
"""Bytes that are written at a time: some milliseconds of a fast disk, a tenth of a second of a
slow one."""
_LONGEST_PAUSE = 10.0


class WriteShare:
    """A part of the time in which the disk of a node may be written to.

    Nothing tells how fast a disk is, and page caches hide it. So each piece is written to the disk
    itself, and after the time that this took comes a rest, such that writing has at most its share
    of both. Where jobs write too, a piece takes longer, and so does the rest.
    """

    def __init__(self, share: float, busy: Callable[[], bool]) -> None:
        """`share` is above 0 and at most 1; `busy` says whether jobs run here, which matter."""
        self._share = share
        self._busy = busy
        self._turn = threading.Lock()

    def write(self, fd: int, data: bytes | memoryview, at: int, given_up: threading.Event) -> None:
        """Write all of it at a place of a file, piece by piece, one writer of the node at a time.

        Returns early where it is given up. Raises OSError.
        """
        left = memoryview(data)
        while left and not given_up.is_set():
            with self._turn:
                began = boot_clock()
                piece = left[:PIECE]
                done = 0
                while done < len(piece):
                    done += os.pwrite(fd, piece[done:], at + done)
                os.fdatasync(fd)
                pause = self.pause_after(boot_clock() - began)
                if pause > 0:
                    given_up.wait(pause)
            at, left = at + done, left[done:]

    def pause_after(self, seconds: float) -> float:
        """Return how long to write nothing after a write that took so long."""
        if not self._busy():
            return 0.0
        return min(seconds * (1 / self._share - 1), _LONGEST_PAUSE)
