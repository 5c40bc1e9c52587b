"""Mistakes that lie between the fields of a model, each at the field where it is to be mended."""

from collections.abc import Sequence
from typing import NamedTuple

from longshore.models.visible import name_of_place

Place = tuple[str | int, ...]
"""Names of fields, keys of mappings and positions in lists, from the outside inwards."""


def in_words(place: Place) -> str:
    """Return ``nodes[4].used``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{name_of_place(part)}" for part in place)
    return "".join(parts).removeprefix(".")


class Mistake(NamedTuple):
    """What is wrong with a field, by other fields of the model."""

    place: Place
    """The field, from the model inwards; empty where it is none."""
    message: str
    others: tuple[Place, ...] = ()
    """The other fields that it speaks of: where one of them cannot be read, it may be wrong."""

    def __str__(self) -> str:
        return f"{in_words(self.place)}: {self.message}" if self.place else self.message

    @property
    def fields(self) -> tuple[Place, ...]:
        """All fields that it speaks of."""
        return (*([self.place] if self.place else []), *self.others)


class Mistakes(ValueError):
    """All that is wrong between the fields of a model: for its validator to raise, where
    pydantic's own errors have one place and one sentence."""

    def __init__(self, found: Sequence[Mistake]) -> None:
        self.found = tuple(found)
        super().__init__("; ".join(map(str, found)))


def refuse(found: Sequence[Mistake]) -> None:
    """Raise Mistakes where there are any."""
    if found:
        raise Mistakes(found)
