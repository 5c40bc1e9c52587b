"""Carries what a job writes from pipes to its two spool files; from the standard library alone.

A job that had the files themselves could empty them: `echo failed > /dev/stderr` does, whose file
a shell opens anew. Of a pipe nobody takes back what was written.
"""

import os
import threading
import time
from collections.abc import Sequence

PATIENCE = 10.0
"""Seconds in which a disk takes the last output of a job."""
_PIECE = 65536


def open_spools(*paths: str) -> list[int]:
    """Open spool files to append to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return [os.open(path, flags, 0o644) for path in paths]


class OutputPipes:
    """A pipe for each spool file, which stays open."""

    def __init__(self, spools: Sequence[int]) -> None:
        self._spools = spools
        self._pipes = [os.pipe() for _ in spools]
        self._threads: list[threading.Thread] = []
        self._lost = [0 for _ in spools]

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
        """Wait until all is written of a job of which nothing is left."""
        until = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))

    @property
    def lost(self) -> int:
        """Bytes that a full disk did not take, and of which the files do not tell."""
        return sum(self._lost)

    def _carry(self, number: int) -> None:
        (source, _), spool, lost = self._pipes[number], self._spools[number], self._lost
        while piece := os.read(source, _PIECE):
            try:
                if lost[number]:
                    what = f"{lost[number]} bytes of output are lost: the disk was full"
                    os.write(spool, f"\nlongshore: {what}\n".encode())
                    lost[number] = 0
                while piece:
                    piece = piece[os.write(spool, piece) :]
            except OSError:  # the job goes on
                lost[number] += len(piece)
        os.close(source)
