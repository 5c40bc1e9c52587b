"""In which order a node fetches the data sets that jobs want there (seed: data staging)."""

from dataclasses import dataclass
from datetime import datetime

NOW_FIRST = "a job that holds GPUs waits for it"


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


@dataclass(frozen=True)
class Turn:
    """A data set in its place of the order, and why it has that."""

    key: str
    reason: str


def order(wanted: list[Wanted]) -> tuple[Turn, ...]:
    """Return each data set once, the one to fetch first at the front.

    First what keeps GPUs waiting, then by the expected start, whoever starts at an unknown time
    last; of equal starts the smallest, since that lets a job start soonest; then by the share that
    its tenant lacks.
    """
    best: dict[str, Wanted] = {}
    for each in sorted(wanted, key=_place):
        best.setdefault(each.key, each)
    return tuple(Turn(each.key, _reason(each)) for each in sorted(best.values(), key=_place))


def _place(each: Wanted) -> tuple[bool, bool, float, int, float, str]:
    start = each.start.timestamp() if each.start else 0.0
    return (not each.placed, each.start is None, start, each.bytes, -each.deficit, each.key)


def _reason(each: Wanted) -> str:
    if each.placed:
        return NOW_FIRST
    if each.start is None:
        return "nobody knows when its job starts"
    return f"its job is expected to start at {each.start:%H:%M:%S} UTC"
