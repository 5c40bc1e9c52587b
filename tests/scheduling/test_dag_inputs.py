"""Outputs of jobs as variables of others, and which jobs may ask for which."""

import json
from typing import Any

import pytest

from longshore.models.dag import DagSpec, Join
from longshore.models.dag_view import DagJobView, StepState
from longshore.models.output import MOST_BYTES, output_of, why_unusable
from longshore.scheduling.dag import Graph
from longshore.scheduling.dag_inputs import (
    MOST_BYTES_TOGETHER,
    input_problems,
    variables,
    why_no_output,
    why_too_much,
    with_outputs,
)
from longshore.scheduling.dag_retry import reopened


def test_an_object_is_one_variable_and_one_for_each_plain_field():
    document = {
        "path": "/a b; rm -r $HOME", "n": 3, "x": 1.5, "ok": True, "none": None, "list": [1],
        "odd-name": "x", "long": "x" * 5000, "nul": "a\0b", "half": "\ud800",
    }  # fmt: skip
    content = json.dumps(document)
    assert variables({"train-small.v2": content, "flat": "[1, 2]"}) == {
        "LONGSHORE_OUTPUT_TRAIN_SMALL_V2": content,
        "LONGSHORE_OUTPUT_TRAIN_SMALL_V2__PATH": "/a b; rm -r $HOME",
        "LONGSHORE_OUTPUT_TRAIN_SMALL_V2__N": "3",
        "LONGSHORE_OUTPUT_TRAIN_SMALL_V2__X": "1.5",
        "LONGSHORE_OUTPUT_TRAIN_SMALL_V2__OK": "true",
        "LONGSHORE_OUTPUT_FLAT": "[1, 2]",
    }


def test_a_number_keeps_the_digits_that_it_was_written_with():
    found = variables({"a": '{"x": 1.50, "big": 12345678901234567890, "e": 1e3, "no": -0.0}'})
    fields = {name.rpartition("__")[2]: value for name, value in found.items() if "__" in name}
    assert fields == {"X": "1.50", "BIG": "12345678901234567890", "E": "1e3", "NO": "-0.0"}


def test_two_fields_that_would_be_one_variable_are_no_output():
    found = output_of(b'{"a_b": 1, "A_B": 2}')
    assert (found.content, found.problem) == (
        "",
        "its output has the fields a_b and A_B, which would be one variable (...__A_B): rename "
        "one of them",
    )
    assert why_unusable(found) == found.problem
    apart = output_of(b'{"a_b": 1, "A_B": [2], "a-b": 3, "a b": 4}')
    assert apart.problem == "", (
        "a list, and what no variable can be called, are in the whole alone"
    )


def test_why_there_is_no_output_of_a_job():
    def why(step: StepState, reason: str = "") -> str:
        view = DagJobView(name="a", after={}, join=Join.ALL, gpus=1, step=step, reason=reason)
        return why_no_output(view)

    assert why(StepState.WAITING, "waits for the success of b") == (
        "it is not submitted yet, and waits for the success of b"
    )
    assert why(StepState.SUBMITTED, "on n1:0") == "it has not ended"
    assert why(StepState.FAILED, "exit code 1") == "it is FAILED: exit code 1"
    assert "wrote none" in why(StepState.SUCCEEDED)


def test_what_is_too_much_together_is_told():
    half = json.dumps("x" * (MOST_BYTES_TOGETHER // 2))
    assert why_too_much({"a": half}) == ""
    assert "131,072 is the most" in why_too_much({"a": half, "b": half})


def of(**jobs: dict[str, Any]) -> tuple[DagSpec, list[str]]:
    spec = DagSpec.model_validate(
        {"name": "d", "jobs": {name: {"command": "x", **job} for name, job in jobs.items()}}
    )
    edges = {name: job.after for name, job in spec.jobs.items()}
    inputs = {name: job.inputs for name, job in spec.jobs.items()}
    data = {name: job.data_jobs for name, job in spec.jobs.items()}
    found = input_problems(edges, inputs, data)
    return spec, [f"{each.place[-1]}: {each.message}" for each in found]


def test_who_is_asked_has_to_come_before():
    line = {"after": "a"}
    _, fine = of(a={}, b=line, c={"after": "b", "inputs": ["a", "b"]})
    assert fine == []
    _, wrong = of(a={}, b={}, c={"after": "a", "inputs": ["b", "c", "z"]})
    assert wrong == [
        "b: b does not come before c: name it in `after` too",
        "c: c does not come before c: name it in `after` too",
        "z: no such job",
    ]
    both: dict[str, Any] = {"after": ["a-b", "a.b"], "inputs": ["a-b", "a.b"]}
    _, same = of(**{"a-b": {}, "a.b": {}, "c": both})
    assert same == ["a.b: a-b has the same variable, LONGSHORE_OUTPUT_A_B: rename one of them"]


def test_whose_files_are_data_has_to_come_before():
    stores: dict[str, Any] = {"outputs": ["r"]}
    data = {"x": "job:a", "y": {"from": "job:b"}, "z": "s3://sets/z/"}
    _, fine = of(a=stores, b={**stores, "after": "a"}, c={"after": "b", "data": data})
    assert fine == []
    _, wrong = of(
        a=stores,
        b=stores,
        c={**stores, "after": "a", "data": {**data, "w": "job:c", "v": "job:q"}},
    )
    assert wrong == [
        "y: b does not come before c: name it in `after` too",
        "w: c does not come before c: name it in `after` too",
        "v: no such job: q",
    ]


def test_a_job_is_submitted_with_the_ids_of_those_that_ran():
    data = {"x": {"from": "job:a", "start_at": 0.5}, "y": "job:b", "z": "s3://sets/z/"}
    after = {"a": "any", "b": "any"}
    last: dict[str, Any] = {"after": after, "data": data, "env": {"O": "1"}}
    spec, _ = of(a={"outputs": ["r"]}, b={"outputs": ["r"]}, c=last)
    job = with_outputs(spec.jobs["c"], {"LONGSHORE_OUTPUT_A": "7"}, {"a": "d.a.r2"})
    assert {name: (each.source, each.start_at) for name, each in job.data.items()} == {
        "x": ("job:d.a.r2", 0.5), "z": ("s3://sets/z/", 0.95),
    }  # fmt: skip
    assert job.env == {"O": "1", "LONGSHORE_OUTPUT_A": "7"}
    assert with_outputs(spec.jobs["a"], {}, {}) == spec.jobs["a"].spec


def test_who_gets_the_output_of_a_job_that_runs_again_runs_again():
    spec, _ = of(
        a={}, b={"after": {"a": "any"}}, c={"after": "b", "inputs": "a"}, d={"after": "b"}
    )
    states = dict.fromkeys("abcd", StepState.SUCCEEDED)
    assert reopened(Graph.of(spec), states).jobs == ()
    assert reopened(Graph.of(spec), states, anew={"a"}).jobs == tuple("abcd")
    assert reopened(Graph.of(spec), states, anew={"d"}).jobs == ("d",)
    files = {"data": {"x": "job:a"}}
    spec, _ = of(a={"outputs": ["r"]}, b={"after": {"a": "any"}}, c={"after": "b", **files})
    states = dict.fromkeys("abc", StepState.SUCCEEDED)
    assert reopened(Graph.of(spec), states, anew={"a"}).jobs == tuple("abc")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'{"a": 1}\n', ""),
        (b'"' + b"x" * (MOST_BYTES - 2) + b'"', ""),
        (b'"' + b"x" * (MOST_BYTES - 1) + b'"', "more than 65,536 bytes"),
        (b"{a: 1}", "no JSON"),
        (b"NaN", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 50_000, "no JSON"),
    ],
)
def test_what_is_an_output(raw: bytes, problem: str):
    found = output_of(raw)
    assert problem in found.problem
    assert bool(found.problem) == bool(problem)
    assert why_unusable(found) == found.problem
    assert bool(found.content) != bool(problem)
    assert "wrote no output" in why_unusable(None)
