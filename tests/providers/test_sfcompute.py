"""The client of San Francisco Compute against bodies as its documentation has them."""

import base64
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from longshore.activities.providers.access import Access
from longshore.activities.providers.sfcompute import SFCompute
from longshore.activities.providers.sfcompute_units import moment
from longshore.models.errors import (
    AnswerError,
    CredentialsError,
    GoneError,
    InvalidOrderError,
    MarketAwayError,
    OrderConflictError,
)
from longshore.models.market import (
    InstanceType,
    MachineRequest,
    MachineState,
    NoQuote,
    NoQuoteReason,
    OrderBook,
    OrderRequest,
    OrderState,
    Preview,
    Side,
    Window,
)
from tests.providers.told import Sleeps, body, page
from tests.support.scripted_http import Received, Reply, Reset, ScriptedHTTP, Silence

V2 = "/preview/v2"
START = moment(1789995600)
H100, H200 = InstanceType.parse("8xH100"), InstanceType.parse("8xH200-141GB")


@pytest.fixture(autouse=True)
def skus(server: ScriptedHTTP) -> Iterator[None]:
    server.on(f"GET {V2}/instance_skus", body("sfcompute_skus"))
    yield
    assert server.unexpected == []


def buy(**changed: Any) -> OrderRequest:
    window = Window(start=START, end=START + timedelta(hours=6))
    fields: dict[str, Any] = {
        "key": "purchase-1", "instance_type": "8xH200", "nodes": 2, "window": window,
        "limit": 2_100_001, "account": "pool_p1",
    }  # fmt: skip
    return OrderRequest.model_validate({**fields, **changed})


async def test_the_account_has_a_balance_in_micro_dollars(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    server.on(f"GET {V2}/me", body("sfcompute_me"))
    server.on("GET /v1/balances", body("sfcompute_balances"), Reply({}, 404), Reply({}, 503))
    account = await sfcompute.account()
    assert (account.id, account.balance, account.simulated) == ("acme-corp", 1_234_560_000, True)
    assert (await sfcompute.account()).balance is None
    assert (await sfcompute.account()).balance is None
    assert len(server.seen("GET /v1/balances")) == 3


async def test_types_are_read_once(server: ScriptedHTTP, sfcompute: SFCompute):
    for _ in range(2):
        assert [str(kind) for kind in await sfcompute.instance_types()] == ["8xH100", "8xH200"]
    assert len(server.seen(f"GET {V2}/instance_skus")) == 1


async def test_a_book_counts_gpus_and_prices_them_by_the_hour(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    server.on(f"GET {V2}/orderbook/depth", body("sfcompute_depth"))
    book = await sfcompute.book(H100, Window(start=START, end=START + timedelta(hours=2)))
    assert isinstance(book, OrderBook)
    assert (book.lot, book.gpus_per_node, book.simulated) == (8, 8, True)
    two_hours, one_hour = START + timedelta(hours=2), START + timedelta(hours=1)
    assert [(ask.price, ask.gpus, ask.end) for ask in book.asks] == [
        (2_000_000, 8, two_hours),
        (2_100_008, 16, two_hours),  # 16.800060 / 8, up: a limit at it must reach it
        (2_100_008, 8, one_hour),
    ]
    assert [(bid.price, bid.gpus, bid.end) for bid in book.bids] == [
        (1_999_995, 16, None),
        (1_500_000, 32, two_hours),
    ]
    query = server.seen(f"GET {V2}/orderbook/depth")[0].query
    assert query["requirements"] == ["accelerator:h100"]
    assert query["start_at"] == ["1789995600"]
    assert query["end_at"] == ["1790002800"]


async def test_a_book_is_of_the_next_whole_hour_without_a_window(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    server.on(f"GET {V2}/orderbook/depth", body("sfcompute_depth"))
    book = await sfcompute.book(H100)
    assert isinstance(book, OrderBook)
    assert book.window == Window(start=START, end=START + timedelta(hours=1))


async def test_the_next_hour_is_that_of_the_markets_clock(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    late = {"Date": "Mon, 21 Sep 2026 18:59:59 GMT"}
    past = Reply({"error": {"message": "start_at is past"}}, 422, late)
    server.on(f"GET {V2}/orderbook/depth", past, Reply(body("sfcompute_depth"), headers=late))
    book = await sfcompute.book(H100)
    assert isinstance(book, OrderBook)
    assert book.window
    assert book.window.start == START + timedelta(hours=6)


async def test_a_refused_hour_is_not_asked_for_again_and_again(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    late = {"Date": "Mon, 21 Sep 2026 18:59:59 GMT"}
    server.on(f"GET {V2}/orderbook/depth", Reply({"error": {"message": "no"}}, 422, late))
    with pytest.raises(InvalidOrderError):
        await sfcompute.book(H100)
    assert len(server.seen(f"GET {V2}/orderbook/depth")) == 2


async def test_an_ask_at_a_price_that_no_amount_can_be_hides_no_other(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    there = body("sfcompute_depth")
    odd = {**there["asks"][0], "dollars_per_node_hour": "9000000000.000000"}
    server.on(
        f"GET {V2}/orderbook/depth", there, body("sfcompute_depth", asks=[odd, *there["asks"]])
    )
    window = Window(start=START, end=START + timedelta(hours=2))
    plain, with_odd = [await sfcompute.book(H100, window) for _ in range(2)]
    assert isinstance(plain, OrderBook)
    assert isinstance(with_odd, OrderBook)
    assert with_odd.asks == plain.asks


async def test_no_book_is_no_quote(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"GET {V2}/orderbook/depth", body("sfcompute_depth", asks=[], bids=[]))
    empty = await sfcompute.book(H100)
    assert isinstance(empty, NoQuote)
    assert empty.reason is NoQuoteReason.EMPTY
    unknown = await sfcompute.book(InstanceType.parse("4xH100"))
    assert isinstance(unknown, NoQuote)
    assert unknown.reason is NoQuoteReason.UNKNOWN_TYPE


async def test_a_preview_has_price_fee_and_notices(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"POST {V2}/order_preview", body("sfcompute_preview_quoted"))
    preview = await sfcompute.preview(buy())
    assert isinstance(preview, Preview)
    assert preview.price == 2_100_000
    # 0.12 x 2 nodes x 6 h, and 2.5 % of 16.80 x 12
    assert preview.fee == 1_440_000 + 5_040_000
    assert preview.notices == ("Switches: One switch is exchanged.",)
    sent = server.requests[-1].json
    assert (sent["duration_seconds"], sent["node_count"], sent["side"]) == (21600, 2, "buy")
    assert sent["requirements"] == {"accelerator": ["h200"]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (body("sfcompute_preview_unavailable"), NoQuoteReason.EMPTY),
        (body("sfcompute_preview_unavailable", reason="no_matching_instance_skus"),
         NoQuoteReason.UNKNOWN_TYPE),
        (body("sfcompute_preview_unavailable", type="later"), NoQuoteReason.EMPTY),
    ],
)  # fmt: skip
async def test_an_unavailable_preview_is_no_quote(
    server: ScriptedHTTP, sfcompute: SFCompute, answer: Any, reason: NoQuoteReason
):
    server.on(f"POST {V2}/order_preview", answer)
    preview = await sfcompute.preview(buy())
    assert isinstance(preview, NoQuote)
    assert preview.reason is reason


async def test_a_preview_for_another_type_is_left_out(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"POST {V2}/order_preview", body("sfcompute_preview_quoted"))
    preview = await sfcompute.preview(buy(instance_type="8xH100"))
    assert isinstance(preview, NoQuote)
    assert preview.reason is NoQuoteReason.LEFT_OUT


@pytest.mark.parametrize(
    ("place", "kind"), [("isku_cedar", Preview), ("isku_birch", NoQuote), (None, Preview)]
)
async def test_the_fee_of_another_place_is_no_quote(
    server: ScriptedHTTP, sfcompute: SFCompute, place: str | None, kind: type[Preview | NoQuote]
):
    server.on(f"POST {V2}/order_preview", body("sfcompute_preview_quoted"))
    assert isinstance(await sfcompute.preview(buy(place=place)), kind)


async def test_an_order_is_sent_with_its_key_and_a_floored_limit(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    server.on(f"POST {V2}/orders", Reset(), Reply(body("sfcompute_order"), 201))
    order = await sfcompute.order(buy(partial=True))
    assert (order.id, order.key, order.state) == ("ordr_x1", "purchase-1", OrderState.PENDING)
    assert (order.nodes, order.gpus_per_node, order.limit) == (2, 8, 2_100_000)
    assert order.window == buy().window
    sent = server.seen(f"POST {V2}/orders")
    assert [r.headers["idempotency-key"] for r in sent] == ["purchase-1"] * 2
    assert sent[0].json == sent[1].json == {
        "side": "buy", "pool": "pool_p1", "instance_sku": "isku_cedar",
        "allocation_schedule_delta": [
            {"start_at": 1789995600, "end_at": 1790017200, "node_count": 2}
        ],
        "limit_price_dollars_per_node_hour": "16.800000",
        "allow_standing": False, "allow_partial": True,
    }  # fmt: skip


async def test_a_sale_has_a_raised_limit(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"POST {V2}/orders", Reply(body("sfcompute_order", side="sell"), 201))
    order = await sfcompute.order(buy(side=Side.SELL, standing=True))
    assert order.side is Side.SELL
    sent = server.requests[-1].json
    assert sent["limit_price_dollars_per_node_hour"] == "16.800060"
    assert sent["allow_standing"] is True


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"window": None}, "window"),
        ({"window": Window(start=START, end=START + timedelta(seconds=90))}, "window"),
        ({"account": None}, "account"),
        ({"instance_type": "a few"}, "instance_type"),
        ({"instance_type": "8xB200"}, "8xB200"),
    ],
)
async def test_an_order_that_cannot_be_is_not_sent(
    server: ScriptedHTTP, sfcompute: SFCompute, changed: dict[str, Any], field: str
):
    with pytest.raises(InvalidOrderError, match=field):
        await sfcompute.order(buy(**changed))
    assert server.seen(f"POST {V2}/orders") == []


async def test_of_two_skus_the_one_with_the_lowest_ask_is_bought_and_found_again(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    placed: list[str] = []

    def market(request: Received) -> Reply:
        """Remember the first order of the key, and refuse another body."""
        sku = request.json["instance_sku"]
        placed.append(sku)
        if sku != placed[0]:
            return Reply({"error": {"type": "idempotency_error", "message": "other"}}, 409)
        return Reply(body("sfcompute_order", instance_sku={"id": sku}), 201)

    depth = body("sfcompute_depth")
    turned = body("sfcompute_depth", asks=list(reversed(depth["asks"])))
    server.on(f"GET {V2}/orderbook/depth", depth, turned)
    server.on(f"POST {V2}/orders", market)
    first = await sfcompute.order(buy(instance_type="8xH100"))
    again = await sfcompute.order(buy(instance_type="8xH100"))
    assert first == again
    assert placed == ["isku_birch", "isku_alder", "isku_birch"]


async def test_a_key_of_another_order_is_a_conflict(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"POST {V2}/orders", Reply({"error": {"type": "conflict", "message": "no"}}, 409))
    with pytest.raises(OrderConflictError):
        await sfcompute.order(buy())


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("pending", OrderState.PENDING),
        ("standing", OrderState.STANDING),
        ("partially_filled", OrderState.PARTIAL),
        ("filled", OrderState.FILLED),
        ("cancelled", OrderState.CANCELLED),
        ("rejected", OrderState.REJECTED),
        ("reticulating", OrderState.PENDING),
    ],
)
async def test_every_state_of_an_order_is_known(
    server: ScriptedHTTP, sfcompute: SFCompute, status: str, state: OrderState
):
    server.on(f"GET {V2}/orders/ordr_x1", body("sfcompute_order", status=status, news=1))
    order = await sfcompute.order_by_id("ordr_x1")
    assert (order.state, order.native_state) == (state, status)


async def test_a_cancelled_order_keeps_its_fills(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"GET {V2}/orders/ordr_x2", body("sfcompute_order_cancelled_with_fills"))
    order = await sfcompute.order_by_id("ordr_x2")
    assert order.state is OrderState.CANCELLED
    later = START + timedelta(hours=3)
    assert [(f.nodes, f.price, f.cost, f.window) for f in order.fills] == [
        (1, 2_000_000, 32_000_000, Window(start=START, end=START + timedelta(hours=2))),
        (2, 2_099_992, 33_599_880, Window(start=later, end=later + timedelta(hours=1))),
    ]


async def test_fills_that_are_only_summed_up_are_read(server: ScriptedHTTP, sfcompute: SFCompute):
    summed = body("sfcompute_order_cancelled_with_fills", fills=[], status="odd")
    server.on(f"GET {V2}/orders/ordr_x2", summed, {**summed, "cancelled_at": None})
    order = await sfcompute.order_by_id("ordr_x2")
    assert order.state is OrderState.CANCELLED
    assert [(f.nodes, f.price) for f in order.fills] == [(1, 2_062_500), (2, 2_062_500)]
    assert (await sfcompute.order_by_id("ordr_x2")).state is OrderState.PARTIAL


async def test_an_older_answer_calls_the_pool_capacity(server: ScriptedHTTP, sfcompute: SFCompute):
    older = body("sfcompute_order")
    del older["pool"]
    server.on(f"GET {V2}/orders/ordr_x1", older)
    assert (await sfcompute.order_by_id("ordr_x1")).account == "pool_p1"


async def test_a_missing_field_is_named(server: ScriptedHTTP, sfcompute: SFCompute):
    broken = body("sfcompute_order")
    del broken["allocation_schedule_delta"]
    server.on(f"GET {V2}/orders/ordr_x1", broken)
    with pytest.raises(AnswerError, match="allocation_schedule_delta is required"):
        await sfcompute.order_by_id("ordr_x1")


async def test_cancelling_what_has_ended_is_no_error(server: ScriptedHTTP, sfcompute: SFCompute):
    path = f"{V2}/orders/ordr_x1"
    refusal = Reply({"error": {"type": "unprocessable_entity", "message": "too late"}}, 422)
    server.on(f"DELETE {path}", Reply(status=204), refusal, refusal, Reply({}, 404))
    server.on(f"GET {path}", body("sfcompute_order", status="filled"), body("sfcompute_order"))
    server.on(f"GET {V2}/orders", page())
    await sfcompute.cancel_order("ordr_x1")
    await sfcompute.cancel_order("ordr_x1")
    with pytest.raises(InvalidOrderError, match="too late"):
        await sfcompute.cancel_order("ordr_x1")
    with pytest.raises(GoneError):
        await sfcompute.cancel_order("ordr_x1")


async def test_what_is_denied_and_listed_is_there(server: ScriptedHTTP, sfcompute: SFCompute):
    order, instance, none = f"{V2}/orders/ordr_x1", f"{V2}/instances/inst_i1", Reply({}, 404)
    for path in (f"GET {order}", f"GET {instance}", f"POST {instance}/terminate"):
        server.on(path, none)
    server.on(f"GET {V2}/orders", page(body("sfcompute_order")), page())
    server.on(f"GET {V2}/instances", page(body("sfcompute_instance")))
    assert (await sfcompute.order_by_id("ordr_x1")).id == "ordr_x1"
    with pytest.raises(GoneError):
        await sfcompute.order_by_id("ordr_x1")
    assert (await sfcompute.machine("inst_i1")).id == "inst_i1"
    with pytest.raises(GoneError):
        await sfcompute.stop_machine("inst_i1")


async def test_all_pages_of_orders_are_read(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(
        f"GET {V2}/orders",
        page(body("sfcompute_order"), cursor="c1"),
        page(body("sfcompute_order", id="ordr_x3")),
    )
    assert [order.id for order in await sfcompute.orders()] == ["ordr_x1", "ordr_x3"]
    assert [r.query.get("starting_after") for r in server.seen(f"GET {V2}/orders")] == [
        None,
        ["c1"],
    ]


@pytest.mark.parametrize(
    "pages",
    [
        [page(cursor="c1"), page(cursor="c2"), page(cursor="c1")],
        [{**page(), "has_more": True}],
        [page(cursor="c1")],
    ],
)
async def test_pages_without_an_end_are_an_error(
    server: ScriptedHTTP, sfcompute: SFCompute, pages: list[Any]
):
    server.on(f"GET {V2}/orders", *pages)
    with pytest.raises(AnswerError, match="cursor"):
        await sfcompute.orders()
    assert len(server.seen(f"GET {V2}/orders")) <= 3


async def test_a_key_cannot_be_looked_up_here(sfcompute: SFCompute):
    assert await sfcompute.find_order("purchase-1") is None
    assert sfcompute.capabilities.idempotent


async def test_a_pool_is_made_once(server: ScriptedHTTP, sfcompute: SFCompute):
    pool = body("sfcompute_pool")
    server.on(f"GET {V2}/pools", page(), page(pool))
    server.on(f"GET {V2}/workspaces", page({"id": "wksp_1", "name": "prod"}))
    server.on(f"POST {V2}/pools", Reply(pool, 201))
    assert await sfcompute.make_account("train") == "pool_p1"
    assert await sfcompute.make_account("train") == "pool_p1"
    (asked,) = server.seen(f"GET {V2}/workspaces")
    assert asked.query == {}  # there are no parameters for pages
    assert [r.json for r in server.seen(f"POST {V2}/pools")] == [
        {"workspace": "wksp_1", "name": "train"}
    ]


@pytest.mark.parametrize(
    "trouble", [Reset(), Reply({"error": {"message": "name taken"}}, 422), Reply({}, 409)]
)
async def test_a_pool_that_came_into_being_all_the_same_is_found(
    server: ScriptedHTTP, sfcompute: SFCompute, trouble: Reset | Reply
):
    server.on(f"GET {V2}/pools", page(), page(body("sfcompute_pool")))
    server.on(f"GET {V2}/workspaces", page({"id": "wksp_1"}))
    server.on(f"POST {V2}/pools", trouble)
    assert await sfcompute.make_account("train") == "pool_p1"
    assert len(server.seen(f"POST {V2}/pools")) == 1


async def test_several_workspaces_need_a_setting(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"GET {V2}/pools", page())
    server.on(f"GET {V2}/workspaces", page({"id": "w1", "name": "a"}, {"id": "w2", "name": "b"}))
    with pytest.raises(InvalidOrderError, match=r"2 workspaces \(a, b\).*SFCOMPUTE_WORKSPACE"):
        await sfcompute.make_account("train")


async def test_a_list_of_workspaces_that_goes_on_needs_a_setting(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    server.on(f"GET {V2}/pools", page())
    server.on(f"GET {V2}/workspaces", {"data": [{"id": "w1", "name": "a"}], "has_more": True})
    with pytest.raises(InvalidOrderError, match=r"more than 1 workspaces \(a\)"):
        await sfcompute.make_account("train")


async def test_the_image_is_looked_for_before_an_order(server: ScriptedHTTP, access: Access):
    market = SFCompute(access, image="image_mine")
    image = f"GET {V2}/images/image_mine"
    instances = f"GET {V2}/instances"
    there = {"object": "image", "id": "image_mine", "upload_status": "completed"}
    server.on(image, Reply({"error": {"type": "not_found", "message": "none"}}, 404),
              {**there, "upload_status": "revoked"}, there)  # fmt: skip
    server.on(instances, Reply({"error": {"type": "forbidden", "message": "no"}}, 403),
              Reply(b"<html>", 200), page())  # fmt: skip
    for said in ("IMAGE is not there", "IMAGE is revoked"):
        with pytest.raises(InvalidOrderError, match=f"image image_mine of .*{said}"):
            await market.check_start(buy())
    with pytest.raises(CredentialsError, match="give the token of LONGSHORE_SFCOMPUTE_TOKEN"):
        await market.check_start(buy())
    await market.check_start(buy())  # an answer that cannot be read says nothing of the right
    await market.check_start(buy())
    assert len(server.seen(image)) == 3
    await market.aclose()


def test_no_real_time_is_bought_without_an_image():
    real = Access("https://api.example.com", SecretStr("t"), "real")
    assert "set LONGSHORE_SFCOMPUTE_IMAGE" in SFCompute(real).no_buying
    assert SFCompute(real, image="image_mine").no_buying == ""


def machine(**changed: Any) -> MachineRequest:
    fields = {
        "name": "node-1", "account": "pool_p1", "instance_type": "8xH200",
        "startup_script": "#!/bin/sh\nexec longshore agent\n",
    }  # fmt: skip
    return MachineRequest.model_validate({**fields, **changed})


async def test_a_machine_starts_with_its_script(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"GET {V2}/instances", page())
    server.on(f"GET {V2}/images", body("sfcompute_images"))
    started = body("sfcompute_instance", status="awaiting_allocation")
    server.on(f"POST {V2}/instances", Reply(started, 201))
    found = await sfcompute.start_machine(machine())
    assert (found.id, found.state, found.gpus) == ("inst_i1", MachineState.STARTING, 8)
    sent = server.requests[-1].json
    assert base64.b64decode(sent.pop("cloud_init_user_data")).startswith(b"#!/bin/sh")
    assert sent == {
        "name": "node-1", "pool": "pool_p1", "image": "image_mine", "instance_sku": "isku_cedar",
    }  # fmt: skip


@pytest.mark.parametrize("trouble", [Silence(), Reply({}, 502), Reply({}, 409)])
async def test_a_machine_whose_answer_was_lost_is_found_and_not_started_twice(
    server: ScriptedHTTP, sfcompute: SFCompute, sleeps: Sleeps, trouble: Silence | Reply
):
    lists = [page(), page(), page(body("sfcompute_instance"))]
    server.on(f"GET {V2}/instances", *(lists if not isinstance(trouble, Reply) else lists[1:]))
    server.on(f"GET {V2}/images", body("sfcompute_images"))
    server.on(f"POST {V2}/instances", trouble)
    assert (await sfcompute.start_machine(machine())).id == "inst_i1"
    assert len(server.seen(f"POST {V2}/instances")) == 1


async def test_a_machine_that_is_not_found_stays_uncertain(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    server.on(f"GET {V2}/instances", page())
    server.on(f"GET {V2}/images", body("sfcompute_images"))
    server.on(f"POST {V2}/instances", Reset())
    with pytest.raises(MarketAwayError) as raised:
        await sfcompute.start_machine(machine())
    assert raised.value.uncertain
    assert len(server.seen(f"POST {V2}/instances")) == 1


async def test_a_machine_starts_on_the_sku_whose_time_is_free(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    birch = {"id": "isku_birch"}
    running = [
        body("sfcompute_instance", id=f"i{n}", name=f"n{n}", instance_sku=birch) for n in (1, 2)
    ]
    server.on(f"GET {V2}/instances", page(*running))
    server.on(f"GET {V2}/pools/pool_p1", body("sfcompute_pool"))
    server.on(f"GET {V2}/images", page(), body("sfcompute_images"))
    server.on(f"POST {V2}/instances", Reply(body("sfcompute_instance"), 201))
    await sfcompute.start_machine(machine(instance_type="8xH100"))
    assert server.requests[-1].json["instance_sku"] == "isku_alder"
    assert server.seen(f"GET {V2}/images")[1].query["workspace"] == [
        "sfc:workspace:sfcompute:public"
    ]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("awaiting_allocation", MachineState.STARTING),
        ("running", MachineState.READY),
        ("failed", MachineState.FAILED),
        ("terminated", MachineState.ENDED),
        ("reticulating", MachineState.STARTING),
    ],
)
async def test_every_state_of_a_machine_is_known(
    server: ScriptedHTTP, sfcompute: SFCompute, status: str, state: MachineState
):
    server.on(f"GET {V2}/instances/inst_i1", body("sfcompute_instance", status=status))
    server.on(f"GET {V2}/instances", page(body("sfcompute_instance", status=status)))
    found = await sfcompute.machine("inst_i1")
    assert (found.state, found.native_state) == (state, status)
    assert len(await sfcompute.machines()) == (state is not MachineState.ENDED)


async def test_stopping_what_has_gone_is_no_error(server: ScriptedHTTP, sfcompute: SFCompute):
    path = f"{V2}/instances/inst_i1"
    refusal = Reply({"error": {"message": "not now"}}, 409)
    server.on(f"POST {path}/terminate", Reset(), Reply({}), Reply({}, 404), refusal, refusal)
    ended = body("sfcompute_instance", status="terminated")
    server.on(f"GET {path}", ended, body("sfcompute_instance"))
    server.on(f"GET {V2}/instances", page())
    for _ in range(3):
        await sfcompute.stop_machine("inst_i1")
    with pytest.raises(OrderConflictError, match="not now"):
        await sfcompute.stop_machine("inst_i1")
