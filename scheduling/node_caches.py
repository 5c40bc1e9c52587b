"""Which of what a node has cached goes, so that its disk does not fill."""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_KEPT_FREE = 0.25
"""Part of a disk that is kept free at most: of a small one the bytes alone would be all."""


@dataclass(frozen=True)
class CacheLimits:
    """When caches are evicted, and how far."""

    evict_at: float = 0.9
    """Part of the disk in use above which they are."""
    evict_to: float = 0.7
    """Part of the disk in use down to which they are."""
    keep_free: float = 50e9
    """Bytes that stay free besides; of a small disk a quarter."""


@dataclass(frozen=True)
class Disk:
    """The disk that holds the caches, in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class Cached:
    """Something that was fetched or built, and can be again."""

    key: str
    bytes: int
    used_at: float
    """Seconds since the epoch."""
    in_use: bool = False


@dataclass(frozen=True)
class Eviction:
    """What goes, and why; nothing and no reason where there is room."""

    keys: tuple[str, ...] = ()
    bytes: int = 0
    reason: str = ""

    def among(self, cached: Sequence[Cached]) -> list[str]:
        """Return the keys of those of these that go."""
        gone = set(self.keys)
        return [entry.key for entry in cached if entry.key in gone]


def is_too_full(disk: Disk, limits: CacheLimits) -> bool:
    """Return whether caches on this disk are to be evicted."""
    return disk.free < _kept_free(disk, limits) or _used(disk) > limits.evict_at


def evict(disk: Disk, limits: CacheLimits, cached: Sequence[Cached]) -> Eviction:
    """Return what goes: the least recently used first, and never what is in use."""
    if not is_too_full(disk, limits):
        return Eviction()
    wanted = max((1 - limits.evict_to) * disk.total, _kept_free(disk, limits)) - disk.free
    keys, freed = list[str](), 0
    for entry in sorted(cached, key=lambda entry: (entry.used_at, entry.key)):
        if freed >= wanted:
            break
        if not entry.in_use:
            keys.append(entry.key)
            freed += entry.bytes
    reason = (
        f"{_used(disk):.0%} of the disk are in use, {disk.free / 1e9:.1f} GB are free; "
        f"{limits.evict_at:.0%}, or less than {_kept_free(disk, limits) / 1e9:.1f} GB, is too full"
    )
    return Eviction(tuple(keys), freed, reason)


def _used(disk: Disk) -> float:
    return 1 - disk.free / disk.total if disk.total else 0.0


def _kept_free(disk: Disk, limits: CacheLimits) -> float:
    return min(limits.keep_free, MOST_KEPT_FREE * disk.total)
