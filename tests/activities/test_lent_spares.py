"""A job that nobody pays for runs on a lent spare, and leaves it before the gang goes on there."""

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from temporalio.exceptions import ApplicationError

from longshore.activities.buying.ledger import GPU_TIME
from longshore.activities.buying.purchase_rows import insert_purchase
from longshore.activities.database import clock
from longshore.activities.funding.fund import fund_view
from longshore.activities.funding.hours import load_hours
from longshore.activities.funding.rows import load_facts
from longshore.activities.funding.use import leases_at, payers_of, usage, used
from longshore.activities.held_differences import HELD_DIFFERENCES
from longshore.activities.placements import end_spare
from longshore.activities.preemption_inputs import load_running_work
from longshore.activities.snapshot import load_pool, load_running
from longshore.activities.usage import load_usage
from longshore.activities.views import Views
from longshore.models.failover import SwapReply, SwapRequest
from longshore.models.funding import FundingClass
from longshore.models.margins import DEFAULT_MARGINS
from longshore.models.messages import LeaseEnd, ReleaseRequest
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.models.placement import Decision, PlacementKey
from longshore.models.purchase import PurchaseOption, PurchaseRequest
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL
from tests.support.funding import charge, envelope, funding_drift, tenant, write_charge
from tests.support.ledger import Ledger

FABRIC = {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: "a"}
NAMES = ("node-a", "node-b", "node-c")
A_BLOCK = (
    "INSERT INTO orders (key, purchase_id, number, option, provider, request, state, is_machine,"
    " gpus_per_node, nodes, committed)"
    " VALUES ('p-1.1', 'p-1', 1, 0, 'sfcompute', '{}', 'PLACED', false, 2, 1, 0)",
    "INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at, ended_at,"
    " price_micro_per_gpu_hour, purchase_id, nodes, gpus_per_node)"
    " VALUES ('p-1.1', 'sfcompute', '2xH100', 'FAST', now() - interval '1 hour', now(), now(), 1,"
    " 'p-1', 1, 2)",
    "UPDATE nodes SET block_id = 'p-1.1' WHERE id = 'node-c'",
)
"""What pays for the node of the spare."""
WISH = {"group_gpus": 4, "spares_per_group": 2, "lend_spares": True}


async def with_gang(ledger: Ledger, nodes: tuple[str, ...] = NAMES, **wish: Any) -> Ledger:
    """A gang `wide` of 4 GPUs on two nodes of two, with the others to stand by, and a tenant
    `blue` for which no budget pays."""
    for name in nodes:
        await ledger.register(name)
    await ledger.rows(
        "UPDATE nodes SET labels = CAST(:labels AS jsonb)", labels=json.dumps(FABRIC)
    )
    await tenant(ledger, "blue")
    await ledger.enqueue("wide", gpus=4, cpus=4, ram=4, gang=WISH | wish)
    await cycle(ledger, 1, "wide")
    return ledger


@pytest.fixture
async def gang(ledger: Ledger) -> Ledger:
    return await with_gang(ledger)


@pytest.fixture
async def lent(gang: Ledger) -> Ledger:
    """The spare of `wide` is lent to `guest`, all of it."""
    await queued(gang, "guest", gpus=2)
    await cycle(gang, 2, "guest")
    assert await places(gang) == {"guest": ("node-c", "wide")}
    return gang


async def queued(ledger: Ledger, job: str, gpus: int = 1, **spec: Any) -> None:
    await ledger.enqueue(job, **{"gpus": gpus, "tenant": "blue", **spec})


async def cycle(ledger: Ledger, number: int, *jobs: str) -> None:
    async with ledger.listening(*jobs):
        await ledger.cycle(f"cycle-{number}")


async def places(ledger: Ledger) -> dict[str, tuple[str, str | None]]:
    """Return where each job but the gang runs, and from whom it has that."""
    rows = await ledger.rows(
        "SELECT job_id, node_id, CASE WHEN kept_at IS NULL THEN borrowed_from END AS lender"
        "  FROM placements WHERE ended_at IS NULL AND job_id <> 'wide' ORDER BY 1"
    )
    return {row["job_id"]: (row["node_id"], row["lender"]) for row in rows}


async def lose(ledger: Ledger, node: str) -> None:
    async with ledger.listening("wide", "guest"):
        end = NodeEnd(node_id=node, epoch=1, state=NodeState.LOST, reason="silent")
        await ledger.run(ledger.registry.end_node, end)


async def swap(ledger: Ledger, attempt: int = 1) -> SwapReply:
    key = PlacementKey(job_id="wide", attempt=attempt)
    request = SwapRequest(key=key, end=LeaseEnd.NODE_LOST, message="lost")
    return await ledger.run(ledger.spares.swap, request)


async def stop(ledger: Ledger, job: str = "guest") -> None:
    key = PlacementKey(job_id=job, attempt=1)
    request = ReleaseRequest(key=key, reason=LeaseEnd.PREEMPTED, message="stopped")
    await ledger.run(ledger.queue.release, request)


async def no_drift(ledger: Ledger) -> None:
    assert await ledger.drift() == []
    assert await funding_drift(ledger) == []
    assert await ledger.rows(HELD_DIFFERENCES) == []


async def test_a_job_that_nobody_pays_for_runs_on_a_spare_that_stays_the_gangs(lent: Ledger):
    await no_drift(lent)
    decision = Decision.model_validate(
        await lent.value("SELECT decision FROM placements WHERE job_id = 'guest'")
    )
    assert decision.borrowed_from == "wide"
    assert decision.reason.startswith("on a spare that wide lends: node-c")
    live = "SELECT job_id, borrowed_from FROM leases WHERE node_id = 'node-c' AND gpu_index = 0"
    assert sorted(map(str, (row["borrowed_from"] for row in await lent.rows(live)))) == [
        "None", "wide",
    ]  # fmt: skip
    async with lent.database.snapshot() as connection:
        seen = await load_running(connection, lent.pool)
    assert {(job.job_id, job.spare) for job in seen if job.node_id == "node-c"} == {("wide", True)}
    await stop(lent)
    await no_drift(lent)
    assert await lent.value("SELECT count(*) FROM gpus WHERE borrowed_by IS NOT NULL") == 0
    assert await lent.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 6


@pytest.mark.parametrize(
    "spec",
    [
        {"tenant": "default"},  # pays for itself
        {"preemptible": False},
        {"funding": {"unfunded": "wait"}},
        {"gpus": 1, "milli": 500, "vram_per_gpu": 10},
        {"sensitive": True},
        {"malleable": {"min": 1, "max": 2}},
        {"gpus": 3},
        {"cpus": 8},  # the spare has 2
    ],
)
async def test_others_do_not_borrow(gang: Ledger, spec: dict[str, Any]):
    await queued(gang, "guest", **spec)
    await cycle(gang, 2, "guest")
    assert await places(gang) == {}


async def test_free_gpus_come_first(ledger: Ledger):
    await with_gang(ledger)
    await ledger.register("node-d")
    await queued(ledger, "guest", 2)
    await queued(ledger, "next", 2)
    await cycle(ledger, 2, "guest", "next")
    assert await places(ledger) == {"guest": ("node-d", None), "next": ("node-c", "wide")}


async def test_a_gang_that_does_not_say_so_lends_nothing(ledger: Ledger):
    await with_gang(ledger, lend_spares=False)
    await queued(ledger, "guest")
    await cycle(ledger, 2, "guest")
    assert await places(ledger) == {}


async def test_two_jobs_share_a_spare_and_a_third_waits(gang: Ledger):
    for name in ("guest-1", "guest-2", "guest-3"):
        await queued(gang, name)
    await cycle(gang, 2, "guest-1", "guest-2", "guest-3")
    assert await places(gang) == {"guest-1": ("node-c", "wide"), "guest-2": ("node-c", "wide")}
    await no_drift(gang)


@pytest.mark.parametrize(
    ("change", "fields", "says"),
    [
        ("", {"gpus": [0]}, "leases_one_borrower_per_gpu"),
        ("", {"node": "node-b", "gpus": [0]}, "lends no spare"),
        ("UPDATE jobs SET tenant = 'default' WHERE id = 'other'", {}, "has no budget"),
        (
            "UPDATE jobs SET spec = spec || '{\"preemptible\": false}' WHERE id = 'other'", {},
            "may not be stopped",
        ),
        ("", {"cpu": 1500}, "has less than"),
        ("", {"alone": True}, "placements_borrow_whole_gpus"),
        ("", {"milli": 500}, "placements_borrow_whole_gpus"),
        (
            "INSERT INTO preemptions (job_id, attempt, pool, cycle_id, for_job, for_attempt,"
            " priority, for_priority, plan, by_payer, frees_by) SELECT 'guest', 1, pool, 'c',"
            " 'wide', 1, 0, 0, '{}', true, now() FROM jobs WHERE id = 'guest'",
            {}, "is taking its spares back",
        ),
    ],
)  # fmt: skip
async def test_the_database_refuses_who_may_not_borrow(
    gang: Ledger, change: str, fields: dict[str, Any], says: str
):
    await queued(gang, "guest")
    await cycle(gang, 2, "guest")
    await gang.add_job("other")
    await gang.rows("UPDATE jobs SET tenant = 'blue' WHERE id = 'other'")
    if change:
        await gang.rows(change)
    wanted = {"node": "node-c", "gpus": [1], "from": "wide"}
    with pytest.raises(IntegrityError, match=says):
        await gang.place("other", **wanted | fields)
    if not change:
        await gang.place("other", **wanted)
        await no_drift(gang)


async def test_the_database_refuses_a_payer_of_what_is_borrowed(lent: Ledger):
    main = await envelope(lent, "blue", milli=4000)
    with pytest.raises(IntegrityError, match="is on a spare that another job pays for"):
        await write_charge(lent, charge("guest", main, (0, 1)))
    await cycle(lent, 3, "guest")
    assert await lent.value("SELECT count(*) FROM charges") == 0
    async with lent.database.snapshot() as connection:
        facts = await load_facts(connection, None)
    assert facts is not None
    assert facts.uses == (), "nobody is asked to pay"


async def test_the_database_refuses_a_loan_that_is_rewritten(lent: Ledger):
    for change in ("borrowed_from = NULL", "borrowed_from = 'guest'"):
        with pytest.raises(IntegrityError, match="never rewritten"):
            await lent.rows(f"UPDATE placements SET {change} WHERE job_id = 'guest'")
    with pytest.raises(IntegrityError, match="leases_one_per_gpu"):
        await lent.rows("UPDATE leases SET borrowed_from = NULL WHERE job_id = 'guest'")
    # The spare holds these GPUs still.
    with pytest.raises(IntegrityError, match="leases_one_per_gpu"):
        await lent.rows("UPDATE placements SET kept_at = now() WHERE job_id = 'guest'")


async def test_whoever_borrows_keeps_the_gpus_where_the_gang_ends(lent: Ledger):
    await lent.rows("UPDATE pools SET poked = false")
    await lent.finish("wide")
    assert await places(lent) == {"guest": ("node-c", None)}
    # A cycle may find who pays for it now, though nothing waits.
    assert await lent.value("SELECT poked FROM pools")
    await no_drift(lent)
    rows = await lent.rows(
        "SELECT borrowed_from, ended_at, end_reason, started_at FROM leases"
        " WHERE job_id = 'guest' AND gpu_index = 0 ORDER BY id"
    )
    assert [(row["borrowed_from"], row["end_reason"]) for row in rows] == [
        ("wide", "kept"), (None, None),
    ]  # fmt: skip
    assert rows[0]["ended_at"] == rows[1]["started_at"]
    main = await envelope(lent, "blue", milli=4000)
    told = await fund_view(lent.database, "guest", DEFAULT_MARGINS)
    assert told.says == "2 UNFUNDED: preempted first; from the next cycle on 2 OWNED by blue/main"
    await cycle(lent, 3, "guest")
    charged = "SELECT envelope_id FROM charges WHERE job_id = 'guest'"
    assert [row["envelope_id"] for row in await lent.rows(charged)] == [main]
    await lent.finish("guest")
    await no_drift(lent)


async def test_a_lost_node_ends_both(lent: Ledger):
    await lose(lent, "node-c")
    assert await places(lent) == {}
    await no_drift(lent)


async def test_a_spare_that_leaves_a_drained_node_leaves_its_gpus_to_whoever_borrows(lent: Ledger):
    await lent.rows("UPDATE nodes SET state = 'DRAINING' WHERE id = 'node-c'")
    key = PlacementKey(job_id="wide", attempt=1)
    async with lent.database.transaction() as connection:
        assert await end_spare(connection, key, "node-c", LeaseEnd.MOVED, "new disk")
    assert await places(lent) == {"guest": ("node-c", None)}
    await no_drift(lent)


async def test_a_swap_ends_whoever_borrows_first(lent: Ledger):
    await lose(lent, "node-b")
    async with lent.listening("guest"):
        for _ in range(2):
            with pytest.raises(ApplicationError, match="is lent to guest") as raised:
                await swap(lent)
            assert raised.value.next_retry_delay == timedelta(seconds=1)
            assert not raised.value.non_retryable
        (told,) = await lent.signals("guest", "preempt")
    assert (told["attempt"], told["for_job"]) == (1, "wide")
    assert told["reason"] == "preempted for wide, which takes back the spare that it lent"
    attempts = "SELECT max(attempt) FROM placements WHERE job_id = 'wide'"
    assert await lent.value(attempts) == 1, "nothing runs twice on the GPU"
    await stop(lent)
    # It is not lent again on the way.
    await queued(lent, "next", 2)
    await cycle(lent, 3, "next")
    assert await places(lent) == {}
    reply = await swap(lent)
    assert reply.placement is not None
    assert [rank.node_id for rank in reply.placement.ranks] == ["node-a", "node-c"]
    await no_drift(lent)


async def test_the_database_refuses_a_swap_onto_a_spare_that_somebody_uses(lent: Ledger):
    await lose(lent, "node-b")
    with pytest.raises(IntegrityError, match="GPU 0 of node node-c is lent to job guest"):
        await promote_by_hand(lent)
    assert await places(lent) == {"guest": ("node-c", "wide")}


async def promote_by_hand(ledger: Ledger) -> None:
    """Write the gang's next attempt with the spare as a rank, whoever runs there."""
    async with ledger.database.transaction() as connection:
        for statement in (
            "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'swapped'"
            " WHERE job_id = 'wide' AND ended_at IS NULL",
            "INSERT INTO placements (job_id, attempt, rank, cycle_id, node_id, epoch, gpu_indices,"
            " cpu_milli, ram_mb, vram_mb, expected_seconds, decision)"
            " SELECT job_id, 2, 0, cycle_id, node_id, epoch, gpu_indices, 0, 0, 0, 1, '{}'"
            "   FROM placements WHERE job_id = 'wide' AND rank = 2",
            "INSERT INTO leases (job_id, attempt, rank, node_id, epoch, gpu_index, vram_mb,"
            " tenant) VALUES ('wide', 2, 0, 'node-c', 1, 0, 0, 'default')",
        ):
            await connection.execute(text(statement))


async def test_a_swap_takes_a_spare_that_is_not_lent_and_goes_on_lending_the_other(
    ledger: Ledger,
):
    await with_gang(ledger, (*NAMES, "node-d"), spares_per_group=4)
    await queued(ledger, "guest", 2)
    await cycle(ledger, 2, "guest")
    ((where, _),) = (await places(ledger)).values()
    await lose(ledger, "node-b")
    reply = await swap(ledger)
    assert reply.placement is not None
    assert where not in [rank.node_id for rank in reply.placement.ranks]
    assert await places(ledger) == {"guest": (where, "wide")}
    await no_drift(ledger)
    await ledger.finish("wide", 2)
    assert await places(ledger) == {"guest": (where, None)}
    await no_drift(ledger)


async def test_a_spare_whose_borrower_does_not_stop_takes_no_place(lent: Ledger):
    await lose(lent, "node-b")
    async with lent.listening("guest"):
        with pytest.raises(ApplicationError):
            await swap(lent)
    await lent.rows("UPDATE preemptions SET frees_by = now() - interval '1 hour'")
    reply = await swap(lent)
    assert reply.placement is None
    assert "no spare is left" in reply.reason
    assert await places(lent) == {"guest": ("node-c", None)}
    await no_drift(lent)


async def test_a_lent_gpu_counts_for_the_gang_alone_and_shows_for_both(lent: Ledger):
    async with lent.database.snapshot() as connection:
        now = await clock(connection)
        both = await leases_at(connection, now, node_id="node-c", gpu_index=0)
        hours = await usage(connection, now - timedelta(hours=1))
        by_tenant = await used(connection, now - timedelta(hours=1), now)
        payers = await payers_of(connection, "guest")
        node = (await Views(lent.database).nodes(pool=lent.pool))[2]
    asked = await fund_view(lent.database, "guest", DEFAULT_MARGINS)
    assert {(one.job_id, one.funding, one.borrowed_from, one.spare) for one in both} == {
        ("guest", FundingClass.UNFUNDED, "wide", False),
        ("wide", FundingClass.OWNED, None, True),
    }
    assert {one.tenant for one in by_tenant} == {"default"}
    assert hours.on_lent_spares > 0
    assert hours.gpu_hours == pytest.approx(sum(hours.by_class.values()))
    assert payers is not None
    assert [(one.funding, one.gpus) for one in payers.now] == [(FundingClass.UNFUNDED, 2)]
    assert payers.hours == ()
    assert (asked.runs, asked.has_budget, asked.funded) == (True, True, False)
    assert asked.says == "UNFUNDED: it runs on a spare that wide lends and pays for"
    assert [(gpu.job_id, gpu.spare, gpu.lent_to, gpu.parts) for gpu in node.gpus] == [
        ("wide", True, "guest", ())
    ] * 2


async def test_its_time_is_in_no_share_quota_or_bill(lent: Ledger):
    option = PurchaseOption(
        provider="sfcompute", instance_type="2xH100", gpus_per_node=2, length=timedelta(hours=4),
        limit=2_000_000,
    )  # fmt: skip
    async with lent.database.transaction() as connection:
        purchase = PurchaseRequest(pool=lent.pool, options=(option,))
        await insert_purchase(connection, "p-1", purchase)
        for statement in A_BLOCK:
            await connection.execute(text(statement))
    async with lent.database.transaction() as connection:
        now = await clock(connection)
        hours = await load_hours(connection)
        had = await load_usage(connection, lent.pool, 3600.0, now)
        billed = await connection.execute(text(GPU_TIME), {"block": "p-1.1"})
        assert {row.job_id for row in billed if row.micros > 0} == {"wide"}
    assert (hours["blue"].gpus, had.usage["blue"]) == (0, 0)
    assert hours["default"].gpus > 0
    await lent.finish("wide")
    async with lent.database.transaction() as connection:
        assert (await load_hours(connection))["blue"].gpus > 0, "its own since then"


async def test_a_job_on_a_lent_spare_is_asked_to_save_like_any_other(gang: Ledger):
    checkpoint = {"folder": "saves", "save_signal": "SIGUSR1"}
    await queued(gang, "guest", checkpoint=checkpoint)
    await cycle(gang, 2, "guest")
    async with gang.database.snapshot() as connection:
        spec = await load_pool(connection, gang.pool)
        lent = await load_running(connection, gang.pool, on_lent_spares=True)
        (work,) = await load_running_work(connection, gang.pool, spec.preemption, lent)
    assert (work.id, work.nodes) == ("guest", ("node-c",))
    assert work.checkpoint is not None
