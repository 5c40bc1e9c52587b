"""What a cycle weighs on PostgreSQL before it preempts: who loses what, and prices."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.markets.memory import MarketMemory
from longshore.activities.views import set_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.market import Level, OrderBook
from longshore.models.pool import PoolSpec
from tests.support.ledger import Ledger

LONG = {"gpus": 2, "priority": 0, "expected_duration": "1000h"}
URGENT: dict[str, Any] = {"gpus": 2, "priority": 1, "expected_duration": "30m"}


@pytest.fixture
async def busy(ledger: Ledger) -> Ledger:
    """A pool that may buy, whose only node works on a job since ten hours, without a save."""
    async with ledger.database.transaction() as connection:
        spec = PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True))
        await set_pool(connection, spec)
    await ledger.register(gpus=2)
    await ledger.enqueue("long", **LONG)
    await ledger.place("long", gpus=(0, 1))
    await ledger.rows("DELETE FROM queue")
    # The database rewrites no placement; a test may not wait for ten hours.
    await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await ledger.rows(
        "UPDATE placements SET placed_at = placed_at - interval '10 hours',"
        " expected_seconds = 1000 * 3600"
    )
    await ledger.rows("ALTER TABLE placements ENABLE TRIGGER USER")
    return ledger


async def test_it_gives_way_where_nothing_is_known_to_be_cheaper(busy: Ledger):
    await _submit_urgent(busy)
    (row,) = await busy.rows("SELECT job_id, for_job, plan FROM preemptions")
    assert (row["job_id"], row["for_job"]) == ("long", "urgent")
    assert {way["kind"] for way in row["plan"]["ways"]} == {"preempt", "wait"}


async def test_what_is_stored_says_of_a_wait_the_start_that_is_told(busy: Ledger):
    """The plan counts with a longer one: the job runs for longer than it was to."""
    await busy.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await busy.rows("UPDATE placements SET expected_seconds = 3600")
    await busy.rows("ALTER TABLE placements ENABLE TRIGGER USER")
    await _submit_urgent(busy, priority=9)
    (row,) = await busy.rows(
        "SELECT plan, decision FROM preemptions d JOIN queue q ON q.job_id = d.for_job"
    )
    (wait,) = [way for way in row["plan"]["ways"] if way["kind"] == "wait"]
    start = datetime.fromisoformat(row["decision"]["estimated_start"])
    assert datetime.fromisoformat(wait["start"]) == start
    until = f"wait until {start:%Y-%m-%d %H:%M:%S} UTC, counted as 2h 3"
    assert wait["title"].startswith(until)


async def test_it_goes_on_where_buying_costs_less_than_it_would_lose(busy: Ledger):
    await _see_price(busy, 1_000_000)
    await _submit_urgent(busy)
    assert await busy.rows("SELECT job_id FROM preemptions") == []


async def test_a_price_that_is_too_high_saves_nobody_and_is_told(busy: Ledger):
    await _see_price(busy, 9_000_000)
    await _submit_urgent(busy)
    (row,) = await busy.rows("SELECT plan FROM preemptions")
    (buying,) = [way for way in row["plan"]["ways"] if way["kind"] == "buy"]
    assert buying["title"] == "buy 1 x 8xH100-80GB"
    assert buying["lost"]


@pytest.mark.parametrize("why", ["old", "stopped", "long wait"])
async def test_a_price_that_says_nothing_now_does_not_count(busy: Ledger, why: str):
    await _see_price(busy, 1_000_000, ago=timedelta(hours=1 if why == "old" else 0))
    if why == "stopped":
        await BuyingSwitch(busy.database).stop("for this test")
    await _submit_urgent(busy, since=timedelta(hours=1 if why == "long wait" else 0))
    assert len(await busy.rows("SELECT job_id FROM preemptions")) == 1


async def _submit_urgent(ledger: Ledger, since: timedelta = timedelta(0), **fields: Any) -> None:
    await ledger.enqueue("urgent", **(URGENT | fields))
    submitted = (datetime.now(UTC) - since).isoformat()
    await ledger.rows(
        "UPDATE queue SET submitted_at = CAST(:at AS timestamptz), request = request"
        " || jsonb_build_object('submitted_at', CAST(:at AS text)) WHERE job_id = 'urgent'",
        at=submitted,
    )
    await ledger.cycle("second")


async def _see_price(ledger: Ledger, ask: int, ago: timedelta = timedelta(0)) -> None:
    book = OrderBook(
        provider="sfcompute", instance_type="8xH100-80GB", asks=(Level(price=ask, gpus=64),),
        observed_at=datetime.now(UTC) - ago, simulated=True,
    )  # fmt: skip
    await MarketMemory(ledger.database).store(book)
