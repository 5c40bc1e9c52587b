"""The client of Prime Intellect against bodies as its documentation has them."""

import base64
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.activities.providers.access import Access
from longshore.activities.providers.prime import Prime, json_number
from longshore.activities.providers.prime_reading import key_of, name_of, offers, order
from longshore.activities.providers.prime_shapes import Pod, Row
from longshore.models.errors import (
    AnswerError,
    CredentialsError,
    FundsError,
    GoneError,
    InvalidOrderError,
    MarketAwayError,
)
from longshore.models.market import (
    InstanceType,
    MachineRequest,
    MachineState,
    NoQuote,
    NoQuoteReason,
    Offer,
    OrderBook,
    OrderRequest,
    OrderState,
    Preview,
    Side,
)
from longshore.models.money import dollars_of
from tests.providers.told import Sleeps, body
from tests.support.scripted_http import Reply, Reset, ScriptedHTTP, Silence

API = "/api/v1"
GPUS, PODS, HISTORY = f"GET {API}/availability/gpus", f"GET {API}/pods/", f"GET {API}/pods/history"
CREATE = f"POST {API}/pods/"
H100 = InstanceType.parse("8xH100")


@pytest.fixture(autouse=True)
def market(server: ScriptedHTTP) -> Iterator[None]:
    server.on(f"GET {API}/availability/multi-node", body("prime_multi_node"))
    server.on(f"GET {API}/availability/gpu-summary", body("prime_summary"))
    yield
    assert server.unexpected == []


def pods(*found: Any, total: int | None = None) -> dict[str, Any]:
    return {"total_count": len(found) if total is None else total, "data": [*found]}


def pod(**changed: Any) -> dict[str, Any]:
    return body("prime_pod", **changed)


def ended(**changed: Any) -> dict[str, Any]:
    return pod(
        status="TERMINATED", terminatedAt="2026-09-21T14:00:00Z", totalBilledPrice=19.2,
        sshConnection=None, **changed,
    )  # fmt: skip


async def offer_of(server: ScriptedHTTP, prime: Prime, index: int = 3) -> Offer:
    server.on(GPUS, body("prime_gpus"))
    return (await prime.offers(H100))[index]


def take(offer: Offer, /, **changed: Any) -> OrderRequest:
    fields: dict[str, Any] = {
        "key": "purchase-1", "instance_type": offer.instance_type, "nodes": 1, "offer": offer,
        "limit": offer.price, "startup_script": "#!/bin/sh\nexec longshore agent\n",
    }  # fmt: skip
    return OrderRequest.model_validate({**fields, **changed})


async def test_the_account_has_a_balance_in_micro_dollars(server: ScriptedHTTP, prime: Prime):
    server.on(f"GET {API}/user/whoami", body("prime_whoami"), {"email": "a@example.com"})
    server.on(
        f"GET {API}/billing/wallet",
        body("prime_wallet"),
        Reply({"detail": "no"}, 403),
        body("prime_wallet", currency="EUR"),
    )
    account = await prime.account()
    assert (account.id, account.balance, account.simulated) == ("user_1", 42_123_456, True)
    assert (await prime.account()).id == "a@example.com"
    assert (await prime.account()).balance is None


async def test_a_bad_key_is_said(server: ScriptedHTTP, prime: Prime):
    server.on(f"GET {API}/user/whoami", Reply({"errors": [{"param": "x", "details": "bad"}]}, 401))
    with pytest.raises(CredentialsError, match="set LONGSHORE_PRIME_TOKEN"):
        await prime.account()


async def test_offers_are_priced_by_gpu_and_hour_cheapest_first(
    server: ScriptedHTTP, prime: Prime, caplog: pytest.LogCaptureFixture
):
    server.on(GPUS, body("prime_gpus"))
    with caplog.at_level(logging.INFO):
        found = await prime.offers(H100)
    assert [(o.native["provider"]["type"], o.price, o.spot, o.stock) for o in found] == [
        ("datacrunch", 1_000_000, True, "Available"),
        ("primecompute", 1_900_000, False, "Available"),
        ("runpod", 2_012_500, False, "Low"),
        ("lambdalabs", 2_400_000, False, "Available"),
    ]
    assert {o.instance_type for o in found} == {"8xH100-80GB"}
    assert found[1].prepaid == timedelta(hours=24)
    assert found[2].startup == timedelta(minutes=5)
    assert (found[3].cpus, found[3].ram, found[3].region) == (104, 752, "united_states")
    for reason in ("its price is in EUR", "it has no price", "there is no stock"):
        assert reason in caplog.text
    assert len({o.id for o in found}) == 4


async def test_every_type_and_size_is_offered(server: ScriptedHTTP, prime: Prime):
    server.on(GPUS, body("prime_gpus"))
    found = {offer.instance_type for offer in await prime.offers()}
    assert found == {"1xH100-80GB", "8xH100-80GB", "4xGB200-186GB"}
    known = {str(kind) for kind in await prime.instance_types()}
    assert known == {"1xH100-80GB", "8xH100-80GB", "4xGB200-186GB", "8xB300-262GB"}


@pytest.mark.parametrize(
    ("gpu_type", "memory", "kind"),
    [
        ("GB300", 288, "8xGB300-288GB"),
        ("GB300", None, "8xGB300"),
        ("GB300", 0, "8xGB300"),
        ("H100_80GB", 640, "8xH100-80GB"),  # of all GPUs: some rows were seen to say that
    ],
)
async def test_the_memory_of_a_gpu_is_what_its_name_says_else_what_the_row_says(
    server: ScriptedHTTP, prime: Prime, gpu_type: str, memory: int | None, kind: str
):
    row = {**body("prime_gpus")["items"][0], "gpuType": gpu_type, "gpuMemory": memory}
    server.on(GPUS, {"items": [row], "totalCount": 1})
    assert kind in {offer.instance_type for offer in await prime.offers()}


async def test_pages_are_read_to_the_count_or_an_empty_one(server: ScriptedHTTP, prime: Prime):
    rows = body("prime_gpus")["items"]
    pages = [{"items": rows[:1], "totalCount": 9}, {"items": rows[1:2], "totalCount": 9}]
    server.on(GPUS, *pages, {"items": [], "totalCount": 9})
    assert len(await prime.offers(H100)) == 2
    assert [r.query["page"] for r in server.seen(GPUS)] == [["1"], ["2"], ["3"]]


async def test_an_empty_list_is_read_again_and_held_against_the_summary(
    server: ScriptedHTTP, prime: Prime
):
    empty = {"items": [], "totalCount": 0}
    server.on(GPUS, empty, body("prime_gpus"), empty)
    assert len(await prime.offers(H100)) == 4
    with pytest.raises(MarketAwayError, match="summary has 2 types of GPU"):
        await prime.offers(H100)


async def test_an_empty_market_is_empty(server: ScriptedHTTP, access: Access):
    async with ScriptedHTTP() as bare:
        empty = {"items": [], "totalCount": 0}
        bare.on(GPUS, empty)
        bare.on(f"GET {API}/availability/gpu-summary", {})
        bare.on(f"GET {API}/availability/multi-node", Reply({"detail": "no"}, 403))
        prime = Prime(Access(bare.url, access.token, "simulated"))
        assert await prime.offers() == []
        await prime.aclose()


async def test_offers_read_as_a_book_without_spot(server: ScriptedHTTP, prime: Prime):
    server.on(GPUS, body("prime_gpus"))
    book = await prime.book(H100)
    assert isinstance(book, OrderBook)
    assert [(ask.price, ask.gpus, ask.lot) for ask in book.asks] == [
        (1_900_000, 8, 8),
        (2_400_000, 8, 8),
    ]
    assert (book.lot, book.bids, book.simulated) == (8, (), True)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [("8xB300", NoQuoteReason.EMPTY), ("8xA6000", NoQuoteReason.UNKNOWN_TYPE)],
)
async def test_no_offer_is_no_quote(
    server: ScriptedHTTP, prime: Prime, wanted: str, reason: NoQuoteReason
):
    server.on(GPUS, body("prime_gpus"))
    quote = await prime.book(InstanceType.parse(wanted))
    assert isinstance(quote, NoQuote)
    assert quote.reason is reason


async def test_a_preview_is_the_offer_as_it_is_now(server: ScriptedHTTP, prime: Prime):
    offer = await offer_of(server, prime)
    preview = await prime.preview(take(offer))
    assert isinstance(preview, Preview)
    assert preview.price == offer.price
    best = await prime.preview(take(offer, offer=None))
    assert isinstance(best, Preview)
    assert best.price == 1_900_000
    assert best.notices == ("1d are paid in advance",)
    gone = await prime.preview(take(offer.model_copy(update={"id": "gone"})))
    assert isinstance(gone, NoQuote)


async def test_an_order_repeats_the_row_under_its_name(server: ScriptedHTTP, access: Access):
    prime = Prime(access, team="team-1", template="tmpl-1")
    offer = await offer_of(server, prime, 3)
    server.on(PODS, pods())
    server.on(HISTORY, pods())
    server.on(CREATE, pod(status="PROVISIONING", installationStatus="PENDING", new=1))
    order = await prime.order(take(offer))
    assert (order.id, order.key, order.state) == ("pod_1", "purchase-1", OrderState.PENDING)
    sent = server.seen(CREATE)[0].json
    (variable,) = sent["pod"].pop("envVars")
    assert variable["key"] == "LONGSHORE_STARTUP"
    assert base64.b64decode(variable["value"]).startswith(b"#!/bin/sh")
    assert sent == {
        "pod": {
            "name": "purchase-1", "cloudId": "gpu_8x_h100", "gpuType": "H100_80GB",
            "socket": "SXM5", "gpuCount": 8, "security": "secure_cloud",
            "dataCenterId": "US-WEST-2", "country": "US", "diskSize": 500, "vcpus": 104,
            "memory": 752, "image": "custom_template", "customTemplateId": "tmpl-1",
            "maxPrice": 19.2,
        },
        "provider": {"type": "lambdalabs"},
        "team": {"teamId": "team-1"},
    }  # fmt: skip
    await prime.aclose()


async def test_a_row_with_other_images_takes_its_first(server: ScriptedHTTP, access: Access):
    prime = Prime(access)
    offer = await offer_of(server, prime, 2)
    assert (offer.native["pod"]["image"], offer.image) == ("cuda_12_4", "cuda_12_4")
    assert "dataCenterId" not in offer.native["pod"]
    await prime.aclose()


async def test_an_offer_where_no_agent_would_come_up_says_why(server: ScriptedHTTP, prime: Prime):
    rows = body("prime_gpus")["items"][:2]
    plain = {**rows[0], "cloudId": "plain", "images": ["ubuntu_22_cuda_12"]}
    server.on(GPUS, {"items": [*rows, plain], "totalCount": 3})
    found = {o.native["pod"]["cloudId"]: o for o in await prime.offers(H100)}
    works, without_variables = found["gpu_8x_h100"], found[rows[1]["cloudId"]]
    assert (works.unusable, works.image) == ("", "tmpl-1")
    assert without_variables.unusable.startswith(
        "of runpod, which the market's own client leaves out"
    )
    assert found["plain"].unusable == "whose `images` lack custom_template, for the template"
    for offer in (without_variables, found["plain"]):
        with pytest.raises(InvalidOrderError, match="offer: it is one"):
            await prime.order(take(offer))
    assert server.seen(CREATE) == []


async def test_without_a_template_nothing_is_bought_and_prices_are_shown(
    server: ScriptedHTTP, access: Access
):
    prime = Prime(access)
    offer = await offer_of(server, prime)
    assert prime.no_buying.startswith("nothing is bought there")
    for step in (prime.check_start, prime.order):
        with pytest.raises(InvalidOrderError, match="set LONGSHORE_PRIME_TEMPLATE"):
            await step(take(offer))
    assert isinstance(await prime.book(H100), OrderBook)
    assert server.seen(CREATE) == []
    await prime.aclose()


async def test_the_same_key_again_is_the_same_pod(server: ScriptedHTTP, prime: Prime):
    offer = await offer_of(server, prime)
    server.on(PODS, pods(), pods(pod()))
    server.on(HISTORY, pods())
    server.on(CREATE, pod())
    first = await prime.order(take(offer))
    assert await prime.order(take(offer)) == first
    assert len(server.seen(CREATE)) == 1


@pytest.mark.parametrize(
    "trouble",
    [Reset(), Silence(), Reply({}, 500), Reply(b'{"id": "po', 200), Reply({"odd": 1}, 200)],
)
async def test_a_pod_whose_answer_was_lost_is_found_although_the_list_lags(
    server: ScriptedHTTP, prime: Prime, sleeps: Sleeps, trouble: Reset | Silence | Reply
):
    offer = await offer_of(server, prime)
    server.on(PODS, pods(), pods(), pods(), pods(pod()))
    server.on(HISTORY, pods())
    server.on(CREATE, trouble)
    order = await prime.order(take(offer))
    assert order.id == "pod_1"
    assert len(server.seen(CREATE)) == 1
    assert sleeps == [1, 1]


async def test_what_is_not_found_stays_uncertain_and_is_looked_for_longer_next_time(
    server: ScriptedHTTP, prime: Prime, sleeps: Sleeps
):
    offer = await offer_of(server, prime)
    server.on(PODS, *[pods()] * 8, pods(pod()))
    server.on(HISTORY, pods())
    server.on(CREATE, Reset(), pod(id="pod_2"))
    with pytest.raises(MarketAwayError) as raised:
        await prime.order(take(offer))
    assert raised.value.uncertain
    assert len(sleeps) == 4
    assert (await prime.order(take(offer))).id == "pod_1"
    assert len(server.seen(CREATE)) == 1


async def test_a_request_that_did_not_arrive_is_not_uncertain(server: ScriptedHTTP, prime: Prime):
    offer = await offer_of(server, prime)
    server.on(PODS, pods())
    server.on(HISTORY, pods())
    server.on(CREATE, Reply({"detail": "slow down"}, 429, {"Retry-After": "4"}))
    with pytest.raises(MarketAwayError) as raised:
        await prime.order(take(offer))
    assert (raised.value.uncertain, raised.value.retry_after) == (False, 4)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Reply({"detail": "the selected offer is gone"}, 400), InvalidOrderError),
        (Reply({"errors": [{"param": "pod.image", "details": "bad"}]}, 422), InvalidOrderError),
        (Reply({"detail": "Payment required"}, 402), FundsError),
        (Reply({"errors": [{"param": "wallet", "details": "empty"}]}, 402), FundsError),
        (Reply(status=402), FundsError),
        (Reply({"detail": "Insufficient balance in your wallet"}, 400), FundsError),
        (Reply({"errors": [{"param": "team", "details": "insufficient funds"}]}, 422), FundsError),
    ],
)
async def test_a_refusal_is_said(
    server: ScriptedHTTP, prime: Prime, refusal: Reply, kind: type[Exception]
):
    offer = await offer_of(server, prime)
    server.on(PODS, pods())
    server.on(HISTORY, pods())
    server.on(CREATE, refusal)
    with pytest.raises(kind) as raised:
        await prime.order(take(offer))
    # Who follows the causes of an error comes to an end.
    assert raised.value.__cause__ is not raised.value


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"offer": None}, "offer"),
        ({"side": Side.SELL}, "side"),
        ({"nodes": 2}, "nodes"),
        ({"limit": 1_000_000}, "limit: the offer costs"),
    ],
)
async def test_an_order_that_cannot_be_is_not_sent(
    server: ScriptedHTTP, prime: Prime, changed: dict[str, Any], field: str
):
    offer = await offer_of(server, prime)
    with pytest.raises(InvalidOrderError, match=field):
        await prime.order(take(offer, **changed))
    assert server.seen(CREATE) == []


async def test_an_order_is_found_by_its_key_live_or_ended(server: ScriptedHTTP, prime: Prime):
    server.on(PODS, pods(pod(name="other"), pod(), total=2), pods())
    server.on(HISTORY, pods(), pods(ended()), pods())
    found = await prime.find_order("purchase-1")
    assert found is not None
    assert found.state is OrderState.FILLED
    over = await prime.find_order("purchase-1")
    assert over is not None
    assert (over.state, over.fills[0].cost, over.fills[0].price) == (
        OrderState.CANCELLED, 19_200_000, 2_400_000,
    )  # fmt: skip
    assert await prime.find_order("purchase-1") is None


@pytest.mark.parametrize(
    ("changed", "order_state", "machine_state"),
    [
        ({"status": "PROVISIONING"}, OrderState.PENDING, MachineState.STARTING),
        ({"status": "PENDING"}, OrderState.PENDING, MachineState.STARTING),
        ({}, OrderState.FILLED, MachineState.READY),
        ({"installationStatus": "ACTIVE"}, OrderState.FILLED, MachineState.STARTING),
        ({"installationStatus": "PENDING"}, OrderState.FILLED, MachineState.STARTING),
        ({"installationStatus": "ERROR"}, OrderState.FILLED, MachineState.FAILED),
        ({"sshConnection": None}, OrderState.FILLED, MachineState.STARTING),
        ({"sshConnection": "ubuntu@ -p 22"}, OrderState.FILLED, MachineState.STARTING),
        ({"sshConnection": "root@null -p 22"}, OrderState.FILLED, MachineState.STARTING),
        ({"sshConnection": [None]}, OrderState.FILLED, MachineState.STARTING),
        ({"sshConnection": ["u@192.0.2.1 -p 1", None]}, OrderState.FILLED, MachineState.READY),
        ({"status": "STOPPED"}, OrderState.FILLED, MachineState.FAILED),
        ({"status": "ERROR"}, OrderState.REJECTED, MachineState.FAILED),
        ({"status": "DELETING"}, OrderState.CANCELLED, MachineState.ENDING),
        ({"status": "TERMINATED"}, OrderState.CANCELLED, MachineState.ENDED),
        ({"status": "UNKNOWN"}, OrderState.PENDING, MachineState.STARTING),
        ({"status": "RETICULATING"}, OrderState.PENDING, MachineState.STARTING),
    ],
)
async def test_every_state_of_a_pod_is_known(
    server: ScriptedHTTP, prime: Prime,
    changed: dict[str, Any], order_state: OrderState, machine_state: MachineState,
):  # fmt: skip
    server.on(f"GET {API}/pods/pod_1", pod(**changed))
    server.on(HISTORY, pods())
    order, machine = await prime.order_by_id("pod_1"), await prime.machine("pod_1")
    assert (order.state, machine.state) == (order_state, machine_state)
    assert order.native_state == changed.get("status", "ACTIVE")
    assert machine.price == 2_400_000


async def test_a_machine_that_has_ended_is_found_in_the_history(
    server: ScriptedHTTP, prime: Prime
):
    server.on(f"GET {API}/pods/pod_1", Reply({"detail": "no such pod"}, 404))
    server.on(PODS, pods())
    server.on(HISTORY, pods(ended()), pods())
    machine = await prime.machine("pod_1")
    assert (machine.state, machine.billed) == (MachineState.ENDED, 19_200_000)
    assert machine.ended_at == datetime(2026, 9, 21, 14, tzinfo=UTC)
    with pytest.raises(GoneError):
        await prime.machine("pod_1")


@pytest.mark.parametrize("ended_at", ["2026-09-21T14:00:00Z", None])
async def test_a_row_of_the_history_has_ended_though_it_has_no_status(
    server: ScriptedHTTP, prime: Prime, ended_at: str | None
):
    row = {
        "id": "pod_1", "name": "purchase-1", "providerType": "lambdalabs", "type": "Instance",
        "createdAt": "2026-09-21T13:00:00Z", "terminatedAt": ended_at, "gpuName": "H100_80GB",
        "gpuCount": 8, "socket": "SXM5", "priceHr": 19.2, "userId": "user_1",
        "totalBilledPrice": 19.2,
    }  # fmt: skip
    server.on(f"GET {API}/pods/pod_1", Reply({"detail": "no such pod"}, 404))
    server.on(PODS, pods())
    server.on(HISTORY, pods(row))
    order, machine = await prime.order_by_id("pod_1"), await prime.machine("pod_1")
    assert (order.state, machine.state) == (OrderState.CANCELLED, MachineState.ENDED)
    assert ([fill.cost for fill in order.fills], machine.billed) == ([19_200_000], 19_200_000)


async def test_a_pod_that_is_denied_and_listed_is_there(server: ScriptedHTTP, prime: Prime):
    path, none = f"{API}/pods/pod_1", Reply({"detail": "no such pod"}, 404)
    server.on(f"GET {path}", none)
    server.on(f"DELETE {path}", none)
    server.on(HISTORY, pods())
    server.on(PODS, pods(pod()))
    assert (await prime.machine("pod_1")).state is MachineState.READY
    assert (await prime.order_by_id("pod_1")).id == "pod_1"
    with pytest.raises(GoneError):
        await prime.stop_machine("pod_1")


async def test_nothing_has_gone_where_the_list_is_denied_too(server: ScriptedHTTP, prime: Prime):
    for path in (f"GET {API}/pods/pod_1", PODS):
        server.on(path, Reply({"detail": "not found"}, 404))
    with pytest.raises(MarketAwayError):
        await prime.machine("pod_1")


async def test_all_pods_are_listed_whatever_count_the_list_gives(
    server: ScriptedHTTP, prime: Prime
):
    server.on(PODS, pods(pod(), total=9), pods(pod(id="p2", status="DELETING"), total=9), pods())
    assert [machine.id for machine in await prime.machines()] == ["pod_1"]
    assert [r.query["offset"] for r in server.seen(PODS)] == [["0"], ["1"], ["2"]]


async def test_orders_are_live_and_ended_ones_newest_first(server: ScriptedHTTP, prime: Prime):
    older = ended(id="pod_0", createdAt="2026-09-20T13:00:00+00:00")
    server.on(PODS, pods(pod()))
    server.on(HISTORY, pods(older, ended()))
    assert [order.id for order in await prime.orders()] == ["pod_1", "pod_0"]


async def test_stopping_is_repeated_and_what_has_gone_is_no_error(
    server: ScriptedHTTP, prime: Prime
):
    path = f"DELETE {API}/pods/pod_1"
    server.on(path, Reply({}, 500), Reply({}, 500), {"status": "DELETING"}, Reply({}, 404))
    server.on(PODS, pods())
    await prime.stop_machine("pod_1")
    assert len(server.seen(path)) == 3
    await prime.cancel_order("pod_1")


@given(
    st.decimals(min_value="0.0001", max_value=1000, places=6),
    st.integers(min_value=1, max_value=64),
)
def test_a_limit_at_the_price_of_an_offer_reaches_the_row_and_no_further(
    dollars: Decimal, gpus: int
):
    prices = {"onDemand": str(dollars), "currency": "USD"}
    row = {**body("prime_gpus")["items"][0], "gpuCount": gpus, "prices": prices}
    (offer,) = offers([Row.model_validate(row)], None, simulated=True)
    most = Decimal(json.dumps(json_number(dollars_of(offer.price * gpus))))
    assert dollars <= most < dollars + gpus * Decimal("0.000001")


async def test_an_offer_travels_as_json(server: ScriptedHTTP, prime: Prime):
    request = take(await offer_of(server, prime))
    assert OrderRequest.model_validate_json(request.model_dump_json()) == request
    assert "longshore agent" not in repr(request)


async def test_it_keeps_no_time_and_starts_no_machine_without_an_order(prime: Prime):
    assert not prime.capabilities.fixed_window
    with pytest.raises(InvalidOrderError):
        await prime.make_account("train")
    with pytest.raises(InvalidOrderError):
        await prime.start_machine(
            MachineRequest(name="n", account="a", instance_type="8xH100", startup_script="x")
        )


@pytest.mark.parametrize(
    "odd",
    [
        {"images": None}, {"provisioningTime": 2.5}, {"prices": None},
        {"prices": {"onDemand": 4e9, "communityPrice": None, "isVariable": False,
                    "currency": "USD"}},
    ],
)  # fmt: skip
async def test_a_row_of_another_shape_is_left_out_and_the_others_are_offered(
    server: ScriptedHTTP, prime: Prime, caplog: pytest.LogCaptureFixture, odd: dict[str, Any]
):
    first = body("prime_gpus")["items"][0]
    rows = [{**first, "cloudId": "odd", **odd}, first]
    server.on(GPUS, {"items": rows[:1], "totalCount": 2}, {"items": rows[1:], "totalCount": 2})
    with caplog.at_level(logging.INFO):
        found = await prime.offers(H100)
    assert [offer.native["pod"]["cloudId"] for offer in found] == ["gpu_8x_h100"]
    assert f"left out a row that is not as documented: {next(iter(odd))}" in caplog.text


async def test_rows_of_which_none_is_as_documented_name_the_field(
    server: ScriptedHTTP, prime: Prime
):
    odd = {**body("prime_gpus")["items"][0], "gpuCount": "lots"}
    server.on(GPUS, {"items": [odd], "totalCount": 1})
    with pytest.raises(AnswerError, match=r"items\.0\.gpuCount must be a whole number"):
        await prime.offers()


@pytest.mark.parametrize(
    ("key", "name"), [("p-e1b1c98561d6-1.1", "p-e1b1c98561d6-1-1"), ("p-32-r-1.12", "p-32-r-1-12")]
)
def test_a_pod_is_named_in_letters_digits_and_dashes_alone(key: str, name: str):
    assert (name_of(key), key_of(name), key_of(key)) == (name, key, key)


@pytest.mark.parametrize("name", ["", "theirs", "theirs-1", "p-1", "p-e1b1-1.1"])
def test_what_others_named_keeps_its_name(name: str):
    assert key_of(name) == name


@pytest.mark.parametrize(("billed", "costs"), [(19.2, [19_200_000]), (0, []), (None, [None])])
def test_what_an_ended_pod_cost_is_not_known_before_the_market_says_it(
    billed: float | None, costs: list[int | None]
):
    told = Pod.model_validate(ended() | {"totalBilledPrice": billed})
    assert [fill.cost for fill in order(told, simulated=False).fills] == costs


@pytest.mark.parametrize(
    ("changed", "costs"),
    [
        ({}, [None]),  # the bill may rise until it has ended
        ({"terminatedAt": "2026-09-21T14:00:00Z"}, [310_000]),
        ({"totalBilledPrice": 0}, []),
        ({"totalBilledPrice": None}, []),
    ],
)
def test_a_bill_counts_also_of_a_pod_that_failed(changed: dict[str, Any], costs: list[int | None]):
    told = Pod.model_validate(pod(status="ERROR", totalBilledPrice=0.31) | changed)
    found = order(told, simulated=False)
    assert (found.state, [fill.cost for fill in found.fills]) == (OrderState.REJECTED, costs)
