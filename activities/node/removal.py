"""Removes folders that a job filled, however deep it nested them."""

import contextlib
import os
import shutil
import stat
import uuid
from functools import partial
from pathlib import Path

_AT_A_TIME = 200
"""Levels that are removed in one pass. The walks of Python call themselves once a level, and stop
with RecursionError at about a thousand."""


def remove_tree(folder: Path, below: int | None = None) -> None:
    """Remove a folder with all that is in it, following no link. Raises OSError.

    Its path is relative to the open folder `below`, where that is given.
    """
    _remove(folder, below, ignore_errors=False)


def remove_what_can_be(folder: Path) -> None:
    """Remove a folder, and where not all of it can be removed as much as can."""
    with contextlib.suppress(OSError):
        _remove(folder, None, ignore_errors=True)


def _remove(folder: Path, below: int | None, *, ignore_errors: bool) -> None:
    left = [folder]
    while left:
        each = left.pop()
        try:
            shutil.rmtree(each, ignore_errors=ignore_errors, dir_fd=below)
        except RecursionError:
            left += [each, *_cut(each, folder, below)]


def _cut(deep: Path, folder: Path, below: int | None) -> list[Path]:
    """Move what lies deep below `deep` right into `folder`; return where it is."""
    moved: list[Path] = []
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=below)
    try:
        for path, folders, _, here in os.fwalk(deep, dir_fd=below):
            if path.count("/") - str(deep).count("/") >= _AT_A_TIME:
                for name in filter(partial(_is_folder, here), folders):
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
