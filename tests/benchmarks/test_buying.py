"""The benchmark of buying on a few hours: its world, its replay and its bound agree."""

from dataclasses import replace
from datetime import timedelta

import pytest

from benchmarks.buying import BASE, SEED_RULE, outcomes, steady_nodes
from benchmarks.buying_bound import lower_bound
from benchmarks.buying_replay import Pool, by_policy, replay
from benchmarks.buying_troubles import NONE
from benchmarks.buying_world import STEP, Shop, World
from longshore.models.job import Tier
from longshore.models.market import OrderBook
from longshore.simulation.market.background import Profile

HOURS = 4 / 24


@pytest.fixture(scope="module")
def world() -> World:
    return World(Profile.CALM, seed=3, days=HOURS)


def test_a_seed_makes_the_same_world(world: World):
    again = World(Profile.CALM, seed=3, days=HOURS)
    assert (again.jobs, again.asks, again.offers) == (world.jobs, world.asks, world.offers)
    assert World(Profile.CALM, seed=4, days=HOURS).jobs != world.jobs
    assert world.steps * STEP == timedelta(hours=4)
    thin = World(Profile.THIN, seed=3, days=HOURS)
    assert len(thin.asks) < len(world.asks) / 3


def test_every_way_serves_every_job_and_none_pays_less_than_the_bound(world: World):
    bound = lower_bound(world).proven
    found = outcomes(world)
    assert set(found) == {"least cost", "seeds' rule", "cheapest now", "always on"}
    assert bound > 0
    for way, outcome in found.items():
        assert outcome.dollars > 0
        if way != "always on":  # it ends with the last arrival, and pays the mean
            assert outcome.dollars >= bound
            assert outcome.flex_late == 0
            assert 0 < outcome.used_share <= 1
    assert found["least cost"].dollars < found["seeds' rule"].dollars


def test_a_replay_is_the_same_again(world: World):
    assert replay(world, by_policy(BASE)) == replay(world, by_policy(BASE))
    assert replay(world, by_policy(SEED_RULE)).purchases > 0


def test_what_is_bought_is_in_the_book_no_more(world: World):
    shop = Shop(world)
    before = _gpus(shop)
    assert before > 0
    pool = Pool(replace(world, troubles=NONE), shop)
    long = {"gpus": 8, "tier": Tier.FAST, "expected_duration": timedelta(hours=3)}
    pool.queue = [job.model_copy(update=long) for job in world.jobs[:2]]
    by_policy(BASE)(pool)
    bought = sum(len(machine.node.gpus) for machine in pool.machines if machine.node.expires_at)
    assert bought >= 8
    assert _gpus(shop) == before - bought


def test_always_on_has_nodes_for_both_tiers(world: World):
    assert set(steady_nodes(world)) == set(Tier)


def _gpus(shop: Shop) -> int:
    exchange, _ = shop.markets(0)
    book = exchange.quotes[0].answer
    assert isinstance(book, OrderBook)
    return sum(ask.gpus for ask in book.asks)
