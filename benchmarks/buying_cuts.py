"""Inequalities that every plan in whole machines keeps, and that a relaxed one may not.

At a step, let the jobs of a set want ``D`` GPUs together, on machines of their size at least. Then
``sum(size * machines) + sum(gpus of those that do not run) >= D``, and all counts are whole.
Rounded by ``d``, where ``r = D mod d`` is left over (mixed-integer rounding; Wolsey, *Integer
Programming*, 8.7):

    sum(f(size) * machines) + sum(f(gpus) * not running) >= r * ceil(D / d)
    f(n) = r * (n // d) + min(n mod d, r)

So a job of 1 GPU needs a whole machine of 8 where there is no smaller one, and not an eighth.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.buying_world import SIZES

_LEAST = 0.01
"""An inequality that is broken by less, for its right side, is not worth a row."""

Floats = NDArray[np.float64]
Terms = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Work:
    """One job of a program, and by step the columns of the starts with which it runs then."""

    gpus: int
    running: Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Cut:
    """``terms >= least`` in every plan."""

    terms: tuple[tuple[int, float], ...]
    least: float


def broken(works: Iterable[Work], up: Mapping[tuple[int, int], Terms], found: Floats) -> list[Cut]:
    """Return inequalities that a relaxed solution breaks; `up` are GPUs by size and step."""
    at: dict[int, list[Work]] = {}
    for work in works:
        for step in work.running:
            at.setdefault(step, []).append(work)
    return [
        cut
        for step, there in at.items()
        for size in SIZES
        if (cut := _most_broken(there, size, up, step, found)) is not None
    ]


def _most_broken(
    works: Sequence[Work],
    size: int,
    up: Mapping[tuple[int, int], Terms],
    step: int,
    found: Floats,
) -> Cut | None:
    """Return the worst for jobs of a size and more: of the sets of those that run the most."""
    shares = [
        (float(sum(found[column] for column in work.running[step])), work)
        for work in works
        if work.gpus >= size
    ]
    shares.sort(key=lambda pair: (-pair[0], -pair[1].gpus))
    counts = {
        kind: sum(value * found[column] for column, value in up.get((kind, step), ())) / kind
        for kind in SIZES
        if kind >= size
    }
    worst, least_slack = None, -_LEAST
    wanted, idle = 0, list[tuple[float, int]]()
    for number, (share, work) in enumerate(shares, 1):
        if share <= 1e-6:
            break
        wanted += work.gpus
        idle.append((1 - share, work.gpus))
        for divisor in SIZES[1:]:
            rest = wanted % divisor
            if not rest:
                continue
            right = rest * -(-wanted // divisor)
            left = sum(_rounded(kind, divisor, rest) * n for kind, n in counts.items())
            left += sum(_rounded(gpus, divisor, rest) * part for part, gpus in idle)
            if (slack := left / right - 1) < least_slack:
                worst, least_slack = (number, divisor, rest, right), slack
    if worst is None:
        return None
    number, divisor, rest, right = worst
    chosen = [work for _, work in shares[:number]]
    terms = list(_terms(chosen, size, up, step, divisor, rest))
    constant = sum(_rounded(work.gpus, divisor, rest) for work in chosen)
    return Cut(tuple(terms), float(right - constant))


def _terms(
    works: Iterable[Work],
    size: int,
    up: Mapping[tuple[int, int], Terms],
    step: int,
    divisor: int,
    rest: int,
) -> Iterator[tuple[int, float]]:
    for kind in SIZES:
        if kind >= size:
            weight = _rounded(kind, divisor, rest) / kind
            yield from ((column, weight * value) for column, value in up.get((kind, step), ()))
    for work in works:
        weight = float(_rounded(work.gpus, divisor, rest))
        yield from ((column, -weight) for column in work.running[step])


def _rounded(gpus: int, divisor: int, rest: int) -> int:
    return rest * (gpus // divisor) + min(gpus % divisor, rest)
