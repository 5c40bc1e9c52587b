"""The exchange's HTTP surface, as its documentation describes it."""

from typing import Any

import pytest

from tests.support.market import RunningMarket, running_market
from tests.support.market_shop import HOUR, SKU, V2, Shop, ok


@pytest.fixture
def shop(market: RunningMarket) -> Shop:
    return Shop(market)


def test_every_response_says_that_it_is_simulated(market: RunningMarket):
    paths = (f"{V2}/me", "/api/v1/user/whoami", "/simulation/state", "/nowhere", "/api/v1/pods")
    for path in paths:
        assert market.http.get(path).headers["X-Longshore-Simulated"] == "market"
    nobody = market.http.get(f"{V2}/me", headers={"Authorization": "Bearer wrong"})
    assert nobody.headers["X-Longshore-Simulated"] == "market"


@pytest.mark.parametrize("token", ["Bearer wrong", "Basic abc", ""])
@pytest.mark.parametrize("path", [f"{V2}/me", "/v1/balances", "/simulation/state"])
def test_a_wrong_token_is_refused(market: RunningMarket, path: str, token: str):
    answer = market.http.get(path, headers={"Authorization": token})
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


def test_both_prefixes_answer(market: RunningMarket):
    for prefix in (V2, "/v2"):
        assert ok(market.http.get(f"{prefix}/me"))["account_id"]


def test_skus_have_properties_with_display_values(shop: Shop):
    answer = ok(shop.http.get(f"{V2}/instance_skus"))
    assert (answer["object"], answer["has_more"]) == ("list", False)
    sku = next(row for row in answer["data"] if row["id"] == SKU)
    assert sku["accelerator"] == {"value": "h100", "display_value": "H100"}
    assert ok(shop.http.get(f"{V2}/instance_skus/{SKU}")) == sku
    assert shop.http.get(f"{V2}/instance_skus/isku_none").status_code == 404
    catalog = ok(shop.http.get(f"{V2}/instance_sku_property_catalog"))
    assert {"accelerator", "region"} <= {each["key"]["name"] for each in catalog["data"]}


def test_availability_shows_nodes_over_time_and_no_price(shop: Shop):
    shop.ask(nodes=3)
    (row,) = [
        row
        for row in ok(shop.http.get(f"{V2}/instance_skus/availability"))["data"]
        if row["schedule"]
    ]
    assert (row["instance_sku"]["id"], row["schedule"][0]["node_count"]) == (SKU, 3)
    assert "price" not in str(row)
    nothing = {"accelerator": "b200"}
    rows = ok(shop.http.get(f"{V2}/instance_skus/availability", params=nothing))["data"]
    assert [row["schedule"] for row in rows] == [[]]


def window(shop: Shop, hours: int = 4, **others: Any) -> dict[str, Any]:
    return {
        "start_at": shop.start,
        "end_at": shop.start + hours * HOUR,
        "requirements": "accelerator:H100",
        **others,
    }


def test_the_worked_example_is_on_the_book(shop: Shop):
    shop.market.book(worked_example=True)
    depth = ok(shop.http.get(f"{V2}/orderbook/depth", params=window(shop)))

    def levels(side: str) -> list[tuple[str, int]]:
        return [
            (each["dollars_per_node_hour"], each["allocation_schedule_delta"][0]["node_count"])
            for each in depth[side]
        ]

    # Nodes of 8 GPUs. $196 and $200 a node-hour lie between two grains of $0.000060.
    assert levels("asks") == [
        ("192.000000", 4),
        ("196.000020", 8),
        ("199.999980", 16),
        ("204.000000", 6),
        ("208.000020", 12),
        ("216.000000", 8),
    ]
    assert levels("bids") == [
        ("184.000020", 2),
        ("180.000000", 3),
        ("175.999980", 6),
        ("168.000000", 4),
    ]
    assert depth["requested_at"] == int(shop.market.now)
    quote = ok(shop.http.get(f"{V2}/orderbook/quote", params=window(shop)))
    assert (quote["best_ask"], quote["best_bid"]) == (depth["asks"][0], depth["bids"][0])
    short = ok(shop.http.get(f"{V2}/orderbook/depth", params=window(shop, depth=2)))
    assert len(short["asks"]) == 2


def test_the_book_is_of_exactly_the_window_that_is_asked_for(shop: Shop):
    shop.ask(start_at=shop.start, end_at=shop.start + 4 * HOUR)
    within = ok(shop.http.get(f"{V2}/orderbook/depth", params=window(shop, 4)))
    beyond = ok(shop.http.get(f"{V2}/orderbook/depth", params=window(shop, 5)))
    assert (len(within["asks"]), beyond["asks"]) == (1, [])


def test_windows_and_fills_are_listed(shop: Shop):
    hour = shop.start // HOUR * HOUR + HOUR
    shop.ask(start_at=hour, end_at=hour + 3 * HOUR)
    span = {"range_start_at": shop.start, "range_end_at": hour + 24 * HOUR}
    (row,) = ok(shop.http.get(f"{V2}/orderbook/windows", params=span))["data"]
    assert (row["duration_hours"], row["total_ask_order_count"]) == (3, 1)
    assert row["best_ask"]["dollars_per_node_hour"] == "16.000020"
    schedule = [{"start_at": hour, "end_at": hour + HOUR, "node_count": 1}]
    shop.buy(shop.make_pool(), allocation_schedule_delta=schedule)
    (fill,) = ok(shop.http.get(f"{V2}/orderbook/fills", params=window(shop, 24)))["data"]
    assert fill["allocation_schedule_delta"] == schedule


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("depth", {"start_at": 7}, "start_at"),
        ("depth", {"end_at": None}, "end_at"),
        ("depth", {"end_at": 60}, "end_at"),
        ("depth", {"depth": 101}, "depth"),
        ("quote", {"requirements": "h100"}, "requirements"),
        ("quote", {"requirements": "a:like:b"}, "requirements"),
    ],
)
def test_queries_are_validated(shop: Shop, path: str, query: dict[str, Any], field: str):
    params = {k: v for k, v in window(shop, **query).items() if v is not None}
    answer = shop.http.get(f"{V2}/orderbook/{path}", params=params)
    assert answer.status_code == 422
    assert answer.json()["error"]["details"][0]["field"] == field


def preview_body(shop: Shop, **changes: Any) -> dict[str, Any]:
    return {
        "side": "buy",
        "requirements": {"accelerator": ["h100"]},
        "start_at": shop.start,
        "duration_seconds": 4 * HOUR,
        "node_count": 2,
        **changes,
    }


def test_a_preview_is_an_order_that_can_be_sent(shop: Shop):
    shop.ask("2.25", nodes=2)
    pool = shop.make_pool()
    answer = ok(shop.http.post(f"{V2}/order_preview", json=preview_body(shop, pool=pool)))
    assert (answer["type"], answer["fee"]["percentage_bps"]) == ("quoted", 0)
    placed = ok(shop.http.post(f"{V2}/orders", json=answer["post_order_body"]))
    assert shop.order(placed["id"])["status"] == "filled"


def test_no_stock_is_no_error(shop: Shop):
    shop.market.book()
    for requirements, reason in (
        ({"accelerator": ["h100"]}, "no_availability"),
        ({"accelerator": ["h900"]}, "no_matching_instance_skus"),
    ):
        body = preview_body(shop, requirements=requirements)
        answer = ok(shop.http.post(f"{V2}/order_preview", json=body))
        assert (answer["type"], answer["reason"]) == ("unavailable", reason)


def test_an_order_is_pending_then_filled_with_its_fills(shop: Shop):
    shop.ask("2.00", nodes=4)
    pool = shop.make_pool()
    placed = shop.place(pool)
    assert (placed.status_code, placed.json()["status"]) == (201, "pending")
    order = shop.order(placed.json()["id"])
    wanted = shop.order_body(pool)["allocation_schedule_delta"]
    assert order["status"] == "filled"
    assert order["filled_allocation_schedule_delta"] == wanted
    assert order["filled_average_price_dollars_per_node_hour"] == "16.000020"
    assert order["capacity"] == order["pool"] == {"id": pool, "name": "train"}
    held = ok(shop.http.get(f"{V2}/pools/{pool}"))["allocation_schedule"]
    assert held == {"total": wanted, "by_instance_sku": {SKU: wanted}}


def test_a_settling_delay_keeps_an_order_pending(shop: Shop):
    shop.ask()
    shop.market.knobs(settle_seconds=3)
    order_id = ok(shop.place(shop.make_pool()))["id"]
    shop.market.advance(2)
    assert shop.order(order_id)["status"] == "pending"
    shop.market.advance(1)
    assert shop.order(order_id)["status"] == "filled"


def schedule(start: int, end: int, nodes: Any = 1) -> list[dict[str, Any]]:
    return [{"start_at": start, "end_at": end, "node_count": nodes}]


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"side": "borrow"}, "side", "literal_error"),
        ({"instance_sku": "isku_none"}, "instance_sku", "not_found"),
        ({"limit_price_dollars_per_node_hour": "16"}, None, "invalid_decimal"),
        ({"limit_price_dollars_per_node_hour": 16.8}, None, "string_type"),
        ({"allow_partial": "yes"}, "allow_partial", "bool_type"),
        ({"allocation_schedule_delta": []}, "allocation_schedule_delta", "too_short"),
        ({"allocation_schedule_delta": schedule(0, 60) * 2}, None, "too_long"),
        ({"allocation_schedule_delta": schedule(0, 60)}, None, "in_the_past"),
        ({"allocation_schedule_delta": schedule(30, 90)}, None, "not_aligned"),
        ({"allocation_schedule_delta": schedule(6 * 10**9, 60)}, None, "empty"),
        ({"allocation_schedule_delta": schedule(0, 60, 0)}, None, "greater_than_equal"),
        ({"pool": None}, "pool", "string_type"),
    ],
)
def test_a_wrong_order_is_refused_with_details(
    shop: Shop, changes: dict[str, Any], field: str | None, code: str
):
    answer = shop.place(**{"pool": shop.make_pool(), **changes})
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "unprocessable_entity")
    detail = answer.json()["error"]["details"][0]
    assert detail["code"] == code
    assert field is None or detail["field"] == field


def test_other_refusals_have_their_status(shop: Shop):
    assert shop.place("pool_none").status_code == 404
    poor = shop.place(shop.make_pool(), limit_price_dollars_per_node_hour="90000.000000")
    assert (poor.status_code, poor.json()["error"]["type"]) == (402, "payment_required")
    broken = shop.http.post(f"{V2}/orders", content=b"{")
    assert (broken.status_code, broken.json()["error"]["type"]) == (400, "invalid_request_error")
    assert shop.http.get(f"{V2}/orders/ordr_none").status_code == 404


def test_a_key_makes_one_order_however_often_it_is_sent(shop: Shop):
    shop.ask()
    pool = shop.make_pool()
    first, again = shop.place(pool, "k"), shop.place(pool, "k")
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert len(shop.market.state()["orders"]) == 1
    other = shop.place(pool, "k", allow_partial=True)
    assert (other.status_code, other.json()["error"]["type"]) == (409, "idempotency_error")


def test_orders_are_cancelled_by_and_by(shop: Shop):
    shop.market.knobs(settle_seconds=1)
    order_id = ok(shop.place(shop.make_pool(), allow_standing=True))["id"]
    shop.market.advance(1)
    assert shop.order(order_id)["status"] == "standing"
    assert shop.http.delete(f"{V2}/orders/{order_id}").status_code == 204
    assert shop.order(order_id)["status"] == "standing"
    shop.market.advance(1)
    assert shop.order(order_id)["status"] == "cancelled"
    assert shop.http.delete(f"{V2}/orders/{order_id}").status_code == 422


def test_pages_lead_through_the_whole_list(shop: Shop):
    pool = shop.make_pool()
    made = [ok(shop.place(pool))["id"] for _ in range(7)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = ok(shop.http.get(f"{V2}/orders", params={"limit": 3, **cursor}))
        seen += [order["id"] for order in page["data"]]
        if not page["has_more"]:
            break
        cursor = {"starting_after": page["cursor"]}
    assert seen == made[::-1]
    edge = ok(shop.http.get(f"{V2}/orders", params={"limit": 4}))["cursor"]
    for before in (seen[1:3], seen[:1]):
        back = {"limit": 2, "ending_before": edge}
        page = ok(shop.http.get(f"{V2}/orders", params=back))
        assert [order["id"] for order in page["data"]] == before
        edge = page["cursor"]
    oldest = {"sort_by": "created_at", "status[]": "cancelled", "pool": pool}
    data = ok(shop.http.get(f"{V2}/orders", params=oldest))["data"]
    assert [order["id"] for order in data] == made
    for wrong in ({"limit": 201}, {"starting_after": seen[0]}, {"sort_by": "price"}):
        assert shop.http.get(f"{V2}/orders", params=wrong).status_code == 422


def test_a_pool_goes_when_nothing_is_in_it(shop: Shop):
    shop.ask()
    pool = shop.make_pool()
    ok(shop.http.patch(f"{V2}/pools/{pool}", json={"name": "other"}))
    assert ok(shop.http.get(f"{V2}/pools"))["data"][0]["name"] == "other"
    shop.buy(pool)
    assert shop.http.delete(f"{V2}/pools/{pool}").status_code == 422
    shop.market.advance(5 * HOUR)
    assert shop.http.delete(f"{V2}/pools/{pool}").status_code == 204
    assert shop.http.get(f"{V2}/pools/{pool}").status_code == 404


def test_time_moves_between_pools(shop: Shop):
    shop.ask()
    pools = [shop.make_pool("one"), shop.make_pool("two")]
    delta = shop.buy(pools[0])["filled_allocation_schedule_delta"]
    body = {"from_pool": pools[0], "to_pool": pools[1], "instance_sku": SKU}
    body = {**body, "allocation_schedule_delta": delta}
    answer = shop.http.post(f"{V2}/pool_transfers", json=body)
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    held = [ok(shop.http.get(f"{V2}/pools/{each}"))["allocation_schedule"] for each in pools]
    assert [each["total"] for each in held] == [[], delta]
    again = shop.http.post(f"{V2}/pool_transfers", json=body)
    assert (again.status_code, again.json()["status"]) == (202, "rejected")


def test_bought_time_is_sold_again_less_a_fee(shop: Shop):
    shop.ask("2.00", nodes=2)
    pool = shop.make_pool()
    held = shop.buy(pool)["allocation_schedule_delta"]
    bid = {"side": "buy", "dollars_per_gpu_hour": "1.50", "nodes": 2}
    shop.market.post("books", orders=[bid])
    answer = ok(shop.http.post(f"{V2}/order_preview", json=preview_body(shop, side="sell")))
    assert (answer["type"], answer["fee"]["percentage_bps"]) == ("quoted", 400)
    sale = {**answer["post_order_body"], "pool": pool}
    assert sale["allocation_schedule_delta"] == held
    before = shop.market.state()["money"]["sfcompute"]["balance"]
    sold = shop.order(ok(shop.http.post(f"{V2}/orders", json=sale))["id"])
    assert sold["status"] == "filled"
    proceeds = 200_000 * 2 * 240  # micro-dollars per node-minute, nodes, minutes
    after = shop.market.state()["money"]["sfcompute"]["balance"]
    assert after - before == proceeds * 96 // 100
    assert ok(shop.http.get(f"{V2}/pools/{pool}"))["allocation_schedule"]["total"] == []
    again = shop.http.post(f"{V2}/orders", json=sale)
    assert again.json()["error"]["details"][0]["code"] == "not_in_pool"


def test_an_instance_comes_up_on_bought_time_and_is_terminated(shop: Shop):
    shop.ask()
    pool = shop.make_pool()
    assert shop.start_instance(pool).status_code == 422  # the pool holds no time
    shop.buy(pool)
    made = shop.start_instance(pool, name="box-1", tags={"job": "1"})
    assert (made.status_code, made.json()["status"]) == (201, "awaiting_allocation")
    instance_id = made.json()["id"]
    shop.market.advance(130)
    running = shop.instance(instance_id)
    assert (running["status"], running["name"], running["tags"]) == (
        "running",
        "box-1",
        {"job": "1"},
    )
    assert ok(shop.http.get(f"{V2}/instances/{instance_id}/ssh"))["port"] == 22
    assert shop.http.delete(f"{V2}/instances/{instance_id}").status_code == 409
    ended = ok(shop.http.post(f"{V2}/instances/{instance_id}/terminate"))
    assert ended["status"] == "terminated"
    assert shop.http.delete(f"{V2}/instances/{instance_id}").status_code == 204
    assert shop.http.get(f"{V2}/instances/{instance_id}").status_code == 404


def test_an_instance_is_replaced_on_its_node(shop: Shop):
    shop.ask()
    pool = shop.make_pool()
    shop.buy(pool)
    old = ok(shop.start_instance(pool))["id"]
    shop.market.advance(130)
    answer = shop.http.post(f"{V2}/instances/{old}/replace")
    assert (answer.status_code, shop.instance(old)["status"]) == (201, "terminated")
    shop.market.advance(130)
    new = answer.json()["id"]
    assert shop.instance(new)["status"] == "running"
    shop.market.advance(5 * HOUR)
    assert shop.http.post(f"{V2}/instances/{new}/replace").status_code == 409


@pytest.mark.parametrize("sku", ["isku_h100c", "isku_a100a"])
def test_infiniband_and_ports_are_refused_where_the_sku_has_none(shop: Shop, sku: str):
    pool, has_ports = shop.make_pool(), sku == "isku_a100a"
    fabric = shop.start_instance(pool, instance_sku=sku, _preview_enable_infiniband=True)
    assert fabric.status_code == 422
    assert "_preview_enable_infiniband" in fabric.text
    ports = shop.start_instance(
        pool, instance_sku=sku, enable_public_ipv4=True, firewall="frwl_default"
    )
    assert ("enable_public_ipv4" in ports.text) is not has_ports


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"cloud_init_user_data": "not base64!"}, 422),
        ({"cloud_init_user_data": "A" * (64 * 1024 + 4)}, 422),
        ({"priority_level": "huge"}, 422),
        ({"firewall": {}}, 422),
        ({"firewall": "frwl_other", "enable_public_ipv4": True}, 404),
        ({"enable_public_ipv4": True}, 422),
        ({"image": "image_none"}, 404),
        ({"pool": "pool_none"}, 404),
    ],
)
def test_a_wrong_instance_is_refused(shop: Shop, changes: dict[str, Any], status: int):
    shop.ask()
    pool = shop.make_pool()
    shop.buy(pool)
    assert shop.start_instance(**{"pool": pool, **changes}).status_code == status


def test_the_balance_counts_open_orders_as_reserved(shop: Shop):
    ok(shop.place(shop.make_pool(), allow_standing=True))
    balances = ok(shop.http.get("/v1/balances"))
    assert balances["current_balance_cents"] == 1_000_000
    assert balances["available_balance_cents"] == 1_000_000 - 1680 * 2 * 4
    (credit,) = ok(shop.http.get("/v1/transactions"))["data"]
    assert (credit["type"], credit["amount_cents"]) == ("credit_grant", 1_000_000)


def test_the_clock_of_answers_is_the_markets():
    with running_market(start=1_789_999_200.0) as market:
        market.advance(60)
        assert market.http.get(f"{V2}/me").headers["Date"] == "Mon, 21 Sep 2026 14:01:00 GMT"
