"""When a job wrote what: the sizes of its two streams, look by look.

Runs in the supervisor of a process, from the standard library alone. A line of the file `times`
is `MILLISECONDS STDOUT STDERR`: the time since 1970, and the bytes that the streams had by then.
The job writes each by itself (`output_pipes`), so this alone tells what came first.
"""

import contextlib
import os
import time

EVERY = 0.1
"""Seconds between two looks at a job that writes: what comes within them is of one moment."""
LATER = 1.0
"""The same, once `MANY` lines are written: a job that writes for weeks fills no disk with them."""
MANY = 10_000
QUIET = 0.5
"""Seconds between two looks at a job that wrote nothing within `LATELY` seconds."""
LATELY = 5.0


class OutputTimes:
    """Notes when the streams of one attempt grew."""

    def __init__(self, path: str, stdout: str, stderr: str) -> None:
        self._path = path
        self._streams = (stdout, stderr)
        self._sizes = (0, 0)
        self._lines = 0
        self._looked_at = 0.0
        self._grew_at = time.monotonic()

    @property
    def patience(self) -> float:
        """Seconds until the next look."""
        return self._every if time.monotonic() - self._grew_at < LATELY else QUIET

    def look(self) -> None:
        """Note the sizes where they have changed, if the last look is long enough ago."""
        if time.monotonic() - self._looked_at >= self._every * 0.9:
            self.note()

    def note(self) -> None:
        """Note the sizes where they have changed. A full disk costs the line, nothing else."""
        self._looked_at = time.monotonic()
        sizes = tuple(map(_size, self._streams))
        if sizes == self._sizes:
            return
        self._grew_at = self._looked_at
        line = f"{time.time_ns() // 1_000_000} {sizes[0]} {sizes[1]}\n".encode()
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
            self._sizes = (sizes[0], sizes[1])
            self._lines += 1

    @property
    def _every(self) -> float:
        return EVERY if self._lines < MANY else LATER


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 (started in a few milliseconds)
    except OSError:
        return 0
