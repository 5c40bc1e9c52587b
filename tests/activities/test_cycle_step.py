"""One cycle of a pool on the capacity database: what it commits, repeats and withdraws."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text
from temporalio.exceptions import ApplicationError

from longshore.activities import cycle, explanations
from longshore.activities.queue_views import QueueViews
from longshore.models.messages import CycleRequest
from longshore.scheduling import reason_updates
from tests.support.ledger import WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually


async def test_a_repeat_finds_the_committed_cycle_and_signals_again(ledger: Ledger):
    await ledger.register(gpus=2)
    async with ledger.listening("a", "b", "c"):
        for job in ("a", "b", "c"):
            await ledger.enqueue(job)
        first = await ledger.cycle("one")
        assert (first.queued, first.placed, first.waiting) == (3, 2, 1)
        await ledger.register("node-b")
        again = await ledger.cycle("one", delivery=2)
        assert (again.queued, again.placed, again.withdrawn) == (3, 2, 0)
        assert [await ledger.told(job, "placed") for job in ("a", "b", "c")] == [2, 2, 0]
        assert await ledger.value("SELECT count(*) FROM placements") == 2
        assert await ledger.value("SELECT count(*) FROM cycles") == 1


async def test_what_a_cycle_took_is_stored_in_its_parts(ledger: Ledger):
    await ledger.register(gpus=2)
    async with ledger.listening("a", "b"):
        for job in ("a", "b"):
            await ledger.enqueue(job, gpus=2)
        await ledger.cycle("one")
    (row,) = await ledger.rows("SELECT * FROM cycles")
    assert (row["queued"], row["placed"], row["looked_at"]) == (2, 1, 2)
    parts = [row[f"{part}_ms"] for part in ("read", "plan", "commit", "explain")]
    assert all(part > 0 for part in parts)
    assert sum(parts) <= row["took_ms"]


async def test_a_job_starts_where_another_of_the_cycle_has_changed_its_place(ledger: Ledger):
    await ledger.register("few-gpus", gpus=2, cpus=24)
    await ledger.register("few-cores", gpus=4, cpus=8)
    async with ledger.listening("a", "b", "c"):
        for job, gpus, cpus in (("a", 2, 1), ("b", 3, 1), ("c", 2, 20)):
            await ledger.enqueue(job, gpus=gpus, cpus=cpus, ram="1GB")
        assert (await ledger.cycle("one")).placed == 2
    placed = await ledger.rows("SELECT job_id, node_id, decision ->> 'reason' AS reason "
                               "FROM placements ORDER BY job_id")  # fmt: skip
    assert [(row["job_id"], row["node_id"]) for row in placed] == [
        ("a", "few-gpus"), ("b", "few-cores"),
    ]  # fmt: skip
    assert "so that another job of the same cycle can start too" in placed[0]["reason"]
    assert "1 job of the same cycle placed elsewhere" in placed[1]["reason"]
    assert await ledger.drift() == []


async def test_it_counts_the_gpus_that_are_free_once_it_has_placed(ledger: Ledger):
    reply = await ledger.cycle("none")
    assert (reply.gpus, reply.free_gpus) == (0, 0)
    await ledger.register(gpus=4)
    async with ledger.listening("a", "b"):
        await ledger.enqueue("a", gpus=2)
        reply = await ledger.cycle("one")
        assert (reply.placed, reply.gpus, reply.free_gpus) == (1, 4, 2)
        await ledger.enqueue("b", milli=500, vram_per_gpu="10GB")
        assert (await ledger.cycle("two")).free_gpus == 1
        await ledger.release("a")
        assert (await ledger.cycle("three")).free_gpus == 3


async def test_a_repeat_does_not_signal_a_placement_that_has_ended(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        await ledger.cycle("one")
        await ledger.release("a")
        await ledger.cycle("one", delivery=2)
        assert await ledger.told("a", "placed") == 1


async def test_a_repeat_tells_a_job_of_a_placement_that_was_lost_with_its_node(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        await ledger.cycle("one")
        await ledger.register(boot="boot-2")
        again = await ledger.cycle("one", delivery=2)
        assert [await ledger.told("a", signal) for signal in ("placed", "node_lost")] == [2, 1]
        assert again.withdrawn == 0
        assert await ledger.drift() == []


async def test_a_placement_whose_job_has_gone_is_withdrawn(ledger: Ledger):
    await ledger.register()
    await ledger.enqueue("a")
    reply = await ledger.cycle("one")
    assert (reply.placed, reply.withdrawn) == (1, 1)
    assert await ledger.rows("SELECT end_reason AS why FROM leases") == [{"why": "withdrawn"}]
    assert await ledger.drift() == []


async def test_a_job_that_cannot_be_read_is_set_aside_and_the_others_are_placed(ledger: Ledger):
    await ledger.register(gpus=2)
    async with ledger.listening("poison", "good"):
        await ledger.enqueue("poison", priority=9)
        await ledger.enqueue("good")
        older = """UPDATE queue SET request = request || '{"expected_duration": "99999999h"}'
                    WHERE job_id = 'poison'"""
        await ledger.rows(older)
        reply = await ledger.cycle("one")
        assert (reply.queued, reply.placed) == (1, 1)
        (row,) = await ledger.rows("SELECT decision FROM queue WHERE job_id = 'poison'")
        assert row["decision"]["kind"] == "SET_ASIDE"
        assert "ten years at most" in row["decision"]["reason"]
        assert await ledger.told("poison", "waiting") == 1
        # It rests, and is tried again.
        reply = await ledger.cycle("two")
        assert (reply.queued, reply.set_aside) == (0, 1)
        ago = "UPDATE queue SET decided_at = clock_timestamp() - interval '{} minutes'"
        await ledger.rows(ago.format(9))  # a plan that has to be compiled first takes its time
        assert timedelta(0) < (await ledger.cycle("by then")).next_wake < timedelta(seconds=62)
        whole = """, request = request || '{"expected_duration": "1h"}'"""
        await ledger.rows(ago.format(11) + whole)
        assert (await ledger.cycle("three")).placed == 1


async def test_of_many_that_are_set_aside_each_hears_it_in_one_of_the_next_cycles(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    for module in (cycle, explanations, reason_updates):
        monkeypatch.setattr(module, "TELL_AT_MOST", 2)
    await ledger.register(gpus=2)
    for number in range(5):
        await ledger.enqueue(f"poison-{number}")
    await ledger.rows("UPDATE queue SET request = 'null', told_at = now(),"
                      " told_reason = 'another', queued_at = now() - interval '1 h'")  # fmt: skip
    heard = "SELECT count(*) FROM queue WHERE told_reason = decision->>'reason'"
    wakes: list[timedelta] = []
    for told in (2, 4, 5, 5):
        wakes.append((await ledger.cycle(f"after-{told}-{len(wakes)}")).next_wake)
        assert await ledger.value(heard) == told
    assert wakes[1] < wakes[3], "some have to hear it still"
    queue = await QueueViews(ledger.database).queue(ledger.pool)
    assert {each.waited >= timedelta(hours=1) for each in queue.jobs} == {True}


async def test_one_stale_placement_among_many_waits_and_the_others_hold(ledger: Ledger):
    jobs = [f"job-{number}" for number in range(6)]
    await ledger.register("node-a", gpus=5)
    await ledger.register("node-b", gpus=1)
    async with ledger.listening(*jobs):
        for job in jobs:
            await ledger.enqueue(job)
        async with ledger.database.transaction() as registrar:
            # Not committed yet: the cycle still reads the node as ready.
            await registrar.execute(text("UPDATE nodes SET epoch = 2 WHERE id = 'node-b'"))
            cycle = asyncio.create_task(ledger.cycle("one"))
            await eventually(lambda: ledger.value(WAITING_FOR_LOCKS))
        reply = await cycle
        assert (reply.queued, reply.placed, reply.waiting) == (6, 5, 1)
        live = await ledger.rows("SELECT job_id, node_id FROM leases WHERE ended_at IS NULL")
        waiting = await ledger.rows("SELECT job_id FROM queue")
        assert {row["node_id"] for row in live} == {"node-a"}
        assert sorted(row["job_id"] for row in live + waiting) == jobs
        assert await ledger.value("SELECT refused FROM cycles") == 1
        assert await ledger.drift() == []
        assert (await ledger.cycle("two")).placed == 1


async def test_a_job_that_is_held_while_its_cycle_commits_stays_queued(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a", "b"):
        await ledger.enqueue("a")
        await ledger.enqueue("b")
        async with ledger.database.transaction() as holder:
            await holder.execute(text("UPDATE queue SET held = true WHERE job_id = 'a'"))
            cycle = asyncio.create_task(ledger.cycle("one"))
            await eventually(lambda: ledger.value(WAITING_FOR_LOCKS))
        assert (await cycle).placed == 1
        assert await ledger.rows("SELECT job_id FROM queue") == [{"job_id": "a"}]
        assert await ledger.rows("SELECT job_id FROM leases") == [{"job_id": "b"}]


async def test_two_cycles_at_once_give_no_gpu_twice(ledger: Ledger):
    jobs = [f"job-{number:02}" for number in range(12)]
    for node in ("node-a", "node-b"):
        await ledger.register(node, gpus=4)
    async with ledger.listening(*jobs):
        for job in jobs:
            await ledger.enqueue(job)
        async with ledger.database.transaction() as somebody:
            await somebody.execute(text("SELECT FROM nodes ORDER BY id FOR UPDATE"))
            cycles = [asyncio.create_task(ledger.cycle(cycle)) for cycle in ("one", "two")]
            await eventually(lambda: _both_wait(ledger))
        replies = await asyncio.gather(*cycles)
        assert sorted(reply.placed for reply in replies) == [0, 8]
        assert await ledger.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 8
        assert await ledger.value("SELECT count(*) FROM queue") == 4
        assert await ledger.drift() == []


async def test_the_same_cycle_twice_at_once_commits_once(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        async with ledger.database.transaction() as somebody:
            await somebody.execute(text("SELECT FROM nodes FOR UPDATE"))
            deliveries = [asyncio.create_task(ledger.cycle("one")) for _ in range(2)]
            await eventually(lambda: _both_wait(ledger))
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
        (refused,) = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert isinstance(refused, ApplicationError)
        told = refused.type, refused.non_retryable
        assert told == ("IntegrityError", False), "the retry will find it"
        assert (await ledger.cycle("one", delivery=2)).placed == 1
        assert await ledger.value("SELECT count(*) FROM placements") == 1


async def test_what_waits_is_told_why(ledger: Ledger):
    await ledger.register(gpus=1)
    await ledger.enqueue("a", gpus=2)
    reply = await ledger.cycle("one")
    assert (reply.placed, reply.waiting) == (0, 1)
    decision = await ledger.value("SELECT decision FROM queue")
    assert decision["rejected"] == {"not-enough-gpus": 1}
    assert decision["reason"]


async def test_higher_priority_goes_first_then_who_came_first(ledger: Ledger):
    await ledger.register(gpus=2)
    async with ledger.listening("low", "high", "mid"):
        await ledger.enqueue("low", priority=1)
        await ledger.enqueue("mid", priority=5)
        await ledger.enqueue("high", priority=9)
        await ledger.cycle("one")
        placed = await ledger.rows("SELECT job_id FROM placements ORDER BY job_id")
        assert [row["job_id"] for row in placed] == ["high", "mid"]


async def _both_wait(ledger: Ledger) -> bool:
    return await ledger.value(WAITING_FOR_LOCKS) == 2


_WRITTEN = """
    SELECT 'cycle ' || id AS row, ctid::text AS version FROM cycles
     UNION ALL SELECT 'pool', ctid::text FROM pools WHERE name = :pool
     UNION ALL SELECT job_id, ctid::text FROM queue
"""


async def test_a_cycle_that_changes_nothing_writes_nothing_and_is_noted_once_a_minute(
    ledger: Ledger,
):
    await ledger.register(gpus=2)
    async with ledger.listening("a", "b", "c"):
        await ledger.enqueue("a", gpus=2)
        await ledger.enqueue("b", gpus=2)
        await ledger.cycle("1")
        before = await ledger.rows(_WRITTEN, pool=ledger.pool)
        for number in ("2", "3"):
            assert (await ledger.cycle(number)).waiting == 1
        assert await ledger.rows(_WRITTEN, pool=ledger.pool) == before
        earlier = "UPDATE cycles SET committed_at = committed_at - interval '61 s'"
        ids = "SELECT id FROM cycles ORDER BY committed_at"
        for number in ("4", "5", "6", "7"):
            await ledger.rows(earlier)
            await ledger.cycle(number)
            assert [row["id"] for row in await ledger.rows(ids)] == ["1", "4"]
        now = "SELECT max(committed_at) > clock_timestamp() - interval '30 s' FROM cycles"
        assert await ledger.value(now)
        await ledger.enqueue("c", gpus=2)
        assert (await ledger.cycle("8")).waiting == 2
        assert [row["id"] for row in await ledger.rows(ids)] == ["1", "4", "8"]


async def test_every_hundredth_cycle_forgets_old_ones_that_placed_nothing(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a"):
        await ledger.enqueue("a")
        await ledger.cycle("old")
    await ledger.rows(
        "INSERT INTO cycles (id, pool, committed_at, queued, placed, refused, took_ms)"
        " SELECT 'idle-' || n, :pool, clock_timestamp() - n * interval '1 s', 0, 0, 0, 1"
        "   FROM generate_series(1, 1150) AS n",
        pool=ledger.pool,
    )
    await ledger.rows("UPDATE cycles SET committed_at = '2026-01-01T00:00Z' WHERE id = 'old'")

    async def kept(number: int) -> int:
        request = CycleRequest(pool=ledger.pool, cycle_id=f"new-{number}", number=number)
        await ledger.run(ledger.cycles.run_cycle, request)
        return await ledger.value("SELECT count(*) FROM cycles")

    assert await kept(99) == 1151
    assert await kept(100) == 1001  # the latest thousand, and the one that placed a job
    assert await ledger.value("SELECT cycle_id FROM placements") == "old"
