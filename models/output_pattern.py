"""Patterns of what a job gives back: as of .gitignore, seen from its folder."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern


def read_pattern(text: str) -> "GitIgnoreSpecPattern | None":
    """Return a pattern, ready to match paths; None of one that matches no path: a comment, what
    Git cannot read, and what no path of a file has, such as `./` or `//`."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # few commands need it

    parts = text.removeprefix("!").removeprefix("/").removesuffix("/").split("/")
    if not {"", "."}.isdisjoint(parts) or "[:" in text:  # a class of letters is not understood
        return None
    try:
        pattern = GitIgnoreSpecPattern(text)
    except (ValueError, re.error):
        return None
    return None if pattern.include is None else pattern
