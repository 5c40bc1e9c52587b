"""Rows of running jobs that somebody has written into by hand: everything goes on around them."""

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest

from longshore.activities.buying.demand import demand_of_late
from longshore.activities.departures import DepartureActivities
from longshore.activities.signals import Signals
from longshore.activities.stored_specs import say_once
from longshore.activities.views import set_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.departures import Cause, DepartureRequest, Leaving, Margins
from longshore.models.failover import SwapRequest
from longshore.models.messages import LeaseEnd
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolSpec
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL
from tests.support.ledger import Ledger

LONG = {"gpus": 2, "priority": 0, "expected_duration": "1000h"}
URGENT = {"gpus": 2, "priority": 1, "expected_duration": "30m"}
DAMAGES = {
    "text-for-priority": 'spec || \'{"priority": "high"}\'',
    "text-for-gpus": 'spec || \'{"gpus": "many"}\'',
    "text-for-store": 'spec || \'{"checkpoint": {"folder": "x", "store": "perhaps"}}\'',
    "no-command": "spec - 'command'",
    "empty": "'{}'",
    "list": "'[1]'",
    "text": "'\"x\"'",
    "null": "'null'",
}


@pytest.fixture(params=list(DAMAGES.values()), ids=list(DAMAGES))
async def damaged(ledger: Ledger, request: pytest.FixtureRequest) -> Ledger:
    """A pool that may buy, with two nodes and a long job on each; one has a damaged row."""
    say_once.cache_clear()  # another test may have damaged a row in the same way
    async with ledger.database.transaction() as connection:
        spec = PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True))
        await set_pool(connection, spec)
    for node, job in (("node-a", "broken"), ("node-b", "long")):
        await ledger.register(node, gpus=2)
        await ledger.enqueue(job, **LONG)
        await ledger.place(job, gpus=(0, 1), node=node)
    await ledger.rows("DELETE FROM queue")
    # The database rewrites no placement; a test may not wait for ten hours.
    await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    await ledger.rows(
        "UPDATE placements SET placed_at = placed_at - interval '10 hours',"
        " expected_seconds = 1000 * 3600"
    )
    await ledger.rows("ALTER TABLE placements ENABLE TRIGGER USER")
    await ledger.rows(f"UPDATE jobs SET spec = {request.param} WHERE id = 'broken'")
    return ledger


async def test_another_gives_way_and_it_is_left_alone_and_named_once(
    damaged: Ledger, caplog: pytest.LogCaptureFixture
):
    await damaged.enqueue("urgent", **URGENT)
    with caplog.at_level(logging.WARNING):
        async with damaged.listening("long", "broken"):
            await damaged.cycle("first")
            await damaged.rows("UPDATE queue SET decided_at = NULL")
            await damaged.cycle("second")
    told = await damaged.rows("SELECT job_id, for_job FROM preemptions")
    assert told == [{"job_id": "long", "for_job": "urgent"}]
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "job broken is left alone" in line]) == 1
    assert not any("cannot be planned" in line for line in said)


async def test_it_leaves_its_node_with_the_usual_grace(damaged: Ledger):
    leaving = Leaving(cause=Cause.DRAIN, reason="make room", at_once=True)
    departures = DepartureActivities(damaged.database, Signals(damaged.temporal), Margins())
    request = DepartureRequest(node_id="node-a", epoch=1, leavings=(leaving,))
    plan = await damaged.run(departures.see_off, request)
    assert [each.key.job_id for each in plan.departures] == ["broken"]
    assert plan.cordon == "make room"


async def test_what_a_pool_needs_is_counted_without_it(damaged: Ledger):
    now = datetime.now(UTC)
    async with damaged.database.transaction() as connection:
        samples = await demand_of_late(connection, damaged.pool, timedelta(hours=1), now)
    assert samples[-1].used <= 4


async def test_a_waiting_job_with_a_damaged_row_is_placed_on_a_node_that_ends(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.rows("UPDATE nodes SET expires_at = now() + interval '3 hours'")
    await ledger.enqueue("first", gpus=1, expected_duration="10m")
    await ledger.rows("UPDATE jobs SET spec = '{}'")
    async with ledger.listening("first"):
        assert (await ledger.cycle("one")).placed == 1


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("UPDATE jobs SET spec = '{\"gang\": 7}'", "its stored spec cannot be read"),
        *(
            (
                "ALTER TABLE placements DISABLE TRIGGER USER;"
                f" UPDATE placements SET decision = '{stored}';"
                " ALTER TABLE placements ENABLE TRIGGER USER",
                "the stored decision of its nodes cannot be read",
            )
            for stored in ("[1]", '{"reason": [1]}', '"x"')
        ),
    ],
    ids=["spec", "list", "text-for-reason", "text"],
)
async def test_a_damaged_gang_gets_no_spare_and_is_queued_again(
    ledger: Ledger, damage: str, why: str
):
    for name in ("node-a", "node-b", "node-c"):
        await ledger.register(name)
    fabric = {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: "a"}
    labels = json.dumps(fabric)
    await ledger.rows("UPDATE nodes SET labels = CAST(:labels AS jsonb)", labels=labels)
    gang = {"group_gpus": 4, "spares_per_group": 2}
    await ledger.enqueue("wide", gpus=4, cpus=4, gang=gang)
    async with ledger.listening("wide"):
        await ledger.cycle("first")
        assert len(await ledger.rows("SELECT FROM placements WHERE ended_at IS NULL")) == 3
        for each in damage.split(";"):
            await ledger.rows(each)
        end = NodeEnd(node_id="node-b", epoch=1, state=NodeState.LOST, reason="silent")
        await ledger.run(ledger.registry.end_node, end)
        key = PlacementKey(job_id="wide", attempt=1)
        request = SwapRequest(key=key, end=LeaseEnd.NODE_LOST, message="lost")
        reply = await ledger.run(ledger.spares.swap, request)
    assert reply.placement is None
    assert reply.reason == why
    assert await ledger.rows("SELECT job_id FROM placements WHERE ended_at IS NULL") == []
