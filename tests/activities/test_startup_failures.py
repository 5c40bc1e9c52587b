"""Paid time on which machines fail again and again is for sale, and then nothing starts there."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.sale_rows import insert_sale
from longshore.activities.buying.startup_failures import (
    FAILURES,
    failed_machines,
    fails_again,
    may_start,
    nodes_left,
)
from longshore.activities.database import clock
from longshore.activities.views import set_pool
from longshore.models.block_end import SaleIntent
from longshore.models.buying import BuyingPolicy
from longshore.models.errors import StaleError
from longshore.models.market import Window
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseOption, PurchaseRequest
from tests.support.ledger import WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually

BLOCK = "p-1.1"
WITHIN = timedelta(minutes=5)
_BLOCK = (
    "INSERT INTO orders (key, purchase_id, number, option, provider, request, state,"
    " is_machine, gpus_per_node, nodes, committed)"
    " VALUES ('p-1.1', 'p-1', 1, 0, 'sfcompute', '{}', 'PLACED', false, 8, 1, 0)",
    "INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at, account,"
    " price_micro_per_gpu_hour, purchase_id, pool, nodes)"
    " VALUES ('p-1.1', 'sfcompute', '8xH100', 'FAST', now(), now() + interval '4 hours', 'a', 0,"
    " 'p-1', :pool, 1)",
)


class Failing:
    """A block whose machines fail, one after the other."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.names: list[str] = []

    async def run(self, statement: str) -> None:
        async with self.ledger.database.transaction() as connection:
            await connection.execute(text(statement))

    async def machine(self, state: str) -> None:
        name = f"{BLOCK}.m{len(self.names) + 1}"
        self.names.append(name)
        await self.run(
            "INSERT INTO machines (name, purchase_id, block_id, provider, state, asked_at,"
            f" created_at) VALUES ('{name}', 'p-1', '{BLOCK}', 'sfcompute', '{state}',"
            " clock_timestamp(), clock_timestamp())"
        )

    async def for_sale(self, later: timedelta = 2 * WITHIN) -> list[str]:
        async with self.ledger.database.transaction() as connection:
            now = await clock(connection) + later
            return list(await failed_machines(connection, BLOCK, now))

    async def sell(self, machine: str) -> None:
        async with self.ledger.database.transaction() as connection:
            now = await clock(connection)
            window = Window(start=now, end=now + timedelta(hours=2))
            await insert_sale(
                connection,
                SaleIntent(block_id=BLOCK, number=1, machine=machine, window=window, limit=1,
                           fee_bps=0, fee_flat=0),
            )  # fmt: skip


@pytest.fixture
async def failing(ledger: Ledger) -> Failing:
    """A block of one node whose machines have failed once less than its time is sold for."""
    option = PurchaseOption(
        provider="sfcompute", instance_type="8xH100", gpus_per_node=8, length=timedelta(hours=4),
        limit=2_000_000,
    )  # fmt: skip
    request = PurchaseRequest(pool=ledger.pool, options=(option,), ready_within=WITHIN)
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True)))
        await rows.insert_purchase(connection, "p-1", request)
        for statement in _BLOCK:
            await connection.execute(text(statement), {"pool": ledger.pool})
    found = Failing(ledger)
    for _ in range(FAILURES - 1):
        await found.machine("FAILED")
    return found


async def test_it_is_for_sale_after_so_many_failures_for_each_node_and_once_it_is_late(
    failing: Failing,
):
    assert await failing.for_sale() == []
    await failing.machine("ENDED")
    assert await failing.for_sale() == failing.names[-1:]
    assert await failing.for_sale(WITHIN / 2) == []
    async with failing.ledger.database.transaction() as connection:
        assert await fails_again(connection, BLOCK)
    await failing.run("UPDATE blocks SET nodes = 2")
    assert await failing.for_sale() == [], "so many failures are those of one node"
    await failing.machine("STARTING")
    await failing.run("UPDATE blocks SET nodes = 1")
    assert await failing.for_sale() == [], "the next may come up"


async def test_either_the_sale_or_the_next_start_gets_the_time(failing: Failing):
    await failing.machine("FAILED")
    (machine,) = await failing.for_sale()
    async with failing.ledger.database.transaction() as connection:
        # As a start does: it holds the block, and stores its machine.
        await rows.block_to_start(connection, BLOCK, lock=True)
        assert await may_start(connection, BLOCK, "next")
        sale = asyncio.create_task(failing.sell(machine))
        await eventually(lambda: failing.ledger.value(WAITING_FOR_LOCKS))
        await rows.insert_machine(connection, BLOCK, "next")
    with pytest.raises(StaleError):
        await sale
    await failing.run("UPDATE machines SET state = 'FAILED' WHERE name = 'next'")
    await failing.sell("next")
    async with failing.ledger.database.transaction() as connection:
        assert not await may_start(connection, BLOCK, "another")
        assert await nodes_left(connection, BLOCK) == 1
    await failing.run("UPDATE orders SET state = 'SOLD' WHERE side = 'sell'")
    async with failing.ledger.database.transaction() as connection:
        assert await nodes_left(connection, BLOCK) == 0
    assert await failing.for_sale() == []


async def test_of_two_starts_at_one_moment_one_gets_the_node_that_is_not_for_sale(
    failing: Failing,
):
    await failing.run("UPDATE blocks SET nodes = 2")
    while len(failing.names) < 2 * FAILURES:
        await failing.machine("FAILED")
    await failing.sell((await failing.for_sale())[-1])

    async def start(name: str) -> bool:
        async with failing.ledger.database.transaction() as connection:
            await rows.block_to_start(connection, BLOCK, lock=True)
            may = await may_start(connection, BLOCK, name)
            if may:
                await rows.insert_machine(connection, BLOCK, name)
            return may

    async with failing.ledger.database.transaction() as connection:
        await rows.block_to_start(connection, BLOCK, lock=True)
        assert await may_start(connection, BLOCK, "one")
        other = asyncio.create_task(start("other"))
        await eventually(lambda: failing.ledger.value(WAITING_FOR_LOCKS))
        await rows.insert_machine(connection, BLOCK, "one")
    assert not await other


async def test_a_machine_that_fails_while_its_time_is_put_up_for_sale_is_not_sold_beside_a_start(
    failing: Failing,
):
    await failing.machine("INTENT")
    name = failing.names[-1]
    refused = f"UPDATE machines SET refused_at = clock_timestamp() WHERE name = '{name}'"
    await failing.run(refused)
    async with failing.ledger.database.transaction() as connection:
        await rows.block_to_start(connection, BLOCK, lock=True)
        sale = asyncio.create_task(failing.sell(name))
        await eventually(lambda: failing.ledger.value(WAITING_FOR_LOCKS))
        failed = f"UPDATE machines SET state = 'FAILED' WHERE name = '{name}'"
        await connection.execute(text(failed))
        await rows.insert_machine(connection, BLOCK, "next")
    with pytest.raises(StaleError):
        await sale


async def test_failures_of_nodes_that_are_up_since_and_machines_that_were_up_do_not_count(
    failing: Failing,
):
    await failing.run("UPDATE blocks SET nodes = 4")
    await failing.machine("FAILED")
    for _ in range(3):
        await failing.machine("READY")
    await failing.machine("FAILED")
    assert await failing.for_sale() == [], "the fourth has failed once"
    for _ in range(FAILURES - 1):
        await failing.machine("FAILED")
    assert await failing.for_sale() == failing.names[-1:]
    await failing.ledger.register(failing.names[-1])
    await failing.run(f"UPDATE machines SET state = 'ENDED' WHERE name = '{failing.names[-1]}'")
    assert await failing.for_sale() == [], "what was up and has ended has not failed"
