"""What a cycle adds to the metrics."""

from collections import Counter
from collections.abc import Sequence, Set
from datetime import datetime

from activities.metrics import (
    CYCLE_JOBS,
    CYCLE_SECONDS,
    PLACEMENTS,
    PLACEMENTS_REFUSED,
    REJECTIONS,
    WAIT_SECONDS,
    Metrics,
)
from activities.snapshot import QueueEntry
from models.placement import CyclePlan, PlacementKind, RejectionCode


def measure_cycle(
    metrics: Metrics,
    pool: str,
    entries: Sequence[QueueEntry],
    decided: CyclePlan,
    placed: Set[str],
    now: datetime,
    seconds: float,
) -> None:
    """Count one cycle that was decided at `now`. `placed` are the jobs whose placement held."""
    metrics.observe(CYCLE_SECONDS, seconds, pool=pool)
    metrics.add(CYCLE_JOBS, len(entries), pool=pool)
    metrics.add(PLACEMENTS, len(placed), pool=pool)
    metrics.add(PLACEMENTS_REFUSED, len(decided.placements) - len(placed), pool=pool)
    for entry in entries:
        if entry.request.id in placed:
            waited = (now - entry.queued_at).total_seconds()
            metrics.observe(WAIT_SECONDS, waited, pool=pool)
    rejections: Counter[RejectionCode] = Counter()
    for decision in decided.decisions:
        if decision.kind is not PlacementKind.EXISTING_NODE:
            rejections.update(decision.rejected)
    for code, count in rejections.items():
        metrics.add(REJECTIONS, count, pool=pool, code=code.value)
