"""A queue packed as a set: a job starts where others of the same plan can change their places."""

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import CyclePlan, PackingPolicy, PackingRule, ScoreWeights
from longshore.models.topology import Gang, LinkClass
from longshore.scheduling.cycle import foresee, plan
from longshore.scheduling.packer import check
from longshore.scheduling.placement import rearranging
from longshore.scheduling.placement.rearranging import Rearranging
from longshore.scheduling.placement.state import EPSILON, Need
from longshore.scheduling.placement.taken import Place
from tests.scheduling.test_packing_properties import check_every_moment
from tests.scheduling.test_reference import crowded, crowded_in_parts
from tests.support.gangs import islands
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, one_by_one, running
from tests.support.packing_scenes import Scene, applied, scenes, uneven_nodes
from tests.support.searches import seeds

RULES = [PackingRule.SEED_SCORE, PackingRule.KEEP_ROOM]
policies = st.builds(
    PackingPolicy,
    rule=st.sampled_from(PackingRule),
    max_reservations=st.sampled_from([1, 8]),
    weights=st.sampled_from([ScoreWeights(), ScoreWeights(locality=2)]),
)


def older(hours: int, name: str, gpus: int, cpus: float, **fields: Any) -> JobRequest:
    return a_job(name, gpus, cpus=cpus, ram=0, submitted_at=NOW - hours * HOUR, **fields)


def places(made: CyclePlan) -> dict[str, str]:
    return {d.job_id: d.node_id for d in made.placements if d.node_id}


def few_cores_and_few_gpus() -> list[Node]:
    """`few-gpus` is fuller with a small job on it, so that job goes there."""
    return [a_node("few-cores", gpus=4, cpus=24), a_node("few-gpus", gpus=2, cpus=64)]


SMALL, WIDE = older(2, "small", 1, 20), older(1, "wide", 2, 40)


def test_a_job_starts_where_another_of_its_cycle_can_go_elsewhere() -> None:
    nodes = few_cores_and_few_gpus()
    with one_by_one():
        assert places(plan([SMALL, WIDE], nodes, [], POLICY, NOW)) == {"small": "few-gpus"}
    made = plan([SMALL, WIDE], nodes, [], POLICY, NOW)
    assert places(made) == {"small": "few-cores", "wide": "few-gpus"}
    assert made.reservations == ()
    small, wide = made.decisions
    assert small.reason == (
        "few-cores, GPU 0: placed there so that another job of the same cycle can start too"
    )
    assert wide.reason == (
        "few-gpus, GPUs 0-1: 1 job of the same cycle placed elsewhere, so that it can start too"
    )


def test_what_somebody_asks_about_says_the_same_and_why_no_node_was_free() -> None:
    found = foresee(WIDE, [SMALL], few_cores_and_few_gpus(), [], POLICY, NOW)
    assert found.decision.node_id == "few-gpus"
    assert [rejection.node_id for rejection in found.decision.rejections] == [
        "few-cores", "few-gpus",
    ]  # fmt: skip
    assert places(found.before) == {"small": "few-cores"}


def test_a_job_that_had_to_go_has_another_go() -> None:
    nodes = [*few_cores_and_few_gpus(), a_node("no-cores", gpus=8, cpus=9)]
    nodes[0] = a_node("few-cores", gpus=1, cpus=24)
    queue = [older(3, "tiny", 1, 8), SMALL, WIDE]
    with one_by_one():
        alone = places(plan(queue, nodes, [], POLICY, NOW))
    assert alone == {"tiny": "few-cores", "small": "few-gpus"}
    made = plan(queue, nodes, [], POLICY, NOW)
    assert places(made) == {"tiny": "no-cores", "small": "few-cores", "wide": "few-gpus"}


def test_what_runs_stays() -> None:
    nodes = few_cores_and_few_gpus()
    nodes[1] = a_node("few-gpus", gpus=2, cpus=64, cpus_used=20, busy=[0])
    at_work = [running("on-few-gpus", "few-gpus", [0], HOUR, cpus=20)]
    made = plan([WIDE], nodes, at_work, POLICY, NOW)
    assert places(made) == {}
    assert len(made.reservations) == 1


def test_a_gang_stays() -> None:
    nodes = [a_node("much-ram", gpus=4, cpus=24), a_node("many-cores", gpus=4, ram=64)]
    gang = SMALL.model_copy(update={"gang": Gang(unlabelled_nodes=True)})
    wide = a_job("wide", 4, cpus=4, ram=400)
    with one_by_one():
        assert places(plan([SMALL, wide], nodes, [], POLICY, NOW)) == {"small": "much-ram"}
    assert len(places(plan([SMALL, wide], nodes, [], POLICY, NOW))) == 2
    assert places(plan([gang, wide], nodes, [], POLICY, NOW)) == {"small": "much-ram"}


@pytest.mark.parametrize("between", [LinkClass.NVLINK, LinkClass.PCIE4])
def test_a_job_that_moves_keeps_the_speed_of_its_links(between: LinkClass) -> None:
    linked = islands((0, 1, 2, 3), within=LinkClass.NVLINK, between=LinkClass.NVLINK)
    other = islands((0, 1, 2, 3), within=between, between=between)
    nodes = [
        a_node("few-cores", gpus=4, cpus=24, topology=other),
        a_node("many-cores", gpus=4, cpus=64, topology=linked),
    ]
    queue = [older(2, "pair", 2, 20), older(1, "wide", 4, 50)]
    policy = PackingPolicy(weights=ScoreWeights(expiry=0))
    with one_by_one():
        first = places(plan(queue, nodes[::-1], [], policy, NOW))
    assert first == {"pair": "many-cores"}
    made = places(plan(queue, nodes[::-1], [], policy, NOW))
    kept = between is LinkClass.NVLINK
    assert made == ({"pair": "few-cores", "wide": "many-cores"} if kept else first)


@pytest.mark.parametrize("between", [LinkClass.NVLINK, LinkClass.PCIE4])
def test_a_job_for_which_another_goes_keeps_the_speed_of_its_links(between: LinkClass) -> None:
    fast = islands((0, 1, 2, 3), within=LinkClass.NVLINK, between=LinkClass.NVLINK)
    other = islands((0, 1), within=between, between=between)
    nodes = [
        a_node("few-cores", gpus=2, cpus=24, topology=other),
        a_node("many-cores", gpus=4, cpus=64, topology=fast),
        a_node("no-cores", gpus=8, cpus=9),
    ]
    queue = [older(3, "tiny", 1, 8), older(2, "pair", 2, 20), older(1, "wide", 4, 50)]
    with one_by_one():
        first = places(plan(queue, nodes, [], POLICY, NOW))
    assert first == {"tiny": "few-cores", "pair": "many-cores"}
    made = places(plan(queue, nodes, [], POLICY, NOW))
    moved = {"tiny": "no-cores", "pair": "few-cores", "wide": "many-cores"}
    assert made == (moved if between is LinkClass.NVLINK else first)


def test_a_job_that_moves_keeps_its_data() -> None:
    nodes = few_cores_and_few_gpus()
    nodes[1] = nodes[1].model_copy(update={"data": ("weights",)})
    queue = [SMALL.model_copy(update={"data": {"weights": 10.0}}), WIDE]
    caring = PackingPolicy(weights=ScoreWeights(locality=1))
    assert places(plan(queue, nodes, [], caring, NOW)) == {"small": "few-gpus"}
    careless = PackingPolicy(weights=ScoreWeights(locality=0))
    assert len(places(plan(queue, nodes, [], careless, NOW))) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"tier": Tier.FLEX},
        {"gpu_type": "A100"},
        {"expires_in": HOUR},
        {"state": NodeState.DRAINING},
    ],
)
def test_a_job_moves_only_where_it_may_run(other: dict[str, Any]) -> None:
    nodes = few_cores_and_few_gpus()
    small = SMALL.model_copy(update={"gpu_type": "H100"})
    h100, usual = {"gpu_type": "H100"}, {"gpus": 4, "cpus": 24}
    nodes = [node.model_copy(update=h100) for node in nodes]
    assert len(places(plan([small, WIDE], nodes, [], POLICY, NOW))) == 2
    nodes[0] = a_node("few-cores", **{**h100, **usual, **other})
    assert places(plan([small, WIDE], nodes, [], POLICY, NOW)) == {"small": "few-gpus"}


def test_a_pool_that_keeps_no_starts_has_nobody_change_its_place() -> None:
    policy = PackingPolicy(max_reservations=0)
    made = plan([SMALL, WIDE], few_cores_and_few_gpus(), [], policy, NOW)
    assert places(made) == {"small": "few-gpus"}


def test_no_room_is_looked_for_where_a_shorter_one_like_it_has_no_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches, start = list[str](), rearranging.Rearranging.start

    def counted(self: rearranging.Rearranging, job: JobRequest, need: Need) -> Any:
        searches.append(job.id)
        return start(self, job, need)

    monkeypatch.setattr(rearranging.Rearranging, "start", counted)
    nodes = [a_node("n", gpus=2, expires_in=1.5 * HOUR)]
    minutes = [60, 61, 50, 70, 55, 49]
    queue = [older(2, "before", 1, 20)] + [
        older(1, f"{number}-for-{long}", 2, 40, expected_duration=long * HOUR / 60,
              data={f"set-{number}": 1.0})
        for number, long in enumerate(minutes)
    ]  # fmt: skip
    caring = PackingPolicy(weights=ScoreWeights(locality=1))
    for compiled in (False, True):
        searches.clear()
        made = plan(queue, nodes, [], caring, NOW, compiled=compiled)
        assert places(made) == {"before": "n"}
        assert not made.reservations
        assert searches == ["0-for-60", "2-for-50", "5-for-49"]
        assert len({decision.reason for decision in made.decisions[1:]}) == 1


def started_of(made: CyclePlan) -> list[bool]:
    """Return which jobs start, in the order of the queue: as lists compare, the higher-ranked job
    that starts decides, and where all of them are the same, so is their number."""
    return [decision.node_id is not None for decision in made.decisions]


def test_one_job_starts_in_place_of_two_that_rank_lower() -> None:
    """So fewer may start than one by one, and none that ranks lower than one left out."""
    short = [older(0, f"short{n}", 1, 20, expected_duration=HOUR / 2) for n in range(2)]
    queue = [SMALL, WIDE, *short]
    with one_by_one():
        alone = plan(queue, few_cores_and_few_gpus(), [], POLICY, NOW)
    made = plan(queue, few_cores_and_few_gpus(), [], POLICY, NOW)
    assert started_of(alone) == [True, False, True, True]
    assert started_of(made) == [True, True, False, False]


def check_against_one_by_one(scene: Scene, policy: PackingPolicy) -> bool:
    """Check what holds for every plan; return whether this one had a search that found room."""
    arguments = scene.queue, scene.nodes, scene.running, policy, NOW
    with one_by_one():
        alone = plan(*arguments)
    made = plan(*arguments, compiled=True)
    assert plan(*arguments, compiled=False) == made
    assert [d.job_id for d in made.decisions] == [d.job_id for d in alone.decisions]
    # The first job that one of the plans starts and the other does not is started as a set: no
    # higher-ranked one is left out for a lower one, or for several.
    assert started_of(made) >= started_of(alone)
    before = {node.id: node for node in scene.nodes}
    jobs = {job.id: job for job in scene.queue}
    for decision in made.placements:
        if decision.node_id and not decision.members:
            node = before[decision.node_id]
            assert check(node, jobs[decision.job_id], policy, NOW) is None
    for node in applied(scene.nodes, scene.queue, made):
        for used, size in zip(node.host_used, node.host, strict=True):
            assert used <= size + EPSILON
        assert all(gpu.vram_used <= gpu.vram + EPSILON for gpu in node.gpus)
    if all(job.gpu.whole and job.gang is None for job in scene.queue):
        check_every_moment(scene, made)
    gangs = {job.id for job in scene.queue if job.gang}
    moved = [d.job_id for d in made.decisions if "so that another" in d.reason]
    assert not gangs & set(moved)
    found = any("so that" in decision.reason for decision in made.decisions)
    if not found:
        assert made == alone
    return found


@given(scenes(mixed=True, linked=True, gangs=True), policies)
def test_as_a_set_the_first_that_differs_starts(scene: Scene, policy: PackingPolicy) -> None:
    check_against_one_by_one(scene, policy)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("rule", RULES)
def test_long_queues_on_crowded_nodes_are_packed_as_sets(rule: PackingRule) -> None:
    found = 0
    for seed in seeds(2):
        rng = random.Random(seed)
        scene = crowded_in_parts(rng) if seed % 2 else crowded(rng, linked=seed % 4 == 0)
        found += check_against_one_by_one(scene, PackingPolicy(rule=rule))
    assert found >= 1


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("rule", RULES)
def test_queues_that_fill_empty_nodes_are_packed_as_sets(rule: PackingRule) -> None:
    found = 0
    for seed in seeds(4):
        rng = random.Random(seed)
        nodes = uneven_nodes(rng)
        queue = [
            a_job(
                f"j{i:02}", gpus := rng.choice([1, 1, 1, 2, 4, 8]),
                milli=rng.choice([200, 350, 600, 1000]) if gpus == 1 else 1000,
                vram_per_gpu=10, cpus=gpus * rng.choice([2, 6, 10]), ram=0,
                expected_duration=rng.choice([1, 2, 5]) * HOUR,
            )
            for i in range(40)
        ]  # fmt: skip
        found += check_against_one_by_one(Scene(nodes, [], queue), PackingPolicy(rule=rule))
    assert found >= 2


def test_a_search_ends_after_so_many_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    found_in = rearranging.found_in

    def counted(*arguments: object) -> object:
        nonlocal asked
        asked += 1
        return found_in(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(rearranging, "found_in", counted)
    monkeypatch.setattr(rearranging, "TRIES", 40)
    nodes = [a_node(f"n{i}", gpus=4, cpus=1000) for i in range(6)]
    queue = [older(2, f"a{i:02}", 3, 1) for i in range(6)]
    queue += [older(1, f"b{i:02}", 2, 1, expected_duration=timedelta(hours=i)) for i in range(9)]
    made = plan(queue, nodes, [], POLICY, NOW)
    assert len(made.placements) == 6
    assert 0 < asked < 60


def test_a_node_with_many_jobs_counts_as_more_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question there costs as much as there are jobs."""
    asked = list[int]()
    place_at = Rearranging._open

    def counted(self: Rearranging, position: int, place: Place, need: Need) -> object:
        asked.append(len(place.takes))
        return place_at(self, position, place, need)

    monkeypatch.setattr(Rearranging, "_open", counted)
    nodes = [a_node(f"n{i}", gpus=4, cpus=1000) for i in range(2)]
    part = {"milli": 10, "vram_per_gpu": 0.8}
    queue = [older(2, f"s{i:03}", 1, 0.1, **part) for i in range(2 * 4 * 100)]
    queue += [older(1, f"w{i}", 1 + i, i / 100, vram_per_gpu=0) for i in range(4)]
    assert len(plan(queue, nodes, [], POLICY, NOW).placements) == 800
    assert 0 < sum(asked) < 64 * rearranging.TRIES
    assert len(asked) < rearranging.TRIES / 4


def test_a_need_that_is_new_to_many_kinds_of_nodes_counts_as_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = [a_node(f"n{i:02}", gpus=1, cpus=1 + i / 100) for i in range(60)]
    nodes = [*few_cores_and_few_gpus(), *crowd]
    assert len(places(plan([SMALL, WIDE], nodes, [], POLICY, NOW))) == 2
    monkeypatch.setattr(rearranging, "TRIES", len(nodes) // 5)
    assert places(plan([SMALL, WIDE], nodes, [], POLICY, NOW)) == {"small": "few-gpus"}
    assert len(places(plan([SMALL, WIDE], nodes[:2], [], POLICY, NOW))) == 2


def test_a_plan_that_is_not_as_a_set_has_nobody_change_its_place() -> None:
    made = plan([SMALL, WIDE], few_cores_and_few_gpus(), [], POLICY, NOW, as_a_set=False)
    assert places(made) == {"small": "few-gpus"}
