"""Text of others as it may stand on a screen: nothing in it steers a terminal, or hides.

Jobs, nodes and people write names, reasons and output lines. A terminal obeys the escape sequences
in them, and marks of direction make text read as what it is not.
"""

import unicodedata

_KEPT = "\n\t"
_HIDING = frozenset(
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060"
    "\u2066\u2067\u2068\u2069\ufeff"
)
"""Marks of direction, and characters without width or that end a line."""
_LONGEST_NAME = 200
_LONGEST_VALUE = 100


def visible(text: str) -> str:
    r"""Return the text with such characters written out: ``\x1b``, ``\u202e``."""
    if text.isprintable():  # none of them is
        return text
    return "".join(_written_out(each) if _hides(each) else each for each in text)


def in_one_line(text: str) -> str:
    r"""Return the same with ends of lines written out too: for a cell, and for a single line."""
    return visible(text).replace("\n", "\\n")


def name_of_place(part: str | int) -> str:
    r"""Return a part of the path to a value, with its tabs written out too, and cut where it is
    long: the name of a field, the key of a mapping, which anybody writes, or an index."""
    name = in_one_line(str(part)).replace("\t", "\\t")
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def brief(text: str) -> str:
    """Return a text that a message repeats, cut where it is long, and then with its length:
    ``--set name=xxx… (5,000 characters)``."""
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]}… ({len(text):,} characters)"


def shown(value: object) -> str:
    """Return a value that a message repeats, a text in quotes, cut where it is long."""
    if not isinstance(value, str) or len(value) <= _LONGEST_VALUE:
        return brief(repr(value))
    return f"{value[:_LONGEST_VALUE] + '…'!r} ({len(value):,} characters)"


def _hides(character: str) -> bool:
    if character in _KEPT:
        return False
    return character in _HIDING or unicodedata.category(character) in ("Cc", "Cs")


def _written_out(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
