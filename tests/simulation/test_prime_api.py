"""The cloud's HTTP surface, as its documentation and its clients describe it."""

from collections.abc import Iterator
from typing import Any

import pytest

from longshore.models.money import MICRO
from longshore.simulation.market.background import Profile
from longshore.simulation.market.prime_api import is_over
from tests.support.market import Json, RunningMarket, running_market
from tests.support.market_shop import HOUR, V1, Shop, ok


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Starts a simulated market, and yields a shop at it; 0.02 s."""
    with running_market(Profile.CALM) as market:
        yield Shop(market)


def test_offers_are_rows_with_one_price_for_all_of_their_gpus(shop: Shop):
    rows = {row["gpuCount"]: row for row in shop.rows(gpu_type="H100_80GB") if not row["isSpot"]}
    assert {1, 2, 4, 8} <= set(rows)
    dearer = price(rows[8]) / price(rows[1])
    assert 5 < dearer < 11
    assert {row["prices"]["currency"] for row in shop.rows()} == {"USD", "EUR"}
    assert any(row["isSpot"] for row in shop.rows())
    assert any(row["prepaidTime"] for row in shop.rows(gpu_count=8))


def test_multi_node_rows_have_a_list_of_their_own(shop: Shop):
    singles = ok(shop.http.get(f"{V1}/availability/gpus"))["items"]
    clusters = ok(shop.http.get(f"{V1}/availability/multi-node"))["items"]
    assert max(row["gpuCount"] for row in singles) == 8
    assert {row["gpuCount"] for row in clusters} <= {16, 32}
    assert clusters


def test_pages_and_filters(shop: Shop):
    first = ok(shop.http.get(f"{V1}/availability/gpus", params={"page_size": 10}))
    last = ok(shop.http.get(f"{V1}/availability/gpus", params={"page": 99, "page_size": 10}))
    assert (len(first["items"]), last["items"]) == (10, [])
    assert first["totalCount"] == last["totalCount"] > 20
    rows = shop.rows(regions=["eu_north"], gpu_count=4)
    assert rows
    assert {(row["region"], row["gpuCount"]) for row in rows} == {("eu_north", 4)}
    wrong = shop.http.get(f"{V1}/availability/gpus", params={"page_size": 101})
    assert (wrong.status_code, wrong.json()["errors"][0]["param"]) == (422, "page_size")
    summary = ok(shop.http.get(f"{V1}/availability/gpu-summary"))
    assert summary["H100_80GB"]["8"]["cheapest"]["onDemand"] > 8


def test_prices_and_stock_change_within_minutes(shop: Shop):
    before = shop.rows()
    shop.market.advance(200)
    after = shop.rows()
    assert before != after
    assert {row["cloudId"] for row in before} != {row["cloudId"] for row in after}


def test_a_steady_market_goes_on_to_offer_what_it_opened_with():
    with running_market(Profile.CALM, steady=True) as market:
        shop = Shop(market)
        before = shop.rows()
        market.advance(2 * HOUR)
        assert shop.rows() == before
        market.fault("price_spike")
        assert shop.rows() != before


def test_many_spikes_raise_prices_no_further_than_three_times_their_mean():
    with running_market(Profile.CALM, steady=True) as market:
        shop = Shop(market)
        before = {row["cloudId"]: price(row) for row in shop.rows(gpu_type="H100_80GB")}
        for _ in range(30):
            market.fault("price_spike")
        after = {row["cloudId"]: price(row) for row in shop.rows(gpu_type="H100_80GB")}
        both = before.keys() & after.keys()
        assert both
        assert all(1.8 * before[row] < after[row] < 4 * before[row] for row in both)


def test_a_pod_comes_up_runs_by_the_minute_and_ends_in_the_history(shop: Shop):
    row = cheap(shop)
    shop.market.knobs(pod_start_seconds=100)
    made = shop.rent(row, name="job-7")
    assert (made.status_code, made.json()["status"]) == (200, "PROVISIONING")
    pod_id = made.json()["id"]
    seen: list[tuple[str, str, bool]] = []
    for _ in range(11):
        pod = shop.pod(pod_id)
        now = (pod["status"], pod["installationStatus"], pod["sshConnection"] is not None)
        if now not in seen:
            seen.append(now)
        shop.market.advance(10)
    assert seen == [
        ("PROVISIONING", "PENDING", False),
        ("PENDING", "PENDING", False),
        ("ACTIVE", "ACTIVE", False),
        ("ACTIVE", "FINISHED", True),
    ]
    shop.market.advance(HOUR)
    assert ok(shop.http.delete(f"{V1}/pods/{pod_id}")) == {"status": "TERMINATED"}
    shown = shop.pod(pod_id)
    assert (shown["status"], "totalBilledPrice" in shown) == ("TERMINATED", False)
    shop.market.advance(61)
    assert shop.http.get(f"{V1}/pods/{pod_id}").status_code == 404
    assert shop.http.delete(f"{V1}/pods/{pod_id}").status_code == 404
    (ended,) = ok(shop.http.get(f"{V1}/pods/history"))["data"]
    minutes = 60  # from ACTIVE, in whole minutes: 60 s of 110 had passed before
    assert ended["totalBilledPrice"] == pytest.approx(price(row) * minutes / 60, abs=1e-6)
    wallet = ok(shop.http.get(f"{V1}/billing/wallet"))
    assert wallet["balance_usd"] == pytest.approx(10_000 - ended["totalBilledPrice"], abs=1e-6)
    assert wallet["total_billings"] == minutes


def test_two_identical_requests_make_two_pods(shop: Shop):
    row = cheap(shop)
    ids = {ok(shop.rent(row, name="same"))["id"] for _ in range(2)}
    listed = ok(shop.http.get(f"{V1}/pods/"))
    assert {pod["id"] for pod in listed["data"]} == ids
    assert listed["total_count"] == len(ids) == 2
    status = ok(shop.http.get(f"{V1}/pods/status", params={"pod_ids": sorted(ids)}))["data"]
    assert {each["podId"] for each in status} == ids


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"colour": "red"}, "pod.colour"),
        ({"gpuCount": "8"}, "pod.gpuCount"),
        ({"gpuCount": 0}, "pod.gpuCount"),
        ({"cloudId": None}, "pod.cloudId"),
        ({"maxPrice": -1}, "pod.maxPrice"),
        ({"envVars": [{"key": "A"}]}, "pod.envVars.0.value"),
    ],
)
def test_a_wrong_field_is_refused_by_name(shop: Shop, changes: dict[str, Any], param: str):
    answer = shop.rent(cheap(shop), **changes)
    assert (answer.status_code, answer.json()["errors"][0]["param"]) == (422, param)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cloudId": "gone"}, "no longer available"),
        ({"maxPrice": 0.01}, "max_price"),
        ({"image": "windows_xp"}, "not supported"),
    ],
)
def test_providers_refuse_with_a_sentence(shop: Shop, changes: dict[str, Any], text: str):
    answer = shop.rent(cheap(shop), **changes)
    assert answer.status_code == 400
    assert text in answer.json()["detail"]


def test_an_image_that_the_row_does_not_list_is_refused(shop: Shop):
    row = next(
        row for row in shop.rows(gpu_type="H100_80GB") if "custom_template" not in row["images"]
    )
    answer = shop.rent(row, image="custom_template", customTemplateId="any")
    assert (answer.status_code, answer.json()) == (
        400, {"detail": "image custom_template is not supported by the provider"},
    )  # fmt: skip
    assert shop.rent(row, image=row["images"][0]).status_code == 200


@pytest.mark.parametrize(
    ("provider", "missing", "said"),
    [
        ("hyperstack", "dataCenterId", "Missing field: data_center_id"),
        ("massedcompute", "maxPrice", "Missing field: max_price not specified"),
    ],
)
def test_some_providers_need_more_fields(shop: Shop, provider: str, missing: str, said: str):
    row = next(row for row in shop.rows() if row["provider"] == provider)
    answer = shop.rent(row, **{missing: None})
    assert (answer.status_code, answer.json()) == (400, {"detail": said})


def test_the_number_of_pods_and_the_wallet_have_limits(shop: Shop):
    shop.market.knobs(pod_cap=1)
    row = cheap(shop)
    ok(shop.rent(row))
    capped = shop.rent(row)
    assert (capped.status_code, "running instances" in capped.text) == (400, True)
    with running_market(Profile.CALM, balance=MICRO // 10) as market:
        poor = Shop(market)
        assert poor.rent(cheap(poor)).status_code == 402


def test_at_zero_balance_every_pod_goes_at_once():
    with running_market(Profile.CALM, balance=3 * MICRO) as market:
        shop = Shop(market)
        market.knobs(pod_start_seconds=1)
        row = next(row for row in shop.rows() if 0.8 < price(row) < 1.4)
        ids = {ok(shop.rent(row))["id"] for _ in range(2)}
        market.advance(4 * HOUR)
        assert ok(shop.http.get(f"{V1}/pods/"))["data"] == []
        ended = ok(shop.http.get(f"{V1}/pods/history"))["data"]
        assert {pod["id"] for pod in ended} == ids
        billed = sum(pod["totalBilledPrice"] for pod in ended)
        balance = ok(shop.http.get(f"{V1}/billing/wallet"))["balance_usd"]
        assert billed == pytest.approx(3 - balance, abs=1e-5)


def test_a_team_has_its_own_wallet_which_pays_for_its_pods(shop: Shop):
    shop.market.knobs(pod_start_seconds=1)
    body = {**shop.pod_body(cheap(shop), name="ours"), "team": {"teamId": "team-1"}}
    made = ok(shop.http.post(f"{V1}/pods/", json=body))
    assert (made["teamId"], ok(shop.rent(cheap(shop), name="mine"))["teamId"]) == ("team-1", None)
    shop.market.advance(HOUR)
    own = ok(shop.http.get(f"{V1}/billing/wallet"))
    team = ok(shop.http.get(f"{V1}/billing/wallet", params={"teamId": "team-1"}))
    assert (own["team_id"], team["team_id"]) == (None, "team-1")
    assert team["wallet_id"] == made["walletId"] != own["wallet_id"]
    assert own["balance_usd"] == team["balance_usd"] < 10_000
    assert {row["resource_id"] for row in team["recent_billings"]} == {made["id"]}
    ok(shop.http.delete(f"{V1}/pods/{made['id']}"))
    (row,) = ok(shop.http.get(f"{V1}/pods/history"))["data"]
    assert (row["teamId"], row["type"]) == ("team-1", "Instance")
    wrong = shop.http.post(f"{V1}/pods/", json={**body, "team": {}})
    assert (wrong.status_code, wrong.json()["errors"][0]["param"]) == (422, "team.teamId")


def test_an_empty_wallet_ends_the_pods_that_it_pays_for_alone():
    with running_market(Profile.CALM, balance=3 * MICRO) as market:
        shop = Shop(market)
        market.knobs(pod_start_seconds=1)
        row = next(row for row in shop.rows() if 0.8 < price(row) < 1.4)
        body = {**shop.pod_body(row), "team": {"teamId": "team-1"}}
        ids = [ok(shop.http.post(f"{V1}/pods/", json=body))["id"] for _ in range(2)]
        own = ok(shop.rent(row))["id"]
        market.advance(2 * HOUR)
        assert [pod["id"] for pod in ok(shop.http.get(f"{V1}/pods/"))["data"]] == [own]
        ended = ok(shop.http.get(f"{V1}/pods/history"))["data"]
        assert {pod["id"] for pod in ended} == set(ids)


def test_prepaid_rows_charge_their_hours_up_front(shop: Shop):
    row = next(row for row in shop.rows() if row["prepaidTime"])
    ok(shop.rent(row))
    balance = ok(shop.http.get(f"{V1}/billing/wallet"))["balance_usd"]
    assert 10_000 - balance == pytest.approx(24 * price(row), abs=1e-5)
    shop.market.advance(5 * HOUR)
    assert ok(shop.http.get(f"{V1}/billing/wallet"))["balance_usd"] == balance


def test_a_share_of_pods_fails_and_a_share_never_gets_ssh(shop: Shop):
    shop.market.knobs(pod_trouble=0.3, pod_start_seconds=10, spot_loss_per_hour=0)
    row = next(row for row in shop.rows() if price(row) < 0.6)
    for _ in range(40):
        ok(shop.rent(row))
    shop.market.advance(60)
    pods = ok(shop.http.get(f"{V1}/pods/"))["data"]
    failed = [pod for pod in pods if pod["status"] == "ERROR"]
    silent = [pod for pod in pods if pod["status"] == "ACTIVE" and not pod["sshConnection"]]
    assert 3 < len(failed) < 25
    assert 3 < len(silent) < 25
    assert len(pods) > len(failed) + len(silent)


def test_a_cluster_has_an_address_per_node(shop: Shop):
    rows = ok(shop.http.get(f"{V1}/availability/multi-node"))["items"]
    row = next(row for row in rows if row["gpuCount"] == 16)
    shop.market.knobs(pod_start_seconds=10)
    pod_id = ok(shop.rent(row))["id"]
    assert shop.pod(pod_id)["ip"] == [None, None]
    shop.market.advance(30)
    pod = shop.pod(pod_id)
    assert pod["clusterId"]
    assert len(pod["ip"]) == len(pod["sshConnection"]) == 2


def price(row: Json) -> float:
    return row["prices"]["communityPrice"] or row["prices"]["onDemand"]


def cheap(shop: Shop) -> Json:
    """Return the cheapest plain row: on demand, in dollars, nothing paid in advance."""
    plain = [
        row
        for row in shop.rows()
        if not row["isSpot"] and not row["prepaidTime"] and row["prices"]["currency"] == "USD"
    ]
    return min(plain, key=price)


def test_the_list_without_its_slash_leads_to_the_one_with_it(market: RunningMarket):
    answer = market.http.get(f"{V1}/pods")
    assert (answer.status_code, answer.headers["location"]) == (307, f"{market.url}{V1}/pods/")


def test_a_limit_of_just_the_price_is_enough_for_every_price_in_cents_and_0_is_none():
    for cents in range(1, 6000):
        assert not is_over(cents * 10_000, cents / 100)
        assert is_over(cents * 10_000 + 1, cents / 100)
    assert not is_over(MICRO, 0)
    assert not is_over(MICRO, None)


def test_a_limit_of_0_rents_as_one_that_is_left_out(shop: Shop):
    row = next(row for row in shop.rows(gpu_type="H100_80GB") if not row["isSpot"])
    assert ok(shop.rent(row, maxPrice=0))["status"] == "PROVISIONING"
