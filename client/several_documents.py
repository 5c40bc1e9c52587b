"""Reading a file of one thing or several: below a name for all, or each a YAML document."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import yaml
from pydantic import BaseModel

from longshore.models.document import load_document, read_document, read_stdin, text_of
from longshore.models.errors import SpecError
from longshore.models.plain_yaml import parse_yaml

_BEGINS = re.compile(r"---(\s.*)?", re.DOTALL)
"""A line that begins a document. What is read so has no text of several lines in which it could
be."""

One = TypeVar("One", bound=BaseModel)
Many = TypeVar("Many", bound=BaseModel)


@dataclass(frozen=True)
class Several(Generic[One, Many]):
    """What a file holds."""

    one: type[One]
    many: type[Many]
    list: str
    """The field of `many` that has several of `one`."""
    key: str
    """The field of `one` that is its name: no two in a file have the same."""
    each_of: Callable[[Many], tuple[One, ...]]
    already: str
    """Behind a name that is there twice, such as ``has a budget in this file already``."""

    def read(self, file: str) -> tuple[One, ...]:
        """Return what is in a file, or on stdin for ``-``.

        Raises SpecError with every mistake at once.
        """
        source = "stdin" if file == "-" else file
        text = read_stdin() if file == "-" else text_of(file)
        if text is None:  # whoever reads it says why it cannot be read
            return (read_document(file, self.one),)
        documents = list(_documents(text))
        if len(documents) < 2:
            return self._in(text, source)
        found: list[tuple[int, One]] = []
        problems: list[str] = []
        for line, document in documents:
            try:
                found += [(line, each) for each in self._in(document, source)]
            except SpecError as error:
                problems += error.problems
        names = [getattr(each, self.key) for _, each in found]
        problems += [
            f"{source}:{line}: {self.key}: {names[number]} {self.already}"
            for number, (line, _) in enumerate(found)
            if names[number] in names[:number]
        ]
        if problems:
            raise SpecError(source, tuple(problems))
        return tuple(each for _, each in found)

    def _in(self, text: str, source: str) -> tuple[One, ...]:
        if _has(text, self.list):
            return self.each_of(load_document(text, source, self.many))
        return (load_document(text, source, self.one),)


def _documents(text: str) -> Iterator[tuple[int, str]]:
    """Return each document that holds anything with its first line, after as many empty lines as
    come before it: what is said of it names its line in the file."""
    first, lines = 0, text.splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if _BEGINS.fullmatch(line)]
    for end in (*begins, len(lines)):
        part = lines[first:end]
        filled = (line.partition("#")[0].removeprefix("---").strip() for line in part)
        if any(filled):
            yield first + 1, "\n" * first + "".join(part)
        first = end


def _has(text: str, field: str) -> bool:
    """Return whether a document has a field; none that cannot be read has one."""
    try:
        root = parse_yaml(text.replace("\t", " "))
    except (yaml.YAMLError, RecursionError):
        return False
    return root is not None and isinstance(root.value, dict) and field in root.value
