"""What `why` says of a job between two attempts: when it is tried again, and what would help."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.client.backoff import failed_in_a_row, with_backoff
from longshore.client.explain import explain
from longshore.models.job_status import AttemptRecord, JobState, JobStatus
from longshore.models.retry import FailureClass
from longshore.models.views import JobView

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
JOB = JobView.model_validate(
    {
        "id": "chat-r1-abcdefghij", "name": "chat", "tenant": "default", "pool": "default",
        "tier": "FAST", "priority": 5, "gpus": 1, "state": JobState.RETRYING,
        "reason": "exited with code 1", "submitted_at": NOW,
    }
)  # fmt: skip


def an_attempt(
    failure: FailureClass | None = FailureClass.USER, *, moved: bool = False
) -> AttemptRecord:
    return AttemptRecord(
        attempt=1, node_id="n", gpu_indices=(0,), placed_at=NOW, failure=failure, moved=moved
    )


def a_status(attempts: int, next_attempt: datetime | None) -> JobStatus:
    return JobStatus(
        job_id=JOB.id, name="chat", tenant="default", pool="default", state=JobState.RETRYING,
        submitted_at=NOW, since=NOW, attempts=(an_attempt(),) * attempts,
        next_attempt=next_attempt,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ((), 0),
        ((an_attempt(), an_attempt()), 2),
        ((an_attempt(), an_attempt(None), an_attempt()), 1),
        ((an_attempt(), an_attempt(FailureClass.NODE, moved=True)), 0),
    ],
)
def test_those_that_failed_in_a_row_are_counted(
    attempts: tuple[AttemptRecord, ...], expected: int
) -> None:
    assert failed_in_a_row(attempts) == expected


def test_of_a_replica_its_last_line_and_its_service_are_named() -> None:
    status = a_status(3, NOW + timedelta(seconds=4))
    told = with_backoff(
        explain(JOB), status, NOW, "chat", "exited with code 1\nloading\nno file\n"
    )
    assert told.headline == (
        "is between attempts: exited with code 1; 3 attempts have failed in a row; the next waits "
        "for GPUs from 2026-11-20 12:00:04 UTC on, in 4s; the last line of its engine: no file"
    )
    assert "`longshore service chat`" in told.hints[0]
    assert "`longshore service chat --remove`" in told.hints[1]


def test_a_line_of_an_engine_is_whole_unless_it_is_very_long() -> None:
    for length, ends in ((300, "x."), (500, "x…")):
        wrote = f"exited with code 1\n{'x' * (length - 1)}."
        assert with_backoff(explain(JOB), None, NOW, "chat", wrote).headline.endswith(ends)


def test_without_an_answer_of_its_workflow_the_remedies_are_told() -> None:
    for status in (None, a_status(1, None), a_status(1, NOW - timedelta(seconds=1))):
        told = with_backoff(explain(JOB), status, NOW)
        assert told.headline == "is between attempts: exited with code 1"
        assert [hint.split("`")[1] for hint in told.hints] == [
            f"longshore logs {JOB.id}", f"longshore cancel {JOB.id}",
        ]  # fmt: skip
