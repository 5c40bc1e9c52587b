"""Patterns of what a job gives back: as of .gitignore, seen from its folder."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from longshore.models.git_patterns import as_expression

_MOST_KNOWN = 10_000
_SLASH = ord("/")


@dataclass(frozen=True)
class _Pattern:
    text: str
    takes: bool
    """False of one that takes away: with `!`."""
    expression: re.Pattern[bytes]
    of_folders: bool
    known: dict[bytes, bool] = field(default_factory=dict[bytes, bool])
    """Whether it matches a folder or one above it."""

    def matches(self, path: bytes) -> bool:
        return not self.of_folders and self.expression.match(path) is not None

    def matches_above(self, path: bytes) -> bool:
        """Return whether it matches one of the folders that a path lies in."""
        if (folder := path.rpartition(b"/")[0]) in self.known:
            return self.known[folder]
        if len(self.known) > _MOST_KNOWN:
            self.known.clear()
        found = False
        for at, letter in enumerate(path):
            if letter == _SLASH:
                found = found or self.expression.match(path, 0, at) is not None
                self.known[path[:at]] = found
        return found


class OutputPatterns:
    """The patterns of a job. One that matches no path may be among them: an earlier version took
    it."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._texts = tuple(patterns)
        self._patterns = tuple(filter(None, map(_read, patterns)))
        self._used = set[str]()

    def matches(self, path: str) -> bool:
        """Return whether a file is given back: of the patterns that match its path the last one
        counts, and without one of those that match a folder that it lies in."""
        taken, by_itself, used = False, False, set[str]()
        raw = _as_bytes(path)
        for each in self._patterns:
            named = each.matches(raw)
            if not named and (by_itself or not each.matches_above(raw)):
                continue
            taken, by_itself = each.takes, named
            if each.takes:
                used.add(each.text)
        if taken:
            self._used |= used
        return taken

    @property
    def unused(self) -> tuple[str, ...]:
        """Those that match none of the files that are given back; what begins with ! takes away,
        and has to match nothing."""
        return tuple(
            text for text in self._texts if not text.startswith("!") and text not in self._used
        )


def can_match(text: str) -> bool:
    """Return whether a pattern may match a path: not a comment, nor what Git cannot read, nor what
    no path of a file has, such as `./` or `//`."""
    return _expression(text) is not None


def _read(text: str) -> _Pattern | None:
    if (found := _expression(text)) is None:
        return None
    takes, expression, of_folders = found
    return _Pattern(text, takes, re.compile(expression, re.DOTALL), of_folders)


def _expression(text: str) -> tuple[bool, bytes, bool] | None:
    parts = text.removeprefix("!").removeprefix("/").removesuffix("/").split("/")
    if not {"", "."}.isdisjoint(parts):
        return None
    if text.endswith("/**/") and text.strip("!/*"):
        text = text[:-1]  # to Git folders below another; here it has always been all that is there
    return as_expression(_as_bytes(text))


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
