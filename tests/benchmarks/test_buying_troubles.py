"""What goes wrong in the benchmark of buying happens, and is paid by whom it should be."""

from dataclasses import replace
from datetime import timedelta

import pytest

from benchmarks.buying import ALONE
from benchmarks.buying_replay import IDLE_AFTER, Machine, Pool, cheapest_now, lived
from benchmarks.buying_selling import sell_rests
from benchmarks.buying_troubles import (
    GIVEN_UP,
    NONE,
    REAL,
    REPLACED,
    WITHOUT,
    Troubles,
    without,
)
from benchmarks.buying_world import KIND, START, STARTUP, STEP, Shop, World
from longshore.models.buying import PurchasePlan, Release
from longshore.models.job import Tier
from longshore.models.market import OrderBook, Window
from longshore.models.placement import RunningJob
from longshore.scheduling.buying.fleet import shape_of
from longshore.simulation.market.background import Profile

HALF_A_DAY = 0.5
OFTEN = Troubles(rivals=0.6, stale=0.3, silent=0.3)


@pytest.fixture(scope="module")
def world() -> World:
    return World(Profile.THIN, seed=2, days=HALF_A_DAY, troubles=OFTEN)


@pytest.fixture(scope="module")
def pool(world: World) -> Pool:
    return lived(world, cheapest_now(ALONE))


def test_the_same_goes_wrong_whoever_buys(world: World):
    again = World(Profile.THIN, seed=2, days=HALF_A_DAY, troubles=OFTEN)
    assert again.lasts == world.lasts
    assert again.rivals == world.rivals
    assert again.offers_to_order == world.offers_to_order
    quiet = World(Profile.THIN, seed=2, days=HALF_A_DAY, troubles=NONE)
    assert (quiet.jobs, quiet.asks) == (world.jobs, world.asks)
    assert quiet.asks_to_order == quiet.asks_by_step
    assert quiet.offers_to_order == quiet.offers
    assert all(quiet.lasts[job.id] == job.expected_duration for job in quiet.jobs)


def test_jobs_end_early_on_whole_steps(world: World):
    shares = [world.lasts[job.id] / job.expected_duration for job in world.jobs]
    assert all(world.lasts[job.id] % STEP == timedelta(0) for job in world.jobs)
    assert all(world.lasts[job.id] >= STEP for job in world.jobs)
    assert max(shares) <= 1.0
    assert min(shares) < 0.9


def test_jobs_whose_ends_are_told_end_when_they_would(world: World):
    told = replace(world, troubles=without(OFTEN, "ends"))
    assert told.lasts == world.lasts
    assert {job.id: job.expected_duration for job in told.jobs} == world.lasts
    assert all(job.ran == job.expected for job in told.before)
    assert [job.ran for job in told.before] == [job.ran for job in world.before]


def test_without_all_troubles_only_their_ends_are_early(world: World):
    quiet = replace(without(OFTEN, *WITHOUT), told=False, least_used=1.0)
    assert quiet == replace(NONE, resale=True, flex_looks=1)


def test_a_pool_has_run_such_jobs_before(world: World):
    shares = [job.ran / job.expected for job in world.before]
    assert len(shares) == 40
    assert 0.5 < sum(shares) / len(shares) < 0.7
    quiet = replace(world, troubles=NONE).before
    assert all(job.ran == job.expected for job in quiet)
    assert not {job.expected for job in quiet} <= {job.expected_duration for job in world.jobs}


def test_a_rival_takes_the_cheapest_asks_after_the_look(world: World):
    step = next(n for n, nodes in enumerate(world.rivals) if nodes)
    shop = Shop(world)
    seen = _nodes(shop, step)
    order = _order(nodes=2, limit=0, step=step)
    assert shop.take(order, step) == (0, 0)  # nobody sells for nothing: only the rival took
    assert _nodes(shop, step) == seen - world.rivals[step]
    cheapest = min(world.asks_by_step[step], key=lambda ask: (ask.price, ask.number))
    assert shop.taken[cheapest.number] > 0


def test_an_order_is_filled_within_its_limit_and_no_further(world: World):
    shop = Shop(world)
    now = [ask for ask in world.asks_by_step[0] if ask.start <= START]
    second = sorted({ask.price for ask in now})[1]
    order = _order(nodes=60, limit=second, step=0)
    covering = [ask for ask in now if ask.end >= order.window.end and ask.price <= second]  # pyright: ignore[reportOptionalMemberAccess]
    nodes, cost = shop.take(order, 0)
    assert 0 < nodes <= sum(ask.nodes for ask in covering) < 60
    assert cost <= second * 8 * nodes * 2
    assert shop.take(order, 0) == (0, 0)


def test_a_row_that_is_gone_is_refused_and_seen_no_more(world: World):
    step = next(n for n, rows in enumerate(world.offers) if rows != world.offers_to_order[n])
    gone = next(row for row in world.offers[step] if row not in world.offers_to_order[step])
    shape = shape_of(gone.instance_type)
    assert shape is not None
    order = PurchasePlan(
        provider="cloud", tier=Tier.FAST, instance_type=gone.instance_type, nodes=1,
        gpus_per_node=gone.gpus, limit=gone.price, max_total=10**9, expected_cost=0,
        ready_at=START, shape=shape, offer=gone,
    )  # fmt: skip
    pool = Pool(world, Shop(world), now=START + step * STEP, step=step)
    assert gone in pool.shop.markets(step)[1].offers
    assert not pool.buy(order)
    assert (pool.refused, pool.machines, pool.receipts) == (1, [], {})
    assert gone not in pool.shop.markets(step)[1].offers


def test_everything_that_goes_wrong_happens_and_every_job_is_served(world: World, pool: Pool):
    assert pool.refused > 0
    assert pool.silent > 0
    assert set(pool.started) == {job.id for job in world.jobs}
    assert pool.short > 0
    assert all(pool.started[job.id] >= (job.submitted_at or START) for job in world.jobs)


def test_the_accounts_balance(world: World, pool: Pool):
    windows = [m for each in pool.bought for m in each.machines if not m.is_pod]
    pods = [m for each in pool.bought for m in each.machines if m.is_pod]
    assert pods
    assert set(pool.receipts) == {m.purchase for m in windows} | {m.node.id for m in pods}
    sold = {number: nodes for number, nodes in pool.shop.taken.items() if nodes}
    asks = {ask.number: ask for ask in world.asks}
    assert all(nodes <= asks[number].nodes for number, nodes in sold.items())
    for machine in pods:
        _, hours = pool.receipts[machine.node.id]
        up = timedelta(hours=hours) / len(machine.node.gpus)
        if machine.ready_at is None:  # billed until it is given up, and nothing ran there
            assert not machine.ran
            assert up == GIVEN_UP
        else:
            assert up >= STARTUP
    used = sum(job.gpus * (world.lasts[job.id] / timedelta(hours=1)) for job in world.jobs)
    assert pool.gpu_hours > used
    assert pool.micro == sum(micro for micro, _ in pool.receipts.values())


def test_a_machine_idles_as_long_as_the_product_lets_it_and_each_minute_is_billed(world: World):
    assert timedelta(minutes=1) == IDLE_AFTER
    assert REAL.idles(IDLE_AFTER) == timedelta(minutes=2)  # a minute, and 15 s to stop it
    assert NONE.idles(IDLE_AFTER) == IDLE_AFTER
    pool = Pool(world, Shop(world))
    assert pool.idle_until(_idle(pool, "m0001-0")) - START == timedelta(minutes=2)


def test_a_silent_node_of_a_window_comes_late():
    world = World(Profile.CALM, seed=3, days=HALF_A_DAY, troubles=replace(REAL, silent=1.0))
    pool = Pool(world, Shop(world))
    assert pool.buy(_order(nodes=1, limit=10**8, step=0))
    (machine,) = pool.machines
    assert machine.ready_at == START + REPLACED + STARTUP
    assert pool.silent == 1


def test_a_bid_that_an_ask_has_met_is_gone():
    world = World(Profile.CALM, seed=1, days=HALF_A_DAY)
    assert any(world.bids_by_step)
    for asks, bids in zip(world.asks_by_step, world.bids_by_step, strict=False):
        assert not asks or not bids or max(b.price for b in bids) < min(a.price for a in asks)


def test_what_is_left_of_a_window_is_sold_once_and_for_no_more_than_was_paid():
    pool = _with_four_hours(World(Profile.CALM, seed=1, days=HALF_A_DAY))
    (machine,) = pool.machines
    before, hours = pool.receipts["m0001"]
    highest = max(bid.price for bid in pool.world.bids_by_step[pool.step])
    _look(pool)
    after, left = pool.receipts["m0001"]
    assert (pool.sold, pool.machines, sum(pool.shop.sold.values())) == (1, [], 1)
    assert left < hours
    assert 0 < before - after <= min(machine.paid, highest) * (hours - left) + 1
    assert left >= 8.0  # the first hour of it stays paid
    _look(pool)
    assert pool.sold == 1


def test_nothing_is_sold_of_a_node_that_works_nor_where_nobody_buys():
    world = World(Profile.CALM, seed=1, days=HALF_A_DAY)
    working = _with_four_hours(world)
    working.running = [
        RunningJob(
            job_id="j", node_id=working.machines[0].node.id, gpu_indices=(0,), cpus=1, ram=1,
            expected_end=working.now + STEP,
        )
    ]  # fmt: skip
    alone = _with_four_hours(replace(world, troubles=replace(REAL, resale=False)))
    for pool in (working, alone):
        _look(pool)
        assert (pool.sold, len(pool.machines)) == (0, 1)


def _with_four_hours(world: World) -> Pool:
    """Return a pool with a node for four hours, at a step at which somebody buys such time."""
    step = next(
        step
        for step, bids in enumerate(world.bids_by_step)
        if not world.rivals[step]
        and any(
            b.start <= START + step * STEP and b.end >= START + (step + 60) * STEP for b in bids
        )
    )
    pool = Pool(world, Shop(world), now=START + step * STEP, step=step)
    order = _order(nodes=1, limit=10**8, step=step)
    assert order.window is not None
    longer = Window(start=order.window.start, end=order.window.start + timedelta(hours=4))
    pool.buy(order.model_copy(update={"window": longer}))
    pool.machines = [replace(machine, ready_at=pool.now) for machine in pool.machines]
    return pool


def _look(pool: Pool) -> None:
    releases = [Release(node=machine.node) for machine in pool.machines]
    sell_rests(pool, releases, ())


def _idle(pool: Pool, name: str) -> Machine:
    pool.buy(_order(nodes=1, limit=10**8, step=0))
    machine = pool.machines[-1]
    node = machine.node.model_copy(update={"id": name})
    return replace(machine, node=node, ready_at=START, idle_since=START)


def _order(*, nodes: int, limit: int, step: int) -> PurchasePlan:
    """Return an order for two hours at the exchange."""
    start = START + step * STEP
    shape = shape_of(KIND)
    assert shape is not None
    return PurchasePlan(
        provider="exchange", tier=Tier.FAST, instance_type=KIND, nodes=nodes, gpus_per_node=8,
        window=Window(start=start, end=start + timedelta(hours=2)), limit=limit, max_total=0,
        expected_cost=0, ready_at=start + STARTUP, shape=shape,
    )  # fmt: skip


def _nodes(shop: Shop, step: int) -> int:
    book = shop.markets(step)[0].quotes[0].answer
    assert isinstance(book, OrderBook)
    return sum(ask.gpus for ask in book.asks) // 8
