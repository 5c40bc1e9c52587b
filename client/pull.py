"""What a job gave back, brought into a folder of this machine: what differs, and nothing else."""

import hashlib
import os
import stat
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.node.system import users_umask
from longshore.client.code_walk import OWN_FILE
from longshore.models.base import Frozen
from longshore.models.checkpoint import Manifest, StoredFile
from longshore.models.errors import RefusedError
from longshore.models.visible import shown

_CHUNK = 2**20
_MARKS = (".gitignore", OWN_FILE)
"""Files that keep a folder out of Git and of later submits, also where one has an ignore file of
ours."""
_IGNORED = "# Made by `longshore pull`: no later job brings these files along.\n*\n"


class Pulled(Frozen):
    """What was brought."""

    job_id: str
    attempt: int
    folder: str
    files: int
    """How many the attempt gave back."""
    bytes: int
    fetched: tuple[str, ...]
    """Those that were missing or differed, below the folder."""
    fetched_bytes: int
    left_out: tuple[str, ...] = ()
    """Links that lead out of the folder, files of a Git repository, and those of a name that
    another rank has, or what keeps the folder out of later submits."""


def pull(
    store: OutputStore,
    manifests: tuple[Manifest, ...],
    folder: Path,
    *,
    dry_run: bool = False,
    ignored: bool = False,
    told: Callable[[str], None] = lambda path: None,
) -> Pulled:
    """Bring the files of an attempt into a folder: those of rank 0 there, of rank 3 in `rank-3`.

    Files that are as they were stored stay, others are replaced; what only the folder has stays.
    A `.git` stays behind: see `_is_of_git`.
    With `ignored` Git and later submits of the folder around it leave a new `folder` out. `told`
    hears of each file. Raises DamagedError, StoreError, RefusedError where a link, a file or a
    folder of ours is in the way, OSError.
    """
    fetched: list[str] = []
    left_out: list[str] = []
    size, seen = 0, set[Path]()
    if ignored and (not folder.exists() or _is_marked(folder)):
        seen.update(folder / name for name in _MARKS)
        if not dry_run:
            _mark(folder)
    for manifest in manifests:
        below = folder if manifest.rank == 0 else folder / f"rank-{manifest.rank}"
        for index, file in enumerate(manifest.files):
            target = below / file.path
            name = str(target.relative_to(folder))
            twice = target in seen or not seen.isdisjoint(target.parents)
            leads_out = file.link is not None and not _stays(folder, target, file.link)
            if twice or leads_out or _is_of_git(file.path):
                left_out.append(name)
                continue
            seen.add(target)
            if _is_there(target, file):
                continue
            fetched.append(name)
            size += file.size
            if not dry_run:
                _refuse_others(folder, target)
                _bring(store, manifest, index, target)
                told(name)
    return Pulled(
        job_id=manifests[0].job_id, attempt=manifests[0].attempt, folder=str(folder),
        files=sum(len(each.files) for each in manifests),
        bytes=sum(each.bytes for each in manifests),
        fetched=tuple(fetched), fetched_bytes=size, left_out=tuple(left_out),
    )  # fmt: skip


def _is_marked(folder: Path) -> bool:
    """Return whether a folder was made by a pull, also by that of a version with one mark."""
    try:
        return (folder / _MARKS[0]).read_bytes() == _IGNORED.encode()
    except OSError:
        return False


def _mark(folder: Path) -> None:
    _make(folder)
    for mark in (folder / name for name in _MARKS):
        if not mark.exists():
            mark.write_text(_IGNORED)
            mark.chmod(0o666 & ~users_umask())


def _make(folder: Path) -> None:
    """Make a folder, and those above it, for those whom the user's own programs would let in."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        group = each.stat().st_mode & stat.S_ISGID  # that of the folder above goes on
        each.chmod(group | (0o777 & ~users_umask()))


def _is_there(target: Path, file: StoredFile) -> bool:
    if file.link is not None:
        return target.is_symlink() and str(target.readlink()) == file.link
    if target.is_symlink() or not target.is_file():
        return False
    its = target.stat()
    # As Git does, of all modes this one alone is looked at: others are of whoever has the file.
    if its.st_size != file.size or (its.st_mode ^ file.mode) & stat.S_IXUSR:
        return False
    digest = hashlib.sha256()
    with target.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == file.sha256


def _bring(store: OutputStore, manifest: Manifest, index: int, target: Path) -> None:
    """Fetch a file beside its place, then put it there: a pull that is cut off leaves the old."""
    file = manifest.files[index]
    _make(target.parent)
    with tempfile.TemporaryDirectory(prefix=".longshore-pull-", dir=target.parent) as draft:
        if file.link is not None:
            made = Path(draft) / "link"
            made.symlink_to(file.link)
        else:
            store.fetch(manifest, index, Path(draft))
            made = Path(draft) / file.path
            # As code comes to a node: who else may write it says whoever pulls, not the job.
            wanted = 0o777 if file.mode & stat.S_IXUSR else 0o666
            made.chmod(wanted & ~users_umask())
        made.replace(target)


def _refuse_others(folder: Path, target: Path) -> None:
    """Raise RefusedError where a file would be written through a link, below a file, or over a
    folder."""
    for here in target.parents:
        if here.is_symlink() and here.is_relative_to(folder) and here != folder:
            raise RefusedError(f"{shown(str(here))} is a link: choose another folder")
        if here.exists() and not here.is_dir():
            raise RefusedError(f"{shown(str(here))} is a file: choose a folder with --to")
    if target.is_dir() and not target.is_symlink():
        raise RefusedError(f"{shown(str(target))} is a folder: choose another one with --to")


def _is_of_git(path: str) -> bool:
    """Return whether a file belongs to a Git repository itself: of its settings and hooks Git runs
    programs, at any command in the folder. As in Git, which has none of these in a commit; some
    file systems take all ways to write the name for one."""
    return any(_as_any_system(part) in (".git", "git~1") for part in path.split("/"))


def _as_any_system(name: str) -> str:
    """Return a name without what file systems pass over in it: case, letters that are not seen
    (HFS+), dots and blanks at its end, a stream (NTFS)."""
    seen = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return seen.partition(":")[0].rstrip(". ").casefold()


def _stays(folder: Path, target: Path, link: str) -> bool:
    """Return whether a link leads to somewhere in the folder, also over links that are there."""
    end = Path(os.path.realpath(target.parent / link))
    # Both by their names alone: `folder` may have `..` in it.
    written, top = (Path(os.path.abspath(each)) for each in (target.parent / link, folder))  # noqa: PTH100 (a Path keeps `..`)
    inside = end.is_relative_to(folder.resolve()) and written.is_relative_to(top)
    return inside and not Path(link).is_absolute()
