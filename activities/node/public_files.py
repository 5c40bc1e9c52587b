"""The files by which a job talks to its agent, opened so that no job has another file read.

A job in an image sees nothing of its node but the folder of these files, and may put there what it
likes: a link to a file of the node, a FIFO that never opens, a folder.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from longshore.activities.node.file_times import clamped_time

_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_public(path: Path) -> BinaryIO:
    """Open a file to read, by a path without links.

    Follows none, and never waits. Raises OSError, also for what is no regular file.
    """
    with entered(path.parent) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(path.name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(file, "rb")


def written_at(file: BinaryIO) -> datetime:
    """Return when a file was last written, as far as its job lets it say."""
    return clamped_time(os.fstat(file.fileno()).st_mtime)


def put_public(path: Path, text: str) -> None:
    """Put a new file in the place of what is there, which is not written to. Raises OSError."""
    with entered(path.parent) as folder:
        _put(folder, path.name, text)


def replace_public(path: Path, text: str) -> None:
    """The same, and whoever looks finds the old file or all of the new one. Raises OSError."""
    draft = path.with_suffix(".new").name
    with entered(path.parent) as folder:
        _put(folder, draft, text)
        os.rename(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def remove_public(path: Path) -> None:
    """Remove a file, where it is there and can be."""
    with contextlib.suppress(OSError), entered(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


@contextlib.contextmanager
def entered(folder: Path) -> Iterator[int]:
    """Go into a folder by a path of which no part is a link; what it gives is a place for files.

    Raises NotADirectoryError where a part is a link, OSError where it cannot be entered.
    """
    way = [os.open("/", _PASS)]
    try:
        for part in folder.parts[1:]:
            try:
                way.append(os.open(part, _PASS, dir_fd=way[-1]))
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                why = "is a link, which is not followed, or no folder"
                raise NotADirectoryError(errno.ENOTDIR, why, part) from None
        yield way[-1]
    finally:
        for opened in way:
            os.close(opened)


def _put(folder: int, name: str, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o644, dir_fd=folder), "w") as file:
        file.write(text)
