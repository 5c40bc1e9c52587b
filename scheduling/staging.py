"""In which order a node fetches the data sets that jobs want there (seed: data staging)."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Wanted:
    """A data set that a job wants on a node."""

    key: str
    bytes: int
    """That are still to be fetched."""
    start: datetime | None = None
    """When its job is expected to start; None where nobody knows."""
    placed: bool = False
    """Its job has its GPUs already, and they wait."""
    deficit: float = 0.0
    """By how much its tenant has less than its share."""


def order(wanted: list[Wanted]) -> tuple[str, ...]:
    """Return the key of each data set once, the one to fetch first at the front.

    First what keeps GPUs waiting, then by the expected start, whoever starts at an unknown time
    last; of equal starts the smallest, since that lets a job start soonest; then by the share that
    its tenant lacks.
    """
    return tuple(dict.fromkeys(each.key for each in sorted(wanted, key=_place)))


def _place(each: Wanted) -> tuple[bool, bool, float, int, float, str]:
    start = each.start.timestamp() if each.start else 0.0
    return (not each.placed, each.start is None, start, each.bytes, -each.deficit, each.key)
