"""What pods of Prime Intellect have cost is in the history alone; each is found by its key."""

from typing import Any

import pytest

from longshore.activities.providers.prime import Prime
from longshore.activities.providers.prime_reading import name_of
from longshore.models.market import MachineState
from tests.support.scripted_http import Reply, ScriptedHTTP

API = "/api/v1"
POD = {
    "id": "pod_1", "name": "p-1-1", "status": "TERMINATED", "installationStatus": "TERMINATED",
    "createdAt": "2026-09-21T12:00:00Z", "terminatedAt": "2026-09-21T13:00:00Z",
    "gpuName": "H100_80GB", "gpuCount": 8, "socket": "SXM5", "priceHr": 16.0,
}  # fmt: skip
NONE: dict[str, Any] = {"total_count": 0, "data": []}


def billed(**changed: Any) -> dict[str, Any]:
    row = {**POD, "totalBilledPrice": 16.0, **changed}
    del row["status"]
    return {"total_count": 1, "data": [row]}


@pytest.mark.parametrize(
    ("history", "micro"),
    [
        (billed(), 16_000_000),
        (billed(id="another"), None),
        (Reply({"detail": "forbidden"}, 403), None),
    ],
)
async def test_a_pod_that_has_ended_without_a_bill_has_that_of_the_history(
    server: ScriptedHTTP, prime: Prime, history: Any, micro: int | None
):
    server.on(f"GET {API}/pods/pod_1", POD)
    server.on(f"GET {API}/pods/history", history)
    machine, order = await prime.machine("pod_1"), await prime.order_by_id("pod_1")
    assert (machine.state, machine.billed) == (MachineState.ENDED, micro)
    assert [fill.cost for fill in order.fills] == [micro]
    assert server.unexpected == []


async def test_a_pod_that_runs_is_not_looked_for_in_the_history(
    server: ScriptedHTTP, prime: Prime
):
    server.on(f"GET {API}/pods/pod_1", {**POD, "status": "ACTIVE", "terminatedAt": None})
    assert (await prime.machine("pod_1")).billed is None
    assert server.unexpected == []


@pytest.mark.parametrize("key", ["p-1.1", "nightly.1", "p-a.b.1"])
async def test_a_pod_is_found_by_any_key(server: ScriptedHTTP, prime: Prime, key: str):
    live = {**POD, "name": name_of(key), "status": "ACTIVE", "terminatedAt": None}
    server.on(f"GET {API}/pods/", {"total_count": 1, "data": [live]})
    server.on(f"GET {API}/pods/history", NONE)
    found = await prime.find_order(key)
    assert found is not None
    assert (found.id, found.key) == ("pod_1", key)
    assert await prime.find_order("p-2.1") is None
