"""What a cycle counts of itself."""

from datetime import UTC, datetime

import pytest

from longshore.activities.cycle_metrics import Took, measure_cycle
from longshore.activities.metrics import CYCLE_JOBS, Metric, Metrics
from longshore.activities.queue_entries import QueueEntry
from longshore.models.placement import CyclePlan, Decision, PlacementKind
from tests.support.packing import a_job

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_of_a_long_queue_those_count_that_a_cycle_decided_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: dict[Metric, float] = {}

    def add(_: Metrics, metric: Metric, amount: float = 1, **labels: str) -> None:
        counted[metric] = counted.get(metric, 0) + amount

    monkeypatch.setattr(Metrics, "add", add)
    entries = {f"j{i}": QueueEntry(a_job(f"j{i}"), False, NOW) for i in range(30)}
    waits = PlacementKind.REQUEST_MORE_CAPACITY
    made = CyclePlan(decisions=tuple(Decision(job_id=f"j{i}", kind=waits) for i in range(3)))
    measure_cycle(Metrics(), "p", entries, made, set(), NOW, 0.1, Took(0.1, 0.0, 0.0, 0.0))
    assert counted[CYCLE_JOBS] == 3
