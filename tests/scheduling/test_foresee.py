"""What a cycle would do with one job, beside the plan that a cycle makes; and the domains."""

import random
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node, NodeState
from longshore.models.placement import PackingPolicy, PackingRule, PlacementKind
from longshore.models.topology import LinkClass
from longshore.scheduling.cycle import Foresight, foresee, plan
from longshore.scheduling.rank import GUARANTEED_AFTER
from longshore.scheduling.topology import topology_of
from tests.support.gangs import a_gang, in_domain, islands
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, one_by_one, running
from tests.support.packing_scenes import Scene, scenes

MINUTE = timedelta(minutes=1)


def look(
    job: JobRequest, nodes: list[Node], queue: list[JobRequest], policy: PackingPolicy = POLICY
) -> Foresight:
    return foresee(job, queue, nodes, [], policy, NOW)


@given(scenes(mixed=True), st.sampled_from(PackingRule), st.data())
def test_it_is_what_the_cycle_decides_and_names_every_node(
    scene: Scene, rule: PackingRule, data: st.DataObject
) -> None:
    if not scene.queue:
        return
    policy = PackingPolicy(rule=rule)
    job = data.draw(st.sampled_from(scene.queue))
    others = [other for other in scene.queue if other is not job]
    with one_by_one():  # else those behind it may give it another place
        found = foresee(job, others, scene.nodes, scene.running, policy, NOW)
        planned = plan(scene.queue, scene.nodes, scene.running, policy, NOW)
    number = len(found.before.decisions)
    assert found.before.decisions == planned.decisions[:number]
    full = found.decision
    short = full.model_copy(update={"candidates": full.candidates[:4], "rejections": ()})
    expected = planned.decisions[number]
    assert without_parts(short) == without_parts(expected)
    assert len(full.candidates) + len(full.rejections) == len(scene.nodes)
    assert sum(full.rejected.values()) == len(full.rejections)


def without_parts(decision: object) -> str:
    """A cycle names the parts of the value for the chosen node only."""
    text = repr(decision)
    while (start := text.find("parts=(ScoreTerm")) >= 0:
        text = text[:start] + text[text.index("total=", start) :]
    return text.replace("parts=(), ", "")


def test_jobs_before_it_have_taken_theirs_and_jobs_behind_it_nothing() -> None:
    nodes = [in_domain("A", "a", busy=range(4))]
    first = a_job("first", 3, priority=9)
    behind = a_job("behind", 4, priority=1)
    found = look(a_job("mine", 1), nodes, [behind, first])
    assert [d.job_id for d in found.before.decisions] == ["first"]
    assert found.decision.gpu_indices == (7,)
    (domain,) = found.domains
    assert (domain.domain, domain.gpus, domain.free, domain.left) == ("r/c/A", 8, 1, 0)


def test_a_start_kept_for_a_job_before_it_is_named_as_the_reason() -> None:
    nodes = [a_node("n", busy=range(4))]
    wide = a_job("wide", 8, priority=9)
    ends_soon = running("old", "n", range(4), 30 * MINUTE)
    found = foresee(a_job("mine", 4), [wide], nodes, [ends_soon], POLICY, NOW)
    assert found.decision.kind is PlacementKind.REQUEST_MORE_CAPACITY
    (refused,) = found.decision.rejections
    assert refused.reason == "would delay wide, which is to start there in 30m"
    assert {kept.job_id for kept in found.before.reservations} == {"wide"}


def test_of_a_place_that_is_kept_from_now_on_the_start_is_told() -> None:
    nodes, since = [a_node("n", busy=[0])], NOW - GUARANTEED_AFTER
    wide = a_job("wide", 8, priority=9, waits_since=since)
    unknown = running("old", "n", [0], -25 * HOUR, since=NOW - 26 * HOUR)
    found = foresee(a_job("mine", 4), [wide], nodes, [unknown], POLICY, NOW)
    (refused,) = found.decision.rejections
    assert refused.reason == "would delay wide, which is to start there in 1d2h"


def test_the_job_is_named_whose_start_it_would_delay_and_not_one_before_that() -> None:
    """The first start on the node is on two GPUs that it does not want."""
    sizes = [80.0, 80.0, *[40.0] * 6]
    gpus = [
        GPU(index=i, vram=size, vram_used=size if i < 6 else 0, job_id="old" if i < 6 else None)
        for i, size in enumerate(sizes)
    ]
    node = a_node("n").model_copy(update={"gpus": tuple(gpus)})
    ends = [running("large", "n", range(2), 10 * MINUTE, vram_per_gpu=80),
            running("small", "n", range(2, 6), 30 * MINUTE, vram_per_gpu=40)]  # fmt: skip
    alike = {"cpus": 0, "ram": 0}
    first = a_job("first", 2, vram_per_gpu=80, priority=9, **alike)
    second = a_job("second", 6, priority=8, **alike)
    mine = a_job("mine", 1, **alike)
    found = foresee(mine, [first, second], [node], ends, POLICY, NOW)
    (refused,) = found.decision.rejections
    assert refused.reason == "would delay second, which is to start there in 30m"


def test_nodes_of_no_domain_are_counted_together_and_last() -> None:
    nodes = [a_node("x", busy=[0]), in_domain("B", "b"), a_node("y"), in_domain("A", "a")]
    found = look(a_gang(8), nodes, [])
    rows = [(d.domain, d.nodes, d.free, d.left) for d in found.domains]
    assert rows == [("r/c/A", 1, 8, 0), ("r/c/B", 1, 8, 8), ("", 2, 15, 15)]


def test_the_topology_is_the_same_in_every_order() -> None:
    islands_of_4 = islands((0, 1), (2, 3), within=LinkClass.NVLINK, between=LinkClass.PCIE4)
    nodes = [
        in_domain("B", "b", busy=[0, 1]),
        in_domain("A", "a2", state=NodeState.DRAINING),
        in_domain("A", "a1", 4, topology=islands_of_4, conformance="f", labels={"rack": "7"}),
        a_node("x", labels={"region": "r"}),
    ]
    expected = topology_of("p", nodes, {"b"})
    for seed in range(6):
        shuffled = list(nodes)
        random.Random(seed).shuffle(shuffled)
        assert topology_of("p", shuffled, {"b"}) == expected
    a, b = expected.domains
    assert [(d.domain, d.gpus, d.used, d.free) for d in (a, b)] == [
        ("r/c/A", 12, 0, 4),
        ("r/c/B", 8, 2, 6),
    ]
    first = a.nodes[0]
    assert (first.node_id, first.rack, first.conformance) == ("a1", "7", "f")
    assert first.slowest_link is LinkClass.PCIE4
    assert [node.simulated for node in (*a.nodes, *b.nodes)] == [False, False, True]
    (lone,) = expected.unlabelled
    assert lone.missing_labels == ("cluster", "fabric.domain")
