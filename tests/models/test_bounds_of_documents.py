"""Each file that people write, and each setting of a tenant or a pool, has bounds as a job has."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from longshore.models.bounds import TAKEN
from longshore.models.budget_document import BudgetDocument, BudgetsDocument
from longshore.models.dag import DagSpec
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.funding import Quotas, Tenant
from longshore.models.model_registry import ModelsDocument, RuntimesDocument
from longshore.models.pool import PoolSpec
from longshore.models.schedule import ScheduleTimes
from longshore.models.service import ServiceFile, ServiceSpec
from longshore.scheduling.schedules import refusals
from tests.support.bounds import boundless

DOCUMENTS = (
    BudgetsDocument, DagSpec, ModelsDocument, PoolSpec, RuntimesDocument, ServiceFile, Tenant,
)  # fmt: skip
PARSED = ("Such as ", "From ")
"""How the description of a text begins that is read as a size, a duration or a time."""
READ_BY_WHO_PLANS = {"energy_price", "funding", "tree", "usage"}


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
