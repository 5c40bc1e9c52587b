"""What steers a terminal or turns text around is written out on every screen of the command line.

Whoever writes a job file, a reason or a line of progress may write it. `test_visible.py` has what
is written out; here are the places.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import RenderableType

from longshore.client.explain import explain
from longshore.client.job_view import job_screen, jobs_table
from longshore.client.live import Lines, job_panel
from longshore.client.node_view import nodes_table
from longshore.client.terminal import note
from longshore.client.why_view import explanation_screen
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import AttemptRecord, JobState
from longshore.models.node_messages import Progress
from longshore.models.placement import Decision, PlacementKind
from tests.client.conftest import Ran
from tests.support.screens import MINUTE, NOW, a_job, a_node, a_running_job, a_status, drawn

BAD = "\x1b]0;x\x07\x1b[2J\u202egpj.exe\u2066\x9b31m"
SHOWN = r"\x1b]0;x\x07\x1b[2J\u202egpj.exe\u2066\x9b31m"
SPEC = JobSpec.model_validate(
    {
        "name": "train", "gpus": 4, "gpu_type": BAD, "command": ["python", BAD],
        "workdir": f"/{BAD}", "data": [f"set{BAD}"], "env": {"A": BAD},
    }
)  # fmt: skip
LOST = AttemptRecord(
    attempt=1, node_id="node-b", gpu_indices=(0,), placed_at=NOW - 9 * MINUTE,
    ended_at=NOW - 5 * MINUTE, message=BAD,
)  # fmt: skip
RUNS = AttemptRecord(attempt=2, node_id="node-a", gpu_indices=(0,), placed_at=NOW)
SAID = Progress(fraction=0.25, message=BAD, started_at=NOW)


def of_a_running_job() -> RenderableType:
    status = a_status(JobState.RUNNING, attempt=2, attempts=(LOST, RUNS), reason=BAD)
    job = a_running_job(gpu_type=BAD, reason=BAD)
    return job_screen(JobReport(job=job, status=status, progress=SAID, spec=SPEC), NOW)


def of_an_ended_job() -> RenderableType:
    job = a_job(JobState.CANCELLED, gpu_type=BAD, reason=BAD, ended_at=NOW)
    return job_screen(JobReport(job=job, spec=SPEC), NOW)


def of_jobs() -> RenderableType:
    ended = a_job(JobState.FAILED, reason=BAD, failure="user", ended_at=NOW)
    return jobs_table([a_job(gpu_type=BAD, reason=BAD), a_job(JobState.HELD, reason=BAD), ended],
                      NOW, 400)  # fmt: skip


def of_why() -> RenderableType:
    last = Decision(job_id="x", kind=PlacementKind.REQUEST_MORE_CAPACITY, reason=BAD)
    return explanation_screen(explain(a_job(gpu_type=BAD), last=last, position=1, nodes=1), NOW)


def of_why_held() -> RenderableType:
    return explanation_screen(explain(a_job(JobState.HELD, reason=BAD), nodes=1), NOW)


def of_nodes() -> RenderableType:
    cordoned = a_node(BAD, state="DRAINING", state_reason=BAD, gpu_type=BAD)
    return nodes_table([cordoned, a_node(None, state="LOST", state_reason=BAD)], NOW, 400)


def of_a_panel() -> RenderableType:
    return job_panel(a_status(JobState.RUNNING, attempts=(RUNS,), reason=BAD), SAID)


@pytest.mark.parametrize(
    ("screen", "times"),
    [
        (of_a_running_job, 5), (of_an_ended_job, 3), (of_jobs, 3), (of_why, 1), (of_why_held, 1),
        (of_nodes, 3), (of_a_panel, 1),
    ],
    ids=lambda of: getattr(of, "__name__", ""),
)  # fmt: skip
def test_a_screen_shows_them_written_out(screen: Callable[[], RenderableType], times: int):
    text = "".join(drawn(screen(), 400))
    assert text.count(SHOWN) >= times
    assert not {each for each in text if each in BAD and not each.isprintable()}


def test_so_does_what_is_written_line_by_line(capfd: pytest.CaptureFixture[str]) -> None:
    lines = Lines(note)
    lines.changed(a_status(JobState.QUEUED, reason=BAD))
    lines.progressed(SAID)
    text = capfd.readouterr().err
    assert text.count(SHOWN) == 2
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "document",
    [
        {BAD: 1},
        {"gang": {BAD: 1}},
        {"env": {BAD: "x"}},
        {"data": {f"a {BAD}": 1}},
        {"name": BAD},
        {"tier": BAD},
        {"ram": BAD},
    ],
    ids=["field", "inner", "variable", "data", "name", "choice", "size"],
)
def test_a_mistake_in_a_job_file_is_told_with_them_written_out(
    cli: Callable[..., Ran], tmp_path: Path, document: dict[str, object]
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"name": "a", "command": "true", **document}))
    ran = cli("submit", str(file))
    assert ran.code == 65
    assert r"\x1b" in ran.err
    assert not {each for each in ran.err if each in BAD and not each.isprintable()}
