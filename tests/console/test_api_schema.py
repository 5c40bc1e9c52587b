"""Whatever is sent to the REST API, it answers as its description says, and never with a fault."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.console import RunningConsole
from tests.support.market import RunningMarket

CHECKS = [
    not_a_server_error, content_type_conformance, response_schema_conformance,
    status_code_conformance,
]  # fmt: skip
PATHS = (
    "/orderbook", "/market/history", "/market/providers", "/market/switch", "/purchases",
    "/purchases/{purchase_id}", "/blocks", "/blocks/{block_id}", "/costs", "/nodes", "/topology",
    "/pools", "/jobs", "/jobs/{job_id}", "/jobs/{job_id}/why", "/jobs/{job_id}/checkpoints",
)  # fmt: skip
TAKE_NOTHING = ("/market/providers", "/market/switch", "/pools")
EXAMPLES = 25
"""Of each kind, for each operation."""


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("path", PATHS)
def test_no_input_is_answered_with_a_fault(
    console: RunningConsole, example: RunningMarket, path: str, mode: GenerationMode
) -> None:
    if mode is GenerationMode.NEGATIVE and path in TAKE_NOTHING:
        return  # there is no input that could be wrong
    url = f"{console.url}/openapi.json"
    operation = schemathesis.openapi.from_url(url, headers=console.headers)[path]["get"]
    statuses: list[int] = []

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers_well(case: Case) -> None:
        answer = case.call_and_validate(headers=console.headers, checks=CHECKS)
        statuses.append(answer.status_code)

    answers_well()
    if mode is GenerationMode.NEGATIVE:
        assert 422 in statuses
    assert statuses
