"""How every node answers one need: an option with its score, or the constraint that failed.

Nodes of one class give one answer, so classes are asked, not nodes. A class never changes: its
answer is found once, and what a placement changes is only which classes have nodes.
"""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longshore.models.placement import Candidate, PackingPolicy, RejectionCode, ScoreTerms
from longshore.models.resources import GPURequest
from longshore.scheduling.placement.classes import Numbers
from longshore.scheduling.placement.columns import Bools, Columns, microseconds
from longshore.scheduling.placement.feasibility import HOST_CODES
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.keep_room import HeadroomKeeper
from longshore.scheduling.placement.layouts import (
    CODE_NUMBER,
    CODES,
    FITS,
    Codes,
    LayoutAnswers,
)
from longshore.scheduling.placement.links import slowest_link
from longshore.scheduling.placement.mix import Mix
from longshore.scheduling.placement.reservations import open_from
from longshore.scheduling.placement.rules import Rankers
from longshore.scheduling.placement.scoring import expiry_penalty, provider_bonus, utilization
from longshore.scheduling.placement.state import EPSILON, Need

MAX_SCANS = 64
"""Needs whose answers are kept at one time: bounds memory, not results."""
_RULED_OUT = -np.inf
_NO_FAILURE = np.uint8(FITS)
_NUMBERS = {code: np.uint8(number) for code, number in CODE_NUMBER.items()}


class Scanner:
    """Puts needs to the nodes, and keeps the answers."""

    def __init__(self, columns: Columns, policy: PackingPolicy, mix: Mix) -> None:
        self.columns = columns
        self._policy = policy
        self.keeper = HeadroomKeeper(columns, mix) if policy.rule.learns else None
        self._rankers = Rankers(policy, columns, self.keeper)
        self._scans: dict[Need, Scan] = {}
        self._layouts: dict[GPURequest, LayoutAnswers] = {}

    def scan(self, need: Need, *, reweigh: bool = True) -> "Scan":
        """Return the answers of all nodes as they are now; without `reweigh`, by the last value of
        headroom."""
        if self.keeper is not None:
            self.keeper.refresh(reweigh=reweigh)
        scan = self._scans.get(need)
        if scan is None:
            if len(self._scans) >= MAX_SCANS:
                self._scans.clear()
                self._layouts.clear()
            scan = Scan(need, self.columns, self._layouts_for(need), self._policy, self._rankers)
            self._scans[need] = scan
        scan.refresh()
        return scan

    def _layouts_for(self, need: Need) -> LayoutAnswers:
        request = need.gpu
        if request not in self._layouts:
            self._layouts[request] = LayoutAnswers(self.columns, request, self._policy.gpu_choice)
        return self._layouts[request]


class Scan:
    """The answers of all nodes to one need.

    A constraint is a column of numbers: its own number where it fails, FITS elsewhere. So the
    least of a class's numbers is the first constraint that fails there.
    """

    def __init__(
        self,
        need: Need,
        columns: Columns,
        layouts: LayoutAnswers,
        policy: PackingPolicy,
        rankers: Rankers,
    ) -> None:
        self.need = need
        self.columns = columns
        self._layouts = layouts
        self._policy = policy
        self._lasting_codes = lasting_codes(columns, need)
        trait_sets = columns.trait_sets
        self._wanted = [(row, trait_sets.wanted(need, row)) for row in trait_sets.limited]
        """Each amount that a node may be short of, with what the job takes by trait set."""
        self.expiry = expiry_penalty(columns, need.duration)
        self.provider = provider_bonus(columns, need.gpus)
        self.locality = columns.trait_sets.held(need)
        self._codes: Codes = np.zeros(0, np.uint8)
        self.gaps = self.links = self.used = self._totals = self._ranking = np.zeros(0)
        """By class, as far as they are asked: the value is -inf for what is no option, and in
        `_ranking` also for classes that have no node now."""
        self._asked = 0
        self._followed = 0
        """Classes that have answered, and moves of nodes that are taken in."""
        self._counts: Numbers = np.zeros(FITS + 1, np.intp)
        """Nodes by constraint; the last are the options."""
        self._beside_reservations: dict[int, Chosen] = {}
        self._terms: dict[tuple[int, bool], ScoreTerms] = {}
        self._candidates: dict[tuple[int, bool], tuple[int, Candidate]] = {}
        """By position and whether in words, with its class when it was made."""
        self._ranker = rankers.of(self)
        self._ranked = self._ranker.version

    def refresh(self) -> None:
        """Take in what has changed on the nodes."""
        columns = self.columns
        new = self._asked, columns.class_count
        if new[0] < new[1]:
            self._layouts.learn()
            self._ask(*new)
            self._asked = new[1]
        if not new[0]:
            self._counts = _counted(self._codes[: new[1]], columns.size[: new[1]])
        elif self._followed < columns.version:
            self._follow()
        self._followed = columns.version
        if self._ranked != self._ranker.version:
            self._rank_anew()

    @property
    def option_count(self) -> int:
        return int(self._counts[FITS])

    @property
    def rejected(self) -> dict[RejectionCode, int]:
        """The number of nodes that each constraint ruled out, in the order of the checks."""
        counts = self._counts.tolist()
        return {code: count for code, count in zip(CODES, counts, strict=False) if count}

    def best(self, count: int) -> list[int]:
        """Return the positions of the best `count` options, best first; ties keep the order."""
        ranking = self._ranking[: self._asked]
        wanted = min(count, self.option_count)
        positions: list[int] = []
        passed: list[tuple[Numbers, float]] = []
        while len(positions) < wanted:
            top = float(ranking[ranking.argmax()])
            tied = np.flatnonzero(ranking == top)
            positions += self._first_nodes(tied, wanted - len(positions))
            ranking[tied] = _RULED_OUT
            passed.append((tied, top))
        for tied, top in passed:
            ranking[tied] = top
        return positions

    def all_options(self) -> list[int]:
        """Return the positions of all options, best first; ties keep the order."""
        return self.best(self.option_count)

    def failures(self) -> list[tuple[int, RejectionCode]]:
        """Return the position of each node that is no option, and the constraint that failed."""
        codes = self._codes[self.columns.class_of]
        positions = np.flatnonzero(codes != _NO_FAILURE)
        return [(int(position), CODES[codes[position]]) for position in positions]

    def could_last(self, position: int) -> bool:
        """Return whether the node fails in nothing that no placement changes."""
        return self._lasting_codes[self.columns.traits[self.columns.class_of[position]]] == FITS

    def held(self, position: int) -> float:
        """Return which part of the job's data the node holds, 0 to 1."""
        return float(self.locality[self.columns.traits[self.columns.class_of[position]]])

    def chosen(self, position: int) -> Chosen:
        """Return the job's GPUs on the node at `position`, which is an option."""
        chosen = self.chosen_for(int(self.columns.class_of[position]))
        assert chosen is not None
        return chosen

    def chosen_for(self, number: int) -> Chosen | None:
        """Return the job's GPUs on nodes of a class, None where it does not fit."""
        if self._codes[number] != FITS:
            return None
        chosen = self._beside_reservations.get(number)
        return chosen or self.chosen_of_layout(self.columns.classes[number].layout)

    def fits(self, first: int, end: int) -> Bools:
        """Return which of these classes could take the job."""
        return self._codes[first:end] == _NO_FAILURE

    def chosen_of_layout(self, layout: int) -> Chosen:
        """Return the job's GPUs of a layout that fits."""
        return self._layouts.chosen(layout)

    def beside(self) -> Iterable[tuple[int, Chosen]]:
        """Return the classes where reservations decide, with the job's GPUs there."""
        return self._beside_reservations.items()

    def candidate(self, position: int, *, in_words: bool = False) -> Candidate:
        """Return the option at `position`; `in_words` with the parts of its value."""
        number = int(self.columns.class_of[position])
        known = self._candidates.get((position, in_words))
        if known and known[0] == number:
            return known[1]
        chosen = self.chosen(position)
        candidate = Candidate.trusted(
            node_id=self.columns.views[position].node.id,
            gpu_indices=chosen.indices,
            slices=chosen.slices,
            link=slowest_link(self.columns.views[position].node.topology, chosen.indices),
            terms=self._terms_of(number, in_words=in_words),
        )
        self._candidates[position, in_words] = number, candidate
        return candidate

    @cached_property
    def holders(self) -> NDArray[np.intp]:
        """Positions of the nodes that could hold the job when empty and with time left."""
        columns, need = self.columns, self.need
        trait_sets = columns.trait_sets
        suits = ~trait_sets.gone
        for row in trait_sets.limited:
            suits &= trait_sets.host[row] + EPSILON >= trait_sets.wanted(need, row)
        for _, failed in trait_sets.mismatches(need):
            suits &= ~failed
        classes = slice(columns.class_count)
        suits = suits[columns.traits[classes]] & self._layouts.fits_empty[columns.layout[classes]]
        return np.flatnonzero(suits[columns.class_of])

    def _first_nodes(self, classes: Numbers, count: int) -> list[int]:
        """Return the positions of the first nodes of these classes together."""
        if len(classes) == 1:
            return self.columns.first_nodes(int(classes[0]), count)
        if len(classes) > count:  # the first nodes are in the classes whose first node is first
            classes = classes[np.argsort(self.columns.first[classes])[:count]]
        found = [self.columns.first_nodes(number, count) for number in classes.tolist()]
        return sorted(position for positions in found for position in positions)[:count]

    def _terms_of(self, number: int, *, in_words: bool) -> ScoreTerms:
        terms = self._terms.get((number, in_words))
        if terms is None:
            traits = self.columns.classes[number].traits
            terms = self._terms[number, in_words] = ScoreTerms.trusted(
                rule=self._policy.rule,
                utilization=float(self.used[number]),
                fragmentation=float(self.gaps[number]),
                expiry=float(self.expiry[traits]),
                provider=float(self.provider[traits]),
                parts=tuple(self._ranker.parts(number)) if in_words else (),
                total=float(self._totals[number]),
            )
        return terms

    def _ask(self, first: int, end: int) -> None:
        """Find the answers of the classes from `first` to before `end`."""
        self._make_room(end)
        columns, new = self.columns, slice(first, end)
        self._codes[new] = self._first_failures(new)
        self.gaps[new] = self._layouts.gaps[columns.layout[new]]
        self.links[new] = self._layouts.links[columns.layout[new]]
        self._ask_reserved(first)
        added = self._layouts.added[columns.layout[new]] if self.need.mig else None
        self.used[new] = utilization(columns, self.need, new, added)
        self._ranker.ask(first, end)
        self._value(first, end)
        if not first:  # later ones come with a move
            self._rank_all()

    def _value(self, first: int, end: int) -> None:
        fits = self.fits(first, end)
        # Most needs of a queue that waits fit nowhere: nothing is to be compared.
        values = self._ranker.values(first, end) if fits.any() else _RULED_OUT
        self._totals[first:end] = np.where(fits, values, _RULED_OUT)

    def _rank_all(self) -> None:
        lived_in = self.columns.size[: self.columns.class_count] > 0
        known = slice(len(lived_in))
        self._ranking[known] = np.where(lived_in, self._totals[known], _RULED_OUT)

    def _rank_anew(self) -> None:
        """Take in that the rule values room otherwise now."""
        self._ranked = self._ranker.version
        self._terms.clear()
        self._candidates.clear()
        self._value(0, self._asked)
        self._rank_all()

    def _make_room(self, end: int) -> None:
        if end <= len(self._codes):
            return
        spare = len(self.columns.traits) - len(self._codes)
        self._codes = np.concatenate([self._codes, np.zeros(spare, np.uint8)])
        self.gaps = np.concatenate([self.gaps, np.zeros(spare)])
        self.links = np.concatenate([self.links, np.zeros(spare)])
        self.used = np.concatenate([self.used, np.zeros(spare)])
        self._totals = np.concatenate([self._totals, np.zeros(spare)])
        self._ranking = np.concatenate([self._ranking, np.zeros(spare)])

    def _first_failures(self, new: slice) -> Codes:
        columns = self.columns
        layout_codes = self._layouts.codes[columns.layout[new]]
        codes = np.minimum(self._lasting_codes[columns.traits[new]], layout_codes)
        for row, wanted in self._wanted:
            short = columns.host_to_be_had[row, new] < wanted[columns.traits[new]]
            _lower(codes, short, HOST_CODES[row])
        return codes

    def _ask_reserved(self, first: int) -> None:
        """Rule out nodes that are kept for others; remember the choices beside reservations."""
        columns = self.columns
        for number, position in columns.reserved.items():
            # A class that its node has left never has one again.
            if number < first or not columns.size[number] or self._codes[number] != FITS:
                continue
            view, choice = columns.views[position], self._policy.gpu_choice
            chosen = open_from(view, self.need, columns.now, choice, free=view.free)
            if chosen is None:
                self._codes[number] = _NUMBERS[RejectionCode.RESERVED]
                continue
            self._beside_reservations[number] = chosen
            self.gaps[number] = chosen.gap
            self.links[number] = chosen.link

    def _follow(self) -> None:
        """Take in the moves of nodes between classes since the last time."""
        columns = self.columns
        left = columns.left_class[self._followed :]
        moved = np.array(left + columns.joined_class[self._followed :], np.intp)
        codes = self._codes[moved]
        self._counts += _counted(codes[len(left) :]) - _counted(codes[: len(left)])
        lived_in = columns.size[moved] > 0
        self._ranking[moved] = np.where(lived_in, self._totals[moved], _RULED_OUT)


def lasting_codes(columns: Columns, need: Need) -> Codes:
    """Return the first failure of each trait set among what no placement changes."""
    trait_sets = columns.trait_sets
    codes = np.full(len(trait_sets), FITS, dtype=np.uint8)
    _lower(codes, ~trait_sets.ready, RejectionCode.STATE)
    for code, failed in trait_sets.mismatches(need):
        _lower(codes, failed, code)
    _lower(codes, trait_sets.left < microseconds(need.must_last), RejectionCode.EXPIRY)
    return codes


def _counted(codes: Codes, nodes: Numbers | None = None) -> Numbers:
    """Return how many nodes each code has; `nodes` are those of each entry, one unless given."""
    if nodes is None:
        return np.bincount(codes, minlength=FITS + 1)
    return np.bincount(codes, nodes, FITS + 1).astype(np.intp)


def _lower(codes: Codes, failed: Bools, code: RejectionCode) -> None:
    """Put the number of `code` where it failed and nothing before it did."""
    np.minimum(codes, _NUMBERS[code], out=codes, where=failed)
