"""What a pool's running jobs look like to preemption, read from the database and the store."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from longshore.activities.checkpoints.rows import CheckpointActivities
from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.preemption_inputs import PreemptionInputs, read_inputs
from longshore.models.checkpoint import CheckpointsRequest
from longshore.models.messages import LeaseEnd, ReleaseRequest
from longshore.models.placement import PlacementKey
from longshore.models.preemption import PreemptionPolicy, RunningWork
from tests.support.checkpoints import publish, write_tree
from tests.support.ledger import Ledger

CONTRACT = {"folder": "saves", "grace": "2m", "save_signal": "SIGUSR1"}


async def inputs_of(ledger: Ledger, store_away: str = "") -> PreemptionInputs:
    async with ledger.database.transaction() as connection:
        return await read_inputs(connection, ledger.pool, store_away)


async def works_of(ledger: Ledger, store_away: str = "") -> dict[str, RunningWork]:
    return {work.id: work for work in (await inputs_of(ledger, store_away)).running}


async def test_running_work_has_what_it_holds_and_what_that_costs(ledger: Ledger) -> None:
    await ledger.register("owned", gpus=2)
    await ledger.register("bought", gpus=4)
    await ledger.rows(
        "INSERT INTO blocks (id, provider, instance_type, tier, price_micro_per_gpu_hour)"
        " VALUES ('block', 'sfcompute', '4xH100', 'FAST', 3100000)"
    )
    await ledger.rows("UPDATE nodes SET block_id = 'block' WHERE id = 'bought'")
    await ledger.enqueue("small", gpus=2, priority=3, tenant="lab", expected_duration="2h")
    await ledger.enqueue("large", gpus=4, priority=4, checkpoint=CONTRACT)
    await ledger.enqueue("waiting", gpus=4, priority=2)
    await ledger.enqueue("kept-back", gpus=1, held=True)
    async with ledger.listening("small", "large"):
        await ledger.cycle("cycle-1")
    inputs = await inputs_of(ledger)
    assert [job.id for job in inputs.queue] == ["waiting"]
    assert [node.id for node in inputs.nodes] == ["bought", "owned"]
    large, small = inputs.running
    assert (small.id, small.nodes, small.gpus) == ("small", ("owned",), 2)
    assert (small.tenant, small.request.priority, small.checkpoint) == ("lab", 3, None)
    assert small.price == PreemptionPolicy().owned_gpu_price
    assert small.expected_end - small.started_at == timedelta(hours=2)
    assert (large.id, large.gpus, large.price) == ("large", 4, 3_100_000)
    assert large.checkpoint is not None
    assert large.checkpoint.saved_at is None
    assert large.checkpoint.grace == timedelta(minutes=2)
    assert large.checkpoint.saves_while_running
    assert large.preempted_at == ()


async def test_earlier_preemptions_are_counted_with_their_times(ledger: Ledger) -> None:
    await ledger.register(gpus=2)
    for attempt, reason in enumerate((LeaseEnd.PREEMPTED, LeaseEnd.HELD, None), 1):
        await ledger.enqueue("job", attempt=attempt, gpus=1)
        async with ledger.listening("job"):
            await ledger.cycle(f"cycle-{attempt}")
        if reason is not None:
            key = PlacementKey(job_id="job", attempt=attempt)
            await ledger.run(ledger.queue.release, ReleaseRequest(key=key, reason=reason))
    work = (await works_of(ledger))["job"]
    ended = await ledger.value(
        "SELECT ended_at FROM placements WHERE job_id = 'job' AND end_reason = 'preempted'"
    )
    assert work.preempted_at == (ended,)
    assert work.request.attempt == 3
    assert work.started_at > ended


async def test_saves_are_those_that_were_observed_in_the_checkpoint_store(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.register(gpus=3)
    for job in ("saved", "never", "shared"):
        contract = CONTRACT | ({"store": False} if job == "shared" else {})
        await ledger.enqueue(job, gpus=1, checkpoint=contract)
    async with ledger.listening("saved", "never", "shared"):
        await ledger.cycle("cycle-1")
    store = CheckpointStore((tmp_path / "store").as_uri())
    folder = write_tree(tmp_path / "saves", {"model.bin": b"x" * 5000})
    now = datetime.now(UTC)
    publish(store, folder, 1, 1, job_id="saved", saved_at=now, write_seconds=12.5)
    observing = CheckpointActivities(ledger.database, store)
    await ledger.run(observing.observe_checkpoints, CheckpointsRequest(pool=ledger.pool))
    works = await works_of(ledger)
    saves = works["saved"].checkpoint
    assert saves is not None
    assert (saves.saved_at, saves.write) == (now, timedelta(seconds=12.5))
    assert saves.size == 5000 / 1e9
    never = works["never"].checkpoint
    assert never is not None
    assert never.saved_at is None
    assert (saves.without_step, never.without_step) == (True, False)
    publish(store, folder, 1, 2, job_id="saved", saved_at=now, step=7)
    await ledger.run(observing.observe_checkpoints, CheckpointsRequest(pool=ledger.pool))
    by_steps = (await works_of(ledger))["saved"].checkpoint
    assert by_steps is not None
    assert not by_steps.without_step
    assert {work.no_store for work in works.values()} == {""}


async def test_a_store_that_is_away_is_said_of_those_that_save_there(ledger: Ledger) -> None:
    await ledger.register(gpus=3)
    await ledger.enqueue("saves", gpus=1, checkpoint=CONTRACT)
    await ledger.enqueue("shared", gpus=1, checkpoint={**CONTRACT, "store": False})
    await ledger.enqueue("plain", gpus=1)
    async with ledger.listening("saves", "shared", "plain"):
        await ledger.cycle("cycle-1")
    works = await works_of(ledger, "no answer")
    assert {name: work.no_store for name, work in works.items()} == {
        "saves": "no answer", "shared": "", "plain": "",
    }  # fmt: skip
