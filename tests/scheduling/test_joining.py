"""Where further ranks of a running gang go: beside those that it has, which stay."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import Decision, PlacementKind
from longshore.models.topology import FLAVOR_LABEL, Gang, SameConformance
from longshore.scheduling.joining import Joining, larger, plan_joining
from tests.scheduling.test_elastic_cycle import nodes_in
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running

SIZES = Malleable(min=8, max=32, step=8, in_place=True)


def a_gang(gang: Gang | None = None, **fields: Any) -> JobRequest:
    fields = {"gpus": 32, "cpus": 32, "malleable": SIZES, **fields}
    return a_job("train", gang=gang or Gang(), **fields)


def joined(
    job: JobRequest,
    held: dict[str, int],
    nodes: Sequence[Node],
    queue: Sequence[JobRequest] = (),
) -> Decision:
    """Return what is planned for a job with the first GPUs of these nodes."""
    there = [
        a_node(
            node.id, labels=node.labels, gpu_type=node.gpu_type, conformance=node.conformance,
            busy=range(held[node.id]), gpus=len(node.gpus),
        )
        if node.id in held
        else node
        for node in nodes
    ]  # fmt: skip
    shares = [running("train", name, range(gpus), HOUR) for name, gpus in held.items()]
    sizes = larger(job, sum(held.values()))
    return plan_joining(job, held, sizes, queue, there, shares, POLICY, NOW)


def test_only_what_is_added_is_placed_and_never_where_a_rank_is() -> None:
    decision = joined(a_gang(), {"a0": 8}, nodes_in("a", 4))
    assert decision.by_node == tuple((f"a{n}", tuple(range(8))) for n in (1, 2, 3))
    # Half of a node is a rank: the other half of it is no place for another.
    half = joined(a_gang(), {"a0": 4, "a1": 4}, nodes_in("a", 3))
    assert half.by_node == (("a2", tuple(range(8))),)


def test_the_largest_size_that_finds_room_up_to_the_desired_one() -> None:
    nodes = [*nodes_in("a", 3), a_node("a3", labels=nodes_in("a", 1)[0].labels, busy=range(8))]
    assert joined(a_gang(), {"a0": 8}, nodes).gpus == 16
    sizes = SIZES.model_copy(update={"desired": 16})
    assert joined(a_gang(malleable=sizes), {"a0": 8}, nodes).gpus == 8
    full = joined(a_gang(malleable=sizes), {"a0": 8, "a1": 8}, nodes)
    assert (full.kind, full.reason) == (PlacementKind.QUEUE_FOR_FLEX, "it has no larger size")


def test_it_stays_in_its_domain_where_that_has_room_and_goes_further_where_it_may() -> None:
    sizes = SIZES.model_copy(update={"desired": 16})
    nodes = [*nodes_in("a", 1), *nodes_in("b", 2)]
    assert joined(a_gang(malleable=sizes), {"b1": 8}, nodes).by_node[0][0] == "b0"
    assert joined(a_gang(malleable=sizes), {"a0": 8}, nodes).by_node[0][0] == "b0"
    alone = a_gang(Gang(allow_cross_group_spread=False), malleable=sizes)
    refused = joined(alone, {"a0": 8}, nodes)
    assert refused.kind is not PlacementKind.EXISTING_NODE
    assert refused.reason == "no other node is like those that it has"


def test_its_nodes_are_alike() -> None:
    labels = nodes_in("a", 1)[0].labels
    one = a_node("a0", labels=labels, conformance="x")
    for other in (
        a_node("a1", labels={**labels, FLAVOR_LABEL: "other"}, conformance="x"),
        a_node("a1", labels=labels, gpu_type="A100", conformance="x"),
    ):
        assert not joined(a_gang(), {"a0": 8}, [one, other]).by_node
    other = a_node("a1", labels=labels, conformance="y")
    assert joined(a_gang(), {"a0": 8}, [one, other]).by_node
    strict = Gang(same_conformance=SameConformance.REQUIRE)
    assert not joined(a_gang(strict), {"a0": 8}, [one, other]).by_node


def test_nobody_joins_with_fewer_gpus_than_the_least_that_is_there() -> None:
    labels = nodes_in("a", 1)[0].labels
    small = [a_node(f"s{n}", labels=labels, gpus=4) for n in range(2)]
    decision = joined(a_gang(), {"a0": 8}, [*nodes_in("a", 1), *small])
    assert not decision.by_node
    assert decision.reason == "a node would give 4 GPUs, and each has 8 or more"


def test_of_some_gpus_alone_as_if_others_had_the_rest() -> None:
    nodes = [*nodes_in("a", 1), *nodes_in("b", 2)]
    nodes[0] = a_node("a0", labels=nodes[0].labels, busy=range(4))
    share = running("train", "a0", range(4), HOUR)
    joining = Joining.of(a_gang(), {"a0": 4}, (), nodes, [share], POLICY, NOW)
    assert joining.free == {"b0": 0xFF, "b1": 0xFF}
    few = joining.only({"b0": 0b1110, "b1": 0xF0})  # no rank has 3 GPUs
    assert few.free == {"b1": 0xF0}
    assert few.at(8).by_node == (("b1", (4, 5, 6, 7)),)
    assert "needs 8 GPUs" in few.at(12).reason
    assert joining.only({}).at(8).reason == "no other node is like those that it has"
    assert joining.at(20).gpus == 16


def test_jobs_before_it_in_the_queue_come_first() -> None:
    nodes = nodes_in("a", 2)
    before = a_job("before", gpus=8, priority=9)
    assert not joined(a_gang(priority=5), {"a0": 8}, nodes, [before]).by_node
    behind = a_job("behind", gpus=8, priority=1)
    assert joined(a_gang(priority=5), {"a0": 8}, nodes, [behind]).gpus == 8


@given(
    free=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8)), max_size=8),
    held=st.lists(st.sampled_from([4, 8]), min_size=1, max_size=3),
    step=st.sampled_from([2, 4, 8]),
    group=st.sampled_from([None, 1, 2]),
)
def test_what_joins_is_free_makes_a_size_and_leaves_the_others_alone(
    free: list[tuple[str, int]], held: list[int], step: int, group: int | None
) -> None:
    has = {f"h{n}": gpus for n, gpus in enumerate(held)}
    labels = nodes_in("a", 1)[0].labels
    nodes = [a_node(name, labels=labels) for name in has]
    nodes += [
        a_node(f"f{n}", labels=nodes_in(domain, 1)[0].labels, busy=range(8 - gpus))
        for n, (domain, gpus) in enumerate(free)
    ]
    total = sum(held)
    sizes = Malleable(min=total, max=total + 4 * step, step=step, in_place=True)
    gang = Gang(group_gpus=group and group * 2)
    job = a_gang(gang, gpus=total + 4 * step, malleable=sizes)
    decision = joined(job, has, nodes)
    by_id = {node.id: node for node in nodes}
    names = [name for name, _ in decision.by_node]
    assert len(set(names)) == len(names)
    assert not set(names) & set(has)
    for name, gpus in decision.by_node:
        assert len(gpus) >= min(held)
        assert all(by_id[name].gpus[index].is_free for index in gpus)
    if decision.kind is PlacementKind.EXISTING_NODE:
        assert total + decision.gpus in sizes.sizes
    else:
        assert decision.gpus == 0
