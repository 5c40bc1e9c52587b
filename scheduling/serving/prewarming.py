"""In which order engines that nobody asks fill free memory: those of a model that has the fewest
copies first. Pure."""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def copies_before(there: Mapping[Key, int], wanted: Iterable[Key]) -> list[int]:
    """Return for each engine that is wanted, by what it serves, how many copies there are before
    it: those that are `there`, and of the wanted ones the earlier. The one with the fewest comes
    first."""
    copies = dict(there)
    before: list[int] = []
    for key in wanted:
        before.append(copies.get(key, 0))
        copies[key] = before[-1] + 1
    return before
