"""A line of an ignore file as a regular expression.

pathspec translates all but what stands in brackets: there it lets through what is no expression of
Python, as `[z-a]`, knows no `[:alpha:]`, and lets a bracket match a slash.
"""

import re

from pathspec.patterns.gitignore.base import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_ENDS = (("(?:(?P<ps_d>/)|$)", False), ("(?P<ps_d>/)", True))
"""Ends of pathspec's expressions that also match what lies below a folder that a pattern names,
and whether it has to be a folder. Here folders are tried themselves: an expression ends with the
name."""
_MARK = "\ud800"
"""Stands for a bracket while pathspec translates the rest: no file has it, and no line."""
_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": r"\ \t", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": r"\x21-\x7e", "lower": "a-z", "print": r"\x20-\x7e",
    "punct": r"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e", "space": r"\ \t\n\r", "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}  # fmt: skip
_CLASS = re.compile(r"\[:([^\]]*):\]")


class _NoPatternError(ValueError):
    """A bracket that Git cannot read: the pattern matches nothing."""


def as_expression(line: str) -> tuple[bool, str, bool] | None:
    """Return whether a pattern is one without `!`, an expression to match from the base on, and
    whether it is of folders alone. None of a comment, and of what Git cannot read."""
    try:
        line, brackets = _without_brackets(line)
        text, matched = GitIgnoreSpecPattern.pattern_to_regex(line)
    except (GitIgnorePatternError, _NoPatternError):
        return None
    if text is None or matched is None:
        return None
    of_folders = False
    for end, of_folder in _ENDS:
        if text.endswith(end):
            text, of_folders = text.removesuffix(end) + r"\Z", of_folder
            break
    in_order = iter(brackets)
    text = re.sub(_MARK, lambda _: next(in_order, _MARK), text)
    # Without `^` it is one of pathspec's short forms, which match anywhere.
    return matched, text[1:] if text.startswith("^") else f".*{text}", of_folders


def _without_brackets(line: str) -> tuple[str, list[str]]:
    """Return a line with a mark in the place of each bracket, and their expressions."""
    rest = ""
    brackets: list[str] = []
    at = 0
    while at < len(line):
        if line[at] == "[":
            found, at = _bracket(line, at + 1)
            brackets.append(found)
            rest += _MARK
            continue
        step = 2 if line[at] == "\\" else 1
        rest += line[at : at + step]
        at += step
    return rest, brackets


def _bracket(line: str, at: int) -> tuple[str, int]:
    """Return the expression of a bracket, and where what follows it begins: by wildmatch.c of Git.

    Raises _NoPatternError where it does not end, or names a class that there is not.
    """
    negated = line.startswith(("!", "^"), at)
    at += negated
    first = at
    found = ""
    before = ""  # what a range may begin with
    while at == first or line[at : at + 1] != "]":
        if named := _CLASS.match(line, at):
            if named[1] not in _CLASSES:
                raise _NoPatternError(line)
            found += _CLASSES[named[1]]
            before, at = "", named.end()
        elif before and line[at : at + 1] == "-" and line[at + 1 : at + 2] not in ("", "]"):
            last, at = _letter(line, at + 1)
            found += f"{re.escape(before)}-{re.escape(last)}" if before <= last else ""
            before = ""
        else:
            before, at = _letter(line, at)
            found += re.escape(before)
    inner = f"[{'^' if negated else ''}{found}]" if found else "[^/]" if negated else "(?!)"
    return f"(?!/){inner}", at + 1


def _letter(line: str, at: int) -> tuple[str, int]:
    at += line[at : at + 1] == "\\"
    if at >= len(line) or line[at] == "/":  # one with a slash pathspec would read as two names
        raise _NoPatternError(line)
    return line[at], at + 1
