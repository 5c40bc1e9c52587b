"""What an agent says of its machine, and what it makes of a container image."""

import os
from pathlib import Path

import pytest

from longshore.activities.node.inventory import parse_simulated, short_type, take_inventory
from longshore.activities.node.job_path import without_own_environment
from longshore.activities.node.launch import Launch, prepare
from longshore.models.errors import SpecError, UnavailableError
from longshore.workers.agent_commands import node_id_from
from longshore.workers.local import machine_has_gpus
from tests.agent.conftest import LocalNode


def test_simulated_gpus_are_said_to_be_simulated() -> None:
    inventory = take_inventory(parse_simulated("4xA100-40GB"), cpus=2.5, ram=7)
    assert inventory.simulated
    assert (inventory.gpu_type, len(inventory.gpus)) == ("A100", 4)
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 2, 3]
    assert {gpu.vram for gpu in inventory.gpus} == {40.0}
    assert (inventory.cpus, inventory.ram) == (2.5, 7)


def test_a_simulated_node_has_the_size_of_such_machines() -> None:
    inventory = take_inventory(parse_simulated("8xH100-80GB"))
    assert (inventory.cpus, inventory.ram) == (64, 512)


def test_cores_and_memory_that_are_told_count() -> None:
    inventory = take_inventory(parse_simulated("8xH100-80GB"), cpus=3, ram=5)
    assert (inventory.cpus, inventory.ram) == (3, 5)


def test_storage_bandwidth_and_power_are_what_they_are_given_as_or_not_limited() -> None:
    plain = take_inventory(parse_simulated("2xH100-80GB"))
    assert (plain.storage_bandwidth, plain.power) == (None, None)
    assert {gpu.power for gpu in plain.gpus} == {0}
    given = take_inventory(
        parse_simulated("2xH100-80GB", power=700), storage_bandwidth=10, power=1400
    )
    assert (given.storage_bandwidth, given.power) == (10, 1400)
    assert {gpu.power for gpu in given.gpus} == {700}


@pytest.mark.parametrize("text", ["", "H100", "8xH100", "0xH100-80GB", "8 H100 80GB", "8xH100-80"])
def test_another_form_of_simulated_gpus_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected 8xH100-80GB"):
        parse_simulated(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("8xH100-99999999999999GB", "vram: must be at most 1000000000, got 99999999999999.0"),
        (f"8xH100-{'9' * 400}GB", "vram: expected a finite size, not inf"),
        (f"8x{'H' * 100_000}-80GB", "gpu_type: must have at most 100 characters"),
        ("1025xH100-80GB", "count: must be at most 1024, got 1025"),
    ],
)
def test_simulated_gpus_beyond_the_bounds_are_refused(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_simulated(text)
    assert refused.value.problems == (f"--simulate: {problem}",)


@pytest.mark.skipif(machine_has_gpus(), reason="this machine has GPUs")
def test_without_gpus_the_error_says_what_to_do() -> None:
    with pytest.raises(UnavailableError, match="--simulate 8xH100-80GB"):
        take_inventory(None)


@pytest.mark.skipif(not machine_has_gpus(), reason="this machine has no GPU")
def test_gpus_are_found_with_their_memory_and_uuid() -> None:
    inventory = take_inventory(None)
    assert not inventory.simulated
    assert all(0 <= gpu.power < 5000 for gpu in inventory.gpus)
    assert all(gpu.vram > 1 and gpu.uuid.startswith("GPU-") for gpu in inventory.gpus)


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000"),
        ("Something", "Something"),
    ],
)
def test_models_get_their_common_name(model: str, short: str) -> None:
    assert short_type(model) == short


@pytest.mark.parametrize(
    ("hostname", "node_id"),
    [("gpu-1", "gpu-1"), ("GPU Box_1.local", "gpu-box_1.local"), ("-x-", "x"), ("äöü", "node")],
)
def test_a_hostname_becomes_a_name(hostname: str, node_id: str) -> None:
    assert node_id_from(hostname) == node_id


def test_an_image_becomes_a_container_with_the_gpus_and_no_secret_in_its_arguments(
    box: LocalNode, tmp_path: Path
) -> None:
    launch = _prepare(box, tmp_path, "docker", simulated=False)
    argv = list(launch.argv)
    assert argv[:5] == ["docker", "run", "--rm", "--init", "--name"]
    assert argv[5] == f"longshore-job-a-1-{box.identity.agent_id[:8]}"
    assert argv[argv.index("--gpus") + 1] == '"device=1,3"'
    assert argv[-4:] == ["python:3.12", "sh", "-c", "train"]
    assert "hunter2" not in " ".join(argv)
    file = tmp_path / "run" / "environment"
    assert argv[argv.index("--env-file") + 1] == str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert {
        "PASSWORD=hunter2", "PATH=/inside", "LONGSHORE_PROGRESS_FILE=/longshore/progress",
        "LONGSHORE_CHECKPOINT_DIR=/longshore/work/saved",
    } < set(file.read_text().splitlines())  # fmt: skip


def test_the_client_of_a_container_has_no_variable_of_the_job(
    box: LocalNode, tmp_path: Path
) -> None:
    launch = _prepare(box, tmp_path, "podman", simulated=True)
    assert launch.env["PATH"] == without_own_environment(os.environ["PATH"], os.environ)
    assert "PASSWORD" not in launch.env
    assert launch.env["LONGSHORE_JOB_ID"] == "job-a"  # a restarted agent finds it by that


def test_a_value_that_fits_on_no_line_is_an_argument(box: LocalNode, tmp_path: Path) -> None:
    argv = _prepare(box, tmp_path, "podman", simulated=True).argv
    flags = [argv[i + 1] for i, word in enumerate(argv) if word == "--env"]
    assert flags == ["LINES=one\ntwo", f"LONG={'x' * 70_000}"]


def test_podman_is_given_gpus_in_its_own_words(box: LocalNode, tmp_path: Path) -> None:
    argv = " ".join(_prepare(box, tmp_path, "podman", simulated=False).argv)
    assert "--device nvidia.com/gpu=1 --device nvidia.com/gpu=3" in argv


def test_simulated_gpus_are_not_asked_of_a_container(box: LocalNode, tmp_path: Path) -> None:
    assert "--gpus" not in _prepare(box, tmp_path, "docker", simulated=True).argv


def _prepare(box: LocalNode, folder: Path, runtime: str, *, simulated: bool) -> Launch:
    request = box.request(
        "train",
        job="job-a",
        image="python:3.12",
        env={
            "PASSWORD": "hunter2",
            "PATH": "/inside",
            "LINES": "one\ntwo",
            "LONG": "x" * 70_000,
        },
        checkpoint={"folder": "saved"},
    )
    update = {"container_runtime": runtime, "simulated": simulated}
    inventory = box.inventory.model_copy(update=update)
    (folder / "run").mkdir()
    return prepare(request, box.identity, inventory, folder / "run", folder / "job")
