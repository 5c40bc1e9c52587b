"""Which jobs of a queue wait for the price to fall, on a real database."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.prices.holds import keep_for_price
from longshore.activities.snapshot import load_queue
from longshore.activities.views import set_pool
from longshore.models.messages import CycleReply, HoldRequest
from longshore.models.packing import QueueOrder
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.price_series import PoolPrice, PriceSeries, Unknown
from tests.support.ledger import Ledger

HOUR = timedelta(hours=1)
WAITS = (True, True)
FREE = (False, False)
_ROW = """
    SELECT held, price_since IS NOT NULL AS waits, submitted_at, waited, told_reason,
           CAST(request->>'submitted_at' AS timestamptz) AS requested_at
      FROM queue WHERE job_id = :job
"""


async def price(ledger: Ledger, *dollars: float, ends_in: timedelta = HOUR, **pool: Any) -> None:
    """Let the pool's price be this from an hour ago on, and one hour each the next ones."""
    began = datetime.now(UTC) - HOUR / 2
    points = [(began + number * HOUR, round(each * 1e6)) for number, each in enumerate(dollars)]
    series = PriceSeries(
        points=tuple(points), ends_at=points[-1][0] + ends_in, whence="file prices.csv"
    )
    unknown = pool.pop("unknown", Unknown.START)
    source = PoolPrice(source="file prices.csv", unknown=unknown)
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, price=source, **pool), series)


async def row(ledger: Ledger, job: str) -> dict[str, Any]:
    (found,) = await ledger.rows(_ROW, job=job)
    return found


async def kept(ledger: Ledger, job: str) -> tuple[bool, bool]:
    found = await row(ledger, job)
    return found["held"], found["waits"]


async def cycle(ledger: Ledger, number: int, *jobs: str) -> CycleReply:
    async with ledger.listening(*jobs):
        return await ledger.cycle(f"cycle-{number}")


async def set_hold(ledger: Ledger, job: str, *, held: bool) -> None:
    key = PlacementKey(job_id=job, attempt=1)
    await ledger.run(ledger.queue.set_hold, HoldRequest(key=key, held=held))


async def test_it_waits_until_the_price_is_below_and_then_starts(ledger: Ledger):
    await ledger.register(gpus=1)
    await price(ledger, 2.6)
    await ledger.enqueue("cheap", start_below="$2.10/gpu-hour")
    assert await kept(ledger, "cheap") == WAITS, "nobody may plan it before a cycle has looked"
    reply = await cycle(ledger, 1, "cheap")
    assert (reply.placed, reply.queued) == (0, 0)
    found = await row(ledger, "cheap")
    assert found["told_reason"].startswith(
        "waits for a price below $2.10 a GPU-hour; now $2.60 (file prices.csv, "
    )
    await price(ledger, 2.1)
    assert (await cycle(ledger, 2, "cheap")).placed == 0, "2.10 is not below 2.10"
    await price(ledger, 2.09)
    assert (await cycle(ledger, 3, "cheap")).placed == 1


async def test_it_takes_over_time_run_when_its_price_has_come(ledger: Ledger):
    by_rank = PoolPacking(order=QueueOrder.ATTAINED_SERVICE)
    handed_to = "SELECT handed_to FROM jobs WHERE id = 'before'"
    await ledger.register(gpus=1)
    await price(ledger, 2.6, packing=by_rank)
    await ledger.enqueue("before", name="train")
    assert (await cycle(ledger, 1, "before")).placed == 1
    await ledger.finish("before")
    await ledger.enqueue("cheap", name="train", start_below="$2.10/gpu-hour")
    assert await ledger.value(handed_to) is None, "it may not start yet"
    await price(ledger, 2.0, packing=by_rank)
    assert (await cycle(ledger, 2, "cheap")).placed == 1
    assert await ledger.value(handed_to) == "cheap"


async def test_it_is_held_again_when_the_price_rises_before_it_has_started(ledger: Ledger):
    await price(ledger, 2.0)
    await ledger.enqueue("cheap", start_below="$2.10/gpu-hour")
    assert (await cycle(ledger, 1, "cheap")).queued == 1
    assert await kept(ledger, "cheap") == FREE
    await price(ledger, 3.0)
    assert (await cycle(ledger, 2, "cheap")).queued == 0
    assert await kept(ledger, "cheap") == WAITS
    async with ledger.database.transaction() as connection:
        entries = await load_queue(connection, ledger.pool)
    assert [entry.held for entry in entries] == [True], "nothing is bought or stopped for it"


async def test_its_age_stands_still_meanwhile(ledger: Ledger):
    await price(ledger, 2.6)
    await ledger.enqueue("cheap", start_below="$2.10/gpu-hour")
    before = await row(ledger, "cheap")
    await ledger.rows("UPDATE queue SET price_since = price_since - interval '3 hours'")
    await price(ledger, 2.0)
    await cycle(ledger, 1, "cheap")
    after = await row(ledger, "cheap")
    moved = after["submitted_at"] - before["submitted_at"]
    assert 3 * HOUR <= moved < 4 * HOUR
    assert after["requested_at"] == after["submitted_at"], "the planner goes by the request"
    assert after["waited"] == timedelta(0)


@pytest.mark.parametrize("released_at", [2.6, 2.0])
async def test_its_age_stands_still_also_where_its_user_holds_it_meanwhile(
    ledger: Ledger, released_at: float
):
    """What it had waited for its price became age once it was held, and let in again."""
    await price(ledger, 2.6)
    await ledger.enqueue("cheap", start_below="$2.10/gpu-hour")
    before = await row(ledger, "cheap")
    await ledger.rows("UPDATE queue SET price_since = price_since - interval '3 hours'")
    await set_hold(ledger, "cheap", held=True)
    await set_hold(ledger, "cheap", held=True)
    await price(ledger, released_at)
    await set_hold(ledger, "cheap", held=False)
    after = await row(ledger, "cheap")
    moved = after["submitted_at"] - before["submitted_at"]
    assert 3 * HOUR <= moved < 4 * HOUR
    assert after["requested_at"] == after["submitted_at"], "the planner goes by the request"


async def test_the_threshold_of_a_pool_is_that_of_all_its_jobs(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.enqueue("before")
    await price(ledger, 2.6, start_below="$2.10/gpu-hour")
    await ledger.enqueue("plain")
    await ledger.enqueue("dear", start_below="$9/gpu-hour")
    assert (await cycle(ledger, 1)).placed == 0
    assert [await kept(ledger, job) for job in ("before", "plain", "dear")] == [WAITS] * 3
    await price(ledger, 2.6)
    assert (await cycle(ledger, 2, "before", "plain", "dear")).placed == 2


async def test_starts_are_not_held_up_by_a_price_that_nobody_knows(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.enqueue("no-price", start_below="$2.10/gpu-hour")
    assert (await cycle(ledger, 1, "no-price")).placed == 1
    await price(ledger, 2.6, ends_in=HOUR / 4)
    await ledger.enqueue("ended", start_below="$2.10/gpu-hour")
    assert (await cycle(ledger, 2, "ended")).placed == 1


async def test_a_pool_may_have_them_wait_until_it_is_known(ledger: Ledger):
    await ledger.register(gpus=2)
    await price(ledger, 1.0, ends_in=HOUR / 4, unknown=Unknown.WAIT)
    await ledger.enqueue("ended", start_below="$2.10/gpu-hour")
    await ledger.enqueue("plain")
    assert (await cycle(ledger, 1, "ended", "plain")).placed == 1
    assert await kept(ledger, "ended") == WAITS
    await price(ledger, 2.0, unknown=Unknown.WAIT)
    assert (await cycle(ledger, 2, "ended")).placed == 1


async def test_the_next_cycle_comes_when_the_price_changes_for_somebody(ledger: Ledger):
    await price(ledger, 2.6, 2.5, 2.0)
    await ledger.enqueue("cheap", start_below="$2.10/gpu-hour")
    assert (await cycle(ledger, 1)).next_wake == timedelta(minutes=10), "in an hour and a half"
    await ledger.rows("UPDATE price_points SET at = at - interval '85 minutes'")
    wake = (await cycle(ledger, 2)).next_wake
    assert timedelta(minutes=4) < wake < timedelta(minutes=6)


async def test_a_hold_of_its_user_comes_first_and_its_price_after(ledger: Ledger):
    await price(ledger, 2.6)
    await ledger.enqueue("cheap", start_below="$2.10/gpu-hour")
    await set_hold(ledger, "cheap", held=True)
    assert await kept(ledger, "cheap") == (True, False)
    await price(ledger, 2.0)
    await cycle(ledger, 1)
    assert await kept(ledger, "cheap") == (True, False), "only its user lets it go on"
    await price(ledger, 2.6)
    await set_hold(ledger, "cheap", held=False)
    assert await kept(ledger, "cheap") == WAITS
    await price(ledger, 2.0)
    assert (await cycle(ledger, 2, "cheap")).queued == 1


async def test_a_later_attempt_has_had_its_price(ledger: Ledger):
    await price(ledger, 2.6)
    await ledger.enqueue("cheap", attempt=2, start_below="$2.10/gpu-hour")
    assert (await cycle(ledger, 1, "cheap")).queued == 1
    assert await kept(ledger, "cheap") == FREE


async def test_a_look_that_finds_nothing_new_writes_nothing(ledger: Ledger):
    await price(ledger, 2.6)
    for number in range(3):
        await ledger.enqueue(f"cheap-{number}", start_below="$2.10/gpu-hour")
    await cycle(ledger, 1, *(f"cheap-{number}" for number in range(3)))
    rows = "SELECT job_id, xmin::text AS version FROM queue ORDER BY job_id"
    before = await ledger.rows(rows)
    async with ledger.database.transaction() as connection:
        look = await keep_for_price(connection, ledger.pool)
    assert (look.told, look.released) == ((), 0)
    assert await ledger.rows(rows) == before
