"""Soft quotas of GPU-hours: who has had more counts less, and never nothing."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.funding import PoolFunding, Quotas
from longshore.models.packing import QueueOrder
from longshore.models.score import ScorePolicy, ScoreProfile
from longshore.scheduling.funding.facts import Facts, Wall
from longshore.scheduling.funding.hours import Hours, factors, penalty
from longshore.scheduling.funding.pool import pool_funding
from longshore.scheduling.order import queue_order
from tests.support.packing import NOW, POLICY, a_job


@pytest.mark.parametrize(
    ("used", "factor"),
    [(0.45, 1), (0.8, 1), (0.85, 0.9638), (0.9, 0.8609), (1.0, 0.525), (1.1, 0.1891),
     (1.2, 0.05), (1.5, 0.05)],
)  # fmt: skip
def test_the_curve_of_the_seed(used: float, factor: float):
    assert penalty(used) == pytest.approx(factor, abs=5e-5)


@given(st.floats(0, 10), st.floats(0, 10))
def test_more_use_never_counts_more(one: float, other: float):
    least, most = sorted((one, other))
    assert 0.05 <= penalty(most) <= penalty(least) <= 1


def test_a_quota_counts_the_whole_subtree_and_the_least_factor_holds():
    parents = {"root": None, "red": "root", "infra": "red", "blue": "root"}
    hours = {"infra": Hours(850, 0), "blue": Hours(100, 0), "other": Hours(9000, 0)}
    found = factors(parents, {"red": Hours(1000)}, hours)
    assert found == {"red": pytest.approx(0.9638, abs=5e-5), "infra": found["red"]}
    both = factors(parents, {"red": Hours(1000), "root": Hours(950)}, hours)
    assert both["infra"] == both["blue"] == pytest.approx(0.525)
    assert factors(parents, {}, hours) == {}


def test_of_gpu_and_node_hours_that_counts_of_which_there_was_more():
    parents, hours = {"red": None}, {"red": Hours(850, 300)}
    of_gpus = {"red": pytest.approx(0.9638, abs=5e-5)}
    assert factors(parents, {"red": Hours(1000)}, hours) == of_gpus
    assert factors(parents, {"red": Hours(1000, 1000)}, hours) == of_gpus
    assert factors(parents, {"red": Hours(1000, 300)}, hours) == {"red": pytest.approx(0.525)}
    assert factors(parents, {"red": Hours(nodes=1000)}, hours) == {}


def funded(**factor: float):
    funding = PoolFunding({}, {}, frozenset(), factors=factor)
    return POLICY.model_copy(update={"funding": funding})


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"order": QueueOrder.ATTAINED_SERVICE},
        {"score": ScorePolicy(profile=ScoreProfile.BALANCED), "order": QueueOrder.AGE},
    ],
)
def test_whoever_has_had_too_much_comes_later_in_its_class(policy: dict[str, object]):
    old = a_job("old", tenant="red", submitted_at=NOW - timedelta(hours=4))
    new = a_job("new", tenant="blue", submitted_at=NOW - timedelta(hours=3))
    high = a_job("high", tenant="red", priority=9, submitted_at=NOW)
    queue = [new, old, high]
    for factor, first in ((1.0, "old"), (0.05, "new")):
        how = funded(red=factor).model_copy(update=policy)
        assert [job.id for job in queue_order(queue, how, NOW)][:2] == ["high", first]


def test_what_a_hard_quota_leaves_is_taken_in_the_order_of_the_queue():
    walls = [
        Wall("red", frozenset({"red", "infra"}), Quotas(max_gpus=10), milli=4000, jobs=1),
        Wall("infra", frozenset({"infra"}), Quotas(max_jobs=1)),
    ]
    queue = [
        a_job("a", 4, tenant="infra"), a_job("b", 1, tenant="infra"), a_job("c", 3, tenant="red"),
        a_job("d", 2, tenant="red"), a_job("e", 8, tenant="blue"),
    ]  # fmt: skip
    found = pool_funding(Facts({}, {}), "pool", queue, {}, NOW, walls)
    assert found.over_quota == found.held == set(found.unfunded) == {"b", "c"}
    said = found.unfunded
    assert said["b"].startswith("quota of tenant infra: max_jobs: 1 + 1 > 1, with 1 for")
    assert said["c"].startswith("quota of tenant red: max_gpus: 8 + 3 > 10, with 4 for")
    assert pool_funding(Facts({}, {}), "pool", queue, {}, NOW).held == frozenset()
