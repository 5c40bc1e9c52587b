"""Which files of a folder come along with a job, and what in it cannot.

In a Git work tree these are the files that Git tracks or would track (`git ls-files`), elsewhere
those that `client/code_walk.py` finds. Where the folder has a `.longshoreignore`, that alone says
what is left out. `.git` never comes along, and keys only where they are named.
"""

# A Path would write the target of a link anew, and costs time for each file.
# ruff: noqa: PTH115

import errno
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from longshore.client.code_tree import as_git_says, ask_git
from longshore.client.code_walk import OWN_FILE, Walked, is_pattern, walk
from longshore.client.uncollected import uncollected
from longshore.models.errors import SpecError
from longshore.models.snapshot import SnapshotLink
from longshore.models.units import format_bytes
from longshore.models.visible import in_one_line, shown

_NAMED = 20
_LARGEST = 10
_LINKS = 40
"""Symbolic links that Linux follows in one path."""
_UNREAD = "cannot be read: ignore it, or change its mode"
_KEY = re.compile(
    r"\.env|\.env\..+|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|.*\.(pem|key|p12|pfx|ppk)"
    r"|\.netrc|\.pgpass|\.pypirc|\.npmrc|\.git-credentials|(application_default_)?credentials\.json"
)
_NO_KEY = re.compile(r"\.env\.(example|sample|template)")
_KEY_FOLDERS = frozenset({".aws", ".azure", ".gnupg", ".huggingface", ".kube", ".ssh"})
_KEY_PATH = re.compile(
    r"(?:^|/)\.(?:config/gcloud/|docker/config\.json$|cache/huggingface/(?:stored_)?tokens?$)"
)
"""In folders that also hold what is no key."""


class FoundFile(NamedTuple):
    """A regular file that comes along."""

    path: str
    """Below the folder, with slashes."""
    source: str
    """Where it is. A Path costs a folder of 50,000 files a third of a second."""
    stat: os.stat_result

    @property
    def executable(self) -> bool:
        """Whether its owner may execute it: what Git keeps of its mode."""
        return bool(self.stat.st_mode & stat.S_IXUSR)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stat.st_size


@dataclass(frozen=True)
class FoundFiles:
    """What comes along of a folder; all by path."""

    files: tuple[FoundFile, ...]
    links: tuple[SnapshotLink, ...]
    """Symbolic links that stay in the folder, with their targets as they are written."""
    folders: tuple[str, ...]
    """Those that hold nothing of what comes along, and are not ignored."""
    commit: str | None = None
    """That of the Git work tree that it is in; None without one."""
    changed: bool = False
    """Whether tracked files differ from that commit, or others come along."""


def find_files(
    folder: Path, *, include: Sequence[str] = (), limit: int | None = None
) -> FoundFiles:
    """Return what comes along of a folder.

    `include` are patterns as of `.gitignore`, of what comes along though it is ignored or looks
    like a key. More than `limit` bytes are refused. Raises SpecError with all that is wrong.
    """
    with uncollected():
        return _find_files(folder, include, limit)


def _find_files(folder: Path, include: Sequence[str], limit: int | None) -> FoundFiles:
    root = _checked(folder)
    unread = [f"include {shown(each)}: is no pattern" for each in include if not is_pattern(each)]
    own = (root / OWN_FILE).is_file()
    walked = walk(root, include)
    tree = ask_git(root, decides=not own)
    if tree is not None and not own:
        as_git_says(root, walked, tree)
    taken = walked.files.keys() | walked.links
    empty = walked.folders - _above(taken | walked.folders)
    problems = list(_wrong(root, walked, empty))
    told = [f"{folder}: {each}" for each in _first(problems)]
    if limit is not None and sum(each.st_size for each in walked.files.values()) > limit:
        told.insert(0, f"{folder}: {_too_large(walked, limit)}")
    if not problems and not (walked.files or walked.links or walked.folders) and _holds(root):
        told.append(
            f"{folder}: all that it holds is ignored; a file `{OWN_FILE}` in it, which may be "
            "empty, says instead of Git what is left out"
        )
    if told or unread:
        raise SpecError(str(folder), (*unread, *told))
    return FoundFiles(
        files=tuple(
            FoundFile(path, f"{root}/{path}", found)
            for path, found in sorted(walked.files.items())
        ),
        links=tuple(
            SnapshotLink(path=path, target=target)
            for path in sorted(walked.links)
            if (target := _target(f"{root}/{path}")) is not None
        ),
        folders=tuple(sorted(empty)),
        commit=tree and tree.commit,
        changed=tree is not None and (tree.changed or not taken <= tree.tracked),
    )


def _checked(folder: Path) -> Path:
    try:
        root = folder.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        wrong = "there is no such folder"
    except RuntimeError:  # from Python 3.13 on an OSError
        wrong = f"cannot be read: {os.strerror(errno.ELOOP)}"
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
    else:
        own = "put the code into a folder of its own"
        if not root.is_dir():
            wrong = "is a file; name the folder that it lies in"
        elif root == Path(root.anchor):
            wrong = f"is the root of the file system: {own}"
        elif root == Path(os.path.expanduser("~")).resolve():  # noqa: PTH111 (without a home: "~")
            wrong = f"is the home folder: {own}"
        elif not _may(root, os.R_OK | os.X_OK):
            wrong = "cannot be read: change its mode"
        else:
            return root
    raise SpecError(str(folder), (f"{folder}: {wrong}",))


def _wrong(root: Path, walked: Walked, empty: set[str]) -> Iterable[str]:
    """Yield a line for each thing that cannot come along."""
    whats = dict.fromkeys(walked.others, "is a socket, a FIFO or a device")
    whats |= dict.fromkeys(walked.unreadable, _UNREAD)
    for path in walked.links:
        why = _leads_out(root, path)
        if why is not None:
            whats[path] = why
    for path, found in walked.files.items():
        # Who it is has to be asked only where not everybody may read it.
        if found.st_mode & 0o444 != 0o444 and not _may(f"{root}/{path}", os.R_OK):
            whats[path] = _UNREAD
        elif path not in walked.included and _is_key(path):
            whats[path] = "looks like a key: ignore it, or name it with --include"
    for path in {*walked.files, *walked.links, *empty}:
        if not path.isascii() and not _is_text(path):
            whats[path] = "has a name that is not UTF-8"
        elif "\n" in path:
            whats[path] = "has the end of a line in its name"
    for venv in _virtual_environments(walked):
        below = f"{venv}/"
        whats = {path: why for path, why in whats.items() if not path.startswith(below)}
        whats[venv] = (
            "is a virtual environment, which works on this machine alone: ignore it by a line "
            f"`{in_one_line(venv)}/` in .gitignore; `environment` gives a job its packages"
        )
    for path, why in sorted(whats.items()):
        yield f"{in_one_line(path)} {why}"


def _virtual_environments(walked: Walked) -> list[str]:
    """Return folders that come along, unless somebody named them, and are a `venv` of Python."""
    taken = walked.files.keys() | walked.links
    marks = (path.rpartition("/") for path in walked.files.keys() - walked.included)
    return [
        folder
        for folder, _, name in marks
        if name == "pyvenv.cfg" and folder and f"{folder}/bin/python" in taken
    ]


def _first(problems: list[str]) -> list[str]:
    left = len(problems) - _NAMED
    return problems[:_NAMED] + ([f"and {left:,} more like these"] if left > 0 else [])


def _too_large(walked: Walked, limit: int) -> str:
    sizes = {path: found.st_size for path, found in walked.files.items()}
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:_LARGEST]
    named = ", ".join(f"{in_one_line(path)} ({format_bytes(sizes[path])})" for path in largest)
    return (
        f"its {len(sizes):,} files are {format_bytes(sum(sizes.values()))}, more than the "
        f"{format_bytes(limit)} that may be sent; the largest: {named}. "
        f"A file `{OWN_FILE}` leaves files out"
    )


def _holds(root: Path) -> bool:
    return any(each.name != ".git" for each in root.iterdir())


def _above(paths: Iterable[str]) -> set[str]:
    """Return the folders that any of these lies in."""
    above: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in above:
            above.add(path)
    return above


def _is_key(path: str) -> bool:
    path = path.lower()  # file systems of other machines take ID_RSA for the same
    *folders, name = path.split("/")
    if not _KEY_FOLDERS.isdisjoint(folders) or _KEY_PATH.search(path):
        return True
    return _KEY.fullmatch(name) is not None and _NO_KEY.fullmatch(name) is None


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _may(path: Path | str, rights: int) -> bool:
    return os.access(path, rights, effective_ids=os.access in os.supports_effective_ids)


def _leads_out(root: Path, link: str) -> str | None:
    """Return why a symbolic link cannot come along: followed step by step, over other links, it
    must not leave the folder, not even to come back, as the folder has another name on a node."""
    at: list[str] = []
    ahead = link.split("/")[::-1]
    followed = 0
    target = ""
    while ahead:
        part = ahead.pop()
        if part == ".." and not at:
            return (
                f"is a symbolic link that leads out of the folder, to {in_one_line(target)}: "
                "ignore it"
            )
        if part == "..":
            at.pop()
        elif part not in ("", "."):
            at.append(part)
            step = "/".join(at)
            to = _target(f"{root}/{step}")
            if to is None:
                continue
            target = target or to
            followed += 1
            if followed > _LINKS:
                return None  # in a circle, and so nowhere else
            if not _is_text(to):
                return "is a symbolic link to a name that is not UTF-8"
            if to.startswith("/"):
                return (
                    f"is a symbolic link to an absolute path, {in_one_line(to)}: ignore it; a job "
                    "can use that path itself, where nodes have it"
                )
            at.pop()
            ahead += to.split("/")[::-1]
    return None


def _target(path: str) -> str | None:
    """Return what a link says; None where there is none, or none any more."""
    try:
        return os.readlink(path)
    except OSError:
        return None
