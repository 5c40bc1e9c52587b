"""Which spare takes the place of which node of a gang."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.failover import HeldNode
from longshore.models.gang import NodeShare
from longshore.models.topology import Gang
from longshore.scheduling.gangs.spares import decision_after, plan_failover
from tests.support.gangs import a_gang, decide, in_domain

GANG = Gang(group_gpus=8, spares_per_group=8)
LOST = "node b was lost"


def a_rank(rank: int, name: str, gpus: int = 8, domain: str = "A", unfit: str = "") -> HeldNode:
    return HeldNode(
        rank=rank, node_id=name, epoch=1, gpu_indices=tuple(range(gpus)), domain=domain,
        unfit=unfit,
    )  # fmt: skip


def a_spare(rank: int, name: str, gpus: int = 8, domain: str = "A", unfit: str = "") -> HeldNode:
    return a_rank(rank, name, gpus, domain, unfit).model_copy(update={"spare": True})


def one_group(*names: str) -> list[frozenset[str]]:
    return [frozenset(names)]


def test_the_spare_gets_the_rank_of_the_node_that_is_left():
    held = [a_rank(0, "a"), a_rank(1, "b", unfit=LOST), a_spare(2, "c")]
    plan = plan_failover(held, one_group("a", "b"), GANG)
    (swap,) = plan.swaps
    assert (swap.rank, swap.left, swap.node.node_id, swap.node.spare) == (1, "b", "c", False)
    assert (swap.node.rank, len(swap.node.gpu_indices), plan.spares) == (1, 8, ())
    assert plan.reason == "c takes the place of b (rank 1): node b was lost"


def test_the_least_spare_that_suffices_goes_and_gives_no_more_than_is_wanted():
    held = [
        a_rank(0, "a", 4, unfit=LOST), a_spare(1, "small", 2), a_spare(2, "large", 8),
        a_spare(3, "right", 6),
    ]  # fmt: skip
    plan = plan_failover(held, one_group("a"), GANG)
    assert plan.swaps[0].node.node_id == "right"
    assert plan.swaps[0].node.gpu_indices == (0, 1, 2, 3)
    assert [spare.node_id for spare in plan.spares] == ["small", "large"]


def test_a_spare_that_is_lent_goes_last():
    lent = a_spare(1, "lent", 4).model_copy(update={"lent": True})
    held = [a_rank(0, "a", 4, unfit=LOST), lent, a_spare(2, "free", 8)]
    assert plan_failover(held, one_group("a"), GANG).swaps[0].node.node_id == "free"
    assert plan_failover(held[:2], one_group("a"), GANG).swaps[0].node.node_id == "lent"


def test_two_losses_take_two_spares_or_none():
    held = [a_rank(0, "a", 4, unfit=LOST), a_rank(1, "b", 8, unfit=LOST), a_spare(2, "c", 8)]
    groups = one_group("a", "b")
    plan = plan_failover(held, groups, GANG)
    assert (plan.swaps, plan.reason) == ((), "no spare is left for rank 0 on a, 4 GPUs")
    both = plan_failover([*held, a_spare(3, "d", 4)], groups, GANG)
    assert [(swap.rank, swap.node.node_id) for swap in both.swaps] == [(0, "d"), (1, "c")]


def test_no_group_crosses_domains():
    two = [a_rank(0, "a"), a_rank(1, "b", unfit=LOST), a_spare(2, "far", domain="B")]
    plan = plan_failover(two, one_group("a", "b"), GANG)
    assert plan.reason == (
        "no spare can stand in for rank 1 on b, 8 GPUs of A: far has 8 in B"
    )  # fmt: skip
    each_alone = [frozenset("a"), frozenset("b")]
    assert plan_failover(two, each_alone, GANG).swaps[0].node.domain == "B"
    together = Gang(group_gpus=8, spares_per_group=8, allow_cross_group_spread=False)
    assert plan_failover(two, each_alone, together).swaps == ()


def test_what_is_unfit_itself_and_what_is_too_small_does_not_stand_in():
    lost = a_rank(0, "a", unfit=LOST)
    drained = plan_failover([lost, a_spare(1, "c", unfit="drained")], one_group("a"), GANG)
    assert drained.swaps == ()
    small = plan_failover([lost, a_spare(1, "c", 4)], one_group("a"), GANG)
    assert small.reason.endswith(": c has 4 in A")


def test_a_gang_whose_nodes_are_all_fit_swaps_nothing():
    plan = plan_failover([a_rank(0, "a"), a_spare(1, "c")], one_group("a"), GANG)
    assert (plan.swaps, plan.reason) == ((), "none of its nodes has to be left")


def test_the_decision_follows_with_every_group_of_the_node():
    nodes = [in_domain("A", "a", 8), in_domain("A", "b", 4), in_domain("A", "c", 8)]
    job = a_gang(12, 4, spares_per_group=2)
    decision = decide(job, nodes)
    assert [node_id for node_id, _ in decision.by_node] == ["b", "a"]
    held = [
        a_rank(0, "b", 4), a_rank(1, "a", 8, unfit=LOST), a_spare(2, "c", 8),
    ]  # fmt: skip
    failover = plan_failover(held, [frozenset("b"), frozenset("a"), frozenset("a")], GANG)
    after = decision_after(decision, failover)
    assert after.by_node == (("b", (0, 1, 2, 3)), ("c", tuple(range(8))))
    assert after.gang is not None
    assert after.gang.groups[1].nodes == (NodeShare(node_id="c", gpu_indices=(0, 1, 2, 3)),)
    assert after.gang.groups[2].nodes == (NodeShare(node_id="c", gpu_indices=(4, 5, 6, 7)),)
    assert (after.spares, after.reason) == ((), failover.reason)


sizes = st.sampled_from([1, 2, 4, 8])
homes = st.sampled_from("AB")


@given(
    st.lists(st.tuples(sizes, homes, st.booleans()), min_size=1, max_size=5),
    st.lists(st.tuples(sizes, homes, st.booleans()), max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_all_places_are_taken_or_none_and_the_world_stays_the_same(
    ranks: list[tuple[int, str, bool]],
    spares: list[tuple[int, str, bool]],
    spread: bool,
    together: bool,
):
    gang = Gang(group_gpus=1, spares_per_group=1, allow_cross_group_spread=spread)
    held = [
        a_rank(rank, f"n{rank}", gpus, home if spread and not together else "A", LOST * lost)
        for rank, (gpus, home, lost) in enumerate(ranks)
    ]
    groups = (
        one_group(*(node.node_id for node in held))
        if together
        else [frozenset([node.node_id]) for node in held]
    )
    held += [
        a_spare(len(ranks) + number, f"s{number}", gpus, home, LOST * lost)
        for number, (gpus, home, lost) in enumerate(spares)
    ]
    plan = plan_failover(held, groups, gang)
    unfit = {node.rank: node for node in held if not node.spare and node.unfit}
    if not plan.swaps:
        assert plan.spares == ()
        return
    assert {swap.rank for swap in plan.swaps} == set(unfit)
    names = [swap.node.node_id for swap in plan.swaps] + [spare.node_id for spare in plan.spares]
    assert sorted(names) == sorted({n.node_id for n in held if n.spare and not n.unfit})
    after = {node.node_id: node.domain for node in held if not node.spare and not node.unfit}
    for swap in plan.swaps:
        assert len(swap.node.gpu_indices) == len(unfit[swap.rank].gpu_indices)
        after[swap.node.node_id] = swap.node.domain
    if together or not spread:
        assert len(set(after.values())) == 1
