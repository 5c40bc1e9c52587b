"""Storage bandwidth and power of nodes in tables: columns where a node limits them."""

from collections.abc import Callable, Iterable
from typing import Protocol

from longshore.models.units import format_gb_per_second, format_watts

NO_LIMIT = "no limit"


class Limited(Protocol):
    """A node with what it limits, and what of that its jobs have."""

    @property
    def storage_bandwidth(self) -> float | None: ...
    @property
    def storage_used(self) -> float: ...
    @property
    def power(self) -> float | None: ...
    @property
    def power_used(self) -> float: ...


Column = tuple[str, Callable[[Limited], str]]


def limit_columns(nodes: Iterable[Limited]) -> list[Column]:
    """Return the columns that say something of these nodes: heading, and the words of a node."""
    nodes = list(nodes)
    columns: list[Column] = []
    if any(node.storage_bandwidth is not None for node in nodes):
        columns.append(("storage", storage_words))
    if any(node.power is not None for node in nodes):
        columns.append(("power", power_words))
    return columns


def storage_words(node: Limited) -> str:
    """Return ``2GB/s of 10GB/s``."""
    return _words(node.storage_used, node.storage_bandwidth, format_gb_per_second)


def power_words(node: Limited) -> str:
    """Return ``1400W of 5600W``."""
    return _words(node.power_used, node.power, format_watts)


def _words(used: float, size: float | None, words: Callable[[float], str]) -> str:
    return NO_LIMIT if size is None else f"{words(used)} of {words(size)}"
