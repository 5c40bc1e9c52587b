"""What part of a pool each tenant is to have, by the shares of the tree of tenants."""

import random
from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.packing import PackingPolicy
from longshore.models.score import InTree, ScorePolicy, TermWeights
from longshore.scheduling.cycle import plan
from longshore.scheduling.fair_tree import FairTree, part_of, parts_of, says_part
from longshore.scheduling.score import Scores, fair_share
from tests.support.packing import NOW, a_job, a_node

NAMES = [f"t{number}" for number in range(9)]
_FAIR = TermWeights(waiting=0.5, fair_share=0.5)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, InTree]:
    """A tree of some tenants, of whom others may be unknown to it."""
    known = draw(st.lists(st.sampled_from(NAMES), unique=True))
    return {
        name: InTree(
            draw(st.sampled_from([None, *known[:place]])),
            draw(st.sampled_from([0.5, 1.0, 2.0, 7.0])),
        )
        for place, name in enumerate(known)
    }


uses = st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1e9), min_size=1)


def policy_of(
    usage: dict[str, float], tree: dict[str, InTree] | None = None, **shares: float
) -> PackingPolicy:
    own = ScorePolicy(weights=_FAIR, shares=shares)
    return PackingPolicy(score=own, usage=usage, tree=tree or {})


def terms(policy: PackingPolicy, tenants: list[str]) -> list[float]:
    of = Scores(policy, [a_node()])
    return [
        of.differing(a_job("j", 1, tenant=name), can_stop=False)["fair_share"] for name in tenants
    ]


@given(uses, trees())
def test_the_targets_of_those_with_work_sum_to_one(
    usage: dict[str, float], tree: dict[str, InTree]
):
    found = FairTree(usage, tree, {})
    assert isclose(sum(found.target(name) for name in usage), 1)
    assert all(0 < level.target <= 1 for name in usage for level in found.levels(name))


@given(uses, trees(), st.data(), st.floats(1, 10))
def test_more_shares_never_lower_a_target(
    usage: dict[str, float], tree: dict[str, InTree], data: st.DataObject, times: float
):
    """Its own: of a tenant, and of whoever is below it."""
    who = data.draw(st.sampled_from(sorted(usage)))
    found = FairTree(usage, tree, {})
    name = data.draw(st.sampled_from([level.name for level in found.levels(who)]))
    before = found.target(who)
    known = tree.get(name, InTree())
    more = {**tree, name: replace(known, shares=known.shares * times)}
    assert FairTree(usage, more, {}).target(who) >= before * (1 - 1e-12)


@given(uses, trees(), st.sampled_from(NAMES), st.floats(0.1, 9))
def test_who_has_no_work_changes_no_target(
    usage: dict[str, float], tree: dict[str, InTree], idle: str, shares: float
):
    if idle in {level.name for name in usage for level in FairTree(usage, tree, {}).levels(name)}:
        return
    more = {**tree, idle: replace(tree.get(idle, InTree()), shares=shares)}
    targets = {name: FairTree(usage, tree, {}).target(name) for name in usage}
    assert {name: FairTree(usage, more, {}).target(name) for name in usage} == targets


@given(uses, st.dictionaries(st.sampled_from(NAMES), st.floats(0.1, 9)))
def test_without_a_tree_it_is_the_formula_of_the_seed(
    usage: dict[str, float], shares: dict[str, float]
):
    """To the last bit."""
    total, had = sum(shares.get(name, 1.0) for name in usage), sum(usage.values())
    plain = [
        fair_share(shares.get(name, 1.0) / total, used / had if had > 0 else 0.0)
        for name, used in usage.items()
    ]
    assert terms(policy_of(usage, None, **shares), list(usage)) == plain
    told = {name: InTree(None, share) for name, share in shares.items()}
    assert terms(policy_of(usage, told), list(usage)) == plain, "the tree says the same shares"


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_in_which_all_are_alike_plans_as_none(seed: int):
    chance = random.Random(seed)
    usage = {name: chance.random() * 1e6 for name in NAMES[:5]}
    jobs = [
        a_job(f"j{number}", chance.randint(1, 4), tenant=chance.choice(NAMES[:6]))
        for number in range(12)
    ]
    nodes = [a_node(f"n{number}") for number in range(2)]
    none, alike = (
        plan(jobs, nodes, (), policy_of(usage, tree), NOW).model_dump_json()
        for tree in ({}, {name: InTree() for name in NAMES})
    )
    assert none == alike


def test_who_has_more_shares_in_the_tree_goes_first():
    jobs = [a_job("one", 8, tenant="one"), a_job("two", 8, tenant="two")]
    usage = {"one": 40.0, "two": 60.0}
    for first, tree in (("one", {}), ("two", {"two": InTree(None, 4.0)})):
        placed = plan(jobs, [a_node()], (), policy_of(usage, tree), NOW).placements
        assert [each.job_id for each in placed] == [first]


LAB = {
    "lab": InTree(None, 1), "research": InTree("lab", 2), "product": InTree("lab", 1),
    "vision": InTree("research", 1), "text": InTree("research", 3),
}  # fmt: skip


def test_a_target_is_the_part_among_siblings_times_that_of_the_parent():
    usage = {"vision": 10.0, "text": 0.0, "product": 30.0, "guest": 0.0}
    found = FairTree(usage, LAB, {})
    targets = [found.target(name) for name in ("vision", "text", "product", "guest")]
    assert targets == pytest.approx([1 / 2 * 2 / 3 / 4, 1 / 2 * 2 / 3 * 3 / 4, 1 / 6, 1 / 2])
    alone = FairTree({"text": 5.0, "product": 0.0}, LAB, {})
    assert alone.target("text") == pytest.approx(2 / 3), "whoever has no work does not count"


def test_what_a_parent_does_itself_has_one_share_beside_those_below_it():
    usage = {"research": 1.0, "vision": 0.0, "text": 0.0}
    found = FairTree(usage, LAB, {})
    assert [found.target(name) for name in usage] == pytest.approx([1 / 5, 1 / 5, 3 / 5])
    assert FairTree({"research": 1.0, "product": 0.0}, LAB, {}).target("research") == (
        pytest.approx(2 / 3)
    ), "while nobody below it has work, all is its own"


def test_the_shares_of_a_pool_go_before_those_of_the_tree():
    usage = {"research": 0.0, "product": 0.0}
    assert FairTree(usage, LAB, {"research": 9.0}).target("research") == pytest.approx(0.9)


def test_families_are_compared_first():
    """Research has had its part and more: who has nothing of it yet does not go before a family
    that is behind, but before its own sibling."""
    usage = {"vision": 80.0, "text": 0.0, "product": 20.0}
    shares = {"vision": 1.0, "text": 1.0, "research": 1.0, "product": 1.0}
    tree = {name: replace(where, shares=shares.get(name, 1.0)) for name, where in LAB.items()}
    tree |= {name: replace(tree[name], parent=None) for name in ("research", "product")}
    vision, text, product = terms(policy_of(usage, tree), ["vision", "text", "product"])
    assert (vision, text, product) == pytest.approx((0, 1 - 1.6 / 2, 1 - 0.4))
    flat = {name: InTree(None) for name in usage}
    assert terms(policy_of(usage, flat), ["text"]) == [1.0], "on its own it would come first"


@given(uses, trees(), st.sampled_from(["vision", "text"]))
def test_who_had_more_of_a_family_never_goes_before(
    usage: dict[str, float], tree: dict[str, InTree], who: str
):
    """However its family stands among others, of two siblings with equal shares."""
    tree = {**tree, "family": InTree(), "vision": InTree("family"), "text": InTree("family")}
    usage = {**usage, "vision": 10.0, "text": 10.0, who: 30.0}
    vision, text = terms(policy_of(usage, tree), ["vision", "text"])
    assert vision <= text if who == "vision" else text <= vision


def test_people_are_told_the_target_and_whose_shares_they_are():
    usage = {"vision": 10.0, "text": 0.0, "product": 30.0}
    policy = policy_of(usage, LAB, product=2.0)
    told = {part.tenant: says_part(part) for part in parts_of(policy, ["text", "product", "new"])}
    assert told == {
        "text": "target 18.8% of the pool, had 0.0% of late: text 3 of 4 shares below research, "
        "research 2 of 4 shares below lab, lab 1 of 2 shares",
        "product": "target 25.0% of the pool, had 75.0% of late: product 2 of 4 shares below lab "
        "by the pool's `shares.product`, lab 1 of 2 shares",
        "new": "target 50.0% of the pool, had 0.0% of late: new 1 of 2 shares",
    }
    assert part_of(policy, "new") == parts_of(policy, ["new"])[0]
    assert part_of(PackingPolicy(), "new") is None
    assert not parts_of(PackingPolicy(), ["new"])
