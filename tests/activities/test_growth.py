"""Growth on the capacity database: what it is decided from, and who hears of it how often."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities import growth as growth_step
from longshore.activities.growth import Growths, growth_of
from longshore.activities.growth_inputs import load_elastic, load_idle
from longshore.activities.markets.memory import MarketMemory
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_running
from longshore.activities.views import set_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.elastic import Malleable
from longshore.models.growth import Elastic
from longshore.models.margins import DEFAULT_MARGINS
from longshore.models.market import Level, OrderBook
from longshore.models.messages import LeaseEnd, ReleaseRequest
from longshore.models.placement import PlacementKey
from longshore.models.pool import LEAST_INTERVAL, PoolSpec
from longshore.models.resize import JoinRequest
from longshore.scheduling import growth, speedup
from tests.support.control import on_task_queue
from tests.support.ledger import SUBMITTED_AT, Ledger

SIZES = Malleable(min=1, max=4, serial_fraction=0.1)
SOON = timedelta(microseconds=1)
SAVES = {"folder": "saves", "grace": "0s"}
_BUY = (
    """
    INSERT INTO purchases (id, pool, tenant, tier, state, request, planned, committed, buying)
    VALUES ('p-' || :name, :pool, 'default', 'FAST', 'READY', '{}', 9000000, 9000000, false)""",
    """
    INSERT INTO orders (key, purchase_id, number, option, provider, request, is_machine,
                        gpus_per_node, committed, nodes, state, starts_at, ends_at)
    VALUES (:name, 'p-' || :name, 1, 0, 'own', '{"limit": 2500000}', :by_use, 8, 1, 1,
            'PLACED', now(), now() + interval '5 hours')""",
    """
    INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at, nodes,
                        price_micro_per_gpu_hour, purchase_id, pool)
    VALUES (:name, 'own', '8xH100', 'FAST', now(), now() + interval '5 hours', 1, 1000000,
            'p-' || :name, :pool)""",
    "UPDATE nodes SET block_id = :name WHERE id = :name",
)


async def prices(ledger: Ledger, **policy: object) -> dict[str, int]:
    spec = PoolSpec(name=ledger.pool, buying=BuyingPolicy.model_validate(policy))
    async with ledger.database.transaction() as connection:
        idle = await load_idle(connection, spec, ["owned", "billed", "paid"])
    return {name: node.price for name, node in idle.items()}


async def test_idle_gpus_cost_what_they_would_bring_otherwise(ledger: Ledger):
    for name in ("owned", "billed", "paid"):
        await ledger.register(name)
    for name, by_use in (("billed", True), ("paid", False)):
        for statement in _BUY:
            values = {"name": name, "pool": ledger.pool, "by_use": by_use}
            named = {key: value for key, value in values.items() if f":{key}" in statement}
            await ledger.rows(statement, **named)
    sells = {"enabled": True, "resell": True, "resale_share": 0.5, "resale_fee": 0.1}
    nobody_bids = {"owned": 0, "billed": 1_000_000, "paid": 0}
    assert await prices(ledger, **sells) == nobody_bids
    for bid, ago in ((9_000_000, timedelta(hours=1)), (1_600_000, timedelta(0))):
        book = OrderBook(
            provider="own", instance_type="8xH100", asks=(), bids=(Level(price=bid, gpus=8),),
            observed_at=datetime.now(UTC) - ago, simulated=True,
        )  # fmt: skip
        await MarketMemory(ledger.database).store(book)
    assert await prices(ledger, **sells) == nobody_bids | {"paid": 720_000}
    assert await prices(ledger, **sells | {"resale_share": 1}) == nobody_bids | {"paid": 1_000_000}
    assert await prices(ledger, **sells | {"resell": False}) == nobody_bids
    await ledger.rows("UPDATE blocks SET ends_at = now() + interval '59 minutes'")
    assert await prices(ledger, **sells) == nobody_bids


async def elastic(ledger: Ledger) -> Elastic:
    async with ledger.database.transaction() as connection:
        running = await load_running(connection, ledger.pool)
        (job,) = await load_elastic(connection, PoolSpec(name=ledger.pool), running, ["e"])
    return job


async def test_what_was_saved_and_when_its_size_changed_attempts_say(ledger: Ledger):
    await ledger.register(gpus=2)
    async with ledger.listening("e"):
        for attempt, end in enumerate((LeaseEnd.RESIZED, LeaseEnd.HELD, None), 1):
            await ledger.enqueue("e", attempt=attempt, malleable=SIZES, checkpoint=SAVES)
            await ledger.cycle(f"cycle-{attempt}")
            if end is not None:
                key = PlacementKey(job_id="e", attempt=attempt)
                await ledger.run(ledger.queue.release, ReleaseRequest(key=key, reason=end))
    await ledger.rows(
        "INSERT INTO job_checkpoints (job_id, attempt, number, ranks, bytes, saved_at, simulated)"
        " SELECT job_id, attempt, 1, 1, 0, placed_at + interval '10 minutes', true"
        "   FROM placements WHERE attempt <> 2"
    )
    job = await elastic(ledger)
    assert (job.gpus, job.sizes.target, job.asked.attempt) == (2, 4, 4)
    assert job.done == pytest.approx(600 * SIZES.speed(2))  # of this attempt nothing yet
    ended = await ledger.value("SELECT ended_at FROM placements WHERE end_reason = 'resized'")
    assert job.changed_at == (ended,)


@pytest.mark.parametrize("before", ["H100", "A100"])
async def test_saves_of_two_sizes_on_gpus_of_one_type_measure_the_speed_up(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, before: str
):
    await ledger.register("first", gpus=1, gpu_type=before)
    one = SIZES.model_copy(update={"desired": 1})
    async with ledger.listening("e"):
        for attempt, sizes in enumerate((one, SIZES), 1):
            await ledger.enqueue("e", attempt=attempt, malleable=sizes, checkpoint=SAVES)
            await ledger.cycle(f"cycle-{attempt}")
            if attempt == 1:
                key = PlacementKey(job_id="e", attempt=1)
                ends = ReleaseRequest(key=key, reason=LeaseEnd.RESIZED)
                await ledger.run(ledger.queue.release, ends)
                await ledger.register("second", gpus=2, gpu_type="H100")
    monkeypatch.setattr(speedup, "MEASURED_FOR", SOON)
    await ledger.rows("UPDATE jobs SET spec = jsonb_set(spec, '{malleable,desired}', '4')")
    ran = "SELECT (ended_at - placed_at) / 4 FROM placements WHERE attempt = 1"
    apart = await ledger.value(ran)
    for attempt, between in ((1, apart), (2, apart * 2 / 3)):
        for number in (1, 2):
            assert (await elastic(ledger)).measured is None
            await ledger.rows(
                "INSERT INTO job_checkpoints (job_id, attempt, number, step, ranks, bytes,"
                "                             saved_at, simulated)"
                " SELECT job_id, attempt, :number, 100 * :number, 1, 0,"
                "        placed_at + :number * CAST(:between AS interval), true"
                "   FROM placements WHERE attempt = :attempt",
                attempt=attempt, number=number, between=between,
            )  # fmt: skip
    job = await elastic(ledger)
    if before != "H100":
        assert job.measured is None, "a step takes another time there"
        return
    # A step takes a + b on one GPU, and a + b/2, two thirds of that, on two.
    assert job.measured is not None
    assert job.measured.sizes == (1, 2)
    assert job.sizes.serial_fraction == pytest.approx(1 / 3, rel=1e-3)
    assert job.done == pytest.approx(2 * apart.total_seconds(), rel=1e-3)


async def test_a_gpu_is_idle_since_the_last_job_gave_it_back(ledger: Ledger):
    await ledger.register(gpus=2)
    async with ledger.listening("other"):
        await ledger.enqueue("other", gpus=1)
        await ledger.cycle("first")
    await ledger.finish("other")
    async with ledger.database.transaction() as connection:
        idle = await load_idle(connection, PoolSpec(name=ledger.pool), ["node-a"])
    node = idle["node-a"]
    (row,) = await ledger.rows(
        "SELECT ended_at, gpu_indices[1] AS gpu, registered_at FROM placements, nodes"
    )
    assert node.freed_at == {row["gpu"]: row["ended_at"]}
    assert node.ready_since == row["registered_at"]


@pytest.fixture
async def hungry(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Has a malleable job on 2 of 4 GPUs, of which the others have just become idle; 0.2 s."""
    monkeypatch.setattr(growth, "TO_START", timedelta(0))
    # A look within 0.1 s of the one before is left out, and a fast machine is as fast.
    monkeypatch.setattr(growth_step, "_every", lambda _: 0.0)
    await set_after(ledger, SOON)
    await ledger.register(gpus=4)
    await ledger.enqueue("other", gpus=2)
    async with ledger.listening("other", "e"):
        await ledger.cycle("first")
        await ledger.enqueue("e", malleable=SIZES, checkpoint=SAVES)
        await ledger.cycle("second")
    await ledger.finish("other")
    return ledger


async def set_after(ledger: Ledger, after: timedelta) -> None:
    async with ledger.database.transaction() as connection:
        await set_pool(connection, spec_of(ledger, after))


def spec_of(ledger: Ledger, after: timedelta) -> PoolSpec:
    return PoolSpec(name=ledger.pool, interval=LEAST_INTERVAL, grow_after=after)


async def test_it_is_told_once_and_by_who_comes_after_a_crash_the_same(hungry: Ledger):
    async with hungry.listening("e"):
        reply = await hungry.cycle("third")
        assert reply.next_wake < timedelta(seconds=1)
        await hungry.cycle("fourth")  # it is stopping
        assert await hungry.told("e", "grow") == 1
        nobody = on_task_queue(hungry.temporal, f"nobody-{hungry.pool}")
        for times in (2, 3):  # another process each, which knows nothing
            again = Growths(hungry.database, Signals(nobody))
            await again.after_cycle(spec_of(hungry, SOON), None, hungry=False)
            assert await hungry.told("e", "grow") == times


async def test_who_did_not_grow_though_it_was_told_is_left_alone_for_a_time(
    hungry: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """As where its save fails, or the free node has an older agent: each try costs a save."""
    monkeypatch.setattr(growth_step, "_LONGEST_STOP", -timedelta(hours=1))
    nobody = on_task_queue(hungry.temporal, f"nobody-{hungry.pool}")
    growths = Growths(hungry.database, Signals(nobody))
    async with hungry.listening("e"):
        for _ in range(3):
            await growths.after_cycle(spec_of(hungry, SOON), None, hungry=True)
            growths._known[hungry.pool].next_at = 0.0  # pyright: ignore[reportPrivateUsage]
        assert await hungry.told("e", "grow") == 1


async def test_a_pool_that_switches_it_off_has_nobody_grow(hungry: Ledger):
    await set_after(hungry, timedelta(0))
    async with hungry.listening("e"):
        reply = await hungry.cycle("third")
        assert reply.next_wake == timedelta(minutes=10)
        assert await hungry.told("e", "grow") == 0


async def test_a_pool_without_such_a_job_is_looked_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    await ledger.register(gpus=4)
    await ledger.enqueue("rigid", gpus=2)
    async with ledger.listening("rigid"):
        reply = await ledger.cycle("first")
    assert reply.next_wake == timedelta(minutes=10)
    nowhere = Signals(ledger.temporal)
    looks = Growths(ledger.database, nowhere)
    spec = spec_of(ledger, SOON)
    assert await looks.after_cycle(spec, 2, hungry=False) is None
    monkeypatch.setattr(ledger.database, "transaction", None)  # and asked no more
    assert await looks.after_cycle(spec, 2, hungry=False) is None


GANG: dict[str, Any] = {
    "gpus": 8, "gang": {"unlabelled_nodes": True}, "expected_duration": timedelta(hours=4),
    "malleable": Malleable(min=2, max=8, step=2, in_place=True),
    "checkpoint": {"folder": "saves", "save_file": True, "grace": "0s"},
}  # fmt: skip


def joining(ledger: Ledger, gpus: int) -> JoinRequest:
    return JoinRequest(
        key=PlacementKey(job_id="e", attempt=1), spec=ledger.spec(**GANG),
        submitted_at=SUBMITTED_AT, gpus=gpus, first_rank=1, by_user=False, message="grown",
    )  # fmt: skip


@pytest.mark.parametrize("young", ["b", "c", "d"])
async def test_it_grows_by_the_groups_that_are_idle_for_long_enough(ledger: Ledger, young: str):
    await set_after(ledger, after := timedelta(minutes=5))
    await ledger.register("a")
    await ledger.enqueue("e", **GANG)
    async with ledger.listening("e"):
        await ledger.cycle("first")
        for node in "bcd":
            await ledger.register(node)
        await ledger.rows(
            "UPDATE nodes SET registered_at = clock_timestamp() - interval '10 minutes'"
            " WHERE id <> :young",
            young=young,
        )
        why = await growth_of(ledger.database, ledger.pool, "e", DEFAULT_MARGINS)
        assert why is not None
        assert (why.grows, why.gpus, why.to) == (True, 2, 6)
        nobody = on_task_queue(ledger.temporal, f"nobody-{ledger.pool}")
        spec = PoolSpec(name=ledger.pool, interval=LEAST_INTERVAL, grow_after=after)
        await Growths(ledger.database, Signals(nobody)).after_cycle(spec, 6, hungry=False)
        (told,) = await ledger.signals("e", "grow")
        assert (told["gpus_before"], told["gpus"]) == (2, 6)
        assert told["reason"].startswith("grown in place from 2 to 6 GPUs: it ends ")
    # It has saved by now, and asks for its ranks: nobody who waits could use what it takes.
    await ledger.enqueue("behind", gpus=2, priority=0)
    refused = await ledger.run(ledger.joins.join_ranks, joining(ledger, 6))
    assert refused.ranks == ()
    assert refused.reason == "2 of 8 desired GPUs: behind waits, and could run there"
    await ledger.finish("behind")
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 6))
    assert {rank.node_id for rank in reply.ranks} == set("abcd") - {young}, reply.reason
    assert await ledger.drift() == []


async def test_it_grows_by_the_groups_that_earn_their_price(ledger: Ledger):
    """On 2, 4, 6 and 8 GPUs it is 1.67, 2.5, 3 and 3.33 times as fast as on one: 8 hours become
    5.33, 4.44 and 4. That earns $13.17, $17.56 and $19.75 and costs $8.00, $13.33 and $18.00."""
    await set_after(ledger, timedelta(minutes=5))
    sizes = GANG["malleable"].model_copy(update={"serial_fraction": 0.2})
    await ledger.register("a")
    await ledger.enqueue("e", **{**GANG, "malleable": sizes, "priority": 2})
    async with ledger.listening("e"):
        await ledger.cycle("first")
        for node in "bcd":
            await ledger.register(node)
            for statement in _BUY:
                values = {"name": node, "pool": ledger.pool, "by_use": True}
                named = {key: value for key, value in values.items() if f":{key}" in statement}
                await ledger.rows(statement, **named)
        await ledger.rows("UPDATE blocks SET price_micro_per_gpu_hour = 750000")
        await ledger.rows(
            "UPDATE nodes SET registered_at = clock_timestamp() - interval '10 minutes'"
        )
        why = await growth_of(ledger.database, ledger.pool, "e", DEFAULT_MARGINS)
        assert why is not None
        assert (why.grows, why.to) == (True, 4), why.reason
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 4))
    assert len(reply.ranks) == 2, reply.reason
    assert await ledger.drift() == []
