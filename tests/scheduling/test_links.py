"""Which GPUs of a node a group gets, by what connects them."""

from datetime import timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.models.placement import Decision, GPUChoice, PackingRule, ScoreWeights
from longshore.models.topology import Conformance, LinkClass, NodeTopology, fingerprint
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.gpus import choose, indices_of, mask_of
from longshore.scheduling.placement.links import choose_gpus
from tests.support.gangs import a_gang, decide, in_domain, islands
from tests.support.packing import NOW, POLICY, a_job, a_node, running
from tests.support.packing_scenes import topologies

NVLINK, NVSWITCH, PCIE4, PCIE5 = (
    LinkClass.NVLINK, LinkClass.NVSWITCH, LinkClass.PCIE4, LinkClass.PCIE5,
)  # fmt: skip
EVEN_AND_ODD = islands((0, 2, 4, 6), (1, 3, 5, 7), within=NVLINK, between=PCIE5)
ALL = 0b1111_1111


def chosen(topology: NodeTopology | None, usable: int, count: int) -> tuple[int, ...]:
    return choose_gpus(topology, usable, usable, count, GPUChoice.CONTIGUOUS).indices


def test_the_speeds_are_those_of_the_seed():
    assert [c.gb_per_second for c in (NVSWITCH, NVLINK, PCIE5, PCIE4)] == [900, 450, 64, 32]


def test_the_set_with_the_fastest_slowest_link_goes_before_the_closest_run():
    assert chosen(None, ALL, 4) == (0, 1, 2, 3)
    assert chosen(EVEN_AND_ODD, ALL, 4) == (0, 2, 4, 6)
    assert chosen(EVEN_AND_ODD, ALL & ~mask_of([2]), 4) == (1, 3, 5, 7)


def test_where_no_set_avoids_the_slow_link_the_closest_run_goes_first():
    assert chosen(EVEN_AND_ODD, ALL, 5) == (0, 1, 2, 3, 4)
    assert chosen(islands(tuple(range(8)), within=NVSWITCH, between=PCIE4), ALL, 3) == (0, 1, 2)


def test_an_unknown_link_is_the_slowest():
    rows = [list(row) for row in islands((0, 1, 2, 3), within=PCIE4, between=PCIE4).links]
    rows[0][1] = rows[1][0] = None
    topology = NodeTopology(gpus=(0, 1, 2, 3), links=tuple(tuple(row) for row in rows))
    assert chosen(topology, 0b111, 2) == (1, 2)


def test_of_equal_links_the_set_beside_most_network_cards_goes_first():
    topology = islands((0, 1, 2, 3), within=NVLINK, between=NVLINK)
    assert chosen(topology, 0b1111, 2) == (0, 1)
    beside = topology.model_copy(update={"nics": ("mlx0", "mlx0", None, "mlx1")})
    assert chosen(beside, 0b1111, 2) == (1, 3)  # the closer of the two


def test_links_go_before_network_cards():
    topology = islands((0, 1), (2, 3), within=NVLINK, between=PCIE5)
    beside = topology.model_copy(update={"nics": ("mlx0", "mlx0", "mlx1", "mlx1")})
    assert chosen(beside, 0b1111, 2) == (0, 1)


def test_the_order_of_the_seed_stays_the_order_of_the_seed():
    first = choose_gpus(EVEN_AND_ODD, ALL, ALL, 4, GPUChoice.FIRST_FREE)
    assert first.indices == (0, 1, 2, 3)


def test_too_few_gpus_are_refused():
    with pytest.raises(ValueError, match="cannot choose 3 of 2 GPUs"):
        choose_gpus(EVEN_AND_ODD, 0b11, 0b11, 3, GPUChoice.CONTIGUOUS)


def test_a_gang_gets_linked_gpus():
    nodes = [in_domain("A", "n", topology=EVEN_AND_ODD, busy=[0])]
    assert decide(a_gang(4), nodes).members[0].gpu_indices == (1, 3, 5, 7)


def on_one_node(gpus: int, **policy: Any) -> Decision:
    nodes = [a_node(gpus=8, topology=EVEN_AND_ODD, busy=[0])]
    return decide(a_job(gpus=gpus), nodes, **policy)


def test_a_job_on_one_node_gets_linked_gpus_and_the_decision_names_the_link():
    decision = on_one_node(4)
    assert decision.gpu_indices == (1, 3, 5, 7)
    assert decision.candidates[0].link is NVLINK
    assert "GPUs 1,3,5,7 linked by nvlink (450 GB/s): the best of 1" in decision.reason
    over_the_slow_one = on_one_node(5)
    assert over_the_slow_one.gpu_indices == (1, 2, 3, 4, 5)
    assert "linked by pcie5 (64 GB/s)" in over_the_slow_one.reason


def test_a_single_gpu_is_chosen_without_regard_to_links():
    beside = EVEN_AND_ODD.model_copy(update={"nics": (None,) * 7 + ("mlx0",)})
    decision = decide(a_job(gpus=1), [a_node(topology=beside)])
    assert decision.gpu_indices == (0,)
    assert "linked" not in decision.reason


def test_nodes_alike_but_for_their_links_are_told_apart():
    nodes = [a_node("plain", busy=[0]), a_node("linked", busy=[0], topology=EVEN_AND_ODD)]
    gpus = {c.node_id: (c.gpu_indices, c.link) for c in decide(a_job(gpus=4), nodes).candidates}
    assert gpus == {"plain": ((1, 2, 3, 4), None), "linked": ((1, 3, 5, 7), NVLINK)}


def test_where_links_are_known_they_count_in_place_of_gaps():
    """The pair 3,5 is linked, and has a gap; the pair 2,3 has none, and a slow link."""
    linked = islands((3, 5), (0, 1, 2, 4, 6, 7), within=NVLINK, between=PCIE4)
    slow = islands((0, 1, 2), (3, 4, 5, 6, 7), within=NVLINK, between=PCIE4)
    nodes = [
        a_node("slow", busy={0, 1, 4, 5, 6, 7}, topology=slow),
        a_node("linked", busy={0, 1, 2, 4, 6, 7}, topology=linked),
    ]
    for rule in (PackingRule.SEED_SCORE, PackingRule.KEEP_ROOM):
        decision = decide(a_job(gpus=2), nodes, rule=rule)
        assert (decision.node_id, decision.gpu_indices) == ("linked", (3, 5))
        assert decision.terms is not None
        assert decision.terms.fragmentation == 0


@pytest.mark.parametrize("rule", PackingRule)
@pytest.mark.parametrize("links", [0.1, 0.0])
def test_of_nodes_alike_but_for_their_links_the_faster_one_goes_first(
    rule: PackingRule, links: float
):
    pairs = islands((0, 1), (2, 3), within=NVLINK, between=PCIE5)
    nodes = [
        a_node("across", gpus=4, busy=[0, 3], topology=pairs),
        a_node("pair", gpus=4, busy=[0, 1], topology=pairs),
    ]
    decision = decide(a_job(gpus=2), nodes, rule=rule, weights=ScoreWeights(links=links))
    assert decision.node_id == ("pair" if links else "across")
    parts = {part.name: part.value for part in decision.candidates[0].terms.parts}
    assert parts.get("links between its GPUs") == (pytest.approx(0.05) if links else None)


def test_gpus_kept_for_a_later_start_are_linked_too():
    nodes = [a_node(topology=EVEN_AND_ODD, busy=range(8))]
    ends = timedelta(minutes=10)
    held = running("old", "node-a", range(1, 8), ends, vram_per_gpu=80)
    made = plan([a_job(gpus=4)], nodes, [held], POLICY, NOW)
    assert made.reservations[0].gpu_indices == (1, 3, 5, 7)


def test_sixteen_gpus_are_answered_in_a_blink():
    topology = islands(tuple(range(16)), within=NVSWITCH, between=NVSWITCH)
    # 12 870 sets; all tie on their links, and the closest runs are asked for what they leave.
    assert chosen(topology, (1 << 16) - 1, 8) == tuple(range(8))


def test_a_node_of_many_gpus_is_answered_by_its_runs():
    halves = tuple(range(0, 32)), tuple(range(32, 64))
    topology = islands(*halves, within=NVSWITCH, between=PCIE5)
    usable = ((1 << 64) - 1) & ~mask_of(range(28))
    assert chosen(topology, usable, 8) == tuple(range(56, 64))


@given(st.integers(2, 7).flatmap(topologies), st.data())
def test_no_other_set_is_better_linked(topology: NodeTopology, data: st.DataObject):
    usable = data.draw(st.integers(1, (1 << len(topology.gpus)) - 1))
    count = data.draw(st.integers(1, usable.bit_count()))

    def worth(indices: tuple[int, ...]) -> tuple[int, int]:
        links = [topology.links[a][b] for a, b in combinations(indices, 2)]
        slowest = min((link.gb_per_second if link else 0 for link in links), default=0)
        cards = {topology.nics[i] for i in indices} - {None} if topology.nics else set[str]()
        return slowest, len(cards)

    best = chosen(topology, usable, count)
    assert len(best) == count
    assert mask_of(best) & ~usable == 0
    assert worth(best) == max(worth(s) for s in combinations(indices_of(usable), count))


@given(st.integers(1, ALL), st.integers(1, 8))
def test_like_links_choose_as_without_a_topology(usable: int, count: int):
    count = min(count, usable.bit_count())
    topology = islands(tuple(range(8)), within=NVSWITCH, between=NVSWITCH)
    assert (
        chosen(topology, usable, count)
        == choose(usable, usable, count, GPUChoice.CONTIGUOUS).indices
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"gpus": (0, 0), "links": ((None, None),) * 2}, "GPU indices must differ"),
        ({"gpus": (0, 1), "links": ((None, None),)}, "2 rows of 2 entries"),
        ({"gpus": (0, 1), "links": ((None, NVLINK), (None, None))}, "GPU 1 to 0 differs"),
        ({"gpus": (0,), "links": ((None,),), "nics": ("a", "b")}, "nics must have 1 entries"),
    ],
)
def test_a_topology_that_does_not_agree_is_refused(fields: dict[str, object], problem: str):
    with pytest.raises(ValidationError, match=problem):
        NodeTopology.model_validate(fields)


@pytest.mark.parametrize("fields", [{}, {"known": False}, {"allowed": [""]}])
def test_a_wish_for_conformance_rules_something_out(fields: dict[str, object]):
    with pytest.raises(ValidationError, match=r"say `known: true`|empty text"):
        Conformance.model_validate(fields)


def test_equal_machines_have_equal_fingerprints():
    one = fingerprint("550.54", "fw-1", {"quiet": "", "iommu": "pt"})
    assert one == fingerprint("550.54", "fw-1", {"iommu": "pt", "quiet": ""})
    assert len(one) == 16
    others = {
        fingerprint("550.90", "fw-1", {"iommu": "pt", "quiet": ""}),
        fingerprint("550.54", "fw-2", {"iommu": "pt", "quiet": ""}),
        fingerprint("550.54", "fw-1", {"iommu": "off", "quiet": ""}),
    }
    assert len(others | {one}) == 4
