"""What the capacity database knows of a job that begins later."""

from datetime import UTC, datetime, timedelta

from longshore.activities.buying.demand import demand_of_late
from longshore.activities.queue_views import QueueViews
from longshore.activities.views import Views
from longshore.models.job_status import JobState
from longshore.models.messages import EnqueueRequest, HoldRequest
from longshore.models.placement import PlacementKey
from tests.support.ledger import SUBMITTED_AT, Ledger

HOUR = timedelta(hours=1)
_QUEUE = "SELECT job_id, held, begin_only, submitted_at, waited FROM queue ORDER BY job_id"


async def enqueue(ledger: Ledger, job: str, begin: str, *, by_user: bool = False) -> None:
    request = EnqueueRequest(
        job_id=job, attempt=1, spec=ledger.spec(begin=begin), submitted_at=SUBMITTED_AT,
        held=True, begin_only=not by_user,
    )  # fmt: skip
    assert (await ledger.run(ledger.queue.enqueue, request)).queued


async def let_in(ledger: Ledger, job: str) -> None:
    key = PlacementKey(job_id=job, attempt=1)
    await ledger.run(ledger.queue.set_hold, HoldRequest(key=key, held=False))


async def test_it_is_not_placed_before_and_its_age_counts_from_its_begin(ledger: Ledger):
    await ledger.register(gpus=1)
    await enqueue(ledger, "later", "1h")
    assert (await ledger.cycle("one")).placed == 0
    (row,) = await ledger.rows(_QUEUE)
    assert (row["held"], row["begin_only"]) == (True, True)
    assert row["submitted_at"] == SUBMITTED_AT + HOUR
    assert await ledger.value("SELECT submitted_at FROM jobs") == SUBMITTED_AT
    await let_in(ledger, "later")
    (row,) = await ledger.rows(_QUEUE)
    assert (row["held"], row["begin_only"], row["waited"]) == (False, False, timedelta(0))
    await ledger.enqueue("plain")  # submitted at the same time, so before the other's begin
    async with ledger.listening("plain"):
        assert (await ledger.cycle("two")).placed == 1
    assert [row["job_id"] for row in await ledger.rows(_QUEUE)] == ["later"]


async def test_lists_say_when_it_begins_and_whether_somebody_holds_it(ledger: Ledger):
    begin = datetime.now(UTC).replace(microsecond=0) + 30 * HOUR
    for job, by_user in (("alone", False), ("held", True)):
        await enqueue(ledger, job, begin.isoformat(), by_user=by_user)
    said = f"begins at {begin:%Y-%m-%d %H:%M}"
    found = {job.id: job for job in await Views(ledger.database).jobs()}
    assert {job.state for job in found.values()} == {JobState.HELD}
    assert {job.begins_at for job in found.values()} == {begin}
    assert (found["alone"].begin_only, found["held"].begin_only) == (True, False)
    assert found["alone"].reason.startswith(said)
    assert found["held"].reason.startswith(f"held; {said}")
    queue = {
        job.job_id: job for job in (await QueueViews(ledger.database).queue(ledger.pool)).jobs
    }
    assert queue["alone"].reason.startswith(said)
    assert queue["held"].reason.startswith(f"it is held; {said}")
    assert queue["alone"].waited < timedelta(minutes=1)


async def test_a_pool_needs_nothing_for_it_before_its_begin(ledger: Ledger):
    await enqueue(ledger, "later", (datetime.now(UTC) + HOUR).isoformat())
    await ledger.enqueue("plain")
    now = datetime.now(UTC)
    async with ledger.database.transaction() as connection:
        samples = await demand_of_late(connection, ledger.pool, timedelta(minutes=1), now)
        then = await demand_of_late(connection, ledger.pool, timedelta(0), now + 2 * HOUR)
    assert sum(each.queued for each in samples if each.at == samples[-1].at) == 1
    assert sum(each.queued for each in then) == 2


async def test_a_job_that_is_held_is_no_demand_that_machines_are_kept_for(ledger: Ledger):
    for job in ("waits", "held"):
        await ledger.enqueue(job, gpus=4)
    key = PlacementKey(job_id="held", attempt=1)
    queued: list[int] = []
    for held in (False, True, False):
        await ledger.run(ledger.queue.set_hold, HoldRequest(key=key, held=held))
        async with ledger.database.transaction() as connection:
            then = datetime.now(UTC) + HOUR
            samples = await demand_of_late(connection, ledger.pool, timedelta(0), then)
        queued.append(sum(each.queued for each in samples))
    assert queued == [8, 4, 8]
