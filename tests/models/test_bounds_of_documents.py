"""Each file that people write, and each setting of a tenant or a pool, has bounds as a job has."""

import io
import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from longshore.models.book_document import BookDocument
from longshore.models.bounds import TAKEN
from longshore.models.budget_document import BudgetDocument, BudgetsDocument
from longshore.models.buying_document import BuyingDocument
from longshore.models.dag import DagSpec
from longshore.models.document import load_document, read_document, read_stdin, text_of
from longshore.models.errors import SpecError
from longshore.models.funding import Quotas, Tenant
from longshore.models.model_registry import ModelsDocument, RuntimesDocument
from longshore.models.pool import PoolSpec
from longshore.models.preemption_document import PreemptionState
from longshore.models.schedule import ScheduleTimes
from longshore.models.service import ServiceFile, ServiceSpec
from longshore.models.statefile import ClusterState
from longshore.scheduling.schedules import refusals
from tests.support.bounds import boundless

DOCUMENTS = (
    BookDocument, BudgetsDocument, BuyingDocument, ClusterState, DagSpec, ModelsDocument,
    PoolSpec, PreemptionState, RuntimesDocument, ServiceFile, ScheduleTimes, Tenant,
)  # fmt: skip
PARSED = ("Such as ", "From ")
"""How the description of a text begins that is read as a size, a duration or a time."""
READ_BY_WHO_PLANS = {"copies", "energy_price", "funding", "tree", "turns", "usage"}


def schema_of(model: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    schema = model.model_json_schema()
    defs = schema.get("$defs", {})
    for name in READ_BY_WHO_PLANS:
        defs.get("PoolPacking", {"properties": {}})["properties"].pop(name, None)
    return schema, defs


@pytest.mark.parametrize("model", DOCUMENTS)
def test_nothing_of_a_document_is_without_a_bound(model: type[BaseModel]):
    assert list(boundless(*schema_of(model), numbers=True)) == []


@pytest.mark.parametrize("model", DOCUMENTS)
def test_each_text_of_a_document_says_which_characters_it_has(model: type[BaseModel]):
    """A NUL is in no row, and no fault of the database's is to say so first."""
    found = {path for path, form in texts(*schema_of(model)) if "pattern" not in form}
    assert {path for path in found if not path.endswith(READ_BY_A_GRAMMAR)} == set()


READ_BY_A_GRAMMAR = (
    ".constraints",
    ".instance_types",
    ".start_below",
    ".reference",
    ".mig",
    ".cost",
    "price",
    "per_day",
    "per_month",
    "per_purchase",
    "per_tier_day",
    "per_tenant_day",
)
"""Ends of fields whose text is money, a constraint or a type: what it means is stored."""


def texts(schema: dict[str, Any], defs: dict[str, Any], path: str = "") -> Any:
    """Yield each text of a schema, with its place, that is read as it is."""
    if "$ref" in schema:
        yield from texts(defs[schema["$ref"].rpartition("/")[2]], defs, path)
    free = not {"enum", "const", "format"} & schema.keys()
    parsed = str(schema.get("description", "")).startswith(PARSED)
    if schema.get("type") == "string" and free and not parsed:
        yield path, schema
    forms = [*schema.get("anyOf", ()), *schema.get("allOf", ())]
    values = [schema.get(key) for key in ("items", "additionalProperties", "propertyNames")]
    for form in (*forms, *(each for each in values if isinstance(each, dict))):
        yield from texts(form, defs, path)
    for name, each in schema.get("properties", {}).items():
        yield from texts(each, defs, f"{path}.{name}")


ENVELOPE: dict[str, Any] = {"gpus": 8, "end": "never"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu_type": "H\0"}, "main.gpu_type: must not hold a NUL character"),
        ({"labels": {"zone": "a\0"}}, "main.labels.zone: must not hold a control character"),
        ({"labels": {"z\0": "a"}}, "must not hold a control character"),
        ({"labels": {"zone": "x" * 201}}, "main.labels.zone: has 201 characters; 200 is the most"),
        ({"end": "9999-12-31T23:59:59Z"}, "main.end: a time has to be before 2100"),
        ({"start": "0001-01-01T00:00:00Z"}, "main.start: a time has to be from 1970 on"),
    ],
)
def test_an_envelope_beyond_the_bounds_is_refused_with_its_field(
    fields: dict[str, Any], said: str
):
    given = {"tenant": "a", "envelopes": {"main": {**ENVELOPE, **fields}}}
    with pytest.raises(SpecError) as refused:
        load_document(json.dumps(given), "budget.json", BudgetDocument)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("quota", "value"),
    [
        ("max_nodes", 10**24), ("max_jobs", 2**63 - 1), ("max_queued", 10**10),
        ("sensitive_nodes", 10**26), ("gpu_hours", 1e308), ("gpu_hours", 1e-320),
        ("node_hours", 1e308),
    ],
)  # fmt: skip
def test_a_quota_that_the_database_could_not_reckon_with_is_refused(quota: str, value: float):
    given = {"name": "a", "quotas": {quota: value}}
    with pytest.raises(SpecError, match=rf"quotas\.{quota}: must be "):
        load_document(json.dumps(given), "tenant a", Tenant)


def test_hours_that_an_earlier_version_took_are_read():
    taken = Quotas.model_validate({"gpu_hours": 1e308}, context=TAKEN)
    assert taken.gpu_hours == 1e308


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"interval": 0}, "interval: must be at least 100ms, got 0s"),
        ({"interval": "1ms"}, "interval: must be at least 100ms"),
        ({"packing": {"weights": {"utilization": 1e308}}}, "must be from -1,000,000.0 to"),
        ({"packing": {"score": {"profile": "service", "shares": {"a": 1e308}}}}, "a has 1e+308"),
        ({"packing": {"score": {"profile": "service", "shares": {"a": 1e-320}}}}, "a has 9.99"),
    ],
)
def test_settings_of_a_pool_beyond_the_bounds_are_refused_and_read_where_they_are_stored(
    given: dict[str, Any], said: str
):
    with pytest.raises(SpecError) as refused:
        load_document(json.dumps(given), "pool p", PoolSpec)
    assert said in str(refused.value)
    assert PoolSpec.as_known({"name": "p", **given}).name == "p"


def test_a_service_has_no_nul_in_its_type_of_gpu():
    given = {"services": [{"name": "s", "model": "m", "gpu_type": "H\0"}]}
    with pytest.raises(SpecError, match="gpu_type: must not hold a NUL character"):
        load_document(json.dumps(given), "s.json", ServiceFile)
    assert ServiceSpec(name="s", model="m", gpu_type="H100").gpu_type == "H100"


def test_a_schedule_has_lines_that_people_can_read():
    assert refusals(ScheduleTimes(cron=("0 2 * * *",) * 100)) == ()
    (many,) = refusals(ScheduleTimes(cron=("0 2 * * *",) * 3_000))
    assert many == "cron: has 3,000 lines; 100 is the most"
    (long,) = refusals(ScheduleTimes(cron=("0 2 * * *" + " " * 100_000,)))
    assert long.endswith("has 100,009 characters; 200 is the most")


NODE: dict[str, Any] = {"id": "a", "gpus": 8}
ASK: dict[str, Any] = {"price": 2, "quantity_gpus": 8}


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (ClusterState, {"nodes": [{**NODE, "gpus": 10**9}]}, "nodes[0].gpus: must be from 0 to"),
        (ClusterState, {"nodes": [{**NODE, "gpus": -1}]}, "must be from 0 to 1,024"),
        (ClusterState, {"nodes": [{**NODE, "cpus": 1e300}]}, "cpus: must be at most 1000000"),
        (ClusterState, {"nodes": [{**NODE, "ram": 1e300}]}, "nodes[0].ram"),
        (ClusterState, {"nodes": [{**NODE, "ram": float("nan")}]}, "nodes[0].ram"),
        (ClusterState, {"nodes": [{**NODE, "gpu_type": "H\0"}]}, "not hold a control character"),
        (ClusterState, {"nodes": [{**NODE, "labels": {"a": "x" * 201}}]}, "200 is the most"),
        (ClusterState, {"nodes": [{**NODE, "id": str(n), "gpus": 1024} for n in range(977)]},
         "nodes: have 1,000,448 GPUs in all; 1,000,000 is the most"),
        (BookDocument, {"instance_type": "x", "asks": [{**ASK, "quantity_gpus": -1}]}, "asks[0]"),
        (BookDocument, {"instance_type": "x", "asks": [{**ASK, "price": 1e300}]}, "asks[0].price"),
        (BookDocument, {"instance_type": "x\0", "asks": [ASK]}, "instance_type: must not hold"),
        (BuyingDocument, {"queue": [{"id": "j", "gpus": 1, "attempt": 10**20}]}, "attempt: must"),
        (BuyingDocument, {"demand": [{"at": "2026-11-20T12:00:00Z", "queued": 10**30}]},
         "demand[0].queued: must be from 0 to"),
        (PreemptionState, {"buy": {"cost": "$1e300", "ready_at": "2026-11-20T12:00:00Z"}},
         "buy.cost"),
    ],
)  # fmt: skip
def test_a_file_about_nodes_and_markets_beyond_the_bounds_is_refused_with_its_field(
    model: type[BaseModel], given: dict[str, Any], said: str
):
    with pytest.raises(SpecError) as refused:
        load_document(json.dumps(given), "f.json", model)
    assert said in str(refused.value)
    assert str(refused.value).startswith("f.json:1: ")


def test_a_file_is_read_no_further_than_it_may_go(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SpecError, match="/dev/zero: has more than 10,000,000 bytes"):
        read_document("/dev/zero", ClusterState)
    monkeypatch.setattr("sys.stdin", io.StringIO("#" * 10_000_001))
    with pytest.raises(SpecError, match="stdin: has more than 10,000,000 bytes"):
        read_stdin()
    assert text_of("/dev/zero") is None


def test_names_of_many_nodes_are_compared_in_a_short_time():
    nodes = [{"id": f"n{number % 99_999}", "gpus": 0} for number in range(100_000)]
    with pytest.raises(ValidationError, match="the id n0 is given twice"):
        ClusterState.model_validate({"nodes": nodes})
