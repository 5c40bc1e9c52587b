"""Malleable jobs of tenants with a budget: they start, and grow, as far as somebody pays."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.activities.funding.fund import fund_view
from longshore.activities.growth import growth_of
from longshore.activities.views import set_pool
from longshore.models.elastic import Malleable
from longshore.models.margins import DEFAULT_MARGINS
from longshore.models.placement import Decision, PlacementKey
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPlan
from longshore.models.resize import JoinRequest, ResizeReply, ResizeRequest
from tests.support.funding import envelope, funding_drift, sums, tenant
from tests.support.ledger import SUBMITTED_AT, Ledger

SIZES = Malleable(min=2, max=8, step=2, in_place=True)
GANG: dict[str, Any] = {
    "gpus": 8, "gang": {"unlabelled_nodes": True}, "expected_duration": timedelta(hours=4),
    "malleable": SIZES, "checkpoint": {"folder": "saves", "save_file": True, "grace": "0s"},
    "tenant": "red",
}  # fmt: skip
RESTARTS: dict[str, Any] = {
    "gpus": 8, "malleable": Malleable(min=2, max=8, step=2), "tenant": "red", "priority": 9,
    "checkpoint": {"folder": "saves", "save_file": True, "grace": "0s"},
}  # fmt: skip
KEY = PlacementKey(job_id="e", attempt=1)


@pytest.fixture
async def red(ledger: Ledger) -> Ledger:
    """A tenant with a budget, in a pool that grows jobs onto what was idle for a moment."""
    await tenant(ledger, "red")
    async with ledger.database.transaction() as connection:
        await set_pool(
            connection, PoolSpec(name=ledger.pool, grow_after=timedelta(microseconds=1))
        )
    return ledger


async def nodes(ledger: Ledger, names: str, **labels: str) -> None:
    for name in names:
        await ledger.register(name, gpus=2, labels=labels)
    await ledger.rows("UPDATE nodes SET registered_at = clock_timestamp() - interval '10 minutes'")


async def start(ledger: Ledger) -> int:
    """Place the job; return its size."""
    await ledger.enqueue("e", **GANG)
    async with ledger.listening("e"):
        await ledger.cycle("first")
    return await size(ledger)


async def size(ledger: Ledger) -> int:
    return await ledger.value(
        "SELECT coalesce(sum(cardinality(gpu_indices)), 0) FROM placements WHERE ended_at IS NULL"
    )


async def resize(ledger: Ledger, gpus: int) -> ResizeReply:
    desired = SIZES.model_copy(update={"desired": gpus})
    request = ResizeRequest(
        key=KEY, spec=ledger.spec(**GANG | {"malleable": desired}), submitted_at=SUBMITTED_AT
    )
    return await ledger.run(ledger.resizes.resize, request)


async def test_it_starts_on_as_many_gpus_as_its_budget_pays(red: Ledger):
    await envelope(red, "red", milli=5000)
    await nodes(red, "abcd")
    assert await start(red) == 4
    assert await sums(red) == {"red/main": 4000}
    stored = await red.value("SELECT decision FROM placements WHERE rank = 0")
    said = "4 of 8 desired GPUs, as many as budgets and quotas allow; "
    assert Decision.model_validate(stored).reason.startswith(said)


async def test_where_nobody_pays_for_its_fewest_it_runs_on_all_that_is_idle(red: Ledger):
    await envelope(red, "red", milli=1000)
    await nodes(red, "abcd")
    assert await start(red) == 8
    assert await sums(red) == {"red/main": 0}


async def test_it_grows_as_far_as_its_budget_pays_and_that_is_paid_at_once(red: Ledger):
    await envelope(red, "red", milli=4000)
    await nodes(red, "a")
    assert await start(red) == 2
    await nodes(red, "bcd")
    why = await growth_of(red.database, red.pool, "e", DEFAULT_MARGINS)
    assert why is not None
    assert (why.grows, why.gpus, why.to) == (True, 2, 4), why.reason

    def joining(gpus: int) -> JoinRequest:
        return JoinRequest(
            key=KEY, spec=red.spec(**GANG), submitted_at=SUBMITTED_AT, gpus=gpus, first_rank=1,
            by_user=False, message="grown",
        )  # fmt: skip

    refused = await red.run(red.joins.join_ranks, joining(6))
    assert refused.reason == "6 GPUs are no size that it may grow to now"
    reply = await red.run(red.joins.join_ranks, joining(4))
    assert len(reply.ranks) == 2, reply.reason
    assert await sums(red) == {"red/main": 4000}
    rows = await red.rows(
        "SELECT c.started_at >= p.placed_at AND c.rank = 1 AS joined FROM charges c"
        " JOIN placements p USING (job_id, attempt, rank) WHERE p.joined"
    )
    assert rows == [{"joined": True}]
    why = await growth_of(red.database, red.pool, "e", DEFAULT_MARGINS)
    assert why is not None
    assert why.reason.endswith("no budget pays for more, or a quota leaves no room for it")
    assert await funding_drift(red) == []
    assert await red.drift() == []


async def test_a_new_size_is_no_larger_than_its_budget_pays(red: Ledger):
    await envelope(red, "red", milli=4000)
    await nodes(red, "a")
    assert await start(red) == 2
    await nodes(red, "bcd")
    assert (await resize(red, 8)).in_place == 4
    await red.rows("UPDATE envelopes SET milli = 2000")
    assert (await resize(red, 8)).in_place is None


async def test_it_grows_only_onto_nodes_that_its_envelope_is_for(red: Ledger):
    """On others nobody would pay: it would be stopped to grow, and come back as it was."""
    await envelope(red, "red", milli=8000, labels='{"zone": "x"}')
    await nodes(red, "ab", zone="x")
    assert await start(red) == 4
    await nodes(red, "cd", zone="y")
    why = await growth_of(red.database, red.pool, "e", DEFAULT_MARGINS)
    assert why is not None
    assert not why.grows, why.reason
    refused = await resize(red, 8)
    assert (refused.in_place, refused.restarts) == (None, None), refused
    await nodes(red, "f", zone="x")
    why = await growth_of(red.database, red.pool, "e", DEFAULT_MARGINS)
    assert why is not None
    assert (why.grows, why.to) == (True, 6), why.reason
    assert (await resize(red, 8)).in_place == 6


async def test_a_quota_bounds_its_size_and_not_its_start(red: Ledger):
    await red.rows("UPDATE tenants SET budget_since = NULL, quotas = '{\"max_gpus\": 7}'")
    await nodes(red, "abcd")
    assert await start(red) == 6


async def test_who_asks_is_told_up_to_which_size_it_is_paid_for(red: Ledger):
    await envelope(red, "red", milli=7000)
    await red.enqueue("e", **GANG)
    view = await fund_view(red.database, "e", DEFAULT_MARGINS)
    assert view.says == "2 OWNED by red/main; it starts on up to 6 of 8 GPUs"


@pytest.mark.parametrize(("paid", "left"), [(3, 2), (5, 4), (7, 6), (1, 6)])
async def test_it_is_shrunk_to_the_size_that_it_starts_again_on(red: Ledger, paid: int, left: int):
    await envelope(red, "red", milli=8000)
    await tenant(red, "blue")
    await envelope(red, "blue", milli=2000)
    await red.register("a", gpus=8)
    await red.enqueue("e", **RESTARTS)
    async with red.listening("e"):
        await red.cycle("first")
    assert await size(red) == 8
    await red.rows("UPDATE envelopes SET milli = :milli WHERE tenant = 'red'", milli=paid * 1000)
    await red.enqueue("owner", gpus=2, tenant="blue")
    async with red.listening("e", "owner"):
        await red.cycle("second")
        (told,) = await red.signals("e", "preempt")
    assert told["gpus_left"] == left
    assert told["reason"].startswith(f"shrunk to {left} GPUs for owner")
    stored = await red.value("SELECT plan FROM preemptions")
    (victim,) = PreemptionPlan.model_validate(stored).victims
    assert victim.reason.startswith(f"goes on with {left} GPUs of 8; ")
    await red.release("e")
    await red.enqueue("e", attempt=2, **RESTARTS)
    async with red.listening("e", "owner"):
        await red.cycle("third")
    assert await size(red) == left + 2
    assert await funding_drift(red) == []


@pytest.mark.parametrize(
    ("parent", "milli", "tenant_of", "asks", "left"),
    [
        ("root", 5000, "blue", 4, 4),
        ("root", 8000, "blue", 4, 6),
        (None, 8000, "red", 4, 4),
        (None, 8000, "red", 3, 4),
    ],
)
async def test_what_the_other_takes_of_its_payers_counts_too(
    red: Ledger, parent: str | None, milli: int, tenant_of: str, asks: int, left: int
):
    """Beside two idle GPUs, which nobody pays for: blue takes back what it shares with red, or
    red has one of its own jobs stopped for another of a higher class."""
    if parent:
        await tenant(red, parent)
        await red.rows("UPDATE tenants SET parent = :parent WHERE name = 'red'", parent=parent)
        await tenant(red, "blue", parent)
        await envelope(red, "blue", milli=milli)
    await envelope(red, "red", milli=3000 if parent else milli)
    await red.register("a", gpus=10)
    job: dict[str, Any] = RESTARTS | {"priority": 2}
    await red.enqueue("e", **job)
    async with red.listening("e"):
        await red.cycle("first")
    assert sum((await sums(red)).values()) == 8000
    await red.enqueue("owner", gpus=asks, tenant=tenant_of, priority=9)
    async with red.listening("e", "owner"):
        await red.cycle("second")
        (told,) = await red.signals("e", "preempt")
    assert told["gpus_left"] == left
    await red.release("e")
    await red.enqueue("e", attempt=2, **job)
    async with red.listening("e", "owner"):
        await red.cycle("third")
    assert await size(red) == left + asks
    assert sum((await sums(red)).values()) == (left + asks) * 1000
