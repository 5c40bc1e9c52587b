"""What links among the files of a data set lead to."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import chain, islice, takewhile
from typing import TypeVar

from longshore.activities.storage import SourceError

MOST_FILES = 2_000_000
"""Of a data set."""
_MOST_LINKS = 16
"""That are followed one after the other; more are a circle."""

T = TypeVar("T")


def with_linked(files: Mapping[str, T], links: Mapping[str, str]) -> dict[str, T]:
    """Return files by path, also those that links to files and folders among them lead to.

    `links` says where each leads, seen from where the paths begin; one to nothing there is left
    out, and so is what is seen over one link twice. Raises SourceError where all are too
    many.
    """
    found = dict(files)
    by: dict[str, frozenset[str]] = {}
    """Over which links each is there that is no file of its own: over none twice."""
    for _ in range(_MOST_LINKS):  # what a link leads to may lie behind another
        there = sorted(found)
        before = len(there)
        for link in links:
            end = _followed(link, links)
            first = bisect_left(there, f"{end}/")
            below = takewhile(lambda path, end=end: path.startswith(f"{end}/"),
                              islice(there, first, None))  # fmt: skip
            for path in chain([end] if end in found else [], below):
                over = by.get(path, frozenset())
                new = link + path.removeprefix(end)
                if new not in found and link not in over and not path.startswith(f"{link}/"):
                    found[new], by[new] = found[path], over | {link}
            if len(found) > MOST_FILES:
                many = f"its links lead to over {MOST_FILES:,} files: store them packed"
                raise SourceError(many)
        if len(found) == before:
            break
    return found


def _followed(path: str, links: Mapping[str, str]) -> str:
    """Return where a link leads in the end, over others; a link where they go in a circle."""
    for _ in range(_MOST_LINKS):
        if path not in links:
            break
        path = links[path]
    return path
