"""What a job's workflow remembers of each attempt."""

from datetime import datetime

from models.job import AttemptRecord, FailureClass
from models.messages import ProcessReport
from models.placement import Placement


def begun(placement: Placement) -> AttemptRecord:
    return AttemptRecord(
        attempt=placement.attempt, node_id=placement.node_id,
        gpu_indices=placement.gpu_indices, placed_at=placement.placed_at,
        other_nodes=tuple(rank.node_id for rank in placement.ranks[1:]),
        other_gpus=tuple(rank.gpu_indices for rank in placement.ranks[1:]),
        spares=tuple(spare.node_id for spare in placement.spares),
    )  # fmt: skip


def ended(
    record: AttemptRecord,
    at: datetime,
    report: ProcessReport,
    failure: FailureClass | None,
    *,
    moved: bool,
) -> AttemptRecord:
    return record.model_copy(
        update={
            "ended_at": at, "failure": failure, "moved": moved, "exit_code": report.exit_code,
            "message": report.message, "failed_on": report.node_id,
            "log_error": report.log_error,
        }
    )  # fmt: skip


def judged(record: AttemptRecord, spares_said: str) -> AttemptRecord:
    """Return the record with what became of its spares."""
    return record.model_copy(update={"spares_said": spares_said})
