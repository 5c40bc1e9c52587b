"""The files of a snapshot in the folder of a job, and as they were in it before each attempt.

    jobs/JOB/work          the folder: the snapshot's files, and whatever the job makes besides
    jobs/JOB/.code.json    what was put there: of each file its size, times and inode

A job owns its folder, and may have left there what it likes: a link where a folder was, a folder
where a file was. No link is followed on the way, and nothing is written to a file that is there:
a new one takes its place. Files are copies, so that no job changes another's, or the cache.
"""

import contextlib
import errno
import json
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longshore.activities.failpoints import blocking_failpoint
from longshore.activities.node.public_files import entered
from longshore.activities.node.removal import remove_tree
from longshore.activities.node.system import users_umask
from longshore.activities.storage import GivenUp
from longshore.models.errors import DamagedError
from longshore.models.snapshot import Snapshot, SnapshotFile
from longshore.scheduling.code_paths import mistake_of

WORK = "work"
"""Name of the folder in that of the job."""
INDEX = ".code.json"
_PART = ".longshore-part"
"""Name of a file that is to take the place of another, in the same folder."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGE = 1 << 20
"""Bytes from which the system copies, on file systems that can without a second copy on disk."""
_OPEN_OBJECTS = 8
_SAME_TICK = 20_000_000
"""Nanoseconds before the index was written in which a change need not show in the times."""

Stamp = list[int]
"""Size, time of content, time of change, inode."""


class MissingObjectError(Exception):
    """An object has gone from the cache, or is shorter than its snapshot says."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


def unpack(
    snapshot: Snapshot,
    object_path: Callable[[str], Path],
    job_folder: Path,
    given_up: threading.Event,
) -> int:
    """Have the files of a snapshot in the folder `work` of a job as they are in the snapshot.

    What is there besides stays. Returns how many files were written: those that are as they were
    put there are not. Raises DamagedError for a snapshot whose paths lead out of the folder,
    MissingObjectError, GivenUp, and OSError where the disk refuses; a repeat goes on from there.
    """
    if why := mistake_of(snapshot):
        raise DamagedError(f"the snapshot {snapshot.digest} cannot be unpacked: {why}")
    job_folder.parent.mkdir(parents=True, exist_ok=True)
    jobs = job_folder.parent.resolve()
    with entered(jobs) as top, _Tree(top) as tree, _Objects(object_path) as objects:
        base = tree.enter((job_folder.name,))
        before = _read_index(base, snapshot.digest)
        put = _Unpacking(tree, objects, (job_folder.name, WORK), before, given_up)
        put.all_of(snapshot)
        if put.written or not before:
            base = tree.enter((job_folder.name,))
            blocking_failpoint("bring_code.before-index")
            _write_index(base, snapshot.digest, put.stamps)
            blocking_failpoint("bring_code.after-index")
    return put.written


def remove_unpacked(job_folder: Path) -> None:
    """Remove the files of a snapshot that are as they were put there; what the job made stays."""
    with contextlib.suppress(OSError), entered(job_folder.resolve()) as base, _Tree(base) as tree:
        folders = set[tuple[str, ...]]()
        for path, stamp in _read_index(base, None).items():
            *above, name = [WORK, *path.split("/")]
            with contextlib.suppress(OSError):
                here = tree.enter(above, make=False)
                if _stamp(os.stat(name, dir_fd=here, follow_symlinks=False)) == stamp:
                    os.unlink(name, dir_fd=here)
                    folders |= {tuple(above[:length]) for length in range(2, len(above) + 1)}
        for empty in sorted(folders, key=len, reverse=True):
            with contextlib.suppress(OSError):
                os.rmdir(empty[-1], dir_fd=tree.enter(empty[:-1], make=False))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(INDEX, dir_fd=base)


class _Unpacking:
    """One pass over the files of a snapshot."""

    def __init__(
        self,
        tree: "_Tree",
        objects: "_Objects",
        below: tuple[str, ...],
        before: dict[str, Stamp],
        given_up: threading.Event,
    ) -> None:
        self._tree = tree
        self._objects = objects
        self._below = below
        self._before = before
        self._given_up = given_up
        self._umask = users_umask()
        self.stamps: dict[str, Stamp] = {}
        self.written = 0

    def all_of(self, snapshot: Snapshot) -> None:
        self._tree.enter(self._below)
        for file in snapshot.files:
            if self._given_up.is_set():
                raise GivenUp
            self._file(file)
        for path in snapshot.folders:
            self._tree.enter((*self._below, *path.split("/")))
        for link in snapshot.links:  # last: nothing is to be written through one
            here, name = self._place(link.path)
            with contextlib.suppress(OSError):
                if os.readlink(name, dir_fd=here) == link.target:
                    continue
            _clear(name, here)
            os.symlink(link.target, name, dir_fd=here)
            self.written += 1

    def _file(self, file: SnapshotFile) -> None:
        here, name = self._place(file.path)
        known = self._before.get(file.path)
        if known is not None:
            with contextlib.suppress(FileNotFoundError):
                if _stamp(os.stat(name, dir_fd=here, follow_symlinks=False)) == known:
                    self.stamps[file.path] = known
                    return
        self._put(file, here, name)
        self.stamps[file.path] = _stamp(os.stat(name, dir_fd=here, follow_symlinks=False))
        self.written += 1
        blocking_failpoint("bring_code.after-first-file")

    def _put(self, file: SnapshotFile, here: int, name: str) -> None:
        target = name
        try:
            fd = os.open(name, _NEW, 0o600, dir_fd=here)
        except FileExistsError:
            _clear(_PART, here)
            target = _PART
            fd = os.open(_PART, _NEW, 0o600, dir_fd=here)
        try:
            for part in file.parts:
                self._objects.copy(part.object, part.offset, part.size, fd)
            os.fchmod(fd, (0o777 if file.executable else 0o666) & ~self._umask)
            at = modified_at(file.sha256) * 10**9
            os.utime(fd, ns=(at, at))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(target, dir_fd=here)
            raise
        finally:
            os.close(fd)
        if target != name:
            _rename_over(target, name, here)

    def _place(self, path: str) -> tuple[int, str]:
        *above, name = path.split("/")
        return self._tree.enter((*self._below, *above)), name


class _Tree:
    """Open folders, from one on downwards. What is in the way of one is removed."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._open: list[tuple[str, int]] = []
        self._mode = 0o777 & ~users_umask()

    def __enter__(self) -> "_Tree":
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(0)

    def enter(self, parts: Sequence[str], *, make: bool = True) -> int:
        """Return the folder at a path; open until another one is entered that is not below."""
        common = 0
        for (name, _), part in zip(self._open, parts, strict=False):
            if name != part:
                break
            common += 1
        self._leave(common)
        for part in parts[common:]:
            above = self._open[-1][1] if self._open else self._top
            self._open.append((part, self._folder(above, part, make)))
        return self._open[-1][1] if self._open else self._top

    def _folder(self, above: int, name: str, make: bool) -> int:
        try:
            return self._opened(above, name)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            if not make or error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            os.unlink(name, dir_fd=above)
        os.mkdir(name, 0o700, dir_fd=above)
        fd = self._opened(above, name)
        os.fchmod(fd, self._mode)
        return fd

    def _opened(self, above: int, name: str) -> int:
        try:
            fd = os.open(name, _FOLDER, dir_fd=above)
        except PermissionError:  # the job has closed it to its own user
            held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            try:
                os.chmod(f"/proc/self/fd/{held}", self._mode)  # noqa: PTH101 (of an open file)
            finally:
                os.close(held)
            fd = os.open(name, _FOLDER, dir_fd=above)
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.fchmod(fd, self._mode)
        return fd

    def _leave(self, length: int) -> None:
        while len(self._open) > length:
            os.close(self._open.pop()[1])


class _Objects:
    """Objects of the cache that are being read, some of them open."""

    def __init__(self, path_of: Callable[[str], Path]) -> None:
        self._path_of = path_of
        self._open: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> "_Objects":
        return self

    def __exit__(self, *_: object) -> None:
        for fd, _length in self._open.values():
            os.close(fd)

    def copy(self, name: str, offset: int, size: int, target: int) -> None:
        """Append a part of an object to a file. Raises MissingObjectError."""
        source, length = self._opened(name)
        if offset + size > length:
            raise MissingObjectError(name)
        if size >= _LARGE:
            offset, size = _copied_by_the_system(source, offset, size, target)
        while size:
            data = os.pread(source, min(size, 4 * _LARGE), offset)
            if not data:
                raise MissingObjectError(name)
            written = os.write(target, data)
            offset, size = offset + written, size - written

    def _opened(self, name: str) -> tuple[int, int]:
        if name not in self._open:
            while len(self._open) >= _OPEN_OBJECTS:
                oldest = next(iter(self._open))
                os.close(self._open.pop(oldest)[0])
            try:
                fd = os.open(self._path_of(name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise MissingObjectError(name) from None
            self._open[name] = fd, os.fstat(fd).st_size
        return self._open[name]


def modified_at(sha256: str) -> int:
    """Return the time that a file of this content has, in seconds since the epoch: from 2000 to
    2019, by its content.

    Python takes compiled code for that of a source of the same size and time. So what was
    compiled of a file counts for that content alone, in whatever folder and attempt.
    """
    return 946_684_800 + int(sha256[:12], 16) % 630_720_000


def _copied_by_the_system(source: int, offset: int, size: int, target: int) -> tuple[int, int]:
    """Copy what the system can; return where it stopped, and how much is left."""
    with contextlib.suppress(OSError, AttributeError):
        while size:
            copied = os.copy_file_range(source, target, size, offset_src=offset)
            if not copied:
                break
            offset, size = offset + copied, size - copied
    return offset, size


def _stamp(its: os.stat_result) -> Stamp:
    return [its.st_size, its.st_mtime_ns, its.st_ctime_ns, its.st_ino]


def _clear(name: str, here: int) -> None:
    """Remove what is in the way, whatever it is."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
            remove_tree(Path(name), below=here)
        else:
            os.unlink(name, dir_fd=here)


def _rename_over(part: str, name: str, here: int) -> None:
    try:
        os.rename(part, name, src_dir_fd=here, dst_dir_fd=here)
    except IsADirectoryError:
        remove_tree(Path(name), below=here)
        os.rename(part, name, src_dir_fd=here, dst_dir_fd=here)


def _read_index(base: int, digest: str | None) -> dict[str, Stamp]:
    """Return what was put into the folder and cannot have changed unseen; nothing of another
    snapshot, or where no index is."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(INDEX, flags, dir_fd=base), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}
            written_at = os.fstat(file.fileno()).st_mtime_ns
            found: dict[str, Any] = json.load(file)
        if digest is not None and found["snapshot"] != digest:
            return {}
        files: dict[str, Stamp] = found["files"]
        return {path: stamp for path, stamp in files.items()
                if stamp[2] < written_at - _SAME_TICK}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return {}


def _write_index(base: int, digest: str, stamps: dict[str, Stamp]) -> None:
    _clear(f"{INDEX}.new", base)
    with os.fdopen(os.open(f"{INDEX}.new", _NEW, 0o600, dir_fd=base), "w") as file:
        json.dump({"snapshot": digest, "files": stamps}, file)
    _rename_over(f"{INDEX}.new", INDEX, base)
