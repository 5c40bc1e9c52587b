"""Looks at real simulated markets: what is stored, what is reported, and that twice is once."""

import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.markets.memory import MarketMemory
from longshore.activities.markets.watch import MarketWatchActivities
from longshore.models.market_memory import (
    Compacted,
    MarketLookRequest,
    MarketWatchReport,
    PollOutcome,
    Source,
)
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.settings import Settings
from longshore.workflows.market import MarketWatchWorkflow
from tests.support.control import serving_control
from tests.support.local_stack import free_ports
from tests.support.market import RunningMarket, running_market
from tests.support.market_books import a_book, recommended

TYPE = "8xH100"
HOUR = timedelta(hours=1)


@pytest.fixture
def market() -> Iterator[RunningMarket]:
    """Starts a simulated market with the worked example on its book, and no offers; 0.02 s."""
    with running_market() as market:
        market.book(worked_example=True)
        yield market


@pytest.fixture
def watching(market: RunningMarket, settings: Settings, database_url: str) -> Settings:
    """Settings that use the simulated market and this test's own database."""
    return settings.model_copy(
        update={
            "database_url": SecretStr(database_url),
            "sfcompute_url": market.url, "sfcompute_token": SecretStr(market.token),
            "prime_url": market.url, "prime_token": SecretStr(market.token),
            "market_watch": (TYPE,),
        }
    )  # fmt: skip


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Opens a database of this test's own; 0.1 s."""
    database = Database(database_url)
    yield database
    await database.close()


def a_look(number: int = 1) -> MarketLookRequest:
    return MarketLookRequest(id=f"look-{number}")


async def look(database: Database, settings: Settings, number: int = 1) -> MarketWatchReport:
    return await MarketWatchActivities(database, settings).watch_markets(a_look(number))


async def count(database: Database, table: str) -> int:
    async with database.transaction() as connection:
        return await connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0


def since() -> datetime:
    return datetime.now(UTC) - HOUR


async def test_the_workflow_stores_books_and_limits_and_says_so(
    temporal: Client, watching: Settings, database: Database
):
    queue = f"{CONTROL_TASK_QUEUE}-{uuid.uuid4().hex[:8]}"
    async with serving_control(temporal, watching, task_queue=queue):
        handle = await temporal.start_workflow(
            MarketWatchWorkflow.run, id=f"market-watch-{queue}", task_queue=queue
        )
        report = await handle.result()
    by_market = {seen.provider: seen for seen in report.seen}
    assert set(by_market) == {"prime", "sfcompute"}
    stored = by_market["sfcompute"]
    assert (stored.outcome, stored.best_ask, stored.simulated) == (
        PollOutcome.STORED, 24_000_000, True,
    )  # fmt: skip
    assert set(stored.limits) == {8, 64}
    assert str(stored).startswith("8xH100 at sfcompute (simulated): lowest ask $24.00; limit $")
    assert by_market["prime"].outcome is PollOutcome.NO_QUOTE
    one_node, eight = await MarketMemory(database).recommendations(since())
    assert {one_node.gpus: one_node.limit, eight.gpus: eight.limit} == stored.limits
    assert (one_node.source, one_node.simulated, eight.sufficient) == (Source.WATCH, True, True)
    assert one_node.window is not None
    assert one_node.window.length == HOUR


async def test_a_repeated_look_stores_nothing_more(watching: Settings, database: Database):
    for _ in range(2):
        await look(database, watching)
    assert await count(database, "market_books") == 1
    assert await count(database, "market_recommendations") == 2


async def test_later_looks_judge_the_limits_of_earlier_ones(
    market: RunningMarket, watching: Settings, database: Database
):
    await look(database, watching, 1)
    market.book(_ask(10, 16))
    market.advance(60)
    await look(database, watching, 2)
    small, large = await MarketMemory(database).how_good(since())
    assert (small.size, small.made, small.judged, small.at_once) == ("1-8", 2, 1, 1)
    assert small.over_best == pytest.approx(1.4)  # 24 dollars, and 10 a minute later
    assert (large.size, large.simulated) == ("9-64", True)


async def test_a_market_that_is_away_does_not_hide_the_other(
    watching: Settings, database: Database
):
    (port,) = free_ports(1)
    away = watching.model_copy(update={"prime_url": f"http://127.0.0.1:{port}"})
    report = await look(database, away)
    outcomes = {seen.provider: seen.outcome for seen in report.seen}
    assert outcomes == {"prime": PollOutcome.AWAY, "sfcompute": PollOutcome.STORED}


async def test_wrong_credentials_and_wrong_types_are_reported_without_the_token(
    watching: Settings, database: Database
):
    token = "simulated-of-nobody"
    wrong = watching.model_copy(update={"sfcompute_token": SecretStr(token)})
    refused = next(s for s in (await look(database, wrong)).seen if s.provider == "sfcompute")
    assert refused.outcome is PollOutcome.REFUSED
    assert token not in refused.detail
    odd = watching.model_copy(update={"market_watch": ("some GPUs", "8xQ1", TYPE)})
    outcomes = {(s.provider, s.instance_type): s.outcome for s in (await look(database, odd)).seen}
    assert outcomes["sfcompute", "some GPUs"] is PollOutcome.REFUSED
    assert outcomes["sfcompute", "8xQ1"] is PollOutcome.NO_QUOTE
    assert outcomes["sfcompute", TYPE] is PollOutcome.STORED


async def test_without_a_market_nothing_is_done(
    settings: Settings, database: Database, database_url: str
):
    for mode in ("simulated", "off", "real"):
        report = await look(database, settings.model_copy(update={"market": mode}))
        assert report == MarketWatchReport()
        assert str(report) == "no market is configured"
    assert await count(database, "market_books") == 0


async def test_a_look_thins_out_what_is_old(watching: Settings, database: Database):
    memory, now = MarketMemory(database), datetime.now(UTC).replace(minute=30)
    for minute in range(3):
        book = a_book(now - 3 * 24 * HOUR + minute * timedelta(minutes=1))
        await memory.store(book, [recommended(book)])
    assert (await look(database, watching)).compacted == Compacted(thinned=4)


def _ask(dollars: float, nodes: int) -> dict[str, Any]:
    return {"side": "sell", "dollars_per_gpu_hour": dollars, "nodes": nodes}
