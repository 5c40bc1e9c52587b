"""How a DAG is drawn and told of: times, what to do next, and each change with when it was."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType

from longshore.client.dag_mermaid import mermaid
from longshore.client.dag_view import change_lines, dag_screen, told, tree_table
from longshore.console.dags_view import drawing_html, jobs_html
from longshore.models.dag import Join, OnFailure
from longshore.models.dag_edges import Edge
from longshore.models.dag_view import DagJobView, DagState, DagView, StepState
from longshore.models.job_status import JobState

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


def printed(what: RenderableType, width: int = 160) -> str:
    console = Console(width=width, file=None, record=True, quiet=False)
    with console.capture() as found:
        console.print(what)
    return found.get()


@pytest.mark.parametrize(
    ("edge", "drawn"),
    [
        ({"condition": "corresponding"}, "(corresponding)"),
        ({"condition": "corresponding", "extra": "wait"}, "(corresponding, extra wait)"),
        ({"condition": "aftercorr", "extra": "wait"}, "(aftercorr, extra wait)"),
        ({"condition": "failure"}, "(failure)"),
        ({"condition": "failure", "catch": False}, "(failure, catch false)"),
        ({"condition": "afternotok", "catch": False}, "(afternotok, catch false)"),
        ({"condition": "afterany", "catch": False}, "(afterany)"),
    ],
)
def test_an_edge_is_drawn_with_what_it_says_besides(edge: dict[str, Any], drawn: str):
    told = a_view(
        a_step("a", StepState.SUCCEEDED, array="0-3"),
        a_step("b", StepState.WAITING, {"a": edge}, array="0-9"),
    )
    assert drawn in printed(tree_table(told, NOW, 160))
    assert f"a {drawn}" in jobs_html(told, NOW)
    assert f"|{drawn[1:-1]}|" in mermaid(told)
    waits = "elements without a partner wait for all of it"
    assert (waits in drawing_html(told)) == ("wait" in drawn)
    assert ("fails the DAG all the same" in drawing_html(told)) == ("catch" in drawn)


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


def a_pipeline() -> DagView:
    caught = {"condition": "failure", "catch": False}
    done: Any = {"submitted_at": ago(90), "started_at": ago(90), "ended_at": ago(14)}
    evaluate = "pipeline-abcdefghij.evaluate"
    return a_view(
        a_step("prepare", StepState.SUCCEEDED, array="0-7%2", gpu_type="H100-80GB",
               job_id="pipeline-abcdefghij.prepare", **done),
        a_step("train", StepState.FAILED, {"prepare": "success"}, exit_code=3, reason="user",
               job_id="pipeline-abcdefghij.train", **done),
        a_step("evaluate", StepState.SUCCEEDED, {"train": "success"}, job_id=evaluate, **done),
        a_step("notify", StepState.WITHDRAWN, {"prepare": caught, "train": caught,
               "evaluate": caught}, reason="needs the failure of prepare, which succeeded, and 2 "
               "more conditions"),
        id="pipeline-abcdefghij",
    )  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 119])
def test_a_narrow_screen_cuts_no_state_no_gpus_and_no_time_and_folds_the_rest(width: int):
    told = a_pipeline()
    screen = printed(tree_table(told, NOW, width), width)
    lines = screen.splitlines()
    assert all(len(line) <= width for line in lines)
    for name, state in (("prepare [0-7%2]", "SUCCEEDED"), ("└─ train", "FAILED"),
                        ("   └─ evaluate", "SUCCEEDED")):  # fmt: skip
        (line,) = [each for each in lines if each.startswith(name)]
        assert f" {state} " in line
        assert " 1m 16s" in line
    assert "1xH100-80GB" in screen
    assert "WITHDRAWN" in screen
    words = " ".join(screen.split())
    for part in ("exit code 3: user", "needs the", "conditions", "and after"):
        assert part in words, screen
    assert "pipeline-abcdefghij" not in screen, "the line above has it"
    assert "…" not in screen
    at = lines.index(next(each for each in lines if "└─ notify" in each))
    assert lines[at + 1].startswith(" " * 9), "what folds stands below its name"


def test_a_wide_screen_has_a_line_for_each_job():
    told = a_pipeline()
    assert len(printed(tree_table(told, NOW, 400), 400).splitlines()) == 1 + len(told.steps)
    screen = printed(dag_screen(told, NOW, 4000), 4000)
    assert "notify (failure, catch false)  and after prepare (failure, catch false), " in screen


def test_long_names_deep_in_a_narrow_tree_are_whole():
    names = [f"a-job-with-a-name-that-is-long-{number:02}" for number in range(30)]
    steps = [
        a_step(name, StepState.WAITING, {names[number - 1]: "success"} if number else None)
        for number, name in enumerate(names)
    ]
    screen = printed(tree_table(a_view(*steps), NOW, 80), 80)
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert screen.count("WAITING") == len(names)
    first = screen.index("state")
    joined = re.sub(r"[^a-z0-9-]", "", "".join(line[:first] for line in screen.splitlines()))
    assert all(name in joined for name in names)


def test_a_chart_has_the_title_the_indices_and_the_states_as_show_has_them():
    runs = a_step("a", StepState.SUBMITTED, state=JobState.RUNNING, array="0-9%3")
    held = a_step("b", StepState.SUBMITTED, {"a": "any"}, state=JobState.HELD)
    last = a_step("c", StepState.WAITING, {"b": "success"}, mutex=("disk",))
    lines = mermaid(a_view(runs, held, last)).split("\n")
    assert lines[:4] == ["---", 'title: "d-abcdefghij"', "---", "flowchart TD"]
    assert '    j0["a [0-9%3]<br/>RUNNING"]' in lines
    assert '    j2["c<br/>WAITING<br/>mutex disk"]' in lines
    assert "    class j0 RUNNING" in lines
    assert "    class j1 HELD" in lines
    fills = {line.split()[1]: line.split()[2] for line in lines if "classDef" in line}
    assert fills["RUNNING"] != fills["HELD"] == fills["WAITING"]
    assert "SUBMITTED" not in "".join(lines)


def test_submitted_jobs_are_told_by_their_own_states():
    dag = a_view(
        counts={StepState.WAITING: 5, StepState.SUBMITTED: 4, StepState.SUCCEEDED: 3},
        submitted={JobState.RUNNING: 1, JobState.HELD: 2},
    )  # fmt: skip
    assert told(dag) == "3 SUCCEEDED, 2 HELD, 1 RUNNING, 1 SUBMITTED, 5 WAITING"
