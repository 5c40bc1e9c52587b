"""The compiled pass against the plan made job by job: the same plan, whatever the scene."""

import random
from collections import Counter

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
    PlacementKind,
    RejectionCode,
    ScoreWeights,
)
from longshore.models.topology import Gang, labels_of_bought
from longshore.scheduling.bulk import eligibility, tables
from longshore.scheduling.cycle import plan
from tests.scheduling.test_reference import crowded, crowded_in_parts, without_words
from tests.support.packing import NOW, one_by_one
from tests.support.packing_scenes import Scene, requests, scenes
from tests.support.reference_packer import reference_plan
from tests.support.searches import seeds

policies = st.builds(
    PackingPolicy,
    rule=st.sampled_from([PackingRule.SEED_SCORE, PackingRule.KEEP_ROOM]),
    gpu_choice=st.sampled_from(GPUChoice),
    max_reservations=st.sampled_from([0, 1, 8]),
    weights=st.sampled_from(
        [
            ScoreWeights(),
            ScoreWeights(utilization=-1, fragmentation=0),
            ScoreWeights(locality=0.7, links=3),
            ScoreWeights(separation=0.5),
        ]
    ),
)
lately = st.lists(
    st.builds(RecentJobs, request=requests("r", True), count=st.integers(1, 9),
              ended=st.integers(0, 9)),
    max_size=4,
)  # fmt: skip


compiled_scenes = scenes(max_jobs=25, mixed=True, linked=True, gangs=True)


def both_ways(
    scene: Scene, policy: PackingPolicy, recent: list[RecentJobs]
) -> tuple[CyclePlan, CyclePlan]:
    """Return the plan of the compiled pass, and that made job by job."""
    arguments = scene.queue, scene.nodes, scene.running, policy, NOW, recent
    return plan(*arguments, compiled=True), plan(*arguments, compiled=False)


def with_data(scene: Scene, rng: random.Random) -> Scene:
    """Return a scene in which nodes hold data, and jobs want some."""
    held, wanted = [(), ("a",), ("a", "b")], [{}, {"a": 10.0}, {"a": 10.0, "b": 30.0}]
    return Scene(
        [node.model_copy(update={"data": rng.choice(held)}) for node in scene.nodes],
        scene.running,
        [job.model_copy(update={"data": rng.choice(wanted)}) for job in scene.queue],
    )


def parts_of(decision: Decision) -> list[str]:
    """Return what the value of the node chosen is made of."""
    return [part.name for each in decision.candidates[:1] for part in each.terms.parts]


@given(compiled_scenes, policies, lately)
def test_a_compiled_plan_is_that_made_job_by_job(
    scene: Scene, policy: PackingPolicy, recent: list[RecentJobs]
) -> None:
    compiled, one_by_one = both_ways(scene, policy, recent)
    assert compiled == one_by_one


@given(compiled_scenes, policies, st.integers(1, 3), st.sampled_from([0, 1, 15]))
def test_a_compiled_plan_is_the_same_with_few_needs_loaded_and_wide_buckets(
    scene: Scene, policy: PackingPolicy, rows: int, thresholds: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_MOST_ANSWERS", 1)
        patch.setattr(tables, "_FEWEST_NEEDS", rows)
        patch.setattr(eligibility, "_MOST_THRESHOLDS", thresholds)
        compiled, one_by_one = both_ways(scene, policy, [])
    assert compiled == one_by_one


@given(scenes(mixed=True, linked=True, gangs=True), st.sampled_from([0, 1, 8]))
def test_a_compiled_plan_is_that_of_the_reference(scene: Scene, most: int) -> None:
    policy = PackingPolicy(max_reservations=most)
    with one_by_one():
        compiled, _ = both_ways(scene, policy, [])
    expected = reference_plan(scene.queue, scene.nodes, scene.running, policy, NOW)
    wordless = tuple(without_words(decision) for decision in compiled.decisions)
    assert compiled.model_copy(update={"decisions": wordless}) == expected


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        (PackingRule.SEED_SCORE, ScoreWeights(locality=2, links=4)),
        (PackingRule.KEEP_ROOM, ScoreWeights()),
    ],
)
def test_long_queues_with_gangs_on_crowded_nodes_are_planned_alike(
    rule: PackingRule, weights: ScoreWeights
) -> None:
    kinds: Counter[PlacementKind] = Counter()
    codes: set[RejectionCode] = set()
    parts: Counter[str] = Counter()
    gangs = beside = 0
    for seed in seeds(4):
        rng = random.Random(seed)
        scene = crowded_in_parts(rng) if seed % 2 else crowded(rng, linked=seed % 4 == 0)
        scene = with_data(scene, rng)
        scene.queue[::10] = [
            job.model_copy(update={"gang": Gang(), "mig": None, "milli": 1000})
            for job in scene.queue[::10]
        ]
        labels = labels_of_bought("market", None, "island")
        scene.nodes[:] = [node.model_copy(update={"labels": labels}) for node in scene.nodes]
        compiled, one_by_one = both_ways(scene, PackingPolicy(rule=rule, weights=weights), [])
        assert compiled == one_by_one
        reserved = {reservation.node_id for reservation in compiled.reservations}
        kinds.update(decision.kind for decision in compiled.decisions)
        codes.update(code for decision in compiled.decisions for code in decision.rejected)
        gangs += sum(bool(decision.members) for decision in compiled.placements)
        beside += sum(decision.node_id in reserved for decision in compiled.placements)
        parts.update(name for decision in compiled.placements for name in parts_of(decision))
    # The comparison means something only where all of these happen.
    assert kinds[PlacementKind.EXISTING_NODE] > 100
    assert kinds[PlacementKind.REQUEST_MORE_CAPACITY] > 50
    assert RejectionCode.RESERVED in codes
    assert gangs > 3
    assert beside > 3
    assert parts["data on the node"] > 20
    assert parts["links between its GPUs"] > 5
