"""A job's own steps: into the queue, held, out of it, and its end. Each may come twice."""

import asyncio
import random
from datetime import timedelta

import pytest
from sqlalchemy import text
from temporalio.exceptions import ApplicationError

from longshore.activities.queue_rows import lock_job
from longshore.models.job_status import JobResult, JobState
from longshore.models.messages import EnqueueRequest, FinishRequest, HoldRequest, LeaseEnd
from longshore.models.placement import PlacementKey
from longshore.models.pool import Growth
from longshore.workers.stack import Stack
from tests.support.database_away import database_away
from tests.support.ledger import SUBMITTED_AT, WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually

_QUEUE = "SELECT job_id, attempt, held FROM queue ORDER BY job_id"


async def test_a_second_enqueue_changes_nothing_but_pokes_again(ledger: Ledger):
    await ledger.enqueue("a")
    before = await ledger.rows("SELECT * FROM queue")
    assert await ledger.pokes() == 1
    assert (await ledger.enqueue("a", delivery=2)).queued
    assert await ledger.rows("SELECT * FROM queue") == before
    assert await ledger.pokes() == 2, "the first delivery may not have got as far as its poke"


async def test_pokes_are_one_until_a_cycle_begins(ledger: Ledger):
    for job in ("a", "b", "c"):
        await ledger.enqueue(job)
    assert await ledger.pokes() == 1
    await ledger.cycle("1")
    await ledger.enqueue("d")
    assert await ledger.pokes() == 2


async def test_a_key_that_no_index_takes_is_refused_and_not_tried_again(ledger: Ledger):
    """The server calls that an error of operation, as if it were away."""
    request = EnqueueRequest(
        job_id="a", attempt=1, spec=ledger.spec(), submitted_at=SUBMITTED_AT,
        key=random.Random(1).randbytes(10_000).hex(),
    )  # fmt: skip
    reply = await ledger.run(ledger.queue.enqueue, request)
    assert not reply.queued
    assert "index row" in reply.refusal
    assert await ledger.rows(_QUEUE) == []


@pytest.mark.parametrize("gpus", [1, 99], ids=["same", "other"])
async def test_an_id_of_a_job_that_has_not_ended_is_no_other_s_to_queue_or_end(
    ledger: Ledger, gpus: int
):
    await ledger.register(gpus=2)
    await ledger.enqueue("a")
    await ledger.place("a", gpus=(0, 1))
    later = SUBMITTED_AT + timedelta(seconds=1)
    other = EnqueueRequest(job_id="a", attempt=1, spec=ledger.spec(gpus=gpus), submitted_at=later)
    reply = await ledger.run(ledger.queue.enqueue, other)
    assert (reply.queued, reply.other) == (False, True)
    assert "is not on record as ended" in reply.refusal
    result = JobResult(job_id="a", state=JobState.CANCELLED, attempts=0)
    key = PlacementKey(job_id="a", attempt=1)
    end = FinishRequest(key=key, reason=LeaseEnd.CANCELLED, result=result, unanswered=other)
    await ledger.run(ledger.queue.finish, end)
    assert await ledger.rows("SELECT ended_at FROM jobs") == [{"ended_at": None}]
    assert await ledger.rows("SELECT ended_at FROM placements") == [{"ended_at": None}]


async def test_a_key_that_another_job_has_is_refused_with_its_id(ledger: Ledger):
    requests = [
        EnqueueRequest(
            job_id=job, attempt=1, spec=ledger.spec(), submitted_at=SUBMITTED_AT, key="same"
        )
        for job in ("a", "b", "b")
    ]
    replies = [await ledger.run(ledger.queue.enqueue, request) for request in requests]
    assert [reply.queued for reply in replies] == [True, False, False]
    assert "its key 'same' is that of job a" in replies[1].refusal
    assert replies[2] == replies[1]
    keys = await ledger.rows("SELECT id, key FROM jobs ORDER BY id")
    assert keys == [{"id": "a", "key": "same"}, {"id": "b", "key": None}]


async def test_a_held_job_is_queued_and_pokes_nobody(ledger: Ledger):
    await ledger.enqueue("a", held=True)
    assert await ledger.rows(_QUEUE) == [{"job_id": "a", "attempt": 1, "held": True}]
    assert await ledger.pokes() == 0


async def test_an_enqueue_after_its_attempt_was_placed_changes_nothing(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        assert (await ledger.cycle("1")).placed == 1
        assert (await ledger.enqueue("a", delivery=2)).queued
        assert await ledger.rows(_QUEUE) == []
        await ledger.release("a")
        await ledger.enqueue("a", delivery=3)
        assert await ledger.rows(_QUEUE) == [], "its attempt is over: only the next may queue"
        await ledger.enqueue("a", attempt=2)
        assert await ledger.rows(_QUEUE) == [{"job_id": "a", "attempt": 2, "held": False}]


async def test_an_enqueue_after_the_job_ended_changes_nothing(ledger: Ledger):
    await ledger.enqueue("a")
    await ledger.finish("a")
    await ledger.enqueue("a", delivery=2)
    await ledger.enqueue("a", attempt=2)
    assert await ledger.rows(_QUEUE) == []


async def test_an_enqueue_that_meets_its_own_placement_waits_for_it(ledger: Ledger):
    await ledger.register()
    await ledger.enqueue("a")
    async with ledger.database.transaction() as cycle:
        # A cycle takes the job out of the queue, and has not committed when the repeat comes.
        await cycle.execute(text("DELETE FROM queue WHERE job_id = 'a'"))
        for statement in _placement_of_a(ledger.pool):
            await cycle.execute(text(statement))
        repeat = asyncio.create_task(ledger.enqueue("a", delivery=2))
        await eventually(lambda: ledger.value(WAITING_FOR_LOCKS))
    assert (await repeat).queued
    assert await ledger.rows(_QUEUE) == []


async def test_a_job_that_no_node_of_a_fixed_pool_could_hold_is_refused(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.set_growth(Growth.FIXED)
    refused = await ledger.enqueue("a", gpus=3)
    assert not refused.queued
    assert refused == await ledger.enqueue("a", gpus=3, delivery=2)
    assert f"no node of pool {ledger.pool} could ever hold 3 x any GPU" in refused.refusal
    assert await ledger.value("SELECT count(*) FROM jobs") == 1, "its end is to be recorded"
    assert (await ledger.enqueue("b", gpus=2)).queued


@pytest.mark.parametrize(
    "taken",
    [
        "array_slots (array_id, number, job_id, generation, submitted_at)"
        " VALUES ('x', 1, 'b', 1, now())",
        "dag_jobs (dag_id, name, job_id) VALUES ('x', 'b', 'b')",
        "replicas (job_id, service, revision) VALUES ('b', 'x', 1)",
    ],
    ids=["slot", "dag", "replica"],
)
async def test_a_fixed_pool_without_nodes_takes_what_belongs_to_what_it_has_taken(
    ledger: Ledger, taken: str
):
    await ledger.set_growth(Growth.FIXED)
    assert "has no nodes, and is fixed" in (await ledger.enqueue("a")).refusal
    async with ledger.database.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(text(f"INSERT INTO {taken}"))
    assert (await ledger.enqueue("b")).queued
    assert (await ledger.enqueue("c", attempt=2)).queued


async def test_a_job_in_the_queue_of_a_fixed_pool_stays_at_a_repeat_after_its_node_has_gone(
    ledger: Ledger,
):
    await ledger.register()
    await ledger.set_growth(Growth.FIXED)
    assert (await ledger.enqueue("a")).queued
    await ledger.rows("UPDATE nodes SET state = 'GONE'")
    assert (await ledger.enqueue("a", delivery=2)).queued


async def test_a_hold_keeps_a_job_out_of_cycles_until_its_release(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        for _twice in range(2):
            await _set_hold(ledger, True)
        assert (await ledger.cycle("1")).queued == 0
        pokes = await ledger.pokes()
        await _set_hold(ledger, False)
        assert await ledger.pokes() == pokes + 1
        await _set_hold(ledger, False, delivery=2)
        assert await ledger.pokes() == pokes + 2
        assert (await ledger.cycle("2")).placed == 1


async def test_a_hold_of_an_older_attempt_does_not_touch_the_newer(ledger: Ledger):
    await ledger.enqueue("a", attempt=2)
    await _set_hold(ledger, True, attempt=1)
    assert await ledger.rows(_QUEUE) == [{"job_id": "a", "attempt": 2, "held": False}]


async def test_a_second_release_does_not_touch_the_next_attempt(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        await ledger.cycle("1")
        await ledger.release("a")
        assert await ledger.rows("SELECT end_reason AS why FROM leases") == [{"why": "held"}]
        await ledger.enqueue("a", attempt=2)
        await ledger.release("a", delivery=2)
        assert await ledger.rows(_QUEUE) == [{"job_id": "a", "attempt": 2, "held": False}]
        await ledger.cycle("2")
        await ledger.release("a", delivery=3)
        live = await ledger.rows("SELECT attempt FROM leases WHERE ended_at IS NULL")
        assert live == [{"attempt": 2}]
        assert await ledger.drift() == []


async def test_a_release_pokes_only_where_somebody_waits(ledger: Ledger):
    await ledger.register(gpus=1)
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        await ledger.cycle("1")
        await ledger.enqueue("b")
        await ledger.cycle("2")
        pokes = await ledger.pokes()
        await ledger.release("a")
        assert await ledger.pokes() == pokes + 1
        await ledger.finish("b")
        await ledger.cycle("3")
        await ledger.finish("b", delivery=1)
        assert await ledger.pokes() == pokes + 1


@pytest.mark.parametrize("step", ["release", "finish"])
async def test_a_retry_pokes_for_what_the_one_before_it_freed(ledger: Ledger, step: str):
    await ledger.register(gpus=1)
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        await ledger.cycle("1")
        await ledger.enqueue("b")
        await ledger.cycle("2")
        await getattr(ledger, step)("a")
        pokes = await ledger.pokes()
        await getattr(ledger, step)("a", delivery=2)
        assert await ledger.pokes() == pokes + 1


async def test_a_second_finish_changes_nothing(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        await ledger.cycle("1")
        await ledger.finish("a", exit_code=0)
        before = await ledger.rows("SELECT * FROM jobs")
        assert before[0]["end_state"] == "SUCCEEDED"
        await ledger.finish("a", exit_code=7, delivery=2)
        assert await ledger.rows("SELECT * FROM jobs") == before
        assert await ledger.rows("SELECT end_reason AS why FROM leases") == [{"why": "finished"}]
        assert await ledger.drift() == []


async def test_a_finish_takes_a_job_out_of_the_queue(ledger: Ledger):
    await ledger.enqueue("a", attempt=3)
    await ledger.finish("a", attempt=3)
    assert await ledger.rows(_QUEUE) == []


async def test_an_end_and_a_late_enqueue_do_not_wait_for_each_other(ledger: Ledger):
    """Either takes the job's row first. Else the server would end one of the two."""
    await ledger.enqueue("a")
    async with ledger.database.transaction() as enqueue:
        await lock_job(enqueue, "a")  # as a repeat does
        end = asyncio.create_task(ledger.finish("a"))
        await eventually(lambda: ledger.value(WAITING_FOR_LOCKS))
        await enqueue.execute(text("SELECT FROM queue WHERE job_id = 'a' FOR UPDATE NOWAIT"))
    await end
    assert await ledger.rows(_QUEUE) == []


async def test_a_database_that_is_away_is_worth_a_retry(
    ledger: Ledger, stack: Stack, database_url: str
):
    await ledger.enqueue("a")
    with database_away(stack, database_url):
        for _with_an_old_session_then_without in range(2):
            with pytest.raises(ApplicationError, match="database") as refusal:
                await ledger.enqueue("b")
            assert refusal.value.type == "UnavailableError"
            assert not refusal.value.non_retryable
    assert (await ledger.enqueue("b")).queued


async def _set_hold(ledger: Ledger, held: bool, *, attempt: int = 1, delivery: int = 1) -> None:
    key = PlacementKey(job_id="a", attempt=attempt)
    await ledger.run(ledger.queue.set_hold, HoldRequest(key=key, held=held), attempt=delivery)


def _placement_of_a(pool: str) -> tuple[str, ...]:
    return (
        f"INSERT INTO cycles VALUES ('by-hand', '{pool}', now(), 1, 1, 0, 0)",
        "INSERT INTO placements (job_id, attempt, cycle_id, node_id, epoch, gpu_indices,"
        " cpu_milli, ram_mb, vram_mb, expected_seconds, decision)"
        " VALUES ('a', 1, 'by-hand', 'node-a', 1, '{0}', 0, 0, 0, 60, '{}')",
    )


async def test_a_job_that_is_let_in_again_is_queued_from_then_on_and_a_repeat_changes_nothing(
    ledger: Ledger,
):
    since = "SELECT queued_at FROM queue"
    await ledger.enqueue("a")
    first = await ledger.value(since)
    await _set_hold(ledger, True)
    assert await ledger.value(since) == first
    await _set_hold(ledger, False)
    second = await ledger.value(since)
    assert second > first
    await _set_hold(ledger, False, delivery=2)
    assert await ledger.value(since) == second
