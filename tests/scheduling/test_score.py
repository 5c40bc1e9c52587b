"""The nine terms of a queue's score, in the numbers of the worked cases."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.score import ScorePolicy, ScoreProfile, TermWeights
from longshore.models.topology import LinkClass, NodeTopology
from longshore.scheduling import score
from longshore.scheduling.score import Scores, share_deficit
from tests.support.gangs import a_gang
from tests.support.packing import a_job, a_node

HOUR = timedelta(hours=1)


def scores_of(
    nodes: Iterable[Node], usage: dict[str, float] | None = None, **of_score: Any
) -> Scores:
    own = ScorePolicy(weights=TermWeights(waiting=1), **of_score)
    return Scores(PackingPolicy(score=own, usage=usage or {}), nodes)


def test_f1_is_the_class_of_ten():
    assert [score.priority(each) for each in (0, 5, 10)] == [0, 0.5, 1]


@pytest.mark.parametrize(
    ("waited", "value"),
    [(0 * HOUR, 0), (HOUR / 2, 0.4055), (HOUR, 0.6931), (6 * HOUR, 1.9459), (24 * HOUR, 3.2189),
     (7 * 24 * HOUR, 5.1299)],
)  # fmt: skip
def test_f2_is_the_logarithm_of_hours(waited: timedelta, value: float):
    assert score.waiting(waited) == pytest.approx(value, abs=5e-5)


def test_f3_is_what_a_tenant_lacks_of_its_target():
    """B8: starved (.5 target, .1 used) against heavy (.5, .9)."""
    assert score.fair_share(0.5, 0.1) == pytest.approx(0.8)
    assert score.fair_share(0.5, 0.9) == 0
    # With burst 1 in a pool of which 40 % is used: the target is .5 x (1 + .4 / .8).
    assert score.fair_share(0.5, 0.5, burst=1, used=0.4) == pytest.approx(0.25 / 0.75)
    assert score.fair_share(0.5, 0.5, burst=1, used=0.8) == 0


def test_f4_is_the_fabric_on_several_nodes_and_the_links_on_one():
    assert score.topology(1, 4, 1.0, several_nodes=True) == pytest.approx(0.7 * 0.75 + 0.3)
    assert score.topology(4, 4, 0.5, several_nodes=True) == pytest.approx(0.15)
    assert score.topology(1, 4, 0.25, several_nodes=False) == 0.25


def test_f5_is_the_part_of_the_data_that_is_there():
    assert score.data_ready({}, {"a"}) == 0.5
    assert score.data_ready({"a": 30.0, "b": 10.0}, {"a"}) == 0.75
    assert score.data_ready({"a": 0.0, "b": 1.0}, {"a"}) == 0.5, "a size that is not known is 1 GB"


def test_f6_is_what_waits_for_each_that_runs_and_one_at_most():
    assert score.backlog(4, 8) == 0.5
    assert score.backlog(80, 8) == 1
    assert score.backlog(8, 0) == 0


def test_f7_is_how_cheap_energy_is():
    assert [score.energy(price) for price in (0, 0.25, 1, 3, -1)] == [1, 0.75, 0, 0, 1]
    assert score.energy(None) is None


def test_f8_is_one_sixth_or_one_eleventh_or_nothing():
    assert score.checkpoint(by_itself=True, when_asked=True) == pytest.approx(1 / 6)
    assert score.checkpoint(by_itself=False, when_asked=True) == pytest.approx(1 / 11)
    assert score.checkpoint(by_itself=False, when_asked=False) == 0


def test_f9_is_capped_at_one():
    assert score.conformance(3, 4) == 0.75
    assert score.conformance(9, 4) == 1
    assert score.conformance(0, 4) == 0.5


def test_the_worked_example():
    """Class 5, one hour, a tenant at half of its target, f4 .575, f5 .5, f6 .5, f9 1."""
    values = {
        "priority": score.priority(5), "waiting": score.waiting(HOUR),
        "fair_share": score.fair_share(0.5, 0.25), "topology": 0.575, "data": 0.5,
        "backlog": 0.5, "energy": 0.0, "checkpoint": 0.0, "conformance": 1.0,
    }  # fmt: skip
    weights = ScoreProfile.BALANCED.weights
    total = sum(weight * values[name] for name, weight in weights.named())
    assert total == pytest.approx(0.5999, abs=5e-5)


def fabric(domain: str) -> dict[str, str]:
    return {"region": "r", "cluster": "c", "fabric.domain": domain}


def test_the_sum_of_a_job_is_of_its_own_terms_after_others_were_asked():
    """Jobs that differ in one of what the terms go by, each asked twice."""
    weights = TermWeights(
        waiting=0.25, fair_share=0.2, topology=0.1, data=0.12, checkpoint=0.18, conformance=0.15
    )
    policy = PackingPolicy(score=ScorePolicy(weights=weights), usage={"red": 8.0, "blue": 2.0})
    nodes = [
        a_node("a", labels=fabric("f"), gpus=4, conformance="x"),
        a_node("b", gpus=2, conformance="y", data=("set",)),
    ]
    more: list[dict[str, Any]] = [
        {}, {"tenant": "red"}, {"tenant": "blue"}, {"gpu_type": "L40S"}, {"gpus": 4},
        {"gpus": 4, "gang": a_gang(4).gang}, {"saves": True}, {"tier": "FLEX"},
        {"data": {"set": 1.0}}, {"data": {"other": 1.0}},
    ]  # fmt: skip
    scores, sums = Scores(policy, nodes), set[float]()
    for fields in (*more, *more):
        for can_stop in (True, False):
            job = a_job(**fields)
            values = Scores(policy, nodes).differing(job, can_stop=can_stop)
            total = sum(getattr(weights, name) * value for name, value in values.items())
            assert scores.sum(job, can_stop=can_stop) == pytest.approx(total)
            sums.add(total)
    assert len(sums) > 10, "they do differ"


def test_a_gang_has_the_fabric_and_the_fingerprints_of_all_nodes():
    """B6: two groups of four, a job of three nodes: one group."""
    nodes = [
        a_node(f"n{place}", labels=fabric("a" if place < 4 else "b"),
               conformance="x" if place < 2 else "y")
        for place in range(8)
    ]  # fmt: skip
    found = scores_of(nodes).differing(a_gang(24), can_stop=False)
    assert found["topology"] == pytest.approx(0.7 * (1 - 1 / 2) + 0.3 * 0.5)
    assert found["conformance"] == 1, "six of three"
    five = scores_of(nodes).differing(a_gang(56), can_stop=False)
    assert five["topology"] == pytest.approx(0.3 * 0.5), "both groups"
    assert five["conformance"] == pytest.approx(6 / 7)
    small = scores_of(nodes).differing(a_gang(8), can_stop=False)
    assert small["topology"] == 0.5, "one node does, and nobody knows its links"


def test_a_job_on_one_node_has_its_best_links():
    switch, slow = LinkClass.NVSWITCH, LinkClass.PCIE4
    links = ((None, switch, slow), (switch, None, slow), (slow, slow, None))
    node = a_node(gpus=3, topology=NodeTopology(gpus=(0, 1, 2), links=links))
    of = {gpus: scores_of([node]).differing(a_job("j", gpus), can_stop=False)["topology"]
          for gpus in (1, 2, 3)}  # fmt: skip
    assert of[1] == of[2] == 1
    assert of[3] == pytest.approx(slow.gb_per_second / switch.gb_per_second)


def test_shares_are_equal_unless_told():
    usage = {"alice": 900.0, "bob": 100.0, "carol": 0.0}
    of = scores_of([a_node()], usage=usage)
    lacks = {
        name: of.differing(a_job("j", 1, tenant=name), can_stop=False)["fair_share"]
        for name in (*usage, "new", None)
    }
    assert lacks == {"alice": 0, "bob": pytest.approx(0.7), "carol": 1, "new": 1, None: 0.5}
    told = scores_of([a_node()], usage=usage, shares={"alice": 18.0})
    half = told.differing(a_job("j", 1, tenant="bob"), can_stop=False)["fair_share"]
    assert half == 0, "a twentieth is its share, and a tenth it had"


def test_what_nobody_knows_counts_half():
    found = scores_of([]).differing(a_job("j", 1), can_stop=False)
    assert found == {"fair_share": 0.5, "topology": 0.5, "data": 0.5, "checkpoint": 0.0,
                     "conformance": 0.5}  # fmt: skip


def test_a_tenant_lacks_of_its_share_what_the_score_says():
    usage = {"alice": 900.0, "bob": 100.0}
    asks = PackingPolicy(score=ScorePolicy(profile=ScoreProfile.BALANCED), usage=usage)
    lacks = [share_deficit(asks, name) for name in ("alice", "bob", "new", None)]
    assert lacks == [0, pytest.approx(0.8), 1, 0]
    for asks_not in (
        PackingPolicy(usage=usage),
        PackingPolicy(score=ScorePolicy(profile=ScoreProfile.SENSITIVE), usage=usage),
        PackingPolicy(score=ScorePolicy(profile=ScoreProfile.BALANCED)),
    ):
        assert share_deficit(asks_not, "new") == 0
