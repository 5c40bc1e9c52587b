"""What people may write has bounds: beyond them a job file is refused, and nothing falls over."""

import contextlib
import json
import signal
from datetime import timedelta
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from longshore.client.payloads import data_converter
from longshore.models.dag_messages import DagInput
from longshore.models.document import Override, load_document
from longshore.models.errors import SpecError
from longshore.models.job import MOST_BYTES, JobSpec
from longshore.models.job_examples import FULL_EXAMPLE
from longshore.models.job_request import JobRequest
from longshore.models.messages import JobInput
from longshore.models.node import Inventory, NodeIdentity
from longshore.models.pool import PoolSpec
from longshore.models.problems import beyond_bounds
from longshore.models.purchase import PurchaseRequest
from longshore.models.signals import SIGNALS
from longshore.models.units import (
    LONGEST,
    MOST,
    parse_duration,
    parse_gb,
    parse_gb_per_second,
    parse_watts,
)
from longshore.scheduling.cycle import plan
from tests.support.bounds import boundless
from tests.support.packing import NOW, POLICY, a_node

SMALL: dict[str, Any] = {"name": "job", "command": "true"}
EXAMPLE: dict[str, Any] = yaml.safe_load(FULL_EXAMPLE)
HUGE = (10**400, -(10**400), "9" * 5000, float("inf"), float("nan"), 1e308, -1e308)
A_GPU: dict[str, Any] = {"index": 0, "model": "H100", "vram": 80}
AN_INSTANCE: dict[str, Any] = {"profile": "1g.10gb", "slices": 1, "uuid": "MIG-0"}
TEXTS = ("command", "image", "workdir", "gpu_type")


def load(**fields: Any) -> JobSpec:
    return load_document(json.dumps({**SMALL, **fields}), "job.json", JobSpec)


@pytest.mark.parametrize("parse", [parse_duration, parse_gb, parse_gb_per_second, parse_watts])
@pytest.mark.parametrize("value", [*HUGE, "99999999999:59:59", "9999999999d", "P99999999999D"])
def test_a_number_that_is_too_large_is_a_wrong_value_and_no_fault(parse: Any, value: object):
    with contextlib.suppress(ValueError):  # no OverflowError
        parse(value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("expected_duration", "87673h", "a duration is ten years at most (3653d)"),
        ("expected_duration", "99999999h", "a duration is ten years at most (3653d)"),
        ("queue_timeout", "1e9", "expected a duration"),
        ("stop_grace", 1e12, "a duration is ten years at most (3653d)"),
        ("ram", 1e300, "must be at most 1000000000"),
        ("ram", "9" * 400, "expected a finite size"),
        ("storage_bandwidth", 1e300, "must be at most 1000000000"),
        ("power_per_gpu", 1e300, "must be at most 1000000000"),
        ("vram_per_gpu", 1e10, "must be at most 1000000000"),
        ("data", {"set": 1e300}, "must be at most 1000000000"),
        ("retry", {"user": {"max_retries": 10**400}}, "must be at most 1000000"),
        ("gang", {"group_gpus": 10**400}, "must be at most 100000"),
        ("command", ["a\0b"], "must not hold a NUL character"),
        ("env", {"A": "b\0"}, "must not hold a NUL character"),
        ("gpu_type", "H\x00", "must not hold a NUL character"),
        ("workdir", "/a\0", "must not hold a NUL character"),
        ("image", "a\0", "must not hold a NUL character"),
        ("image", "--volume=/:/host", "begins with a dash"),
        ("image", "docker-archive:image.tar", "is no name of an image"),
        ("image", "dir:/var/lib/images/secret", "is no name of an image"),
        ("image", "/etc", "is no name of an image"),
        ("data", ["a\0b"], "must have no spaces"),
        (
            "data",
            {"a": {"from": "file:///a\0"}},
            "data.a.from: must have no spaces and no control",
        ),
        (
            "data",
            {"a": {"from": "s3://a\x1b[2J"}},
            "data.a.from: must have no spaces and no control",
        ),
        ("environment", {"requirements": ["a\x1b"]}, "must have no control characters"),
        ("environment", {"requirements": ["a"], "python": "4"}, "a version of Python 3, such as"),
        ("code", {"snapshot": "g" * 64}, "must be 64 digits and letters from a to f"),
        ("checkpoint", {"folder": "a\0"}, "must not hold a NUL character"),
        ("conformance", {"allowed": ["a\0"]}, "must not hold a NUL character"),
        ("command", ["x" * 131_072], "must have at most 131071 characters"),
        ("workdir", "x" * 4_096, "must have at most 4095 characters"),
        ("command", ["x"] * 10_001, "has 10,001 entries; 10,000 is the most"),
        ("env", dict.fromkeys(map("A{}".format, range(10_001)), ""), "has 10,001 entries"),
        ("data", list(map(str, range(10_001))), "has 10,001 entries"),
        ("conformance", {"allowed": ["a"] * 1001}, "conformance.allowed: has 1,001 entries"),
        ("command", ["x" * 100_000] * 11, "as JSON (command 1,100,"),
        ("ram", " " * 1000 + "1", "expected a size"),
        ("mig", " " * 100 + "1g.10gb", "expected a MIG profile"),
        ("checkpoint", {"folder": "c", "save_signal": "SIGNONE"}, "must be the name of a signal"),
        ("checkpoint", {"folder": "c", "signal": "SIG" + "A" * 9_999}, "(10,002 characters)"),
    ],
)
def test_what_is_beyond_the_bounds_is_refused_with_the_bound(field: str, value: Any, said: str):
    with pytest.raises(SpecError) as refused:
        load(**{field: value})
    assert said in str(refused.value)


@pytest.mark.parametrize("image", [
    "busybox", "localhost/train:1.4", "docker://ghcr.io/example/Train_2.b:1.4", "0f00ba12",
    "[::1]:5000/a/b@sha256:" + 64 * "0", "dir",
])  # fmt: skip
def test_all_names_of_images_will_do(image: str):
    assert load(image=image).image == image


def test_the_bounds_themselves_will_do():
    spec = load(
        expected_duration="3653d", ram=1e9, storage_bandwidth="1000000000GB/s", power_per_gpu=1e9,
        workdir="/" + "x" * 4_094, env={"A": "x" * 131_071}, data={"set": 1e9},
    )  # fmt: skip
    assert (spec.expected_duration, spec.ram) == (LONGEST, MOST)
    job = JobRequest.of("job", spec, NOW, 1)
    (decision,) = plan([job], [a_node()], [], POLICY, NOW).decisions
    assert decision.node_id is None


def test_in_python_the_bounds_are_the_same():
    with pytest.raises(ValidationError, match="ten years"):
        JobSpec(name="job", command="true", expected_duration=timedelta(days=4000))
    with pytest.raises(ValidationError, match="unicode string"):
        JobSpec(name="job", command="\ud800")


def test_what_an_earlier_version_took_runs_on_within_the_bounds():
    stored = {
        **SMALL, "expected_duration": "9999d", "ram": 1e12, "data": {"set": 1e300}, "newer": 1,
        "checkpoint": {"folder": "c", "grace": "99999999h"},
    }  # fmt: skip
    spec = JobSpec.as_known(stored)
    assert (spec.expected_duration, spec.ram, spec.data["set"].size) == (LONGEST, MOST, MOST)
    assert spec.checkpoint
    assert spec.checkpoint.grace == LONGEST
    taken = JobInput.model_validate({"spec": stored, "heldd": True})
    assert taken.spec == spec
    assert {line.partition(":")[0] for line in taken.refused} == {
        "spec.expected_duration", "spec.ram", "spec.data.set", "spec.checkpoint.grace",
        "spec.newer", "heldd",
    }  # fmt: skip
    assert JobInput.model_validate({"spec": SMALL}).refused == ()
    with pytest.raises(SpecError, match="give a command"):
        JobInput.model_validate({"spec": {"name": "x"}})


def test_the_schema_states_them():
    fields = JobSpec.model_json_schema()["properties"]
    assert {"type": "number", "minimum": 0, "maximum": MOST} in fields["ram"]["anyOf"]
    longest = LONGEST.total_seconds()
    assert {"type": "number", "minimum": 0, "maximum": longest} in (
        fields["expected_duration"]["anyOf"]
    )
    for name in TEXTS:
        forms = fields[name]["anyOf"]
        assert all("maxLength" in form for form in forms if form["type"] == "string"), name
    said = {form.get("description") for form in fields["ram"]["anyOf"]}
    assert f"Such as 80GB or 1.5TB; at most {MOST:,.0f} GB" in said
    said = {form.get("description") for form in fields["expected_duration"]["anyOf"]}
    assert f"Such as 90m or 2d 4h; at most {LONGEST.days}d" in said


BY_NO_PERSON = {
    "JobInput": {"history"},
    "DagInput": {"progress", "withdrawn"},
    "PurchaseRequest": {"decision"},
    "PurchaseOption": {"offer"},
    "PoolPacking": {"usage", "tree", "copies", "turns", "funding"},
}
"""Fields that Longshore, or a market, writes: what a workflow carries over when it continues as
new, the reasons of a decision, the row of an offer list, what who plans has read."""


@pytest.mark.parametrize(
    "model", [JobSpec, JobInput, DagInput, PoolSpec, NodeIdentity, Inventory, PurchaseRequest]
)
def test_no_text_list_or_mapping_is_without_a_bound(model: type[BaseModel]):
    schema = model.model_json_schema()
    defs = schema.get("$defs", {})
    for name, fields in BY_NO_PERSON.items():
        part = schema if name == model.__name__ else defs.get(name, {"properties": {}})
        for field in fields:
            part["properties"].pop(field, None)
    assert list(boundless(schema, defs)) == []


@pytest.mark.parametrize("model", [JobSpec, Inventory])
def test_no_number_of_a_job_file_or_an_inventory_is_without_a_bound(model: type[BaseModel]):
    schema = model.model_json_schema()
    assert list(boundless(schema, schema["$defs"], numbers=True)) == []


@pytest.mark.parametrize(("field", "most"), [("files", 1_000_000_000), ("bytes", 2**63 - 1)])
def test_what_a_snapshot_says_of_itself_has_bounds(field: str, most: int):
    code = {"snapshot": "0" * 64, field: most}
    assert load(code=code).code is not None
    with pytest.raises(SpecError, match=rf"code\.{field}: must be at most {most}"):
        load(code={**code, field: most + 1})
    stored = {**SMALL, "code": {**code, field: 10**30}}  # taken by a version without bounds
    assert JobInput.model_validate({"spec": stored}).spec.name == "job"


def test_a_spec_has_as_many_bytes_as_temporal_carries():
    """With defaults, text beyond ASCII, and characters that JSON escapes."""
    whole: dict[str, Any] = {
        "command": ["é\n\x01", "x" * 99_000] * 6,
        "env": {"A": "\U0001f600" * 100_000},
    }
    spec = JobSpec.model_validate({**SMALL, **whole})
    (payload,) = data_converter.payload_converter.to_payloads([spec])
    left = MOST_BYTES - len(payload.data)
    at_bound = {**whole, "command": [*whole["command"], "x" * (left - len(',""'))]}
    assert not JobSpec.model_validate({**SMALL, **at_bound}).too_large
    with pytest.raises(ValidationError, match=r"1,000,001 bytes as JSON \(command .*, env "):
        JobSpec.model_validate({**SMALL, **at_bound, "name": "job2"})
    larger = spec.model_copy(update={"workdir": "x" * 4000, "image": "x" * 4000})
    assert larger.too_large


def test_an_engine_has_as_many_bytes_as_a_variable_can_hold():
    model = {"name": "m", "source": "/m.gguf"}
    runtime = {"name": "r", "command": ["serve", "{port}"]}
    fields: dict[str, Any] = {"model": model, "runtime": runtime, "memory": 1}
    small = {key: value for key, value in SMALL.items() if key != "command"}
    for size, fits in ((129_000, True), (130_000, False)):
        for place in ({"model": {**model, "args": ["x" * size]}},
                      {"runtime": {**runtime, "adapter": ["x" * size]}}):  # fmt: skip
            given = {**small, "engine": {**fields, **place}}
            if fits:
                JobSpec.model_validate(given)
                continue
            with pytest.raises(ValidationError, match=r"the engine has 130,\d* bytes as JSON \("):
                JobSpec.model_validate(given)
            assert JobSpec.as_known(given).engine is not None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("env", dict.fromkeys("ABC", "\N{PILE OF POO}" * 100_000), "as JSON (env 1,200,"),
        ("command", ["\x01" * 100_000] * 2, "as JSON (command 1,200,"),
        ("conformance", {"allowed": ["\x01" * 4_000] * 100}, "as JSON (conformance 2,400,"),
    ],
)
def test_characters_count_as_the_bytes_that_they_take_in_json(field: str, value: Any, said: str):
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate({**SMALL, field: value})
    assert said in str(refused.value)


def test_signals_are_those_of_linux():
    assert set(SIGNALS) >= {each.name for each in signal.Signals}


def test_what_an_earlier_version_took_beyond_the_bounds_of_text_runs_on_as_it_is():
    stored = {
        **SMALL, "command": ["x" * 100_000] * 15, "env": {f"A{n}": "" for n in range(10_001)},
        "conformance": {"allowed": ["a"] * 2000},
        "checkpoint": {"folder": "c", "signal": "SIGNONE"},
    }  # fmt: skip
    taken = JobInput.model_validate({"spec": stored})
    spec = taken.spec
    assert (len(spec.argv), len(spec.env)) == (15, 10_001)
    assert spec.conformance
    assert len(spec.conformance.allowed) == 2000
    assert spec.stop_signal == "SIGTERM"  # which agents sent for a name that they did not know
    named = {line.partition(":")[0] for line in taken.refused}
    assert named == {"spec.env", "spec.conformance.allowed", "spec.checkpoint.signal"}
    assert JobInput.model_validate_json(taken.model_dump_json()).spec == spec


NAMES = [f"seller-{number}" for number in range(1_001)]


@pytest.mark.parametrize(
    ("buying", "said"),
    [
        ({"sellers": {"include": NAMES}}, "buying.sellers.include: has 1,001 entries; 1,000 is"),
        ({"sellers": {"exclude": ",".join(NAMES)}}, "buying.sellers.exclude: has 1,001 entries"),
        ({"regions": {"include": ["x" * 201]}}, "regions.include[0]: has 201 characters; 200 is"),
        ({"countries": {"exclude": NAMES}}, "buying.countries.exclude: has 1,001 entries"),
        ({"instance_types": ["8xH100"] * 1_001}, "buying.instance_types: has 1,001 entries"),
        ({"fast_warm_type": "x" * 201}, "buying.fast_warm_type: has 201 characters; 200 is"),
        ({"caps": {"per_day": "$" + "0" * 100}}, "buying.caps.per_day: must be a whole number"),
    ],
)
def test_settings_of_a_pool_have_bounds_and_those_that_are_stored_are_read(
    buying: dict[str, Any], said: str
):
    with pytest.raises(SpecError) as refused:
        load_document(json.dumps({"buying": buying}), "pool p", PoolSpec)
    assert said in str(refused.value)
    if "caps" in buying:  # amounts are stored as numbers
        return
    stored = PoolSpec.as_known({"buying": buying})
    (problem,) = beyond_bounds(stored)  # nor is a copy of them taken anew
    assert said in problem


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({f"label-{number}": "" for number in range(101)}, "labels: has 101 entries; 100 is"),
        ({"rack": "x" * 1_001}, "labels.rack: has 1,001 characters; 1,000 is the most"),
        ({"x" * 201: ""}, "has 201 characters; 200 is the most"),
        ({"rack": "a\0"}, "labels.rack: must not hold a control character"),
    ],
)
def test_labels_of_an_agent_have_bounds_and_those_that_were_let_in_are_read(
    labels: dict[str, str], said: str
):
    identity = NodeIdentity(node_id="n", agent_id="a", boot_id="b", labels=labels)
    assert NodeIdentity.model_validate_json(identity.model_dump_json()) == identity
    (problem,) = beyond_bounds(identity)
    assert said in problem


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu_type": "H" * 100_000}, "gpu_type: has 100,000 characters; 200 is the most"),
        ({"hostname": "h" * 50_000}, "hostname: has 50,000 characters; 200 is the most"),
        ({"hostname": "h\0"}, "hostname: must not hold a control character, got 'h\\x00'"),
        ({"container_runtime": "\x1b[2J"}, "container_runtime: must not hold a control"),
        ({"cpus": 1e300}, "cpus: must be from 0.001 to 1,000,000, got 1e+300"),
        ({"cpus": 1e-300}, "cpus: must be from 0.001 to 1,000,000, got 1e-300"),
        ({"gpus": [A_GPU] * 1_025}, "has 1,025 entries; 1,024 is"),
        (
            {"gpus": [{**A_GPU, "index": 1_024}]},
            "gpus[0].index: must be from 0 to 1,023, got 1024",
        ),
        ({"gpus": []}, "needs one GPU at least"),
        ({"gpus": [A_GPU, A_GPU]}, "GPU indices must differ, got [0, 0]"),
        ({"gpus": [{**A_GPU, "uuid": "x" * 201}]}, "gpus[0].uuid: has 201 characters; 200 is"),
        (
            {"gpus": [{**A_GPU, "mig": {"1g.10gb": [256]}}]},
            "mig.1g.10gb[0]: must be from 1 to 255",
        ),
        (
            {"gpus": [{**A_GPU, "mig_instances": [AN_INSTANCE] * 9}]},
            "has 9 entries; 8 is the most",
        ),
        ({"topology": {"gpus": [0], "links": [[None]], "nics": ["x" * 201]}}, "nics[0]: has 201"),
        ({"firmware": [{"part": "BIOS"}] * 101}, "firmware: has 101 entries; 100 is the most"),
    ],
)
def test_what_an_agent_says_of_its_machine_has_bounds_and_what_was_let_in_is_read(
    fields: dict[str, Any], said: str
):
    whole = {"gpu_type": "H100", "gpus": [A_GPU], "cpus": 8, "ram": 64, **fields}
    inventory = Inventory.model_validate(whole)
    assert Inventory.model_validate_json(inventory.model_dump_json()) == inventory
    assert said in "; ".join(beyond_bounds(inventory))


wrong = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30),
    st.sampled_from(HUGE), st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)  # fmt: skip


@given(field=st.sampled_from(sorted(EXAMPLE)), value=wrong)
@example(field="expected_duration", value=10**400)
@example(field="data", value={"a": float("inf")})
def test_a_job_file_with_one_value_changed_is_taken_or_refused(field: str, value: Any):
    document = {**EXAMPLE, field: value}
    try:
        spec = load_document(json.dumps(document), "job.json", JobSpec)
    except SpecError:
        return  # and no other error
    again = JobSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    plan([JobRequest.of("job", spec, NOW, 1)], [a_node()], [], POLICY, NOW)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, "x" * 5000) for field in ("vram_per_gpu", "ram", "storage_bandwidth")),
        *((field, "x" * 5000) for field in ("power_per_gpu", "expected_duration", "mig")),
        *((field, "x" * 5000) for field in ("gpus", "tier", "name")),
        ("data", {"set": "x" * 5000}),
        ("ram", ["x" * 4996]),
    ],
)
def test_a_refusal_shows_the_begin_of_a_long_value_and_how_long_it_is(field: str, value: object):
    with pytest.raises(SpecError) as refused:
        load(**{field: value})
    (problem,) = refused.value.problems
    assert "xxx…" in problem
    assert "(5,000 characters)" in problem
    assert len(problem) < 400


@pytest.mark.parametrize("value", ["py\nother", "py\x1b[2J"])
def test_an_environment_of_no_kind_is_repeated_in_one_line(value: str):
    with pytest.raises(SpecError) as refused:
        load(environment=value)
    (problem,) = refused.value.problems
    assert f"{value!r} is no kind that is known" in problem


def test_a_refusal_shows_a_short_value_whole():
    with pytest.raises(SpecError, match=r"not '12 parsecs'$"):
        load(ram="12 parsecs")


def test_a_long_value_over_a_document_is_cut_where_it_is_named():
    value = "x" * 4995
    override = Override("gpus", value, f"--set gpus={value}")
    with pytest.raises(SpecError) as refused:
        load_document("command: x", "job.yaml", JobSpec, [override])
    (problem,) = (p for p in refused.value.problems if "gpus" in p)
    assert problem.startswith("--set gpus=xxx")
    assert "xxx… (5,006 characters): gpus: " in problem
    assert len(problem) < 400
