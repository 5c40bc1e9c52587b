"""DAG files: what is taken, and how every mistake is named at once."""

import json
import re
from pathlib import Path

import pytest
import yaml

from longshore.client.dag_file import read_dag
from longshore.models.bounds import json_bytes
from longshore.models.code import Code
from longshore.models.dag import DagJob, DagSpec, Join
from longshore.models.dag_edges import Condition, Edge
from longshore.models.dag_messages import DagInput
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import MOST_BYTES, JobSpec
from longshore.models.job_examples import FULL_EXAMPLE


def read(folder: Path, text: str, most: int = 1000) -> DagSpec:
    file = folder / "dag.yaml"
    file.write_text(text)
    return read_dag(str(file), most)


def mistakes(folder: Path, text: str, most: int = 1000) -> list[str]:
    with pytest.raises(SpecError) as refused:
        read(folder, text, most)
    return [each.removeprefix(f"{folder}/") for each in refused.value.problems]


def test_the_forms_of_what_a_job_comes_after(tmp_path: Path):
    spec = read(
        tmp_path,
        """
name: d
jobs:
  a: {command: x}
  one: {command: x, after: a}
  several: {command: x, after: [a, one]}
  slurm: {command: x, after: {a: afterok, one: afternotok, several: afterany}}
  told: {command: x, join: any, after: {a: {condition: failure, catch: false}}}
""",
    )
    found = {
        name: {up: edge.condition.value for up, edge in job.after.items()}
        for name, job in spec.jobs.items()
    }
    assert found == {
        "a": {},
        "one": {"a": "success"},
        "several": {"a": "success", "one": "success"},
        "slurm": {"a": "success", "one": "failure", "several": "any"},
        "told": {"a": "failure"},
    }
    assert (spec.jobs["told"].join, spec.jobs["told"].after["a"].catch) == (Join.ANY, False)
    assert spec.jobs["slurm"].after["one"].condition is Condition.FAILURE
    words = [edge.shown for edge in spec.jobs["slurm"].after.values()]
    assert words == ["afterok", "afternotok", "afterany"]
    stored = DagSpec.model_validate_json(spec.model_dump_json(exclude_unset=True))
    assert stored == spec, "who looks at it later sees the same words"
    assert "word" not in spec.model_dump()["jobs"]["told"]["after"]["a"]


def test_a_word_that_is_not_slurms_for_the_condition_is_refused(tmp_path: Path):
    (mistake,) = mistakes(
        tmp_path,
        "name: d\njobs: {a: {command: x}, b: {command: x, after: {a: {condition: any, "
        "word: afterok}}}}\n",
    )
    assert "word: 'afterok' is not Slurm's word for any" in mistake


def test_a_name_twice_and_slurms_word_as_a_name_are_named(tmp_path: Path):
    assert mistakes(
        tmp_path,
        """
name: d
jobs:
  a: {command: x}
  b: {command: x, after: [a, a]}
  c: {command: x, after: a, inputs: [a, a]}
  d: {command: x, mutex: [m, n, m]}
  e: {command: x, mutex: singleton}
  f: {command: x, after: {a: singleton}}
""",
    ) == [
        "dag.yaml:5: jobs.b.after: has 'a' twice: once is enough",
        "dag.yaml:6: jobs.c.inputs: has 'a' twice: once is enough",
        "dag.yaml:7: jobs.d.mutex: has 'm' twice: once is enough",
        "dag.yaml:8: jobs.e: mutex holds names, and `singleton` would be one for all jobs that "
        "say so: for one job of this name at a time write `singleton: true`",
        "dag.yaml:9: jobs.f.after.a: no condition of one job: give the job "
        "`singleton: true` instead, or `mutex: NAME`",
    ]


def test_typed_jobs_are_those_of_a_file(tmp_path: Path):
    text = """
name: d
tenant: research
defaults: {gpus: 3}
jobs:
  a: {command: x}
  b: {command: x, gpus: 2, after: {a: failure}, join: any}
"""
    typed = DagSpec(
        name="d", tenant="research", defaults={"gpus": 3},
        jobs={
            "a": DagJob(command="x"),
            "b": DagJob(
                command="x", gpus=2, after={"a": Edge(condition=Condition.FAILURE)}, join=Join.ANY
            ),
        },
    )  # fmt: skip
    assert typed == read(tmp_path, text)
    assert typed.jobs["a"].spec == JobSpec(name="a", tenant="research", gpus=3, command="x")


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_job_takes_every_field_of_a_job_file(tmp_path: Path, form: str):
    whole = yaml.safe_load(FULL_EXAMPLE)
    # YAML reads 2h30m as text and 30 as a number, as this loader does.
    dag = {"name": "d", "tenant": "research", "jobs": {"train-7b": whole}}
    text = json.dumps(dag) if form == "json" else yaml.safe_dump(dag)
    alone = load_document(FULL_EXAMPLE, "job.yaml", JobSpec)
    assert read(tmp_path, text).jobs["train-7b"].spec == alone


def test_a_job_that_says_nothing_has_what_all_share(tmp_path: Path):
    spec = read(tmp_path, "name: d\ndefaults: {command: x, gpus: 2}\njobs: {a: {}}\n")
    assert spec.jobs["a"].spec == JobSpec(name="a", command="x", gpus=2)


def test_a_job_is_as_large_as_it_travels(tmp_path: Path):
    """With defaults, which a DAG's own messages leave out."""
    env = {f"V{number}": "x" * 100_000 for number in range(9)}
    given = {"command": "x" * 99_000, "env": env}
    left = MOST_BYTES - json_bytes(given) - 100
    job = {**given, "env": {**env, "LAST": "x" * left}}
    assert json_bytes(job) < MOST_BYTES
    (mistake,) = mistakes(tmp_path, json.dumps({"name": "d", "jobs": {"a": job}}))
    assert re.search(r"jobs.a: the job has 1,000,\d{3} bytes as JSON \(env .*, command", mistake)


def test_the_forms_of_a_mutex(tmp_path: Path):
    spec = read(
        tmp_path,
        """
name: d
jobs:
  one: {command: x, mutex: m}
  several: {command: x, mutex: [b, a]}
  slurm: {command: x, singleton: m}
  own: {command: x, singleton: true}
  none: {command: x, singleton: false}
""",
    )
    assert {name: job.mutex for name, job in spec.jobs.items()} == {
        "one": ("m",), "several": ("a", "b"), "slurm": ("m",), "own": ("own",), "none": (),
    }  # fmt: skip
    assert DagSpec.model_validate_json(spec.model_dump_json()) == spec
    wrong = mistakes(
        tmp_path,
        """
name: d
jobs:
  a: {command: x, mutex: "Not a name"}
  b: {command: x, mutex: m, singleton: m}
  c: {command: x, after: {a: mutex}}
""",
    )
    assert len(wrong) == 3
    assert "another word for mutex" in wrong[1]
    assert "give the job `singleton: true` instead, or `mutex: NAME`" in wrong[2]


def test_an_array_puts_nothing_out(tmp_path: Path):
    (wrong,) = mistakes(
        tmp_path,
        """
name: d
jobs:
  a: {command: x, array: 0-3}
  b: {command: x, after: a, inputs: a}
""",
    )
    assert "jobs.b.inputs: a is an array, whose elements put nothing out for others" in wrong


def test_what_a_job_does_not_say_comes_from_the_dag(tmp_path: Path):
    spec = read(
        tmp_path,
        """
name: d
tenant: research
pool: big
defaults: {gpus: 2, env: {SEED: 7}, workdir: data}
jobs:
  a: {command: x}
  b: {command: x, gpus: 1, pool: small, workdir: /abs}
""",
    )
    a, b = spec.jobs["a"].spec, spec.jobs["b"].spec
    assert type(a) is JobSpec
    assert (a.name, a.tenant, a.pool, a.gpus, a.env) == ("a", "research", "big", 2, {"SEED": "7"})
    assert (b.name, b.tenant, b.pool, b.gpus) == ("b", "research", "small", 1)
    assert (a.code, a.workdir) == (Code(folder=str(tmp_path / "data")), None)
    assert (b.code, b.workdir) == (None, "/abs")
    assert "expected_duration" not in a.model_fields_set, "nobody said how long it takes"


def test_every_mistake_is_named_with_its_line(tmp_path: Path):
    assert mistakes(
        tmp_path,
        """name: d
jobs:
  train: {command: x, gpus: 0}
  a: {command: x, after: b}
  b:
    command: x
    after: {a: any, trian: success}
  c:
    command: x
    after: {train: sucess}
  d: {command: x, aftr: train}
""",
    ) == [
        "dag.yaml:3: jobs.train.gpus: must be at least 1, got 0",
        "dag.yaml:4: jobs.a.after.b: a cycle: a comes after b (success); b comes after a (any)",
        "dag.yaml:7: jobs.b.after.trian: no such job; did you mean train?",
        "dag.yaml:10: jobs.c.after.train: must be success, failure, any or corresponding, "
        "got 'sucess'",
        "dag.yaml:11: jobs.d.aftr: no such field; did you mean after?",
    ]


def test_what_is_wrong_from_element_to_element_is_named_with_its_line(tmp_path: Path):
    assert mistakes(
        tmp_path,
        """name: d
jobs:
  prepare: {command: x, array: 0-9}
  setup: {command: x}
  a: {command: x, array: 0-9, after: {setup: corresponding}}
  b:
    command: x
    after: {prepare: aftercorr}
  c:
    command: x
    array: 0-9
    after: {prepare: corresponding, setup: success}
    mutex: m
  d: {command: x, array: 0-9, after: {prepare: {condition: corr, extra: skip}}}
  e: {command: x, array: 0-9, after: {prepare: {condition: any, extra: wait}}}
  f: {command: x, array: 0-9, after: {gone: corresponding}}
  g: {command: x, array: 0-9, after: {prepare: corresponding}, join: one}
""",
    ) == [
        "dag.yaml:5: jobs.a.after.setup: corresponding is for two arrays, element to element, and "
        "setup is none: give it `array:`, or make the condition success",
        "dag.yaml:8: jobs.b.after.prepare: corresponding is for two arrays, element to element, "
        "and b is none: give it `array:`, or make the condition success",
        "dag.yaml:13: jobs.c.mutex: c would keep it while its elements wait for those of prepare: "
        "make the condition success, or leave the mutex out",
        "dag.yaml:14: jobs.d.after.prepare.extra: must be start or wait, got 'skip'",
        "dag.yaml:15: jobs.e.after.prepare: extra is for the condition corresponding, and not for "
        "any: leave it out",
        "dag.yaml:16: jobs.f.after.gone: no such job",
        "dag.yaml:17: jobs.g.join: must be all or any, got 'one'",
    ]


def test_arrays_that_all_jobs_are_correspond(tmp_path: Path):
    jobs = "{a: {command: x}, b: {command: x, after: {a: corresponding}}}"
    spec = read(tmp_path, f"name: d\ndefaults: {{array: 0-3}}\njobs: {jobs}\n")
    assert spec.jobs["b"].after["a"].condition is Condition.CORRESPONDING


def test_the_number_of_jobs_is_bounded(tmp_path: Path):
    jobs = "".join(f"  j{number}: {{command: x}}\n" for number in range(1001))
    (problem,) = mistakes(tmp_path, f"name: d\njobs:\n{jobs}")
    assert "has 1,001 jobs; 1,000 is the most (setting most_dag_jobs)" in problem
    assert len(read(tmp_path, f"name: d\njobs:\n{jobs}", most=1001).jobs) == 1001


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: d\njobs: {}\n", "jobs: "),
        ("name: d\n", "jobs: is required"),
        ("name: d\njobs: {a: {command: x}, a: {command: y}}\n", "is given twice"),
        ("name: d\njobs: [a]\n", "must be a mapping"),
        ("name: d\njobs: {a: {command: x, after: [{b: any}]}}\n", "a list holds names alone"),
        ("name: d\njobs: {a: {command: x, after: a}}\n", "a job cannot come after itself"),
        ("name: d\njobs: {a: {command: x, tenant: z}}\n", "a DAG is for one tenant"),
        ("name: d\non_failure: halt\njobs: {a: {command: x}}\n", "on_failure: must be"),
    ],
)
def test_what_is_no_dag_is_refused(tmp_path: Path, text: str, says: str):
    assert any(says in each for each in mistakes(tmp_path, text)), mistakes(tmp_path, text)


def test_it_travels_without_defaults_and_comes_back_as_it_was(tmp_path: Path):
    jobs = "".join(
        f"  j{number}: {{command: python train.py --fold {number}, after: {{}}}}\n"
        for number in range(1000)
    )
    given = DagInput(spec=read(tmp_path, f"name: d\njobs:\n{jobs}"))
    sent = given.model_dump_json()
    assert len(sent) < 200_000
    back = DagInput.model_validate(json.loads(sent))
    assert back.spec == given.spec
    assert back.spec
    assert given.spec
    assert "expected_duration" not in back.spec.jobs["j7"].spec.model_fields_set
