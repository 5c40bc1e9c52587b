"""How every node answers one need: an option with its score, or the constraint that failed."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np

from models.placement import Candidate, PackingPolicy, RejectionCode
from scheduling.feasibility import fits_when_empty, usable_gpus
from scheduling.gpus import Chosen, choose
from scheduling.scoring import Score, score_view
from scheduling.state import Need, NodeView

_RULED_OUT = float("-inf")


class Option(NamedTuple):
    """A node that can take the job now: with which GPUs, and how good that is."""

    score: Score
    chosen: Chosen


class Scan:
    """The answers of all nodes to one need, brought up to date when nodes change.

    A cycle asks for the same few needs again and again while each placement changes one node:
    asking only that node again is what keeps long queues cheap.
    """

    def __init__(
        self, need: Need, views: Sequence[NodeView], policy: PackingPolicy, now: datetime
    ) -> None:
        self.need = need
        self.views = views
        self._policy = policy
        self._now = now
        self.answers = [answer(view, need, policy, now) for view in views]
        self._totals = np.array([_total(found) for found in self.answers], dtype=np.float64)
        self._codes = Counter(found for found in self.answers if not isinstance(found, Option))
        self._holders: list[int] | None = None

    def ask_again(self, position: int) -> None:
        """Take in that the node at `position` has changed."""
        old = self.answers[position]
        new = answer(self.views[position], self.need, self._policy, self._now)
        self.answers[position] = new
        self._totals[position] = _total(new)
        if not isinstance(old, Option):
            self._codes[old] -= 1
        if not isinstance(new, Option):
            self._codes[new] += 1

    def best(self, count: int) -> list[int]:
        """Return the positions of the best `count` options, best first; ties keep the order."""
        totals = self._totals if count == 1 else self._totals.copy()
        positions: list[int] = []
        for _ in range(min(count, len(totals))):
            position = int(totals.argmax())
            if totals[position] == _RULED_OUT:
                break
            positions.append(position)
            if count > 1:
                totals[position] = _RULED_OUT
        return positions

    def all_options(self) -> list[int]:
        """Return the positions of all options, best first; ties keep the order."""
        order = np.argsort(-self._totals, kind="stable")
        return [int(position) for position in order[: self.option_count]]

    def option(self, position: int) -> Option:
        found = self.answers[position]
        assert isinstance(found, Option)
        return found

    def candidate(self, position: int) -> Candidate:
        option = self.option(position)
        return Candidate.model_construct(
            node_id=self.views[position].node.id,
            gpu_indices=option.chosen.indices,
            terms=option.score.terms(),
        )

    @property
    def option_count(self) -> int:
        return len(self.answers) - self._codes.total()

    @property
    def rejected(self) -> dict[RejectionCode, int]:
        """How many nodes each constraint ruled out, in the order of the checks."""
        return {code: self._codes[code] for code in RejectionCode if self._codes[code]}

    @property
    def holders(self) -> list[int]:
        """Positions of the nodes that could hold the job when empty."""
        if self._holders is None:
            self._holders = [
                position
                for position, view in enumerate(self.views)
                if fits_when_empty(view.node, self.need)
            ]
        return self._holders


def answer(
    view: NodeView, need: Need, policy: PackingPolicy, now: datetime
) -> Option | RejectionCode:
    """Return how one node answers a need now."""
    usable = usable_gpus(view, need, now)
    if usable.failure is not None:
        return usable.failure
    chosen = choose(usable.gpus, view.free, need.gpus, policy.gpu_choice)
    return Option(score_view(view, need, chosen.gap, policy.weights, now), chosen)


def _total(found: Option | RejectionCode) -> float:
    return found.score.total if isinstance(found, Option) else _RULED_OUT
