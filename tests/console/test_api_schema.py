"""Whatever is sent to the REST API, it answers as its description says, and never with a fault."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import BaseSchema, Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from longshore.workers.processes import wait_until
from tests.support.console import RunningConsole

LINE = 60_000
"""Bytes of an address; h11 takes 64 KiB for all that comes before the body."""


def documented(context: CheckContext, response: Response, case: Case) -> bool | None:
    """Hold the status against the description; an address that is too long never comes to a
    route: the server answers 400 by itself."""
    if response.status_code == 400 and len(response.request.url or "") > LINE:
        return None
    return status_code_conformance(context, response, case)


CHECKS = [
    not_a_server_error, content_type_conformance, response_schema_conformance, documented,
]  # fmt: skip
READ = (
    "/orderbook", "/market/history", "/market/providers", "/market/switch", "/market/orphans",
    "/purchases", "/purchases/{purchase_id}", "/blocks", "/blocks/{block_id}", "/costs", "/nodes",
    "/topology", "/pools", "/cycles", "/queue", "/queue/history", "/queue/estimates",
    "/durations", "/dags", "/dags/{dag_id}", "/schedules", "/schedules/{name}",
    "/jobs", "/jobs/{job_id}",
    "/jobs/{job_id}/why",
    "/jobs/{job_id}/checkpoints",
    "/budgets", "/usage", "/leases", "/jobs/{job_id}/payers", "/jobs/{job_id}/fund",
    "/services", "/services/{name}", "/slots", "/models", "/models/{name}", "/runtimes",
    "/runtimes/{name}",
)  # fmt: skip
STOP, RESUME = "/market/stop", "/market/resume"
EVICT = "/slots/{job_id}/evict"
OPERATIONS = [
    *(("get", path) for path in READ),
    *(("post", path) for path in (STOP, RESUME, EVICT)),
]
TAKE_NOTHING = (
    "/market/providers", "/market/switch", "/market/orphans", "/pools", "/schedules", "/budgets",
    "/services", "/slots", "/models", "/runtimes", RESUME,
)  # fmt: skip
ONLY_TEMPORAL = ("/schedules", "/schedules/{name}", EVICT)
"""What only Temporal knows, which the console of these tests has not: it says so, as 503."""
EXAMPLES, MANY = 5, 300
"""Of each kind, for each operation: the same each time, and many others."""


@pytest.fixture
def buying_goes_on(console: RunningConsole) -> Iterator[None]:
    """Has the console of all modules buy again after a test that may have stopped that."""
    yield
    console.http.post(RESUME)
    # An answer of a moment ago may still be given.
    assert wait_until(lambda: not console.get("/market/switch").json()["stopped"], 60.0)


@pytest.fixture(scope="module")
def api(console: RunningConsole) -> BaseSchema:
    """What the console says of its pages, asked once; its first answer takes a second."""
    schema = schemathesis.openapi.from_dict(console.get("/openapi.json").json())
    schema.config.update(base_url=console.url)
    return schema


def test_every_operation_is_tried(console: RunningConsole) -> None:
    paths = console.get("/openapi.json").json()["paths"]
    found = {(method, path) for path, methods in paths.items() for method in methods}
    assert found == set(OPERATIONS)


@pytest.mark.usefixtures("example", "buying_goes_on")
@pytest.mark.parametrize(
    "many", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_input_is_answered_with_a_fault(
    console: RunningConsole, api: BaseSchema, method: str, path: str, mode: GenerationMode,
    many: bool,
) -> None:  # fmt: skip
    if mode is GenerationMode.NEGATIVE and path in TAKE_NOTHING:
        return  # there is no input that could be wrong
    operation = api[path][method]
    statuses: list[int] = []

    @settings(
        max_examples=MANY if many else EXAMPLES, deadline=None, derandomize=not many,
        database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers_well(case: Case) -> None:
        checks = CHECKS[1:] if path in ONLY_TEMPORAL else CHECKS
        answer = case.call_and_validate(headers=console.headers, checks=checks)
        assert answer.status_code != 500
        statuses.append(answer.status_code)

    answers_well()
    if mode is GenerationMode.NEGATIVE:
        assert 422 in statuses
    assert statuses


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\xff", 400), (b"{", 400), (b"[" * 100_000, 400), (b"\0", 400),
        (b"", 422), (b"null", 422), (b"[]", 422), (b"1e999", 422),
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_is_refused_as_described(
    console: RunningConsole, api: BaseSchema, body: bytes, status: int
) -> None:
    operation = api[STOP]["post"]
    refused = console.http.post(STOP, content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == status
    operation.validate_response(refused)
    assert not console.get("/market/switch").json()["stopped"]
