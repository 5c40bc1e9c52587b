"""Malleable jobs in a cycle: on as many GPUs as fit, never fewer than their smallest size."""

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.activities.commit import rows_of
from longshore.models.elastic import Malleable
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import (
    CyclePlan,
    Decision,
    PackingPolicy,
    PackingRule,
    PlacementKind,
    RunningJob,
)
from longshore.models.preemption import PreemptionPlan, WorkCheckpoint
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL, Gang
from longshore.scheduling.cycle import foresee, mix_kept, plan, plan_cached
from longshore.scheduling.packer import could_ever_place, place
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.planner import Planner
from longshore.scheduling.preemption.plan import plan_preemptions
from longshore.scheduling.wait_answers import WaitAnswers
from tests.scheduling.test_long_queue import queued
from tests.scheduling.test_reference import crowded
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running
from tests.support.packing_scenes import Scene, scenes
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved
from tests.support.searches import seeds


def elastic(name: str, least: int, most: int, step: int = 1, **fields: object) -> JobRequest:
    """Return a job with a core for each GPU."""
    desired = fields.pop("desired", None)
    sizes = Malleable.model_validate({"min": least, "max": most, "step": step, "desired": desired})
    size = sizes.target
    asked = {"cpus": size, "ram": size, "malleable": sizes, **fields}
    return a_job(name, gpus=size, **asked)


def fabric(domain: str) -> dict[str, str]:
    return {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: domain}


def nodes_in(domain: str, count: int) -> list[Node]:
    return [a_node(f"{domain}{i}", labels=fabric(domain)) for i in range(count)]


def size_of(decision: Decision) -> int:
    return sum(len(gpus) for _, gpus in decision.by_node)


def sizes_of(made: CyclePlan) -> dict[str, int]:
    return {decision.job_id: size_of(decision) for decision in made.decisions}


def test_j1_all_are_admitted_and_14_are_idle() -> None:
    nodes = nodes_in("a", 9)
    queue = [
        a_job("j1", 32, gang=Gang(), cpus=32, ram=32),
        elastic("j2", 8, 24, 8, gang=Gang(group_gpus=8)),
        a_job("j3", 2),
    ]
    made = sizes_of(plan(queue, nodes, (), POLICY, NOW))
    assert made == {"j1": 32, "j2": 24, "j3": 2}
    assert 72 - sum(made.values()) == 14


def test_j1e_what_is_left_after_a_node_was_lost_holds_it_smaller() -> None:
    nodes = [each.model_copy(update={"state": NodeState.LOST}) for each in nodes_in("a", 1)]
    nodes += nodes_in("b", 2)
    (decision,) = plan([elastic("j2", 8, 24, 8, gang=Gang(group_gpus=8))], nodes, (), POLICY,
                       NOW).decisions  # fmt: skip
    assert size_of(decision) == 16
    assert decision.reason.startswith("16 of 24 desired GPUs, as many as fit now; ")


@pytest.mark.parametrize(
    ("domains", "desired", "size"), [(3, None, 96), (4, None, 128), (5, None, 160), (5, 96, 96)]
)
def test_j4_groups_of_32(domains: int, desired: int | None, size: int) -> None:
    nodes = [node for domain in "abcde"[:domains] for node in nodes_in(domain, 4)]
    job = elastic("run", 96, 160, 32, gang=Gang(group_gpus=32), desired=desired)
    (decision,) = plan([job], nodes, (), POLICY, NOW).decisions
    assert size_of(decision) == size


def test_on_one_node_it_takes_what_is_free_there() -> None:
    nodes = [a_node("n1", busy=range(3)), a_node("n2", busy=range(5))]
    (decision,) = plan([elastic("e", 2, 8, 2)], nodes, (), POLICY, NOW).decisions
    assert (decision.node_id, size_of(decision)) == ("n1", 4)


def test_it_takes_nothing_that_is_kept_for_a_job_before_it() -> None:
    node = a_node("n1", busy=range(4))
    ends = running("on-n1", "n1", range(4), HOUR, vram_per_gpu=80)
    queue = [a_job("wide", 8, priority=8), elastic("e", 1, 4, expected_duration=2 * HOUR)]
    wide, other = plan(queue, [node], [ends], POLICY, NOW).decisions
    assert wide.estimated_start == NOW + HOUR
    assert other.kind is PlacementKind.REQUEST_MORE_CAPACITY


def test_one_that_runs_shorter_on_more_gpus_ends_before_the_start_that_is_kept() -> None:
    node = a_node("n1", busy=range(4))
    ends = running("on-n1", "n1", range(4), HOUR, vram_per_gpu=80)
    queue = [a_job("wide", 8, priority=8), elastic("e", 1, 4, expected_duration=HOUR / 2)]
    _, other = plan(queue, [node], [ends], POLICY, NOW).decisions
    assert size_of(other) == 4


def test_where_not_even_the_smallest_fits_a_start_is_kept_for_that() -> None:
    node = a_node("n1", busy=range(7))
    ends = running("on-n1", "n1", range(7), HOUR, vram_per_gpu=80)
    made = plan([elastic("e", 2, 8, 2)], [node], [ends], POLICY, NOW)
    (decision,), (reservation,) = made.decisions, made.reservations
    assert len(reservation.gpu_indices) == 2
    assert decision.estimated_start == NOW + HOUR
    assert decision.reason.startswith("for 2 GPUs, the fewest of 2 to 8: no node can take it now")


def test_its_placement_has_the_cores_and_the_duration_of_its_size() -> None:
    job, node = elastic("e", 2, 8, 2, ram=64), a_node("n1", busy=range(4))
    (decision,) = plan([job], [node], (), POLICY, NOW).decisions
    (row,) = rows_of(decision, job, {"n1": node})
    assert (row["cpu_milli"], row["ram_mb"]) == (4_000, 32_000)
    assert row["expected_seconds"] == 7200  # half of the GPUs take twice the hour


def test_a_job_alone_is_looked_at_as_a_cycle_does() -> None:
    node = a_node("n1", busy=range(5))
    job = elastic("e", 2, 8, 2)
    assert size_of(place(job, [node], POLICY, NOW)) == 2
    assert size_of(foresee(job, (), [node], (), POLICY, NOW).decision) == 2
    waits = place(elastic("e", 4, 8, 2), [node], POLICY, NOW)
    assert [rejection.node_id for rejection in waits.rejections] == ["n1"]


def test_a_node_for_the_smallest_size_could_hold_it() -> None:
    nodes = [a_node("n1", gpus=4)]
    assert could_ever_place(elastic("e", 4, 16, 4), nodes, NOW)
    assert not could_ever_place(elastic("e", 8, 16, 4), nodes, NOW)


def test_jobs_are_preempted_for_its_smallest_size_alone() -> None:
    works = [a_work("a", {"n1": range(4)}), a_work("b", {"n1": range(4, 8)})]
    nodes = nodes_with(works, [a_node("n1")])
    (made,) = plan_preemptions([elastic("e", 4, 8, 4, priority=9)], nodes, works, RULES, POLICY,
                               NOW)  # fmt: skip
    assert len(made.victims) == 1


def shrinking(
    sizes: Malleable | None, asked: int, *, beside: bool = False, busy: int = 0
) -> PreemptionPlan:
    """Return the plan for a job of so many GPUs on a node of 24 where one of 16 runs, perhaps
    `beside` a rigid job of 8 that has just saved."""
    works = [a_work("j2", {"n1": range(16)}, malleable=sizes, checkpoint=saved(MINUTE))]
    if beside:
        works.append(a_work("rigid", {"n1": range(16, 24)}, checkpoint=saved(MINUTE)))
    node = a_node("n1", gpus=24, busy=range(24 - busy, 24))
    nodes = nodes_with(works, [node])
    (made,) = plan_preemptions([a_job("k", asked, priority=9)], nodes, works, RULES, POLICY, NOW)
    return made


def test_j17_one_group_is_given_up_for_two_gpus() -> None:
    made = shrinking(Malleable(min=8, max=16, step=8), 2, busy=8)
    (victim,) = made.victims
    assert (victim.job_id, victim.gpus_left, victim.requeue) == ("j2", 8, 0)
    assert victim.reason.startswith("goes on with 8 GPUs of 16; ")
    assert made.ways[0].title == "shrink j2 to 8 GPUs"
    assert made.reason.startswith("shrink j2 to 8 GPUs: it loses $")
    assert "starts again at once" in victim.reason


def test_a_shrink_is_taken_before_a_job_is_stopped_whole() -> None:
    (victim,) = shrinking(Malleable(min=8, max=16, step=8), 8, beside=True).victims
    assert (victim.job_id, victim.gpus_left) == ("j2", 8)
    (whole,) = shrinking(None, 8, beside=True).victims
    assert (whole.job_id, whole.gpus_left) == ("rigid", None)


@pytest.mark.parametrize("in_place", [True, False])
def test_beside_a_sensitive_job_it_is_stopped_whole_and_waits(in_place: bool) -> None:
    sizes = Malleable(min=8, max=16, step=8, in_place=in_place)
    saves = saved(MINUTE).model_copy(update={"saves_while_running": True})
    works = [a_work("e", {"n1": range(16)}, malleable=sizes, checkpoint=saves)]
    job = a_job("k", 2, priority=9, sensitive=True)
    nodes = nodes_with(works, [a_node("n1", gpus=16, conformance="new")])
    (made,) = plan_preemptions([job], nodes, works, RULES, POLICY, NOW)
    (victim,) = made.victims
    assert victim.gpus_left is None
    assert victim.requeue > 0
    assert "waits 1h" in victim.reason, victim.reason


@pytest.mark.parametrize("in_place", [True, False])
def test_a_shrink_in_place_loses_nothing_but_where_its_save_fails(in_place: bool) -> None:
    """So a job that saves where nobody sees it gives up a part before another is stopped whole."""
    sizes = Malleable(min=8, max=16, step=8, in_place=in_place)
    never = WorkCheckpoint(saves_while_running=True)
    elastic = a_work("j2", {"n1": range(16)}, ran=HOUR, malleable=sizes, checkpoint=never)
    rigid = a_work("rigid", {"n1": range(16, 24)}, ran=30 * MINUTE, checkpoint=never)
    works = [elastic, rigid]
    nodes = nodes_with(works, [a_node("n1", gpus=24)])
    (made,) = plan_preemptions([a_job("k", 8, priority=9)], nodes, works, RULES, POLICY, NOW)
    (victim,) = made.victims
    if not in_place:
        assert (victim.job_id, victim.gpus_left) == ("rigid", None)
        return
    assert (victim.job_id, victim.gpus_left) == ("j2", 8)
    hour_of_it = 16 * elastic.price
    assert victim.recompute == pytest.approx(hour_of_it * RULES.save_risk)
    assert "and goes on; 1h of work is in no save, and one in 10 is lost" in victim.reason


def test_j2c_nothing_is_left_below_min() -> None:
    (victim,) = shrinking(Malleable(min=16, max=48, step=8), 8, busy=8).victims
    assert victim.gpus_left is None
    assert victim.requeue > 0


def test_gpus_that_are_free_there_take_the_place_of_those_it_loses() -> None:
    (victim,) = shrinking(Malleable(min=2, max=16, step=2), 16).victims
    assert victim.gpus_left == 8  # 8 are free, and 8 of its own are left


def test_a_job_that_runs_without_sizes_is_priced_as_before() -> None:
    plain, other = shrinking(None, 8, busy=8), shrinking(Malleable(min=16, max=16), 8, busy=8)
    assert plain.victims == other.victims


def made_elastic(scene: Scene, chance: random.Random) -> Scene:
    """Return the scene with about half of its jobs on several GPUs malleable."""
    return Scene(scene.nodes, scene.running, [_perhaps(job, chance) for job in scene.queue])


def _perhaps(job: JobRequest, chance: random.Random) -> JobRequest:
    if job.gpus < 2 or chance.random() < 0.5:
        return job
    step = job.gang.group_gpus if job.gang and job.gang.group_gpus else 1
    if job.gpus % step:
        return job
    sizes = Malleable(min=step, max=job.gpus, step=step, serial_fraction=chance.choice([0, 0.3]))
    return job.model_copy(update={"malleable": sizes})


policies = st.builds(
    PackingPolicy,
    rule=st.sampled_from([PackingRule.SEED_SCORE, PackingRule.KEEP_ROOM]),
    max_reservations=st.sampled_from([0, 1, 8]),
)


@given(scenes(max_jobs=25, mixed=True, linked=True, gangs=True), policies, st.randoms())
def test_a_compiled_plan_is_that_made_job_by_job(
    scene: Scene, policy: PackingPolicy, chance: random.Random
) -> None:
    scene = made_elastic(scene, chance)
    arguments = scene.queue, scene.nodes, scene.running, policy, NOW
    assert plan(*arguments, compiled=True) == plan(*arguments, compiled=False)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("rule", [PackingRule.KEEP_ROOM, PackingRule.SEED_SCORE])
def test_a_long_queue_is_planned_the_same_compiled_and_in_part(rule: PackingRule) -> None:
    elastic_starts = smaller = 0
    for seed in seeds(1):
        chance = random.Random(seed)
        scene = made_elastic(crowded(chance), chance)
        policy = PackingPolicy(rule=rule)
        arguments = scene.queue, scene.nodes, scene.running, policy, NOW
        made = plan(*arguments, compiled=False)
        assert plan(*arguments, compiled=True) == made
        asked = {job.id: job for job in scene.queue if job.malleable}
        sizes = {one.job_id: size_of(one) for one in made.placements if one.job_id in asked}
        elastic_starts += len(sizes)
        smaller += sum(size < asked[job_id].gpus for job_id, size in sizes.items())
        if made.rearranged:
            continue
        kept = NodeCache()
        kept.update({node.id for node in scene.nodes}, scene.nodes, scene.running)
        part = queued(scene.queue).first_alike(kept.open_gpus, policy)
        mix = mix_kept(scene.queue, kept, policy, ())
        of_part = plan_cached(part, kept, policy, NOW, mix=mix)
        whole = plan_cached(scene.queue, kept, policy, NOW, mix=mix)
        assert of_part.placements == whole.placements
    assert elastic_starts > 5
    assert smaller > 0


@given(scenes(max_jobs=6, gangs=True), st.randoms())
def test_it_has_the_largest_size_that_would_start_in_its_place(
    scene: Scene, chance: random.Random
) -> None:
    queue = made_elastic(scene, chance).queue
    made = plan(queue, scene.nodes, scene.running, POLICY, NOW, as_a_set=False, compiled=False)
    sizes = sizes_of(made)
    for job in queue:
        if job.malleable is None:
            continue
        size = sizes[job.id]
        assert size in (0, *job.malleable.up_to_target)
        for larger in (other for other in job.malleable.up_to_target if other > size):
            rigid = [job.at_size(larger) if other is job else other for other in queue]
            as_rigid = plan(rigid, scene.nodes, scene.running, POLICY, NOW, as_a_set=False,
                            compiled=False)  # fmt: skip
            assert not sizes_of(as_rigid)[job.id]


def alike(name: str, times: int) -> list[JobRequest]:
    """Return jobs of 2 nodes to 32 whose sizes there is never room for."""
    return [elastic(f"{name}{i:03}", 16, 256, 8, gang=Gang()) for i in range(times)]


def test_one_of_many_sizes_is_not_asked_for_those_above_all_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    start_as = Planner._start_as

    def counted(self: Planner, job: JobRequest, explain: bool) -> Decision | None:
        asked.append(job.gpus)
        return start_as(self, job, explain)

    monkeypatch.setattr(Planner, "_start_as", counted)
    nodes = [a_node(f"a{i}", busy=range(6), labels=fabric("a")) for i in range(4)]
    vast = {"cpus": 0, "ram": 0}
    plan([elastic("one", 3, 100_000, **vast)], nodes, (), POLICY, NOW)
    assert not asked
    plan([elastic("gang", 9, 100_000, gang=Gang(), **vast)], nodes, (), POLICY, NOW)
    assert not asked
    by_three = Gang(group_gpus=3)
    plan([elastic("threes", 9, 99_999, 3, gang=by_three, **vast)], nodes, (), POLICY, NOW)
    assert not asked
    made = plan([elastic("gang", 1, 100_000, gang=Gang(), **vast)], nodes, (), POLICY, NOW)
    assert asked == [size_of(made.decisions[0])] == [8]


def test_alone_it_is_not_asked_for_sizes_above_all_that_is_free() -> None:
    nodes = [a_node("a0", busy=range(6), labels=fabric("a"))]
    for gang in (None, Gang()):
        job = elastic("e", 1, 100_000, gang=gang, cpus=0, ram=0)
        assert size_of(place(job, nodes, POLICY, NOW)) == 2


def test_of_those_that_ask_alike_and_wait_a_cycle_looks_at_no_more_than_may_differ() -> None:
    nodes = [a_node(f"a{i}", busy=range(7), labels=fabric("a")) for i in range(8)]
    held = [running(f"on-a{i}", f"a{i}", range(7), HOUR) for i in range(8)]
    kept = NodeCache()
    kept.update({node.id for node in nodes}, nodes, held)
    queue = alike("e", 100)
    made = plan_cached(queue, kept, POLICY, NOW, wanted=())
    assert len(made.decisions) < 12
    whole = {
        decision.job_id: decision for decision in plan(queue, nodes, held, POLICY, NOW).decisions
    }
    assert all(decision == whole[decision.job_id] for decision in made.decisions)


@given(scenes(max_jobs=6, gangs=True), policies, st.randoms())
def test_those_that_ask_alike_are_decided_as_if_each_were_asked(
    scene: Scene, policy: PackingPolicy, chance: random.Random
) -> None:
    queue = [
        job.model_copy(update={"id": f"{job.id}-{i}"})
        for job in made_elastic(scene, chance).queue
        for i in range(3)
    ]
    arguments = queue, scene.nodes, scene.running, policy, NOW
    made = plan(*arguments, compiled=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WaitAnswers, "of_malleable", lambda *_: None)
        patch.setattr(Columns, "most_free", 1_000)
        patch.setattr("longshore.scheduling.planner.most_now", lambda *_: 1_000)
        assert plan(*arguments, compiled=False) == made


def test_a_day_long_job_is_not_held_to_be_longer_than_any_may_be() -> None:
    sizes = Malleable(min=1, max=1000)
    job = a_job("e", gpus=1000, malleable=sizes, expected_duration=timedelta(days=100))
    assert job.smallest.expected_duration == timedelta(days=3653)


def test_nothing_changes_for_what_runs_there() -> None:
    held: list[RunningJob] = [running("on-n1", "n1", range(4), HOUR, vram_per_gpu=80)]
    made = plan([elastic("e", 2, 8, 2)], [a_node("n1", busy=range(4))], held, POLICY, NOW)
    assert set(made.placements[0].gpu_indices) == {4, 5, 6, 7}
