"""Gangs worked through by hand: the cases of the seed, with our own arithmetic."""

from datetime import timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.gang import GangPacking
from longshore.models.job import Tier
from longshore.models.node import NodeState
from longshore.models.placement import PlacementKind, RejectionCode
from longshore.models.topology import (
    CLUSTER_LABEL,
    FLAVOR_LABEL,
    RACK_LABEL,
    REGION_LABEL,
    Conformance,
    Gang,
    SameConformance,
)
from longshore.scheduling.gangs.packing import fewest_gpus
from tests.support.gangs import a_gang, decide, in_domain, residuals, taken
from tests.support.packing import HOUR, a_job, a_node

BOTH = pytest.mark.parametrize("packing", list(GangPacking))
"""Cases where the two packings agree."""


@BOTH
def test_three_runs_on_72_gpus_leave_14_idle(packing: GangPacking):
    # 32 + 24 + 2 of 72: nine nodes of eight, each run on what the one before left.
    nodes = {f"n{i}": in_domain("A", f"n{i}") for i in range(9)}
    for gpus, left in ((32, 40), (24, 16), (2, 14)):
        decision = decide(a_gang(gpus), nodes.values(), gang_packing=packing)
        assert residuals(decision) == {"A": left}
        for member in decision.members:
            busy = {gpu.index for gpu in nodes[member.node_id].gpus if gpu.job_id}
            nodes[member.node_id] = in_domain(
                "A", member.node_id, busy=busy | set(member.gpu_indices)
            )


@BOTH
def test_groups_of_64_need_a_second_domain_with_64(packing: GangPacking):
    nodes = [in_domain("A", "a", 72), in_domain("B", "b", 48)]
    decision = decide(a_gang(128, 64), nodes, gang_packing=packing)
    assert decision.kind is PlacementKind.REQUEST_MORE_CAPACITY
    assert decision.members == ()
    assert decision.gang is not None
    assert decision.gang.limiting_domain == "r/c/B"
    assert decision.gang.missing == 16
    assert decision.gang.refusal == (
        "needs 2 groups of 64 GPUs, each in one domain, and 1 would fit; "
        "r/c/A has 72, r/c/B has 48"
    )
    assert residuals(decision) == {"A": 72, "B": 48}
    assert [r.code for r in decision.rejections] == [RejectionCode.DOMAIN] * 2


@BOTH
def test_40_gpus_fill_one_domain_and_spill_into_the_next(packing: GangPacking):
    nodes = [in_domain("A", "a1", 16), in_domain("A", "a2", 16), in_domain("B", "b1", 16)]
    decision = decide(a_gang(40), nodes, gang_packing=packing)
    assert taken(decision) == [("A", {"a1": 16, "a2": 16}), ("B", {"b1": 8})]
    assert residuals(decision) == {"A": 0, "B": 8}


@BOTH
def test_24_gpus_in_one_domain_of_16_fail_at_once(packing: GangPacking):
    nodes = [in_domain("A", "a", 16), in_domain("B", "b", 16)]
    job = a_gang(24, allow_cross_group_spread=False)
    decision = decide(job, nodes, gang_packing=packing)
    assert decision.gang is not None
    assert decision.gang.refusal == ("needs 24 GPUs in one domain; r/c/A has 16, r/c/B has 16")
    assert decision.gang.missing == 8


@BOTH
def test_spares_stand_by_in_the_domain_of_their_group(packing: GangPacking):
    nodes = [in_domain("A", "a1", 32), in_domain("A", "a2", 8)]
    decision = decide(a_gang(32, 32, spares_per_group=4), nodes, gang_packing=packing)
    assert taken(decision) == [("A", {"a1": 32})]
    assert decision.gang is not None
    (spares,) = decision.gang.groups[0].spares
    assert (spares.node_id, spares.gpu_indices) == ("a2", (0, 1, 2, 3))
    assert residuals(decision) == {"A": 4}


@BOTH
def test_spares_that_their_domain_lacks_come_from_another(packing: GangPacking):
    nodes = [in_domain("A", "a1", 32), in_domain("A", "a2", 2), in_domain("B", "b1", 8)]
    decision = decide(a_gang(32, 32, spares_per_group=4), nodes, gang_packing=packing)
    assert decision.gang is not None
    spares = decision.gang.groups[0].spares
    assert [(share.node_id, len(share.gpu_indices)) for share in spares] == [("a2", 2), ("b1", 2)]
    assert (decision.gang.spares_found, decision.gang.spares_wanted) == (4, 4)


def test_a_gang_waits_for_its_spares_unless_it_may_start_without():
    nodes = [in_domain("A", "a1", 33), in_domain("A", "a2", 1)]
    waits = decide(a_gang(32, 32, spares_per_group=4), nodes)
    assert (waits.kind, waits.spares) == (PlacementKind.REQUEST_MORE_CAPACITY, ())
    assert "its 32 GPUs would fit, and 1 of 4 spares on other nodes" in waits.reason
    assert waits.gang is not None
    assert (waits.gang.limiting_domain, waits.gang.missing) == ("r/c/A", 3)
    starts = decide(a_gang(32, 32, spares_per_group=4, spares_required=False), nodes)
    assert starts.kind is PlacementKind.EXISTING_NODE
    assert starts.reason == "32 GPUs on 1 node of r/c/A, 1 of 4 spares found"


def test_what_stands_by_is_held_beside_the_ranks():
    nodes = [in_domain("A", name, 8) for name in ("a1", "a2", "a3")]
    decision = decide(a_gang(16, 16, spares_per_group=8), nodes)
    assert [node_id for node_id, _ in decision.by_node] == ["a1", "a2"]
    assert decision.held[2:] == (("a3", tuple(range(8))),)
    assert [(spare.node_id, spare.epoch) for spare in decision.spares] == [("a3", nodes[2].epoch)]


def test_a_group_on_two_nodes_gets_no_spares_in_another_domain():
    nodes = [in_domain("A", "a1", 8), in_domain("A", "a2", 8), in_domain("B", "b", 8)]
    assert decide(a_gang(16, 16, spares_per_group=8), nodes).members == ()
    assert decide(a_gang(16, 16, spares_per_group=8), [*nodes, in_domain("A", "a3")]).members


def test_a_domain_whose_nodes_leave_no_spare_gives_way_to_one_that_does():
    nodes = [in_domain("A", "a", 36), in_domain("B", "b1", 40), in_domain("B", "b2", 4)]
    job = a_gang(32, 32, spares_per_group=4, allow_cross_group_spread=False)
    assert taken(decide(job, nodes)) == [("B", {"b1": 32})]


@BOTH
def test_groups_share_nodes_where_that_leaves_whole_ones_for_spares(packing: GangPacking):
    nodes = [in_domain("A", "a1", 4), in_domain("A", "a2", 8)]
    for spread in (True, False):
        job = a_gang(6, 4, spares_per_group=2, allow_cross_group_spread=spread)
        decision = decide(job, nodes, gang_packing=packing)
        assert taken(decision) == [("A", {"a2": 4}), ("A", {"a2": 2})]
        assert decision.held[1:] == (("a1", (0, 1, 2, 3)),)


@BOTH
def test_groups_are_on_nodes_with_no_more_than_they_need(packing: GangPacking):
    nodes = [in_domain("A", name, 8) for name in ("a1", "a2", "a3")] + [in_domain("A", "a4", 4)]
    decision = decide(a_gang(12, 4, spares_per_group=4), nodes, gang_packing=packing)
    assert {member.node_id for member in decision.members} == {"a1", "a4"}
    assert {spare.node_id for spare in decision.spares} == {"a2", "a3"}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.data())
def test_as_few_gpus_as_can_be_suffice(left: list[int], data: st.DataObject):
    gpus = data.draw(st.integers(0, sum(left)))
    chosen = fewest_gpus(enumerate(left), gpus)
    assert all(left[node] == size for node, size in chosen)
    assert len({node for node, _ in chosen}) == len(chosen)
    sums = {sum(some) for n in range(len(left) + 1) for some in combinations(left, n)}
    assert sum(size for _, size in chosen) == min(each for each in sums if each >= gpus)


def test_a_gang_that_lacks_spares_alone_is_not_said_to_fit_in_no_way():
    nodes = [in_domain("A", "a1", 33), in_domain("A", "a2", 1)]
    said = "no way was found in which known nodes could ever hold it together: its 32 GPUs would"
    assert decide(a_gang(32, 32, spares_per_group=4), nodes).reason.startswith(said)


def test_a_domain_with_room_for_the_spares_is_better():
    nodes = [
        in_domain("A", "a", 32), in_domain("B", "b", 32), in_domain("B", "b2", 4),
        in_domain("C", "c", 48),
    ]  # fmt: skip
    assert taken(decide(a_gang(32, 32, spares_per_group=4), nodes)) == [("B", {"b": 32})]
    assert taken(decide(a_gang(32, 32), nodes)) == [("A", {"a": 32})]
    job = a_gang(32, 32, spares_per_group=4, allow_cross_group_spread=False)
    assert taken(decide(job, nodes)) == [("B", {"b": 32})]


@pytest.mark.parametrize("label", [REGION_LABEL, CLUSTER_LABEL])
def test_a_domain_of_that_name_in_another_cluster_or_region_is_another(label: str):
    nodes = [in_domain("A", "n1"), in_domain("A", "n2", labels={label: "other"})]
    assert decide(a_gang(16, 16), nodes).members == ()
    assert len(decide(a_gang(16, 8), nodes).by_node) == 2


def test_96_of_five_domains_grow_to_160():
    nodes = [in_domain(f"D{i}", f"d{i}", 32) for i in range(5)]
    assert len(taken(decide(a_gang(96, 32), nodes))) == 3
    assert len(taken(decide(a_gang(160, 32), nodes))) == 5
    assert taken(decide(a_gang(161, 32), nodes)) == []


def test_the_last_group_may_be_smaller_and_keeps_to_a_domain_in_use():
    nodes = [in_domain("A", "a", 40), in_domain("B", "b", 64), in_domain("C", "c", 8)]
    decision = decide(a_gang(104, 32), nodes)
    assert [(domain, sum(n.values())) for domain, n in taken(decision)] == [
        ("B", 32), ("B", 32), ("A", 32), ("A", 8),
    ]  # fmt: skip


def test_the_last_group_goes_to_a_domain_in_use_though_another_fits_better():
    nodes = [in_domain("A", "a", 39), in_domain("B", "b", 75), in_domain("C", "c", 8)]
    decision = decide(a_gang(104, 32), nodes)
    assert [domain for domain, _ in taken(decision)] == ["B", "B", "A", "B"]


def test_pack_to_empty_keeps_to_a_domain_in_use_though_another_is_emptier():
    nodes = [in_domain("A", "a", 72), in_domain("B", "b", 64)]
    decision = decide(a_gang(96, 32), nodes, gang_packing=GangPacking.PACK_TO_EMPTY)
    assert [domain for domain, _ in taken(decision)] == ["A", "A", "B"]


def test_spares_are_on_no_node_of_the_gang():
    nodes = [in_domain("A", "a1", 16), in_domain("A", "a2", 8)]
    decision = decide(a_gang(12, 12, spares_per_group=2), nodes)
    assert decision.gang is not None
    assert [share.node_id for share in decision.gang.groups[0].spares] == ["a2"]
    alone = decide(a_gang(12, 12, spares_per_group=2, spares_required=False), nodes[:1])
    assert alone.members
    assert alone.spares == ()


def test_pack_to_empty_takes_the_emptiest_where_best_fit_takes_the_least():
    nodes = [in_domain("A", "a1"), in_domain("A", "a2"), in_domain("B", "b1")]
    assert taken(decide(a_gang(8), nodes)) == [("B", {"b1": 8})]
    seed = decide(a_gang(8), nodes, gang_packing=GangPacking.PACK_TO_EMPTY)
    assert taken(seed) == [("A", {"a1": 8})]


def test_within_a_domain_nodes_are_few_and_the_last_fits_best():
    nodes = [
        in_domain("A", "full"), in_domain("A", "also"),
        in_domain("A", "half", busy=range(4)), in_domain("A", "most", busy=range(2)),
    ]  # fmt: skip
    assert taken(decide(a_gang(12), nodes)) == [("A", {"also": 8, "half": 4})]
    assert taken(decide(a_gang(5), nodes)) == [("A", {"most": 5})]
    seed = decide(a_gang(12), nodes, gang_packing=GangPacking.PACK_TO_EMPTY)
    assert taken(seed) == [("A", {"also": 8, "full": 4})]


def test_equal_nodes_are_taken_by_rack_then_name():
    racks = {"n1": "y", "n2": "x", "n3": "y", "n4": "x"}
    nodes = [in_domain("A", name, labels={RACK_LABEL: rack}) for name, rack in racks.items()]
    assert list(taken(decide(a_gang(16), nodes))[0][1]) == ["n2", "n4"]


def test_members_carry_group_epoch_and_gpus_in_the_order_of_ranks():
    nodes = [in_domain("A", "a", epoch=3, busy=[0]), in_domain("B", "b", epoch=5)]
    decision = decide(a_gang(12, 4), nodes)
    shares = [(m.node_id, m.epoch, m.gpu_indices, m.group) for m in decision.members]
    assert shares == [
        ("b", 5, (0, 1, 2, 3), 0), ("b", 5, (4, 5, 6, 7), 1), ("a", 3, (1, 2, 3, 4), 2),
    ]  # fmt: skip
    assert (decision.node_id, decision.gpu_indices) == ("b", (0, 1, 2, 3))


def test_cores_and_ram_of_the_job_are_shared_in_proportion_to_gpus():
    # 32 cores for 16 GPUs: two for each; a node with 8 free cores gives 4 GPUs at most.
    few = in_domain("A", "few", cpus=12, cpus_used=4)
    full = in_domain("A", "full")
    assert decide(a_gang(16, cpus=32), [few, full]).kind is not PlacementKind.EXISTING_NODE
    decision = decide(a_gang(12, cpus=24), [few, full])
    assert taken(decision) == [("A", {"full": 8, "few": 4})]
    small = in_domain("A", "small", ram=40)
    assert decide(a_gang(13, ram=130), [small, full]).kind is not PlacementKind.EXISTING_NODE
    decision = decide(a_gang(12, ram=120), [small, full])
    assert taken(decision) == [("A", {"full": 8, "small": 4})]


@pytest.mark.parametrize(
    ("fields", "wants", "code", "reason"),
    [
        ({"state": NodeState.DRAINING}, {}, RejectionCode.STATE, "is draining"),
        ({"tier": Tier.FLEX}, {}, RejectionCode.TIER, "is a FLEX node, job is FAST"),
        ({"gpu_type": "A100"}, {"gpu_type": "H100"}, RejectionCode.GPU_TYPE,
         "has A100 GPUs, job wants H100"),
        ({"labels": {FLAVOR_LABEL: "A100-40GB"}}, {"gpu_type": "H100"}, RejectionCode.FLAVOR,
         "is of the flavor A100-40GB, job wants H100"),
        ({}, {"needs_container": True}, RejectionCode.CONTAINER_RUNTIME,
         "has no container runtime, job runs an image"),
        ({"labels": {"region": ""}}, {}, RejectionCode.LABELS,
         "does not name its region, a gang needs them"),
        ({}, {"same_conformance": SameConformance.REQUIRE}, RejectionCode.CONFORMANCE,
         "has not said what driver and kernel parameters it has, the gang requires it"),
        ({}, {"conformance": Conformance(known=True)}, RejectionCode.CONFORMANCE,
         "has not said what driver and kernel parameters it has, the job requires it"),
        ({"conformance": "old"}, {"conformance": Conformance(allowed=("new",))},
         RejectionCode.NOT_ALLOWED, "has the fingerprint old, job allows new"),
        ({"expires_in": HOUR}, {}, RejectionCode.EXPIRY,
         "has 1h left, job wants 1h and a margin of 5m"),
        ({"cpus": 1}, {"cpus": 16}, RejectionCode.CPU, "has 1 of 1 cores free, job wants 2"),
        ({"cpus": 1, "cpus_used": 2}, {"cpus": 0}, RejectionCode.CPU,
         "has -1 of 1 cores free, job wants 0"),
        ({"ram": 1}, {"ram": 16}, RejectionCode.RAM,
         "has 1GB of 1GB RAM free, job wants 2GB"),
        ({"gpus": 0}, {}, RejectionCode.GPU_COUNT, "has 0 GPUs, job wants 1"),
        ({"vram": 24}, {}, RejectionCode.VRAM,
         "has 0 of 8 GPUs with 40GB of memory to be had (the most is 24GB), job wants 1"),
        ({"busy": range(8)}, {}, RejectionCode.GPUS_BUSY,
         "has 0 of 8 GPUs with 40GB free, job wants 1"),
    ],
)  # fmt: skip
def test_every_constraint_rules_a_node_out(
    fields: dict[str, Any], wants: dict[str, Any], code: RejectionCode, reason: str
):
    decision = decide(a_gang(8, **wants), [in_domain("A", "n", **fields)])
    assert decision.kind is PlacementKind.REQUEST_MORE_CAPACITY
    (rejection,) = decision.rejections
    assert (rejection.code, rejection.reason) == (code, reason)
    assert decision.rejected == {code: 1}


def test_the_margin_is_kept_and_no_more():
    node = in_domain("A", "n", expires_in=HOUR + timedelta(minutes=5))
    assert decide(a_gang(8), [node]).kind is PlacementKind.EXISTING_NODE


def test_unlabelled_nodes_serve_only_a_gang_that_says_so():
    nodes = [a_node("n1"), a_node("n2")]
    refused = decide(a_gang(16), nodes)
    assert {r.code for r in refused.rejections} == {RejectionCode.LABELS}
    assert all(r.permanent for r in refused.rejections)
    assert refused.reason == (
        "no known nodes could ever hold it together: no node can give it a GPU "
        "(2 nodes: 2 no-fabric-labels)"
    )
    decision = decide(a_gang(16, unlabelled_nodes=True), nodes)
    assert taken(decision) == [("n1", {"n1": 8}), ("n2", {"n2": 8})]
    # Each is a domain of its own: no group crosses from one to the other.
    assert taken(decide(a_gang(16, 16, unlabelled_nodes=True), nodes)) == []


def test_a_job_without_a_gang_stays_on_one_node():
    nodes = [in_domain("A", "n1"), in_domain("A", "n2")]
    assert decide(a_job("plain", gpus=16), nodes).kind is PlacementKind.REQUEST_MORE_CAPACITY
    plain = decide(a_job("plain", gpus=8), nodes)
    assert (plain.members, plain.gang) == ((), None)


def test_a_gang_is_of_one_flavor():
    h100 = {FLAVOR_LABEL: "H100-80GB"}
    nodes = [
        in_domain("A", "n1", gpu_type="H100", labels=h100),
        in_domain("A", "n2", gpu_type="H100", labels={FLAVOR_LABEL: "H100-94GB"}),
        in_domain("B", "n3", gpu_type="H100", labels=h100),
    ]
    decision = decide(a_gang(16, gpu_type="H100"), nodes)
    assert taken(decision) == [("A", {"n1": 8}), ("B", {"n3": 8})]
    assert taken(decide(a_gang(16, gpu_type="h100-94gb"), nodes)) == []
    refused = decide(a_gang(24, gpu_type="H100"), nodes)
    assert refused.gang is not None
    assert refused.gang.refusal == (
        "needs 24 GPUs, the domains together have 16; r/c/A has 8 for it of 16 free, r/c/B has 8; "
        "1 node more would not be alike"
    )


def test_one_fingerprint_is_preferred_required_or_ignored():
    nodes = [
        in_domain("A", "n1", conformance="old"), in_domain("A", "n2", conformance="new"),
        in_domain("A", "n3", conformance="new"), in_domain("A", "n4"),
    ]  # fmt: skip
    preferred = decide(a_gang(16), nodes)
    assert taken(preferred) == [("A", {"n2": 8, "n3": 8})]
    assert preferred.gang is not None
    assert preferred.gang.conformance == "new"
    ignored = a_gang(16, same_conformance=SameConformance.IGNORE)
    assert taken(decide(ignored, nodes)) == [("A", {"n1": 8, "n2": 8})]
    assert taken(decide(a_gang(24), nodes)) == [("A", {"n1": 8, "n2": 8, "n3": 8})]
    required = decide(a_gang(24, same_conformance=SameConformance.REQUIRE), nodes)
    assert taken(required) == []
    assert "1 node more would not be alike" in required.reason


def test_one_fingerprint_is_not_worth_a_further_domain():
    nodes = [
        in_domain("A", "n1", conformance="old"), in_domain("A", "n2", conformance="new"),
        in_domain("B", "n3", conformance="new"),
    ]  # fmt: skip
    assert taken(decide(a_gang(16), nodes)) == [("A", {"n1": 8, "n2": 8})]
    required = a_gang(16, same_conformance=SameConformance.REQUIRE)
    assert taken(decide(required, nodes)) == [("A", {"n2": 8}), ("B", {"n3": 8})]


def test_what_would_fit_when_empty_waits_and_what_never_fits_says_so():
    busy = [in_domain("A", "n1", busy=range(8)), in_domain("A", "n2")]
    assert decide(a_gang(16), busy).reason == (
        "no nodes can take it together now: needs 16 GPUs, the domains together have 8; "
        "r/c/A has 8 (2 nodes: 1 gpus-busy, 1 domain-too-small)"
    )
    assert decide(a_gang(17), busy).reason.startswith("no known nodes could ever hold it")
    draining = [in_domain("A", "n1", state=NodeState.DRAINING), in_domain("A", "n2")]
    assert decide(a_gang(16), draining).reason.startswith("no nodes can take it together now")
    gone = [in_domain("A", "n1", state=NodeState.GONE), in_domain("A", "n2")]
    assert decide(a_gang(16), gone).reason.startswith("no known nodes could ever hold it")


def test_what_never_fits_has_the_reasons_of_empty_nodes():
    """What runs there is no reason: no end of it lets the gang start."""
    full = [in_domain("A", "n1", busy=range(8)), in_domain("B", "n2", busy=range(8))]
    large = decide(a_gang(24), full)
    assert large.reason == (
        "no known nodes could ever hold it together: needs 24 GPUs, the domains together have 16; "
        "r/c/A has 8, r/c/B has 8 (2 nodes: 2 domain-too-small)"
    )
    assert large.gang is not None
    assert [room.free for room in large.gang.domains] == [0, 0]  # as it is now
    assert [(r.code, r.permanent) for r in large.rejections] == [(RejectionCode.DOMAIN, True)] * 2
    apart = decide(a_gang(16, allow_cross_group_spread=False), full)
    assert "needs 16 GPUs in one domain; r/c/A has 8, r/c/B has 8 (" in apart.reason
    other = decide(a_gang(16, tier="FLEX"), full)
    assert {(r.code, r.permanent) for r in other.rejections} == {(RejectionCode.TIER, True)}
    waits = decide(a_gang(16), full)
    assert [(r.code, r.permanent) for r in waits.rejections] == [
        (RejectionCode.GPUS_BUSY, False)
    ] * 2


def test_groups_that_the_total_cannot_have_are_refused():
    with pytest.raises(ValueError, match="group_gpus is 16, but the job has 8 GPUs"):
        a_gang(8, 16)
    with pytest.raises(ValueError, match="spares_per_group needs group_gpus"):
        Gang(spares_per_group=1)


def test_a_gang_without_spares_lends_none_and_is_stored_as_before():
    with pytest.raises(ValueError, match="lend_spares needs spares_per_group"):
        Gang(group_gpus=4, lend_spares=True)
    assert "lend_spares" not in Gang(group_gpus=4, spares_per_group=4).model_dump(mode="json")
