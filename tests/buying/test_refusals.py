"""What the database refuses of buying: over a cap, while it is stopped, twice, rewritten."""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from longshore.activities.buying import order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.decisions import caps_left
from longshore.activities.buying.ledger import book_cost, book_use
from longshore.activities.buying.orders import OrderActivities
from longshore.activities.buying.purchasing import PurchasingActivities
from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.database import Database
from longshore.activities.queue_rows import ensure_pool
from longshore.activities.views import set_pool
from longshore.models.buying_policy import BuyingPolicy, Caps
from longshore.models.caps_left import CapOf, CapsLeft
from longshore.models.job import Tier
from longshore.models.pool import PoolSpec
from longshore.models.purchase import (
    Opened,
    OrderIntent,
    PurchaseRequest,
    PurchaseState,
    RequoteRequest,
    StateChange,
)
from longshore.models.settings import Settings
from longshore.models.text import format_dollars
from tests.buying.buyer import DOLLAR, block_option
from tests.support.ledger import WAITING_FOR_LOCKS
from tests.support.waiting import eventually

COST = 20 * DOLLAR
"""Of a purchase of one node for an hour, at most."""


class Till:
    """The activities of purchases on one database."""

    def __init__(self, database: Database, temporal: Client, settings: Settings) -> None:
        self.database = database
        self.steps = PurchasingActivities(database, temporal)
        self.orders = OrderActivities(database, temporal, settings)
        self.switch = BuyingSwitch(database)

    async def open(self, purchase_id: str, **changes: Any) -> Opened:
        request = PurchaseRequest.model_validate({"options": (block_option(),), **changes})
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(
            environment.info, workflow_id=f"purchase-{purchase_id}"
        )
        return await environment.run(self.steps.open_purchase, request)

    async def intend(self, purchase_id: str, number: int = 1) -> str:
        intent = OrderIntent(
            purchase_id=purchase_id, number=number, option=0, nodes=1, limit=5 * DOLLAR // 2
        )
        return (await ActivityEnvironment().run(self.orders.intend_order, intent)).refused

    async def caps_left(self, pool: PoolSpec) -> CapsLeft:
        async with self.database.transaction() as connection:
            return await caps_left(connection, pool, ["default"])

    async def settle(self, purchase_id: str) -> None:
        change = StateChange(purchase_id=purchase_id, state=PurchaseState.COMPENSATING)
        await ActivityEnvironment().run(self.steps.settle_purchase, change)

    async def value(self, statement: str) -> Any:
        async with self.database.transaction() as connection:
            return await connection.scalar(text(statement))


@pytest.fixture
async def till(temporal: Client, settings: Settings, database_url: str) -> AsyncIterator[Till]:
    """Purchases on a database of the test's own, at markets that nobody asks; 0.1 s."""
    database = Database(database_url, pool_size=25)
    with_market = settings.model_copy(
        update={
            "sfcompute_url": "http://127.0.0.1:9",
            "sfcompute_token": SecretStr("worth-nothing"),
        }
    )
    yield Till(database, temporal, with_market)
    await database.close()


@pytest.mark.parametrize(
    ("scope", "name"),
    [("day", "*"), ("pool", "default"), ("tenant", "default"), ("tier", "FAST"), ("tier", "*")],
)
async def test_twenty_purchases_that_race_for_the_last_dollars_stay_within_the_cap(
    till: Till, scope: str, name: str
):
    await till.switch.set_cap(scope, name, 7 * COST)
    opened = await asyncio.gather(*(till.open(f"p-{number}") for number in range(20)))
    states = [each.state for each in opened]
    assert states.count(PurchaseState.INTENT) == 7
    assert states.count(PurchaseState.REFUSED) == 13
    assert await till.value("SELECT sum(committed) FROM purchases") == 7 * COST
    assert all("is the most" in each.reason for each in opened if each.state.over)


NO_CAPS = Caps(per_day=None)


@pytest.mark.parametrize(
    ("scope", "name", "of", "named", "left"),
    [
        ("day", "*", CapOf.DAY, "day", 2),
        ("pool", "default", CapOf.DAY, "pool=default", 2),
        ("pool", "*", CapOf.DAY, "pool=default", 2),
        ("tier", "FAST", CapOf.TIER, "tier=FAST", 2),
        ("tenant", "default", CapOf.TENANT, "tenant=default", 2),
        ("tenant", "*", CapOf.TENANT, "tenant=default", 2),
        ("purchase", "*", CapOf.PURCHASE, "purchase", 3),
    ],
)  # fmt: skip
async def test_a_decision_knows_the_caps_that_the_database_keeps(
    till: Till, scope: str, name: str, of: CapOf, named: str, left: int
):
    await till.switch.set_cap(scope, name, 3 * COST)
    assert (await till.open("p-1")).state is PurchaseState.INTENT
    caps = await till.caps_left(PoolSpec(name="default", buying=BuyingPolicy(caps=NO_CAPS)))
    assert [(cap.of, cap.scope, cap.most, cap.left) for cap in caps.caps] == [
        (of, named, 3 * COST, left * COST)
    ]


async def test_a_pools_own_caps_and_the_databases_all_count_the_lowest_first(till: Till):
    policy = BuyingPolicy(caps=Caps(per_day=5 * COST, per_tenant_day=2 * COST))
    pool = PoolSpec(name="default", buying=policy)
    await till.switch.set_cap("day", "*", 6 * COST)
    await till.switch.set_cap("tenant", "default", COST)
    assert (await till.open("p-1")).state is PurchaseState.INTENT
    caps = await till.caps_left(pool)
    assert [(cap.of, cap.name, cap.scope, cap.left) for cap in caps.caps] == [
        (CapOf.DAY, "", "", 4 * COST),
        (CapOf.DAY, "", "day", 5 * COST),
        (CapOf.TENANT, "default", "tenant=default", 0),
        (CapOf.TENANT, "default", "", COST),
    ]


async def test_of_a_cap_below_what_is_committed_it_is_known_how_far(till: Till):
    """What it would have to be counts from what is committed."""
    assert (await till.open("p-1")).state is PurchaseState.INTENT
    await till.switch.set_cap("day", "*", COST // 4)
    caps = await till.caps_left(PoolSpec(name="default", buying=BuyingPolicy(caps=NO_CAPS)))
    assert [cap.left for cap in caps.caps] == [COST // 4 - COST]


async def test_what_was_not_spent_is_free_for_others(till: Till):
    await till.switch.set_cap("day", "*", COST)
    assert (await till.open("p-1")).state is PurchaseState.INTENT
    assert (await till.open("p-2")).state is PurchaseState.REFUSED
    await till.settle("p-1")
    assert (await till.open("p-3")).state is PurchaseState.INTENT
    assert await till.value("SELECT committed FROM purchase_sums WHERE scope = 'day'") == COST


async def test_one_purchase_has_a_cap(till: Till):
    await till.switch.set_cap("purchase", "*", COST - 1)
    refused = await till.open("p-1")
    assert refused.state is PurchaseState.REFUSED
    cost, cap = format_dollars(COST), format_dollars(COST - 1)
    assert refused.reason == f"it may cost {cost}, and a purchase may cost {cap} at most"
    await till.switch.set_cap("purchase", "*", COST)
    assert (await till.open("p-2")).state is PurchaseState.INTENT


@pytest.mark.parametrize(
    "caps",
    [
        Caps(per_purchase=COST - 1),
        Caps(per_day=COST - 1),
        Caps(per_tier_day={Tier.FAST: COST - 1}),
        Caps(per_tenant_day=COST - 1),
    ],
)
async def test_the_caps_of_a_pools_policy_hold_too(till: Till, caps: Caps):
    async with till.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name="capped", buying=BuyingPolicy(caps=caps)))
    assert (await till.open("p-1", pool="capped")).state is PurchaseState.REFUSED
    assert (await till.open("p-2", pool="other")).state is PurchaseState.INTENT


async def test_nothing_is_bought_while_buying_is_stopped(till: Till):
    assert (await till.open("p-1")).state is PurchaseState.INTENT
    await till.switch.stop("prices have gone mad")
    refused = await till.open("p-2")
    assert refused.state is PurchaseState.REFUSED
    assert refused.reason == "buying is stopped: prices have gone mad"
    assert await till.intend("p-1") == "buying is stopped: prices have gone mad"
    await till.switch.resume()
    assert (await till.open("p-3")).state is PurchaseState.INTENT
    assert await till.intend("p-1") == ""


async def test_an_order_is_made_only_as_the_policy_of_now_lets_it(till: Till):
    """Of a purchase that its pool decided, whatever the policy was then."""

    async def sets(**policy: Any) -> None:
        spec = PoolSpec(name="default", buying=BuyingPolicy.model_validate(policy))
        async with till.database.transaction() as connection:
            await set_pool(connection, spec)

    await sets(enabled=True)
    assert (await till.open("p-held", decision={"serves": []})).state is PurchaseState.INTENT
    assert await till.intend("p-held") == ""
    await sets(enabled=True, max_price={"FAST": DOLLAR // 100})
    assert "`max_price.FAST` is $0.01 now" in await till.intend("p-held", 2)
    await sets(enabled=False)
    assert "`enabled`" in await till.intend("p-held", 2)
    requote = RequoteRequest(purchase_id="p-held", option=0, nodes=1)
    quote = await ActivityEnvironment().run(till.orders.requote, requote)
    assert quote.limit is None
    assert "`enabled`" in quote.reason
    assert await till.intend("p-held") == "", "it was stored before: a repeat finds it"
    await sets(enabled=True)
    assert await till.intend("p-held", 2) == ""


async def test_whoever_stops_buying_waits_for_intents_that_are_being_stored(till: Till):
    async with till.database.transaction() as connection:
        await ensure_pool(connection, "default")
        request = PurchaseRequest(options=(block_option(),))
        await rows.insert_purchase(connection, "p-1", request)
        stopping = asyncio.create_task(till.switch.stop("now"))
        await eventually(lambda: till.value(WAITING_FOR_LOCKS))
        assert not stopping.done()
    await stopping
    assert (await till.open("p-2")).state is PurchaseState.REFUSED


async def test_a_request_beyond_the_bounds_is_refused(till: Till):
    with pytest.raises(ApplicationError, match="options: has 101 entries; 100 is the most") as no:
        await till.open("p-1", options=(block_option(),) * 101)
    assert no.value.non_retryable
    assert await till.value("SELECT count(*) FROM purchases") == 0


@pytest.mark.parametrize("odd", ["", "_x", "x-", "X", "a b", "x" * 41])
async def test_an_id_that_names_no_machine_is_refused(till: Till, odd: str):
    with pytest.raises(ApplicationError, match="the workflow id must be purchase- and 1") as no:
        await till.open(odd)
    assert no.value.non_retryable
    assert await till.value("SELECT count(*) FROM purchases") == 0
    assert (await till.open("x" * 40)).state is PurchaseState.INTENT


async def test_a_step_that_runs_twice_stores_once(till: Till):
    assert (await till.open("p-1")).state is PurchaseState.INTENT
    assert (await till.open("p-1")).state is PurchaseState.INTENT
    assert await till.intend("p-1") == ""
    assert await till.intend("p-1") == ""
    assert await till.value("SELECT count(*) FROM orders") == 1
    assert await till.value("SELECT committed FROM purchases") == COST


@pytest.mark.parametrize("change", ["UPDATE ledger SET micro = 1", "DELETE FROM ledger"])
async def test_a_row_of_the_ledger_is_never_rewritten(till: Till, change: str):
    await filled(till, [5])
    with pytest.raises(DBAPIError, match="never rewritten"):
        await till.value(change)


@hypothesis_settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    totals=st.lists(st.integers(0, 10**9), min_size=1, max_size=6),
    leases=st.lists(
        st.tuples(st.integers(0, 7), st.integers(-30, 60), st.integers(0, 90)), max_size=8
    ),
)
async def test_the_ledger_balances_whatever_was_bought_and_used(
    till: Till, totals: list[int], leases: list[tuple[int, int, int]]
):
    """Costs that come late, rise and fall; leases that begin before and end after the block."""
    key = await filled(till, totals)
    async with till.database.transaction() as connection:
        for gpu, start, length in leases:
            await lease(connection, key, gpu, start, start + length)
        order = await order_rows.lock(connection, key)
        block = (await connection.execute(
            text("UPDATE blocks SET state = 'ENDED', ended_at = ends_at WHERE id = :key"
                 " RETURNING *"), {"key": key}
        )).mappings().one()  # fmt: skip
        used, idle = await book_use(connection, block, order.spent)
    assert used >= 0
    assert idle >= 0
    assert used + idle == totals[-1] == order.spent
    assert await till.value(f"SELECT coalesce(sum(micro), 0) FROM balances"
                            f" WHERE account = 'block:{key}'") == 0  # fmt: skip
    assert await till.value("SELECT coalesce(sum(micro), 0) FROM balances") == 0


async def test_a_job_on_a_part_of_a_gpu_pays_for_that_part(till: Till):
    key = await filled(till, [8_000_000])
    async with till.database.transaction() as connection:
        await lease(connection, key, 0, 0, 30, milli=1000)
        await lease(connection, key, 1, 0, 60, milli=250)
        order = await order_rows.lock(connection, key)
        ended = await connection.execute(
            text("UPDATE blocks SET state = 'ENDED', ended_at = ends_at WHERE id = :key"
                 " RETURNING *"), {"key": key}
        )  # fmt: skip
        used, idle = await book_use(connection, ended.mappings().one(), order.spent)
    assert (used, idle) == (500_000 + 250_000, 7_250_000)


async def lease(
    connection: AsyncConnection, key: str, gpu: int, start: int, end: int, milli: int = 1000
) -> None:
    """Write that a job held a GPU of the block, in minutes since its start."""
    values = {"key": key, "job": f"job-{uuid.uuid4().hex}", "gpu": gpu, "start": start, "end": end,
              "milli": milli}  # fmt: skip
    for statement in _LEASE:
        await connection.execute(text(statement), values)


async def filled(till: Till, totals: list[int]) -> str:
    """Store a purchase whose cost went through these totals; return the key of its order."""
    number = await till.value("SELECT count(*) FROM purchases")
    await till.open(f"p-{number}")
    await till.intend(f"p-{number}")
    key = f"p-{number}.1"
    async with till.database.transaction() as connection:
        await connection.execute(
            text("INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at,"
                 " price_micro_per_gpu_hour, purchase_id, nodes)"
                 " SELECT key, provider, '8xH100', 'FAST', starts_at, ends_at, 0, purchase_id, 1"
                 " FROM orders WHERE key = :key"),
            {"key": key},
        )  # fmt: skip
        for total in totals:
            order = await order_rows.lock(connection, key)
            await book_cost(connection, order, total, simulated=True)
    return key


_LEASE = (
    "INSERT INTO nodes (id, pool, block_id, provider, tier, state, state_reason, epoch, agent_id,"
    " boot_id, hostname, agent_version, simulated, gpu_type, cpu_milli, ram_mb, labels)"
    " VALUES (:key, 'default', :key, 'sfcompute', 'FAST', 'READY', '', 1, 'a', 'b', 'h', '1',"
    " true, 'H100', 64000, 64000, '{}') ON CONFLICT DO NOTHING",
    "INSERT INTO gpus (node_id, index, model, uuid, vram_mb)"
    " SELECT :key, g, 'H100', '', 80000 FROM generate_series(0, 7) AS g ON CONFLICT DO NOTHING",
    "INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)"
    " VALUES (:job, 'job', 'default', 'default', '{}', now(), '')",
    "INSERT INTO cycles (id, pool, queued, placed, refused, took_ms)"
    " VALUES (:job, 'default', 1, 1, 0, 0)",
    "INSERT INTO placements (job_id, attempt, cycle_id, node_id, epoch, gpu_indices, cpu_milli,"
    " ram_mb, vram_mb, expected_seconds, decision)"
    " VALUES (:job, 1, :job, :key, 1, ARRAY[CAST(:gpu AS integer)], 1, 1, 1, 60, '{}')",
    "INSERT INTO leases (job_id, attempt, node_id, epoch, gpu_index, vram_mb, tenant, milli,"
    " started_at)"
    " SELECT :job, 1, :key, 1, :gpu, 1, 'default', :milli,"
    " starts_at + make_interval(mins => :start) FROM blocks WHERE id = :key",
    "UPDATE placements SET end_reason = 'finished', ended_at ="
    " (SELECT starts_at + make_interval(mins => :end) FROM blocks WHERE id = :key)"
    " WHERE job_id = :job",
)
"""What a cycle and the end of a job write. A GPU may have been held by one job after the other."""
