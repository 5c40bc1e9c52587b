"""What the processes of a gang are told of each other, and a process for each GPU."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from longshore.activities.node import per_gpu
from longshore.activities.node.rendezvous import FIRST_PORT, PORTS, rendezvous
from longshore.models.checkpoint import SaveRequest
from longshore.models.job import JobSpec
from longshore.models.node_messages import StopProcessRequest
from longshore.models.placement import Placement, PlacementKey, Rank
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode
from tests.support.podman import IDLE
from tests.support.programs import COUNTS_STOPS
from tests.support.waiting import eventually

PER_GPU = {"processes": "gpu"}
SHOW = [
    "python3",
    "-c",
    "import json, os; print(json.dumps({k: os.environ[k] for k in ('RANK', 'LOCAL_RANK', "
    "'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'CUDA_VISIBLE_DEVICES', 'MASTER_ADDR')}))",
]


def a_placement(rank: int) -> Placement:
    ranks = (
        Rank(rank=0, node_id="node-a", epoch=3, gpu_indices=(0, 1), address="10.0.0.1"),
        Rank(rank=1, node_id="node-b", epoch=5, gpu_indices=(2, 4, 6), address="10.0.0.2"),
    )
    first = Placement(
        job_id="wide", attempt=2, node_id="node-a", epoch=3, gpu_indices=(0, 1), cycle_id="c",
        placed_at=datetime.now(UTC), ranks=ranks,
    )  # fmt: skip
    return first.by_rank[rank]


def a_spec(**gang: object) -> JobSpec:
    document = {"name": "wide", "command": "true", "gpus": 5, "gang": gang}
    return JobSpec.model_validate(document)


def test_with_a_process_on_each_node_the_nodes_are_the_world() -> None:
    told = rendezvous(a_placement(1), a_spec())
    assert (told["RANK"], told["WORLD_SIZE"]) == ("1", "2")
    assert (told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert (told["NODE_RANK"], told["NNODES"]) == ("1", "2")
    assert (told["PET_NODE_RANK"], told["PET_NNODES"], told["PET_NPROC_PER_NODE"]) == (
        "1", "2", "3",
    )  # fmt: skip
    assert told["LONGSHORE_ADDRESSES"] == "10.0.0.1,10.0.0.2"
    assert told["LONGSHORE_GPUS_PER_NODE"] == "2,3"


def test_with_a_process_for_each_gpu_the_gpus_are_the_world() -> None:
    told = rendezvous(a_placement(1), a_spec(**PER_GPU))
    assert (told["RANK"], told["WORLD_SIZE"]) == ("2", "5")
    assert (told["LONGSHORE_FIRST_RANK"], told["LOCAL_WORLD_SIZE"]) == ("2", "3")


def test_all_ranks_of_an_attempt_meet_at_the_same_place_and_the_next_at_another() -> None:
    spec = a_spec()
    first, second = (rendezvous(a_placement(rank), spec) for rank in (0, 1))
    meeting = ("MASTER_ADDR", "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT")
    assert [first[name] for name in meeting] == [second[name] for name in meeting]
    assert first["MASTER_ADDR"] == "10.0.0.1"
    assert FIRST_PORT <= int(first["MASTER_PORT"]) < FIRST_PORT + PORTS
    later = rendezvous(a_placement(0).model_copy(update={"attempt": 3}), spec)
    assert later["MASTER_PORT"] != first["MASTER_PORT"]


def test_torchrun_is_told_that_nodes_may_leave_and_where_its_store_is() -> None:
    document = {
        "name": "wide", "command": "true", "gang": {},
        "malleable": {"min": 2, "max": 5, "step": 3, "in_place": True},
        "checkpoint": {"folder": "saved", "save_file": True},
    }  # fmt: skip
    spec = JobSpec.model_validate(document)
    told, other = (rendezvous(a_placement(rank), spec) for rank in (0, 1))
    assert (told["PET_NNODES"], told["NNODES"], told["PET_RDZV_BACKEND"]) == ("1:2", "2", "c10d")
    assert told["PET_RDZV_ENDPOINT"] == f"10.0.0.1:{told['MASTER_PORT']}"
    assert told["PET_RDZV_ENDPOINT"] == other["PET_RDZV_ENDPOINT"]
    assert (told["PET_RDZV_CONF"], other["PET_RDZV_CONF"]) == ("is_host=1", "is_host=0")
    assert told["PET_RDZV_ID"] == other["PET_RDZV_ID"] == "wide-2"
    assert int(told["PET_MAX_RESTARTS"]) >= 100
    assert told["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_a_job_that_stays_on_one_node_is_told_nothing() -> None:
    spec = JobSpec(name="plain", command="true")
    assert rendezvous(a_placement(0), spec) == {}


async def test_a_process_for_each_gpu_sees_its_own(box: LocalNode) -> None:
    run = box.start(SHOW, gang=PER_GPU)
    report = await run.done
    assert (report.exit_code, report.failure) == (0, None), box.output(run.record.key, "stderr")
    lines = [json.loads(line) for line in box.output(run.record.key).splitlines()]
    told = sorted(lines, key=lambda line: line["RANK"])
    assert [line["RANK"] for line in told] == ["0", "1"]
    assert [line["LOCAL_RANK"] for line in told] == ["0", "1"]
    assert [line["CUDA_VISIBLE_DEVICES"] for line in told] == ["1", "3"]
    assert {line["WORLD_SIZE"] for line in told} == {"2"}
    assert {line["MASTER_ADDR"] for line in told} == {"127.0.0.1"}


async def test_when_one_of_them_fails_the_others_are_ended(box: LocalNode) -> None:
    # It fails when the other listens: before that a signal ends the other without a word.
    fails = 'if [ "$RANK" = 1 ]; then until [ -e listens ]; do sleep 0.05; done; exit 7; fi'
    script = f'{fails}; trap "echo ended; exit 0" TERM; touch listens; sleep 60 & wait'
    run = box.start(["sh", "-c", script], gang=PER_GPU)
    report = await run.done
    assert (report.exit_code, report.failure) == (7, FailureClass.USER)
    assert box.output(run.record.key) == "ended\n"


async def test_a_command_that_is_not_there_is_a_failed_start(box: LocalNode) -> None:
    report = await box.report(["no-such-command"], gang=PER_GPU)
    assert (report.exit_code, report.failure) == (127, FailureClass.START)


@pytest.mark.parametrize("signals", [["15,10"], ["15"], []])
def test_an_agent_that_is_older_than_the_script_starts_them_too(signals: list[str]) -> None:
    command = ["sh", "-c", 'echo "$0 $RANK"', "7"]
    ended = subprocess.run(
        [sys.executable, "-I", "-S", per_gpu.__file__, "5.0", *signals, *command],
        check=True, timeout=60, capture_output=True, text=True,
        env={
            "PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "0", "LONGSHORE_GPU_INDICES": "0",
            "LONGSHORE_FIRST_RANK": "2", "WORLD_SIZE": "3",
        },
    )  # fmt: skip
    assert ended.stdout == "7 2\n"


async def test_a_stop_reaches_every_process_and_waits_for_all(box: LocalNode) -> None:
    script = 'trap "sleep 0.2; echo saved $RANK; exit 0" TERM; echo up; sleep 60 & wait'
    run = box.start(["sh", "-c", script], gang=PER_GPU)
    key: PlacementKey = run.record.key
    await eventually(lambda: box.output(key).count("up") == 2)
    await box.processes.stop(
        StopProcessRequest(key=key, grace=60, reason="enough")  # pyright: ignore[reportArgumentType]
    )
    report = await run.done
    assert report.stopped_for == "enough"
    assert sorted(box.output(key).split("\n")) == ["", "saved 0", "saved 1", "up", "up"]


async def test_a_rank_that_is_still_saving_is_asked_once_where_another_has_ended(
    box: LocalNode,
) -> None:
    leave = 'if [ "$RANK" = 1 ]; then trap "exit 143" TERM; echo ready; sleep 60 & wait; fi'
    run = box.start(f'{leave}; exec {sys.executable} -c "$PROGRAM"', gang=PER_GPU,
                    env={"PROGRAM": COUNTS_STOPS})  # fmt: skip
    await eventually(lambda: box.output(run.record.key).count("ready") == 2)
    report = await box.stop(run, grace=60)
    assert (report.exit_code, report.stopped_for) == (143, "test")
    assert box.output(run.record.key) == "ready\nready\nheard 1\n"


async def test_a_stop_by_another_signal_is_one_too(box: LocalNode) -> None:
    contract = {"folder": "c", "signal": "SIGQUIT", "grace": 60}
    script = f'trap "sleep 0.2; echo saved $RANK; exit $RANK" QUIT; {IDLE}'
    run = box.start(script, gang=PER_GPU, checkpoint=contract)
    await eventually(lambda: box.output(run.record.key).count("ready") == 2)
    await box.processes.stop_all("test")
    assert run.done.result().exit_code == 1
    assert sorted(box.output(run.record.key).split()[2:]) == ["0", "1", "saved", "saved"]


async def test_a_rank_that_fails_after_a_save_by_the_signal_of_a_stop_ends_the_others(
    box: LocalNode,
) -> None:
    contract = {"folder": "c", "signal": "SIGUSR1", "save_signal": "SIGUSR1", "grace": 0.5}
    saves = 'trap "echo saved, step 1 >> $LONGSHORE_SAVED; saved=1" USR1; echo ready; saved='
    fails = 'until [ "$saved" ]; do sleep 0.05; done; [ "$RANK" = 0 ] || exit 7'
    run = box.start(f"{saves}; {fails}; while :; do sleep 0.05; done", gang=PER_GPU,
                    checkpoint=contract)  # fmt: skip
    await eventually(lambda: box.output(run.record.key).count("ready") == 2)
    await box.processes.save(SaveRequest(key=run.record.key))
    report = await run.done
    assert (report.exit_code, report.failure) == (7, FailureClass.USER)


@pytest.mark.parametrize("processes", ["gpu"])
async def test_an_image_cannot_have_a_process_for_each_gpu(box: LocalNode, processes: str) -> None:
    report = await box.report("true", image="python:3.12", gang={"processes": processes})
    assert report.failure is FailureClass.START
    assert "torchrun" in report.message
