"""The files by which a job talks to its agent, opened so that no job has another file read.

A job in an image sees nothing of its node but the folder of these files, and may put there what it
likes: a link to a file of the node, a FIFO that never opens, a folder.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def open_public(path: Path) -> BinaryIO:
    """Open a file to read, in a folder that no job can replace.

    Follows no link, and never waits. Raises OSError, also for what is no regular file.
    """
    with _folder_of(path) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(path.name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(file, "rb")


def put_public(path: Path, text: str) -> None:
    """Put a new file in the place of what is there, which is not written to. Raises OSError."""
    with _folder_of(path) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path.name, flags, 0o644, dir_fd=folder), "w") as file:
            file.write(text)


def remove_public(path: Path) -> None:
    """Remove a file, where it is there and can be."""
    with contextlib.suppress(OSError), _folder_of(path) as folder:
        os.unlink(path.name, dir_fd=folder)


@contextlib.contextmanager
def _folder_of(path: Path) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(path.parent, flags)
    try:
        yield folder
    finally:
        os.close(folder)
