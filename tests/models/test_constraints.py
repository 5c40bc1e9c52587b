"""Constraints on labels: what people write, what it means, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.constraints import Constraint, contradiction, parse_constraint
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.messages import JobInput

FORMS: list[tuple[str, Constraint, set[str | None]]] = [
    ("zone=a", Constraint("zone", ("a",)), {"a"}),
    (" zone == a ", Constraint("zone", ("a",)), {"a"}),
    ("zone!=a", Constraint("zone", ("a",), True), {"b", None}),
    ("zone in (b, a,b)", Constraint("zone", ("a", "b")), {"a", "b"}),
    ("zone in (a)", Constraint("zone", ("a",)), {"a"}),
    ("zone notin (a, b)", Constraint("zone", ("a", "b"), True), {None}),
    ("zone notin (a)", Constraint("zone", ("a",), True), {"b", None}),
    ("zone", Constraint("zone"), {"a", "b"}),
    ("!zone", Constraint("zone", (), True), {None}),
    ("! zone", Constraint("zone", (), True), {None}),
    ("topology.kubernetes.io/zone=eu north 1", Constraint(
        "topology.kubernetes.io/zone", ("eu north 1",)), set()),
    ("image=a=b", Constraint("image", ("a=b",)), set()),
]  # fmt: skip
"""What is written, what it is, and for which values of a label, of a, b and none, it holds."""


@pytest.mark.parametrize(("text", "means", "holds"), FORMS)
def test_each_form_means_what_it_does_in_kubernetes(
    text: str, means: Constraint, holds: set[str | None]
):
    found = parse_constraint(text)
    assert found == means
    assert {value for value in ("a", "b", None) if found.allows(value)} == holds
    assert parse_constraint(str(found)) == found


keys = st.from_regex(r"[A-Za-z0-9._/-]{1,20}", fullmatch=True)
values = st.from_regex(r"[A-Za-z0-9._/-]( ?[A-Za-z0-9._=-]){0,5}", fullmatch=True)
constraints = st.builds(
    lambda key, named, negated: Constraint(key, tuple(sorted(named)), negated),
    keys, st.sets(values, max_size=3), st.booleans(),
)  # fmt: skip


@given(constraints)
def test_a_constraint_is_read_as_it_is_written(constraint: Constraint):
    assert parse_constraint(str(constraint)) == constraint
    assert parse_constraint(f"  {constraint} ") == constraint


@pytest.mark.parametrize("word", ["in", "notin"])
def test_what_is_taken_is_short_enough_to_be_read_as_it_is_written_out(word: str):
    """Written without blanks it is shorter than written out."""
    several = [f"a{number:03}" for number in range(190)]
    text = f"z {word} ({','.join(several)})"
    with pytest.raises(ValueError, match=r"with 190 values has 1,14\d characters"):
        parse_constraint(text)
    longest = parse_constraint(f"z {word} ({','.join(several[:165])})")
    assert len(str(longest)) > 980
    assert parse_constraint(str(longest)) == longest


@given(st.lists(constraints, max_size=4), st.dictionaries(keys, values, max_size=3))
def test_what_a_node_satisfies_is_satisfiable(given_: list[Constraint], labels: dict[str, str]):
    held = [each for each in given_ if each.allows(labels.get(each.key))]
    assert contradiction(tuple(held)) is None


def load(constraints: object) -> JobSpec:
    document = {"name": "job", "command": "true", "constraints": constraints}
    return load_document(json.dumps(document), "job.json", JobSpec)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (["zone>5"], "constraints[0]: expected a constraint on a label such as zone=a, zone!=b"),
        (["zone>5"], "not 'zone>5'"),
        (["zone="], "'zone=': a value is missing"),
        ([""], "not ''"),
        (["=a"], "not '=a'"),
        (["zone in (a", "b)"], 'within [...] put it in quotes, as in ["zone in (a, b)"]'),
        (["zone in ()"], "'zone in ()': '' is no value; write zone in (a, b)"),
        (["zone in (a,,b)"], "'' is no value; write zone in (a, b)"),
        (["zone=a|b"], "for one of several values write zone in (a, b)"),
        (["zone=a,ib=true"], "give each constraint by itself, as in [zone=a, ib=true]"),
        (["zone=a&ib=true"], "give each constraint by itself"),
        ([{"zone": "a"}], "write zone=a, not zone: a"),
        ([5], "not 5"),
        ({"zone": "a"}, "constraints: must be a list, got a mapping"),
        ("zone=a", "constraints: must be a list, got 'zone=a'"),
        (["zone=a\0"], "not 'zone=a\\x00'"),
        (["a=" + "x" * 1000], "1,000 characters is the most"),
        (["zone=a"] * 65, "constraints: has 65 entries; 64 is the most"),
        (["zone=a", "zone=b"], "no node can satisfy zone=a and zone=b: a label has one value"),
        (["zone in (a, b)", "zone notin (a, b)"], "no node can satisfy zone in (a, b) and"),
        (["zone", "!zone"], "no node can satisfy zone and !zone"),
    ],
)
def test_what_is_wrong_is_refused_with_what_would_be_right(given_: Any, said: str):
    with pytest.raises(SpecError) as refused:
        load(given_)
    assert said in str(refused.value)


def test_they_travel_as_they_are_written_and_what_was_taken_is_read():
    spec = load(["zone in (b, a)", "!ib"])
    assert spec.model_dump(mode="json")["constraints"] == ["zone in (a, b)", "!ib"]
    assert JobInput.model_validate_json(JobInput(spec=spec).model_dump_json()).spec == spec
    assert JobSpec(name="job", command="true", constraints=("ib",)) == load(["ib"])  # pyright: ignore[reportArgumentType]
    many = {"name": "job", "command": "true", "constraints": ["zone=a"] * 65}
    assert len(JobSpec.as_known(many).constraints) == 65
