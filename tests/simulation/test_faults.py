"""Every fault of the switchboard can be seen from outside, and goes away."""

import math
from collections.abc import Callable, Iterator

import httpx
import pytest

from longshore.simulation.market.background import Profile
from longshore.simulation.market.faults import FAULTS, FOREVER
from longshore.simulation.market.instances import decode_script
from longshore.simulation.market.market import Market, Options
from longshore.simulation.market.world import NoMachines
from tests.support.local_stack import ROOT
from tests.support.market import Json, RunningMarket, running_market
from tests.support.market_shop import HOUR, SKU, V1, V2, Shop, encoded, ok

Scene = Callable[[Shop], None]
SCENES: dict[str, Scene] = {}
STANDING = {"allow_standing": True}
PARTIAL = {"allow_partial": True}


def shows(name: str) -> Callable[[Scene], Scene]:
    """Mark a function as the one that sees the fault `name`, which it sets."""

    def keep(scene: Scene) -> Scene:
        SCENES[name] = scene
        return scene

    return keep


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Starts a simulated market, and yields a shop at it; 0.02 s."""
    with running_market(Profile.CALM) as market:
        market.book(sku=SKU)
        yield Shop(market)


def test_the_page_lists_every_fault_as_it_is():
    page = (ROOT / "docs" / "simulated-market.md").read_text()
    for fault in FAULTS.values():
        cells = (f"`{fault.name}`", ", ".join(fault.providers), fault.route, fault.sentence)
        assert f"| {' | '.join(cells)} |" in page


def test_every_fault_has_a_scene():
    assert set(SCENES) == set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_it_can_be_seen_and_happens_as_often_as_it_was_set(shop: Shop, name: str):
    SCENES[name](shop)
    listed = {each["name"]: each for each in shop.market.get("faults")["faults"]}
    assert listed[name]["happened"] >= 1
    assert listed[name]["set"] is None
    assert listed[name]["sentence"].endswith(".")


def test_faults_are_set_for_a_route_or_a_provider_and_cleared(shop: Shop):
    shop.market.fault("unavailable", FOREVER, route="GET /me")
    assert [me(shop).status_code for _ in range(3)] == [503] * 3
    assert pods(shop).status_code == 200
    shop.market.clear_faults()
    assert me(shop).status_code == 200
    shop.market.fault("unavailable", provider="prime")
    assert me(shop).status_code == 200
    assert pods(shop).status_code == 503


def test_an_unknown_fault_is_refused(shop: Shop):
    answer = shop.http.post("/simulation/faults", json={"name": "meteor"})
    assert answer.status_code == 404


def me(shop: Shop) -> httpx.Response:
    return shop.http.get(f"{V2}/me")


def pods(shop: Shop) -> httpx.Response:
    return shop.http.get(f"{V1}/pods/")


def seller(shop: Shop, nodes: int = 4) -> str:
    """Return a pool, at a market where nodes are for sale at $2 a GPU-hour."""
    shop.ask(nodes=nodes)
    return shop.make_pool()


def plain_row(shop: Shop, *, spot: bool = False) -> Json:
    return next(row for row in shop.rows(gpu_count=1) if row["isSpot"] is spot)


def refused_everywhere(name: str, status: int, kind: str) -> Scene:
    def scene(shop: Shop) -> None:
        shop.market.fault(name, 2)
        one, other = me(shop), pods(shop)
        assert (one.status_code, other.status_code) == (status, status)
        assert one.json()["error"]["type"] == kind
        assert "errors" in other.json() if status == 401 else "detail" in other.json()
        assert (me(shop).status_code, pods(shop).status_code) == (200, 200)

    return scene


for _name, _status, _kind in (
    ("unavailable", 503, "service_unavailable"),
    ("server_error", 500, "api_error"),
    ("unauthorized", 401, "authentication_error"),
    ("forbidden", 403, "forbidden"),
):
    SCENES[_name] = refused_everywhere(_name, _status, _kind)


@shows("rate_limited")
def _(shop: Shop) -> None:
    shop.market.fault("rate_limited")
    answer = me(shop)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


@shows("slow")
def _(shop: Shop) -> None:
    shop.market.knobs(slow_seconds=1)
    shop.market.fault("slow")
    with pytest.raises(httpx.ReadTimeout):
        shop.http.get(f"{V2}/me", timeout=0.2)
    assert me(shop).status_code == 200


@shows("dropped")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.market.fault("dropped", route="POST /orders")
    with pytest.raises(httpx.RemoteProtocolError):
        shop.place(pool, "k")
    (made,) = shop.market.state()["orders"]
    assert ok(shop.place(pool, "k"))["id"] == made["id"]
    shop.market.fault("dropped", route="POST /pods/")
    with pytest.raises(httpx.RemoteProtocolError):
        shop.rent(plain_row(shop), name="lost")
    assert [pod["name"] for pod in ok(pods(shop))["data"]] == ["lost"]


@shows("malformed_json")
def _(shop: Shop) -> None:
    shop.market.fault("malformed_json")
    answer = me(shop)
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        answer.json()


@shows("funds")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.market.fault("funds", 2)
    assert shop.place(pool).status_code == 402
    assert shop.rent(plain_row(shop)).status_code == 402
    assert shop.place(pool).status_code == 201


@shows("list_lag")
def _(shop: Shop) -> None:
    order_id = ok(shop.place(seller(shop)))["id"]
    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    for path, thing_id in ((f"{V2}/orders", order_id), (f"{V1}/pods/", pod_id)):
        shop.market.fault("list_lag")
        assert ok(shop.http.get(path))["data"] == []
        assert [each["id"] for each in ok(shop.http.get(path))["data"]] == [thing_id]


@shows("unknown_status")
def _(shop: Shop) -> None:
    order_id = ok(shop.place(seller(shop)))["id"]
    shop.market.fault("unknown_status")
    assert shop.order(order_id)["status"] == "reticulating"
    assert shop.order(order_id)["status"] == "filled"
    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    shop.market.fault("unknown_status")
    assert shop.pod(pod_id)["status"] == "RETICULATING"


@shows("machine_silent")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.buy(pool)
    shop.market.fault("machine_silent")
    instance_id = ok(shop.start_instance(pool))["id"]
    shop.market.advance(300)
    assert shop.instance(instance_id)["status"] == "running"
    assert shop.http.get(f"{V2}/instances/{instance_id}/ssh").status_code == 404


@shows("notice")
def _(shop: Shop) -> None:
    shop.market.knobs(pod_start_seconds=1)
    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    shop.market.advance(10)
    shop.market.fault("notice")
    ok(shop.http.delete(f"{V1}/pods/{pod_id}"))


@shows("bare_error")
def _(shop: Shop) -> None:
    shop.market.fault("bare_error")
    answer = me(shop)
    assert (answer.status_code, answer.json()["type"]) == (503, "service_unavailable")


@shows("old_error")
def _(shop: Shop) -> None:
    shop.market.fault("old_error")
    answer = me(shop)
    assert (answer.status_code, answer.json()["code"]) == (503, "trading_engine.is_halted")


@shows("order_invalid")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.market.fault("order_invalid")
    answer = shop.place(pool)
    assert (answer.status_code, len(answer.json()["error"]["details"])) == (422, 1)


@shows("order_rejected")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.market.fault("order_rejected")
    assert shop.buy(pool)["status"] == "rejected"
    assert shop.buy(pool)["status"] == "filled"


@shows("order_unfilled")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.market.fault("order_unfilled")
    order = shop.buy(pool)
    assert (order["status"], order["fills"]) == ("cancelled", [])


@shows("order_partial")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.market.fault("order_partial")
    order = shop.buy(pool, **PARTIAL)
    filled = order["filled_allocation_schedule_delta"]
    assert (order["status"], [each["node_count"] for each in filled]) == ("cancelled", [1])


@shows("cancel_race")
def _(shop: Shop) -> None:
    order_id = shop.buy(shop.make_pool(), **STANDING, **PARTIAL)["id"]
    shop.market.fault("cancel_race")
    assert shop.http.delete(f"{V2}/orders/{order_id}").status_code == 204
    order = shop.order(order_id)
    filled = order["filled_allocation_schedule_delta"]
    assert (order["status"], [each["node_count"] for each in filled]) == ("cancelled", [1])


@shows("cursor_missing")
def _(shop: Shop) -> None:
    shop.market.fault("cursor_missing")
    page = ok(shop.http.get(f"{V2}/instance_skus"))
    assert (page["has_more"], page["cursor"]) == (True, None)


@shows("cursor_repeated")
def _(shop: Shop) -> None:
    shop.market.fault("cursor_repeated", 2)
    cursor = ok(shop.http.get(f"{V2}/instance_skus"))["cursor"]
    after = {"starting_after": cursor}
    page = ok(shop.http.get(f"{V2}/instance_skus", params=after))
    assert (page["has_more"], page["cursor"]) == (True, cursor)


@shows("maintenance")
def _(shop: Shop) -> None:
    shop.market.fault("maintenance")
    body = {
        "side": "buy", "requirements": {}, "start_at": shop.start, "duration_seconds": HOUR,
        "node_count": 1,
    }  # fmt: skip
    answer = ok(shop.http.post(f"{V2}/order_preview", json=body))
    assert answer["notices"][0]["type"] == "maintenance_window"


@shows("instance_failed")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.buy(pool)
    shop.market.fault("instance_failed")
    instance_id = ok(shop.start_instance(pool))["id"]
    shop.market.advance(300)
    assert shop.instance(instance_id)["status"] == "failed"


@shows("machine_falls_silent")
def _(shop: Shop) -> None:
    pool = seller(shop)
    shop.buy(pool)
    instance_id = ok(shop.start_instance(pool))["id"]
    shop.market.advance(300)
    ok(shop.http.get(f"{V2}/instances/{instance_id}/ssh"))
    shop.market.fault("machine_falls_silent")
    assert shop.http.get(f"{V2}/instances/{instance_id}/ssh").status_code == 404
    assert shop.instance(instance_id)["status"] == "running"


@shows("price_spike")
def _(shop: Shop) -> None:
    before = min(price(row) for row in shop.rows(gpu_count=8, gpu_type="H100_80GB"))
    shop.market.fault("price_spike")
    after = min(price(row) for row in shop.rows(gpu_count=8, gpu_type="H100_80GB"))
    assert after > 1.8 * before


@shows("empty_availability")
def _(shop: Shop) -> None:
    shop.market.fault("empty_availability")
    answer = ok(shop.http.get(f"{V1}/availability/gpus"))
    assert answer == {"items": [], "totalCount": 0}
    assert shop.rows()


@shows("stale_offer")
def _(shop: Shop) -> None:
    shop.market.fault("stale_offer")
    answer = shop.rent(plain_row(shop))
    assert (answer.status_code, "no longer available" in answer.text) == (400, True)


@shows("seller_refuses")
def _(shop: Shop) -> None:
    rows = {row["provider"]: row for row in shop.rows(gpu_type="H100_80GB", gpu_count=8)}
    shop.market.fault("seller_refuses", 2, seller="lambdalabs")
    assert shop.rent(rows["datacrunch"]).status_code == 200
    for _ in range(2):
        answer = shop.rent(rows["lambdalabs"])
        assert (answer.status_code, "not supported" in answer.text) == (400, True)
    assert shop.rent(rows["lambdalabs"]).status_code == 200


@shows("pod_cap")
def _(shop: Shop) -> None:
    shop.market.fault("pod_cap")
    answer = shop.rent(plain_row(shop))
    assert (answer.status_code, "running instances" in answer.text) == (400, True)


@shows("fastapi_error")
def _(shop: Shop) -> None:
    shop.market.fault("fastapi_error")
    answer = shop.rent(plain_row(shop))
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (
        422,
        ["body", "pod", "gpuType"],
    )


@shows("pod_error")
def _(shop: Shop) -> None:
    shop.market.fault("pod_error")
    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    shop.market.advance(700)
    pod = shop.pod(pod_id)
    assert (pod["status"], pod["installationStatus"]) == ("ERROR", "ERROR")


@shows("pod_without_ssh")
def _(shop: Shop) -> None:
    shop.market.fault("pod_without_ssh")
    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    shop.market.advance(700)
    pod = shop.pod(pod_id)
    assert (pod["status"], pod["sshConnection"]) == ("ACTIVE", None)


@shows("spot_lost")
def _(shop: Shop) -> None:
    shop.market.knobs(pod_start_seconds=1)
    plain = ok(shop.rent(plain_row(shop)))["id"]
    spot = ok(shop.rent(plain_row(shop, spot=True)))["id"]
    shop.market.advance(10)
    shop.market.fault("spot_lost")
    assert [pod["id"] for pod in ok(pods(shop))["data"]] == [plain]
    assert [pod["id"] for pod in ok(shop.http.get(f"{V1}/pods/history"))["data"]] == [spot]


@shows("pod_stopped")
def _(shop: Shop) -> None:
    shop.market.knobs(pod_start_seconds=1)
    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    shop.market.advance(10)
    shop.market.fault("pod_stopped")
    pod = shop.pod(pod_id)
    assert (pod["status"], pod["sshConnection"]) == ("STOPPED", None)
    shop.market.advance(120)
    (known,) = shop.market.state()["pods"]
    assert known["minutes"] == 2


@shows("delete_error")
def _(shop: Shop) -> None:
    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    shop.market.fault("delete_error")
    assert shop.http.delete(f"{V1}/pods/{pod_id}").status_code == 500
    assert shop.http.delete(f"{V1}/pods/{pod_id}").status_code == 200


@shows("delete_late")
def _(shop: Shop) -> None:
    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    shop.market.fault("delete_late")
    ok(shop.http.delete(f"{V1}/pods/{pod_id}"))
    assert [pod["id"] for pod in ok(pods(shop))["data"]] == [pod_id]
    shop.market.advance(10)
    assert ok(pods(shop))["data"] == []


@shows("price_above")
def _(shop: Shop) -> None:
    row = plain_row(shop)
    shop.market.fault("price_above")
    dear, usual = (shop.pod(ok(shop.rent(row))["id"])["priceHr"] for _ in range(2))
    assert dear == 2 * usual


@shows("late_bill")
def _(shop: Shop) -> None:
    def billed() -> float:
        (pod,) = ok(shop.http.get(f"{V1}/pods/history"))["data"]
        return pod["totalBilledPrice"]

    pod_id = ok(shop.rent(plain_row(shop)))["id"]
    shop.market.fault("late_bill")
    ok(shop.http.delete(f"{V1}/pods/{pod_id}"))
    assert billed() == 0
    shop.market.advance(1)
    assert billed() > 0


def test_a_machine_ends_with_a_notice_only_when_the_fault_says_so():
    ended: list[bool] = []

    class Room(NoMachines):
        def end(self, name: str, *, notice: bool) -> None:
            ended.append(notice)

    market = Market(Options(profile=Profile.CALM, speed=0), Room())
    market.world.knobs = market.world.knobs.model_copy(
        update={"pod_start_seconds": 1.0, "pod_trouble": 0.0}
    )
    row = next(row for row in market.cloud.offers.rows if row.stock != "Unavailable")
    for fault in (True, False):
        pod = market.cloud.create(row, {}, disk=None, script=decode_script(encoded("run")))
        market.world.clock.advance(2)
        if fault:
            market.world.faults.set("notice")
        market.cloud.delete(pod)
    assert ended == [True, False]


def test_a_pod_that_is_announced_to_go_runs_until_then_and_is_paid_for(shop: Shop):
    shop.market.knobs(pod_start_seconds=1, spot_notice_seconds=120)
    pod_id = ok(shop.rent(plain_row(shop, spot=True)))["id"]
    shop.market.advance(10)
    shop.market.fault("spot_lost")
    (pod,) = ok(pods(shop))["data"]
    assert (pod["id"], pod["status"], pod["terminatedAt"]) == (pod_id, "DELETING", None)
    shop.market.advance(121)
    (row,) = ok(shop.http.get(f"{V1}/pods/history"))["data"]
    assert (row["id"], row["terminatedAt"] is not None) == (pod_id, True)
    assert row["totalBilledPrice"] == pytest.approx(row["priceHr"] * 2 / 60, rel=1e-3)


def test_exchange_prices_jump_with_a_spike():
    with running_market(Profile.CALM) as market:
        shop = Shop(market)
        before = best_ask(shop)
        market.fault("price_spike")
        assert best_ask(shop) > 1.8 * before
        for _ in range(30):  # no further than three times the mean
            market.fault("price_spike")
        assert best_ask(shop) < 4 * before


def best_ask(shop: Shop) -> float:
    query = {
        "start_at": shop.start,
        "end_at": shop.start + HOUR,
        "requirements": "accelerator:h100",
    }
    best = ok(shop.http.get(f"{V2}/orderbook/quote", params=query)).get("best_ask")
    return float(best["dollars_per_node_hour"]) if best else math.inf


def price(row: Json) -> float:
    return row["prices"]["communityPrice"] or row["prices"]["onDemand"]


def test_controls_are_validated(shop: Shop, market: RunningMarket):
    for path, body in (
        ("clock", {"advance_seconds": -1}),
        ("faults", {"name": "slow", "times": -2}),
        ("knobs", {"settle_seconds": -1}),
        ("knobs", {"colour": 1}),
        ("books", {"orders": [{"side": "buy", "dollars_per_gpu_hour": "0", "nodes": 1}]}),
    ):
        assert shop.http.post(f"/simulation/{path}", json=body).status_code == 422, path
    assert shop.http.post("/simulation/books", json={"sku": "none"}).status_code == 404
