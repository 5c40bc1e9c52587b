"""Jobs of which nobody knows when they end, on PostgreSQL: since when each has run, and that what
waits behind them is not written anew in each cycle."""

from datetime import timedelta

from longshore.activities.database import clock
from longshore.activities.snapshot import load_running
from longshore.models.placement import RunningJob
from tests.support.ledger import Ledger

HOUR = timedelta(hours=1)


async def _ran(ledger: Ledger, time: str) -> None:
    await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await ledger.rows(
        "UPDATE placements SET placed_at = placed_at - CAST(:time AS interval)", time=time
    )
    await ledger.rows("ALTER TABLE placements ENABLE TRIGGER USER")


async def _running(ledger: Ledger) -> dict[str, RunningJob]:
    async with ledger.database.transaction() as connection:
        return {job.job_id: job for job in await load_running(connection, ledger.pool)}


async def test_it_is_read_since_when_a_job_has_run_of_which_nobody_knows_the_end(ledger: Ledger):
    await ledger.register(gpus=3)
    async with ledger.listening("unknown", "limited", "stated"):
        await ledger.enqueue("unknown", gpus=1)
        await ledger.enqueue("limited", gpus=1, max_duration="1d")
        await ledger.enqueue("stated", gpus=1, expected_duration="2h")
        assert (await ledger.cycle("first")).placed == 3
        await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
        await ledger.rows("UPDATE placements SET attained = interval '2 hours'")
        await _ran(ledger, "3 hours")
        async with ledger.database.transaction() as connection:
            now = await clock(connection)
        found = await _running(ledger)
    assert found["stated"].since is None
    for name in ("unknown", "limited"):
        since = found[name].since
        assert since is not None
        assert abs(now - since - 5 * HOUR) < timedelta(minutes=1)
    assert found["unknown"].latest is None
    latest = found["limited"].latest
    assert latest is not None
    assert abs(latest - now - 21 * HOUR) < timedelta(minutes=1)


async def test_a_cycle_without_a_change_writes_nothing(ledger: Ledger):
    await ledger.register(gpus=2)
    names = [f"waits-{number}" for number in range(3)]
    async with ledger.listening("runs", *names):
        await ledger.enqueue("runs", gpus=2)
        await ledger.cycle("first")
        await _ran(ledger, "3 hours")
        for number, name in enumerate(names):
            await ledger.enqueue(name, gpus=1 + number % 2)
        await ledger.cycle("second")
        await ledger.cycle("third")
        rows = "SELECT job_id, xmin::text, decision->>'estimated_start' AS start FROM queue"
        # As half a minute later, which is long enough for new words.
        await _ran(ledger, "30 seconds")
        await ledger.rows("UPDATE queue SET decided_at = decided_at - interval '30 seconds'")
        before = await ledger.rows(f"{rows} ORDER BY job_id")
        assert all(row["start"] for row in before)
        await ledger.cycle("fourth")
        assert await ledger.rows(f"{rows} ORDER BY job_id") == before


async def test_the_time_limit_of_an_element_ends_no_slot(ledger: Ledger):
    await ledger.register(gpus=1)
    async with ledger.listening("sweep.s1"):
        await ledger.enqueue("sweep.s1", gpus=1, max_duration="10m")
        await ledger.cycle("first")
        assert (await _running(ledger))["sweep.s1"].latest is not None
        await ledger.rows(
            "INSERT INTO arrays (id, elements, first, last, slots) VALUES ('sweep.s1', 9, 0, 8, 1)"
        )
        await ledger.rows(
            "INSERT INTO array_slots (array_id, number, job_id, generation, submitted_at)"
            " VALUES ('sweep.s1', 1, 'sweep.s1', 1, now())"
        )
        await _ran(ledger, "5 hours")
        found = (await _running(ledger))["sweep.s1"]
    assert found.since is not None
    assert found.latest is None
