"""What Git says of a folder: the files that it tracks or would track, and the commit."""

# A Path costs time for each file.
# ruff: noqa: PTH114

import os
import re
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from longshore.client.code_walk import OWN_FILE, Walked
from longshore.models.errors import SpecError

# What points a Git command of somebody else, such as a hook that runs this, at its own files.
_OF_ANOTHER = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip

RUN_NOTHING = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
"""Options with which Git runs no program that a repository names. They do not reach submodules."""
_TRUST = re.compile(rb"git config --global --add safe\.directory .+")
"""What Git says to do about a repository of another user."""


@dataclass
class Tree:
    """What Git says of a folder in a work tree. Paths are below the folder."""

    commit: str | None
    tracked: set[str] = field(default_factory=set)
    untracked: set[str] = field(default_factory=set)
    """Those that are not ignored."""
    closed: list[str] = field(default_factory=list)
    """Folders, each with a slash at its end, of repositories that Git does not open."""
    changed: bool = False


def as_git_says(root: Path, walked: Walked, tree: Tree) -> None:
    """Put into what was walked the files that Git names, and leave out the others."""
    listed = tree.tracked | tree.untracked

    def stays(path: str) -> bool:
        return path in listed or path in walked.included or path.startswith(tuple(tree.closed))

    walked.links = {path for path in walked.links if stays(path)}
    for path in [path for path in walked.files if not stays(path)]:
        del walked.files[path]
    linked: dict[str, bool] = {}
    for path in listed - walked.files.keys() - walked.links:
        if _through_link(root, path, linked):
            continue  # a link took the place of a folder: what Git tracked there is gone
        try:
            found = os.lstat(f"{root}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted, and not yet so in the index
        except OSError:
            walked.unreadable.add(path)
            continue
        if stat.S_ISLNK(found.st_mode):
            walked.links.add(path)
        elif stat.S_ISREG(found.st_mode):
            walked.files[path] = found


def _through_link(root: Path, path: str, known: dict[str, bool]) -> bool:
    above = path.rpartition("/")[0]
    if not above:
        return False
    if above not in known:
        known[above] = os.path.islink(f"{root}/{above}") or _through_link(root, above, known)
    return known[above]


def ask_git(root: Path, *, decides: bool = True) -> Tree | None:
    """Return what Git says of the folder; None without Git, and without a work tree.

    Raises SpecError where Git cannot read it, or does not open it since it is another user's: with
    `decides`, where only Git knows which files come along.
    """
    inside = _git(root, "rev-parse", "--is-inside-work-tree")
    if inside is None or inside.stdout.strip() != b"true":
        if inside is not None and decides and (trust := _TRUST.search(inside.stderr)):
            why = (
                "is in a Git repository of another user, which Git does not open. If you trust "
                f"it: {os.fsdecode(trust[0])}. Or say in a file `{OWN_FILE}` what is left out"
            )
            raise SpecError(str(root), (f"{root}: {why}",))
        return None
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    commit = head.stdout.decode().strip() if head is not None and head.returncode == 0 else None
    tree = Tree(commit)
    names = ("ls-files", "-z", "-t", "--stage", "--cached", "--others", "--exclude-standard")
    said = _git(root, *names)
    if said is None or said.returncode != 0:
        wrong = said.stderr.decode(errors="replace").strip() if said else "it is gone"
        raise SpecError(str(root), (f"{root}: Git cannot list its files: {wrong}",))
    for line in said.stdout.split(b"\0")[:-1]:
        # "H 100644 0123... 0<tab>path", and of what is not tracked "? path".
        kind, _, rest = os.fsdecode(line).partition(" ")
        mode, path = ("", rest) if kind == "?" else (rest[:6], rest.partition("\t")[2])
        if mode == "160000" or path.endswith("/"):
            submodule = mode != ""
            _add_repository(root, path.rstrip("/"), tree, submodule=submodule, decides=decides)
        elif kind == "?":
            tree.untracked.add(path)
        else:
            tree.tracked.add(path)
    if commit is not None:
        # What differs in submodules they say themselves: their own settings would run there.
        differs = _git(
            root,
            "diff",
            "--quiet",
            "--no-ext-diff",
            "--ignore-submodules=dirty",
            "HEAD",
            "--",
            ".",
        )
        tree.changed |= differs is None or differs.returncode != 0
    return tree


def _add_repository(root: Path, path: str, tree: Tree, *, submodule: bool, decides: bool) -> None:
    if not path or not os.path.lexists(root / path / ".git"):
        return  # not initialised: it holds nothing
    inner = ask_git(root / path, decides=decides)
    if inner is None:
        tree.closed.append(f"{path}/")
        return

    def below(paths: Iterable[str]) -> set[str]:
        return {f"{path}/{each}" for each in paths}

    # The commit says nothing of a repository that is no submodule.
    (tree.tracked if submodule else tree.untracked).update(below(inner.tracked))
    tree.untracked |= below(inner.untracked)
    tree.closed += [f"{path}/{each}" for each in inner.closed]
    tree.changed |= inner.changed


def _git(folder: Path, *asked: str) -> subprocess.CompletedProcess[bytes] | None:
    """Run Git so that nothing which the repository names is run, and nothing in it is written."""
    env = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
    try:
        return subprocess.run(
            ["git", *RUN_NOTHING, "-C", str(folder), *asked],
            env=env | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError:
        return None
