"""YAML as plain data with line numbers: what a document needs, and none of YAML's surprises."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

import yaml

from longshore.models.visible import name_of_place

_STR = "tag:yaml.org,2002:str"
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

Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Located:
    """One value of a document and the line where it stands (from 1)."""

    value: "dict[str, Located] | list[Located] | Scalar"
    line: int
    key_lines: dict[str, int] = field(default_factory=dict[str, int])
    twice: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
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

    Raises yaml.YAMLError with a mark where the text is not YAML, or uses what is refused here.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _located(node)
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Composes nodes, and leaves it to `_scalar` to say what a plain scalar means."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - that is how PyYAML is told

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = cast(yaml.NodeEvent, self.peek_event())  # pyright: ignore[reportUnknownMemberType]
        if isinstance(event, yaml.AliasEvent):
            _refuse(event, "aliases (*name) are not used here; write the value again")
        if getattr(event, "tag", None) not in (None, "!"):
            _refuse(event, "tags (!name) are not used here; leave it out")
        return super().compose_node(parent, index)


def _located(node: yaml.Node) -> Located:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        return Located(_scalar(node), line)
    if isinstance(node, yaml.SequenceNode):
        return Located([_located(inner) for inner in cast(list[yaml.Node], node.value)], line)
    result: dict[str, Located] = {}
    here = Located(result, line)
    for key_node, inner in cast(list[tuple[yaml.Node, yaml.Node]], node.value):
        if not isinstance(key_node, yaml.ScalarNode):
            _refuse(key_node, "a name before a colon must be text, not a list or a mapping")
        key, key_line = _joined(cast(str, key_node.value)), key_node.start_mark.line + 1
        if key in result:
            here.twice.append((key_line, key))
            continue
        result[key] = _located(inner)
        here.key_lines[key] = key_line
    return here


def _scalar(node: yaml.ScalarNode) -> Scalar:
    text = cast(str, node.value)
    if node.style is not None:  # quoted, or a block of text
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


def _refuse(where: yaml.Node | yaml.Event, problem: str) -> NoReturn:
    mark = cast(yaml.Mark, where.start_mark)
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
