"""What happened between two looks at the demo, in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from longshore.models.job_status import JobState
from longshore.models.node import NodeState
from longshore.models.text import format_places
from longshore.models.views import JobView, NodeView
from longshore.workers.demo.state import Snapshot


@dataclass(frozen=True)
class Event:
    at: datetime
    kind: str
    """One word: placed, finished, queued, cancelled, killed, lost, recovered, failed, note."""
    text: str


def events_between(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    """Yield what changed, nodes first."""
    for node in after.nodes:
        yield from _of_node(before.node(node.id), node, after.at)
    for job in after.jobs:
        yield from _of_job(before.job(job.id), job, after.at)


def _of_node(before: NodeView | None, node: NodeView, at: datetime) -> Iterator[Event]:
    simulated = f"{len(node.gpus)} simulated {node.gpu_type}" if node.simulated else node.gpu_type
    if before is None:
        yield Event(at, "joined", f"{node.id} with {simulated}")
    elif node.epoch > before.epoch:
        yield Event(at, "recovered", f"{node.id} has registered again (epoch {node.epoch})")
    elif node.state is not before.state:
        kind = "lost" if node.state is NodeState.LOST else "note"
        yield Event(at, kind, f"{node.id} is {node.state.value}: {node.state_reason}")


def _of_job(before: JobView | None, job: JobView, at: datetime) -> Iterator[Event]:
    if before is not None and (before.state, before.attempt) == (job.state, job.attempt):
        return
    if job.state.ended:
        yield _end_of(job, at)
    elif job.state is JobState.RUNNING:
        again = f", attempt {job.attempt}" if job.attempt > 1 else ""
        yield Event(at, "placed", f"{job.name} on {format_places(job.places)}{again}")
    elif before is not None and before.state is JobState.RUNNING:
        yield Event(at, "requeued", f"{job.name} waits again, after attempt {before.attempt}")


def _end_of(job: JobView, at: datetime) -> Event:
    if job.state is JobState.SUCCEEDED:
        ran = ""
        if job.ended_at and job.started_at:
            ran = f" after {(job.ended_at - job.started_at).total_seconds():.1f} s"
        return Event(at, "finished", f"{job.name}{ran}")
    kind = "cancelled" if job.state is JobState.CANCELLED else "failed"
    return Event(at, kind, f"{job.name}: {job.reason}")
