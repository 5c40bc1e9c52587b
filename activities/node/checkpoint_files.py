"""The folder where a job saves, on its node: a moment of it, and its replacement."""

import contextlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from models.checkpoint import StoredFile

DRAFTS = (".tmp", ".draft", ".partial")
"""Endings of files that are being written: they belong to no checkpoint."""


def files_of(folder: Path) -> list[StoredFile]:
    """Return the files and links below a folder by path, without checksums; drafts left out.

    Raises OSError, and UnicodeEncodeError for a name that is no UTF-8.
    """
    return sorted(_walk(folder, ""), key=lambda file: file.path)


def moment_of(folder: Path) -> Path:
    """Return a new folder with what `folder` holds now, made of hard links beside it.

    It takes no space, and stays as it is while the job replaces its files by others. Where the
    storage has no hard links the files are copied. Raises OSError.
    """
    moment = _beside(folder, "saved")
    try:
        moment.mkdir()
        for file in files_of(folder):
            target = moment / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.link is not None:
                target.symlink_to(file.link)
            else:
                _link(folder / file.path, target)
    except BaseException:
        remove(moment)
        raise
    return moment


def new_folder(folder: Path) -> Path:
    """Return a new empty folder beside `folder`, to be filled and to take its place."""
    fresh = _beside(folder, "restoring")
    fresh.mkdir(parents=True)
    return fresh


def replace(folder: Path, fresh: Path) -> None:
    """Put `fresh` in the place of `folder`. Interrupted, `put_back` finds the old one."""
    old = _beside(folder, "old")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(old)
    fresh.rename(folder)
    remove(old)


def put_back(folder: Path) -> None:
    """Undo a replacement that was interrupted, and remove what earlier lives have left."""
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(folder.parent.iterdir()):
            if path.name.startswith(f".{folder.name}.old-") and not folder.exists():
                path.rename(folder)
            elif path.name.startswith(tuple(f".{folder.name}.{kind}-" for kind in _KINDS)):
                remove(path)


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


_KINDS = ("saved", "restoring", "old")


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}-{uuid.uuid4().hex[:12]}")


def _walk(folder: Path, below: str) -> Iterator[StoredFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(DRAFTS):
                continue
            path = f"{below}{entry.name}"
            path.encode()  # a manifest is UTF-8
            with contextlib.suppress(FileNotFoundError):  # replaced, or removed, meanwhile
                if entry.is_symlink():
                    yield StoredFile(path=path, link=str(Path(entry.path).readlink()))
                elif entry.is_dir():
                    yield from _walk(Path(entry.path), f"{path}/")
                elif entry.is_file():
                    its = entry.stat()
                    yield StoredFile(
                        path=path, size=its.st_size, mode=stat.S_IMODE(its.st_mode),
                        modified_ns=its.st_mtime_ns,
                    )  # fmt: skip


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        return  # removed meanwhile
    except OSError:
        shutil.copy2(source, target)
