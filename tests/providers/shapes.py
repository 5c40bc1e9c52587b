"""Checks JSON against what a vendor published: a few kinds of shapes, and what does not fit them.

A shape takes a value and says what is wrong with it, one line for each mistake. Unlike the shapes
that the clients read with, these are strict: a field that is not in the list is a mistake, as is
a number in the place of a text.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Shape = Callable[[Any, str], Iterator[str]]
"""Takes a value and where it is; gives a line for each mistake."""


def unverified(value: Any, where: str) -> Iterator[str]:
    """Fits everything: the vendor publishes no type for this, or it could not be confirmed."""
    return iter(())


def null(value: Any, where: str) -> Iterator[str]:
    if value is not None:
        yield f"{where}: {value!r} is not null"


def boolean(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{where}: {value!r} is no boolean"


def number(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield f"{where}: {value!r} is no number"


def text(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{where}: {value!r} is no text"


def whole(least: int | None = None, most: int | None = None) -> Shape:
    """Return the shape of an integer within bounds, which belong to it."""

    def shape(value: Any, where: str) -> Iterator[str]:
        if isinstance(value, bool) or not isinstance(value, int):
            yield f"{where}: {value!r} is no integer"
        elif (least is not None and value < least) or (most is not None and value > most):
            yield f"{where}: {value} is not from {least} to {most}"

    return shape


def like(pattern: str) -> Shape:
    """Return the shape of a text that matches a regular expression as a whole."""

    def shape(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            yield f"{where}: {value!r} does not match {pattern}"

    return shape


def word(*words: str) -> Shape:
    """Return the shape of one of these texts."""

    def shape(value: Any, where: str) -> Iterator[str]:
        if value not in words:
            yield f"{where}: {value!r} is none of {', '.join(words)}"

    return shape


def either(*shapes: Shape) -> Shape:
    """Return the shape of what fits one of these."""

    def shape(value: Any, where: str) -> Iterator[str]:
        found = [list(each(value, where)) for each in shapes]
        if all(found):
            yield from min(found, key=len)

    return shape


def or_null(shape: Shape) -> Shape:
    return either(shape, null)


def several(item: Shape, least: int = 0, most: int | None = None) -> Shape:
    """Return the shape of an array; `least` and `most` are numbers of items."""

    def shape(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no array"
            return
        items: list[Any] = value
        if len(items) < least or (most is not None and len(items) > most):
            yield f"{where}: {len(items)} items are not from {least} to {most}"
        for place, each in enumerate(items):
            yield from item(each, f"{where}[{place}]")

    return shape


def by_key(key: Shape, item: Shape) -> Shape:
    """Return the shape of an object whose keys are data."""

    def shape(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no object"
            return
        found: dict[str, Any] = value
        for name, each in found.items():
            yield from key(name, f"{where}: the key")
            yield from item(each, f"{where}.{name}")

    return shape


def fields(listed: Mapping[str, Shape]) -> Shape:
    """Return the shape of an object with these fields and no others.

    A name that ends with `?` may be left out.
    """
    known = {name.removesuffix("?"): shape for name, shape in listed.items()}
    required = [name for name in listed if not name.endswith("?")]

    def shape(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no object"
            return
        found: dict[str, Any] = value
        for name in required:
            if name not in found:
                yield f"{where}.{name}: is missing"
        for name, each in found.items():
            if name in known:
                yield from known[name](each, f"{where}.{name}")
            else:
                yield f"{where}.{name}: is no field that is published"

    return shape
