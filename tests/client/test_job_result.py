"""How a job ended is shown also where its workflow does not say it."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.client.job_view import job_screen
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import JobResult, JobState
from longshore.models.retry import FailureClass
from longshore.models.views import AttemptView
from tests.support.screens import MINUTE, NOW, a_job, a_status, drawn

SPEC = JobSpec(name="train", command="true")
ATTEMPT = AttemptView(attempt=2, placed_at=NOW - 2 * MINUTE, ended_at=NOW, shares=())


def a_report(state: JobState, *attempts: AttemptView, **fields: Any) -> JobReport:
    job = a_job(state, **{"ended_at": NOW, "attempt": 2, **fields})
    return JobReport(job=job, spec=SPEC, attempts=attempts)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (a_report(JobState.SUCCEEDED, ATTEMPT, exit_code=0), "exit code 0, 2 attempts"),
        (a_report(JobState.FAILED, ATTEMPT, failure=FailureClass.NODE), "2 attempts"),
        (a_report(JobState.CANCELLED, attempt=1), "0 attempts"),
    ],
)
def test_the_database_says_the_result_where_the_workflow_does_not(
    report: JobReport, said: str
) -> None:
    shown = drawn(job_screen(report.without_live("it was started again"), NOW))
    assert [line.split(maxsplit=1) for line in shown if line.startswith("result")] == [
        ["result", said]
    ]


@pytest.mark.parametrize(
    ("counts", "lines"),
    [
        ({"resizes": 4}, ["resized 4 times"]),
        (
            {"preemptions": 1, "resizes": 4},
            ["preempted preempted 1 time", "resized 4 times"],
        ),
    ],
)
def test_resizes_are_counted_apart_from_preemptions(counts: dict[str, int], lines: list[str]):
    status = a_status(JobState.RUNNING, **counts)
    report = a_report(JobState.RUNNING, ended_at=None)
    shown = drawn(job_screen(report.model_copy(update={"status": status}), NOW))
    found = [" ".join(line.split()) for line in shown]
    assert [line for line in found if line.startswith(("preempted", "resized"))] == lines


def test_what_the_workflow_says_goes_first_and_a_job_that_runs_has_no_result() -> None:
    result = JobResult(job_id="x", state=JobState.SUCCEEDED, exit_code=0, attempts=3)
    status = a_status(JobState.SUCCEEDED, result=result)
    report = a_report(JobState.SUCCEEDED, ATTEMPT, exit_code=0)
    shown = drawn(job_screen(report.model_copy(update={"status": status}), NOW))
    assert "exit code 0, 3 attempts" in "\n".join(shown)
    queued = a_report(JobState.QUEUED, ended_at=None, submitted_at=NOW - timedelta(hours=1))
    assert not [line for line in drawn(job_screen(queued, NOW)) if line.startswith("result")]
