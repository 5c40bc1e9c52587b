"""What another file changes of a DAG: by name, with defaults filled in."""

from typing import Any

import pytest

from longshore.models.dag import DagSpec
from longshore.scheduling.dag_changes import changes

JOBS: dict[str, Any] = {"a": {"command": "x"}, "b": {"command": "x", "after": "a"}}


def of(jobs: dict[str, Any] = JOBS, **fields: Any) -> DagSpec:
    return DagSpec.model_validate({"name": "d", "jobs": jobs, **fields})


@pytest.mark.parametrize(
    ("jobs", "changed"),
    [
        ({"a": {"command": "x", "gpus": 1}}, ()),  # the default, said
        ({"a": {"command": "y"}}, ("a",)),
        ({"b": {"command": "x", "after": {"a": "any"}}}, ("b",)),
        ({"b": {"command": "x", "after": "a", "join": "any"}}, ("b",)),
        ({"b": {"command": "x", "after": "a", "inputs": "a"}}, ("b",)),
        ({"b": {"command": "x", "after": "a", "mutex": "m"}}, ()),
        ({"b": {"command": "x", "after": {"a": {"condition": "success", "catch": False}}}}, ()),
        ({"b": {"command": "x", "after": "a"}, "a": {"command": "x"}}, ()),  # another order
    ],
)
def test_a_job_has_changed_where_its_result_may(jobs: dict[str, Any], changed: tuple[str, ...]):
    found = changes(of(), of({**JOBS, **jobs}))
    assert (found.changed, found.new, found.refused) == (changed, (), ())


def test_a_default_changes_all_that_have_it():
    own = {**JOBS, "c": {"command": "x", "env": {"A": "own"}}}
    found = changes(of(own), of(own, defaults={"env": {"A": "1"}}))
    assert found.changed == ("a", "b")


def test_a_new_job_runs_and_one_that_is_left_out_is_refused():
    found = changes(of(), of({"a": JOBS["a"], "c": {"command": "x"}}, tenant="other"))
    assert found.new == ("c",)
    assert found.anew == {"a", "c"}, "the tenant is of all jobs"
    assert [line.partition(":")[0] for line in found.refused] == ["jobs", "tenant"]
    assert "b is not in the file" in found.refused[0]
