"""A line of an ignore file as a regular expression that matches what Git matches.

By `parse_path_pattern` and `match_pathname` in dir.c of Git, and by its wildmatch.c. To these
everything is bytes: `?` and a bracket are one byte, and so a part of a letter such as `ä`.

Others than who matches may have written the pattern and the path, so no expression goes back over
what a star has taken: what is behind a star is found at its first place, which is enough, as the
next star takes all that a later place would have left. A match takes at most the product of both
lengths.
"""

import re
from collections.abc import Iterator

_SPECIAL = re.compile(rb"[*?\[\\]")
_CLASSES = {
    b"alnum": b"a-zA-Z0-9", b"alpha": b"a-zA-Z", b"blank": rb"\ \t", b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": b"0-9", b"graph": rb"\x21-\x7e", b"lower": b"a-z", b"print": rb"\x20-\x7e",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e", b"space": rb"\ \t\n\r", b"upper": b"A-Z",
    b"xdigit": b"0-9a-fA-F",
}  # fmt: skip
_CLASS = re.compile(rb"\[:([^\]]*):\]")
_STAR, _FOLDERS, _ANYTHING = b"*", b"**/", b"**"
"""What stands for any number of letters of a name; of whole folders; of letters and slashes."""
_WIDE = (_FOLDERS, _ANYTHING)
_Piece = tuple[bytes, bytes]
"""A wildcard, or nothing, and the expression of what comes behind it up to the next one."""


class _NoPatternError(ValueError):
    """What Git cannot read: the pattern matches nothing."""


def as_expression(line: bytes) -> tuple[bool, bytes, bool] | None:
    """Return whether a pattern is one without `!`, an expression to match from the base on, and
    whether it is of folders alone. None of a comment, and of what matches nothing."""
    pattern = _without_spaces(line.partition(b"\0")[0])
    if pattern.startswith(b"#"):
        return None
    negated = pattern.startswith(b"!")
    pattern = pattern[negated:]
    of_folders = pattern.endswith(b"/")
    pattern = pattern[: len(pattern) - of_folders]
    is_name = b"/" not in pattern
    pattern = pattern.removeprefix(b"/")
    if not pattern:
        return None
    # What comes before the first wildcard is compared by itself: `a**/b` is `a`, and then `**/b`.
    special = _SPECIAL.search(pattern)
    literal = pattern[: special.start()] if special else pattern
    try:
        pieces = list(_pieces(pattern, len(literal), _FOLDERS if is_name else b""))
    except _NoPatternError:
        return None
    return not negated, _expression(pieces), of_folders


def _without_spaces(line: bytes) -> bytes:
    """Return a line without the spaces at its end, of which none is behind a backslash."""
    shorter = line.rstrip(b" ")
    slashes = len(shorter) - len(shorter.rstrip(b"\\"))
    return line[: len(shorter) + 1] if slashes % 2 else shorter


def _pieces(whole: bytes, literal: int, wildcard: bytes) -> Iterator[_Piece]:
    """Yield the pieces of a pattern that begins with so many letters as they are: the first is
    behind `wildcard`."""
    pattern, found, at = whole[literal:], re.escape(whole[:literal]), 0
    while at < len(pattern):
        letter, at = pattern[at : at + 1], at + 1
        if letter == b"*":
            another, at = _stars(pattern, at - 1)
            if found or another != wildcard:  # of two the second matches what is nothing
                yield wildcard, found
            wildcard, found = another, b""
        elif letter == b"?":
            found += b"[^/]"
        elif letter == b"[":
            bracket, at = _bracket(pattern, at)
            found += bracket
        else:
            if letter == b"\\":
                letter, at = _letter(pattern, at - 1)
            found += re.escape(letter)
    yield wildcard, found


def _expression(pieces: list[_Piece]) -> bytes:
    """Return the expression of a pattern up to the end of a path."""
    groups = list[list[_Piece]]()
    for piece in pieces:
        if not groups or piece[0] in _WIDE:
            groups.append([])
        groups[-1].append(piece)
    *others, last = groups
    return b"".join(b"(?>%b)" % _group(each, last=False) for each in others) + (
        _group(last, last=True) + rb"\Z"
    )


def _group(pieces: list[_Piece], *, last: bool) -> bytes:
    """Return the expression of pieces of which the first alone may be behind a wide wildcard."""
    (wide, found), *behind = pieces
    if wide == _FOLDERS:
        found = (b"(?:.*/)?" if last else b"(?:[^/]*+/)*?") + found
    elif wide == _ANYTHING:
        found = (b".*" if last else b".*?") + found
    elif wide == _STAR:
        behind, found = pieces, b""
    for number, (_, text) in enumerate(behind, start=1):
        is_end = number == len(behind)
        found += b"[^/]*%b" % text if last and is_end else b"(?>[^/]*?%b)" % text
    return found


def _stars(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Return which wildcard one star or more are, and where what follows begins."""
    end = at
    while pattern[end : end + 1] == b"*":
        end += 1
    after = pattern[end : end + 2]
    is_whole = (not at or pattern[at - 1 : at] == b"/") and (
        not after or after.startswith(b"/") or after == rb"\/"
    )
    if end - at < 2 or not is_whole:
        return _STAR, end
    return (_FOLDERS, end + 1) if after.startswith(b"/") else (_ANYTHING, end)


def _bracket(line: bytes, at: int) -> tuple[bytes, int]:
    """Return the expression of a bracket, and where what follows it begins.

    Raises _NoPatternError where it does not end, or names a class that there is not.
    """
    negated = line.startswith((b"!", b"^"), at)
    at += negated
    first = at
    found = b""
    before = b""  # what a range may begin with
    while at == first or line[at : at + 1] != b"]":
        if named := _CLASS.match(line, at):
            if named[1] not in _CLASSES:
                raise _NoPatternError(line)
            found += _CLASSES[named[1]]
            before, at = b"", named.end()
        elif before and line[at : at + 1] == b"-" and line[at + 1 : at + 2] not in (b"", b"]"):
            last, at = _letter(line, at + 1)
            found += re.escape(before) + b"-" + re.escape(last) if before <= last else b""
            before = b""
        else:
            before, at = _letter(line, at)
            found += re.escape(before)
    inner = b"[%b%b]" % (b"^" * negated, found) if found else b"[^/]" if negated else b"(?!)"
    return b"(?!/)" + inner, at + 1


def _letter(line: bytes, at: int) -> tuple[bytes, int]:
    """Return the byte at a place, or the one behind a backslash, and where what follows begins."""
    at += line[at : at + 1] == b"\\"
    if at >= len(line):
        raise _NoPatternError(line)
    return line[at : at + 1], at + 1
