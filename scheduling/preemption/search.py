"""Which jobs to stop so that another fits: the set that loses least.

Among few jobs every set that could be best is looked at (branch and bound). Among many, jobs are
taken cheapest first until it fits, what turns out unnecessary is left out, and the best dozen is
searched in full.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from longshore.scheduling.preemption.candidates import Candidate
from longshore.scheduling.preemption.what_if import NOBODY, Out

EXACT = 12
"""Among so many candidates every set is considered."""

_MANY = 64
"""So many are taken in one order at least: more than may be stopped."""

Fits = Callable[[Out], bool]
"""Whether the job fits without these jobs. More room never hurts."""
Key = tuple[int, int, tuple[float, ...], tuple[str, ...]]


@dataclass
class Best:
    """The best set so far, over all places that are searched."""

    most: int
    """Jobs that may be stopped."""
    chosen: tuple[Candidate, ...] = ()
    key: Key | None = None

    def offer(self, chosen: Sequence[Candidate]) -> None:
        """Keep this set if it is better: cheaper, then smaller, then newer work."""
        key = _key(chosen)
        if len(chosen) <= self.most and (self.key is None or key < self.key):
            self.chosen, self.key = tuple(chosen), key

    def beats(self, cost: float, count: int) -> bool:
        """Return whether no set of at least this cost and size can be better."""
        return self.key is not None and (cost, count) > self.key[:2]


def search(candidates: Iterable[Candidate], fits: Fits, best: Best, missing: int = 0) -> None:
    """Offer to `best` the cheapest set of candidates without which the job fits.

    It does not before `missing` GPUs are freed.
    """
    ordered = sorted(candidates, key=_order)
    if not ordered or best.beats(ordered[0].cost, 1):
        return None
    asked = _Asked(fits)
    if not asked(ordered):
        return None
    if len(ordered) <= EXACT:
        return _Exact(ordered, asked, best, missing).visit(0, (), 0, 0)
    found: list[Candidate] = []
    for order in _orders(ordered):
        first = order[: max(_MANY, 4 * best.most)]
        if not asked(first):
            continue
        enough = _necessary(_first_that_fit(first, asked), asked)
        best.offer(enough)
        if not found or _key(enough) < _key(found):
            found = enough
    names = {one.id for one in found}
    promising = [*found, *(one for one in next(_orders(ordered)) if one.id not in names)]
    return _Exact(sorted(promising[:EXACT], key=_order), asked, best, missing).visit(0, (), 0, 0)


@dataclass
class _Asked:
    """Answers that are remembered."""

    fits: Fits
    answers: dict[Out, bool] = field(default_factory=dict[Out, bool])

    def __call__(self, jobs: Iterable[Candidate]) -> bool:
        out = frozenset(job.id for job in jobs) or NOBODY
        if out not in self.answers:
            self.answers[out] = self.fits(out)
        return self.answers[out]


class _Exact:
    """Branch and bound over candidates that are sorted by cost."""

    def __init__(
        self, candidates: Sequence[Candidate], fits: _Asked, best: Best, missing: int
    ) -> None:
        self._candidates = candidates
        self._fits = fits
        self._best = best
        self._missing = missing
        # Of each position and those behind it: what a GPU costs at least, and how many they free.
        self._cheapest, self._frees = [math.inf], [0]
        for one in reversed(candidates):
            self._cheapest.append(min(self._cheapest[-1], one.cost / one.frees))
            self._frees.append(self._frees[-1] + one.frees)
        self._cheapest.reverse()
        self._frees.reverse()

    def visit(self, position: int, chosen: tuple[Candidate, ...], cost: int, freed: int) -> None:
        """Look at all sets that begin with `chosen` and go on from `position`."""
        if self._best.beats(cost, len(chosen)):
            return
        missing = self._missing - freed
        if missing <= 0 and self._fits(chosen):
            self._best.offer(chosen)  # more would only cost more
            return
        rest = self._candidates[position:]
        if not rest or len(chosen) == self._best.most or self._frees[position] < missing:
            return
        more = rest[0].cost
        if missing > 0:
            more = max(more, math.ceil(missing * self._cheapest[position] - 1e-6))
        if self._best.beats(cost + more, len(chosen) + 1) or not self._fits((*chosen, *rest)):
            return
        first = rest[0]
        self.visit(position + 1, (*chosen, first), cost + first.cost, freed + first.frees)
        self.visit(position + 1, chosen, cost, freed)


def _first_that_fit(ordered: Sequence[Candidate], fits: _Asked) -> list[Candidate]:
    """Return the shortest beginning that suffices; all together do."""
    low, high = 1, len(ordered)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(ordered[:middle]) else (middle + 1, high)
    return list(ordered[:low])


def _necessary(chosen: list[Candidate], fits: _Asked) -> list[Candidate]:
    """Leave out, dearest first, what is not needed."""
    for job in sorted(chosen, key=_order, reverse=True):
        fewer = [other for other in chosen if other.id != job.id]
        if fits(fewer):
            chosen = fewer
    return chosen


def _orders(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Yield orders to take jobs in: cheapest for a GPU, cheapest, and largest first."""
    yield sorted(candidates, key=lambda job: (job.cost / max(job.gpus, 1e-9), *_order(job)))
    yield sorted(candidates, key=_order)
    yield sorted(candidates, key=lambda job: (-job.gpus, *_order(job)))


def _order(job: Candidate) -> tuple[int, float, str]:
    return job.cost, -job.submitted, job.id


def _key(chosen: Sequence[Candidate]) -> Key:
    newest_first = tuple(sorted(-job.submitted for job in chosen))
    names = tuple(sorted(job.id for job in chosen))
    return sum(job.cost for job in chosen), len(chosen), newest_first, names
