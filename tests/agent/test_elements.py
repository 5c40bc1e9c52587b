"""Elements of arrays as real processes on a real agent, with a control worker."""

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore.activities.logstore import Stream
from longshore.client.api import Longshore
from longshore.models.array_view import ElementView
from longshore.models.elements import ElementState
from longshore.models.errors import RefusedError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobResult, JobState
from longshore.models.retry import FailureClass
from tests.support.agent import AgentProcess
from tests.support.waiting import eventually

WITHIN = 90.0
"""Seconds for an array to end."""


def an_array(pool: str, command: str, array: object, **fields: object) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "sweep", "pool": pool, "command": command, "array": array, **fields}
    )


async def begun(longshore: Longshore, spec: JobSpec) -> str:
    return (await longshore.submit(spec)).job_id


async def ended(longshore: Longshore, array_id: str) -> JobResult:
    async with asyncio.timeout(WITHIN):
        return await longshore.wait(array_id)


async def written(
    longshore: Longshore, array_id: str, index: int, stream: Stream = "stdout", **how: Any
) -> bytes:
    found = longshore.element_logs(array_id, index, only=stream, **how)
    return b"".join([chunk.data async for chunk in found])


async def all_of(longshore: Longshore, array_id: str, **which: Any) -> list[ElementView]:
    return list(await longshore.elements(array_id, limit=1000, **which))


async def running(longshore: Longshore, array_id: str, marks: Path) -> list[ElementView]:
    """Wait until an element that waits for `marks/go` has begun, and return what runs."""

    async def there() -> list[ElementView]:
        assert marks_in(marks)
        found = await all_of(longshore, array_id, states=frozenset({ElementState.RUNNING}))
        assert found
        return found

    return await eventually(there)


def marks_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("begun-*"))


def waits_for_go(marks: Path) -> str:
    """Return a command that leaves a mark, and runs until `go` is there."""
    mark = f"touch {marks}/begun-$LONGSHORE_ARRAY_INDEX-$LONGSHORE_ELEMENT_ATTEMPT"
    return f"{mark}; while [ ! -e {marks}/go ]; do sleep 0.05; done"


async def test_each_element_runs_once_with_its_index_and_its_output(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    seen = tmp_path / "seen"
    command = (
        f"echo $LONGSHORE_ARRAY_INDEX $SLURM_ARRAY_TASK_ID $LONGSHORE_ARRAY_COUNT >> {seen};"
        " echo out $LONGSHORE_ARRAY_INDEX; echo err $LONGSHORE_ARRAY_INDEX >&2"
    )
    array_id = await begun(longshore, an_array(pool, command, "0-19%3"))
    result = await ended(longshore, array_id)
    assert (result.state, result.message) == (JobState.SUCCEEDED, "20 elements succeeded")
    lines = sorted(seen.read_text().splitlines(), key=lambda line: int(line.split()[0]))
    assert lines == [f"{index} {index} 20" for index in range(20)]
    for index in (0, 7, 19):
        assert await written(longshore, array_id, index) == f"out {index}\n".encode()
        assert await written(longshore, array_id, index, "stderr") == f"err {index}\n".encode()
    report = await longshore.report(array_id)
    assert report.array
    assert report.array.counts == {ElementState.SUCCEEDED: 20}
    listed = [job.id for job in await longshore.list(pool=pool)]
    assert listed == [array_id], "its slots are not listed"


@pytest.mark.exhaustive
async def test_failures_are_grouped_tried_again_and_run_again_by_hand(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    command = (
        f"[ -e {tmp_path}/mended ] && exit 0; [ $LONGSHORE_ARRAY_INDEX -lt 4 ] && exit 0;"
        " echo no data for $LONGSHORE_ARRAY_INDEX >&2; exit 3"
    )
    retry = {"user": {"max_retries": 1, "backoff": "1ms"}}
    array_id = await begun(longshore, an_array(pool, command, "0-9%2", retry=retry))
    result = await ended(longshore, array_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.USER)
    assert result.message == "of 10 elements 4 succeeded, 6 failed"
    array = (await longshore.report(array_id)).array
    assert array
    (group,) = array.errors
    assert (group.elements, group.exit_code, group.indices) == (6, 3, "4-9")
    assert group.message == "no data for 4"
    assert array.attempts == 4 + 2 * 6
    first, second = await all_of(longshore, array_id, indices="5", all_attempts=True)
    assert (first.newest, second.newest, second.attempt) == (False, True, 2)
    (tmp_path / "mended").touch()
    assert await longshore.retry_array(array_id) == (array_id, 6)
    assert (await ended(longshore, array_id)).state is JobState.SUCCEEDED
    attempts = await all_of(longshore, array_id, all_attempts=True)
    assert [each.attempt for each in attempts if each.index == 5] == [1, 2, 3]
    assert [each.attempt for each in attempts if each.index == 0] == [1], "what succeeded stays"
    with pytest.raises(RefusedError, match="nothing runs again"):
        await longshore.retry_array(array_id)


@pytest.mark.exhaustive
async def test_a_command_that_is_not_there_fails_each_element_to_start(
    longshore: Longshore, agent: AgentProcess, pool: str
):
    agent.start()
    spec = JobSpec.model_validate(
        {"name": "sweep", "pool": pool, "command": ["no-such-program"], "array": "0-2"}
    )
    array_id = await begun(longshore, spec)
    assert (await ended(longshore, array_id)).state is JobState.FAILED
    found = await all_of(longshore, array_id)
    assert {(each.failure, each.exit_code, each.message) for each in found} == {
        (FailureClass.START, 127, "command not found: no-such-program")
    }


@pytest.mark.exhaustive
async def test_a_folder_that_is_not_there_ends_the_array_and_not_each_slot_for_ever(
    longshore: Longshore, agent: AgentProcess, pool: str
):
    agent.start()
    spec = an_array(pool, "true", "0-9%2", workdir="/no/such/folder")
    array_id = await begun(longshore, spec)
    result = await ended(longshore, array_id)
    assert (result.state, result.failure) == (JobState.FAILED, FailureClass.START)
    found = await all_of(longshore, array_id)
    assert "the working folder /no/such/folder does not exist" in found[0].message
    assert {each.started_at for each in found} == {None}


@pytest.mark.exhaustive
async def test_a_row_of_a_table_is_an_element_with_its_variables(
    longshore: Longshore, agent: AgentProcess, pool: str
):
    agent.start()
    table = {"columns": ["LR", "NAME"], "rows": [["0.1", "a b"], ["0.2", "c;d"]]}
    array_id = await begun(longshore, an_array(pool, 'echo "$LR $NAME"', table))
    assert (await ended(longshore, array_id)).state is JobState.SUCCEEDED
    assert await written(longshore, array_id, 1) == b"0.2 c;d\n"


@pytest.mark.exhaustive
async def test_elements_that_are_cancelled_stop_and_the_others_go_on(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    array_id = await begun(longshore, an_array(pool, waits_for_go(tmp_path), "0-3%1"))
    (first,) = await running(longshore, array_id, tmp_path)
    said = await longshore.cancel_elements(array_id, f"{first.index},3", "enough")
    assert (said.waiting, said.running) == (1, 1)
    await eventually(lambda: list(tmp_path.glob("begun-1-*")))
    (tmp_path / "go").touch()
    result = await ended(longshore, array_id)
    assert result.message == "of 4 elements 2 succeeded, 2 cancelled"
    found = await all_of(longshore, array_id)
    assert [each.state.value for each in found] == [
        "CANCELLED", "SUCCEEDED", "SUCCEEDED", "CANCELLED",
    ]  # fmt: skip
    with pytest.raises(RefusedError, match="has ended already"):
        await longshore.cancel_elements(array_id, "1")
    with pytest.raises(RefusedError, match="is FAILED: nothing runs again"):
        await longshore.retry_array(array_id, (ElementState.FAILED,))
    assert await longshore.retry_array(array_id) == (array_id, 2)
    assert (await ended(longshore, array_id)).state is JobState.SUCCEEDED


async def test_a_cancel_ends_what_runs_and_starts_nothing(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    array_id = await begun(longshore, an_array(pool, waits_for_go(tmp_path), "0-9%2"))
    await running(longshore, array_id, tmp_path)
    await longshore.cancel(array_id, "changed my mind")
    result = await ended(longshore, array_id)
    assert (result.state, result.message) == (JobState.CANCELLED, "changed my mind")
    found = await all_of(longshore, array_id)
    assert {each.state for each in found} == {ElementState.CANCELLED}
    assert all(not node.ram_used for node in await longshore.nodes(pool=pool))


async def test_a_slot_that_is_preempted_loses_the_element_that_ran_alone(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    array_id = await begun(longshore, an_array(pool, waits_for_go(tmp_path), "0-4%1"))
    (first,) = await running(longshore, array_id, tmp_path)
    await longshore.requeue(f"{array_id}.s1", "somebody needs it")
    await eventually(lambda: list(tmp_path.glob("begun-0-2")))
    (tmp_path / "go").touch()
    assert (await ended(longshore, array_id)).state is JobState.SUCCEEDED
    attempts = [
        (each.index, each.attempt) for each in await all_of(longshore, array_id, all_attempts=True)
    ]
    assert first.index == 0
    assert attempts == [(0, 1), (0, 2), (1, 1), (2, 1), (3, 1), (4, 1)]
    assert marks_in(tmp_path) == [f"begun-{index}-{attempt}" for index, attempt in attempts], (
        "each once"
    )


async def test_a_lost_agent_costs_what_ran_and_what_had_ended_counts(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    command = f"[ $LONGSHORE_ARRAY_INDEX -lt 5 ] && exit 0; {waits_for_go(tmp_path)}"
    retry = {"node": {"max_retries": 3, "backoff": "1ms"}}
    array_id = await begun(longshore, an_array(pool, command, "0-9%1", retry=retry))
    await running(longshore, array_id, tmp_path)
    agent.kill()
    agent.start()
    await eventually(lambda: list(tmp_path.glob("begun-5-2")))
    (tmp_path / "go").touch()
    assert (await ended(longshore, array_id)).state is JobState.SUCCEEDED
    attempts = [
        (each.index, each.attempt) for each in await all_of(longshore, array_id, all_attempts=True)
    ]
    assert attempts == [
        *((index, 1) for index in range(6)), (5, 2), *((index, 1) for index in range(6, 10)),
    ]  # fmt: skip
    assert marks_in(tmp_path) == [
        "begun-5-1",
        "begun-5-2",
        *(f"begun-{index}-1" for index in range(6, 10)),
    ]


@pytest.mark.exhaustive
async def test_what_an_element_leaves_behind_ends_with_it(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    command = f"(sleep 300 & echo $! >> {tmp_path}/left)"
    array_id = await begun(longshore, an_array(pool, command, "0-3%1"))
    assert (await ended(longshore, array_id)).state is JobState.SUCCEEDED
    pids = (tmp_path / "left").read_text().split()
    assert len(pids) == 4
    assert not [pid for pid in pids if psutil.pid_exists(int(pid))]


@pytest.mark.exhaustive
async def test_a_hold_starts_no_further_element(
    longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
):
    agent.start()
    array_id = await begun(longshore, an_array(pool, waits_for_go(tmp_path), "0-2%1"))
    await running(longshore, array_id, tmp_path)
    await longshore.hold(array_id, "let me look")

    async def is_held() -> bool:
        return (await longshore.job(array_id)).state is JobState.HELD

    await eventually(is_held)
    (tmp_path / "go").touch()

    async def no_slot_is_left() -> bool:
        array = (await longshore.report(array_id)).array
        return array is not None and array.slots == 0

    await eventually(no_slot_is_left)
    found = await all_of(longshore, array_id)
    assert [each.state.value for each in found] == ["SUCCEEDED", "WAITING", "WAITING"]
    await longshore.release(array_id)
    assert (await ended(longshore, array_id)).state is JobState.SUCCEEDED
