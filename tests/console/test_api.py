"""The REST API over HTTP, between a simulated market and a real database."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from longshore.activities.database import Database
from longshore.activities.markets.memory import MarketMemory
from longshore.console.quotes import BOOK_KEPT
from longshore.models.market import Level, OrderBook
from longshore.models.settings import MarketInfo
from longshore.workers.processes import wait_until
from tests.support.console import RunningConsole, running_console
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket, running_market

NOW = datetime.now(UTC)


def book(console: RunningConsole, **query: Any) -> httpx.Response:
    return console.get("/orderbook", **{"instance_type": "8xH100", **query})


def prices(levels: Sequence[dict[str, Any]]) -> list[float]:
    """Return prices as people read them: the market's grid is finer, and its own."""
    return [round(level["price"], 4) for level in levels]


def fresh(console: RunningConsole, ready: Any, **query: Any) -> dict[str, Any]:
    """Return the book as soon as `ready` holds: what was read before is shown for a moment."""
    found: dict[str, Any] = {}

    def is_ready() -> bool:
        answer = book(console, **query)
        found.clear()
        found.update(answer.json(), status=answer.status_code, headers=dict(answer.headers))
        return ready(found)

    assert wait_until(is_ready, 60.0, 0.1), found
    return found


def test_the_example_of_the_documentation(console: RunningConsole, example: RunningMarket) -> None:
    body = fresh(console, lambda b: b.get("total_ask_liquidity") == 432, node_count=8)
    assert prices(body["asks"]) == [24.0, 24.5, 25.0, 25.5, 26.0, 27.0]
    assert [level["cumulative_quantity"] for level in body["asks"]] == [32, 96, 224, 272, 368, 432]
    assert prices(body["bids"]) == [23.0, 22.5, 22.0, 21.0]
    assert body["optimal_index"] == 2
    names = ("optimal_price", "spread", "marginal_price", "average_price")
    assert [round(body[name], 4) for name in names] == [25.0, 1.0, 24.5, 24.25]
    assert (body["total_ask_liquidity"], body["total_bid_liquidity"]) == (432, 120)
    assert body["metadata"] == {"required_gpus": 64, "node_count": 8, "gpus_per_node": 8}
    assert (body["sufficient"], body["warnings"]) == (True, [])
    assert (body["provider"], body["simulated"], body["no_quote"]) == ("sfcompute", True, None)
    now = datetime.fromtimestamp(example.now, UTC)  # the market's clock stands still
    assert abs(datetime.fromisoformat(body["last_updated"]) - now) < timedelta(minutes=5)


def test_one_node_where_none_is_named(console: RunningConsole, example: RunningMarket) -> None:
    body = fresh(console, lambda b: b.get("total_ask_liquidity") == 432)
    assert body["metadata"]["required_gpus"] == 8


def test_more_than_there_is_and_a_thin_book(
    console: RunningConsole, example: RunningMarket
) -> None:
    body = fresh(console, lambda b: b.get("total_ask_liquidity") == 432, node_count=100)
    assert (body["sufficient"], body["optimal_price"]) == (False, 24.0)
    assert body["average_price"] is None
    assert "insufficient" in body["warnings"][0]
    thin = fresh(console, lambda b: b.get("total_ask_liquidity") == 432, node_count=50)
    assert thin["sufficient"]
    assert thin["warnings"][0].startswith("thin")


def test_a_window_counts_what_holds_for_all_of_it(
    console: RunningConsole, market: RunningMarket
) -> None:
    hour = int(market.now) // 3600 * 3600
    short = {"side": "sell", "dollars_per_gpu_hour": 2, "nodes": 4, "end_at": hour + 4 * 3600}
    market.book(short, {"side": "sell", "dollars_per_gpu_hour": 3, "nodes": 4})
    fresh(console, lambda b: prices(b.get("asks", ())) == [2.0, 3.0], node_count=1, hours=1)
    body = fresh(console, lambda b: b.get("total_ask_liquidity") == 32, hours=24)
    assert prices(body["asks"]) == [3.0]
    start = (NOW + timedelta(days=1)).replace(microsecond=0)
    later = book(console, hours=2, **{"from": start.isoformat()}).json()
    assert prices(later["asks"]) == [3.0]


def test_an_empty_book_is_an_answer_without_a_price(
    console: RunningConsole, market: RunningMarket
) -> None:
    market.clear_faults()
    market.book()
    body = fresh(console, lambda b: b.get("no_quote"))
    assert (body["no_quote"]["reason"], body["optimal_price"]) == ("empty", None)
    assert (body["asks"], body["status"]) == ([], 200)


def test_a_type_that_nobody_trades(console: RunningConsole, example: RunningMarket) -> None:
    refused = book(console, instance_type="8xABACUS")
    assert refused.status_code == 404
    assert refused.json()["error"]["type"] == "unknown_instance_type"
    assert refused.json()["error"]["field"] == "instance_type"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"instance_type": "H100"}, "instance_type"),
        ({"instance_type": ""}, "instance_type"),
        ({"instance_type": "8x" + "H" * 100}, "instance_type"),
        ({"instance_type": "x" * 5000}, "instance_type"),
        ({"node_count": 0}, "node_count"),
        ({"node_count": 10**9}, "node_count"),
        ({"node_count": "many"}, "node_count"),
        ({"hours": 0}, "hours"),
        ({"hours": 10**6}, "hours"),
        ({"from": "2026-11-20T12:00:00", "hours": 1}, "from"),
        ({"from": "0001-01-01T00:00:00+14:00", "hours": 1}, "from"),
        ({"from": "2020-01-01T00:00:00Z", "hours": 1}, "from"),
        ({"from": "2999-01-01T00:00:00Z", "hours": 1}, "from"),
        ({"from": "2026-12-24T00:00:00Z"}, "hours"),
        ({"provider": "NO SUCH"}, "provider"),
    ],
)
def test_what_makes_no_sense_is_said(
    console: RunningConsole, query: dict[str, object], field: str
) -> None:
    refused = book(console, **query)
    assert refused.status_code == 422, refused.text
    error = refused.json()["error"]
    assert (error["type"], error["field"]) == ("invalid", field)
    assert error["message"].startswith(f"{field}: ")


def test_other_places_and_methods(console: RunningConsole) -> None:
    assert book(console, provider="nobody").status_code == 404
    missing = console.http.get("/no/such/place")
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "not_found"
    wrong = console.http.post("/orderbook")
    assert wrong.status_code == 405
    assert "GET" in wrong.headers["Allow"]


def test_a_market_that_is_away(console: RunningConsole, example: RunningMarket) -> None:
    example.fault("unavailable", times=-1, provider="sfcompute")
    body = fresh(console, lambda b: b["status"] == 503, instance_type="8xH200")
    assert body["error"]["type"] == "market_away"
    assert int(body["headers"]["retry-after"]) >= 1
    example.clear_faults()
    fresh(console, lambda b: b["status"] == 200, instance_type="8xH200")


def test_many_viewers_are_one_to_the_market(
    console: RunningConsole, example: RunningMarket
) -> None:
    """Each read of the market uses up one of the faults that are set."""
    fresh(console, lambda b: b.get("total_ask_liquidity") == 432, hours=48)
    example.fault("rate_limited", times=10_000, provider="sfcompute")
    before, began = example.happened("rate_limited"), time.monotonic()
    with ThreadPoolExecutor(8) as viewers:
        answers = list(viewers.map(lambda _: book(console, hours=72).status_code, range(40)))
    asked = example.happened("rate_limited") - before
    looks = 1 + (time.monotonic() - began) / BOOK_KEPT
    example.clear_faults()
    assert set(answers) == {503}
    assert 1 <= asked <= 4 * looks, asked  # its client tries each look four times


async def test_history(console: RunningConsole, console_database: str) -> None:
    database = Database(console_database)
    memory = MarketMemory(database)
    since = NOW - timedelta(hours=2)
    try:
        for minutes, ask in ((10, 2_000_000), (20, 2_200_000), (70, 3_000_000)):
            await memory.store(
                OrderBook(
                    provider="sfcompute",
                    instance_type="8xHISTORY",
                    asks=(Level(price=ask, gpus=64),),
                    bids=(Level(price=ask - 500_000, gpus=8),),
                    observed_at=since + timedelta(minutes=minutes),
                    simulated=True,
                )
            )
    finally:
        await database.close()
    answer = console.get(
        "/market/history", instance_type="8xHISTORY", since=since.isoformat(),
        until=NOW.isoformat(), points=2,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    first, second = answer.json()["points"]
    assert (first["ask"], first["ask_low"], first["ask_high"]) == (2.1, 2.0, 2.2)
    assert (first["books"], first["bid"], first["simulated"]) == (2, 1.6, True)
    assert (second["ask"], second["ask_gpus"], second["provider"]) == (3.0, 64, "sfcompute")
    other = console.get("/market/history", instance_type="8xHISTORY", provider="prime")
    assert other.json()["points"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"points": 0}, "points"),
        ({"points": 10**9}, "points"),
        ({"since": "2026-11-20T12:00:00Z", "until": "2026-11-20T11:00:00Z"}, "since"),
        ({"since": "1001-01-01T00:00:00Z"}, "since"),
        ({"until": "9999-01-01T00:00:00Z"}, "until"),
        ({"provider": "\x00"}, "provider"),
    ],
)
def test_a_history_that_makes_no_sense(
    console: RunningConsole, query: dict[str, object], field: str
) -> None:
    refused = console.get("/market/history", instance_type="8xH100", **query)
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["field"] == field


def test_providers(console: RunningConsole, example: RunningMarket) -> None:
    entries: dict[str, Any] = {}

    def are_reachable() -> bool:
        # A failure that an earlier test had set is kept for a minute.
        found = console.get("/market/providers").json()["providers"]
        entries.update({each["name"]: each for each in found})
        return all(each["reachable"] for each in found)

    assert wait_until(are_reachable, 120.0, 0.5), entries
    assert set(entries) == {"prime", "sfcompute"}
    sfcompute, prime = entries["sfcompute"], entries["prime"]
    assert (sfcompute["default"], prime["default"]) == (True, False)
    assert "8xH100" in sfcompute["instance_types"]
    assert sfcompute["capabilities"]["order_book"]
    assert sfcompute["simulated"]


@pytest.mark.exhaustive
def test_without_markets_and_database_it_says_what_to_do() -> None:
    """And it finds a simulated market that comes later, by its file in the state folder."""
    with temporary_folder() as folder, running_console(folder) as console:
        nothing = book(console)
        assert nothing.status_code == 503
        assert "longshore market simulate" in nothing.json()["error"]["message"]
        assert console.get("/market/providers").json() == {"providers": []}
        history = console.get("/market/history", instance_type="8xH100")
        assert history.status_code == 503
        assert "longshore up" in history.json()["error"]["message"]
        with running_market() as market:
            market.book(worked_example=True)
            info = MarketInfo(url=market.url, token=market.token, pid=os.getpid())
            (folder / "market.json").write_text(info.model_dump_json())
            fresh(console, lambda b: b.get("total_ask_liquidity") == 432)
