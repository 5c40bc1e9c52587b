"""Whatever is sent, the market answers in the form of its API and never fails itself."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.simulation.market.background import Profile
from tests.support.market import running_market
from tests.support.market_shop import SKU, V1, V2, Shop

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
GETS = (
    f"{V2}/orders", f"{V2}/instances", f"{V2}/pools", f"{V2}/orderbook/depth",
    f"{V2}/orderbook/windows", f"{V2}/orderbook/fills", f"{V2}/instance_skus/availability",
    f"{V1}/availability/gpus", f"{V1}/pods/", f"{V1}/pods/history", f"{V1}/billing/wallet",
    "/v1/transactions",
)  # fmt: skip
NAMES = (
    "limit", "starting_after", "ending_before", "status", "side", "created_after", "sort_by",
    "start_at", "end_at", "range_start_at", "range_end_at", "depth", "requirements", "since_at",
    "page", "page_size", "gpu_count", "offset",
)  # fmt: skip


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """Starts a simulated market, and yields a shop at it; 0.02 s."""
    with running_market(Profile.CALM) as market:
        market.knobs(pod_cap=0)
        shop = Shop(market)
        shop.make_pool("odd")
        yield shop


def bodies(shop: Shop) -> dict[str, Any]:
    """Return a request that is in order for every route that takes a body."""
    pool = "sfc:pool:acct_simulated:simulated:odd"
    preview = {"requirements": {}, "start_at": shop.start, "duration_seconds": 60, "side": "buy"}
    window = [{"start_at": shop.start, "end_at": shop.start + 60, "node_count": 1}]
    transfer = {"from_pool": pool, "to_pool": pool, "instance_sku": SKU}
    row = {"cloudId": "c", "gpuType": "H100_80GB", "socket": "SXM5", "gpuCount": 1}
    return {
        f"{V2}/orders": shop.order_body(pool),
        f"{V2}/order_preview": {**preview, "node_count": 1},
        f"{V2}/pools": {"workspace": "none", "name": "n", "tags": {}},
        f"{V2}/pool_transfers": {**transfer, "allocation_schedule_delta": window},
        f"{V2}/instances": {"pool": pool, "image": "image_ubuntu2204", "instance_sku": SKU},
        f"{V1}/pods/": {"pod": row, "provider": {"type": "runpod"}},
        "/simulation/faults": {"name": "none", "times": 1},
        "/simulation/knobs": {"slow_seconds": 1},
        "/simulation/books": {"sku": "none", "orders": []},
    }


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_odd_bodies_are_refused_or_taken(shop: Shop, data: st.DataObject):
    path, body = data.draw(st.sampled_from(list(bodies(shop).items())))
    body = copy.deepcopy(body)
    where = body["pod"] if "pod" in body and data.draw(st.booleans()) else body
    where[data.draw(st.sampled_from(list(where)))] = data.draw(anything)
    sent = data.draw(st.sampled_from([body, body, body, data.draw(anything)]))
    answer = shop.http.post(path, json=sent)
    assert answer.status_code < 500, (path, sent, answer.text)
    assert isinstance(answer.json(), dict)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(GETS), st.dictionaries(st.sampled_from(NAMES), st.text(max_size=8)))
def test_odd_queries_are_refused_or_answered(shop: Shop, path: str, query: dict[str, str]):
    answer = shop.http.get(path, params=query)
    assert answer.status_code < 500, (path, query, answer.text)
    assert isinstance(answer.json(), dict)
