"""What is wrong with DAGs, arrays, elastic jobs and schedules: said at once, and nothing starts.

Outputs that are too large or no JSON are known when their job has ended
(`tests/workflows/test_dag_outputs.py`).
"""

from pathlib import Path

import pytest

from tests.client.conftest import Command

CYCLE = """
jobs:
  a: {command: x, after: c}
  b: {command: x, after: {a: any}}
  c: {command: x, after: {b: failure}}
"""
MANY = "\njobs:\n" + "".join(f"  j{number}: {{command: x}}\n" for number in range(1_001))
UNKNOWN = """
jobs:
  train: {command: x}
  end: {command: x, after: {trian: success, train: done}, inputs: nobody}
"""
ARRAYS = """
jobs:
  a: {command: x, array: 0-999999}
  b: {command: x, array: 9-0, after: a}
"""
SIZES = """
command: x
malleable: {min: 8, max: 2}
"""
STEP = """
command: x
malleable: {min: 2, max: 9, step: 4, desired: 12}
"""
FINE = "\ncommand: x\n"
DAG, JOB = ("dag", "submit"), ("submit",)


@pytest.mark.parametrize(
    ("content", "command", "says"),
    [
        (CYCLE, DAG, (
            "FILE:4: jobs.a.after.c: a cycle: a comes after c (success); c comes after b "
            "(failure); b comes after a (any)",
        )),
        (MANY, DAG, (
            "FILE:3: jobs: has 1,001 jobs; 1,000 is the most (setting most_dag_jobs): use "
            "several DAGs",
        )),
        (UNKNOWN, DAG, (
            "FILE:5: jobs.end.after.train: must be success, failure, any or corresponding, got "
            "'done'",
            "FILE:5: jobs.end.after.trian: no such job; did you mean train?",
            "FILE:5: jobs.end.inputs.nobody: no such job",
        )),
        (ARRAYS, DAG, (
            "FILE:4: jobs.a.array: array 0-999999 has 1,000,000 elements; 100,000 is the most "
            "(setting most_array_elements): use a step, or several arrays",
            "FILE:5: jobs.b.array: '9-0' ends before it begins, and has no index",
        )),
        (FINE, (*JOB, "--array", "0-999999"), (
            "array 0-999999 has 1,000,000 elements; 100,000 is the most (setting "
            "most_array_elements): use a step, or several arrays",
        )),
        (FINE, (*JOB, "--array", "1-99999999"), (
            "--array 1-99999999: array: has 99,999,999 elements; 1,000,000 is the most: use "
            "several arrays",
        )),
        (FINE, (*JOB, "--array", "none.csv"), (
            "FOLDER/none.csv:1: has no row: an array needs one element at least",
        )),
        (FINE, (*JOB, "--array", "0-9%0"), (
            "--array 0-9%0: array: %0: behind the % goes how many run at a time, 1 or more",
        )),
        (SIZES, JOB, ("FILE:4: malleable: min is 8, which is above max (2)",)),
        (STEP, JOB, (
            "FILE:4: malleable: step is 4, which does not divide the 7 GPUs between min (2) and "
            "max (9); desired is 12, which is outside 2 (min) to 9 (max)",
        )),
        (FINE, ("schedule", "create", "never", "--cron", "0 0 30 2 *"), (
            "cron '0 0 30 2 *': no such time comes within five years",
        )),
        (CYCLE, ("schedule", "create", "never", "--cron", "0 2 * * *"), (
            "FILE:4: jobs.a.after.c: a cycle: a comes after c (success); c comes after b "
            "(failure); b comes after a (any)",
        )),
    ],
    ids=[
        "cycle", "1,001 jobs", "unknown", "arrays of a DAG", "a million", "a hundred million",
        "none", "none at a time", "min above max", "step", "never fires", "schedule of a cycle",
    ],
)  # fmt: skip
async def test_each_mistake_is_told_and_nothing_starts(
    longshore: Command,
    pool: str,
    tmp_path: Path,
    content: str,
    command: tuple[str, ...],
    says: tuple[str, ...],
) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(f"name: {pool}\npool: {pool}{content}")
    (tmp_path / "none.csv").write_text("seed,rate\n")
    given = [str(tmp_path / each) if each.endswith(".csv") else each for each in command]
    at = len(given) if given[0] != "schedule" else 3
    commands = [(*given[:at], str(file), *given[at:])]
    if command is DAG:
        commands.append(("dag", "validate", str(file)))
    for words in commands:
        ran = await longshore(*words)
        told = ran.err.replace(str(file), "FILE").replace(str(tmp_path), "FOLDER")
        assert (ran.code, told.splitlines()) == (65, [f"error: {each}" for each in says])
    assert '"id"' not in (await longshore("jobs", "--all", "--pool", pool, "--json")).out
    assert pool not in (await longshore("dag", "list", "--all", "--json")).out
    assert '"never"' not in (await longshore("schedule", "list", "--json")).out
