"""Cycles where tenants have budgets: who starts, who pays, who gives way."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from longshore.activities.funding.hours import load_hours, share_factors, with_hours
from longshore.activities.funding.planning import read_funding
from longshore.activities.funding.views import tenants_view
from longshore.client.budget_view import tenants_table
from longshore.models.messages import CycleReply, LeaseEnd, ReleaseRequest
from longshore.models.placement import Decision, PlacementKey
from tests.support.funding import envelope, job_of, tenant
from tests.support.ledger import Ledger
from tests.support.packing import a_job
from tests.support.screens import drawn
from tests.support.waiting import eventually


@pytest.fixture
async def funded(ledger: Ledger) -> Ledger:
    """A tree `root` over `red` and `blue`, each with a budget, and a node of eight GPUs."""
    await ledger.register(gpus=8)
    await tenant(ledger, "root")
    await tenant(ledger, "red", "root")
    await tenant(ledger, "blue", "root")
    return ledger


async def queued(ledger: Ledger, job: str, owner: str, gpus: int = 4, **spec: Any) -> str:
    await ledger.enqueue(job, gpus=gpus, tenant=owner, **spec)
    return job


async def cycle(ledger: Ledger, number: int, *jobs: str) -> CycleReply:
    async with ledger.listening(*jobs):
        return await ledger.cycle(f"cycle-{number}")


async def running(ledger: Ledger) -> list[str]:
    rows = await ledger.rows("SELECT job_id FROM placements WHERE ended_at IS NULL ORDER BY 1")
    return [row["job_id"] for row in rows]


async def paid(ledger: Ledger) -> list[tuple[str, str, int]]:
    """Return the open charges: job, who pays, and for how many GPUs."""
    rows = await ledger.rows(
        "SELECT c.job_id, e.tenant || '/' || e.name AS payer, cardinality(c.gpu_indices) AS gpus"
        " FROM charges c JOIN envelopes e ON e.id = c.envelope_id"
        " WHERE c.ended_at IS NULL ORDER BY c.id"
    )
    return [(row["job_id"], row["payer"], row["gpus"]) for row in rows]


async def reason(ledger: Ledger, job: str) -> str:
    stored = await ledger.value("SELECT decision FROM queue WHERE job_id = :job", job=job)
    return Decision.model_validate(stored).reason


async def stopped(ledger: Ledger) -> list[dict[str, Any]]:
    return await ledger.rows(
        "SELECT job_id, for_job, priority, for_priority, by_payer FROM preemptions ORDER BY job_id"
    )


async def test_charges_come_with_the_placement_and_go_with_it(funded: Ledger):
    await envelope(funded, "red", milli=2000)
    await queued(funded, "a", "red", 2)
    await queued(funded, "free", "default", 2)
    await cycle(funded, 1, "a", "free")
    assert await running(funded) == ["a", "free"]
    assert await paid(funded) == [("a", "red/main", 2)]
    row = (await funded.rows(
        "SELECT c.started_at = p.placed_at AS same, c.gpu_indices = p.gpu_indices AS all_of_it"
        " FROM charges c JOIN placements p USING (job_id, attempt, rank)"
    ))[0]  # fmt: skip
    assert row == {"same": True, "all_of_it": True}
    await funded.finish("a")
    assert await paid(funded) == []
    assert await funded.value("SELECT used FROM envelopes") == 0


async def test_a_job_that_somebody_pays_for_goes_before_one_of_a_higher_class(funded: Ledger):
    await envelope(funded, "red", milli=6000)
    await queued(funded, "urgent", "blue", 6, priority=9)
    await queued(funded, "low", "red", 6, priority=1)
    await cycle(funded, 1, "urgent", "low")
    assert await running(funded) == ["low"]
    await funded.rows("UPDATE jobs SET spec = spec || '{\"preemptible\": false}' WHERE id = 'low'")
    await cycle(funded, 2, "urgent")
    assert await stopped(funded) == []


async def test_what_nobody_pays_for_runs_on_idle_gpus_and_gives_them_up(funded: Ledger):
    await envelope(funded, "red", milli=8000, sharing="none")
    await queued(funded, "idle", "blue", 6, priority=9)
    await cycle(funded, 1, "idle")
    assert await running(funded) == ["idle"]
    assert await paid(funded) == []
    await queued(funded, "owner", "red", 8, priority=0)
    async with funded.listening("idle", "owner"):
        await funded.cycle("cycle-2")
        told = (await funded.signals("idle", "preempt"))[0]
    assert await stopped(funded) == [
        {"job_id": "idle", "for_job": "owner", "priority": 9, "for_priority": 0, "by_payer": True}
    ]
    assert told["reason"] == "preempted for owner, since a budget pays for that job first"
    await funded.finish("idle")
    await cycle(funded, 3, "owner")
    assert await paid(funded) == [("owner", "red/main", 8)]


async def test_nobody_is_stopped_where_nobody_would_pay_for_the_other_either(ledger: Ledger):
    """Each would be unfunded there in its turn, and they would stop each other without end."""
    for zone in ("x", "y"):
        await ledger.register(f"node-{zone}", gpus=8, labels={"zone": zone})
    for name in ("red", "blue"):
        await tenant(ledger, name)
        await envelope(ledger, name, milli=8000, sharing="none", labels='{"zone": "x"}')
    await queued(ledger, "fills", "default", 8, constraints=["zone=x"])
    await cycle(ledger, 1, "fills")
    await queued(ledger, "a", "red", 8)
    await cycle(ledger, 2, "a")
    assert await running(ledger) == ["a", "fills"]
    assert await paid(ledger) == []
    await queued(ledger, "b", "blue", 8, priority=9)
    await cycle(ledger, 3, "a", "b")
    assert await stopped(ledger) == []
    await ledger.finish("fills")
    await cycle(ledger, 4, "b")
    assert await paid(ledger) == [("b", "blue/main", 8)]


async def test_who_may_run_unfunded_starts_where_its_envelope_pays_if_it_can(ledger: Ledger):
    await ledger.register("node-a", gpus=8, labels={"zone": "a"})
    await ledger.register("node-x", gpus=8, labels={"zone": "x"})
    await tenant(ledger, "red")
    await envelope(ledger, "red", milli=16000, labels='{"zone": "x"}')
    await queued(ledger, "other", "default", 4, constraints=["zone=a"])
    await cycle(ledger, 1, "other")
    names = ("own-1", "own-2", "own-3")
    for name in names:
        await queued(ledger, name, "red")
    await cycle(ledger, 2, *names)
    rows = await ledger.rows("SELECT job_id, node_id FROM placements ORDER BY node_id, job_id")
    nodes = [(row["job_id"], row["node_id"]) for row in rows]
    assert nodes == [
        ("other", "node-a"), ("own-3", "node-a"), ("own-1", "node-x"), ("own-2", "node-x"),
    ]  # fmt: skip
    assert await paid(ledger) == [("own-1", "red/main", 4), ("own-2", "red/main", 4)]


async def test_a_tenant_without_a_budget_takes_back_from_the_unfunded_too(funded: Ledger):
    await queued(funded, "idle", "blue", 8, priority=9)
    await cycle(funded, 1, "idle")
    await queued(funded, "other", "default", 4, priority=0)
    await cycle(funded, 2, "idle", "other")
    assert [row["for_job"] for row in await stopped(funded)] == ["other"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"funding": {"unfunded": "wait"}}, "the envelopes that it may use have no room"),
        ({"preemptible": False}, "the envelopes that it may use have no room"),
    ],
)
async def test_a_job_that_has_to_be_paid_for_waits_for_that(
    funded: Ledger, spec: dict[str, Any], says: str
):
    one = await envelope(funded, "red", milli=2000)
    await queued(funded, "waits", "red", 4, **spec)
    await cycle(funded, 1, "waits")
    assert await running(funded) == []
    told = await reason(funded, "waits")
    assert says in told
    assert "starts only where one does" in told
    await funded.rows("UPDATE envelopes SET milli = 4000 WHERE id = :id", id=one)
    await cycle(funded, 2, "waits")
    assert await paid(funded) == [("waits", "red/main", 4)]


async def test_a_relative_gives_back_at_once_and_runs_on(funded: Ledger):
    await envelope(funded, "red", milli=4000)
    await queued(funded, "guest", "blue")
    await cycle(funded, 1, "guest")
    assert await paid(funded) == [("guest", "red/main", 4)]
    await queued(funded, "owner", "red")
    await cycle(funded, 2, "guest", "owner")
    assert await running(funded) == ["guest", "owner"]
    assert await paid(funded) == [("owner", "red/main", 4)]
    closed = await funded.value("SELECT end_reason FROM charges WHERE ended_at IS NOT NULL")
    assert closed == "NO_ROOM, which owner takes over"
    await funded.finish("owner")
    await cycle(funded, 3)  # nobody waits, and the guest is covered anew
    assert await paid(funded) == [("guest", "red/main", 4)]
    assert await stopped(funded) == []


async def test_a_window_that_ends_demotes_and_kills_nobody(funded: Ledger):
    one = await envelope(funded, "red", milli=4000)
    await queued(funded, "a", "red")
    await cycle(funded, 1, "a")
    soon = await funded.value(
        "UPDATE envelopes SET ends_at = clock_timestamp() + interval '0.2 s' WHERE id = :id"
        " RETURNING ends_at", id=one,
    )  # fmt: skip
    await eventually(lambda: funded.value("SELECT clock_timestamp() > ends_at FROM envelopes"))
    await cycle(funded, 2)
    assert await running(funded) == ["a"]
    assert await paid(funded) == []
    ended = await funded.value("SELECT ended_at FROM charges")
    assert ended == soon, "what came after its end the envelope did not pay"
    await envelope(funded, "red", "next", milli=4000)
    await cycle(funded, 3)
    assert await paid(funded) == [("a", "red/next", 4)]


async def test_the_next_cycle_comes_when_an_envelope_begins(funded: Ledger):
    await envelope(funded, "red", milli=4000, starts_at=datetime.now(UTC) + timedelta(seconds=30))
    await queued(funded, "a", "red")
    reply = await cycle(funded, 1, "a")
    assert reply.next_wake <= timedelta(seconds=30)
    assert await running(funded) == ["a"], "on GPUs that nobody else uses"
    assert await paid(funded) == []


async def test_who_loses_the_race_for_the_last_room_does_not_start_unpaid(
    funded: Ledger, monkeypatch: pytest.MonkeyPatch
):
    one = await envelope(funded, "red", milli=4000)
    await queued(funded, "must", "red", 4, funding={"unfunded": "wait"})
    await queued(funded, "may", "default", 2)
    decide = funded.cycles._decide  # pyright: ignore[reportPrivateUsage]

    async def meanwhile(pool: str, **rest: Any) -> object:
        made = await decide(pool, **rest)
        await funded.rows("UPDATE envelopes SET milli = 3000 WHERE id = :id", id=one)
        return made

    monkeypatch.setattr(funded.cycles, "_decide", meanwhile)
    await cycle(funded, 1, "must", "may")
    assert await running(funded) == ["may"]
    assert await funded.value("SELECT count(*) FROM queue WHERE job_id = 'must'") == 1
    assert await paid(funded) == []


async def test_a_higher_class_takes_over_what_its_tenant_pays_for_a_lower_one(funded: Ledger):
    await envelope(funded, "red", milli=4000)
    await queued(funded, "low", "red", 4, priority=1)
    await queued(funded, "blocks", "default", 4, preemptible=False)
    await cycle(funded, 1, "low", "blocks")
    await queued(funded, "high", "red", 4, priority=9)
    await queued(funded, "other", "blue", 4, priority=9)
    await cycle(funded, 2, "low", "high", "other")
    assert [(row["job_id"], row["for_job"]) for row in await stopped(funded)] == [("low", "high")]
    await funded.finish("low")
    await cycle(funded, 3, "high", "other")
    assert await running(funded) == ["blocks", "high"]
    assert await paid(funded) == [("high", "red/main", 4)]


async def test_without_a_budget_nothing_is_written(ledger: Ledger):
    await ledger.register(gpus=8)
    await tenant(ledger, "root", budget=False)
    await queued(ledger, "a", "root")
    reply = await cycle(ledger, 1, "a")
    assert reply.placed == 1
    assert await paid(ledger) == []


async def test_the_sums_are_those_of_the_open_charges(funded: Ledger):
    await envelope(funded, "red", milli=3000)
    await envelope(funded, "blue", milli=5000)
    for number in range(4):
        await queued(funded, f"red-{number}", "red", 1)
        await queued(funded, f"blue-{number}", "blue", 1)
    jobs = [f"{owner}-{number}" for owner in ("red", "blue") for number in range(4)]
    await cycle(funded, 1, *jobs)
    assert len(await running(funded)) == 8
    assert sum(gpus for _, _, gpus in await paid(funded)) == 8
    for job in jobs[::2]:
        await funded.finish(job)
    rows = await funded.rows(
        "SELECT e.used, (SELECT coalesce(sum(c.milli * cardinality(c.gpu_indices)), 0)"
        " FROM charges c WHERE c.envelope_id = e.id AND c.ended_at IS NULL) AS open"
        " FROM envelopes e"
    )
    assert rows
    assert all(row["used"] == row["open"] for row in rows)


async def test_a_job_over_a_hard_quota_waits_and_says_so(ledger: Ledger):
    await ledger.register(gpus=8)
    await tenant(ledger, "red", budget=False)
    await ledger.rows("UPDATE tenants SET quotas = '{\"max_gpus\": 4}'")
    for number in range(3):
        await queued(ledger, f"job-{number}", "red", 2)
    jobs = [f"job-{number}" for number in range(3)]
    await cycle(ledger, 1, *jobs)
    assert await running(ledger) == jobs[:2]
    assert await ledger.value("SELECT refused FROM cycles") == 0, "it is left out before"
    says = await reason(ledger, "job-2")
    assert says.startswith("quota of tenant red: max_gpus: 4 + 2 > 4, with 4 for jobs before it: ")
    await ledger.finish("job-0")
    await cycle(ledger, 2, *jobs[1:])
    assert await running(ledger) == jobs[1:]


async def test_hours_of_all_nodes_count_also_while_a_job_runs(ledger: Ledger):
    """Q4 and Q5 of the seed: 10 h on 4 nodes of 4 GPUs are 160 GPU-hours, and 5 h on 2 that
    run still are 40."""
    await tenant(ledger, "red", budget=False)
    for number in range(6):
        await ledger.register(f"n{number}", gpus=4)
        await job_of(ledger, f"job-{number}", "red", tuple(range(4)), node=f"n{number}")
    ended = {"since": 10, "jobs": [f"job-{number}" for number in range(4)], "over": True}
    run = {"since": 5, "jobs": ["job-4", "job-5"], "over": False}
    async with ledger.database.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        for values in (ended, run):
            await connection.execute(
                text("UPDATE placements SET placed_at = now() - make_interval(hours => :since),"
                     " ended_at = CASE WHEN :over THEN now() END,"
                     " end_reason = CASE WHEN :over THEN 'x' END WHERE job_id = ANY(:jobs)"),
                values,
            )  # fmt: skip
        assert await load_hours(connection) == {"red": pytest.approx((200, 50), rel=1e-3)}
        await connection.execute(
            text("DELETE FROM placements WHERE job_id = ANY(:jobs)"), {"jobs": run["jobs"]}
        )
        assert await load_hours(connection) == {"red": pytest.approx((160, 40), rel=1e-3)}


async def test_hours_of_90_days_count_against_a_soft_quota(ledger: Ledger):
    """Q6 of the seed: 500 GPU-hours of 100 days ago count no more, 200 of 10 days ago do.

    Four of the eight GPUs of a node are half of it."""
    await ledger.register(gpus=8)
    await tenant(ledger, "red", budget=False)
    await ledger.add_job("a")
    await ledger.rows("UPDATE jobs SET tenant = 'red'")
    await ledger.place("a", range(4))
    spans = ((100 * 24 + 125, 100 * 24), (240 + 50, 240), (10, 0))
    async with ledger.database.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        for since, until in spans:
            await connection.execute(
                text("UPDATE placements SET placed_at = now() - make_interval(hours => :since),"
                     " ended_at = now() - make_interval(hours => :until), end_reason = 'x'"),
                {"since": since, "until": until},
            )  # fmt: skip
            hours = await load_hours(connection)
            expected = {100 * 24: {}, 240: {"red": pytest.approx((200, 25), rel=1e-3)}}.get(
                until, {"red": pytest.approx((40, 5), rel=1e-3)}
            )
            assert hours == expected
        await connection.execute(text("UPDATE placements SET ended_at = NULL, end_reason = NULL"))
        await connection.execute(
            text("UPDATE tenants SET quotas = CAST(:quotas AS jsonb)"),
            {"quotas": '{"gpu_hours": 40}'},
        )
        assert await share_factors(connection) == {"red": pytest.approx(0.525, rel=1e-2)}
        await connection.execute(
            text("UPDATE tenants SET quotas = CAST(:quotas AS jsonb)"),
            {"quotas": '{"gpu_hours": 400, "node_hours": 5}'},
        )
        assert await share_factors(connection) == {"red": pytest.approx(0.525, rel=1e-2)}
        seen = {t.name: t for t in await with_hours(connection, await tenants_view(connection))}
        red = seen["red"]
        assert (red.gpu_hours, red.node_hours) == pytest.approx((40, 5), rel=1e-3)
        assert red.counts == pytest.approx(0.525, rel=1e-2)
        (line,) = (line for line in drawn(tenants_table([red], 140), 140) if "red" in line)
        assert re.search(
            r"40\.\d\d of 400 GPU, 5\.0\d of 5 node: jobs count 0\.5\d$", line.strip()
        )
        assert all((t.gpu_hours, t.counts) == (0, 1) for t in seen.values() if t.name != "red")
        # Of who has no quota hours are not read: they are not said to be 0.
        await connection.execute(text("UPDATE tenants SET quotas = '{}' WHERE name = 'red'"))
        seen = {t.name: t for t in await with_hours(connection, await tenants_view(connection))}
        assert (seen["red"].gpu_hours, seen["red"].node_hours) == (None, None)
        assert all(t.gpu_hours is not None for t in seen.values() if t.quotas.gpu_hours)


async def test_an_owner_whose_gpus_a_relative_has_does_not_wait_for_it(funded: Ledger):
    """The envelope has room for both, and the node has not."""
    await envelope(funded, "red", milli=12000)
    await queued(funded, "guest", "blue", 8, priority=9)
    await cycle(funded, 1, "guest")
    await queued(funded, "owner", "red", 4, priority=0)
    await cycle(funded, 2, "guest", "owner")
    assert [(row["job_id"], row["by_payer"]) for row in await stopped(funded)] == [("guest", True)]
    async with funded.database.transaction() as connection:
        found = await read_funding(connection, funded.pool, [a_job("owner", 4, tenant="red")])
    assert found
    assert (found.first, found.freed) == (frozenset(), {"owner"})
    (kind,) = found.facts.kinds
    assert found.asks["owner"].gets == kind, "what its node is of"
    # It waits again before the next cycle, of a higher class, and is paid for as before.
    guest = PlacementKey(job_id="guest", attempt=1)
    freed = ReleaseRequest(key=guest, reason=LeaseEnd.PREEMPTED, message="for owner")
    await funded.run(funded.queue.release, freed)
    await funded.enqueue("guest", attempt=2, gpus=8, tenant="blue", priority=9)
    await cycle(funded, 3, "guest", "owner")
    assert await running(funded) == ["owner"], "what was freed for it is not taken back"


async def test_who_begins_is_paid_for_as_was_foreseen_for_it(funded: Ledger):
    """A cousin begins, and what is nearer to it is kept for another that still waits."""
    await tenant(funded, "deep", "red")
    await envelope(funded, "root", milli=2000)
    await envelope(funded, "blue", milli=4000)
    await queued(funded, "runs", "default", 4)
    await cycle(funded, 1, "runs")
    await queued(funded, "far", "deep", 2, priority=8)
    await queued(funded, "near", "red", 3, preemptible=True)
    await cycle(funded, 2, "far", "near")
    assert await running(funded) == ["far", "runs"]
    assert await paid(funded) == [("far", "blue/main", 2)]
    await cycle(funded, 3, "near")
    assert await stopped(funded) == []


async def test_a_sponsor_that_there_is_not_is_refused_and_who_lends_is_told(funded: Ledger):
    await tenant(funded, "bank")
    await envelope(funded, "bank", lend_to=["red"], lend_milli=1000)

    async def refusal(job: str, owner: str, *sponsors: str) -> str:
        funding = {"allow_borrow": True, "sponsors": list(sponsors)}
        return (await funded.enqueue(job, gpus=1, tenant=owner, funding=funding)).refusal

    assert await refusal("a", "red", "bnak") == (
        "funding.sponsors: there is no tenant 'bnak'; did you mean bank? "
        "Tenants that lend to red: bank"
    )
    assert await refusal("b", "blue", "bank", "x", "y") == (
        "funding.sponsors: there are no tenants 'x', 'y'. No tenant lends to blue"
    )
    assert await refusal("c", "blue", "bank") == "", "it may lend later what it does not lend now"
    assert await refusal("d", "red", "bank") == ""
