"""What a tenant that has had more than its soft quota of hours is worth in the queue.

Source: the seed on the knapsack algorithm and its public documents (a penalty on the score, no
wall): full up to four fifths of the quota, a twentieth from six fifths on, a cosine in between.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

LEAST = 0.05
FULL_UP_TO, LEAST_FROM = 0.8, 1.2


class Hours(NamedTuple):
    """GPU-hours and node-hours: what a tenant has had, or its quota of them."""

    gpus: float = 0.0
    nodes: float = 0.0
    """Of a quota 0 where there is none."""

    def with_more(self, other: "Hours") -> "Hours":
        return Hours(self.gpus + other.gpus, self.nodes + other.nodes)

    def used_of(self, quota: "Hours") -> float:
        """Return which part of a quota this is: the larger one, of GPU- and of node-hours."""
        parts = (had / most for had, most in zip(self, quota, strict=True) if most)
        return max(parts, default=0.0)


def penalty(used: float) -> float:
    """Return by what a tenant's jobs count in the queue that has `used` this part of its quota."""
    if used <= FULL_UP_TO:
        return 1.0
    if used >= LEAST_FROM:
        return LEAST
    way = (used - FULL_UP_TO) / (LEAST_FROM - FULL_UP_TO)
    return LEAST + (1 - LEAST) * (1 + math.cos(math.pi * way)) / 2


def factors(
    parents: Mapping[str, str | None], quotas: Mapping[str, Hours], hours: Mapping[str, Hours]
) -> dict[str, float]:
    """Return by what the jobs of each tenant count, of those that count less: the least of its own
    and of those above it.

    `quotas` are for a tenant and those below it; `hours` are what each tenant has had itself.
    """
    above = {name: _above(name, parents) for name in {*parents, *hours}}
    used = with_below(quotas, parents, hours)
    of_quota = {name: penalty(used[name].used_of(quota)) for name, quota in quotas.items()}
    found = {
        name: min((of_quota[each] for each in line if each in of_quota), default=1.0)
        for name, line in above.items()
    }
    return {name: factor for name, factor in found.items() if factor < 1}


def with_below(
    names: Iterable[str], parents: Mapping[str, str | None], hours: Mapping[str, Hours]
) -> dict[str, Hours]:
    """Return what each of these tenants has had, with those below it."""
    used = dict.fromkeys(names, Hours())
    for name, had in hours.items():
        for each in _above(name, parents):
            if each in used:
                used[each] = used[each].with_more(had)
    return used


def _above(name: str, parents: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return a tenant and those above it."""
    line: list[str] = []
    at: str | None = name
    while at is not None and at not in line:
        line.append(at)
        at = parents.get(at)
    return tuple(line)
