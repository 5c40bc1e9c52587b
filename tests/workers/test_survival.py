"""The training of the examples ends with the same weights however it is stopped, and the scene
that shows it says so when it does not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longshore.models.job_status import JobState
from longshore.workers.survival import EXPECTED_ENDS, AttemptSteps, Trained, problems_of
from tests.support.local_stack import ROOT
from tests.support.waiting import eventually

TRAIN = str(ROOT / "examples" / "train.py")
EPOCHS = 60


@pytest.mark.exhaustive  # .ci/run runs it as `make survive`
async def test_a_training_that_is_stopped_and_killed_ends_with_the_same_weights(tmp_path: Path):
    undisturbed = _Training(tmp_path / "calm")
    undisturbed.start()
    assert undisturbed.ended() == 0
    disturbed = _Training(tmp_path / "disturbed", epoch_seconds=0.05)
    for way in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        least = disturbed.epoch() + 5  # so that it trains, and is not about to end
        process = disturbed.start()
        await eventually(lambda least=least: disturbed.epoch() >= least)
        process.send_signal(way)
        assert disturbed.ended() in (128 + signal.SIGTERM, -signal.SIGKILL)
    disturbed.start()
    assert disturbed.ended() == 0
    assert disturbed.output().count("resumed from the checkpoint") == 3
    assert disturbed.digest() == undisturbed.digest()


@pytest.mark.exhaustive
async def test_the_digest_tells_trainings_apart(tmp_path: Path):
    digests: set[str] = set()
    for epochs in (EPOCHS, EPOCHS + 1):
        training = _Training(tmp_path / str(epochs), epochs)
        training.start()
        assert training.ended() == 0
        digests.add(training.digest())
    assert len(digests) == 2


def test_a_training_that_survived_has_no_problems():
    assert problems_of(_trained(), _trained(["success"])) == []


@pytest.mark.parametrize(
    ("disturbed", "problem"),
    [
        ({"digest": "b" * 64}, "the weights differ"),
        ({"digest": ""}, "printed no digest"),
        ({"state": JobState.FAILED}, "should have succeeded"),
    ],
)
def test_what_is_wrong_is_a_problem(disturbed: dict[str, object], problem: str):
    found = problems_of(_trained().model_copy(update=disturbed), _trained(["success"]))
    assert any(problem in each for each in found)


def test_a_step_that_was_left_out_or_a_new_beginning_is_a_problem():
    (found,) = problems_of(_trained(EXPECTED_ENDS[1:]), _trained(["success"]))
    assert "its attempts ended as" in found
    (found,) = problems_of(_trained(resumed_at=0), _trained(["success"]))
    assert "began anew" in found


class _Training:
    """The example with a folder for its checkpoints and its output."""

    def __init__(self, folder: Path, epochs: int = EPOCHS, epoch_seconds: float = 0) -> None:
        folder.mkdir()
        (folder / "output").touch()
        self._folder = folder
        self._epochs = epochs
        self._epoch_seconds = epoch_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "subprocess.Popen[bytes]":
        named = {"LONGSHORE_CHECKPOINT_DIR": str(self._folder), "LONGSHORE_JOB_ID": "job"}
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, TRAIN, "--epochs", str(self._epochs),
                 "--epoch-seconds", str(self._epoch_seconds)],
                env=os.environ | named, stdout=output,
            )  # fmt: skip
        return self._process

    def ended(self) -> int:
        assert self._process
        return self._process.wait(120)

    def output(self) -> str:
        return (self._folder / "output").read_text()

    def epoch(self) -> int:
        done = [line for line in self.output().splitlines() if line.startswith("epoch ")]
        return int(done[-1].split()[1].rstrip(":")) if done else 0

    def digest(self) -> str:
        (line,) = [line for line in self.output().splitlines() if line.startswith("sha256 ")]
        return line.split()[1]


def _trained(ends: list[str] = EXPECTED_ENDS, resumed_at: int = 7) -> Trained:
    return Trained(
        job_id="train-a",
        state=JobState.SUCCEEDED,
        digest="a" * 64,
        accuracy="accuracy 0.95",
        attempts=tuple(
            AttemptSteps(attempt=number, node_id="node", resumed_at=resumed_at, reached=9, end=end)
            for number, end in enumerate(ends, start=1)
        ),
        seconds=1.0,
    )
