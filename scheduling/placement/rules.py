"""What each rule makes of a node that could take a job: one number, the higher the better.

The filters say which nodes could; a rule only ranks them. Expiry and provider, with the weights of
the pool, count in all rules: in `seed-score` beside use and gaps, in the others on the scale that
each rule has (`keep-room` and `tight`: GPUs; the rest: 0 to 1). Gaps count in `keep-room` too.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from longshore.models.placement import PackingPolicy, PackingRule, ScoreTerm
from longshore.scheduling.placement.columns import Bools, Columns, Floats
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.headroom import idle_milli
from longshore.scheduling.placement.keep_room import EMPTIER, HeadroomKeeper, HeadroomLost
from longshore.scheduling.placement.mix import SLICE_MILLI
from longshore.scheduling.placement.parts import WHOLE, part_of_gpu
from longshore.scheduling.placement.scoring import ends_together, totals
from longshore.scheduling.placement.state import Need

_SMALLEST_PART = 0.001


class Facts(Protocol):
    """What a scan knows of the classes of nodes for one need."""

    need: Need
    columns: Columns
    used: Floats
    gaps: Floats
    links: Floats
    """By class."""
    expiry: Floats
    provider: Floats
    locality: Floats
    """By trait set, before their weights."""

    def chosen_for(self, number: int) -> Chosen | None:
        """Return the GPUs that the job would get on nodes of a class, None where it does not
        fit."""
        ...

    def fits(self, first: int, end: int) -> Bools:
        """Return which of these classes could take the job."""
        ...

    def chosen_of_layout(self, layout: int) -> Chosen:
        """Return the GPUs that the job would get of a layout that fits."""
        ...

    def beside(self) -> Iterable[tuple[int, Chosen]]:
        """Return the classes where reservations decide, with the GPUs that the job would get."""
        ...


class Ranker(Protocol):
    """Ranks the classes of nodes for one need. Values of classes without room mean nothing."""

    @property
    def version(self) -> int:
        """A number that counts up when the values of known classes have changed."""
        ...

    def ask(self, first: int, end: int) -> None:
        """Look at the classes from `first` to before `end`."""
        ...

    def values(self, first: int, end: int) -> Floats:
        """Return the value of each of them, to nine digits."""
        ...

    def parts(self, number: int) -> list[ScoreTerm]:
        """Return what the value of a class is made of, in words."""
        ...


class Rankers:
    """Makes the ranker of each need, by the rule of the policy."""

    def __init__(
        self, policy: PackingPolicy, columns: Columns, keeper: HeadroomKeeper | None
    ) -> None:
        self._policy = policy
        self._columns = columns
        self._keeper = keeper

    def of(self, facts: Facts) -> Ranker:
        match self._policy.rule:
            case PackingRule.SEED_SCORE:
                return _SeedScore(facts, self._policy)
            case PackingRule.BEST_FIT:
                return _BestFit(facts, self._policy)
            case PackingRule.TIGHT:
                return _Tight(facts, self._policy)
            case PackingRule.PACK_TO_EMPTY:
                return _PackToEmpty(facts, self._policy)
            case PackingRule.FGD:
                assert self._keeper is not None
                return _Fragmentation(facts, self._policy, self._keeper)
            case PackingRule.KEEP_ROOM:
                assert self._keeper is not None
                return _KeepRoom(facts, self._policy, self._keeper)


class _Rule:
    """What all rules share: what expiry, provider, data and the ends of jobs add."""

    def __init__(self, facts: Facts, policy: PackingPolicy) -> None:
        self.facts = facts
        self.weights = policy.weights
        weighted = self.weights.expiry * facts.expiry
        self._beside = weighted + self.weights.provider * facts.provider
        self._beside = self._beside + self.weights.locality * facts.locality
        """What expiry, provider and data add, by trait set."""

    @property
    def version(self) -> int:
        return 0

    def ask(self, first: int, end: int) -> None:
        """Nothing to look at in advance."""

    def added(self, first: int, end: int) -> Floats:
        """Return what is added to the rule's own value."""
        beside = self._beside[self.facts.columns.traits[first:end]] + self.apart(first, end)
        return beside + self.weights.links * self.facts.links[first:end]

    def apart(self, first: int, end: int) -> Floats | float:
        """Return what it adds that a node's jobs end about when this one will."""
        if not self.weights.separation:
            return 0.0
        facts = self.facts
        together = ends_together(facts.columns, facts.need.duration, slice(first, end))
        return self.weights.separation * together

    def with_added(self, number: int, parts: list[tuple[str, float]]) -> list[ScoreTerm]:
        """Return parts in words, with all that is added to them."""
        traits = self.facts.columns.classes[number].traits
        expiry = self.weights.expiry * float(self.facts.expiry[traits])
        provider = self.weights.provider * float(self.facts.provider[traits])
        return in_words([*parts, *self.beside_seed(number)], expiry, provider)

    def beside_seed(self, number: int) -> list[tuple[str, float]]:
        """Return what is added beside the terms of the seed's score."""
        traits = self.facts.columns.classes[number].traits
        data = self.weights.locality * float(self.facts.locality[traits])
        apart = float(np.sum(self.apart(number, number + 1)))
        links = self.weights.links * float(self.facts.links[number])
        return [
            ("data on the node", data),
            ("links between its GPUs", links),
            ("ends with the node's jobs", apart),
        ]


class _SeedScore(_Rule):
    def __init__(self, facts: Facts, policy: PackingPolicy) -> None:
        super().__init__(facts, policy)
        self._expiry = self.weights.expiry * facts.expiry
        self._provider = self.weights.provider * facts.provider
        self._locality = self.weights.locality * facts.locality

    def values(self, first: int, end: int) -> Floats:
        facts, new = self.facts, slice(first, end)
        traits = facts.columns.traits[new]
        beside = self._locality[traits] + self.apart(first, end)
        return totals(
            facts.used[new], facts.gaps[new], self._expiry[traits], self._provider[traits],
            self.weights, beside + self.weights.links * facts.links[new],
        )  # fmt: skip

    def parts(self, number: int) -> list[ScoreTerm]:
        return in_words(self.beside_seed(number), 0.0, 0.0)


class _ByGPUs(_Rule, ABC):
    """A rule that looks at a node for itself: at its GPUs, its cores and what the job takes."""

    def values(self, first: int, end: int) -> Floats:
        own = np.array([sum(v for _, v in self.own(number)) for number in range(first, end)])
        return np.rint((own + self.added(first, end)) * 1e9) / 1e9

    def parts(self, number: int) -> list[ScoreTerm]:
        return self.with_added(number, self.own(number))

    @abstractmethod
    def own(self, number: int) -> list[tuple[str, float]]:
        """Return the value of a class, in parts that add up to it."""


class _Tight(_ByGPUs):
    def own(self, number: int) -> list[tuple[str, float]]:
        columns = self.facts.columns
        of = columns.classes[number]
        idle = idle_milli(columns.layouts[of.layout])
        return [("GPUs free", -idle / WHOLE), ("cores free", -of.host_free.cpus / 1e6)]


class _BestFit(_ByGPUs):
    def __init__(self, facts: Facts, policy: PackingPolicy) -> None:
        super().__init__(facts, policy)
        columns = facts.columns
        self._most_cpus = max(float(columns.trait_sets.host[0].max(initial=0)), 1.0)
        rooms = {layout.rooms for layout in columns.layouts}
        gpus = [of.count + len(of.migs) for of in rooms]
        self._most_gpus = max(gpus, default=1) or 1

    def own(self, number: int) -> list[tuple[str, float]]:
        columns, need = self.facts.columns, self.facts.need
        of = columns.classes[number]
        chosen = self.facts.chosen_for(number)
        taken = need.milli * need.gpus
        if need.mig:
            taken = SLICE_MILLI * (chosen.slices.bit_count() if chosen else 0)
        gpus_left = (idle_milli(columns.layouts[of.layout]) - taken) / WHOLE
        left = 0.5 * (of.host_free.cpus - need.cpus) / self._most_cpus
        left += 0.5 * gpus_left / self._most_gpus
        return [("little left", float(_points(1.0 - left)))]


class _PackToEmpty(_ByGPUs):
    def own(self, number: int) -> list[tuple[str, float]]:
        columns, need = self.facts.columns, self.facts.need
        layout = columns.layouts[columns.classes[number].layout]
        chosen = self.facts.chosen_for(number)
        empty, count = layout.free.bit_count(), layout.rooms.count
        if chosen is None:
            return [("no room", 0.0)]
        opened = (chosen.mask & layout.free).bit_count()
        if empty == count and opened:
            return [("an empty node", max(33 - empty, empty) / 100)]
        if opened:
            return [("empty GPUs of a node in use", max(50 - opened, 33) / 100)]
        left = WHOLE - min(
            (
                SLICE_MILLI * part.slices.bit_count() if need.mig else part.milli
                for part in (part_of_gpu(layout.parts, gpu) for gpu in chosen.indices)
                if part is not None
            ),
            default=0,
        )
        shared = "a shared GPU" if need.gpus == 1 else "shared GPUs"
        return [(shared, max(100 - left // 100, 50) / 100)]


class _Fragmentation(_Rule):
    def __init__(self, facts: Facts, policy: PackingPolicy, keeper: HeadroomKeeper) -> None:
        super().__init__(facts, policy)
        self._lost = HeadroomLost(keeper, facts.need)

    def ask(self, first: int, end: int) -> None:
        facts = self.facts
        self._lost.ask(first, facts.fits(first, end), facts.chosen_of_layout, facts.beside())

    def values(self, first: int, end: int) -> Floats:
        own = self._points()[self._lost.change_of[first:end]]
        return np.rint((own + self.added(first, end)) * 1e9) / 1e9

    def parts(self, number: int) -> list[ScoreTerm]:
        points = float(self._points()[self._lost.change_of[number]])
        return self.with_added(number, [("use of what is left to the usual jobs", points)])

    def _points(self) -> Floats:
        """Return the published whole points of 100, as shares of 1; the last is for no change."""
        points = _points(1.0 / (1.0 + np.exp(self._lost.fragmented() / WHOLE)))
        return np.append(points, 0.0)


class _KeepRoom(_Rule):
    def __init__(self, facts: Facts, policy: PackingPolicy, keeper: HeadroomKeeper) -> None:
        super().__init__(facts, policy)
        self._keeper = keeper
        self._lost = HeadroomLost(keeper, facts.need)

    @property
    def version(self) -> int:
        return self._keeper.version

    def ask(self, first: int, end: int) -> None:
        facts = self.facts
        self._lost.ask(first, facts.fits(first, end), facts.chosen_of_layout, facts.beside())

    def values(self, first: int, end: int) -> Floats:
        columns, new = self.facts.columns, slice(first, end)
        lost = np.append(self._lost.lost(), 0.0)
        own = lost[self._lost.change_of[new]]
        idle = self._idle(first, end)
        cpus, ram = columns.host_to_be_had[:2, new]
        emptier = EMPTIER[0] * idle + EMPTIER[1] * cpus
        own = own + emptier + EMPTIER[2] * ram
        apart = self.weights.fragmentation * self.facts.gaps[new]
        return np.rint((-own / WHOLE + (self.added(first, end) + apart)) * 1e9) / 1e9

    def parts(self, number: int) -> list[ScoreTerm]:
        of = self.facts.columns.classes[number]
        emptier = EMPTIER[0] * float(self._idle(number, number + 1)[0])
        emptier += EMPTIER[1] * of.host_free.cpus + EMPTIER[2] * of.host_free.ram
        lost = [*self._lost.by_kind(number), ("what is free on the node", emptier)]
        gaps = self.weights.fragmentation * float(self.facts.gaps[number])
        parts = [(name, -milli / WHOLE) for name, milli in lost]
        return self.with_added(number, [*parts, ("gaps between its GPUs", gaps)])

    def _idle(self, first: int, end: int) -> Floats:
        keeper = self._keeper
        return keeper.table.idle[keeper.gpus_of[keeper.residual_of[first:end]]].astype(np.float64)


def in_words(parts: list[tuple[str, float]], expiry: float, provider: float) -> list[ScoreTerm]:
    """Return the parts of a value with what expiry and provider add: the largest first."""
    parts = [*parts, ("time left", expiry), ("provider", provider)]
    named = [(name, round(value, 6)) for name, value in parts if abs(value) >= _SMALLEST_PART]
    named.sort(key=lambda part: (-abs(part[1]), part[0]))
    return [ScoreTerm.trusted(name=name, value=value) for name, value in named]


def _points(share: Floats | float) -> Floats:
    """Return shares of 1 cut to whole hundredths; the rounding of fractions must not decide."""
    return np.floor(100.0 * share + 1e-9) / 100.0
