"""How processes are made to end: grace, force, descendants, the fence, a dead agent."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore.activities.node import run_lifecycle
from longshore.activities.node.outcome import report_of
from longshore.activities.node.run import Run
from longshore.activities.node.supervision import Plan
from longshore.activities.node.system import boot_clock
from longshore.client.process import run as run_loop
from longshore.models.messages import TIME_ENDED
from longshore.models.node_messages import ProcessReport, Progress, StopProcessRequest
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.local_stack import ROOT
from tests.support.marks import marked, running
from tests.support.programs import COUNTS_STOPS
from tests.support.waiting import eventually

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
SUPERVISE = (
    "import sys; sys.path[:0] = sys.argv[1:2]; "
    "from longshore.activities.node.supervisor import main; main(sys.argv[2])"
)


async def test_a_process_may_save_in_its_grace(box: LocalNode) -> None:
    run = box.start("trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    await _says(box, run, "ready")
    report = await _stop(box, run, grace=10)
    assert (report.exit_code, report.failure, report.stopped_for) == (7, None, "test")
    assert box.output(run.record.key) == "ready\nsaved\n"


async def test_what_a_shell_started_gets_its_grace_too(box: LocalNode) -> None:
    """The shell dies at once of the signal, the program behind it is still saving."""
    program = "trap 'sleep 0.3; echo saved; exit' TERM; echo ready; while :; do sleep 0.05; done"
    run = box.start(f'sh -c "{program}"; echo never')
    await _says(box, run, "ready")
    report = await _stop(box, run, grace=10)
    assert report.exit_code == 143
    assert box.output(run.record.key) == "ready\nsaved\n"


@pytest.mark.parametrize("front", ["", "timeout 1h ", "setsid -w ", "setsid -f "])
async def test_what_has_a_group_of_its_own_gets_its_grace_too(box: LocalNode, front: str) -> None:
    run = box.start(
        f'{front}{sys.executable} -c "$PROGRAM"; sleep 300', env={"PROGRAM": COUNTS_STOPS}
    )
    await _says(box, run, "ready")
    report = await _stop(box, run, grace=30)
    assert report.message == "stopped (test), exit code 143"
    said = box.output(run.record.key)
    # `timeout` gives the signal on by itself, and so it comes again.
    assert said == "ready\nheard 1\n" or ("timeout" in front and "heard" in said)


async def test_the_checkpoint_contract_names_the_signal(box: LocalNode) -> None:
    command = "trap 'echo saved; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    run = box.start(command, checkpoint={"folder": "c", "signal": "SIGUSR1", "grace": 10})
    await _says(box, run, "ready")
    await box.processes.stop_all("test")
    assert box.output(run.record.key) == "ready\nsaved\n"


async def test_a_process_that_ignores_the_signal_is_killed_after_its_grace(box: LocalNode) -> None:
    run = box.start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await _says(box, run, "ready")
    report = await _stop(box, run, grace=0.3)
    assert (report.exit_code, report.failure, report.stopped_for) == (137, None, "test")
    assert report.message == "stopped (test), exit code 137: it did not end in time and was killed"


async def test_one_with_checkpoints_that_is_killed_has_not_saved_in_time(box: LocalNode) -> None:
    run = box.start("trap '' USR1; echo ready; while :; do sleep 0.05; done",
                    checkpoint={"folder": "c", "signal": "SIGUSR1", "grace": 0.3})  # fmt: skip
    await _says(box, run, "ready")
    await box.processes.stop_all("make way")
    assert run.done.result().message.endswith("it did not save in time and was killed")


async def test_a_process_that_ran_until_the_end_of_its_node_has_lost_its_node(
    box: LocalNode,
) -> None:
    run = box.start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await _says(box, run, "ready")
    kill = StopProcessRequest(
        key=run.record.key, signal="SIGKILL", grace=timedelta(0), reason=TIME_ENDED
    )
    await box.processes.stop(kill)
    report = run.done.result()
    assert (report.failure, report.exit_code) == (FailureClass.NODE, 137)
    assert "the time of its node ended" in report.message


async def test_nothing_outlives_a_supervisor_that_its_job_kills(box: LocalNode) -> None:
    seconds = f"300.{uuid.uuid4().int % 10**9}"  # how it is found: it has no environment
    report = await box.report(
        f"env -i setsid sh -c '(sleep {seconds} &) ; (setsid sleep {seconds} &)'; kill -9 $PPID"
    )
    assert report.failure is FailureClass.NODE
    await eventually(lambda: running(seconds) == [])


async def test_a_supervisor_that_its_job_stops_is_killed_with_it(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "SUPERVISOR_PATIENCE", 0.5)
    seconds = f"300.{uuid.uuid4().int % 10**9}"
    # By a file: a supervisor that is stopped carries no output.
    run = box.start(f"kill -STOP $PPID; touch ready; exec sleep {seconds}", job="job-a")
    await eventually((box.folder / "jobs/job-a/work/ready").exists)
    report = await _stop(box, run, grace=0.1)
    assert (report.failure, report.exit_code) == (FailureClass.NODE, None)
    assert "the supervisor of the process was killed" in report.message
    await eventually(lambda: running(seconds) == [])


async def test_a_stopped_supervisor_is_killed_also_where_no_file_tells_of_it(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "SUPERVISOR_PATIENCE", 0.5)
    forget = 'rm "$(dirname "$LONGSHORE_PROGRESS_FILE")/../started.json"'
    run = box.start(f"kill -STOP $PPID; {forget} && touch ready; exec sleep 300", job="job-a")
    await eventually((box.folder / "jobs/job-a/work/ready").exists)
    report = await asyncio.wait_for(_stop(box, run, grace=0.1), 60)
    assert (report.failure, report.exit_code) == (FailureClass.NODE, None)


async def test_a_kill_without_grace_is_not_called_late(box: LocalNode) -> None:
    run = box.start("echo ready; sleep 300")
    await _says(box, run, "ready")
    # The kill comes right behind the signal: either may be what ends it.
    assert (await _stop(box, run, grace=0)).message in (
        "stopped (test), exit code 137",
        "stopped (test), exit code 143",
    )


@pytest.mark.parametrize(
    "start",
    ["sleep 300 &", "setsid sh -c 'sleep 300 & sleep 300' &", "(setsid -f sleep 300);"],
    ids=["child", "own session", "daemon"],
)
async def test_descendants_end_with_a_stopped_process(box: LocalNode, start: str) -> None:
    mark = uuid.uuid4().hex
    run = box.start(f"trap '' TERM; {start} sleep 0.2; echo ready; sleep 300", env={"MARK": mark})
    await _says(box, run, "ready")
    assert len(marked(mark)) >= 2
    await _stop(box, run, grace=0.1)
    assert marked(mark) == []


async def test_descendants_end_with_the_process_itself(box: LocalNode) -> None:
    mark = uuid.uuid4().hex
    report = await box.report("setsid sleep 300 & sleep 0.1; exit 0", env={"MARK": mark})
    assert report.exit_code == 0
    assert "left behind" in report.message
    assert marked(mark) == []


async def test_silence_of_the_server_kills_the_process(make_box: MakeBox, tmp_path: Path) -> None:
    box = make_box(tmp_path, fence_after=1.0)
    mark = uuid.uuid4().hex
    run = box.start("setsid -f sleep 300; sleep 300", env={"MARK": mark})
    began = boot_clock()
    report = await run.done
    assert report.failure is FailureClass.NETWORK
    assert "cut off" in report.message
    assert marked(mark) == []
    assert boot_clock() - began < 200  # and not when the process itself would have ended


async def test_acknowledged_heartbeats_keep_the_process(make_box: MakeBox, tmp_path: Path) -> None:
    box = make_box(tmp_path, fence_after=10.0)
    run = box.start("sleep 11")
    while not run.done.done():
        box.fence.acknowledge(1, boot_clock())
        await asyncio.wait({run.done}, timeout=0.1)
    assert (await run.done).exit_code == 0


async def test_an_acknowledgement_counts_from_when_it_was_sent(
    make_box: MakeBox, tmp_path: Path
) -> None:
    box = make_box(tmp_path, fence_after=1.0)
    sent_at = boot_clock()
    run = box.start("sleep 300")
    while not run.done.done():  # acknowledged again and again, but always the same old heartbeat
        box.fence.acknowledge(1, sent_at)
        await asyncio.wait({run.done}, timeout=0.1)
    assert (await run.done).failure is FailureClass.NETWORK


async def test_what_is_to_start_after_the_fence_has_fallen_does_not(
    make_box: MakeBox, tmp_path: Path
) -> None:
    """As where the agent stood still between the order and the start."""
    box = make_box(tmp_path, fence_after=60.0)
    box.fence.open(1, 60.0, boot_clock() - 61)
    began = tmp_path / "began"
    for _ in range(10):  # a process that is started and killed at once comes so far at times
        report = await box.report(["touch", str(began)])
        assert (report.failure, report.exit_code) == (FailureClass.NETWORK, None)
    assert not began.exists()


async def test_without_its_supervisor_nothing_of_a_process_is_left(box: LocalNode) -> None:
    mark = uuid.uuid4().hex
    run = box.start("setsid -f sleep 300; sleep 300", env={"MARK": mark})
    started = await asyncio.wait_for(run.started, 60)
    await eventually(lambda: len(marked(mark)) >= 2)
    os.kill(started["supervisor"], signal.SIGKILL)
    report = await run.done
    assert report.failure is FailureClass.NODE
    assert marked(mark) == []


async def test_a_killed_fork_server_costs_no_process(box: LocalNode) -> None:
    run = box.start("sleep 300")
    started = await asyncio.wait_for(run.started, 60)
    fork_server = psutil.Process(started["supervisor"]).parent()
    assert fork_server
    fork_server.kill()
    fork_server.wait(60)
    assert (await box.report("exit 3")).exit_code == 3
    assert not run.done.done()
    assert (await _stop(box, run, grace=5)).message == "stopped (test), exit code 143"


async def test_an_ended_process_leaves_nothing_open_in_the_agent(
    make_box: MakeBox, tmp_path: Path
) -> None:
    async def more_open_after_ten_more() -> int:
        box = make_box(tmp_path)
        for _ in range(3):
            await box.report("true")
        before = psutil.Process().num_fds()
        for _ in range(10):
            await box.report("true")
        return psutil.Process().num_fds() - before

    gc.disable()  # it would close what was left open
    try:
        # On the loop that an agent runs on, which is not that of the tests. A leak leaves one of
        # each; a client of this process that connects again meanwhile opens fewer.
        assert await asyncio.to_thread(run_loop, more_open_after_ten_more()) < 10
    finally:
        gc.enable()


async def test_lack_of_memory_is_told_apart_from_another_kill(box: LocalNode) -> None:
    group = MEMORY_GROUPS / f"longshore-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("64000000")
    except OSError as error:
        pytest.skip(f"memory groups of version 1 cannot be made here: {error}")
    try:
        end = _supervise_in(group, box, "b'x' * 200_000_000")
        record = box.start("true").record
        report = report_of(record, end, None, Progress())
        assert (report.failure, report.exit_code) == (FailureClass.OUT_OF_MEMORY, 137)
    finally:
        group.rmdir()


def _supervise_in(group: Path, box: LocalNode, code: str) -> dict[str, Any]:
    """Run Python code under a supervisor in a memory group; return the supervisor's last word."""
    plan = Plan(
        argv=(sys.executable, "-I", "-S", "-c", code),
        env={},
        cwd=str(box.folder),
        stdout=str(box.folder / "out"),
        stderr=str(box.folder / "err"),
        fed=boot_clock(),
        fence_after=60,
    )
    enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    supervisor = [sys.executable, "-I", "-S", "-c", SUPERVISE, str(ROOT), str(box.folder)]
    with subprocess.Popen(
        ["sh", "-c", enter, "sh", *supervisor], stdin=subprocess.PIPE
    ) as process:
        assert process.stdin
        process.stdin.write(plan.model_dump_json(exclude_none=True).encode() + b"\n")
        process.stdin.flush()
        process.wait(60)
    return json.loads((box.folder / "end.json").read_text())


async def _stop(box: LocalNode, run: Run, grace: float) -> ProcessReport:
    await box.processes.stop(
        StopProcessRequest(key=run.record.key, grace=timedelta(seconds=grace), reason="test")
    )
    return run.done.result()


async def _says(box: LocalNode, run: Run, word: str) -> None:
    await eventually(lambda: word in box.output(run.record.key))
