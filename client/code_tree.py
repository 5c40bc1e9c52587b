"""What Git says of a folder: the files that it tracks or would track, and the commit."""

# A Path costs time for each file.
# ruff: noqa: PTH114

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from longshore.client.code_walk import OWN_FILE, Walked
from longshore.models.errors import SpecError

# What points a Git command of somebody else, such as a hook that runs this, at its own files.
_OF_ANOTHER = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip

_RUN_NOTHING = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
OF_LFS = {
    "clean": "git-lfs clean -- %f", "smudge": "git-lfs smudge -- %f",
    "process": "git-lfs filter-process", "required": "true",
}  # fmt: skip
"""As `git lfs install --local` writes them into a repository: a program of the user's own."""
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
    inside = read_with_git(root, "rev-parse", "--is-inside-work-tree")
    if inside is None or inside.stdout.strip() != b"true":
        if inside is not None and decides and (trust := _TRUST.search(inside.stderr)):
            why = (
                "is in a Git repository of another user, which Git does not open. If you trust "
                f"it: {os.fsdecode(trust[0])}. Or say in a file `{OWN_FILE}` what is left out"
            )
            raise SpecError(str(root), (f"{root}: {why}",))
        return None
    head = read_with_git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    commit = head.stdout.decode().strip() if head is not None and head.returncode == 0 else None
    tree = Tree(commit)
    names = ("ls-files", "-z", "-t", "--stage", "--cached", "--others", "--exclude-standard")
    said = read_with_git(root, *names)
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
        differs = read_with_git(
            root,
            "diff",
            "--quiet",
            "--no-ext-diff",
            "--no-textconv",
            "--ignore-submodules=dirty",
            "HEAD",
            "--",
            ".",
            looks_at_files=True,
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


def read_with_git(
    folder: Path, *asked: str, looks_at_files: bool = False
) -> subprocess.CompletedProcess[bytes] | None:
    """Ask Git about a folder so that nothing which its repository names is run, also where it
    `looks_at_files`, and nothing in it is written. None without Git, and where an old one
    cannot be kept from that.

    This does not reach submodules: they have settings of their own.
    """
    env = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
    # Of an object that a partial clone lacks it would ask a remote, by programs of its settings.
    # An older Git knows nothing of the first, and has each way forbidden.
    env |= {
        "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }  # fmt: skip
    try:
        if looks_at_files and (own := _own_filters(_filters(env, folder))):
            env |= _as_settings(own, env)
            counts = {key: value for _, key, value in _filters(env, folder)}
            if any(counts.get(key) != value for key, value in own.items()):
                return None  # Git before 2.31 takes no settings from variables
        return _run(env, folder, *asked)
    except OSError:
        return None


def _run(env: Mapping[str, str], folder: Path, *asked: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["git", *_RUN_NOTHING, "-C", str(folder), *asked],
        env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip


_NONE_SET = 1
"""How `git config` ends where nothing is set."""


def _filters(env: Mapping[str, str], folder: Path) -> list[tuple[str, str, str]]:
    """Return the settings of filters, the one that counts last: who sets each, its name and value.
    Raises OSError where Git, before 2.26, does not say who."""
    said = _run(env, folder, "config", "--show-scope", "-z", "--get-regexp", r"^filter\.")
    if said.returncode not in (0, _NONE_SET):
        raise OSError(said.stderr)
    words = os.fsdecode(said.stdout).split("\0")[:-1]
    pairs = zip(words[::2], words[1::2], strict=True)
    told = ((scope, setting.partition("\n")) for scope, setting in pairs)
    return [(scope, key, value) for scope, (key, _, value) in told]


def _own_filters(filters: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Return settings by which of the filters that a repository sets those of its user are run,
    and no other."""
    own, others = dict[str, str](), dict[str, str]()
    for scope, key, value in filters:
        (own if scope in ("system", "global", "command") else others)[key] = value
    found = dict[str, str]()
    for key in others:
        name, _, what = key.rpartition(".")
        known = OF_LFS.get(what) if name == "filter.lfs" else None
        found[key] = own.get(key) or known or ("false" if what == "required" else "")
    return found


def _as_settings(settings: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell Git settings, behind those that they tell already: a name
    may have any letter, as no option of a command can."""
    before = env.get("GIT_CONFIG_COUNT", "")
    first = int(before) if before.isascii() and before.isdigit() else 0
    told = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (key, value) in enumerate(settings.items(), first):
        told |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return told
