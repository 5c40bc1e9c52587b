"""YAML as plain data with line numbers: what a document needs, and none of YAML's surprises."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias, cast

import yaml

from longshore.models.visible import name_of_place

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_MOST_DIGITS = 300
_HALF = re.compile("[\ud800-\udfff]")

_DEEPEST = 100
_NO_LINES: Final[Mapping[str, int]] = MappingProxyType({})

Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Located:
    """One value of a document and the line where it stands (from 1)."""

    value: "dict[str, Located] | list[Located] | Scalar"
    line: int
    key_lines: Mapping[str, int] = field(default_factory=lambda: _NO_LINES)
    twice: Sequence[tuple[int, str]] = ()
    """Keys of this mapping that stand in it already, with the line of the second."""
    given_by: str = ""
    """What put this value over the document's own, such as ``--set gpus=4``."""

    def plain(self) -> Any:
        """Return the value as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: inner.plain() for key, inner in self.value.items()}
        if isinstance(self.value, list):
            return [inner.plain() for inner in self.value]
        return self.value

    def follow(self, location: tuple[str | int, ...]) -> "tuple[tuple[str | int, ...], Located]":
        """Return how far a validation error's location leads into the document, and to what.

        Parts that are not in the document (names of union branches, missing fields) are left out.
        """
        here = self
        path: list[str | int] = []
        for part in location:
            inner = here._inner(part)
            if inner is not None:
                here = inner
                path.append(part)
        return tuple(path), here

    def repeats(self, path: str = "") -> Iterator[tuple[int, str]]:
        """Yield line and dotted name of every key that stands twice in its mapping."""
        yield from ((line, f"{path}{name_of_place(key)}") for line, key in self.twice)
        if isinstance(self.value, dict):
            for key, inner in self.value.items():
                yield from inner.repeats(f"{path}{name_of_place(key)}.")
        elif isinstance(self.value, list):
            for position, inner in enumerate(self.value):
                yield from inner.repeats(f"{path.rstrip('.')}[{position}].")

    def _inner(self, part: str | int) -> "Located | None":
        if isinstance(self.value, dict):
            inner = self.value.get(str(part))
            if inner is None:
                return None
            line = self.key_lines.get(str(part), inner.line)
            return Located(
                inner.value, line, inner.key_lines, given_by=inner.given_by or self.given_by
            )
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            found = self.value[part]
            return replace(found, given_by=found.given_by or self.given_by)
        return None


def parse_yaml(text: str) -> Located | None:
    """Return the one document in `text`, or None when there is none.

    Raises yaml.YAMLError with a mark where the text is not YAML, or uses what is refused here, and
    RecursionError where it is nested too deeply.
    """
    if yaml.__with_libyaml__:
        try:
            return _document(yaml.CSafeLoader(text))
        except (yaml.YAMLError, UnicodeEncodeError):
            pass  # what it says of a mistake is less clear: the parser in Python has the word
    return _document(yaml.SafeLoader(text))


_Parser: TypeAlias = "yaml.SafeLoader | yaml.CSafeLoader"
"""Of these loaders the parser alone is used: their nodes and values take as long again. PyYAML
without libyaml has only the first."""


def _document(parser: _Parser) -> Located | None:
    try:
        _next(parser)  # the stream begins
        if isinstance(_next(parser), yaml.StreamEndEvent):
            return None
        root = _value(parser, _next(parser), {}, _DEEPEST)
        _next(parser)  # the document ends
        after = _next(parser)
        if not isinstance(after, yaml.StreamEndEvent):
            _refuse(after, "another document begins")
        return root
    finally:
        parser.dispose()


def _next(parser: _Parser) -> yaml.Event:
    return cast(yaml.Event, parser.get_event())  # pyright: ignore[reportUnknownMemberType]


def _value(parser: _Parser, event: yaml.Event, names: dict[str, str], deeper: int) -> Located:
    """Return the value that begins with `event`. `names` are those of the document so far: most
    stand in it many times."""
    _refuse_reference(event)
    if not deeper:
        raise RecursionError
    line = cast(yaml.Mark, event.start_mark).line + 1
    if isinstance(event, yaml.ScalarEvent):
        return Located(_scalar(event), line)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Located] = []
        while not isinstance(event := _next(parser), yaml.SequenceEndEvent):
            items.append(_value(parser, event, names, deeper - 1))
        return Located(items, line)
    result: dict[str, Located] = {}
    lines: dict[str, int] = {}
    twice: list[tuple[int, str]] = []
    while not isinstance(event := _next(parser), yaml.MappingEndEvent):
        key = _name(event)
        key = names.setdefault(key, key)
        key_line = cast(yaml.Mark, event.start_mark).line + 1
        inner = _value(parser, _next(parser), names, deeper - 1)
        if key in result:
            twice.append((key_line, key))
            continue
        result[key] = inner
        lines[key] = key_line
    return Located(result, line, lines, twice)


def _name(event: yaml.Event) -> str:
    _refuse_reference(event)
    if not isinstance(event, yaml.ScalarEvent):
        _refuse(event, "a name before a colon must be text, not a list or a mapping")
    return _joined(event.value)


def _refuse_reference(event: yaml.Event) -> None:
    if isinstance(event, yaml.AliasEvent):
        _refuse(event, "aliases (*name) are not used here; write the value again")
    if getattr(event, "tag", None) not in (None, "!"):
        _refuse(event, "tags (!name) are not used here; leave it out")


def _scalar(event: yaml.ScalarEvent) -> Scalar:
    text = event.value
    if event.style:  # quoted, or a block of text
        return _joined(text)
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MOST_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text, 0 if text.startswith(("0o", "0x")) else 10)
    if _FLOAT.fullmatch(text):
        return float(text.replace(".", "", 1) if text[-1] in "fFnN" else text)
    return text


def _joined(text: str) -> str:
    """Return the text with the two halves of a character, as JSON escapes it, made one."""
    if not _HALF.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _refuse(where: yaml.Event, problem: str) -> NoReturn:
    mark = cast(yaml.Mark, where.start_mark)
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
