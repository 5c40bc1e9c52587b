"""The folder where a job saves, on its node: a moment of it, and its replacement."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from longshore.activities.node.public_files import entered
from longshore.activities.node.removal import remove_what_can_be
from longshore.models.checkpoint import StoredFile
from longshore.models.errors import DamagedError

DRAFTS = (".tmp", ".draft", ".partial")
"""Endings of files that are being written: they belong to no checkpoint."""
_DEEPEST = 300
"""Folders in each other, as far as Python's stack allows with some to spare."""


def _is_no_draft(path: str) -> bool:
    return not path.endswith(DRAFTS)


def files_of(
    folder: Path,
    named: Callable[[str], bool] = _is_no_draft,
    enters: Callable[[str], bool] = _is_no_draft,
    left_out: Callable[[str, str], None] | None = None,
) -> list[StoredFile]:
    """Return the files and links below a folder by path, without checksums: those that are
    `named`, in the folders that it `enters`. Without these all but drafts.

    `left_out` hears of each file and folder that this process cannot read or no manifest can hold,
    and why; without it these raise OSError and DamagedError, and what is no file is not told.
    """
    with _telling_depth():
        return sorted(_Walk(named, enters, left_out).below(folder), key=lambda file: file.path)


def fingerprint(files: Iterable[StoredFile]) -> str:
    """Return what is another one once any of the files has changed, come or gone."""
    known = sorted((file.path, file.size, file.modified_ns, file.link or "") for file in files)
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def foreign_files(
    folder: Path, origins: Mapping[str, int], rank: int
) -> dict[str, tuple[int, int, int]]:
    """Return the files that another rank wrote: that one, bytes and time of change, by path."""
    return {
        file.path: (origins[file.path], file.size, file.modified_ns)
        for file in files_of(folder)
        if origins.get(file.path, rank) != rank
    }


def moment_of(folder: Path, where: Path) -> Path:
    """Return a new folder below `where` with what `folder` holds now, made of hard links.

    It takes no space, and stays as it is while the job replaces its files by others. Where there
    are no hard links the files are copied. The job runs meanwhile, and may put links to files of
    the node where its own have been: `folder` is a path without links, and none is followed on
    the way or below. Raises OSError, and DamagedError for what no manifest can hold.
    """
    moment = where / f".{folder.name}.saved-{uuid.uuid4().hex[:12]}"
    try:
        moment.mkdir()
        with _telling_depth(), entered(folder) as top:
            for below, folders, names, here in os.fwalk(".", dir_fd=top, onerror=_not_entered):
                found = [name for name in (*folders, *names) if not name.endswith(DRAFTS)]
                folders.clear()
                for name in found:
                    target = moment / below / name
                    _require_utf8(f"{below}/{name}".removeprefix("./"))
                    with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                        if _take(name, here, target):
                            folders.append(name)
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


def set_aside(folder: Path) -> Path | None:
    """Put an empty folder in the place of one; return where what it held is now, if anything.

    Of earlier ones no more stays than cannot be removed: that of one attempt is all that it may
    take of the disk.
    """
    with contextlib.suppress(FileNotFoundError):
        if not any(folder.iterdir()):
            return None
        remove_unfinished(folder.parent.resolve() / folder.name)
        aside = _beside(folder, _UNFINISHED)
        folder.rename(aside)
        folder.mkdir()
        return aside
    folder.mkdir(parents=True, exist_ok=True)
    return None


def remove_unfinished(folder: Path) -> None:
    """Remove what was set aside of a folder, as far as it can be. No link is followed on the way
    to it."""
    with contextlib.suppress(OSError), entered(folder.parent) as beside:
        for _, folders, _, here in os.fwalk(".", dir_fd=beside):
            for name in filter(is_unfinished, folders):
                if name.rpartition(".")[0] == f".{folder.name}":
                    remove_what_can_be(Path(name), here)
            folders.clear()


def is_unfinished(path: str) -> bool:
    """Return whether a folder is one that was set aside, by its path."""
    name = path.rpartition("/")[2]
    return re.fullmatch(rf"\..+\.{_UNFINISHED}-[0-9a-f]{{12}}", name, re.DOTALL) is not None


def put_back(folder: Path) -> None:
    """Undo a replacement that was interrupted, and remove what earlier lives have left."""
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(folder.parent.iterdir()):
            if path.name.startswith(f".{folder.name}.old-") and not folder.exists():
                path.rename(folder)
            elif path.name.startswith(tuple(f".{folder.name}.{kind}-" for kind in _KINDS)):
                remove(path)


def remove_moments(where: Path) -> None:
    """Remove what `moment_of` made below a folder: no life of the agent publishes it any more."""
    for moment in where.glob(".*.saved-*"):
        remove(moment)


def remove(folder: Path) -> None:
    remove_what_can_be(folder)


_KINDS = ("saved", "restoring", "old")
_UNFINISHED = "unfinished"


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}-{uuid.uuid4().hex[:12]}")


def _require_utf8(text: str, what: str = "the name of a file") -> None:
    """A manifest is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        said = os.fsencode(text).decode(errors="backslashreplace")
        raise DamagedError(f"{what} is not UTF-8: {said}") from None


@contextlib.contextmanager
def _telling_depth() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise DamagedError("its folders are nested too deep") from None


@dataclass(frozen=True)
class _Walk:
    """A look at a folder, by the arguments of `files_of`."""

    named: Callable[[str], bool]
    enters: Callable[[str], bool]
    left_out: Callable[[str, str], None] | None

    def below(self, folder: Path, prefix: str = "") -> Iterator[StoredFile]:
        """Yield what is in a folder, whose path ends in a slash as `prefix`."""
        if self.left_out is not None and prefix.count("/") > _DEEPEST:
            self.left_out(prefix, "folders that are nested too deep")
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                path = f"{prefix}{entry.name}"
                try:
                    yield from self._of(entry, path)
                except FileNotFoundError:
                    pass  # replaced, or removed, meanwhile
                except (OSError, DamagedError) as error:
                    why = _why_left_out(error)
                    if self.left_out is None or why is None:
                        raise
                    self.left_out(path, why)

    def _of(self, entry: os.DirEntry[str], path: str) -> Iterator[StoredFile]:
        if entry.is_dir(follow_symlinks=False):
            if self.enters(path):
                yield from self.below(Path(entry.path), f"{path}/")
            return
        if not self.named(path):
            return
        _require_utf8(path)
        if entry.is_symlink():
            leads = str(Path(entry.path).readlink())
            _require_utf8(leads, f"what the link {path} leads to")
            yield StoredFile(path=path, link=leads)
        elif entry.is_file():
            its = entry.stat()
            if self.left_out is not None and not os.access(entry.path, os.R_OK):
                raise PermissionError
            yield StoredFile(
                path=path, size=its.st_size, mode=stat.S_IMODE(its.st_mode),
                modified_ns=its.st_mtime_ns,
            )  # fmt: skip
        elif self.left_out is not None:
            self.left_out(path, "a FIFO, a socket or a device")


def _why_left_out(error: OSError | DamagedError) -> str | None:
    """Return why a file or folder is left out; None of an error of the whole."""
    if isinstance(error, DamagedError):
        return "a name that is not UTF-8"
    if error.errno == errno.ENAMETOOLONG:
        return "a path that is too long"
    return "the agent may not read that" if isinstance(error, PermissionError) else None


def _not_entered(error: OSError) -> None:
    """A folder that is left out would be lost with the next attempt."""
    if not isinstance(error, FileNotFoundError):  # replaced meanwhile
        raise error


def _take(name: str, here: int, target: Path) -> bool:
    """Link a file of the open folder `here`, copy a symbolic link; leave out all else. Return
    whether it is a folder."""
    its = os.stat(name, dir_fd=here, follow_symlinks=False)
    if stat.S_ISLNK(its.st_mode):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.readlink(name, dir_fd=here))
    elif stat.S_ISREG(its.st_mode):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(name, target, src_dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:
            _copy(name, here, target)
        if not stat.S_ISREG(target.lstat().st_mode):
            target.unlink()  # a link took its place between the two looks
    return stat.S_ISDIR(its.st_mode)


def _copy(name: str, here: int, target: Path) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=here), "rb") as source, target.open("xb") as copy:
        its = os.fstat(source.fileno())
        if stat.S_ISREG(its.st_mode):
            shutil.copyfileobj(source, copy)
        os.fchmod(copy.fileno(), stat.S_IMODE(its.st_mode))
    os.utime(target, ns=(its.st_atime_ns, its.st_mtime_ns))
