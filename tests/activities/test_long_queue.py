"""Cycles of a long queue plan a part of it: the same jobs start, and each is told why it waits."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.activities import cycle, cycle_inputs, later_starts, queue_cache
from longshore.activities.pool_cache import PoolCache
from longshore.activities.preemption_inputs import read_inputs
from longshore.models.job_request import JobRequest
from longshore.models.placement import CyclePlan
from longshore.models.pool import PoolSpec
from longshore.scheduling import long_queue
from longshore.scheduling.placement.mix import NO_MIX
from tests.support.ledger import Ledger

JOBS = tuple(f"job-{number:02}" for number in range(40))
KEPT = 8
"""Starts that a pool keeps by default."""
_CYCLE = "SELECT queued, placed, looked_at FROM cycles ORDER BY committed_at DESC LIMIT 1"
_READ_MS = "SELECT read_ms FROM cycles ORDER BY committed_at DESC LIMIT 1"
_EARLIER = "UPDATE cycles SET committed_at = committed_at - interval '2 minutes'"
"""So that a cycle is noted that changes nothing."""


@pytest.fixture
async def full(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ledger]:
    """A node of two GPUs with a job, and 39 others that want both, told why they wait; 0.5 s."""
    monkeypatch.setattr(long_queue, "LONG", 10)
    monkeypatch.setattr(cycle_inputs, "ANEW_IN", math.inf)
    monkeypatch.setattr(later_starts, "most_later", lambda _: 0)
    await ledger.register("node-a", gpus=2)
    for job in JOBS:
        await ledger.enqueue(job, gpus=2)
    async with ledger.listening(*JOBS[:2]):
        assert await _cycle(ledger, "first") == (40, 1, 40)
        assert await ledger.value("SELECT count(*) FROM queue WHERE told_at IS NULL") == 0
        yield ledger


async def test_of_those_that_ask_alike_a_few_are_planned(full: Ledger):
    assert await _cycle(full, "again") == (39, 0, KEPT + 1)
    await full.finish(JOBS[0])
    assert await _cycle(full, "free") == (39, 1, 2 + KEPT)
    placed = await full.rows("SELECT job_id FROM placements WHERE ended_at IS NULL")
    assert [row["job_id"] for row in placed] == [JOBS[1]]


async def test_a_job_that_comes_is_told_why_it_waits_by_the_next_cycle(full: Ledger):
    await full.enqueue("of-its-own", gpus=1)
    await full.enqueue("one-more", gpus=2)
    assert await _cycle(full, "again") == (41, 0, KEPT + 3)
    for job in ("of-its-own", "one-more"):
        said = "SELECT decision->>'reason' FROM queue WHERE job_id = :job AND told_at IS NOT NULL"
        assert "gpus-busy" in await full.value(said, job=job)
    assert await _cycle(full, "once more") == (41, 0, KEPT + 2)


async def test_jobs_that_leave_and_that_are_set_aside_make_room_for_others_like_them(full: Ledger):
    for job in JOBS[1:10]:
        await full.rows("DELETE FROM queue WHERE job_id = :job", job=job)
    assert await _cycle(full, "fewer") == (30, 0, KEPT + 1)
    await full.rows(
        "UPDATE queue SET decided_at = now(), decision = jsonb_build_object('kind', 'SET_ASIDE',"
        " 'reason', 'no') WHERE job_id < :job", job=JOBS[13],
    )  # fmt: skip
    await full.enqueue("more-1", gpus=2)
    await full.enqueue("more-2", gpus=2)
    await full.enqueue("more-3", gpus=2)
    assert await _cycle(full, "aside") == (30, 0, KEPT + 1 + 3)
    looked_at = await full.rows("SELECT job_id FROM queue WHERE decision->'rejected' IS NOT NULL"
                                " AND job_id < :job", job=JOBS[13])  # fmt: skip
    assert looked_at == []


async def test_many_that_come_at_once_are_planned_with_all_that_wait(full: Ledger):
    await full.finish(JOBS[0])
    for number in range(40):
        await full.enqueue(f"more-{number:02}", gpus=2)
    assert await _cycle(full, "burst") == (79, 1, 79)


async def test_those_that_have_not_heard_are_told_a_few_at_a_time(
    full: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(queue_cache, "TELL_AT_MOST", 5)
    await full.rows("UPDATE queue SET told_reason = 'another', told_at = now() - interval '1 h'")
    await _cycle(full, "one")
    unheard = "SELECT count(*) FROM queue WHERE told_reason = 'another'"
    before = await full.value(unheard)
    assert KEPT + 1 <= 39 - before <= KEPT + 1 + 5
    await _cycle(full, "two")
    assert before - await full.value(unheard) == 5


async def test_each_is_told_anew_in_turn(full: Ledger, monkeypatch: pytest.MonkeyPatch):
    clock = _with_clock(monkeypatch)
    await _cycle(full, "begin")
    await full.rows(
        "UPDATE queue SET decided_at = now() - interval '1 h',"
        " decision = jsonb_set(decision, '{reason}', '\"as it was\"')"
    )
    old = "SELECT count(*) FROM queue WHERE decision->>'reason' = 'as it was'"
    for left in (26, 22, 18):  # nine are decided about anyway
        clock[0] += 3.0
        assert (await _cycle(full, f"before {left}"))[:2] == (39, 0)
        assert await full.value(old) == left
    clock[0] += 40.0
    assert await _cycle(full, "all") == (39, 0, 39)


async def test_all_may_start_while_jobs_change_their_places_in_the_part(
    full: Ledger, monkeypatch: pytest.MonkeyPatch
):
    plan = cycle_inputs.plan_cached
    rearranged, planned = [True, False, False], list[int]()

    def moving(jobs: Sequence[JobRequest], *args: Any, **more: Any) -> CyclePlan:
        planned.append(len(jobs))
        return plan(jobs, *args, **more).model_copy(update={"rearranged": rearranged.pop(0)})

    slow, load_pool = [0.25, 0.0, 0.0], cycle.load_pool

    async def read(*args: Any) -> PoolSpec:
        await asyncio.sleep(slow.pop(0))
        return await load_pool(*args)

    monkeypatch.setattr(cycle_inputs, "plan_cached", moving)
    monkeypatch.setattr(cycle, "load_pool", read)
    assert await _cycle(full, "moved") == (39, 0, KEPT + 1)
    assert await full.value(_READ_MS) >= 250
    assert await _cycle(full, "again") == (39, 0, KEPT + 1)
    assert rearranged == []
    assert planned == [KEPT + 1, 39, 39]


def test_what_a_cycle_does_depends_on_the_time_since_the_last(monkeypatch: pytest.MonkeyPatch):
    turns, pool, clock = cycle_inputs.Turns(), PoolSpec(name="p"), _with_clock(monkeypatch)
    all_of_it = cycle_inputs.Turn(1.0, None, whole=True)
    assert turns.of(pool) == all_of_it
    turns.note(pool, NO_MIX, learnt=True)
    clock[0] += 15.0
    assert turns.of(pool) == cycle_inputs.Turn(0.5, NO_MIX, whole=False)
    assert turns.of(pool, whole=True) == cycle_inputs.Turn(0.5, NO_MIX, whole=True)
    for packing in ({"max_reservations": 2}, {"weights": {"separation": 1}}):
        other = PoolSpec.model_validate({"name": "p", "packing": packing})
        assert turns.of(other) == all_of_it
    separate = PoolSpec.model_validate({"name": "p", "packing": {"weights": {"separation": 1}}})
    turns.note(separate, NO_MIX, learnt=True)
    assert turns.of(separate) == all_of_it, "it looks at all jobs"
    turns.note(pool, NO_MIX, learnt=True)
    clock[0] += 21.0
    turns.note(pool, NO_MIX, learnt=False)
    clock[0] += 9.0
    assert turns.of(pool) == cycle_inputs.Turn(0.3, None, whole=True), "it is learnt anew"
    clock[0] += 30.0
    assert turns.of(pool) == all_of_it


def test_no_part_is_tried_for_a_while_after_one_in_vain(monkeypatch: pytest.MonkeyPatch):
    turns, pool, clock = cycle_inputs.Turns(), PoolSpec(name="p"), _with_clock(monkeypatch)
    turns.note(pool, NO_MIX, learnt=True)
    turns.note_in_vain(pool)
    for later, whole in ((9.0, True), (2.0, False)):
        clock[0] += later
        turns.note(pool, NO_MIX, learnt=False)
        assert turns.of(pool) == cycle_inputs.Turn(0.0, NO_MIX, whole=whole)


async def test_all_are_planned_after_a_while_and_by_another_policy(
    full: Ledger, monkeypatch: pytest.MonkeyPatch
):
    await full.rows(
        "UPDATE pools SET spec = jsonb_set(spec, '{packing,max_reservations}', '2')"
        " WHERE name = :pool", pool=full.pool,
    )  # fmt: skip
    assert await _cycle(full, "policy") == (39, 0, 39)
    assert await _cycle(full, "again") == (39, 0, 3)
    monkeypatch.setattr(cycle_inputs, "ANEW_IN", 1e-9)
    assert await _cycle(full, "later") == (39, 0, 39)


def _with_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the clock since boot, to be set; all is said anew in 30 seconds by it."""
    clock = [float(math.ceil(time.monotonic()))]  # whole, so that shares of time are exact
    monkeypatch.setattr(cycle_inputs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(cycle_inputs, "ANEW_IN", 30.0)
    return clock


async def _cycle(ledger: Ledger, name: str) -> tuple[int, int, int]:
    """Run a cycle; return how many were queued, placed and looked at."""
    await ledger.rows(_EARLIER)
    await ledger.cycle(name)
    (row,) = await ledger.rows(_CYCLE)
    return row["queued"], row["placed"], row["looked_at"]


async def test_of_a_long_queue_a_part_is_decided_on_for_whom_others_stop(full: Ledger):
    """Whom none of it concerns keeps what was said of it."""
    await full.enqueue("urgent", gpus=2, priority=9)
    spared = "UPDATE queue SET spared = '[]' WHERE job_id IN (:near, :far)"
    await full.rows(spared, near=JOBS[1], far=JOBS[39])
    await _cycle(full, "again")
    (stopped,) = await full.rows("SELECT job_id, for_job FROM preemptions")
    assert (stopped["job_id"], stopped["for_job"]) == (JOBS[0], "urgent")
    still = await full.rows("SELECT job_id FROM queue WHERE spared IS NOT NULL")
    assert [row["job_id"] for row in still] == [JOBS[39]]


@pytest.mark.exhaustive
async def test_whom_others_are_stopped_for_is_known_wherever_it_stands(full: Ledger):
    """Its GPUs go to nobody else, though jobs before it ask alike."""
    await full.enqueue("urgent", gpus=2, priority=9)
    await _cycle(full, "again")
    for number in range(40):
        await full.enqueue(f"more-{number:02}", gpus=2, priority=9)
    early = {"at": "2026-01-01T00:00:00Z"}
    await full.rows(
        "UPDATE queue SET request = request || jsonb_build_object('submitted_at',"
        " CAST(:at AS text)) WHERE job_id LIKE 'more-%'", **early,
    )  # fmt: skip
    async with full.database.snapshot() as connection:
        kept = await PoolCache().take(connection, full.pool)
        seen = await read_inputs(connection, full.pool, kept=kept)
    assert len(seen.queue) < 40
    assert "urgent" in {job.id for job in seen.queue}
    (under_way,) = seen.under_way
    assert (under_way.job_id, len(under_way.shares)) == ("urgent", 1)
