"""Parts of GPUs on a node: what its inventory says, and what a process sees."""

from pathlib import Path
from typing import Any

import pytest

from longshore.activities.node.inventory import parse_simulated, take_inventory
from longshore.activities.node.job_folders import LaunchError
from longshore.activities.node.launch import prepare
from longshore.activities.node.mig import device_of, positions_of_instances, read_mig
from longshore.client.api import Longshore
from longshore.models.errors import SpecError
from longshore.models.job_status import JobState
from longshore.models.mig import positions_of
from longshore.models.node import GPUInventory, Inventory, MigInstance
from longshore.models.settings import Settings
from longshore.workers.agent_commands import _simulated  # pyright: ignore[reportPrivateUsage]
from longshore.workers.local import machine_has_gpus
from tests.agent.conftest import LocalNode
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.waiting import eventually


def test_simulated_gpus_in_mig_mode_have_every_position() -> None:
    inventory = take_inventory(parse_simulated("4xH100-80GB", "1, 3"))
    assert [gpu.mig for gpu in inventory.gpus] == [
        None, positions_of("H100", 80), None, positions_of("H100", 80),
    ]  # fmt: skip
    assert take_inventory(parse_simulated("4xH100-80GB")).gpus[0].mig is None


@pytest.mark.parametrize(
    ("gpus", "mig", "words"),
    [
        ("2xH100-80GB", "2", "expected indices of the 2 GPUs, such as 0,1, not '2'"),
        ("2xH100-80GB", "all", "expected indices"),
        ("2xL40S-48GB", "0", "L40S-48GB is none of A100-40GB"),
    ],
)
def test_what_cannot_be_in_mig_mode_is_refused(gpus: str, mig: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_simulated(gpus, mig)


def test_the_mode_of_real_gpus_is_not_a_flag() -> None:
    with pytest.raises(SpecError, match="of real ones the driver tells the mode"):
        _simulated(None, "0", None)


def test_the_positions_of_a_real_gpu_are_its_instances() -> None:
    instances = [
        MigInstance(profile="1g.10gb", slices=64, uuid="MIG-b"),
        MigInstance(profile="1g.10gb", slices=1, uuid="MIG-a"),
        MigInstance(profile="3g.40gb", slices=0b1111 << 4, uuid="MIG-c"),
    ]
    positions = positions_of_instances(instances)
    assert positions == {"1g.10gb": (1, 64), "3g.40gb": (240,)}
    gpu = GPUInventory(
        index=2, model="H100", vram=80, mig=positions, mig_instances=tuple(instances)
    )
    inventory = Inventory(gpu_type="H100", gpus=(gpu,), cpus=1, ram=1)
    assert device_of(inventory, 2, "1g.10gb", 64) == "MIG-b"
    assert device_of(inventory, 2, "1g.10gb", 2) is None
    assert device_of(inventory, 0, "1g.10gb", 1) is None
    simulated = inventory.model_copy(update={"simulated": True})
    assert device_of(simulated, 2, "1g.10gb", 64) == "MIG-simulated-2-1g.10gb-6"


@pytest.mark.skipif(not machine_has_gpus(), reason="this machine has no GPU")
def test_the_driver_tells_of_every_gpu_whether_it_is_in_mig_mode() -> None:
    import pynvml

    pynvml.nvmlInit()
    for number in range(pynvml.nvmlDeviceGetCount()):
        positions, instances = read_mig(pynvml.nvmlDeviceGetHandleByIndex(number))
        assert positions is None or sum(map(len, positions.values())) == len(instances)
    pynvml.nvmlShutdown()


def test_a_share_sees_its_gpu_and_what_holds_it_to_its_part(
    box: LocalNode, tmp_path: Path
) -> None:
    env = _env(box, tmp_path, milli=250, vram_per_gpu=20)
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=19073M"
    assert (env["LONGSHORE_GPU_MILLI"], env["LONGSHORE_GPU_VRAM"]) == ("250", "20")
    assert _env(box, tmp_path, milli=4, vram_per_gpu=1)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"


def test_a_share_of_several_gpus_sees_them_all_with_its_part_of_each(
    box: LocalNode, tmp_path: Path
) -> None:
    env = _env(box, tmp_path, gpus=2, indices=(1, 3), milli=250, vram_per_gpu=20)
    assert env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    # MPS counts the devices that the process sees.
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=19073M,1=19073M"
    assert (env["LONGSHORE_GPU_COUNT"], env["LONGSHORE_GPU_MILLI"]) == ("2", "250")
    assert env["LONGSHORE_GPU_VRAM"] == "20"


def test_a_whole_job_is_told_nothing_of_parts(box: LocalNode, tmp_path: Path) -> None:
    env = _env(box, tmp_path)
    assert not {name for name in env if "MPS" in name or "MILLI" in name or "MIG" in name}


def test_a_mig_job_sees_its_instance(box: LocalNode, tmp_path: Path) -> None:
    box.inventory = take_inventory(parse_simulated("4xH100-80GB", "1"))
    env = _env(box, tmp_path, slices=0b110000, mig="2g.20gb")
    assert env["CUDA_VISIBLE_DEVICES"] == "MIG-simulated-1-2g.20gb-4"
    assert env["LONGSHORE_MIG_PROFILE"] == "2g.20gb"


def test_an_instance_that_is_gone_is_an_error_that_says_so(box: LocalNode, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="GPU 1 has no MIG instance"):
        _env(box, tmp_path, slices=1, mig="1g.10gb")


async def test_two_halves_run_on_one_gpu_at_the_same_time(
    longshore: Longshore, settings: Settings, pool: str, tmp_path: Path
) -> None:
    agent = AgentProcess(settings, tmp_path / "agent", pool, "--mig", "0,1,2")
    agent.start()
    try:
        await _both_halves(longshore, pool, tmp_path)
        submitted = await longshore.submit(
            a_spec(pool, mig="1g.10gb", command='echo "$CUDA_VISIBLE_DEVICES"')
        )
        assert (await longshore.wait(submitted.job_id)).state is JobState.SUCCEEDED
        pieces = [piece async for piece in longshore.logs(submitted.job_id, follow=True)]
        assert b"".join(pieces) == b"MIG-simulated-0-1g.10gb-6\n"
    finally:
        agent.end()


@pytest.mark.exhaustive
async def test_two_shares_of_the_same_gpus_run_at_the_same_time(
    longshore: Longshore, settings: Settings, pool: str, tmp_path: Path
) -> None:
    agent = AgentProcess(settings, tmp_path / "agent", pool, "--mig", "0")
    agent.start()
    try:
        jobs = await _each_waits_for_the_other(longshore, pool, tmp_path, gpus=3)
        said = [(tmp_path / name).read_text() for name in "ab"]
        assert said == ["1,2,3 500\n"] * 2
        views = [await longshore.job(job) for job in jobs]
        assert [(job.gpu_indices, job.milli) for job in views] == [((1, 2, 3), 500)] * 2
    finally:
        agent.end()


async def _both_halves(longshore: Longshore, pool: str, folder: Path) -> None:
    await _each_waits_for_the_other(longshore, pool, folder)
    assert [(folder / name).read_text() for name in "ab"] == ["3 500\n"] * 2

    async def given_back() -> bool:
        nodes = [node for node in await longshore.nodes() if node.pool == pool]
        return [gpu.parts for node in nodes for gpu in node.gpus] == [()] * 4

    await eventually(given_back)


async def _each_waits_for_the_other(
    longshore: Longshore, pool: str, folder: Path, **fields: Any
) -> list[str]:
    """Run two jobs that each end only once the other has begun."""
    jobs: list[str] = []
    for mine, other in (("a", "b"), ("b", "a")):
        command = (
            f'echo "$CUDA_VISIBLE_DEVICES $LONGSHORE_GPU_MILLI" > {folder}/{mine}; '
            f"until [ -e {folder}/{other} ]; do sleep 0.05; done"
        )
        submitted = await longshore.submit(
            a_spec(pool, milli=500, vram_per_gpu=40, command=command, **fields)
        )
        jobs.append(submitted.job_id)
    for job in jobs:
        assert (await longshore.wait(job)).state is JobState.SUCCEEDED
    return jobs


def _env(
    box: LocalNode,
    folder: Path,
    slices: int = 0,
    indices: tuple[int, ...] = (1,),
    gpus: int = 1,
    **spec: Any,
) -> dict[str, str]:
    request = box.request("true", gpus=gpus, **spec)
    placement = request.placement.model_copy(update={"gpu_indices": indices, "slices": slices})
    request = request.model_copy(update={"placement": placement})
    return prepare(request, box.identity, box.inventory, folder / "run", folder / "job").env
