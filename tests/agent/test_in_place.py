"""A gang that changes its size in place, on real agents: what its processes are told and do."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from longshore.activities.node.run import Run
from longshore.client.api import Longshore
from longshore.models.checkpoint import CheckpointInfo, Manifest, SaveRequest
from longshore.models.document import read_document
from longshore.models.errors import NotFoundError, StaleError, UnavailableError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.placement import Rank
from longshore.models.resize import SizeNotice
from longshore.models.settings import Settings
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.local_stack import ROOT
from tests.support.waiting import eventually

EXAMPLES = ROOT / "examples"
SIZES = {"min": 4, "max": 12, "step": 4, "in_place": True}

TRAINER = """
import json, os, pathlib, signal, sys, time

folder = pathlib.Path(os.environ["LONGSHORE_CHECKPOINT_DIR"])
me = os.environ["NODE_RANK"]
told, stop = [], []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
signal.signal(signal.SIGWINCH, lambda *_: told.append(1))
print("rank", me, flush=True)
(folder / f"env-{me}").write_text(json.dumps(dict(os.environ)))
with (folder / f"started-{me}").open("a") as file:
    file.write(f"{os.getpid()}\\n")
while not stop and not (folder / "go").exists():
    if pathlib.Path(os.environ["LONGSHORE_SAVE_REQUEST"]).exists() and me == "0":
        (folder / "step").write_text("7")
        with open(os.environ["LONGSHORE_SAVED"], "a") as file:
            file.write("saved, step 7\\n")
    if told:
        told.pop()
        (folder / f"told-{me}").write_text(
            pathlib.Path(os.environ["LONGSHORE_RESIZE_FILE"]).read_text())
    time.sleep(0.02)  # a step of its work
(folder / f"ended-{me}").write_text("stopped" if stop else "done")
sys.exit(143 if stop else 0)
"""
"""Stands for a training that can change its size: it saves, reads the file, and goes on."""


@pytest.fixture
def torchrun() -> str:
    """The torchrun of the PATH, by Debian or by pip, if it works; 2 s."""
    found = shutil.which("torchrun")
    # Asked here and not when tests are collected, which each worker of a run does.
    if found is None or subprocess.run([found, "--help"], capture_output=True).returncode:
        pytest.skip("there is no torchrun here: python3-torch has it")
    return found


@pytest.fixture
async def agents(
    longshore: Longshore, settings: Settings, pool: str, tmp_path: Path
) -> AsyncIterator[list[AgentProcess]]:
    """Three agents of 4 simulated GPUs each, as processes that have registered; about 3 s."""
    found = [
        AgentProcess(settings, tmp_path / f"agent-{name}", pool, "--address", "127.0.0.1")
        for name in "abc"
    ]
    for agent in found:
        agent.start()
    await eventually(lambda: all(agent.says("registered as node") for agent in found))
    yield found
    for agent in found:
        agent.end()


def contract(folder: Path, **more: Any) -> dict[str, Any]:
    return {"folder": str(folder), "store": False, "save_file": True, "grace": 20, **more}


async def by_rank(
    longshore: Longshore, job_id: str, agents: list[AgentProcess]
) -> list[AgentProcess]:
    by_id = {agent.node_id: agent for agent in agents}
    return [by_id[node_id] for node_id in (await longshore.job(job_id)).nodes]


async def resized(longshore: Longshore, job_id: str, times: int) -> None:
    async def there() -> bool:
        status = await longshore.status(job_id)
        assert status.attempt == 1, status.attempts
        return status.resizes == times

    await eventually(there, 90)


async def test_what_stays_is_told_by_file_and_signal_and_runs_on(
    longshore: Longshore, agents: list[AgentProcess], pool: str, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    job_id = (
        await longshore.submit(
            a_spec(
                pool, gpus=12, gang={"unlabelled_nodes": True}, malleable=SIZES,
                command=(sys.executable, "-c", TRAINER), checkpoint=contract(folder),
            )
        )
    ).job_id  # fmt: skip
    await eventually(lambda: all((folder / f"started-{rank}").exists() for rank in range(3)))
    ranks = await by_rank(longshore, job_id, agents)
    assert (await longshore.resize(job_id, 8)).in_place == 8
    await resized(longshore, job_id, 1)
    assert (folder / "step").read_text() == "7"  # it saved before
    assert (folder / "ended-2").read_text() == "stopped"
    await eventually(lambda: (folder / "told-0").exists() and (folder / "told-1").exists())
    for rank in (0, 1):
        said = json.loads((folder / f"told-{rank}").read_text())
        assert (said["gpus_before"], said["gpus"]) == (12, 8)
        assert [(each["rank"], each["node"], each["gpus"]) for each in said["ranks"]] == [
            (0, ranks[0].node_id, 4), (1, ranks[1].node_id, 4),
        ]  # fmt: skip
        assert all(each["address"] for each in said["ranks"])
        (folder / f"told-{rank}").unlink()
    ranks[1].kill()  # without a word; the job goes on with rank 0
    await resized(longshore, job_id, 2)
    await eventually((folder / "told-0").exists)
    assert json.loads((folder / "told-0").read_text())["gpus"] == 4
    (folder / "go").touch()
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)
    assert len((folder / "started-0").read_text().splitlines()) == 1
    assert (folder / "ended-0").read_text() == "done"
    assert [change.gpus for change in (await longshore.explain(job_id)).sizes] == [8, 4]


@pytest.mark.exhaustive
async def test_ranks_join_with_what_they_need_to_meet_the_others(
    longshore: Longshore, agents: list[AgentProcess], pool: str, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    sizes = {**SIZES, "desired": 8}
    job_id = (
        await longshore.submit(
            a_spec(
                pool, gpus=8, gang={"unlabelled_nodes": True}, malleable=sizes,
                command=(sys.executable, "-c", TRAINER), checkpoint=contract(folder),
            )
        )
    ).job_id  # fmt: skip
    await eventually(lambda: all((folder / f"started-{rank}").exists() for rank in range(2)))
    ranks = await by_rank(longshore, job_id, agents)
    (free,) = (agent for agent in agents if agent not in ranks)
    first = json.loads((folder / "env-0").read_text())
    assert first["PET_NNODES"] == "1:3"
    assert (await longshore.resize(job_id, 12)).in_place == 12
    await resized(longshore, job_id, 1)
    await eventually((folder / "started-2").exists)
    joins = json.loads((folder / "env-2").read_text())
    for name in ("MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_RDZV_ENDPOINT", "PET_RDZV_ID"):
        assert joins[name] == first[name]
    assert {name: joins[name] for name in ("NNODES", "NODE_RANK", "RANK", "WORLD_SIZE")} == {
        "NNODES": "3", "NODE_RANK": "2", "RANK": "2", "WORLD_SIZE": "3",
    }  # fmt: skip
    assert (joins["LONGSHORE_GPUS"], joins["LONGSHORE_GPUS_BEFORE"]) == ("12", "8")
    assert joins["PET_RDZV_CONF"] == "is_host=0"
    assert (folder / "step").read_text() == "7"  # it saved before
    await eventually(lambda: (folder / "told-0").exists() and (folder / "told-1").exists())
    said = json.loads((folder / "told-0").read_text())
    assert [each["node"] for each in said["ranks"]] == [
        ranks[0].node_id, ranks[1].node_id, free.node_id,
    ]  # fmt: skip
    # Back, and again onto the node that has left: the last that came goes first.
    assert (await longshore.resize(job_id, 8)).in_place == 8
    await resized(longshore, job_id, 2)
    await eventually((folder / "ended-2").exists)
    assert (await longshore.resize(job_id, 12)).in_place == 12
    await resized(longshore, job_id, 3)
    await eventually((folder / "started-3").exists)
    again = json.loads((folder / "env-3").read_text())
    assert (again["LONGSHORE_NODE_ID"], again["LONGSHORE_RANKS"]) == (free.node_id, "0,1,3")
    assert (again["RANK"], again["WORLD_SIZE"]) == ("2", "3")
    (folder / "go").touch()
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)
    assert [len((folder / f"started-{n}").read_text().splitlines()) for n in range(4)] == [1] * 4
    assert [(folder / f"ended-{n}").read_text() for n in range(4)] == [
        "done", "done", "stopped", "done",
    ]  # fmt: skip
    for rank in (1, 2, 3):
        wrote = b"".join([piece async for piece in longshore.logs(job_id, rank=rank)])
        assert wrote == f"rank {rank}\n".encode()
    sizes = [(each.gpus, each.in_place) for each in (await longshore.explain(job_id)).sizes]
    assert sizes == [(12, True), (8, True), (12, True)]


async def test_a_checkpoint_counts_by_the_ranks_that_are_left(box: LocalNode) -> None:
    asked = box.request(
        [sys.executable, "-c", TRAINER], gang={},
        malleable={"min": 2, "max": 4, "step": 2, "in_place": True},
        checkpoint={"folder": "saved", "save_file": True, "grace": 20},
    )  # fmt: skip
    ranks = tuple(
        Rank(rank=rank, node_id=f"n{rank}", epoch=1, gpu_indices=(1, 3)) for rank in range(2)
    )
    placement = asked.placement.model_copy(update={"ranks": ranks})
    run = box.processes.start(asked.model_copy(update={"placement": placement}))
    key = run.record.key
    folder = box.folder / "jobs" / key.job_id / "work" / "saved"
    await eventually((folder / "started-0").exists)
    assert (await box.processes.save(SaveRequest(key=key))).published
    assert box.checkpoints.newest(key.job_id) is None  # rank 1 has not saved
    notice = SizeNotice(key=key, gpus_before=4, gpus=2, ranks=ranks[:1])
    await box.processes.resize(notice)
    await eventually((folder / "told-0").exists)
    assert (await box.processes.save(SaveRequest(key=key))).published
    newest = box.checkpoints.newest(key.job_id)
    assert newest
    assert [(name.rank, name.ranks) for name in newest.manifests] == [(0, 1)]
    await box.stop(run)
    with pytest.raises(NotFoundError, match="does not run on box"):
        await box.processes.resize(notice)


SAVES = """
cd "$LONGSHORE_CHECKPOINT_DIR"
echo "has $(echo part-*), resume ${LONGSHORE_RESUME:-no}"
while :; do
    if [ -e "$LONGSHORE_SAVE_REQUEST" ]; then
        rm -f "$LONGSHORE_SAVE_REQUEST"
        date > part-$NODE_RANK; echo "saved$(cat "$STEP")" >> "$LONGSHORE_SAVED"
    fi
    sleep 0.05
done
"""
"""Each rank saves its own part when asked, and says what a file tells it."""
JOINING = tuple(
    Rank(rank=rank, node_id=f"n{rank}", epoch=1, gpu_indices=(1, 3), joined=rank == 4)
    for rank in (0, 4)
)


class TwoNodes:
    """A job on two nodes with one store, of which the second may join the first."""

    def __init__(self, make_box: MakeBox, folder: Path) -> None:
        store = (folder / "store").as_uri()
        self.boxes = [make_box(folder / name, checkpoints=store) for name in "ab"]
        self._step = folder / "step"
        self.at_step(1)

    def at_step(self, step: int | None) -> None:
        self._step.write_text("" if step is None else f", step {step}")

    async def start(self, rank: int, attempt: int, says: str, *, joined: bool = False) -> Run:
        box = self.boxes[min(rank, 1)]
        asked = box.request(
            SAVES, job="job-joins", gang={}, attempt=attempt, env={"STEP": str(self._step)},
            malleable={"min": 2, "max": 4, "step": 2, "in_place": True},
            checkpoint={"folder": "saved", "save_file": True, "grace": 20},
        )  # fmt: skip
        update: dict[str, Any] = {"rank": rank, "joined": joined}
        if joined:
            update["ranks"] = JOINING
        elif attempt > 1:
            alone = JOINING[1].model_copy(update={"rank": 1, "joined": False})
            update["ranks"] = (JOINING[0], alone)
        placement = asked.placement.model_copy(update=update)
        run = box.processes.start(asked.model_copy(update={"placement": placement}))
        await eventually(lambda: says in box.output(run.record.key))
        return run

    async def save(self, node: int, run: Run) -> CheckpointInfo:
        return await self.boxes[node].processes.save(SaveRequest(key=run.request.placement.key))

    async def join(self, first: Run) -> Run:
        """Have the second node join, and the first told of it."""
        second = await self.start(4, 1, "has part-0, resume 1", joined=True)
        key = first.request.placement.key
        assert second.record.key.job_id == f"{key.job_id}.R4"
        notice = SizeNotice(key=key, gpus_before=2, gpus=4, ranks=JOINING)
        await self.boxes[0].processes.resize(notice)
        return second

    def newest(self) -> list[tuple[int | None, int, int]]:
        """Return step, rank and number of each part of the newest whole checkpoint."""
        found = self.boxes[0].checkpoints.newest("job-joins")
        return [(name.step, name.rank, name.number) for name in found.manifests] if found else []

    async def stop(self, *runs: Run) -> None:
        for box, run in zip(self.boxes, runs, strict=True):
            await box.stop(run)


async def test_a_rank_that_joins_begins_with_what_is_saved_and_counts_from_the_next_save_on(
    make_box: MakeBox, tmp_path: Path
) -> None:
    """Also where the others have saved without it since: what they said of the same step, and no
    earlier one, belongs to what it says."""
    nodes = TwoNodes(make_box, tmp_path)
    first = await nodes.start(0, 1, "resume no")
    for step in (1, 2, 3):
        nodes.at_step(step)
        await nodes.save(0, first)
    second = await nodes.join(first)
    for step in (4, 5):  # alone: the other is still coming up
        nodes.at_step(step)
        await nodes.save(0, first)
    assert nodes.newest() == [(3, 0, 3)]
    nodes.at_step(6)
    saved = [await nodes.save(node, run) for node, run in enumerate((first, second))]
    assert [(each.number, each.ranks) for each in saved] == [(6, 2), (4, 2)]
    assert nodes.newest() == [(6, 0, 6), (6, 1, 4)]
    await nodes.stop(first, second)
    assert nodes.newest() == [(6, 0, 6), (6, 1, 4)], "its end adds nothing"
    await nodes.stop(
        *[await nodes.start(rank, 2, "has part-0 part-4, resume 1") for rank in (0, 1)]
    )


async def test_a_rank_that_joins_numbers_its_saves_above_those_of_who_had_its_place(
    make_box: MakeBox, tmp_path: Path
) -> None:
    """Of a step that is saved twice the highest number counts: it must be the later one's."""
    nodes = TwoNodes(make_box, tmp_path)
    first = await nodes.start(0, 1, "resume no")
    await nodes.save(0, first)
    (folder := tmp_path / "left").mkdir()
    (folder / "part-1").touch()
    before = Manifest(
        job_id="job-joins", attempt=1, rank=1, ranks=2, number=9, step=2, prefix="", files=(),
        bytes=0, saved_at=datetime.now(UTC), published_at=datetime.now(UTC), node_id="left",
    )  # fmt: skip
    nodes.boxes[0].checkpoints.publish(folder, before, threading.Event())
    second = await nodes.join(first)
    nodes.at_step(2)
    for node, run in enumerate((first, second)):
        await nodes.save(node, run)
    assert nodes.newest() == [(2, 0, 2), (2, 1, 10)]
    await nodes.stop(first, second)


async def test_what_a_rank_that_joined_saves_without_a_step_is_part_of_no_checkpoint(
    make_box: MakeBox, tmp_path: Path
) -> None:
    """By their numbers, saves of two moments would be taken for one."""
    nodes = TwoNodes(make_box, tmp_path)
    first = await nodes.start(0, 1, "resume no")
    await nodes.save(0, first)
    second = await nodes.join(first)
    nodes.at_step(None)
    await nodes.save(0, first)  # number 2, without the other
    await nodes.save(0, first)
    with pytest.raises(UnavailableError, match="is not kept: its saves name no step"):
        await nodes.save(1, second)  # its number 2
    await nodes.stop(first, second)
    assert nodes.newest() == [(1, 0, 1)]


async def test_no_rank_joins_an_attempt_that_is_over_on_its_node(box: LocalNode) -> None:
    newer = box.processes.start(box.request("true", job="job-late", attempt=2))
    await newer.done
    late = box.request("true", job="job-late", attempt=1)
    joined = late.placement.model_copy(update={"rank": 3, "joined": True})
    with pytest.raises(StaleError, match="attempt 1 of job-late is over: attempt 2 was here"):
        box.processes.start(late.model_copy(update={"placement": joined}))


def test_the_example_is_a_job_file_that_says_what_it_needs() -> None:
    spec = read_document(EXAMPLES / "elastic.yaml", JobSpec)
    assert spec.malleable
    assert spec.malleable.in_place


@pytest.mark.timeout(600)
@pytest.mark.exhaustive  # 30 s of the processor; above a script is told, joins and loses a node
async def test_torchrun_trains_on_when_nodes_join_and_leave(
    torchrun: str, longshore: Longshore, agents: list[AgentProcess], pool: str, tmp_path: Path
) -> None:
    """By two resizes, and by the loss of a node; the weights are those of a run by itself."""
    logs = str(tmp_path / "torch")
    alone = await asyncio.to_thread(
        subprocess.run,
        [torchrun, "-r", "1", "-t", "1", "--log_dir", logs, "--standalone",
         "--nproc_per_node", "1", str(EXAMPLES / "elastic_torch.py"), "--steps", "250",
         "--step-seconds", "0"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    wanted = next(part for part in alone.stdout.split("\n") if "weights sum to" in part)
    example = read_document(EXAMPLES / "elastic.yaml", JobSpec)
    assert isinstance(example.command, str)
    command = example.command.replace("torchrun ", f"{torchrun} ", 1)
    assert example.checkpoint
    saved = example.checkpoint.model_copy(update={"folder": str(tmp_path / "saved")})
    spec = example.model_copy(
        update={
            "pool": pool, "gpus": 8, "workdir": str(EXAMPLES),
            "malleable": a_spec(pool, gang={}, checkpoint=contract(tmp_path), gpus=8,
                                malleable={**SIZES, "desired": 8}).malleable,
            "command": f"{command} --steps 250 --step-seconds 0.1",
            "checkpoint": saved,
            # Debian's torchrun fails under Python 3.11 without the first two, and then it passes
            # on what its workers write.
            "env": {
                "PET_REDIRECTS": "1", "PET_TEE": "1", "PYTHONUNBUFFERED": "1",
                "PET_LOG_DIR": logs,
            },
        }
    )  # fmt: skip
    job_id = (await longshore.submit(spec)).job_id

    async def says(words: str) -> bool:
        return await times_said(words, 1)

    async def times_said(words: str, times: int) -> bool:
        pieces = [piece async for piece in longshore.logs(job_id)]
        return b"".join(pieces).count(words.encode()) >= times

    await eventually(lambda: says("world of 2 from step 0"), 120)
    ranks = await by_rank(longshore, job_id, agents)
    assert (await longshore.resize(job_id, 12)).in_place == 12
    await resized(longshore, job_id, 1)
    await eventually(lambda: says("world of 3 from step"), 120)
    assert (await longshore.resize(job_id, 8)).in_place == 8
    await resized(longshore, job_id, 2)
    await eventually(lambda: times_said("world of 2 from step", 2), 120)
    ranks[1].kill()
    await resized(longshore, job_id, 3)
    await eventually(lambda: says("world of 1 from step"), 120)
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1), result.message
    assert await says(wanted.rpartition("weights sum to")[2].strip())
