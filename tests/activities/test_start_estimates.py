"""The first start that a waiting job is told stays on record, beside when it came."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from longshore.activities import later_starts
from longshore.activities.queue_views import QueueViews
from longshore.activities.views import Views
from longshore.models.durations import Learnt
from longshore.models.messages import HoldRequest
from longshore.models.placement import PlacementKey
from longshore.models.queue_view import StartErrors
from tests.support.ledger import Ledger

_ALL = "SELECT job_id, attempt, made_at, starts_at FROM start_estimates ORDER BY job_id"
_MINUTES = (
    "UPDATE start_estimates SET made_at = made_at - interval '30 min',"
    " starts_at = now() - interval '10 min' WHERE job_id = :job"
)


@pytest.fixture
async def busy(ledger: Ledger) -> AsyncIterator[Ledger]:
    """Two GPUs, a job on both for 20 minutes, and one that waits for them; 0.1 s."""
    await ledger.register(gpus=2)
    async with ledger.listening("runs", "waits"):
        await ledger.enqueue("runs", gpus=2, expected_duration="20m")
        await ledger.cycle("one")
        await ledger.enqueue("waits", gpus=2, expected_duration="20m")
        await ledger.cycle("two")
        yield ledger


async def _errors(ledger: Ledger) -> tuple[StartErrors, ...]:
    views = QueueViews(ledger.database)
    return (await views.start_errors(ledger.pool, timedelta(days=1))).rows


async def test_the_first_estimate_of_an_attempt_stays(busy: Ledger):
    (first,) = await busy.rows(_ALL)
    assert first["job_id"] == "waits"
    assert timedelta(minutes=19) < first["starts_at"] - first["made_at"] <= timedelta(minutes=20)
    # Another goes first: the job hears of its later start, and the first word stays on record.
    await busy.enqueue("higher", gpus=2, priority=9, expected_duration="2h")
    await busy.cycle("three")
    said = await busy.value(
        "SELECT CAST(decision->>'estimated_start' AS timestamptz) FROM queue"
        " WHERE job_id = 'waits'"
    )
    assert said > first["starts_at"] + timedelta(hours=1)
    found = {row["job_id"]: row for row in await busy.rows(_ALL)}
    assert found.keys() == {"higher", "waits"}
    assert found["waits"] == first


async def test_only_a_start_with_a_place_kept_is_ever_due(
    busy: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """What is told without one is an estimate, and no promise that others yield for."""
    monkeypatch.setattr(later_starts, "_EVERY", 0.0)
    await busy.rows(
        "UPDATE pools SET spec = jsonb_set(spec, '{packing,max_reservations}', '1')"
        " WHERE name = :pool", pool=busy.pool,
    )  # fmt: skip
    await busy.enqueue("wants-too", gpus=2, expected_duration="20m")
    await busy.cycle("three")
    (told,) = await busy.rows("SELECT * FROM start_estimates WHERE job_id = 'wants-too'")
    in_line = told["starts_at"] - told["made_at"]
    assert timedelta(minutes=39) < in_line <= timedelta(minutes=40)
    assert told["kept_until"] is None
    (job,) = await Views(busy.database).jobs(ids=("wants-too",))
    assert job.estimated_start == told["starts_at"]
    assert "no place is kept for it yet" in job.reason
    await busy.rows(_MINUTES, job="wants-too")
    await busy.finish("runs")
    async with busy.listening("wants-too"):
        await busy.cycle("four")
    assert "waits" in await _placed(busy)
    (first,) = await busy.rows("SELECT * FROM start_estimates WHERE job_id = 'wants-too'")
    assert first["kept_until"] > first["starts_at"], "of the start that is kept by now"


async def _placed(ledger: Ledger) -> set[str]:
    rows = await ledger.rows("SELECT job_id FROM placements WHERE ended_at IS NULL")
    return {row["job_id"] for row in rows}


async def test_it_is_held_against_when_the_job_started(busy: Ledger):
    assert await _errors(busy) == (), "its start is still to come"
    await busy.rows(_MINUTES, job="waits")
    (overdue,) = await _errors(busy)
    assert (overdue.jobs, overdue.waiting, overdue.later) == (1, 1, 1)
    await busy.finish("runs")
    await busy.cycle("three")
    (row,) = await _errors(busy)
    assert (row.within, row.jobs, row.waiting, row.later) == (timedelta(hours=1), 1, 0, 1)
    assert timedelta(minutes=10) <= row.median < timedelta(minutes=11)
    assert await _errors_since(busy, timedelta(minutes=20)) == ()


async def test_a_hold_forgets_it(busy: Ledger):
    """A job that its user holds does not start when it was told to, and nobody was wrong."""
    key = PlacementKey(job_id="waits", attempt=1)
    await busy.run(busy.queue.set_hold, HoldRequest(key=key, held=True))
    assert await busy.rows(_ALL) == []
    await busy.run(busy.queue.set_hold, HoldRequest(key=key, held=False))
    await busy.cycle("three")
    assert [row["job_id"] for row in await busy.rows(_ALL)] == ["waits"]


async def test_a_job_that_was_cancelled_as_it_waited_counts_for_nothing(busy: Ledger):
    await busy.rows(_MINUTES, job="waits")
    await busy.rows("DELETE FROM queue WHERE job_id = 'waits'")
    assert await _errors(busy) == ()


async def _errors_since(ledger: Ledger, over: timedelta) -> tuple[StartErrors, ...]:
    return (await QueueViews(ledger.database).start_errors(ledger.pool, over)).rows


async def test_a_range_is_stored_told_and_held_against_the_start(ledger: Ledger):
    """Of forty runs of 1 to 40 minutes one in ten ends within 4, and nine within 36."""
    await ledger.register(gpus=2)
    seconds = [60 * minutes for minutes in range(1, 41)]
    async with ledger.listening("runs", "waits"):
        await ledger.enqueue("runs", gpus=2)
        learnt = Learnt(runs=40, seconds=tuple(seconds)).model_dump_json()
        await ledger.rows("UPDATE queue SET learnt = CAST(:learnt AS jsonb)", learnt=learnt)
        await ledger.cycle("one")
        await ledger.enqueue("waits", gpus=2, expected_duration="20m")
        await ledger.cycle("two")
        (first,) = await ledger.rows("SELECT * FROM start_estimates")
        spread = first["earliest"] - first["made_at"], first["latest"] - first["made_at"]
        minutes = [round(each / timedelta(minutes=1)) for each in spread]
        assert minutes == [4, 36]
        assert first["earliest"] < first["starts_at"] < first["latest"]
        views = QueueViews(ledger.database)
        (queued,) = (await views.queue(ledger.pool)).jobs
        (job,) = await Views(ledger.database).jobs(ids=("waits",))
        assert queued.start_range is not None
        assert job.start_range == queued.start_range
        assert queued.start_range.latest == first["latest"]
        await ledger.rows(_MINUTES, job="waits")
        await ledger.finish("runs")
        await ledger.cycle("three")
    (row,) = await _errors(ledger)
    assert (row.with_range, row.in_range, row.before_range) == (1, 0, 1)
