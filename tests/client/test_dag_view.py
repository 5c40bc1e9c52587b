"""How a DAG is drawn and told of: times, what to do next, and each change with when it was."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType

from longshore.client.dag_view import change_lines, dag_screen, tree_table
from longshore.console.dags_view import jobs_html
from longshore.models.dag import (
    DagJobView,
    DagState,
    DagView,
    Edge,
    Join,
    OnFailure,
    StepState,
)
from longshore.models.job import JobState

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def a_step(name: str, step: StepState, after: dict[str, Any] | None = None, **fields: Any) -> Any:
    edges = {up: Edge.model_validate(edge) for up, edge in (after or {}).items()}
    return DagJobView(name=name, after=edges, join=Join.ALL, step=step, gpus=1, **fields)


def a_view(*steps: DagJobView, **fields: Any) -> DagView:
    basics: dict[str, Any] = {
        "id": "d-abcdefghij", "name": "d", "tenant": "lab", "state": DagState.RUNNING,
        "submitted_at": ago(100), "jobs": len(steps), "counts": {}, "on_failure": "continue",
        "steps": steps,
    }  # fmt: skip
    return DagView(**{**basics, "on_failure": OnFailure.CONTINUE, **fields})


def printed(what: RenderableType) -> str:
    console = Console(width=160, file=None, record=True, quiet=False)
    with console.capture() as found:
        console.print(what)
    return found.get()


def test_a_job_that_ended_and_never_ran_took_no_time():
    told = a_view(
        a_step("gone", StepState.WITHDRAWN, submitted_at=ago(30), ended_at=ago(19)),
        a_step("never", StepState.FAILED, submitted_at=ago(30), ended_at=ago(22)),
        a_step(
            "ran", StepState.FAILED, submitted_at=ago(30), started_at=ago(20), ended_at=ago(15)
        ),
        a_step("waits", StepState.SUBMITTED, state=JobState.QUEUED, submitted_at=ago(7)),
    )
    lines = printed(tree_table(told, NOW, 160)).splitlines()
    assert [("11s" in line, "8s" in line, "5s" in line, "7s" in line) for line in lines[1:5]] == [
        (False, False, False, False),
        (False, False, False, False),
        (False, False, True, False),
        (False, False, False, True),
    ]
    html = jobs_html(told, NOW)
    assert ("11s" in html, "8s" in html, "5s" in html) == (False, False, True)


def test_what_to_do_next_names_a_failure_that_nobody_caught():
    told = a_view(
        a_step("a", StepState.FAILED, job_id="d.a"),
        a_step("catcher", StepState.FAILED, {"a": "failure"}, job_id="d.catcher"),
        state=DagState.FAILED, ended_at=NOW,
    )  # fmt: skip
    assert "Next: longshore logs d.catcher, then longshore dag retry" in printed(
        dag_screen(told, NOW, 160)
    )


def test_each_change_has_the_time_at_which_it_happened():
    ended = a_view(
        a_step("b", StepState.FAILED, job_id="d.b", submitted_at=ago(60), ended_at=ago(20)),
        a_step("a", StepState.SUCCEEDED, job_id="d.a", submitted_at=ago(90), ended_at=ago(50)),
        state=DagState.FAILED, ended_at=ago(10),
    )  # fmt: skip
    lines = change_lines(None, ended, NOW)
    assert [(at, line.split()[0]) for at, line in lines] == [
        (ago(50), "a"), (ago(20), "b"), (ago(10), "FAILED"),
    ]  # fmt: skip


@pytest.mark.parametrize("seen_before", [False, True])
def test_what_a_retry_keeps_is_no_change(seen_before: bool):
    kept = a_step("a", StepState.SUCCEEDED, job_id="d.a", ended_at=ago(500))
    waits = a_step("b", StepState.WAITING, generation=2)
    runs = a_step(
        "b", StepState.SUBMITTED, generation=2, state=JobState.RUNNING, job_id="d.b.r2",
        submitted_at=ago(9), started_at=ago(4),
    )  # fmt: skip
    before = a_view(kept, waits, generation=2) if seen_before else None
    lines = change_lines(before, a_view(kept, runs, generation=2), NOW)
    assert lines == [(ago(4), "b  RUNNING")]


def test_a_job_that_runs_a_second_time_changed_now():
    """Of an attempt after the first it is not known when it began."""
    queued = a_step(
        "a", StepState.SUBMITTED, state=JobState.QUEUED, job_id="d.a", submitted_at=ago(90),
        started_at=ago(80),
    )  # fmt: skip
    running = queued.model_copy(update={"state": JobState.RUNNING})
    assert change_lines(a_view(queued), a_view(running), NOW) == [(NOW, "a  RUNNING")]
