"""Nodes of bought machines that have ended while nobody heard of them: no job waits for them."""

import random
from typing import cast

import pytest
from sqlalchemy import text

from longshore.activities.buying.machine_ends import MachineEnds
from longshore.activities.pool_cache import PoolCache
from longshore.activities.providers.base import Provider
from longshore.activities.queue_rows import ensure_pool
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.models.settings import Settings
from tests.activities.test_pool_cache import look
from tests.support.ledger import Ledger

_BUY = (
    """
    INSERT INTO purchases (id, pool, tenant, tier, state, request, planned, committed)
    VALUES ('p', :pool, 'default', 'FAST', 'READY', '{}', 1, 1)""",
    """
    INSERT INTO orders (key, purchase_id, number, option, provider, request, is_machine,
                                 gpus_per_node, starts_at, ends_at, committed)
    VALUES ('p.1', 'p', 1, 0, 'own', '{}', true, 8, now(), now() + interval '5 hours', 1)""",
    """
    INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at, nodes,
                        price_micro_per_gpu_hour, purchase_id, pool, state)
    VALUES ('p.1', 'own', '8xH100', 'FAST', now(), now() + interval '5 hours', 1, 1, 'p', :pool,
            'OPEN')""",
    """
    INSERT INTO machines (name, purchase_id, block_id, provider, state)
    VALUES ('p.1', 'p', 'p.1', 'own', 'READY')""",
)


@pytest.fixture
async def lost(ledger: Ledger) -> Ledger:
    """A pool with a node of its own and one that was bought, both lost."""
    async with ledger.database.transaction() as connection:
        await ensure_pool(connection, ledger.pool)
    for statement in _BUY:
        await ledger.rows(statement, **({"pool": ledger.pool} if ":pool" in statement else {}))
    for node in ("own", "p.1"):
        await ledger.register(node, gpus=2)
        end = NodeEnd(node_id=node, epoch=1, state=NodeState.LOST, reason="silent")
        await ledger.run(ledger.registry.end_node, end)
    return ledger


async def test_a_job_waits_for_no_machine_that_has_ended(lost: Ledger, settings: Settings):
    kept = PoolCache()
    assert [each.id for each in (await look(lost, kept, random.Random())).nodes.nodes] == [
        "own", "p.1",
    ]  # fmt: skip
    assert await _why(lost, "before") == "each of the 2 nodes that could hold it is not ready"
    async with lost.database.transaction() as connection:
        row = (await connection.execute(text("SELECT * FROM machines"))).mappings().one()
    await MachineEnds(lost.database, settings).stop(cast("Provider", None), row, None)
    assert [each.id for each in (await look(lost, kept, random.Random())).nodes.nodes] == ["own"]
    assert await _why(lost, "after") == "the node that could hold it is not ready"


async def _why(ledger: Ledger, job: str) -> str:
    """Return why a job waits that comes now."""
    await ledger.enqueue(job, gpus=2)
    await ledger.cycle(f"{ledger.pool}/{job}")
    reason = await ledger.value("SELECT decision ->> 'reason' FROM queue WHERE job_id = :id",
                                id=job)  # fmt: skip
    return str(reason).rsplit("; ", 1)[-1]
