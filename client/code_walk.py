"""A folder's files without those that Git would ignore, found without asking Git.

It reads the ignore files of the folder and of those above it in the work tree, `info/exclude`, and
the user's own. Rules: gitignore(5). Which pattern counts is decided here, entry by entry from
above, as Git does it.
"""

import os
import re
import subprocess
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from longshore.models.git_patterns import as_expression

OWN_FILE = ".longshoreignore"
_GIT_FILE = ".gitignore"

_Runs = tuple[tuple[bool, re.Pattern[bytes]], ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The patterns of one ignore file, seen from `base`, which is empty or ends with a slash.

    Those that count most are first, neighbours of one kind (with `!`, or without) in one
    expression.
    """

    base: bytes
    of_files: _Runs
    of_folders: _Runs

    def verdict(self, path: bytes, *, folder: bool) -> bool | None:
        """Return whether a path is matched by a pattern, False where one with `!` does, and None
        where none does."""
        start = len(self.base)
        for matched, expression in self.of_folders if folder else self.of_files:
            if expression.match(path, start):
                return matched
        return None


@dataclass
class Walked:
    """What was found, by paths below the folder."""

    files: dict[str, os.stat_result] = field(default_factory=dict)
    links: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    """Sockets, FIFOs and devices."""
    folders: set[str] = field(default_factory=set)
    """All that are not ignored."""
    unreadable: set[str] = field(default_factory=set)
    """Folders that cannot be listed, and files that cannot be looked at."""
    included: set[str] = field(default_factory=set)
    """Of all these what `include` names."""


def read_rules(lines: Iterable[bytes], base: str = "") -> Rules:
    """Return rules of the lines of an ignore file. What Git cannot read either matches nothing."""
    patterns = [each for each in map(as_expression, lines) if each is not None]
    of_files = [(matched, text) for matched, text, of_folders in patterns if not of_folders]
    of_folders = [each[:2] for each in patterns]
    return Rules(os.fsencode(base), _runs(of_files), _runs(of_folders))


def is_pattern(line: str) -> bool:
    """Return whether a line of an ignore file is a pattern: no comment, and one that can match."""
    return as_expression(_as_bytes(line)) is not None


def _as_bytes(line: str) -> bytes:
    return line.encode("utf-8", "surrogateescape")


def walk(folder: Path, include: Sequence[str] = ()) -> Walked:
    """Return what a folder holds, but for `.git` and what its ignore files name.

    With a `.longshoreignore` in it, files of that name are its only ignore files. Folders that are
    ignored are entered only where there are patterns to `include`.
    """
    own = (folder / OWN_FILE).is_file()
    top = folder if own else _work_tree(folder) or folder
    prefix = "" if top == folder else f"{folder.relative_to(top).as_posix()}/"
    rules = [] if own else _rules_of_user(folder, "") + _rules_of_repository(top, "")
    ignored = False
    at = ""
    for part in prefix.split("/")[:-1]:  # of the folders above this one
        rules = rules + _read(top / at / _GIT_FILE, at)
        at += f"{part}/"
        ignored = ignored or _ignored(rules, os.fsencode(at[:-1]), folder=True)
    named = read_rules(map(_as_bytes, include), prefix) if include else None
    walker = _Walker(str(folder), prefix, own, named)
    walker.walk(rules, ignored)
    return walker.found


class _Walker:
    def __init__(self, folder: str, prefix: str, own: bool, include: Rules | None) -> None:
        self._folder = folder
        self._cut = len(prefix)
        self._prefix = prefix
        self._own = own
        self._name = OWN_FILE if own else _GIT_FILE
        self._include = include
        self.found = Walked()

    def walk(self, rules: list[Rules], ignored: bool) -> None:
        waiting = [(self._prefix, rules, ignored, False)]
        while waiting:
            at, rules, ignored, included = waiting.pop()
            path = f"{self._folder}/{at[self._cut :]}"
            try:
                with os.scandir(path) as found:
                    entries = list(found)
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError:
                if included or not ignored:  # else it was to stay behind
                    self.found.unreadable.add(at[self._cut : -1] or ".")
                continue
            if not ignored:
                rules = self._rules_here(at, path, entries, rules)
            for entry in entries:
                if entry.name != ".git":
                    inner = self._take(entry, at, rules, ignored, included)
                    if inner is not None:
                        waiting.append(inner)

    def _rules_here(
        self, at: str, path: str, entries: list[os.DirEntry[str]], rules: list[Rules]
    ) -> list[Rules]:
        for entry in entries:
            # A repository inside another one has rules of its own.
            if entry.name == ".git" and at != self._prefix and not self._own:
                rules = _rules_of_user(Path(path), at) + _rules_of_repository(Path(path), at)
        for entry in entries:
            if entry.name == self._name and entry.is_file(follow_symlinks=self._own):
                rules = rules + _read(Path(entry.path), at)
        return rules

    def _take(
        self, entry: os.DirEntry[str], at: str, rules: list[Rules], ignored: bool, included: bool
    ) -> tuple[str, list[Rules], bool, bool] | None:
        """Note an entry; return what to walk next, where it is a folder to enter."""
        is_folder = entry.is_dir(follow_symlinks=False)
        path = at + entry.name
        raw = os.fsencode(path)
        if self._include is not None:
            named = self._include.verdict(raw, folder=is_folder)
            included = included if named is None else named
        ignored = ignored or _ignored(rules, raw, folder=is_folder)
        short = path[self._cut :]
        if is_folder:
            if included or not ignored:
                self.found.folders.add(short)
            return (f"{path}/", rules, ignored, included) if self._include or not ignored else None
        if ignored and not included:
            return None
        if included:
            self.found.included.add(short)
        if entry.is_symlink():
            self.found.links.add(short)
        elif entry.is_file(follow_symlinks=False):
            try:
                self.found.files[short] = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                return None  # removed meanwhile
            except OSError:  # as with a path that is too long
                self.found.unreadable.add(short)
        else:
            self.found.others.add(short)
        return None


def _ignored(rules: list[Rules], path: bytes, *, folder: bool) -> bool:
    for each in reversed(rules):
        verdict = each.verdict(path, folder=folder)
        if verdict is not None:
            return verdict
    return False


def _runs(patterns: list[tuple[bool, bytes]]) -> _Runs:
    runs = [
        (matched, b"|".join(text for _, text in run))
        for matched, run in groupby(patterns, key=itemgetter(0))
    ]
    return tuple((matched, re.compile(text, re.DOTALL)) for matched, text in reversed(runs))


def _read(path: Path, base: str) -> list[Rules]:
    try:
        text = path.read_bytes()
    except OSError:
        return []
    rules = read_rules(
        (line.removesuffix(b"\r") for line in text.removeprefix(BOM_UTF8).split(b"\n")), base
    )
    return [rules] if rules.of_folders else []


def _work_tree(folder: Path) -> Path | None:
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def _rules_of_repository(top: Path, base: str) -> list[Rules]:
    """Return those of `info/exclude`, also of a second work tree and of a submodule, whose `.git`
    is a file."""
    git = top / ".git"
    try:
        if git.is_file():
            git = top / git.read_text().removeprefix("gitdir:").strip()
        common = git / "commondir"
        if common.is_file():
            git = git / common.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return []
    return _read(git / "info" / "exclude", base)


def _rules_of_user(folder: Path, base: str) -> list[Rules]:
    asked = ["git", "-C", str(folder), "config", "--type=path", "--get", "core.excludesFile"]
    try:
        said = subprocess.run(asked, capture_output=True, check=False).stdout
    except OSError:
        said = b""
    named = os.fsdecode(said.removesuffix(b"\n"))
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return _read(Path(named or f"{home}/git/ignore"), base)
