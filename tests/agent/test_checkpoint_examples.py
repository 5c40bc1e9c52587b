"""The examples of checkpoints keep the contract: on a node, asked to save, moved to another."""

import subprocess
import sys
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest

from longshore.activities.node.run import Run
from longshore.models.checkpoint import SaveRequest
from longshore.models.document import read_document
from longshore.models.job import JobSpec
from longshore.models.node_messages import ProcessReport, StopProcessRequest
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.local_stack import ROOT
from tests.support.waiting import eventually

EXAMPLES = ROOT / "examples"


async def test_the_shell_example_saves_when_asked_and_moves(
    make_box: MakeBox, tmp_path: Path
) -> None:
    a, b = _nodes(make_box, tmp_path)
    run = _start(a, "checkpoint-shell", 1)
    await eventually(lambda: "step 1 of" in a.output(run.record.key))
    saved = await a.processes.save(SaveRequest(key=run.record.key))
    assert saved.published
    assert saved.step is not None
    await _moves(a, b, run, "checkpoint-shell")


async def test_the_python_example_moves(make_box: MakeBox, tmp_path: Path) -> None:
    a, b = _nodes(make_box, tmp_path)
    run = _start(a, "checkpoint-python", 1)
    await eventually(lambda: "step 1 of" in a.output(run.record.key))
    await _moves(a, b, run, "checkpoint-python")


@pytest.mark.exhaustive
async def test_the_training_moves(make_box: MakeBox, tmp_path: Path) -> None:
    a, b = _nodes(make_box, tmp_path)
    run = _start(a, "train", 1)
    await eventually(lambda: run.progress().checkpoint)
    report = await _stopped(a, run)
    assert report.checkpoint
    again = _start(b, "train", 2)
    words = f"resumed from the checkpoint of epoch {report.checkpoint.step}"
    await eventually(lambda: words in b.output(again.record.key))
    await _stopped(b, again)


def test_the_pytorch_example_is_a_job_file_and_says_what_it_needs() -> None:
    spec = read_document(EXAMPLES / "checkpoint-torch.yaml", JobSpec)
    assert spec.checkpoint
    assert spec.checkpoint.can_be_asked
    if find_spec("torch") is None:
        command = [sys.executable, str(EXAMPLES / "checkpoint_torch.py")]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert "pip install torch" in ran.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed here")
async def test_the_pytorch_example_moves(make_box: MakeBox, tmp_path: Path) -> None:
    a, b = _nodes(make_box, tmp_path)
    run = _start(a, "checkpoint-torch", 1)
    await eventually(lambda: run.started.done())
    assert (await a.processes.save(SaveRequest(key=run.record.key))).published
    await _moves(a, b, run, "checkpoint-torch")


def _nodes(make_box: MakeBox, folder: Path) -> tuple[LocalNode, LocalNode]:
    store = (folder / "store").as_uri()
    return make_box(folder / "a", checkpoints=store), make_box(folder / "b", checkpoints=store)


def _start(node: LocalNode, example: str, attempt: int) -> Run:
    """Start an example with a folder of checkpoints that is this node's own."""
    spec = read_document(EXAMPLES / f"{example}.yaml", JobSpec)
    assert spec.checkpoint
    command = [{"python": sys.executable, "python3": sys.executable}.get(w, w) for w in spec.argv]
    contract = spec.checkpoint.model_copy(update={"folder": str(node.folder / "saved")})
    return node.processes.start(
        node.request(
            command, job="job-a", attempt=attempt, workdir=str(EXAMPLES),
            checkpoint=contract.model_dump(mode="json"),
        )
    )  # fmt: skip


async def _moves(a: LocalNode, b: LocalNode, run: Run, example: str) -> None:
    """A job is stopped on one node and goes on on another, from the step that it saved."""
    report = await _stopped(a, run)
    assert report.checkpoint
    assert report.checkpoint.published
    again = _start(b, example, 2)
    words = f"attempt 2 goes on after step {report.checkpoint.step}"
    await eventually(lambda: words in b.output(again.record.key))
    await _stopped(b, again)


async def _stopped(node: LocalNode, run: Run) -> ProcessReport:
    await node.processes.stop(
        StopProcessRequest(key=run.record.key, grace=timedelta(seconds=60), reason="test")
    )
    return run.done.result()
