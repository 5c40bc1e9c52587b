"""What is made of the supervisor's last word."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from longshore.activities.node.outcome import AGENT_STOPPED, CUT_OFF, report_of
from longshore.activities.node.runs import RunRecord
from longshore.models.messages import TIME_ENDED
from longshore.models.node_messages import ProcessReport, Progress
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode

KILLED = -9


def said(
    end: dict[str, Any],
    *,
    indirect: bool = False,
    in_image: bool = False,
    stop_reason: str | None = None,
) -> ProcessReport:
    record = RunRecord(
        job_id="a", attempt=1, epoch=1, claimed_at=datetime.now(UTC), indirect=indirect,
        in_image=in_image,
        stop_reason=stop_reason,
    )  # fmt: skip
    return report_of(record, end, None, Progress())


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        ({"status": KILLED, "oom": True}, FailureClass.OUT_OF_MEMORY),
        ({"status": 137, "oom": True}, FailureClass.OUT_OF_MEMORY),  # a shell tells of its child
        ({"status": KILLED, "oom": False}, FailureClass.USER),
        ({"status": KILLED}, FailureClass.USER),
        ({"status": -15, "oom": True}, FailureClass.USER),
        ({"status": 1, "oom": True}, FailureClass.USER),
        ({"status": 0, "oom": True}, None),
    ],
)
def test_the_kernel_killed_for_memory_only_what_it_killed(
    end: dict[str, Any], failure: FailureClass | None
):
    report = said({"cause": "exited", **end})
    assert report.failure is failure
    assert ("for lack of memory" in report.message) is (failure is FailureClass.OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("number", "killed"),
    [
        (1, "; 1 process that it left behind was killed"),
        (2, "; 2 processes that it left behind were killed"),
    ],
)
def test_what_it_left_behind_is_counted(number: int, killed: str):
    report = said({"cause": "exited", "status": 0, "leftovers": number})
    assert report.message.endswith(killed)


def test_what_was_killed_after_its_grace_was_not_killed_for_memory():
    report = said(
        {"cause": "stopped", "status": KILLED, "oom": True, "overdue": True}, stop_reason="held"
    )
    assert (report.failure, report.stopped_for, report.exit_code) == (None, "held", 137)


@pytest.mark.parametrize(
    ("cause", "failure"),
    [
        ("fenced", FailureClass.NETWORK),
        ("agent-gone", FailureClass.NODE),
        ("both-gone", FailureClass.NODE),
        ("supervisor-gone", FailureClass.NODE),
    ],
)
def test_whose_fault_it_is_follows_from_who_ended_it(cause: str, failure: FailureClass):
    assert said({"cause": cause, "status": KILLED, "oom": True}).failure is failure


def test_a_supervisor_that_a_job_stopped_brings_it_no_other_try_after_its_time_limit():
    record = RunRecord(
        job_id="a", attempt=1, epoch=1, claimed_at=datetime.now(UTC),
        stop_reason="its time limit of 6s has passed", stopped_as=FailureClass.TIME_LIMIT,
    )  # fmt: skip
    report = report_of(record, {"cause": "supervisor-gone", "status": KILLED}, None, Progress())
    assert report.failure is FailureClass.TIME_LIMIT
    assert "time limit of 6s" in report.message
    of_a_user = record.model_copy(update={"stop_reason": "held", "stopped_as": None})
    report = report_of(of_a_user, {"cause": "supervisor-gone", "status": KILLED}, None, Progress())
    assert report.failure is FailureClass.NODE


def test_what_a_killed_supervisor_left_is_told_where_it_could_not_be_ended():
    """A process of another user, as by sudo."""
    report = said({"cause": "supervisor-gone", "left": 2})
    assert report.failure is FailureClass.NODE
    assert report.message == (
        "the supervisor of the process was killed; 2 processes that it left could not be ended"
    )


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        (CUT_OFF, FailureClass.NETWORK),
        (AGENT_STOPPED, FailureClass.NODE),
        (TIME_ENDED, FailureClass.NODE),
        ("preempted for b", None),
    ],
)
def test_a_stop_is_a_failure_only_where_nobody_asked_for_it(
    reason: str, failure: FailureClass | None
):
    end = {"cause": "stopped", "status": -15}
    assert said(end, stop_reason=reason).failure is failure


@pytest.mark.parametrize("code", [125, 126, 127])
def test_what_a_shell_or_a_container_could_not_start_has_not_started(code: int):
    end = {"cause": "exited", "status": code}
    assert said(end, indirect=True, in_image=True).failure is FailureClass.START
    assert said(end).failure is FailureClass.USER


@pytest.mark.parametrize(
    ("code", "failure"),
    [(125, FailureClass.USER), (126, FailureClass.START), (127, FailureClass.START)],
)
def test_125_is_the_word_of_a_container_runtime_alone(code: int, failure: FailureClass):
    report = said({"cause": "exited", "status": code}, indirect=True)
    assert report.failure is failure
    assert ("container" in report.message) is False


async def test_a_shell_that_ends_with_125_has_failed_and_was_started(box: LocalNode):
    assert (await box.report("exit 125")).message == "exited with code 125"
    of_batch = (await box.start_batch("exit 125", 1).done).batch
    assert of_batch
    assert of_batch.results[0].failure is FailureClass.USER


async def test_a_container_that_could_not_be_started_has_not(box: LocalNode, tmp_path: Path):
    runtime = tmp_path / "runtime"
    runtime.write_text("#!/bin/sh\nexit 125\n")
    runtime.chmod(0o755)
    box.inventory = box.inventory.model_copy(update={"container_runtime": str(runtime)})
    box.life()
    report = await box.report("true", image="no-such-image")
    assert (report.failure, report.exit_code) == (FailureClass.START, 125)
