"""The file LONGSHORE_SAVED: a line for every checkpoint that the job has saved."""

import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from longshore.activities.node.public_files import open_public, written_at
from longshore.models.checkpoint import SavedLine

MOST = 64 * 2**10
"""Bytes that are read at a time: what a job wrote before them is old by then."""
COMPARED = 1024
"""Bytes of what was read that have to stand there still, for a file to count as added to."""


class Found(NamedTuple):
    """What is new in the file."""

    checkpoints: int = 0
    """How many the job saved since the last look."""
    last: SavedLine | None = None
    at: datetime | None = None
    """When it said so."""
    problem: str = ""
    """A line that cannot be understood."""


class SavedLines:
    """Reads the lines that have come; one without its end has not come yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._last = b""
        """What ends at the offset, as it was read."""
        self._seen = (0, 0, 0)

    def read(self) -> Found:
        """Return what is new. A file that is missing, or cannot be read, has nothing new."""
        with contextlib.suppress(OSError), open_public(self._path) as file:
            inode, size, _ = its = _version(file)
            if its == self._seen:
                return Found()
            added_to = inode == self._seen[0] and size > self._seen[1] and self._last_stands(file)
            if not added_to:  # but written anew; "step 9" by "step 10" makes it larger, too
                self._offset, self._last = 0, b""
            at, news = written_at(file), self._news(file)
            # After reading: what is added from now on makes it larger.
            self._seen = (inode, file.tell(), _version(file)[2])
            return _understand(news, at)
        return Found()

    def _last_stands(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._last))
        return file.read(len(self._last)) == self._last

    def _news(self, file: BinaryIO) -> str:
        start = max(self._offset, file.seek(0, os.SEEK_END) - MOST)
        file.seek(start)
        whole, newline, _ = file.read(MOST).rpartition(b"\n")
        before = self._last if start == self._offset else b""
        self._last = (before + whole + newline)[-COMPARED:]
        self._offset = start + len(whole) + len(newline)
        return whole.decode(errors="replace")


def _version(file: BinaryIO) -> tuple[int, int, int]:
    its = os.fstat(file.fileno())
    return its.st_ino, its.st_size, its.st_mtime_ns


def _understand(news: str, at: datetime) -> Found:
    lines = [line for line in news.split("\n") if line.strip()]
    understood = [(line, SavedLine.parse(line)) for line in lines]
    good = [saved for _, saved in understood if saved is not None]
    bad = [line for line, saved in understood if saved is None]
    problem = f'not understood: {bad[-1][:60]!r} is not like "saved, step 12"' if bad else ""
    return Found(len(good), good[-1] if good else None, at, problem)
