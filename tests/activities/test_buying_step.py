"""A decision about buying is made from one moment of the database."""

import asyncio
import errno
import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.block_scene import CLOSED_SINCE
from longshore.activities.buying.decisions import BuyingActivities
from longshore.activities.buying.inputs import read_need
from longshore.activities.usage import load_pool_to_plan
from longshore.activities.views import set_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.departures import disk_refuses
from longshore.models.funding import Quotas
from longshore.models.margins import DEFAULT_MARGINS
from longshore.models.market import Offer
from longshore.models.money import MICRO
from longshore.models.pool import PoolSpec
from longshore.models.purchase import Bought, BuyingRequest, PurchaseOption, PurchaseRequest
from longshore.models.settings import Settings
from tests.support.funding import tenant
from tests.support.ledger import WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually

_STARTING = (
    "UPDATE purchases SET state = 'STARTING' WHERE id = 'p-1'",
    "INSERT INTO orders (key, purchase_id, number, option, provider, request, state,"
    " is_machine, gpus_per_node, nodes, committed)"
    " VALUES ('p-1.1', 'p-1', 1, 0, 'sfcompute', '{}', 'PLACED', false, 8, 1, 0)",
    "INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at,"
    " price_micro_per_gpu_hour, purchase_id, pool, nodes)"
    " VALUES ('p-1.1', 'sfcompute', '8xH100', 'FAST', now(), now() + interval '2 hours', 0, 'p-1',"
    " :pool, 1)",
    "INSERT INTO machines (name, purchase_id, block_id, provider, state)"
    " VALUES ('p-1.1.m1', 'p-1', 'p-1.1', 'sfcompute', 'STARTING')",
)
COMES = "nothing more is lacking: p-1, under way, will hold 1 job"
_NODE = (
    "INSERT INTO nodes (id, pool, block_id, provider, tier, state, state_reason, epoch, agent_id,"
    " boot_id, hostname, agent_version, simulated, gpu_type, cpu_milli, ram_mb, labels)"
    " VALUES ('p-1.1.m1', :pool, 'p-1.1', 'sfcompute', 'FAST', 'READY', '', 1, 'a', 'b', 'h', '1',"
    " true, 'H100', 64000, 64000, '{}')",
    "INSERT INTO gpus (node_id, index, model, uuid, vram_mb)"
    " SELECT 'p-1.1.m1', g, 'H100', '', 80000 FROM generate_series(0, 7) AS g",
)


@pytest.fixture
async def waiting(ledger: Ledger) -> Ledger:
    """A pool that may buy, a job that waits, and a machine that was bought for it and starts."""
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True)))
    await _buy(ledger, "p-1")
    await ledger.enqueue("a", gpus=8, expected_duration="10m")
    return ledger


async def _buy(ledger: Ledger, purchase_id: str) -> None:
    option = PurchaseOption(
        provider="sfcompute", instance_type="8xH100", gpus_per_node=8, length=timedelta(hours=2),
        limit=2_000_000,
    )  # fmt: skip
    request = PurchaseRequest(
        pool=ledger.pool, options=(option,), ready_within=timedelta(minutes=5)
    )
    async with ledger.database.transaction() as connection:
        await rows.insert_purchase(connection, purchase_id, request)
        for statement in _STARTING:
            named = statement.replace("p-1", purchase_id)
            await connection.execute(text(named), {"pool": ledger.pool})


async def test_a_machine_that_becomes_a_node_while_is_decided_is_not_bought_again(waiting: Ledger):
    """It is one or the other in each moment; read in two moments it would be neither."""
    async with waiting.database.transaction() as other:
        await other.execute(text("LOCK TABLE blocks IN ACCESS EXCLUSIVE MODE"))
        deciding = asyncio.create_task(_decide(waiting))
        # It has read the nodes, and is about to read what is under way.
        await eventually(lambda: waiting.value(WAITING_FOR_LOCKS))
        for statement in _NODE:
            await other.execute(text(statement), {"pool": waiting.pool})
    assert await deciding == Bought(reason=COMES)


@pytest.fixture
async def bought_for_b(waiting: Ledger) -> Ledger:
    """What was bought is a node, was bought for a job of a tenant, and does not hold it."""
    await tenant(waiting, "red", budget=False)
    await waiting.enqueue("b", gpus=8, expected_duration="10m", tenant="red")
    await _comes(waiting, "p-1")
    return waiting


async def _tries(ledger: Ledger) -> dict[str, bool]:
    """Return what was bought for that job, and whether it was kept back meanwhile."""
    async with ledger.database.snapshot() as connection:
        pool = await load_pool_to_plan(connection, ledger.pool, DEFAULT_MARGINS)
        need = await read_need(connection, pool)
    bought = next(job.bought for job in need.unmet.jobs if job.request.id == "b")
    assert all(each.ready for each in bought)
    return {each.purchase_id: each.kept_back for each in bought}


async def _allow(ledger: Ledger, most: int) -> None:
    quotas = Quotas(max_gpus=most).model_dump_json(exclude_none=True)
    await ledger.rows(
        "UPDATE tenants SET quotas = CAST(:quotas AS jsonb) WHERE name = 'red'", quotas=quotas
    )


async def _ends(ledger: Ledger, purchase_id: str, ago: timedelta = timedelta(0)) -> None:
    await ledger.rows(
        "UPDATE nodes SET state = 'GONE', state_since = clock_timestamp() - CAST(:ago AS interval)"
        " WHERE starts_with(id, :id || '.')", id=purchase_id, ago=ago,
    )  # fmt: skip


async def _comes(ledger: Ledger, purchase_id: str) -> None:
    """Have the machine of a purchase become a node, and its purchase be one for that job."""
    async with ledger.database.transaction() as connection:
        for statement in _NODE:
            named = statement.replace("p-1", purchase_id)
            await connection.execute(text(named), {"pool": ledger.pool})
    await ledger.rows(
        "UPDATE purchases SET decision = CAST(:decision AS jsonb), created_at = clock_timestamp()"
        " WHERE id = :id", id=purchase_id, decision=json.dumps({"serves": ["b"]}),
    )  # fmt: skip


async def test_what_stood_idle_while_a_quota_kept_its_job_back_was_not_bought_in_vain(
    bought_for_b: Ledger,
):
    await _decide(bought_for_b)
    assert await _tries(bought_for_b) == {"p-1": False}, "it might have started there"
    await _allow(bought_for_b, 4)
    await _decide(bought_for_b)
    assert await _tries(bought_for_b) == {"p-1": False}, "it is there yet"
    await _ends(bought_for_b, "p-1")
    assert await _tries(bought_for_b) == {"p-1": True}
    await _allow(bought_for_b, 8)
    await _decide(bought_for_b)
    assert await _tries(bought_for_b) == {"p-1": True}, "it is there no longer"


async def test_what_kept_its_job_back_before_or_after_forgives_nothing(bought_for_b: Ledger):
    await _allow(bought_for_b, 4)
    await _decide(bought_for_b)
    await _allow(bought_for_b, 8)
    await _decide(bought_for_b)
    await _ends(bought_for_b, "p-1")
    assert await _tries(bought_for_b) == {"p-1": False}, "it might have started there"
    await _allow(bought_for_b, 4)
    await _decide(bought_for_b)
    assert await _tries(bought_for_b) == {"p-1": False}


@pytest.mark.parametrize(
    ("ago", "every", "kept_back"), [(1, 1, True), (3, 1, False), (19, 10, True), (21, 10, False)]
)
async def test_of_what_was_there_between_two_looks_the_next_look_tells(
    bought_for_b: Ledger, ago: int, every: int, kept_back: bool
):
    await _allow(bought_for_b, 4)
    await _ends(bought_for_b, "p-1", timedelta(minutes=ago))
    await _decide(bought_for_b, buying_every=timedelta(minutes=every))
    assert await _tries(bought_for_b) == {"p-1": kept_back}


async def test_a_purchase_stays_forgiven_when_the_next_one_is(bought_for_b: Ledger):
    await _allow(bought_for_b, 4)
    await _decide(bought_for_b)
    await _ends(bought_for_b, "p-1", timedelta(hours=1))
    await _buy(bought_for_b, "p-2")
    await _comes(bought_for_b, "p-2")
    await _decide(bought_for_b)
    await _ends(bought_for_b, "p-2", timedelta(minutes=3))
    assert await _tries(bought_for_b) == {"p-1": True, "p-2": True}


async def test_what_a_worker_of_the_version_before_has_forgiven_stays_so(bought_for_b: Ledger):
    await _ends(bought_for_b, "p-1", timedelta(minutes=10))
    for ago, kept_back in ((13, False), (11, True), (9, True), (7, False)):
        await bought_for_b.rows(
            "UPDATE queue SET kept_back_at = clock_timestamp() - CAST(:ago AS interval)"
            " WHERE job_id = 'b'", ago=timedelta(minutes=ago),
        )  # fmt: skip
        assert await _tries(bought_for_b) == {"p-1": kept_back}


async def test_a_look_of_ones_own_tells_more_than_that_of_the_version_before(
    bought_for_b: Ledger,
):
    await _decide(bought_for_b)
    await _ends(bought_for_b, "p-1")
    await bought_for_b.rows("UPDATE queue SET kept_back_at = clock_timestamp() WHERE job_id = 'b'")
    assert await _tries(bought_for_b) == {"p-1": False}


async def test_what_a_worker_of_the_version_before_saw_after_that_look_tells_more(
    bought_for_b: Ledger,
):
    await _decide(bought_for_b)
    await bought_for_b.rows("UPDATE queue SET kept_back_at = clock_timestamp() WHERE job_id = 'b'")
    await _ends(bought_for_b, "p-1")
    await _allow(bought_for_b, 4)
    await _decide(bought_for_b)
    assert await _tries(bought_for_b) == {"p-1": True}


async def test_workers_of_the_version_before_read_what_others_saw(bought_for_b: Ledger):
    said = "SELECT kept_back_at >= clock_timestamp() - interval '1 minute' FROM queue q" \
        " WHERE job_id = 'b'"  # fmt: skip
    for allowed, kept_back in ((4, True), (8, None), (4, True)):
        await _allow(bought_for_b, allowed)
        await _decide(bought_for_b)
        assert await bought_for_b.value(said) is kept_back
    await _allow(bought_for_b, 8)
    await _ends(bought_for_b, "p-1")
    await bought_for_b.rows("UPDATE queue SET kept_back_at = NULL")
    await _decide(bought_for_b)
    assert await bought_for_b.value(said) is True, "as the last look while it was there said"


@pytest.mark.parametrize(
    ("why", "closed"),
    [("a new disk", True), (disk_refuses(errno.EROFS), True), (disk_refuses(errno.ENOSPC), False),
     (None, False)],
)  # fmt: skip
async def test_a_node_is_closed_where_it_does_not_open_by_itself(
    waiting: Ledger, why: str | None, closed: bool
):
    async with waiting.database.transaction() as connection:
        for statement in _NODE:
            await connection.execute(text(statement), {"pool": waiting.pool})
    await waiting.rows("UPDATE nodes SET state = 'DRAINING', drain_reason = :why", why=why)
    (node,) = await waiting.rows(f"SELECT {CLOSED_SINCE} AS since, n.state_since FROM nodes n")
    assert node["since"] == (node["state_since"] if closed else None)
    await waiting.rows("UPDATE nodes SET state = 'GONE'")
    (node,) = await waiting.rows(f"SELECT {CLOSED_SINCE} AS since, n.state_since FROM nodes n")
    assert node["since"] == node["state_since"], "its agent has left"


async def test_a_machine_on_its_way_has_what_its_offer_promised(ledger: Ledger):
    """With what machines of its type usually have it would be too small for the job that it was
    bought for, and the same would be bought again and again until it is a node."""
    offer = Offer(
        id="row-1", provider="prime", instance_type="1xH100-80GB", gpus=1, price=2 * MICRO,
        cpus=30, ram=200,
    )  # fmt: skip
    option = PurchaseOption(
        provider="prime", instance_type=offer.instance_type, gpus_per_node=1,
        length=timedelta(hours=2), limit=offer.price, offer=offer,
    )  # fmt: skip
    spec = PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True))
    request = PurchaseRequest(pool=ledger.pool, options=(option,))
    async with ledger.database.transaction() as connection:
        await set_pool(connection, spec)
        await rows.insert_purchase(connection, "p-1", request)
    await ledger.enqueue("a", gpus=1, cpus=30, expected_duration="10m")
    assert await _decide(ledger) == Bought(reason=COMES)


async def _decide(ledger: Ledger, **settings: Any) -> Bought:
    steps = BuyingActivities(ledger.database, Settings(market="off", **settings))
    request = BuyingRequest(pool=ledger.pool, decision_id="now")
    return await ledger.run(steps.decide_buying, request)
