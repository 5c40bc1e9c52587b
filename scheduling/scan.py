"""How every node answers one need: an option with its score, or the constraint that failed."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from models.placement import Candidate, PackingPolicy, RejectionCode, ScoreTerms
from scheduling.columns import Bools, Columns, Floats, microseconds
from scheduling.gpus import Chosen
from scheduling.layouts import CODE_NUMBER, CODES, FITS, Codes, LayoutAnswers, Wish
from scheduling.reservations import open_from
from scheduling.scoring import expiry_penalty, provider_bonus, totals, utilization
from scheduling.state import EPSILON, Need

_MAX_SCANS = 64
"""Needs whose answers are kept at one time: bounds memory, not results."""
_RULED_OUT = -np.inf
_NO_FAILURE = np.uint8(FITS)
_NUMBERS = {code: np.uint8(number) for code, number in CODE_NUMBER.items()}


class Scanner:
    """Puts needs to the nodes, and keeps the answers while no node changes."""

    def __init__(self, columns: Columns, policy: PackingPolicy) -> None:
        self.columns = columns
        self._policy = policy
        self._scans: dict[Need, Scan] = {}
        self._layouts: dict[Wish, LayoutAnswers] = {}

    def scan(self, need: Need) -> "Scan":
        """Return the answers of all nodes as they are now."""
        scan = self._scans.get(need)
        if scan is None:
            if len(self._scans) >= _MAX_SCANS:
                self._scans.clear()
                self._layouts.clear()
            scan = Scan(need, self.columns, self._layouts_for(need), self._policy)
            self._scans[need] = scan
        scan.refresh()
        return scan

    def _layouts_for(self, need: Need) -> LayoutAnswers:
        wish = Wish(need.gpus, need.vram, need.milli, need.mig)
        if wish not in self._layouts:
            self._layouts[wish] = LayoutAnswers(self.columns, wish, self._policy.gpu_choice)
        return self._layouts[wish]


class Scan:
    """The answers of all nodes to one need.

    A constraint is a column of numbers: its own number where it fails, FITS elsewhere. So the
    least of a node's numbers is the first constraint that fails there.
    """

    def __init__(
        self, need: Need, columns: Columns, layouts: LayoutAnswers, policy: PackingPolicy
    ) -> None:
        self.need = need
        self.columns = columns
        self._layouts = layouts
        self._policy = policy
        self._lasting_codes = _lasting_codes(columns, need)
        self._expiry = expiry_penalty(columns, need.duration)
        self._provider = provider_bonus(columns, need.gpus)
        self._weighted_expiry = policy.weights.expiry * self._expiry
        self._weighted_provider = policy.weights.provider * self._provider
        self._candidates: dict[int, tuple[int, Candidate]] = {}
        """By position, with the version of the node's last change when it was made."""
        self._version = -1

    def refresh(self) -> None:
        """Take in what has changed on the nodes."""
        if self._version == self.columns.version:
            return
        self._version = self.columns.version
        self._layouts.learn()
        self._gaps = self._layouts.gaps[self.columns.layout]
        self._codes = self._first_failures()
        self._beside_reservations = self._ask_reserved()
        fits = self._codes == _NO_FAILURE
        self.option_count = int(np.count_nonzero(fits))
        self.rejected = self._count_failures()
        if self.option_count:
            self._score(fits)

    def best(self, count: int) -> list[int]:
        """Return the positions of the best `count` options, best first; ties keep the order."""
        if not self.option_count:
            return []
        ranking = self._ranking.copy()
        positions: list[int] = []
        for _ in range(min(count, self.option_count)):
            position = int(ranking.argmax())
            positions.append(position)
            ranking[position] = _RULED_OUT
        return positions

    def all_options(self) -> list[int]:
        """Return the positions of all options, best first; ties keep the order."""
        if not self.option_count:
            return []
        order = np.argsort(-self._ranking, kind="stable")
        return [int(position) for position in order[: self.option_count]]

    def failures(self) -> list[tuple[int, RejectionCode]]:
        """Return the position of each node that is no option, and the constraint that failed."""
        positions = np.flatnonzero(self._codes != _NO_FAILURE)
        return [(int(position), CODES[self._codes[position]]) for position in positions]

    def chosen(self, position: int) -> Chosen:
        """Return the job's GPUs on the node at `position`, which is an option."""
        return self._beside_reservations.get(position) or self._layouts.chosen(position)

    def candidate(self, position: int) -> Candidate:
        """Return the option at `position` in full."""
        changed_at = self.columns.changed_at[position]
        known = self._candidates.get(position)
        if known and known[0] == changed_at:
            return known[1]
        terms = ScoreTerms(
            utilization=float(self._used[position]),
            fragmentation=float(self._gaps[position]),
            expiry=float(self._expiry[position]),
            provider=float(self._provider[position]),
            total=float(self._totals[position]),
        )
        chosen = self.chosen(position)
        candidate = Candidate(
            node_id=self.columns.views[position].node.id,
            gpu_indices=chosen.indices,
            slices=chosen.slices,
            terms=terms,
        )
        self._candidates[position] = changed_at, candidate
        return candidate

    @cached_property
    def holders(self) -> NDArray[np.intp]:
        """Positions of the nodes that could hold the job when empty and with time left."""
        columns, need = self.columns, self.need
        suits = self._layouts.fits_empty[columns.layout] & ~columns.gone
        suits &= (columns.cpus + EPSILON >= need.cpus) & (columns.ram + EPSILON >= need.ram)
        for _, failed in columns.mismatches(need):
            suits &= ~failed
        return np.flatnonzero(suits)

    def _first_failures(self) -> Codes:
        columns, need = self.columns, self.need
        codes = np.minimum(self._lasting_codes, self._layouts.codes[columns.layout])
        _lower(codes, columns.cpus_to_be_had < need.cpus, RejectionCode.CPU)
        _lower(codes, columns.ram_to_be_had < need.ram, RejectionCode.RAM)
        return codes

    def _ask_reserved(self) -> dict[int, Chosen]:
        """Rule out nodes that are kept for others; return the choices beside reservations."""
        choices: dict[int, Chosen] = {}
        for position in self.columns.reserved:
            if self._codes[position] != FITS:
                continue
            view = self.columns.views[position]
            now, choice = self.columns.now, self._policy.gpu_choice
            chosen = open_from(view, self.need, now, choice, free=view.free)
            if chosen is None:
                self._codes[position] = _NUMBERS[RejectionCode.RESERVED]
                continue
            choices[position] = chosen
            self._gaps[position] = chosen.gap
        return choices

    def _count_failures(self) -> dict[RejectionCode, int]:
        """Count the nodes that each constraint ruled out, in the order of the checks."""
        counts = np.bincount(self._codes, minlength=FITS).tolist()
        return {code: count for code, count in zip(CODES, counts, strict=False) if count}

    def _score(self, fits: Bools) -> None:
        added = self._instance_sizes(fits) if self.need.mig else None
        self._used = utilization(self.columns, self.need, added)
        self._totals = totals(
            self._used,
            self._gaps,
            self._weighted_expiry,
            self._weighted_provider,
            self._policy.weights,
        )
        self._ranking = np.where(fits, self._totals, _RULED_OUT)

    def _instance_sizes(self, fits: Bools) -> Floats:
        """Return the GB that the MIG instance of each option has."""
        sizes = np.zeros(len(self.columns))
        for position in np.flatnonzero(fits):
            sizes[position] = self.chosen(int(position)).vram
        return sizes


def _lasting_codes(columns: Columns, need: Need) -> Codes:
    """Return the first failure of each node among what no placement changes."""
    codes = np.full(len(columns), FITS, dtype=np.uint8)
    _lower(codes, ~columns.ready, RejectionCode.STATE)
    for code, failed in columns.mismatches(need):
        _lower(codes, failed, code)
    _lower(codes, columns.left < microseconds(need.must_last), RejectionCode.EXPIRY)
    return codes


def _lower(codes: Codes, failed: Bools, code: RejectionCode) -> None:
    """Put the number of `code` where it failed and nothing before it did."""
    number = _NUMBERS[code]
    codes[failed & (codes > number)] = number
