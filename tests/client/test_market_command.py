"""`longshore market` and live prices, against a simulated market over HTTP."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from pydantic import SecretStr

from longshore.activities.database import Database
from longshore.activities.markets.memory import MarketMemory
from longshore.models.money import micro_of
from tests.client.conftest import Ran
from tests.support.market import RunningMarket, running_market
from tests.support.market_books import a_book, every, recommended

ROOT = Path(__file__).parents[2]
CLI = Callable[..., Ran]
T = TypeVar("T")


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No market, and no stack either."""
    monkeypatch.setenv("LONGSHORE_STATE_DIR", str(tmp_path))


@pytest.fixture
def market(nothing: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningMarket]:
    """Starts a simulated market with the worked example; the command line uses it; 0.02 s."""
    with running_market() as market:
        market.book(worked_example=True)
        settings = market.settings()
        for name in ("sfcompute", "prime"):
            token = getattr(settings, f"{name}_token")
            assert isinstance(token, SecretStr)
            monkeypatch.setenv(f"LONGSHORE_{name.upper()}_URL", market.url)
            monkeypatch.setenv(f"LONGSHORE_{name.upper()}_TOKEN", token.get_secret_value())
        yield market


@pytest.mark.usefixtures("nothing")
def test_without_a_market_it_says_what_to_do(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    for args in (("market",), ("market", "--watch"), ("price", "--gpus", "8")):
        ran = cli(*args)
        assert (ran.code, ran.out) == (66, "")
        assert ran.err.startswith("error: no market is configured. Start a simulated one with ")
    listed = cli("market", "providers")
    assert listed.code == 0
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [
        ["prime", "no"], ["sfcompute", "no"],
    ]  # fmt: skip
    monkeypatch.setenv("LONGSHORE_MARKET", "off")
    assert cli("market").err.startswith("error: markets are off")


def test_the_books_of_all_markets_are_shown_as_plain_lines(
    cli: CLI, market: RunningMarket
) -> None:
    ran = cli("market", "--nodes", "8")
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    lines = ran.out.splitlines()
    (head,) = [line for line in lines if " per GPU-hour  for " in line]
    assert "for 64 GPUs of 8xH100 at sfcompute (simulated) in us-west" in head
    (marked,) = [line for line in lines if line.endswith("← limit")]
    assert " 224 " in marked
    assert "NO QUOTE  8xH100 at prime: prime does not trade 8xH100" in lines
    assert "liquidity  432 GPUs asked, 120 bid" in lines


def test_the_books_as_json(cli: CLI, market: RunningMarket) -> None:
    ran = cli("market", "--nodes", "8", "--json", "--provider", "sfcompute")
    (said,) = json.loads(ran.out)
    assert (said["provider"], said["simulated"], said["optimal_index"]) == ("sfcompute", True, 2)
    assert said["metadata"] == {"required_gpus": 64, "node_count": 8, "gpus_per_node": 8}


def test_a_warning_stands_with_its_book(cli: CLI, market: RunningMarket) -> None:
    ran = cli("market", "--nodes", "80")
    assert ran.code == 0
    assert "warning: insufficient: the asks hold 432 of the 640 GPUs needed" in ran.out


def test_an_empty_market_has_no_price(cli: CLI, market: RunningMarket) -> None:
    market.book()
    ran = cli("market", "--provider", "sfcompute")
    assert ran.code == 69
    assert ran.out.startswith("NO QUOTE  8xH100 at sfcompute")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--provider", "nobody"], "market 'nobody' is not configured; these are: prime, sfc"),
        (["--instance-type", "many"], "--instance-type: expected an instance type such as"),
        (["--from", "2030-01-01T00:00:00Z"], "say for how long too"),
    ],
)
def test_wrong_options_are_named(
    cli: CLI, market: RunningMarket, args: list[str], says: str
) -> None:
    ran = cli("market", *args)
    assert ran.code in (2, 66)
    assert says in " ".join(ran.err.replace("│", " ").split())


def test_providers_say_who_we_are_there(cli: CLI, market: RunningMarket) -> None:
    ran = cli("market", "providers", "--json")
    found = {each["name"]: each for each in json.loads(ran.out)["configured"]}
    assert set(found) == {"prime", "sfcompute"}
    account = found["sfcompute"]["account"]
    assert (account["simulated"], account["balance"]) == (True, micro_of("10000"))
    assert found["sfcompute"]["capabilities"]["order_book"]
    shown = cli("market", "providers").out
    assert "sfcompute simulated  yes" in shown
    assert "$10,000.00" in shown
    assert market.token not in ran.out + shown


def test_a_wrong_token_is_trouble_with_one_market(
    cli: CLI, market: RunningMarket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_PRIME_TOKEN", "of-nobody")
    found = json.loads(cli("market", "providers", "--json").out)["configured"]
    assert [each["account"] is None for each in found] == [True, False]
    assert found[0]["trouble"]


def test_a_live_price_is_that_of_the_cheapest_market(cli: CLI, market: RunningMarket) -> None:
    ran = cli("price", "--node-count", "8")
    assert ran.code == 0
    assert "at sfcompute (simulated)" in ran.out.splitlines()[0]
    assert ran.err == ("note: 64 GPUs of 8xH100 at prime: no quote, prime does not trade 8xH100\n")
    said = json.loads(cli("price", "--gpus", "60", "--json").out)
    assert (said["optimal_index"], said["bought_gpus"], said["provider"]) == (2, 64, "sfcompute")
    assert cli("price", "--gpus", "8", "--provider", "prime").code == 69
    assert cli("price", "--gpus", "8", "--provider", "prime", "--book", "x").code == 2


def test_watch_prints_a_line_for_each_change(market: RunningMarket) -> None:
    watching = subprocess.Popen(
        [
            sys.executable, "-m", "longshore.client.cli",
            "market", "--watch", "--provider", "sfcompute",
        ],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert watching.stdout
        first = watching.stdout.readline()
        assert "8 GPUs of 8xH100 at sfcompute (simulated): limit $" in first
        market.book()
        assert "no quote" in watching.stdout.readline()
    finally:
        watching.terminate()
        watching.communicate(timeout=60)


async def test_what_was_shown_is_remembered(
    cli: CLI, market: RunningMarket, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_DATABASE_URL", database_url)
    assert (await asyncio.to_thread(cli, "market", "--nodes", "8")).code == 0
    since = datetime.now(UTC) - timedelta(hours=1)
    (made,) = await _with_memory(database_url, lambda memory: memory.recommendations(since))
    assert (made.gpus, made.source.value, made.simulated) == (64, "cli", True)


async def test_history_shows_prices_and_how_limits_fared(
    cli: CLI, nothing: None, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_DATABASE_URL", database_url)
    nothing_yet = await asyncio.to_thread(cli, "market", "history")
    assert (nothing_yet.code, nothing_yet.out) == (0, "")
    assert nothing_yet.err.startswith("Nothing is known of 8xH100 since ")

    async def fill(memory: MarketMemory) -> None:
        moments = every(timedelta(minutes=10), datetime.now(UTC), 3)
        for at, lowest in zip(moments, ("2.00", "1.60", "3.00"), strict=True):
            book = a_book(at, lowest, simulated=True)
            await memory.store(book, [recommended(book)])

    await _with_memory(database_url, fill)
    shown = await asyncio.to_thread(cli, "market", "history", "--since", "1h")
    lines = shown.out.splitlines()
    assert [line.split("  ")[2].split(" (")[0] for line in lines[:3]] == [
        "ask $2.00", "ask $1.60", "ask $3.00",
    ]  # fmt: skip
    assert lines[-1].split()[:7] == ["market", "(simulated)", "8xH100", "1-8", "3", "2", "100%"]
    said = json.loads((await asyncio.to_thread(cli, "market", "history", "--json")).out)
    assert said["quality"][0]["made"] == 3
    assert sum(point["books"] for point in said["points"]) == 3


async def _with_memory(url: str, use: Callable[[MarketMemory], Awaitable[T]]) -> T:
    database = Database(url)
    try:
        return await use(MarketMemory(database))
    finally:
        await database.close()
