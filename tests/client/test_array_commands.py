"""Commands on arrays against the real stack: submit, look, steer, and what is refused."""

import json
from pathlib import Path

import pytest

from longshore.client.array_table import with_table
from longshore.client.array_view import bar
from longshore.models.elements import ElementState
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.retry import FailureClass
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def submitted(longshore: Command, pool: str, *args: str) -> str:
    ran = await longshore("submit", "-q", "--name", pool, "--pool", pool, *args, "--", "true")
    assert ran.code == 0, ran.err
    return ran.out.strip()


async def test_an_array_is_shown_as_one_job_and_its_elements_one_by_one(
    longshore: Command, node: ScriptedNode, pool: str
):
    array_id = await submitted(longshore, pool, "--array", "0-9%2")
    await node.batch_of(f"{array_id}.s1")
    await node.batch_of(f"{array_id}.s2")
    listed = json.loads((await longshore("jobs", "--pool", pool, "--json")).out)
    assert [(job["id"], job["state"]) for job in listed] == [(array_id, "RUNNING")]
    assert listed[0]["elements"] == {"RUNNING": 2, "WAITING": 8}
    assert listed[0]["simulated"] is True, "its slots run on simulated GPUs"
    ran = await longshore("logs", array_id)
    assert "is an array: --element INDEX says whose output" in ran.err
    await node.end_batch(f"{array_id}.s1", failure=FailureClass.USER)
    await node.end_batches(f"{array_id}.s1", f"{array_id}.s2")
    waited = await longshore("watch", array_id)
    assert waited.code != 0
    shown = (await longshore("job", array_id)).out
    assert "of 10 elements 9 succeeded, 1 failed" in shown
    elements = (await longshore("elements", array_id, "--state", "failed")).out
    (line,) = elements.splitlines()[1:]
    index, state = line.split()[:2]
    assert state == "FAILED"
    assert f"longshore logs {array_id} --element {index}" in shown
    why = await longshore("why", array_id)
    assert why.code == 0, why.err
    again = await longshore("retry", array_id, "--failed")
    assert f"{array_id} runs 1 element again" in again.out
    await node.end_batches(f"{array_id}.s3")
    assert (await longshore("watch", array_id)).code == 0


@pytest.mark.exhaustive
async def test_elements_are_cancelled_by_their_indices(
    longshore: Command, node: ScriptedNode, pool: str
):
    array_id = await submitted(longshore, pool, "--array", "0-4%1")
    await node.batch_of(f"{array_id}.s1")
    ran = await longshore("cancel", array_id, "--elements", "0,3-4")
    assert ran.out == "2 that waited are cancelled, 1 are stopped by their slots\n"
    await eventually(lambda: node.stopped_elements)
    assert node.stopped_elements[0].indices == (0,)
    ran = await longshore("cancel", array_id, "--elements", "9")
    assert (ran.code != 0, "has no element 9" in ran.err) == (True, True)
    ran = await longshore("cancel", array_id, "--elements", "x")
    assert "'x' is no index or range" in ran.err
    await longshore("cancel", array_id)
    assert (await longshore("watch", array_id)).code == 130


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ("0-9%0", "behind the % goes how many run at a time, 1 or more"),
        ("0-999999", "has 1,000,000 elements; 100,000 is the most"),
        ("5-1", "ends before it begins"),
        ("no-such.csv", "no such file"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_starts(
    longshore: Command, pool: str, array: str, says: str
):
    for more in ((), ("--dry-run",)):
        ran = await longshore("submit", "--pool", pool, "--array", array, *more, "--", "true")
        assert ran.code == 65
        assert says in ran.err
    listed = await longshore("jobs", "--all", "--pool", pool)
    assert listed.err.startswith(f"error: no pool '{pool}'"), "a job would have made it"


def a_job(table: str) -> JobSpec:
    return JobSpec.model_validate({"name": "x", "command": "true", "array": table})


def test_a_table_is_read_beside_the_job_file(tmp_path: Path):
    (tmp_path / "a.csv").write_text('\ufeffLR, NAME\n0.1,x\n\n0.2,"a, b"\n')
    array = with_table(a_job("a.csv%3"), tmp_path).array
    assert array
    assert (array.columns, array.rows) == (("LR", "NAME"), (("0.1", "x"), ("0.2", "a, b")))
    assert (array.limit, array.table) == (3, None)
    (tmp_path / "b.jsonl").write_text('{"A": 1, "B": "x"}\n{"B": "y", "A": true}\n')
    array = with_table(a_job("b.jsonl"), tmp_path).array
    assert array
    assert array.rows == (("1", "x"), ("true", "y"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "", "a.csv:1: has no row"),
        ("a.csv", "A,B\n", "a.csv:1: has no row"),
        ("a.csv", "A,B\n1,2\n3\n", "a.csv:3: has 1 value for the 2 names in the first line"),
        ("a.csv", "A,A\n1,2\n", "two columns have this name"),
        ("a.csv", "A B\n1\n", "a.csv"),
        ("a.csv", "LONGSHORE_JOB_ID\n1\n", "is a variable of Longshore"),
        (
            "a.csv",
            "LR,PATH\n1,/data\n",
            "a.csv:1: column 'PATH': would take the place of the list",
        ),
        ("a.jsonl", '\n{"PATH": "/data"}\n', "a.jsonl:2: column 'PATH': would take the place"),
        ("b.jsonl", '{"A": 1}\nx\n', "b.jsonl:2: is no JSON"),
        ("b.jsonl", '{"A": 1}\n{"B": 1}\n', "b.jsonl:2: has other names than line 1: A"),
        ("b.jsonl", '{"A": [1]}\n', "b.jsonl:1: A: a value is a text, a number, true or false"),
        ("b.jsonl", "[1]\n", "b.jsonl:1: is no object"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_line(
    tmp_path: Path, name: str, content: str, says: str
):
    (tmp_path / name).write_text(content)
    with pytest.raises(SpecError) as refused:
        with_table(a_job(name), tmp_path)
    assert says in str(refused.value)


def test_the_bar_shows_each_state_that_has_elements():
    counts = {ElementState.SUCCEEDED: 9_000, ElementState.FAILED: 1, ElementState.WAITING: 999}
    assert bar(counts, 20).plain == f"[{'#' * 17}x{'.' * 2}]"
    counts = {ElementState.RUNNING: 36, ElementState.WAITING: 4}
    assert bar(counts, 20, claimed=32).plain == f"[>>{'.' * 18}]", "one that is claimed waits"
