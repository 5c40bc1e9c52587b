"""Text of others as it may stand on a screen: nothing in it steers a terminal, or hides.

Jobs, nodes and people write names, reasons and output lines. A terminal obeys the escape sequences
in them, and marks of direction make text read as what it is not.
"""

import unicodedata

_KEPT = "\n\t"
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Letters and marks that nothing is drawn for; to Python they are printable."""
_HIDING = _BLANK | frozenset("\u2028\u2029\u2065")
"""What hides by no category of its own: these, and two that end a line."""
_SEEN = frozenset(
    "\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
"""Of the category of marks of direction and characters without width: what joins letters, or keeps
them apart, in words and emoji, and signs around numbers."""
_HIDING_CATEGORIES = ("Cc", "Cf", "Cs")
_TAGS = range(0xE0000, 0xE1000)
"""Characters that nothing is drawn for, also those without a meaning yet; but for the selectors
of variants among them (category Mn)."""
_LONGEST_NAME = 200
_LONGEST_VALUE = 100


def visible(text: str) -> str:
    r"""Return the text with such characters written out: ``\x1b``, ``\u202e``."""
    if text.isprintable() and (text.isascii() or _BLANK.isdisjoint(text)):  # no other one is
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


def said(value: object) -> str:
    """Return a value as a message says that it was given: as in a document, and a list or a
    mapping by its kind."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return brief(str(value)) if isinstance(value, int | float) else shown(value)


def _hides(character: str) -> bool:
    if character in _KEPT or character in _SEEN:
        return False
    category = unicodedata.category(character)
    unused = category == "Cn" and ord(character) in _TAGS
    return character in _HIDING or category in _HIDING_CATEGORIES or unused


def _written_out(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
