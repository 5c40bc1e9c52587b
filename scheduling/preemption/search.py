"""Which jobs to stop so that another fits: the set that loses least.

Among few jobs every set that could be best is looked at (branch and bound). Among many, jobs are
taken cheapest first until it fits, what turns out unnecessary is left out, and the best dozen is
searched in full.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scheduling.preemption.costs import Candidate
from scheduling.preemption.ground import NOBODY, Out

EXACT = 12
"""Among so many candidates every set is considered."""

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

    def beats(self, cost: int, count: int) -> bool:
        """Return whether no set of at least this cost and size can be better."""
        return self.key is not None and (cost, count) > self.key[:2]


def search(candidates: Iterable[Candidate], fits: Fits, best: Best) -> None:
    """Offer to `best` the cheapest set of candidates without which the job fits."""
    ordered = sorted(candidates, key=_order)
    if not ordered or best.beats(ordered[0].cost, 1):
        return None
    asked = _Asked(fits)
    if not asked(ordered):
        return None
    if len(ordered) <= EXACT:
        return _Exact(ordered, asked, best).visit(0, (), 0)
    found: list[Candidate] = []
    for order in _orders(ordered):
        enough = _necessary(_first_that_fit(order, asked), asked)
        best.offer(enough)
        if not found or _key(enough) < _key(found):
            found = enough
    promising = [*found, *(job for job in next(_orders(ordered)) if job not in found)]
    return _Exact(sorted(promising[:EXACT], key=_order), asked, best).visit(0, (), 0)


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


@dataclass
class _Exact:
    """Branch and bound over candidates that are sorted by cost."""

    candidates: Sequence[Candidate]
    fits: _Asked
    best: Best

    def visit(self, position: int, chosen: tuple[Candidate, ...], cost: int) -> None:
        """Look at all sets that begin with `chosen` and go on from `position`."""
        if self.best.beats(cost, len(chosen)):
            return
        if self.fits(chosen):
            self.best.offer(chosen)  # more would only cost more
            return
        rest = self.candidates[position:]
        if not rest or len(chosen) == self.best.most:
            return
        if self.best.beats(cost + rest[0].cost, len(chosen) + 1) or not self.fits(
            (*chosen, *rest)
        ):
            return
        self.visit(position + 1, (*chosen, rest[0]), cost + rest[0].cost)
        self.visit(position + 1, chosen, cost)


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
    yield sorted(candidates, key=lambda job: (job.cost / max(job.work.gpus, 1e-9), *_order(job)))
    yield sorted(candidates, key=_order)
    yield sorted(candidates, key=lambda job: (-job.work.gpus, *_order(job)))


def _order(job: Candidate) -> tuple[int, float, str]:
    return job.cost, -job.submitted, job.id


def _key(chosen: Sequence[Candidate]) -> Key:
    newest_first = tuple(sorted(-job.submitted for job in chosen))
    names = tuple(sorted(job.id for job in chosen))
    return sum(job.cost for job in chosen), len(chosen), newest_first, names
