"""Metrics as Prometheus scrapes them, of a real control worker and a real agent."""

import re
from pathlib import Path

import pytest

from longshore.activities.metrics import CATALOGUE, Kind, Metric, Metrics
from tests.support.local_stack import ROOT
from tests.support.plant import Plant, metrics
from tests.support.waiting import eventually

_RARE = {
    "placements_refused", "log_shipping_errors", "heartbeats_missed", "fences", "market_looks",
    "market_lowest_ask", "market_differences", "preemptions", "kept_differences", "jobs_late",
    "deadlines", "gpus_in_use", "funding_demotions", "funding_recalls",
    "service_replicas",
    "slot_memory_bytes",
}  # fmt: skip
"""Nothing of this went wrong here, there is no market, no job has a deadline, nor a tenant a
budget, and nothing is served."""


def found(series: dict[str, float], metric: Metric) -> dict[str, set[str]]:
    """Return the labels of a metric, and their values."""
    name = metric.full_name + ("_count" if metric.kind is Kind.HISTOGRAM else "")
    labels: dict[str, set[str]] = {}
    for entry in series:
        if entry == name or entry.startswith(f"{name}{{"):
            labels.setdefault("", set()).add(entry)
            for label, value in re.findall(r'(\w+)="([^"]*)"', entry):
                labels.setdefault(label, set()).add(value)
    return labels


async def test_the_control_worker_measures_queue_cycles_and_ends(
    plant: Plant, jobs: dict[str, str]
):
    def sampled() -> dict[str, float]:
        series = metrics(plant.control_metrics)
        assert series.get('longshore_queue_jobs{held="false",pool="watched"}') == 1
        assert series.get('longshore_leases_live{pool="watched"}') == 0
        # What waits is counted when it is in the queue, and refused by the cycle after that.
        rejected = 'longshore_rejections_total{code="not-enough-gpus",pool="watched"}'
        assert series.get(rejected, 0) >= 1
        return series

    series = await eventually(sampled)
    assert series['longshore_placements_total{pool="watched"}'] == 2
    assert series['longshore_gpus{pool="watched",state="READY"}'] == 4
    assert series['longshore_wait_seconds_count{pool="watched"}'] == 2
    assert series['longshore_wait_seconds_sum{pool="watched"}'] < 240
    assert series['longshore_cycle_jobs_total{pool="watched"}'] >= 3
    ends = 'longshore_job_ends_total{failure="%s",pool="watched",state="%s"}'
    assert series[ends % ("none", "SUCCEEDED")] == 1
    assert series[ends % ("user", "FAILED")] == 1
    assert series['longshore_cycle_seconds_bucket{pool="watched",le="10"}'] >= 1
    for part in ("read", "plan", "commit", "explain"):
        name = 'longshore_cycle_part_seconds_bucket{part="%s",pool="watched",le="10"}'
        assert series[name % part] >= 1


async def test_the_agent_measures_processes_and_heartbeats(plant: Plant, jobs: dict[str, str]):
    def measured() -> bool:
        series = metrics(plant.agent_metrics)
        assert series.get("longshore_processes") == 0
        assert series.get("longshore_heartbeat_seconds_count", 0) >= 1
        return any(name.startswith("temporal_num_pollers") for name in series)

    await eventually(measured)


@pytest.mark.parametrize("process", ["control", "agent"])
async def test_what_is_served_is_what_is_listed(plant: Plant, jobs: dict[str, str], process: str):
    address = plant.control_metrics if process == "control" else plant.agent_metrics

    def complete() -> dict[str, float]:
        """Some of it is measured now and then."""
        series = metrics(address)
        for metric in CATALOGUE:
            if metric.by == process and metric.name not in _RARE:
                assert found(series, metric), f"{metric.full_name} is missing"
        return series

    series = await eventually(complete)
    ours = {re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) for name in series}
    listed = {metric.full_name for metric in CATALOGUE if metric.by == process}
    assert {name for name in ours if name.startswith("longshore_")} <= listed
    for metric in CATALOGUE:
        if metric.by == process and metric.name not in _RARE:
            labels = found(series, metric)
            assert set(labels) - {""} == set(metric.labels), metric.full_name
    text = " ".join(name for name in series if name.startswith("longshore_"))
    assert not any(job_id in text for job_id in jobs.values())


def test_the_page_lists_every_metric():
    page = (ROOT / "docs" / "observability.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `longshore_")]
    assert rows == [_row(metric) for metric in CATALOGUE]


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return (
        f"| `{metric.full_name}` | {metric.kind.value} | {metric.by} | {labels} | {metric.says} |"
    )


def test_a_metric_takes_only_what_is_of_its_kind():
    with pytest.raises(KeyError):
        Metrics().add(next(m for m in CATALOGUE if m.kind is Kind.GAUGE))


def test_an_address_in_use_is_named(plant: Plant, tmp_path: Path):
    done = plant.longshore("worker", LONGSHORE_METRICS_ADDRESS=plant.control_metrics)
    assert done.returncode == 71
    assert f"metrics cannot be served at {plant.control_metrics}" in done.stderr
    done = plant.longshore("worker", LONGSHORE_HEALTH_ADDRESS=plant.control_health)
    assert done.returncode == 71
    assert f"/healthz cannot be served at {plant.control_health}" in done.stderr
