"""When jobs may start for which no start is kept: asked of a plan every few seconds."""

import time
from collections.abc import Mapping
from datetime import datetime

from longshore.models.placement import CyclePlan, Decision
from longshore.scheduling.kept_starts import most_later

_EVERY = 10.0
"""Seconds in which jobs are told the same: a busy pool has many cycles a second."""


class LaterStarts:
    """What was told in each pool, by the clock since boot."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, Mapping[str, Decision]]] = {}

    def due(self, pool: str, nodes: int) -> int:
        """Return how many jobs of a pool of so many nodes the next plan is to tell; 0 where what
        was told holds."""
        at, _ = self._told.get(pool, (-_EVERY, {}))
        return 0 if time.monotonic() - at < _EVERY else most_later(nodes)

    def taken_in(self, pool: str, made: CyclePlan, later: int, now: datetime) -> CyclePlan:
        """Return a plan that told so many, with the starts that were told before where it was to
        tell none."""
        if later:
            told = {each.job_id: each for each in made.decisions if not each.start_kept}
            self._told[pool] = time.monotonic(), told
            return made
        _, told = self._told.get(pool, (0.0, {}))
        if not told:
            return made
        decisions = tuple(_as_told(each, told.get(each.job_id), now) for each in made.decisions)
        return made.model_copy(update={"decisions": decisions})


def _as_told(decision: Decision, before: Decision | None, now: datetime) -> Decision:
    """Return a decision with the start that its job was told before and that is still to come,
    where it waits for the same and has no start kept."""
    if before is None or decision.estimated_start is not None:
        return decision
    is_alike = (decision.kind, decision.rejected.keys()) == (before.kind, before.rejected.keys())
    start = before.estimated_start
    if not is_alike or start is None or start <= now:
        return decision
    return decision.model_copy(
        update={
            "estimated_start": start, "start_range": before.start_range, "start_kept": False,
            "reason": before.reason,
        }
    )  # fmt: skip
