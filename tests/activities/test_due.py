"""Cycles with a job that a budget pays for, and whose start is due."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.activities.database import clock
from longshore.activities.preemption_inputs import read_inputs
from longshore.activities.views import Views, set_pool
from longshore.client.preempt_plan import plan_of
from longshore.models.elastic import Malleable
from longshore.models.pool import PoolSpec
from longshore.models.preemption import Overcommit, PreemptionPlan, PreemptionPolicy
from longshore.scheduling.preemption.due import is_as_drawn, lottery_words, took_words
from tests.support.funding import envelope, funding_drift, sums, tenant
from tests.support.ledger import Ledger

SAVES = {"folder": "saves", "save_file": True, "grace": "0s"}


@pytest.fixture
async def full(ledger: Ledger) -> Ledger:
    """Two tenants whose budgets have eight GPUs each."""
    for name in ("red", "blue"):
        await tenant(ledger, name)
        await envelope(ledger, name, milli=8000)
    return ledger


async def cycle(ledger: Ledger, number: int, *jobs: str, tells: str = "") -> list[dict[str, Any]]:
    """Run a cycle; return what one of its jobs hears of a stop."""
    async with ledger.listening(*jobs):
        await ledger.cycle(f"cycle-{number}")
        return await ledger.signals(tells, "preempt") if tells else []


async def running(ledger: Ledger) -> list[tuple[str, str]]:
    rows = await ledger.rows(
        "SELECT job_id, node_id FROM placements WHERE ended_at IS NULL ORDER BY 1, 2"
    )
    return [(row["job_id"], row["node_id"]) for row in rows]


async def stopped(ledger: Ledger) -> list[tuple[str, str, bool]]:
    rows = await ledger.rows("SELECT job_id, for_job, by_payer FROM preemptions ORDER BY 1")
    return [(row["job_id"], row["for_job"], row["by_payer"]) for row in rows]


async def due(ledger: Ledger) -> None:
    """Let what was told of the starts of jobs that wait have passed."""
    moved = await ledger.rows(
        "UPDATE start_estimates SET starts_at = clock_timestamp() - interval '1 minute',"
        " earliest = NULL, latest = NULL, kept_until = clock_timestamp() - interval '1 minute'"
        " RETURNING job_id"
    )
    assert moved, "no start was told"


async def test_a_gang_gives_up_its_spare_and_goes_on(full: Ledger):
    for node in ("a", "b"):
        await full.register(node, gpus=4)
    gang = {"group_gpus": 4, "spares_per_group": 4, "unlabelled_nodes": True}
    await full.enqueue("gang", gpus=4, tenant="red", gang=gang, priority=9)
    await cycle(full, 1, "gang")
    assert await sums(full) == {"red/main": 8000, "blue/main": 0}
    await full.enqueue("owner", gpus=4, tenant="blue", priority=0)
    await cycle(full, 2, "owner", "gang")
    assert await stopped(full) == []
    assert len(await running(full)) == 2
    await due(full)
    await cycle(full, 3, "owner", "gang")
    assert await running(full) == [("gang", "a")]
    row = (await full.rows(
        "SELECT end_reason, end_message FROM placements WHERE ended_at IS NOT NULL"
    ))[0]  # fmt: skip
    assert row == {
        "end_reason": "preempted", "end_message": "given up for owner, whose start was due",
    }  # fmt: skip
    assert await stopped(full) == [], "nobody is being stopped"
    views = Views(full.database)
    (attempt,) = await views.attempts("gang")
    (gone,) = attempt.spares_gone
    assert (gone.node_id, gone.end_message) == ("b", "given up for owner, whose start was due")
    assert await views.took_spares("owner", 1) == ()
    await cycle(full, 4, "owner", "gang")
    assert await running(full) == [("gang", "a"), ("owner", "b")]
    took = await views.took_spares("owner", 1)
    assert took_words(took) == (
        "its start was due: gang gave up GPUs 0-3 of b, which stood by for it"
    )
    assert [each.at for each in took] == [gone.left_at]
    assert await sums(full) == {"red/main": 4000, "blue/main": 4000}
    assert await funding_drift(full) == []
    assert await full.drift() == []


async def test_what_stands_by_until_the_end_is_not_given_up(full: Ledger):
    for node in ("a", "b"):
        await full.register(node, gpus=4)
    gang = {"group_gpus": 4, "spares_per_group": 4, "unlabelled_nodes": True}
    await full.enqueue("gang", gpus=4, tenant="red", gang=gang)
    await cycle(full, 1, "gang")
    await full.finish("gang")
    (attempt,) = await Views(full.database).attempts("gang")
    assert attempt.ended_at is not None
    assert attempt.spares_gone == ()


async def test_a_malleable_job_shrinks_to_its_fewest_at_most(full: Ledger):
    await full.register("a", gpus=8)
    sizes = Malleable(min=4, max=8, step=2)
    await full.enqueue("e", gpus=8, tenant="red", malleable=sizes, checkpoint=SAVES, priority=9)
    await cycle(full, 1, "e")
    await full.enqueue("owner", gpus=3, tenant="blue", priority=0)
    await cycle(full, 2, "owner", "e")
    assert await stopped(full) == []
    await due(full)
    (told,) = await cycle(full, 3, "owner", "e", tells="e")
    assert await stopped(full) == [("e", "owner", True)]
    assert told["gpus_left"] == 4
    assert told["reason"] == "shrunk to 4 GPUs for owner, whose start was due"


@pytest.mark.parametrize("overcommit", Overcommit)
async def test_else_it_waits_or_jobs_are_drawn(full: Ledger, overcommit: Overcommit):
    policy = PreemptionPolicy(overcommit=overcommit)
    async with full.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=full.pool, preemption=policy))
    await full.register("a", gpus=8)
    for name in ("x", "y"):
        await full.enqueue(name, gpus=4, tenant="red", checkpoint=SAVES, priority=9)
    await cycle(full, 1, "x", "y")
    await full.enqueue("owner", gpus=4, tenant="blue", priority=0)
    await cycle(full, 2, "owner", "x", "y")
    await due(full)
    await cycle(full, 3, "owner", "x", "y")
    if overcommit is Overcommit.WAIT:
        assert await stopped(full) == []
        return
    stored = await full.value("SELECT plan FROM preemptions")
    plan = PreemptionPlan.model_validate(stored)
    assert plan.lottery is not None
    assert is_as_drawn(plan.lottery)
    (drawn,) = plan.lottery.drawn
    assert await stopped(full) == [(drawn, "owner", True)]
    assert lottery_words(plan.lottery) == (
        f"{drawn} of 2 jobs of 1 tenant, with seed {plan.lottery.seed}; drawn again it is the same"
    )
    # A repeat tells the same, and draws nobody else.
    async with full.listening("owner", "x", "y"):
        await full.cycle("cycle-3", delivery=2)
        (told,) = await full.signals(drawn, "preempt")
    assert told["reason"] == (
        f"preempted for owner, whose start was due: drawn by lottery with seed {plan.lottery.seed}"
    )
    assert len(await stopped(full)) == 1
    # Of a higher class it waits again, and does not have its room back before the other.
    await full.release(drawn)
    await full.enqueue(drawn, attempt=2, gpus=4, tenant="red", checkpoint=SAVES, priority=9)
    await cycle(full, 4, "owner", "x", "y")
    assert {job for job, _ in await running(full)} == {"x", "y", "owner"} - {drawn}
    # Nor does it have the other stopped in turn, when its own start is due.
    await due(full)
    await cycle(full, 5, "owner", "x", "y")
    assert all(job != "owner" for job, _, _ in await stopped(full))


async def test_a_dry_run_says_who_gives_way_and_draws_nobody(full: Ledger):
    policy = PreemptionPolicy(overcommit=Overcommit.LOTTERY)
    async with full.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=full.pool, preemption=policy))
    await full.register("a", gpus=8)
    sizes = Malleable(min=4, max=8, step=2)
    await full.enqueue("e", gpus=8, tenant="red", malleable=sizes, checkpoint=SAVES)
    await cycle(full, 1, "e")
    for name, gpus in (("narrow", 3), ("wide", 5)):
        await full.enqueue(name, gpus=gpus, tenant="blue")
        await cycle(full, gpus, name, "e")
        for is_due in (False, True):
            if is_due:
                await due(full)
            async with full.database.transaction() as connection:
                inputs = await read_inputs(connection, full.pool)
                now = await clock(connection)
            request = next(one for one in inputs.queue if one.id == name)
            found = plan_of(inputs, request, None, now)
            assert found is not None
            assert (name in inputs.due) is is_due
            assert found.preempts is (is_due and name == "narrow")
        await full.rows("DELETE FROM queue WHERE job_id = :id", id=name)


async def test_the_part_of_a_job_that_is_paid_for_is_not_given_to_another_while_it_is_shrunk(
    ledger: Ledger,
):
    await tenant(ledger, "red")
    await envelope(ledger, "red", milli=6000)
    await tenant(ledger, "blue")
    await envelope(ledger, "blue", milli=4000)
    sizes = Malleable(min=2, max=8, step=2)
    job: dict[str, Any] = {
        "gpus": 6, "malleable": sizes, "tenant": "red", "checkpoint": SAVES, "priority": 5,
        "expected_duration": timedelta(hours=4),
    }  # fmt: skip
    await ledger.register("a", gpus=8)
    await ledger.enqueue("m", **job)
    await cycle(ledger, 1, "m")
    assert await sums(ledger) == {"blue/main": 0, "red/main": 6000}
    await ledger.rows("UPDATE envelopes SET milli = 4000 WHERE tenant = 'red'")
    await ledger.enqueue("four", gpus=4, tenant="red", funding={"unfunded": "wait"}, priority=9)
    await ledger.enqueue("owner", gpus=4, tenant="blue", priority=0)
    (told,) = await cycle(ledger, 2, "m", "four", "owner", tells="m")
    assert told["gpus_left"] == 4
    await ledger.release("m")
    await ledger.enqueue("m", attempt=2, **job)
    await cycle(ledger, 3, "m", "four", "owner")
    assert await running(ledger) == [("m", "a"), ("owner", "a")]
    assert await sums(ledger) == {"blue/main": 4000, "red/main": 4000}
