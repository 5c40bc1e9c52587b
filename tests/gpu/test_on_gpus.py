"""What only a machine with a GPU shows: NVML, visible devices, sharing, memory, MPS, PyTorch.

Run by `make gpu-checks` (docs/gpu-checks.md), on a machine with an NVIDIA GPU and a Python with
PyTorch. Each check prints what it saw (`-s`).
"""

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from longshore.activities.node.inventory import take_inventory
from longshore.client.api import Longshore
from longshore.client.calls import known_job
from longshore.models.document import read_document
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.retry import FailureClass
from longshore.workers.stack import agent_process
from tests.gpu.conftest import Card, Jobs, ask_driver, memory_in_use
from tests.support.home import Home
from tests.support.local_stack import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.gpu

MIB = 2**20


def saw(what: str, *values: object) -> None:
    """Print what a check saw, for the page."""
    print(f"\n  {what}: {'; '.join(str(value) for value in values)}", end="", flush=True)


async def test_the_node_has_the_gpus_that_the_driver_tells_of(
    longshore: Longshore, cards: list[Card]
) -> None:
    (node,) = await longshore.nodes()
    found = take_inventory(None).gpus  # has what the node's view does not show
    for card, gpu, shown in zip(cards, found, node.gpus, strict=True):
        assert (shown.index, shown.model, shown.vram) == (card.number, card.name, gpu.vram)
        assert (gpu.index, gpu.model, gpu.uuid) == (card.number, card.name, card.uuid)
        assert gpu.vram == pytest.approx(card.mebibytes * MIB / 1e9, rel=0.001)
        assert gpu.power == pytest.approx(card.watts)
        assert (gpu.mig is not None) == shown.mig == card.in_mig_mode
        saw("GPU", gpu.index, gpu.model, f"{gpu.vram} GB", f"{gpu.power} W", f"MIG {gpu.mig}")
    assert not node.simulated
    saw("node", node.gpu_type, f"{node.cpus} cores", f"{node.ram} GB", node.container_runtime)
    saw("fingerprint", node.conformance, *node.firmware)


def test_the_driver_lists_the_mig_instances_that_a_node_has(cards: list[Card]) -> None:
    listed = ask_driver("-L").count("MIG ")
    had = sum(len(gpu.mig_instances) for gpu in take_inventory(None).gpus)
    saw("MIG instances", listed)
    assert had == listed


async def test_a_job_sees_its_gpu_and_no_other(jobs: Jobs, cards: list[Card]) -> None:
    submitted = time.time()
    answer = await jobs.answer(await jobs.submit("look.py"))
    (mine,) = (card for card in cards if card.uuid == answer["visible"])
    assert answer["count"] == 1
    assert answer["names"] == [mine.name]
    assert answer["bytes"][0] <= mine.mebibytes * MIB
    if answer["uuids"][0]:
        assert answer["uuids"][0] in mine.uuid
    saw("PyTorch", answer["torch"], answer["names"], f"CUDA_VISIBLE_DEVICES={answer['visible']}")
    saw("from submit to the process", f"{answer['began'] - submitted:.2f} s")
    saw("seconds of import, of first kernel", answer["import_seconds"], answer["kernel_seconds"])


async def test_more_gpus_than_the_machine_has_wait_with_the_reason(
    jobs: Jobs, longshore: Longshore, cards: list[Card]
) -> None:
    job = await jobs.submit("look.py", gpus=len(cards) + 1)
    assert await eventually(lambda: _constraints(longshore, job)) == "not-enough-gpus"
    saw("one GPU more than there is", (await longshore.explain(job)).headline)
    await jobs.cancel(job)


async def test_two_jobs_share_a_gpu_and_a_third_waits(
    jobs: Jobs, longshore: Longshore, cards: list[Card], tmp_path: Path
) -> None:
    memory = f"{cards[0].mebibytes * MIB * 0.4 / 1e9:.0f}GB"
    part = {"milli": 500, "vram_per_gpu": memory}
    go, before = tmp_path / "go", memory_in_use()
    hold = ("hold.py", "--gib", "8", "--until", str(go))
    count = 2 * len(cards)
    both = [await jobs.submit(*hold, **part) for _ in range(count)]
    for job in both:
        await jobs.said(job, "holds")
    third = await jobs.submit(*hold, **part)

    assert await eventually(lambda: _constraints(longshore, third)) == "shares-busy"
    saw("MiB in use by two that share", before, memory_in_use())
    assert memory_in_use() - before >= 2 * 8 * 1024
    saw("processes on it", ask_driver("--query-compute-apps=pid,used_memory", "--format=csv"))
    go.touch()
    answers = [await jobs.answer(job) for job in (*both, third)]
    assert all(answer["products"] for answer in answers[:count])
    saw("products that each computed meanwhile", *(each["products"] for each in answers))


async def test_what_a_killed_job_held_is_free_again(jobs: Jobs, tmp_path: Path) -> None:
    before = memory_in_use()
    job = await jobs.submit(
        "hold.py", "--gib", "16", "--deaf", "--until", str(tmp_path / "never"), stop_grace="1s"
    )
    await jobs.said(job, "holds")
    held = memory_in_use()
    began = time.monotonic()
    await jobs.cancel(job)
    saw("MiB before, held, after", before, held, memory_in_use())
    saw("cancelled within", f"{time.monotonic() - began:.2f} s, of which 1 s is grace")
    assert held - before >= 16 * 1024
    assert memory_in_use() - before < 64  # when it has ended, nothing of it is there


async def test_more_memory_than_the_gpu_has_fails_the_job_alone(
    jobs: Jobs, longshore: Longshore, cards: list[Card]
) -> None:
    job = await jobs.submit("hold.py", "--gib", str(2 * cards[0].mebibytes // 1024))
    result = await jobs.result(job)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.USER)
    report = await longshore.report(job)
    assert "out of memory" in " ".join(report.stderr_tail)
    saw("its last line", report.stderr_tail[-1][:160])
    await jobs.answer(await jobs.submit("look.py"))  # the next one has its GPU


async def test_a_training_is_preempted_and_ends_with_the_weights_of_its_twin(
    jobs: Jobs, longshore: Longshore, torch_python: str, cards: list[Card]
) -> None:
    example = read_document(ROOT / "examples/checkpoint-torch.yaml", JobSpec)

    def training(name: str, pause: str) -> JobSpec:
        script = str(ROOT / "examples/checkpoint_torch.py")
        command = (torch_python, script, "--steps", "600", "--step-seconds", pause)
        more = {
            "name": name,
            "gpus": len(cards),
            "command": command,
            "workdir": None,
            "env": jobs.env,
        }
        return example.model_copy(update=more)

    twin = await jobs.begin(training("twin", "0"))
    assert (await jobs.result(twin)).state is JobState.SUCCEEDED
    disturbed = await jobs.begin(training("disturbed", "0.02"))
    for number in (1, 2):
        await jobs.said(disturbed, "saved")
        urgent = await jobs.submit("look.py", name=f"urgent-{number}", priority=9)
        await jobs.answer(urgent)
        await eventually(lambda number=number: _attempt(longshore, disturbed, number + 1))
    result = await jobs.result(disturbed)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 3)
    ends = [await _weights(jobs, job) for job in (twin, disturbed)]
    saw("weights of the twin, and after two preemptions", *ends)
    assert ends[0] == ends[1]
    assert "on cuda" in await jobs.output(disturbed)
    report = await longshore.report(disturbed)
    for attempt in report.attempts:
        saw(f"attempt {attempt.attempt}", attempt.end_reason, attempt.end_message)


async def test_mps_keeps_a_share_to_its_memory(jobs: Jobs, mps: dict[str, str]) -> None:
    part = {"milli": 500, "vram_per_gpu": "20GB", "env": mps}
    fits = await jobs.submit("hold.py", "--gib", "10", **part)
    over = await jobs.submit("hold.py", "--gib", "24", **part)
    await jobs.answer(fits)
    assert (await jobs.result(over)).state is JobState.FAILED
    said = await jobs.output(over, "stderr")
    saw("MPS, 24 GiB where 20 GB were asked for", said.splitlines()[-1][:160])
    assert "out of memory" in said


async def test_two_shares_get_about_half_of_the_gpu_each(
    jobs: Jobs, mps: dict[str, str], tmp_path: Path
) -> None:
    whole = await _rates(jobs, tmp_path, 1, {})
    part = {"milli": 500, "vram_per_gpu": "20GB"}
    sliced = await _rates(jobs, tmp_path, 2, part)
    beside = await _rates(jobs, tmp_path, 2, part | {"env": mps})
    for how, rates in (("alone", whole), ("time slices", sliced), ("MPS, half each", beside)):
        saw(f"products a second, {how}", *(f"{rate:.0f}" for rate in rates))
    for first, second in (sliced, beside):
        assert 0.35 < first / (first + second) < 0.65


async def test_a_large_state_is_saved_for_who_preempts_and_loaded_again(
    jobs: Jobs, longshore: Longshore, cards: list[Card]
) -> None:
    gib = 4.0
    saving = {"folder": "saved", "grace": "30s"}
    job = await jobs.submit(
        "large.py",
        "--gib",
        str(gib),
        gpus=len(cards),
        ram="16GB",
        checkpoint=saving,
        expected_duration="2h",
    )
    total = float((await jobs.said(job, "ready")).split()[1])
    submitted = time.time()
    urgent = await jobs.answer(await jobs.submit("look.py", name="urgent", priority=9))
    saw("from submit to the process, with a checkpoint", f"{urgent['began'] - submitted:.2f} s")
    again = await jobs.answer(job)
    first = await jobs.output(job, attempt=1)
    saw("a state of 4 GiB", first.splitlines()[-1], f"loaded in {again['loaded_in']} s")
    assert again["sum"] == total
    stored = (await longshore.checkpoints(job)).checkpoints
    saw("in the store", *(f"{each.bytes} bytes" for each in stored))


async def test_a_killed_agent_leaves_nothing_on_the_gpu_and_its_job_runs_again(
    jobs: Jobs, home: Home, tmp_path: Path
) -> None:
    go, before = tmp_path / "go", memory_in_use()
    job = await jobs.submit("hold.py", "--gib", "2", "--until", str(go))
    await jobs.said(job, "holds")
    held = memory_in_use()
    entry = home.stack.processes.running(agent_process("local-1"))
    agent = entry.find() if entry else None
    assert agent
    began = time.monotonic()
    agent.kill()
    await eventually(lambda: memory_in_use() - before < 64)
    saw("MiB before, held", before, held)
    saw("free again after the agent was killed", f"{time.monotonic() - began:.1f} s")
    assert (await asyncio.to_thread(home.up))["nodes"] == ["local-1"]
    await asyncio.to_thread(go.touch)
    await jobs.answer(job)
    assert (await jobs.result(job)).attempts == 2


async def _rates(jobs: Jobs, folder: Path, count: int, fields: dict[str, Any]) -> list[float]:
    """Return how many products a second so many jobs compute at the same time."""
    go = folder / f"go-{uuid4()}"
    started = [await jobs.submit("work.py", "--go", str(go), **fields) for _ in range(count)]
    for job in started:
        await jobs.said(job, "ready")
    await asyncio.to_thread(go.touch)
    return [(await jobs.answer(job))["each_second"] for job in started]


async def _constraints(longshore: Longshore, job: str) -> str:
    """Return why a job would not be placed now, node by node."""
    decision = (await longshore.explain((await known_job(longshore, job)).id)).decision
    return "; ".join(each.code for each in decision.rejections) if decision else ""


async def _attempt(longshore: Longshore, job: str, number: int) -> bool:
    status = await longshore.status(job)
    return status.attempt >= number and status.state is JobState.RUNNING


async def _weights(jobs: Jobs, job: str) -> str:
    text = await jobs.output(job)
    return text.split("sha256 of the weights: ")[1].split()[0]
