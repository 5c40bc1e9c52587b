"""The demo's jobs: their shapes fit, they are the same every time, and their programs work."""

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.document import read_document
from longshore.models.job import JobSpec, Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.workers.demo.jobs import (
    EXAMPLES,
    GPUS_PER_NODE,
    LONGEST,
    NODE_CPUS,
    NODE_RAM,
    POOL,
    SHORTEST,
    TRACE_SECONDS,
    VRAM_PER_GPU,
    demo_jobs,
    run_seconds,
    sample,
)
from longshore.workers.processes import wait_until

FULL_LIST = os.environ.get("OPENB_POD_LIST")
NODE = Node(
    id="demo-1",
    gpus=tuple(GPU(index=index, vram=VRAM_PER_GPU) for index in range(GPUS_PER_NODE)),
    cpus=NODE_CPUS,
    ram=NODE_RAM,
)


def test_every_job_fits_an_empty_node(tmp_path: Path) -> None:
    training, _, *others = demo_jobs(47, 3, 1, tmp_path)
    for spec in (training, *others):
        need = JobRequest(
            id=spec.name, tier=spec.tier, gpus=spec.gpus, vram_per_gpu=spec.vram_per_gpu,
            cpus=spec.cpus, ram=spec.ram,
        )  # fmt: skip
        assert could_ever_hold(NODE, need), spec
        assert (spec.pool, spec.tier) == (POOL, Tier.FAST)


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_the_gang_fits_beside_the_training_on_as_many_nodes_as_there_are(
    nodes: int, tmp_path: Path
) -> None:
    _, gang, *_ = demo_jobs(47, nodes, 1, tmp_path)
    assert gang.gang is not None
    assert GPUS_PER_NODE < gang.gpus < GPUS_PER_NODE * nodes


def test_jobs_are_the_same_every_time_and_of_another_order_with_another_seed(
    tmp_path: Path,
) -> None:
    first, again, other = (demo_jobs(47, 3, seed, tmp_path) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(job.name for job in first) == sorted(job.name for job in other)


def test_more_jobs_than_pods_have_names_of_their_own(tmp_path: Path) -> None:
    jobs = demo_jobs(120, 3, 1, tmp_path)
    assert len({job.name for job in jobs}) == 120


def test_the_sample_has_every_shape() -> None:
    rows = sample()
    shapes = [(int(row["num_gpu"]), int(row["gpu_milli"]) < 1000) for row in rows]
    assert {count for count, _ in shapes} == {1, 2, 4, 8}
    assert sum(part for _, part in shapes) == 16
    assert len(rows) == len({row["name"] for row in rows}) == 45


@pytest.mark.skipif(FULL_LIST is None, reason="OPENB_POD_LIST names no full list of the trace")
def test_the_sample_is_made_again_from_the_full_list() -> None:
    assert FULL_LIST is not None
    script = EXAMPLES / "trace" / "sample.py"
    made = subprocess.run([sys.executable, script, FULL_LIST], capture_output=True, check=True)
    assert made.stdout == (EXAMPLES / "trace" / "sample.csv").read_bytes()


def test_picks_of_the_sample_are_spread_over_the_list() -> None:
    script = runpy.run_path(str(EXAMPLES / "trace" / "sample.py"))
    assert script["_evenly"](list(range(100)), 4) == [12, 37, 62, 87]
    assert script["_evenly"]([7, 8, 9], 3) == [7, 8, 9]


@given(st.floats(0, 2 * TRACE_SECONDS), st.floats(0, 2 * TRACE_SECONDS))
def test_pods_that_lived_longer_become_jobs_that_run_longer(one: float, other: float) -> None:
    shorter, longer = sorted((one, other))
    assert SHORTEST <= run_seconds(shorter) <= run_seconds(longer) <= LONGEST


@pytest.mark.parametrize("name", ["hello", "fail", "wide", "train", "job", "gang", "meet"])
def test_examples_are_job_files(name: str) -> None:
    assert read_document(EXAMPLES / f"{name}.yaml", JobSpec).command


def test_the_load_says_what_it_does(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    env = {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "LONGSHORE_NODE_ID": "demo-1",
        "LONGSHORE_SIMULATED_GPUS": "1",
        "LONGSHORE_PROGRESS_FILE": str(progress),
    }
    command = [sys.executable, "-I", "-S", EXAMPLES / "load.py", "--seconds", "0.3"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "demo-1, simulated GPUs 2,3" in done.stdout
    assert progress.read_text() == "1.00 done\n"


def test_the_training_saves_when_stopped_and_goes_on_to_the_end(tmp_path: Path) -> None:
    checkpoint = tmp_path / "train-1.joblib"
    env = os.environ | {"LONGSHORE_CHECKPOINT_DIR": str(tmp_path), "LONGSHORE_JOB_ID": "train-1"}
    command = [sys.executable, str(EXAMPLES / "train.py"), "--epoch-seconds"]

    first = subprocess.Popen([*command, "60"], env=env, stdout=subprocess.PIPE, text=True)
    assert wait_until(checkpoint.exists, 60)
    first.send_signal(signal.SIGTERM)
    said, _ = first.communicate(timeout=60)
    assert "stopped after epoch 1; the checkpoint is saved" in said
    assert first.returncode == 128 + signal.SIGTERM

    second = subprocess.run([*command, "0"], env=env, capture_output=True, text=True, check=False)
    assert "resumed from the checkpoint of epoch 1" in second.stdout
    assert "epoch 1:" not in second.stdout
    assert second.returncode == 0, second.stdout


@pytest.mark.exhaustive
def test_the_training_fails_when_it_has_learned_too_little() -> None:
    command = [sys.executable, EXAMPLES / "train.py", "--epochs", "2", "--epoch-seconds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
