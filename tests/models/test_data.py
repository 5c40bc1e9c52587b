"""Data sets in a job file: what may stand there, how it travels, what is refused."""

import json
from typing import Any

import pytest

from longshore.activities.dag_rows import stored_dag
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import DagInput
from longshore.models.data import DataSet, variable_of
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.schedule_messages import ScheduleRunInput
from tests.support.packing import NOW


def load(data: str) -> JobSpec:
    return load_document(f"name: a\ncommand: x\ndata:\n  {data}\n", "job.yaml", JobSpec)


def test_a_size_a_url_or_both():
    data = load("{a: 150GB, b: s3://sets/b/, c: {from: 'https://h/c', size: 1TB, start_at: 80%}}")
    assert data.data == {
        "a": DataSet(size=150),
        "b": DataSet.model_validate({"from": "s3://sets/b/"}),
        "c": DataSet.model_validate({"from": "https://h/c", "size": 1000, "start_at": 0.8}),
    }
    assert data.data["b"].start_at == 0.95


def test_what_another_job_gave_back_is_data_too():
    spec = load("{a: job:train-abc, b: {from: job:x.y, start_at: 80%}, c: 1GB}")
    assert {name: each.job for name, each in spec.data.items()} == {
        "a": "train-abc", "b": "x.y", "c": None,
    }  # fmt: skip
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    asked = JobRequest.of("job", spec, NOW, 1).data
    assert "data job:train-abc of default" in asked


def test_what_nodes_do_not_fetch_travels_as_before():
    spec = load("{a: 150GB, b: s3://sets/b/}")
    written = spec.model_dump(mode="json")
    assert written["data"] == {
        "a": 150.0,
        "b": {"from": "s3://sets/b/", "size": 0.0, "start_at": 0.95, "sticky": False},
    }
    assert JobSpec.model_validate(written) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert JobSpec.as_known(written) == spec


def test_the_planner_knows_what_nodes_fetch_by_tenant_and_source():
    spec = load("{a: 150GB, b: {from: 's3://sets/b/', size: 2GB}}")
    asked = JobRequest.of("job", spec, NOW, 1).data
    assert asked == {"a": 150.0, "data s3://sets/b/ of default": 2.0}


def test_a_variable_has_letters_digits_and_underscores():
    assert variable_of("imagenet-1k.v2") == "LONGSHORE_DATA_IMAGENET_1K_V2"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("{a: /mnt/set}", "data.a: expected a size such as 150GB, where nodes fetch it"),
        ("{a: {from: 'ftp://h/x'}}", "data.a.from: ftp://h/x is no place of these: s3://"),
        ("{a: s3://}", "is no place of these"),
        ("{a: 'job:'}", "data.a.from: job: names no job: write job:ID, and in a DAG job:NAME"),
        ("{a: job:../x}", "data.a.from: job:../x names no job"),
        ("{a: job://x}", "job://x is no place of these"),
        ("{a: 'http://[abc/x'}", "data.a.from: http://[abc/x is no URL: Invalid IPv6 URL"),
        ("{a: 'http://a]b/'}", "data.a.from: http://a]b/ is no URL: Invalid IPv6 URL"),
        ("{a: 'http:///x'}", "data.a.from: http:///x names no host"),
        ("{a: 'https://?x'}", "data.a.from: https://?x names no host"),
        ("{a: 'http://:80/x'}", "data.a.from: http://:80/x names no host"),
        ("{a: 'http://h:99999/x'}", "data.a.from: http://h:99999/x is no URL: Port out of range"),
        ("{a: 'http://h:abc/x'}", "data.a.from: http://h:abc/x is no URL: Port could not be cast"),
        ("{a: 's3://user:word@sets/x'}", "may hold no user or password"),
        ("{a: {size: 1GB, start_at: 80%}}", "data.a.start_at: is for data that nodes fetch"),
        ("{a: {size: 1GB, sticky: true}}", "data.a.sticky: is for data that nodes fetch"),
        (
            "{a: {from: 's3://sets/x', start_at: 180%}}",
            "start_at: must be at most 100%, got '180%'",
        ),
        ("{a: {from: 's3://sets/x', start_at: lots}}", "expected a part such as 80%"),
        ("{a: {from: 's3://sets/x', strat_at: 80%}}", "no such field; did you mean start_at?"),
        ("{a/b: s3://sets/x}", "data.a/b: is the name of a folder on the node"),
        ("{.a: s3://sets/x}", "is the name of a folder on the node"),
        ("{dir: s3://sets/x}", "LONGSHORE_DATA_DIR says something else"),
        ("{a-b: s3://sets/x, a_b: s3://sets/y}", "data.a_b: has the variable"),
        ("{a: true}", "data.a: expected a size"),
        ("{a: [1]}", "data.a: expected a size"),
        ("{a: -1}", "data.a: must be at least 0"),
    ],
)
def test_what_is_wrong_is_told_with_field_and_line(data: str, said: str):
    with pytest.raises(SpecError) as refused:
        load(data)
    assert "job.yaml:4" in str(refused.value)
    assert said in str(refused.value)


def test_a_job_that_was_taken_with_what_is_no_url_is_read():
    given: dict[str, Any] = {"name": "a", "command": "x", "data": {"a": "http://[abc/x"}}
    assert JobSpec.as_known(given).data["a"].source == "http://[abc/x"


def test_histories_and_rows_of_dags_and_schedules_with_what_is_no_url_are_read():
    job: dict[str, Any] = {"name": "a", "command": "x", "data": {"a": "http://[abc/x"}}
    dag = {"name": "d", "jobs": {"a": {"command": "x", "data": {"a": "http://[abc/x"}}}}
    stored = stored_dag("d-1", DagSpec.model_validate(dag).model_dump(mode="json"))
    assert stored.jobs["a"].spec.data["a"].source == "http://[abc/x"
    for given in ({"job": job}, {"dag": dag}):
        read = ScheduleRunInput.model_validate_json(json.dumps({"schedule": "s", **given}))
        assert read.spec.name in ("a", "d")
    read = DagInput.model_validate_json(json.dumps({"spec": dag}))
    assert read.spec == DagSpec.model_validate(dag)


@pytest.mark.parametrize("name", ["a/b", "dir", ".a"])
def test_names_of_what_a_job_sees_to_itself_are_as_before(name: str):
    given: dict[str, Any] = {"name": "a", "command": "x", "data": {name: "1GB"}}
    assert JobSpec.model_validate(given).data[name].size == 1


def test_the_schema_says_what_each_field_is():
    fields = JobSpec.model_json_schema()["$defs"]["DataSet"]["properties"]
    assert set(fields) == {"from", "size", "start_at", "sticky"}
    assert all(field["description"] for field in fields.values())
