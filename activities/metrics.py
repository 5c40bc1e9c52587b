"""What Longshore counts and measures of itself; docs/observability.md lists it for people.

Names and labels are stable, and no label has a value for every job or node.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from temporalio.common import (
    MetricCounter,
    MetricGaugeFloat,
    MetricHistogramFloat,
    MetricMeter,
)

PREFIX = "longshore_"


class Kind(StrEnum):
    COUNTER = "counter"
    """Shown with `_total` at the end."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """In seconds."""


@dataclass(frozen=True)
class Metric:
    """One metric: its name without prefix and suffix, its labels, and what it says."""

    name: str
    kind: Kind
    by: Literal["control", "agent"]
    """Which process has it."""
    labels: tuple[str, ...]
    says: str
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name as Prometheus shows it."""
        return f"{PREFIX}{self.name}{'_total' if self.kind is Kind.COUNTER else ''}"


_FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)

QUEUE_JOBS = Metric(
    "queue_jobs", Kind.GAUGE, "control", ("pool", "held"),
    "Jobs in the queue; held `true` for those kept out of placement.",
)  # fmt: skip
LEASES_LIVE = Metric(
    "leases_live", Kind.GAUGE, "control", ("pool",), "GPUs that a job holds, or several share.",
)  # fmt: skip
GPUS = Metric(
    "gpus", Kind.GAUGE, "control", ("pool", "state"),
    "GPUs of the nodes that have not gone, by the state of their node.",
)  # fmt: skip
CYCLE_SECONDS = Metric(
    "cycle_seconds", Kind.HISTOGRAM, "control", ("pool",),
    "Time of one cycle: read, plan and commit.", _FAST,
)  # fmt: skip
CYCLE_PART_SECONDS = Metric(
    "cycle_part_seconds", Kind.HISTOGRAM, "control", ("pool", "part"),
    "Time of one part of a cycle: `read`, `plan`, `commit`, or `explain` why others wait.", _FAST,
)  # fmt: skip
CYCLE_JOBS = Metric(
    "cycle_jobs", Kind.COUNTER, "control", ("pool",),
    "Jobs that cycles decided about: of a long queue not all that wait.",
)  # fmt: skip
KEPT_DIFFERENCES = Metric(
    "kept_differences", Kind.COUNTER, "control", ("pool",),
    "Rows of queues that a worker kept otherwise than the database had them: a fault of ours.",
)  # fmt: skip
PLACEMENTS = Metric(
    "placements", Kind.COUNTER, "control", ("pool",), "Placements that were committed.",
)  # fmt: skip
PLACEMENTS_REFUSED = Metric(
    "placements_refused", Kind.COUNTER, "control", ("pool",),
    "Placements that no longer held when they were to be committed.",
)  # fmt: skip
PREEMPTIONS = Metric(
    "preemptions", Kind.COUNTER, "control", ("pool",),
    "Attempts that were preempted for another job.",
)  # fmt: skip
REJECTIONS = Metric(
    "rejections", Kind.COUNTER, "control", ("pool", "code"),
    "Nodes ruled out for a job that has to wait, by the constraint; for each job that a cycle "
    "looked at.",
)  # fmt: skip
WAIT_SECONDS = Metric(
    "wait_seconds", Kind.HISTOGRAM, "control", ("pool",),
    "Time from the queue to the placement of an attempt.", _SLOW,
)  # fmt: skip
JOB_ENDS = Metric(
    "job_ends", Kind.COUNTER, "control", ("pool", "state", "failure"),
    "Jobs that ended, by state and failure class; `none` for success.",
)  # fmt: skip
JOBS_LATE = Metric(
    "jobs_late", Kind.COUNTER, "control", ("pool",),
    "Jobs that a cycle found to be late for their deadline as they waited, each once.",
)  # fmt: skip
DEADLINES = Metric(
    "deadlines", Kind.COUNTER, "control", ("pool", "outcome"),
    "Jobs that ended and had a deadline: `met` or `missed`.",
)  # fmt: skip
MARKET_POLLS = Metric(
    "market_looks", Kind.COUNTER, "control", ("provider", "outcome"),
    "Looks at one type at a market: `stored`, `no-quote`, `away` or `refused`.",
)  # fmt: skip
MARKET_ASK = Metric(
    "market_lowest_ask", Kind.GAUGE, "control", ("provider", "instance_type"),
    "Lowest ask at the last look, in dollars per GPU-hour.",
)  # fmt: skip
MARKET_DIFFERENCES = Metric(
    "market_differences", Kind.GAUGE, "control", ("provider", "kind"),
    "Differences between a market and what is known here, by the last pass of reconcile: `order`"
    " and `machine` that nobody here knows, `missing` at the market, a `bill` of another amount"
    " than is booked, `away`.",
)  # fmt: skip
GPUS_BY_CLASS = Metric(
    "gpus_in_use", Kind.GAUGE, "control", ("tenant", "class"),
    "GPUs in use by tenant and who pays: `OWNED`, `SHARED`, `BORROWED`, `UNFUNDED`. Only where a "
    "tenant has a budget; of more than 50 tenants the others as `(others)`.",
)  # fmt: skip
FUNDING_DEMOTIONS = Metric(
    "funding_demotions", Kind.COUNTER, "control", ("pool", "code"),
    "Jobs that lost a payer and run on unfunded, by why; by the pool whose cycle found it.",
)  # fmt: skip
FUNDING_RECALLS = Metric(
    "funding_recalls", Kind.COUNTER, "control", ("pool",),
    "Jobs of which a relative took its envelope back for a job nearer to it.",
)  # fmt: skip
SERVICE_REPLICAS = Metric(
    "service_replicas", Kind.GAUGE, "control", ("service", "state"),
    "Replicas of services: `wanted`, `ready`, `waiting` for a GPU, `over` for those that take "
    "more GPU memory than they hold.",
)  # fmt: skip
SLOT_MEMORY = Metric(
    "slot_memory_bytes", Kind.GAUGE, "control", ("service", "model", "memory"),
    "GPU memory of the engines of a service that have GPUs: `leased` is what they hold, "
    "`estimated` what their model was reckoned with, `used` what they really take. Of more than "
    "100 services the others as `(others)`.",
)  # fmt: skip
PROCESSES = Metric(
    "processes", Kind.GAUGE, "agent", (), "Processes of jobs that this agent runs.",
)  # fmt: skip
LOG_ERRORS = Metric(
    "log_shipping_errors", Kind.COUNTER, "agent", (),
    "Shipments of logs that the log store did not take; each is tried again.",
)  # fmt: skip
HEARTBEAT_SECONDS = Metric(
    "heartbeat_seconds", Kind.HISTOGRAM, "agent", (),
    "Time until the server acknowledged a heartbeat of the agent.", _FAST,
)  # fmt: skip
HEARTBEATS_MISSED = Metric(
    "heartbeats_missed", Kind.COUNTER, "agent", (),
    "Heartbeats of the agent that were not acknowledged.",
)  # fmt: skip
FENCES = Metric(
    "fences", Kind.COUNTER, "agent", (),
    "Times that the agent was cut off for so long that it killed its processes.",
)  # fmt: skip

CATALOGUE = (
    QUEUE_JOBS, LEASES_LIVE, GPUS, CYCLE_SECONDS, CYCLE_PART_SECONDS, CYCLE_JOBS,
    KEPT_DIFFERENCES, PLACEMENTS, PLACEMENTS_REFUSED,
    PREEMPTIONS, REJECTIONS, WAIT_SECONDS, JOB_ENDS, JOBS_LATE, DEADLINES,
    MARKET_POLLS, MARKET_ASK,
    MARKET_DIFFERENCES, GPUS_BY_CLASS, FUNDING_DEMOTIONS, FUNDING_RECALLS,
    SERVICE_REPLICAS, SLOT_MEMORY, PROCESSES, LOG_ERRORS,
    HEARTBEAT_SECONDS, HEARTBEATS_MISSED, FENCES,
)  # fmt: skip


class Metrics:
    """Writes the metrics of the catalogue; into nothing without a meter."""

    def __init__(self, meter: MetricMeter = MetricMeter.noop) -> None:
        """`meter` is that of the process's Runtime."""
        self._counters: dict[Metric, MetricCounter] = {}
        self._gauges: dict[Metric, MetricGaugeFloat] = {}
        self._histograms: dict[Metric, MetricHistogramFloat] = {}
        for metric in CATALOGUE:
            name = f"{PREFIX}{metric.name}"
            if metric.kind is Kind.COUNTER:
                self._counters[metric] = meter.create_counter(name, metric.says)
            elif metric.kind is Kind.GAUGE:
                self._gauges[metric] = meter.create_gauge_float(name, metric.says)
            else:
                self._histograms[metric] = meter.create_histogram_float(name, metric.says, "s")

    def add(self, metric: Metric, count: int = 1, **labels: str) -> None:
        """Count `count` more. Raises KeyError when `metric` is no counter."""
        self._counters[metric].add(count, labels)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Show this value from now on. Raises KeyError when `metric` is no gauge."""
        self._gauges[metric].set(value, labels)

    def observe(self, metric: Metric, seconds: float, **labels: str) -> None:
        """Note one duration. Raises KeyError when `metric` is no histogram."""
        self._histograms[metric].record(max(seconds, 0.0), labels)


SILENT = Metrics()
"""For where nobody listens."""
