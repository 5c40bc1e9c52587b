"""Carries what a job writes from pipes to its two spool files; from the standard library alone.

A job that had the files themselves could empty them: `echo failed > /dev/stderr` does, whose file
a shell opens anew. Of a pipe nobody takes back what was written.
"""

import contextlib
import fcntl
import os
import select
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence

PATIENCE = 10.0
"""Seconds in which a disk takes the last output of a job."""
_PIECE = 65536


def open_spools(*paths: str) -> list[int]:
    """Open spool files to append to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return [os.open(path, flags, 0o644) for path in paths]


class Spool:
    """An open spool file, and what it lacks."""

    def __init__(self, file: int, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called whenever it lacks more, or tells of what it lacks."""
        self._file = file
        self._changed = changed
        self.lost = 0
        """Bytes that the disk did not take, as it was full."""
        self.untold = 0
        """Those of them of which the file does not tell."""
        self._notice, self._tells = b"", 0
        """What lacks of a notice that the disk took in part, and the bytes of which it tells."""

    def write(self, piece: bytes) -> None:
        try:
            self._tell()
            while piece:
                piece = piece[os.write(self._file, piece) :]
        except OSError:  # the job goes on
            self.lost += len(piece)
            self.untold += len(piece)
            self._changed()

    def tell(self) -> None:
        """Write into the file what is lost, where there is room by now."""
        with contextlib.suppress(OSError):
            self._tell()

    def _tell(self) -> None:
        while self.untold:
            if not self._notice:
                what = f"{self.untold} bytes of output are lost: the disk was full"
                self._notice, self._tells = f"\nlongshore: {what}\n".encode(), self.untold
            while self._notice:
                self._notice = self._notice[os.write(self._file, self._notice) :]
            self.untold -= self._tells
            self._changed()


class OutputPipes:
    """A pipe for each spool file, which stays open, and tells later what it lacks."""

    def __init__(self, spools: Sequence[Spool]) -> None:
        self._spools = spools
        self._pipes = [os.pipe() for _ in spools]
        self._over = os.pipe()
        """Its other end is closed once nothing of the job is left."""
        self._threads: list[threading.Thread] = []
        self._before = [spool.lost for spool in spools]

    @property
    def ends(self) -> list[int]:
        """What the job is to write to, in the order of the files."""
        return [end for _, end in self._pipes]

    def start(self) -> None:
        """Carry on from now, in threads: a disk that hangs must not hold up who stops the job.

        To be called once, when the job has the ends: this process has them no more.
        """
        for number, (_, end) in enumerate(self._pipes):
            os.close(end)
            thread = threading.Thread(target=self._carry, args=(number,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self) -> None:
        """Wait until all is written of a job of which nothing is left.

        What others write who have a pipe of it, as a daemon that it spoke to, is read no more.
        """
        os.close(self._over[1])
        until = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self._over[0])

    @property
    def lost(self) -> int:
        """Bytes of this job that a full disk did not take, and of which the files do not tell."""
        both = zip(self._spools, self._before, strict=True)
        return sum(min(spool.untold, spool.lost - before) for spool, before in both)

    def _carry(self, number: int) -> None:
        (source, _), spool, over = self._pipes[number], self._spools[number], self._over[0]
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(over, select.POLLIN)
        while over not in dict(poll.poll()):
            if not (piece := os.read(source, _PIECE)):
                break
            spool.write(piece)
        left = _held(source)
        while left > 0 and (piece := os.read(source, min(left, _PIECE))):
            spool.write(piece)
            left -= len(piece)
        os.close(source)
        spool.tell()


def _held(pipe: int) -> int:
    """Return the bytes that a pipe holds."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
