"""Removes folders that a job filled, however deep it nested them."""

import contextlib
import os
import shutil
import stat
import sys
import uuid
from functools import partial
from pathlib import Path

_AT_A_TIME = 200
"""Levels that are removed in one pass. The walks of Python call themselves once a level, and stop
with RecursionError at about a thousand."""
_OWN = stat.S_IRWXU
"""What a folder needs, for its owner to remove what is in it."""
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: Path, below: int | None = None) -> None:
    """Remove a folder with all that is in it, following no link. Raises OSError.

    Folders that may not be written, as those of Go's module cache, are opened first. Its path is
    relative to the open folder `below`, where that is given.
    """
    _remove(folder, below, ignore_errors=False)


def remove_what_can_be(folder: Path, below: int | None = None) -> None:
    """Remove a folder, and where not all of it can be removed as much as can. `below` as above."""
    try:
        remove_tree(folder, below)
    except OSError:
        with contextlib.suppress(OSError):
            _opened(folder, below)  # also those behind what cannot be removed
        with contextlib.suppress(OSError):
            _remove(folder, below, ignore_errors=True)


def _remove(folder: Path, below: int | None, *, ignore_errors: bool) -> None:
    left, opened = [folder], set[Path]()
    while left:
        each = left.pop()
        try:
            try:
                shutil.rmtree(each, ignore_errors=ignore_errors, dir_fd=below)
            except RecursionError:
                left += [each, *_cut(each, folder, below)]
        except PermissionError:
            if each not in opened:
                opened.add(each)
                if _opened(each, below):
                    left.append(each)
                    continue
            if not (deeper := _cut(each, folder, below)):
                raise
            left += [each, *deeper]


def _opened(folder: Path, below: int | None) -> bool:
    """Let its owner into a folder and those in it, as deep as one pass goes; return whether that
    was of use for any."""
    found = let_owner_in(folder, below)
    for path, folders, _, here in os.fwalk(folder, dir_fd=below):
        for name in filter(partial(_is_folder, here), folders):
            found |= let_owner_in(name, here)
        if path.count("/") - str(folder).count("/") >= _AT_A_TIME:
            folders.clear()
    return found


def let_owner_in(folder: Path | str, below: int | None = None) -> bool:
    """Let its owner into a folder; return whether that was of use."""
    fd = os.open(folder, _PASS, dir_fd=below)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & _OWN != _OWN:
            # What was opened as a path alone has no other way; the link leads to that folder.
            held = f"/proc/self/fd/{fd}" if sys.platform == "linux" else fd
            os.chmod(held, mode | _OWN)  # noqa: PTH101 (no path)
            return True
    except PermissionError:
        pass  # it is another user's
    finally:
        os.close(fd)
    return False


def _cut(deep: Path, folder: Path, below: int | None) -> list[Path]:
    """Move what lies deep below `deep` right into `folder`; return where it is."""
    moved: list[Path] = []
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=below)
    try:
        for path, folders, _, here in os.fwalk(deep, dir_fd=below):
            if path.count("/") - str(deep).count("/") >= _AT_A_TIME:
                for name in filter(partial(_is_folder, here), folders):
                    let_owner_in(name, here)  # else it cannot be moved
                    fresh = uuid.uuid4().hex
                    os.rename(name, fresh, src_dir_fd=here, dst_dir_fd=top)
                    moved.append(folder / fresh)
                folders.clear()
    finally:
        os.close(top)
    return moved


def _is_folder(here: int, name: str) -> bool:
    """A link to a folder is none."""
    return stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
