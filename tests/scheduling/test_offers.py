"""What a node offers to a gang beside reservations, and what it could give when empty."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import Placement, PlacementKind, Rank, RejectionCode
from longshore.models.resources import HostAmounts
from longshore.models.topology import Gang
from longshore.scheduling.gangs.decision import place_gang
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import offers_now
from longshore.scheduling.gangs.plan import could_ever_hold, plan_gang
from longshore.scheduling.placement.state import Hold, NodeView, view_nodes
from longshore.scheduling.topology import domains_of
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, read_back


def kept(node: Node, gpus: int, cpus: float = 0.0, starts_in: timedelta = HOUR / 2) -> NodeView:
    """Return the view of a node of which the first GPUs are kept for a deferred job."""
    (view,) = view_nodes([node], (), NOW)
    hold = Hold("first", (1 << gpus) - 1, HostAmounts(cpus), NOW + starts_in, NOW + 2 * HOUR)
    view.reserved.append(hold)
    return view


def offered(view: NodeView, job: JobRequest) -> tuple[int, int] | RejectionCode:
    assert job.gang is not None
    offers = offers_now(job, job.gang, GangNodes.of([view]), POLICY, NOW)
    if offers.refused:
        return offers.refused[0][1]
    return offers.made[0].gpus, offers.made[0].usable


def test_gpus_kept_for_a_deferred_job_are_not_offered():
    assert offered(kept(in_domain("A", "n"), 6), a_gang(8)) == (2, 0b1100_0000)
    assert offered(kept(in_domain("A", "n"), 8), a_gang(8)) is RejectionCode.RESERVED


def test_cores_kept_for_a_deferred_job_limit_the_offer():
    view = kept(in_domain("A", "n", cpus=16), 2, cpus=8)
    assert offered(view, a_gang(8, cpus=16)) == (4, 0b1111_1100)


def test_a_gang_that_ends_before_the_deferred_job_starts_gets_all():
    view = kept(in_domain("A", "n"), 8, starts_in=2 * HOUR)
    assert offered(view, a_gang(8)) == (8, 0b1111_1111)


def test_a_gang_is_planned_beside_reservations():
    views = [kept(in_domain("A", "n1"), 4), *view_nodes([in_domain("A", "n2")], (), NOW)]
    decision = place_gang(a_gang(12), GangNodes.of(views), POLICY, NOW)
    shares = {m.node_id: m.gpu_indices for m in decision.members}
    assert shares == {"n2": tuple(range(8)), "n1": (4, 5, 6, 7)}
    late = place_gang(a_gang(13), GangNodes.of(views), POLICY, NOW)
    assert late.kind is PlacementKind.REQUEST_MORE_CAPACITY
    assert late.reason.startswith("no nodes can take it together now")


@pytest.mark.parametrize(
    ("fields", "could"),
    [
        ({"busy": range(8)}, True),
        ({"cpus_used": 1000}, True),
        ({"state": NodeState.DRAINING}, True),
        ({"state": NodeState.LOST}, True),
        ({"expires_in": HOUR / 4}, True),
        ({"state": NodeState.GONE}, False),
        ({"cpus": 1}, False),
        ({"vram": 24}, False),
        ({"labels": {"cluster": ""}}, False),
    ],
)
def test_what_an_empty_node_could_hold(fields: dict[str, Any], could: bool):
    node = in_domain("A", "n2", **fields)
    views = view_nodes([in_domain("A", "n1"), node], (), NOW)
    assert could_ever_hold(a_gang(16, cpus=16), GangNodes.of(views)) is could


def test_a_job_without_a_gang_is_not_planned_as_one():
    with pytest.raises(ValueError, match="job plain has no gang: it stays on one node"):
        plan_gang(a_job("plain"), GangNodes.of([]), POLICY, NOW)


def test_cores_and_ram_go_with_the_gpus():
    gang = a_gang(16, cpus=32, ram=64, storage_bandwidth=8)
    assert gang.share_of(4, 700) == (8, 16, 2, 2800)


def test_domains_are_summed_and_ordered_by_name():
    nodes = [
        in_domain("B", "b", busy=[0, 1]),
        in_domain("A", "a1"),
        in_domain("A", "a2", state=NodeState.DRAINING),
        a_node("alone", gpus=2),
    ]
    views = view_nodes(nodes, (), NOW)
    found = [(d.key.name, d.nodes, d.gpus, d.free) for d in domains_of(views)]
    assert found == [("r/c/A", 2, 16, 8), ("r/c/B", 1, 8, 6)]
    with_alone = domains_of(views[::-1], unlabelled=True)
    assert [d.key.name for d in with_alone] == ["alone", "r/c/A", "r/c/B"]


def test_a_request_carries_the_gang_of_its_spec():
    spec = JobSpec(name="a", command="x", gpus=16, gang=Gang(group_gpus=8))
    request = JobRequest.of("j", spec, NOW, 1)
    assert request.gang == spec.gang
    assert read_back(request) == request
    assert JobRequest.of("j", JobSpec(name="a", command="x"), NOW, 1).gang is None


def test_a_placement_on_one_node_is_its_only_rank():
    alone = Placement(
        job_id="j",
        attempt=1,
        node_id="n",
        epoch=2,
        gpu_indices=(0, 1),
        cycle_id="c",
        placed_at=NOW,
    )
    assert alone.by_rank == (alone,)
    ranks = (
        Rank(rank=0, node_id="n", epoch=2, gpu_indices=(0, 1)),
        Rank(rank=1, node_id="m", epoch=5, gpu_indices=(7,)),
    )
    wide = alone.model_copy(update={"ranks": ranks})
    first, second = wide.by_rank
    assert first == wide
    assert (second.rank, second.node_id, second.epoch, second.gpu_indices) == (1, "m", 5, (7,))
    assert second.key == wide.key
    assert Placement.model_validate_json(wide.model_dump_json()) == wide
    # As written before there were gangs.
    old = alone.model_dump(mode="json", exclude={"ranks", "rank"})
    assert Placement.model_validate(old) == alone
