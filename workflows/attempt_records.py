"""What a job's workflow remembers of each attempt."""

from collections.abc import Sequence
from datetime import datetime

from longshore.models.bounds import json_bytes
from longshore.models.job_status import AttemptRecord
from longshore.models.node_messages import ProcessReport
from longshore.models.placement import Placement
from longshore.models.retry import FailureClass

SHOWN = 20
"""Attempts that a job's status tells of."""
_MOST_CARRIED = 500_000
"""Bytes of attempts that go over to the next run of the workflow: Temporal takes 2 MiB at once."""


def begun(placement: Placement) -> AttemptRecord:
    return AttemptRecord(
        attempt=placement.attempt, node_id=placement.node_id,
        gpu_indices=placement.gpu_indices, placed_at=placement.placed_at,
        other_nodes=tuple(rank.node_id for rank in placement.ranks[1:]),
        other_gpus=tuple(rank.gpu_indices for rank in placement.ranks[1:]),
        spares=tuple(spare.node_id for spare in placement.spares),
    )  # fmt: skip


def with_ranks(record: AttemptRecord, ranks: Sequence[Placement]) -> AttemptRecord:
    """Return the record of an attempt that goes on with these ranks alone.

    A node that joined comes last; one that came back has its old place.
    """
    places = dict(zip(record.other_nodes, record.other_gpus or _no_gpus(record), strict=True))
    has = {rank.node_id: rank.gpu_indices for rank in ranks if rank.rank}
    places |= {n: gpus for n, gpus in has.items() if n in record.left or n not in places}
    return record.model_copy(
        update={
            "left": tuple(node_id for node_id in places if node_id not in has),
            "other_nodes": tuple(places), "other_gpus": tuple(places.values()),
        }
    )  # fmt: skip


def _no_gpus(record: AttemptRecord) -> tuple[tuple[int, ...], ...]:
    return ((),) * len(record.other_nodes)


def ended(
    record: AttemptRecord,
    at: datetime,
    report: ProcessReport,
    failure: FailureClass | None,
    *,
    moved: bool,
    resized: bool = False,
) -> AttemptRecord:
    return record.model_copy(
        update={
            "ended_at": at, "failure": failure, "moved": moved, "resized": resized,
            "exit_code": report.exit_code, "message": report.message, "failed_on": report.node_id,
            "log_error": report.log_error,
        }
    )  # fmt: skip


def carried(records: Sequence[AttemptRecord]) -> tuple[AttemptRecord, ...]:
    """Return the last of them, as far as they go with the largest spec into one message."""
    left, kept = _MOST_CARRIED, list[AttemptRecord]()
    for record in reversed(records[-SHOWN:]):
        left -= json_bytes(record)
        if left < 0:
            break
        kept.insert(0, record)
    return tuple(kept)


def judged(record: AttemptRecord, spares_said: str) -> AttemptRecord:
    """Return the record with what became of its spares."""
    return record.model_copy(update={"spares_said": spares_said})
