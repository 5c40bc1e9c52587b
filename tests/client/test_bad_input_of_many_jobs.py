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
STAGES = """
command: x
priority: 22
gpus: 3
malleable:
  min: 9
  max: 4
  step: 2
"""
SIMPLE = """
array: 0-3
gang: {}
image: u
checkpoint: {folder: saved}
tier: slow
"""
NOBODYS_GPUS = """
command: x
malleable: {min: 2, max: 12, step: 3}
"""
TWICE = """
jobs:
  a: {command: x, after: 3, mutex: true}
  a: {command: x}
  b: {command: x, after: null, priority: 22}
  c: {command: x, after: [afterok:a, b], gpuz: 1}
  d: {after: {a: }}
"""
SHARED = """
defaults: {priority: 22, ramm: 1}
jobs:
  a: {command: x}
  b: {command: x, tier: slow}
"""
BETWEEN = """
jobs:
  a: {command: x, array: 0-3, priority: 22}
  b:
    command: x
    tenant: others
    inputs: {a: x}
    after: a
  d: {command: x, inputs: a, after: a}
  c: {command: x, inputs: [a], after: a, tenant: others, malleable: {min: 9, max: 4}}
"""
FILES = """
jobs:
  a: {command: x, array: 0-3}
  b: {command: x}
  c: {command: x, outputs: [r]}
  d:
    command: x
    after: [a, b]
    data:
      one: job:a
      two: {from: job:b}
      three: job:c
      four: job:nobody
      five: "job:"
"""
UNREAD = """
defaults: {outputs: [o.txt]}
jobs:
  a: {command: x}
  b: {command: x, after: {a: sucess}, inputs: a, data: {d: "job:a"}}
  c: {command: x, after: b, inputs: a}
  e: {command: x, after: a, data: {d: "job:a", e: "job:arr"}}
  arr: {command: x, array: 0-1, after: a}
"""
TABLES = """
jobs:
  a: {command: x, array: nothing.csv}
  b: {command: x, after: c,
      array: rows.csv}
"""
NONE = "\njobs: {}\n"
FINE = "\ncommand: x\n"
FINE_DAG = "\njobs: {a: {command: x}}\n"
CSV = "seed,rate,seed,LONGSHORE_X\n1,2\n1,2,3,4\n1\n"
JSON_LINES = '{"a": 1}\n{"b": 1}\n\nx\n{"a": []}\n'
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
            "--array 1-99999999: array: has 99,999,999 elements; 1,000,000 is the most, and "
            "the setting most_array_elements mostly allows less: use several arrays",
        )),
        (FINE, (*JOB, "--array", "none.csv"), (
            "FOLDER/none.csv:1: has no row: an array needs one element at least",
        )),
        (FINE, (*JOB, "--array", "0-9%0"), (
            "--array 0-9%0: array: %0: behind the % goes how many run at a time, 1 or more",
        )),
        (SIZES, JOB, ("FILE:4: malleable.min: is 8, which is above max (2)",)),
        (STEP, JOB, (
            "FILE:4: malleable.desired: is 12, which is outside 2 (min) to 9 (max)",
            "FILE:4: malleable.step: is 4, which does not divide the 7 GPUs between min (2) and "
            "max (9)",
        )),
        (STAGES, JOB, (
            "FILE:4: priority: must be at most 10, got 22",
            "FILE:7: malleable.min: is 9, which is above max (4)",
        )),
        (SIMPLE, JOB, (
            "FILE:3: array: elements cannot have a gang: each runs on one node; submit a job for "
            "each",
            "FILE:3: array: elements cannot have an image: let the command start the container, "
            "or submit a job for each",
            "FILE:3: array: elements cannot have a checkpoint contract: one that is stopped "
            "starts from the beginning; leave it out, or submit a job for each",
            "FILE:7: tier: must be FAST or FLEX, got 'slow'",
        )),
        (NOBODYS_GPUS, JOB, (
            "FILE:4: malleable.step: is 3, which does not divide the 10 GPUs between min (2) and "
            "max (12)",
        )),
        (TWICE, DAG, (
            "FILE:4: jobs.a.after: must be a job's name, a list of names, or a mapping of names "
            "to conditions, got 3",
            "FILE:4: jobs.a.mutex: must be a name or a list of names, got true",
            "FILE:5: jobs.a: is given twice",
            "FILE:6: jobs.b.after: must be a job's name, a list of names, or a mapping of names "
            "to conditions, got nothing",
            "FILE:6: jobs.b.priority: must be at most 10, got 22",
            "FILE:7: jobs.c.after: 'afterok:a' is how Slurm writes it: write {a: afterok}",
            "FILE:7: jobs.c.gpuz: no such field; did you mean gpus?",
            "FILE:8: jobs.d: give a command to run, an image, or both",
            "FILE:8: jobs.d.after.a: must be success, failure, any or corresponding, or a "
            "mapping with a condition, got nothing",
        )),
        (SHARED, DAG, (
            "FILE:3: defaults.priority: must be at most 10, got 22",
            "FILE:3: defaults.ramm: no such field; did you mean ram?",
            "FILE:6: jobs.b.tier: must be FAST or FLEX, got 'slow'",
        )),
        (FILES, DAG, (
            "FILE:11: jobs.d.data.one: a is an array, which stores no outputs: let it write into "
            "a store",
            "FILE:12: jobs.d.data.two: b stores no files: name them there, as in `outputs: "
            "[results]`",
            "FILE:13: jobs.d.data.three: c does not come before d: name it in `after` too",
            "FILE:14: jobs.d.data.four: no such job: nobody",
            "FILE:15: jobs.d.data.five.from: job: names no job: write job:ID, and in a DAG "
            "job:NAME",
        )),
        (UNREAD, DAG, (
            "FILE:6: jobs.b.after.a: must be success, failure, any or corresponding, got "
            "'sucess'",
            "FILE:8: jobs.e.data.e: arr does not come before e: name it in `after` too",
            "FILE:9: jobs.arr.array: elements cannot have outputs: they share a folder; let each "
            "write into a store, or submit a job for each",
        )),
        (BETWEEN, DAG, (
            "FILE:4: jobs.a.priority: must be at most 10, got 22",
            "FILE:7: jobs.b.tenant: is others, and that of the DAG default: a DAG is for one "
            "tenant; leave it out of its jobs",
            "FILE:8: jobs.b.inputs: must be a name or a list of names, got a mapping",
            "FILE:10: jobs.d.inputs: a is an array, whose elements put nothing out for others: "
            "leave it out, and let them write into a folder or a store",
            "FILE:11: jobs.c.inputs: a is an array, whose elements put nothing out for others: "
            "leave it out, and let them write into a folder or a store",
            "FILE:11: jobs.c.malleable.min: is 9, which is above max (4)",
            "FILE:11: jobs.c.tenant: is others, and that of the DAG default: a DAG is for one "
            "tenant; leave it out of its jobs",
        )),
        (TABLES, DAG, (
            "FILE:4: jobs.a.array: FOLDER/nothing.csv: no such file (the table of the array)",
            "FILE:5: jobs.b.after.c: no such job",
            "FILE:6: jobs.b.array: FOLDER/rows.csv:1: column 'seed': two columns have this name: "
            "rename one",
            "FILE:6: jobs.b.array: FOLDER/rows.csv:1: column 'LONGSHORE_X': is a variable of "
            "Longshore: rename the column",
            "FILE:6: jobs.b.array: FOLDER/rows.csv:2: has 2 values for the 4 names in the first "
            "line",
            "FILE:6: jobs.b.array: FOLDER/rows.csv:4: has 1 value for the 4 names in the first "
            "line",
        )),
        (NONE, DAG, ("FILE:3: jobs: must have at least 1 entry, got none",)),
        (FINE_DAG, JOB, (
            "FILE: is a DAG file, which has jobs, and not a job file: submit it with `longshore "
            "dag submit`",
        )),
        (FINE, DAG, (
            "FILE: is a job file, not a DAG file, which has jobs: submit it with `longshore "
            "submit`",
        )),
        (FINE, (*JOB, "--array", "rows.csv"), (
            "FOLDER/rows.csv:1: column 'seed': two columns have this name: rename one",
            "FOLDER/rows.csv:1: column 'LONGSHORE_X': is a variable of Longshore: rename the "
            "column",
            "FOLDER/rows.csv:2: has 2 values for the 4 names in the first line",
            "FOLDER/rows.csv:4: has 1 value for the 4 names in the first line",
        )),
        (FINE, (*JOB, "--array", "rows.jsonl"), (
            "FOLDER/rows.jsonl:2: has other names than line 1: a",
            "FOLDER/rows.jsonl:4: is no JSON: Expecting value: line 1 column 1 (char 0)",
            "FOLDER/rows.jsonl:5: a: a value is a text, a number, true or false",
        )),
        (FINE, (*JOB, "--array", "0-99999999999999999999"), (
            "--array 0-99999999999999999999: array: 99999999999999999999 is too large for an "
            "index: 999,999,999 is the most",
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
        "none", "none at a time", "min above max", "step", "a field and between fields",
        "simple elements", "gpus of nobody", "twice and others", "defaults", "files",
        "unread edges and outputs of all",
        "between jobs", "tables of a DAG", "no jobs", "a DAG as a job", "a job as a DAG", "CSV",
        "JSON lines", "large index", "never fires", "schedule of a cycle",
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
    (tmp_path / "rows.csv").write_text(CSV)
    (tmp_path / "rows.jsonl").write_text(JSON_LINES)
    tables = (".csv", ".jsonl")
    given = [str(tmp_path / each) if each.endswith(tables) else each for each in command]
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
