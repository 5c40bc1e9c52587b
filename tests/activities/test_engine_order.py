"""What the order asks of engines that wait: each cycle asks it, also of a long queue."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from longshore.activities.database import clock
from longshore.activities.preemption_inputs import read_inputs
from longshore.activities.serving.engine_order import ENGINES, load_engine_order
from longshore.activities.serving.service_rows import facts_of, lock_service
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_queue, read_place
from longshore.activities.usage import load_pool_to_plan
from longshore.models.job_request import EngineKey, JobRequest
from longshore.models.messages import LeaseEnd
from longshore.models.preemption import PreemptionPolicy
from longshore.models.serving import EngineStage
from longshore.scheduling.order import queue_order
from tests.support.control import new_pool
from tests.support.ledger import Ledger
from tests.support.recorded_service import RecordedService


async def test_the_queue_is_looked_into_for_each_replica_and_not_read(ledger: Ledger):
    async with ledger.database.snapshot() as connection:
        plan = await connection.execute(text(f"EXPLAIN {ENGINES}"), {"pool": ledger.pool})
        steps = "\n".join(plan.scalars())
        assert await load_engine_order(connection, ledger.pool) == ({}, ())
    assert "queue_pkey" in steps
    assert "Seq Scan on queue" not in steps
    assert "Seq Scan on jobs" not in steps


async def in_order(served: RecordedService) -> list[str]:
    """Return the replicas that wait, in the order in which they are planned."""
    async with served.control.snapshot() as connection:
        packing = (await load_pool_to_plan(connection, served.pool)).packing
        queue = [entry.request for entry in await load_queue(connection, served.pool)]
        ordered = queue_order(queue, packing, await clock(connection))
        for place, job in enumerate(ordered, 1):
            assert (await read_place(connection, served.pool, job.id, packing))() == place
    return [job.id for job in ordered]


async def two_that_wait(served: RecordedService) -> list[str]:
    """Have two replicas wait; return them in their order."""
    await served.record(replicas=2)
    await served.look()
    for each in (await served.view()).replicas:
        await served.queued(each.job_id)
    return await in_order(served)


@pytest.mark.parametrize("idle", [False, True])
async def test_one_for_which_another_was_stopped_comes_first(served: RecordedService, idle: bool):
    """Of two that wait who came first may have nobody stopped, where the other has its turn: the
    GPUs of an idle engine that was stopped for that would be its own, and another be stopped."""
    first, second = await two_that_wait(served)
    asked = {"id": first, "for": second, "pool": served.pool, "idle": idle, "payer": False}
    async with served.control.transaction() as connection:
        await connection.execute(text(_STOPPED), asked)
    assert await in_order(served) == [second, first]
    async with served.control.transaction() as connection:
        await connection.execute(text(_STOPPED), {**asked, "payer": True})
    assert await in_order(served) == [first, second]  # who pays comes first by that alone
    await served.end()


async def test_one_that_left_while_idle_comes_before_one_that_is_prewarmed(
    served: RecordedService,
):
    """Until it was asked the other came first, which has fewer copies of its model before it."""

    async def changed(statement: str, job_id: str) -> None:
        async with served.control.transaction() as connection:
            await connection.execute(text(statement), {"id": job_id})

    for job_id in await two_that_wait(served):
        await changed(_FILLS, job_id)
        await changed(_PREWARMED, job_id)
    first, second = await in_order(served)
    await changed("UPDATE replicas SET uses = 3 WHERE job_id = :id", second)
    assert await in_order(served) == [second, first]
    await served.end()


async def test_a_service_knows_which_of_its_replicas_left_while_nobody_asked(
    served: RecordedService,
):
    """One that was never loaded, and is to fill free memory, has not left."""
    first, second = await two_that_wait(served)
    async with served.control.transaction() as connection:
        for job_id in (first, second):
            await connection.execute(text(_FILLS), {"id": job_id})
        loaded = "UPDATE replicas SET attempt = 1 WHERE job_id = :id"
        await connection.execute(text(loaded), {"id": first})
        service = await lock_service(connection, served.name)
        found = await facts_of(connection, service, None, await clock(connection))
    left = {each.job_id: each.left_idle for each in found.replicas}
    assert left == {first: True, second: False}
    await served.end()


async def test_a_model_waits_since_its_service_had_an_engine_last(served: RecordedService):
    """Of two replicas the one that waited while the other served would have each second turn."""
    await served.record(replicas=2)
    await served.look()
    for each in (await served.view()).replicas:
        await served.queued(each.job_id)
    # A node of another pool: a cycle may look at this one at any time.
    ledger = Ledger(served.control, served.temporal, new_pool())
    await ledger.register(gpus=2)
    queue = "SELECT job_id, queued_at FROM queue WHERE pool = :pool ORDER BY queued_at"
    (first, second) = await ledger.rows(queue, pool=served.pool)

    async def turns() -> dict[str, datetime | None]:
        async with served.control.snapshot() as connection:
            inputs = await read_inputs(connection, served.pool)
        return {job.id: job.turn_at for job in inputs.queue}

    max_wait = PreemptionPolicy().max_wait
    assert (await turns())[second["job_id"]] == second["queued_at"] + max_wait
    await ledger.place(first["job_id"], (0,))
    end = LeaseEnd.PREEMPTED
    ended_at = await ledger.value(_ENDED, id=first["job_id"], end=end.value)
    assert ended_at > second["queued_at"]
    assert (await turns())[second["job_id"]] == ended_at + max_wait
    await served.end()


async def test_what_one_that_waits_serves_is_as_its_spec_says(served: RecordedService):
    """With its LoRA adapters: an engine that has others loaded does not serve that."""
    model = served.engine.model.model_copy(update={"adapters": {"formal": "/m/formal.gguf"}})
    served.engine = served.engine.model_copy(update={"model": model})
    await served.record()
    await served.look()
    (replica,) = (await served.view()).replicas
    await served.queued(replica.job_id)
    async with served.control.snapshot() as connection:
        (waits,) = (await read_inputs(connection, served.pool)).queue
    spec = await served.start_of(replica.job_id)
    key = JobRequest.of(waits.id, spec, datetime.now(UTC), 1).engine
    assert key is not None
    assert waits.engine == key
    plain = EngineKey.of(model.name, "llama.cpp", None, model.source)
    assert not key.is_like(plain)
    await served.end()


_FILLS = """
    UPDATE queue SET request = request || '{"fills": true}' WHERE job_id = :id
"""
_PREWARMED = """
    UPDATE jobs SET spec = jsonb_set(spec, '{engine,model,prewarm}', 'true') WHERE id = :id
"""
_ENDED = """
    WITH leases AS (
        UPDATE leases SET ended_at = clock_timestamp(), end_reason = :end WHERE job_id = :id
    )
    UPDATE placements SET ended_at = clock_timestamp(), end_reason = :end WHERE job_id = :id
    RETURNING ended_at
"""

_STOPPED = """
    INSERT INTO preemptions (job_id, attempt, pool, cycle_id, for_job, for_attempt, priority,
                             for_priority, plan, idle, by_payer, frees_by)
    VALUES (:id, 1, :pool, 'c', :for, 1, 5, 5, '{}', :idle, :payer, clock_timestamp())
    ON CONFLICT (job_id, attempt) DO UPDATE SET by_payer = excluded.by_payer
"""


async def test_the_pool_is_woken_once_an_engine_may_leave_for_who_waits(
    served: RecordedService, monkeypatch: pytest.MonkeyPatch
):
    ready, _ = await two_that_wait(served)
    woken: list[str] = []

    async def wake(_: Signals, pool: str) -> None:
        woken.append(pool)

    async def heard(stage: EngineStage, *, attempt: int = 1, idle: bool = False) -> bool:
        """Return whether the pool is woken when an agent says so of the first."""
        notice = served.said(ready, stage)
        report = notice.report.model_copy(update={"idle": idle})
        async with served.control.transaction() as connection:
            # As the cycles leave it, none of which runs in this pool now.
            await connection.execute(text(_NOT_POKED), {"pool": served.pool})
        before = len(woken)
        await served.look(notice.model_copy(update={"report": report}), attempt=attempt)
        assert woken[before:] in ([], [served.pool])
        return len(woken) > before

    monkeypatch.setattr(Signals, "poke_pool", wake)
    assert not await heard(EngineStage.LOADING)
    assert await heard(EngineStage.READY), "a higher class may have it stopped now"
    assert not await heard(EngineStage.READY), "that is no news"
    assert await heard(EngineStage.READY, attempt=2), "of which no retry knows that it was told"
    assert await heard(EngineStage.READY, idle=True)
    assert not await heard(EngineStage.READY, idle=True)
    assert not await heard(EngineStage.READY), "one in use leaves for nobody who could not before"
    assert await heard(EngineStage.READY, idle=True)
    monkeypatch.undo()
    await served.end()


_NOT_POKED = "UPDATE pools SET poked = false WHERE name = :pool"
