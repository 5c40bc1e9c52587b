"""Each rule against its plain twin, and what `keep-room` is for."""

import random
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.job import Tier
from models.placement import (
    CyclePlan,
    Decision,
    GPUChoice,
    PackingPolicy,
    PackingRule,
    RecentJobs,
    ScoreTerms,
)
from scheduling.cycle import plan
from scheduling.mix import mix_of
from scheduling.packer import place
from tests.scheduling.test_reference import crowded, crowded_in_parts
from tests.support.packing import HOUR, NOW, a_job, a_node, running
from tests.support.packing_scenes import Scene, requests, scenes
from tests.support.reference_packer import reference_plan
from tests.support.reference_rules import PlainRanking

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
    return reference_plan(scene.queue, scene.nodes, scene.running, policy, NOW, ranking)


def plan_in_numbers(scene: Scene, policy: PackingPolicy, recent: list[RecentJobs]) -> CyclePlan:
    """The plan without what is said in words, whose numbers must add up to the total."""
    made = plan(scene.queue, scene.nodes, scene.running, policy, NOW, recent)
    decisions = tuple(_without_words(decision) for decision in made.decisions)
    return made.model_copy(update={"decisions": decisions})


def _without_words(decision: Decision) -> Decision:
    candidates = tuple(
        candidate.model_copy(update={"terms": _without_parts(candidate.terms)})
        for candidate in decision.candidates
    )
    terms = decision.terms and _without_parts(decision.terms)
    return decision.model_copy(update={"reason": "", "candidates": candidates, "terms": terms})


def _without_parts(terms: ScoreTerms) -> ScoreTerms:
    assert sum(part.value for part in terms.parts) == pytest.approx(terms.total, abs=0.03)
    return terms.model_copy(update={"parts": ()})


@given(scenes(mixed=True), st.sampled_from(OTHERS), st.sampled_from(GPUChoice), lately)
def test_every_plan_by_a_rule_is_that_of_its_plain_twin(
    scene: Scene, rule: PackingRule, choice: GPUChoice, recent: list[RecentJobs]
) -> None:
    policy = PackingPolicy(rule=rule, gpu_choice=choice)
    assert plan_in_numbers(scene, policy, recent) == expected_plan(scene, policy, recent)


@pytest.mark.parametrize("rule", OTHERS)
def test_long_queues_on_crowded_nodes_are_planned_by_a_rule_as_by_its_twin(
    rule: PackingRule,
) -> None:
    chance = random.Random(7)
    placed: Counter[bool] = Counter()
    for seed in range(2):
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
