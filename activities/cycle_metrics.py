"""The metrics of a cycle."""

from collections import Counter
from collections.abc import Mapping, Set
from datetime import datetime
from typing import NamedTuple

from longshore.activities.metrics import (
    CYCLE_JOBS,
    CYCLE_PART_SECONDS,
    CYCLE_SECONDS,
    FUNDING_DEMOTIONS,
    FUNDING_RECALLS,
    PLACEMENTS,
    PLACEMENTS_REFUSED,
    REJECTIONS,
    WAIT_SECONDS,
    Metrics,
)
from longshore.activities.queue_entries import QueueEntry
from longshore.models.placement import CyclePlan, PlacementKind, RejectionCode
from longshore.scheduling.funding.evaluate import Funded


class Took(NamedTuple):
    """Seconds on the clock of the parts of a cycle."""

    read: float
    plan: float
    commit: float
    explain: float
    """Writing why the jobs that were not placed wait."""

    def in_ms(self) -> dict[str, float]:
        return {part: seconds * 1000 for part, seconds in self._asdict().items()}


def measure_cycle(
    metrics: Metrics,
    pool: str,
    entries: Mapping[str, QueueEntry],
    decided: CyclePlan,
    placed: Set[str],
    now: datetime,
    seconds: float,
    took: Took,
) -> None:
    """Count one cycle that was decided at `now`.

    `entries` are its jobs by id, `placed` are those whose placement held.
    """
    metrics.observe(CYCLE_SECONDS, seconds, pool=pool)
    for part, of_it in took._asdict().items():
        metrics.observe(CYCLE_PART_SECONDS, of_it, pool=pool, part=part)
    metrics.add(CYCLE_JOBS, len(decided.decisions), pool=pool)
    metrics.add(PLACEMENTS, len(placed), pool=pool)
    metrics.add(PLACEMENTS_REFUSED, len(decided.placements) - len(placed), pool=pool)
    for job_id in placed:
        waited = (now - entries[job_id].queued_at).total_seconds()
        metrics.observe(WAIT_SECONDS, waited, pool=pool)
    rejections: Counter[RejectionCode] = Counter()
    alike: dict[tuple[tuple[RejectionCode, int], ...], int] = {}
    for decision in decided.decisions:
        if decision.kind is not PlacementKind.EXISTING_NODE:
            counts = tuple(decision.rejected.items())
            alike[counts] = alike.get(counts, 0) + 1
    for counts, times in alike.items():
        for code, count in counts:
            rejections[code] += count * times
    for code, count in rejections.items():
        metrics.add(REJECTIONS, count, pool=pool, code=code.value)


def measure_funding(metrics: Metrics, pool: str, funded: Funded) -> None:
    """Count who lost a payer, and who was taken back from, by what a cycle changed of charges."""
    lost = {(each.charge.job_id, each.charge.attempt): each.code for each in funded.ended}
    for attempt, code in lost.items():
        split = funded.splits.get(attempt)
        if split is not None and split.unfunded:
            metrics.add(FUNDING_DEMOTIONS, pool=pool, code=code.value)
    recalled = {(each.charge.job_id, each.charge.attempt) for each in funded.ended if each.for_job}
    metrics.add(FUNDING_RECALLS, len(recalled), pool=pool)
