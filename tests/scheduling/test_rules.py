"""Each rule against its plain twin, and what `keep-room` is for."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import RecentJobs
from longshore.models.placement import (
    CyclePlan,
    Decision,
    GPUChoice,
    PackingPolicy,
    PackingRule,
    ScoreTerms,
    ScoreWeights,
)
from longshore.models.topology import Gang
from longshore.scheduling.cycle import plan
from longshore.scheduling.packer import place
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.mix import NO_MIX, mix_of
from longshore.scheduling.placement.scan import Scanner
from longshore.scheduling.placement.state import Need, view_nodes
from tests.scheduling.test_reference import crowded, crowded_in_parts, without_words
from tests.support.packing import HOUR, NOW, a_job, a_node, one_by_one, running
from tests.support.packing_scenes import Scene, requests, scenes
from tests.support.reference_packer import reference_plan
from tests.support.reference_rules import PlainRanking
from tests.support.searches import seeds

OTHERS = [rule for rule in PackingRule if rule is not PackingRule.SEED_SCORE]
KEEP_ROOM = PackingPolicy(rule=PackingRule.KEEP_ROOM)

lately = st.lists(
    st.builds(RecentJobs, request=requests("r", True), count=st.integers(1, 9),
              ended=st.integers(0, 9)),
    max_size=4,
)  # fmt: skip


def expected_plan(scene: Scene, policy: PackingPolicy, recent: list[RecentJobs]) -> CyclePlan:
    mix = mix_of(scene.queue, recent, len(scene.running), policy)
    ranking = PlainRanking(policy.rule, mix)
    made = reference_plan(scene.queue, scene.nodes, scene.running, policy, NOW, ranking)
    decisions = tuple(_rounded(decision) for decision in made.decisions)
    return made.model_copy(update={"decisions": decisions})


def plan_in_numbers(scene: Scene, policy: PackingPolicy, recent: list[RecentJobs]) -> CyclePlan:
    """The plan without what is said in words, whose numbers must add up to the total."""
    with one_by_one():
        made = plan(scene.queue, scene.nodes, scene.running, policy, NOW, recent)
    decisions = tuple(_in_numbers(decision) for decision in made.decisions)
    return made.model_copy(update={"decisions": decisions})


def _in_numbers(decision: Decision) -> Decision:
    candidates = tuple(
        candidate.model_copy(update={"terms": candidate.terms.model_copy(update={"parts": ()})})
        for candidate in decision.candidates
    )
    terms = decision.terms and _without_parts(decision.terms)
    numbers = {"candidates": candidates, "terms": terms}
    return _rounded(without_words(decision).model_copy(update=numbers))


def _rounded(decision: Decision) -> Decision:
    """To seven digits: in another order the sums over kinds of jobs differ in the last of nine."""

    def rounded(terms: ScoreTerms) -> ScoreTerms:
        return terms.model_copy(update={"total": round(terms.total, 7)})

    candidates = tuple(
        candidate.model_copy(update={"terms": rounded(candidate.terms)})
        for candidate in decision.candidates
    )
    terms = decision.terms and rounded(decision.terms)
    return decision.model_copy(update={"candidates": candidates, "terms": terms})


def _without_parts(terms: ScoreTerms) -> ScoreTerms:
    assert sum(part.value for part in terms.parts) == pytest.approx(terms.total, abs=0.03)
    return terms.model_copy(update={"parts": ()})


@given(
    scenes(mixed=True, linked=True, gangs=True), st.sampled_from(OTHERS),
    st.sampled_from(GPUChoice), lately, st.sampled_from([0.0, 0.5, 2.0]),
)  # fmt: skip
def test_every_plan_by_a_rule_is_that_of_its_plain_twin(
    scene: Scene,
    rule: PackingRule,
    choice: GPUChoice,
    recent: list[RecentJobs],
    separation: float,
) -> None:
    weights = ScoreWeights(separation=separation)
    policy = PackingPolicy(rule=rule, gpu_choice=choice, weights=weights)
    assert plan_in_numbers(scene, policy, recent) == expected_plan(scene, policy, recent)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("rule", OTHERS)
def test_long_queues_on_crowded_nodes_are_planned_by_a_rule_as_by_its_twin(
    rule: PackingRule,
) -> None:
    chance = random.Random(7)
    placed: Counter[bool] = Counter()
    for seed in seeds(1):
        for make in (crowded, crowded_in_parts):
            scene = make(random.Random(seed))
            recent = [
                RecentJobs(request=job, count=chance.randrange(1, 5), ended=chance.randrange(3))
                for job in make(chance).queue[:20]
            ]
            policy = PackingPolicy(rule=rule)
            expected = expected_plan(scene, policy, recent)
            assert plan_in_numbers(scene, policy, recent) == expected
            placed.update(decision.slices > 0 for decision in expected.placements)
    assert min(placed[True], placed[False]) > 10  # else the comparison means little


def recent(count: int = 20, **shape: Any) -> RecentJobs:
    return RecentJobs(request=a_job("recent", **shape), count=count, ended=count)


def test_keep_room_leaves_long_lived_nodes_to_the_long_jobs_that_come() -> None:
    nodes = [a_node("lasting"), a_node("ends-soon", expires_in=4 * HOUR)]
    long_jobs = [recent(gpus=4, expected_duration=20 * HOUR)]
    at_work = [running("old", "elsewhere", {0}, HOUR)]
    chosen = plan([a_job()], nodes, at_work, KEEP_ROOM, NOW, long_jobs).decisions[0]
    assert chosen.node_id == "ends-soon"
    by_score = plan([a_job()], nodes, at_work, PackingPolicy(), NOW, long_jobs).decisions[0]
    assert by_score.node_id == "lasting"  # to the score both are empty


@pytest.mark.parametrize("rule", PackingRule)
def test_jobs_that_end_together_come_together_where_the_pool_asks_for_it(
    rule: PackingRule,
) -> None:
    nodes = [a_node(name, busy=range(4)) for name in ("hours", "days")]
    at_work = [
        running("on-hours", "hours", range(4), 2 * HOUR, vram_per_gpu=80),
        running("on-days", "days", range(4), 40 * HOUR, vram_per_gpu=80),
    ]
    policy = PackingPolicy(rule=rule, weights=ScoreWeights(separation=1))
    short, long = a_job(expected_duration=HOUR), a_job(expected_duration=40 * HOUR)
    for job, node, worth in ((short, "hours", 0.5), (long, "days", 1.0)):
        decision = plan([job], nodes, at_work, policy, NOW).decisions[0]
        assert decision.node_id == node
        assert decision.terms is not None
        assert ("ends with the node's jobs", worth) in {
            (part.name, part.value) for part in decision.terms.parts
        }
    without = plan([long], nodes, at_work, PackingPolicy(rule=rule), NOW).decisions[0]
    assert without.node_id == "hours"  # to the rule alone both are the same


@pytest.mark.parametrize("rule", PackingRule)
def test_a_job_that_takes_no_time_ends_together_with_nothing(rule: PackingRule) -> None:
    nodes, at_work = [a_node(busy={0})], [running("old", "node-a", {0}, timedelta(seconds=1))]
    policy = PackingPolicy(rule=rule, weights=ScoreWeights(separation=1))
    without = PackingPolicy(rule=rule)
    job = a_job(expected_duration=timedelta(0))
    one, other = (plan([job], nodes, at_work, p, NOW).decisions[0] for p in (policy, without))
    assert one.terms is not None
    assert other.terms is not None
    assert one.terms.total == other.terms.total


def test_keep_room_leaves_rare_gpus_to_those_who_name_them() -> None:
    nodes = [a_node("rare", gpu_type="H200", vram=141), a_node("usual", gpu_type="A100")]
    who_comes = [recent(gpus=8, gpu_type="H200"), recent(gpus=1)]
    decision = place(a_job(gpus=1), nodes, KEEP_ROOM, NOW, recent=who_comes)
    assert decision.node_id == "usual"
    rare = next(c for c in decision.candidates if c.node_id == "rare")
    assert "room for 8 x H200" in {part.name.partition(" with")[0] for part in rare.terms.parts}


def test_a_decision_by_a_rule_says_what_it_weighed() -> None:
    nodes = [a_node("a", provider="prime"), a_node("b", busy=range(4))]
    decision = place(a_job(), nodes, KEEP_ROOM, NOW, recent=[recent(gpus=8)])
    assert decision.node_id == "b"
    assert decision.reason.startswith("b, GPUs 4-5: the best of 2 candidates by keep-room, value")
    assert decision.terms is not None
    assert decision.terms.rule is PackingRule.KEEP_ROOM
    other = decision.candidates[1].terms
    assert ("provider", 0.02) in {(part.name, part.value) for part in other.parts}


@given(scenes(mixed=True), lately, st.randoms(use_true_random=False))
def test_the_order_of_what_came_lately_changes_nothing(
    scene: Scene, jobs: list[RecentJobs], chance: random.Random
) -> None:
    first = plan(scene.queue, scene.nodes, scene.running, KEEP_ROOM, NOW, jobs)
    chance.shuffle(jobs)
    chance.shuffle(scene.queue)
    assert plan(scene.queue, scene.nodes, scene.running, KEEP_ROOM, NOW, jobs) == first


@pytest.mark.parametrize("rule", PackingRule)
def test_a_rule_ranks_nodes_when_nothing_is_known_of_the_jobs_that_come(rule: PackingRule) -> None:
    policy = PackingPolicy(rule=rule)
    columns = Columns(view_nodes([a_node("empty"), a_node("half", busy=range(4))], (), NOW), NOW)
    scan = Scanner(columns, policy, NO_MIX).scan(Need.of(a_job(), policy))
    assert scan.option_count == 2
    assert columns.views[scan.best(1)[0]].node.id in ("empty", "half")
    assert scan.candidate(scan.best(1)[0], in_words=True).terms.rule is rule


def test_kinds_of_a_mix_are_jobs_that_ask_alike() -> None:
    queue = [a_job("a"), a_job("b", cpus=9), a_job("c", cpus=64), a_job("d", gpus=4)]
    gang = RecentJobs(request=a_job("g", gpus=16, gang=Gang()), count=9)
    mix = mix_of(queue, [recent(4, gpus=4), gang], 16, KEEP_ROOM)
    found = [(kind.need.gpus, kind.need.cpus, kind.frequency) for kind in mix.kinds]
    assert found == [(4, 8, 5 / 8), (2, 8.5, 2 / 8), (2, 64, 1 / 8)]
    assert mix.churn == 4 / 16
    assert mix_of(queue, (), 0, PackingPolicy()).kinds == ()  # the score does not look at it
