"""Worked examples of others' documents in their own numbers, and the rules one by one."""

from datetime import timedelta

import pytest

from longshore.models.elastic import Malleable
from longshore.models.funding import FundingClass, FundingCode, Lending, Sharing
from longshore.models.job_request import JobRequest
from longshore.models.topology import Gang
from longshore.scheduling.funding.cover import Cover, cover, take
from longshore.scheduling.funding.evaluate import evaluate
from longshore.scheduling.funding.explain import Helps, Remedy, explain
from longshore.scheduling.funding.facts import Branch, Charge, Facts, Share, Use
from longshore.scheduling.funding.remedies import for_job
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.split import classes_of
from longshore.scheduling.funding.turns import fund
from tests.support.funding_scenes import (
    H100,
    HOUR,
    NOW,
    WAITING,
    applied,
    borrowing,
    capped,
    facts_of,
    owned,
    tree,
    use,
)

ORGANISATION = tree(
    ai=None, rai="ai", mm="ai", al="rai", sys="rai", vis="mm", aud="mm"
)  # fmt: skip
AL, SYS, VIS, AUD, ROOT = 1, 2, 3, 4, 5
MINUTE = timedelta(minutes=1)


def gives(found: Cover) -> dict[int, int]:
    """GPUs by envelope."""
    sums: dict[int, int] = {}
    for charge in found.charges:
        sums[charge.envelope] = sums.get(charge.envelope, 0) + len(charge.gpus)
    return sums


def charge(job: str, envelope: int, gpus: int, number: int, *, lent: bool = False) -> Charge:
    since = NOW - HOUR + number * MINUTE
    return Charge(job, 1, 0, envelope, tuple(range(gpus)), 1000, lent, since, number)


def runs(facts: Facts, *uses: Use) -> Facts:
    """Let jobs begin one after the other."""
    for one in uses:
        facts = facts._replace(uses=[*facts.uses, one])
        facts = applied(facts, evaluate(facts, NOW))
    return facts


# --- J1: two teams, 72 GPUs


def two_teams(a: int, b: int, *, family: bool = False) -> Facts:
    tenants = tree(org=None, a="org", b="org") if family else tree(a=None, b=None)
    jobs = [use("j1", "a", 32), use("j2", "b", 24), use("j3", "a", 2)]
    charges = [charge("j1", 1, 32, 1), charge("j2", 2, 24, 2), charge("j3", 1, 2, 3)]
    return facts_of(tenants, [owned(1, "a", a), owned(2, "b", b)], (), jobs, charges)


def test_j1_all_are_admitted():
    facts = two_teams(48, 24)._replace(uses=(), charges=())
    queue = [use("j1", "a", 32), use("j2", "b", 24), use("j3", "a", 2)]
    room = Room(facts, NOW)
    covers = fund(room, queue)
    assert [gives(found) for found in covers.values()] == [{1: 32}, {2: 24}, {1: 2}]
    assert sum(room.free) == 14_000


def test_j1b_a_budget_that_is_cut_stops_nobody():
    """A has 24 of 34 in use: of J1, which has it longest, 8 lose their payer, and both of J3."""
    funded = evaluate(two_teams(24, 48), NOW)
    assert [(one.charge.job_id, len(one.lost)) for one in funded.ended] == [("j1", 8), ("j3", 2)]
    assert {one.code for one in funded.ended} == {FundingCode.NO_ROOM}
    assert [(one.job_id, len(one.gpus), one.since) for one in funded.opened] == [
        ("j1", 24, NOW - HOUR + MINUTE)
    ]
    split = {job_id: split[:4] for (job_id, _), split in funded.splits.items()}
    assert split == {
        "j1": (24_000, 0, 0, 8_000), "j2": (24_000, 0, 0, 0), "j3": (0, 0, 0, 2_000),
    }  # fmt: skip
    assert [id for (id, _), split in funded.splits.items() if split.unfunded] == ["j1", "j3"]


def test_j1b_a_sibling_pays_for_what_was_cut():
    funded = evaluate(two_teams(24, 48, family=True), NOW)
    split = {job_id: split[:4] for (job_id, _), split in funded.splits.items()}
    assert split["j1"] == (24_000, 8_000, 0, 0)
    assert split["j3"] == (0, 2_000, 0, 0)
    assert funded.splits["j1", 1].payers == (
        ("a", FundingClass.OWNED, 24_000), ("b", FundingClass.SHARED, 8_000),
    )  # fmt: skip


def test_the_budget_that_comes_back_pays_again():
    cut = applied(two_teams(24, 48), evaluate(two_teams(24, 48), NOW))
    back = cut._replace(envelopes={**cut.envelopes, 1: owned(1, "a", 48)})
    funded = evaluate(back, NOW)
    assert funded.ended == ()
    assert [(one.job_id, len(one.gpus)) for one in funded.opened] == [("j1", 8), ("j3", 2)]


# --- J2: a tree


def organisation() -> Facts:
    gpus = {"al": 48, "sys": 16, "vis": 28, "aud": 12, "ai": 16}
    return facts_of(
        ORGANISATION, [owned(id, name, size) for id, (name, size) in enumerate(gpus.items(), 1)]
    )


def test_j2_mm_borrows_12_of_the_root():
    """MM1 wants 48: 28 are its own, AUD has 8 beside MM2, and 12 come from the root."""
    covers = fund(Room(organisation(), NOW), [use("mm2", "aud", 4), use("mm1", "vis", 48)])
    assert gives(covers["mm2"]) == {AUD: 4}
    assert gives(covers["mm1"]) == {VIS: 28, AUD: 8, ROOT: 12}


def test_j2_the_owner_that_comes_later_has_its_own():
    """MM1 has 12 of AUD and 8 of the root; when MM2 begins, it is covered anew at the root."""
    facts = runs(organisation(), use("mm1", "vis", 48), use("mm2", "aud", 4))
    funded = evaluate(facts, NOW)
    assert funded.splits["mm1", 1].payers == (
        ("ai", FundingClass.SHARED, 12_000), ("aud", FundingClass.SHARED, 8_000),
        ("vis", FundingClass.OWNED, 28_000),
    )  # fmt: skip
    assert funded.splits["mm2", 1].owned == 4_000
    covers = fund(Room(organisation(), NOW), [use("mm1", "vis", 48), use("mm2", "aud", 4)])
    assert gives(covers["mm1"]) == {VIS: 28, AUD: 8, ROOT: 12}
    assert gives(covers["mm2"]) == {AUD: 4}
    assert not any(found.recalls for found in covers.values())


def test_j2b_nobody_is_left_for_mm3():
    facts = runs(
        organisation(), use("ra2", "sys", 16), use("mm2", "aud", 4), use("mm1", "vis", 48)
    )
    found = cover(Room(facts, NOW), use("mm3", "vis", 64))
    assert (found.funded, found.code, found.deficit) == (False, FundingCode.NO_ROOM, 12.0)
    # AL's 48 are its cousins', and 4 are left at the root: 64 - 48 - 4


# --- J5: a sponsor


def sponsored(most: int | None, gpus: int = 128) -> tuple[Room, Use]:
    lending = Lending(to=("own",), max=64)
    envelopes = [owned(1, "own", 96), owned(2, "sponsor", 256, lending=lending)]
    room = Room(facts_of(tree(own=None, sponsor=None), envelopes), NOW)
    return room, use("run", "own", gpus, where=WAITING, terms=borrowing("sponsor", most=most))


def test_j5_a_run_of_128_borrows_32():
    room, run = sponsored(32)
    found = cover(room, run)
    assert gives(found) == {1: 96, 2: 32}
    assert found.borrowed == 32_000
    take(room, run, found)
    facts = room.facts._replace(uses=[run], charges=list(found.charges))
    split = evaluate(applied(facts, evaluate(facts, NOW)), NOW).splits["run", 1]
    assert split.payers == (
        ("own", FundingClass.OWNED, 96_000), ("sponsor", FundingClass.BORROWED, 32_000),
    )  # fmt: skip


def test_j5b_a_limit_of_16_is_too_low():
    room, run = sponsored(16)
    found = explain(room, run)
    assert (found.cover.code, found.cover.deficit) == (FundingCode.BORROW_LIMIT, 16.0)
    assert [(one.rung, one.gives, one.code) for one in found.rungs] == [
        ("own", 96_000, FundingCode.NO_ROOM), ("sponsor", 16_000, FundingCode.BORROW_LIMIT),
    ]  # fmt: skip
    assert found.remedies == (
        Remedy(Helps.FEWER, gpus=112), Remedy(Helps.MAX_BORROW, gpus=32),
        Remedy(Helps.BUDGET, gpus=112, envelope=1),
    )  # fmt: skip
    assert cover(*sponsored(16, gpus=112)).funded


def test_a_sponsor_lends_no_more_than_it_says():
    room, run = sponsored(None, gpus=161)
    found = explain(room, run)
    assert found.cover.code is FundingCode.NO_ROOM
    assert Remedy(Helps.LENDING, gpus=65, envelope=2) in found.remedies
    assert cover(*sponsored(None, gpus=160)).funded
    more_than_it_has = explain(*sponsored(None, gpus=96 + 257)).remedies
    assert Helps.LENDING not in {one.what for one in more_than_it_has}


def test_who_could_borrow_is_told_of_whom():
    room, run = sponsored(None)
    found = explain(room, run._replace(terms=use("x", "own", 1).terms))
    assert found.cover.code is FundingCode.NO_ROOM
    assert found.rungs[-1][:2] == ("lender", "sponsor")
    assert Remedy(Helps.SPONSORS, gpus=32, tenants=("sponsor",)) in found.remedies


# --- J6: tomorrow


def test_j6_an_envelope_that_opens_tomorrow():
    tomorrow = NOW + 24 * HOUR
    facts = facts_of(tree(a=None), [owned(1, "a", 5000, start=tomorrow)])
    found = explain(Room(facts, NOW), use("run", "a", 4096))
    assert (found.cover.code, found.cover.deficit) == (FundingCode.NOT_OPEN, 4096)
    assert found.rungs[0].opens == tomorrow
    assert found.remedies == (
        Remedy(Helps.BUDGET, gpus=4096, tenants=("a",), gpu_type="H100"),
        Remedy(Helps.LATER, at=tomorrow),
    )
    assert cover(Room(facts, tomorrow), use("run", "a", 4096)).funded


# --- J15: no room, and a sponsor that is full


def test_j15_no_room():
    lending = Lending(to=("a",), max=8)
    envelopes = [owned(1, "a", 48), owned(2, "s", 8, lending=lending)]
    jobs = [use("x", "a", 34), use("y", "s", 8)]
    charges = [charge("x", 1, 34, 1), charge("y", 2, 8, 2)]
    room = Room(facts_of(tree(a=None, s=None), envelopes, (), jobs, charges), NOW)
    found = explain(room, use("run", "a", 32, terms=borrowing("s")))
    assert (found.cover.code, found.cover.deficit) == (FundingCode.NO_ROOM, 18.0)
    assert [(one.unused, one.gives) for one in found.rungs] == [(14_000, 14_000), (0, 0)]
    larger = Remedy(Helps.BUDGET, gpus=66, envelope=1)
    assert found.remedies == (Remedy(Helps.FEWER, gpus=14), larger)
    ends = {"x": NOW + 2 * HOUR, "y": NOW + HOUR}
    found = explain(room, use("run", "a", 32, terms=borrowing("s")), ends)
    assert found.remedies[-1] == Remedy(Helps.ENDS, at=NOW + 2 * HOUR), "8 of y are not enough"


# --- the ladder


def test_the_order_of_the_ladder():
    """Own, parent, sibling, grandparent, aunt, cousin; never those below, nor a niece's."""
    tenants = tree(
        top=None, root="top", parent="root", aunt="root", me="parent", sibling="parent",
        cousin="aunt", child="me", niece="sibling", far="top",
    )  # fmt: skip
    names = [name for name in tenants if name not in ("me",)]
    envelopes = [owned(id, name, 1) for id, name in enumerate(sorted([*names, "me"]), 1)]
    room = Room(facts_of(tenants, envelopes), NOW)
    of = {one.id: one.tenant for one in envelopes}
    found = cover(room, use("run", "me", 6))
    assert [of[one.envelope] for one in found.charges] == [
        "me", "parent", "sibling", "root", "aunt", "cousin",
    ]  # fmt: skip
    assert cover(room, use("run", "me", 7)).deficit == 1
    explained = explain(room, use("run", "me", 6)).rungs
    assert [one.rung for one in explained] == [
        "own", "parent", "sibling", "grandparent", "aunt", "cousin",
    ]  # fmt: skip


def test_the_most_specific_envelope_first():
    envelopes = [
        owned(1, "a", 1), owned(2, "a", 1, gpu_type="h100"), owned(3, "a", 1, pool="pool"),
        owned(4, "a", 1, labels={"rack": "1"}), owned(5, "a", 1, end=NOW + HOUR),
        owned(6, "a", 1, labels={"rack": "2"}), owned(7, "a", 1, gpu_type="A100"),
    ]  # fmt: skip
    where = H100._replace(labels=frozenset({("rack", "1"), ("row", "2")}))
    found = cover(Room(facts_of(tree(a=None), envelopes), NOW), use("x", "a", 5, where=where))
    assert [one.envelope for one in found.charges] == [4, 3, 2, 5, 1]
    anywhere = use("x", "a", 7, where=WAITING._replace(gpu_type=None))
    assert cover(Room(facts_of(tree(a=None), envelopes), NOW), anywhere).funded


def test_what_nobody_uses_comes_before_what_is_taken_back():
    """Of the own rung; the own rung as a whole comes before the parent's."""
    tenants = tree(p=None, me="p", sibling="p")
    envelopes = [owned(1, "me", 2, pool="pool"), owned(2, "me", 1), owned(3, "p", 4)]
    facts = facts_of(tenants, envelopes, (), [use("s", "sibling", 2)], [charge("s", 1, 2, 1)])
    found = cover(Room(facts, NOW), use("x", "me", 2))
    assert gives(found) == {2: 1, 1: 1}
    assert [(one.charge.job_id, one.lost) for one in found.recalls] == [("s", (1,))]
    left = found.recalls[0].left
    assert left is not None
    assert (left.gpus, left.since, left.id) == ((0,), facts.charges[0].since, 0)


def test_the_farthest_gives_back_first_and_of_those_the_youngest():
    tenants = tree(r=None, p="r", q="r", me="p", sibling="p", cousin="q")
    jobs = [use("s", "sibling", 1), use("c1", "cousin", 1), use("c2", "cousin", 1)]
    charges = [charge("c2", 1, 1, 1), charge("c1", 1, 1, 2), charge("s", 1, 1, 3)]
    facts = facts_of(tenants, [owned(1, "me", 3)], (), jobs, charges)
    lost = [
        [one.charge.job_id for one in cover(Room(facts, NOW), use("x", "me", gpus)).recalls]
        for gpus in (1, 2, 3)
    ]
    assert lost == [["c1"], ["c1", "c2"], ["c1", "c2", "s"]]


@pytest.mark.parametrize(("tenant", "funded"), [("p", True), ("me", False), ("cousin", False)])
def test_only_who_is_nearer_takes_back(tenant: str, funded: bool):
    """The sibling has the parent's: as near as its sibling, nearer than a cousin."""
    tenants = tree(r=None, p="r", q="r", me="p", sibling="p", cousin="q")
    facts = facts_of(
        tenants, [owned(1, "p", 1)], (), [use("s", "sibling", 1)], [charge("s", 1, 1, 1)]
    )
    assert cover(Room(facts, NOW), use("x", tenant, 1)).funded is funded


def test_nobody_takes_the_room_of_a_cap_from_another_job_of_its_tenant():
    """The parent pays for one, below a cap that is used up by it; the own envelope is idle."""
    tenants = tree(p=None, me="p", sibling="p")
    cap = capped(1, "p", 2, [1, 2])
    envelopes = [owned(1, "me", 2), owned(2, "p", 2)]
    mine, theirs = use("m", "me", 2), use("m", "sibling", 2)
    for running, funded in ((mine, False), (theirs, True)):
        facts = facts_of(tenants, envelopes, [cap], [running], [charge("m", 2, 2, 1)])
        found = cover(Room(facts, NOW), use("x", "me", 2))
        assert found.funded is funded
        assert bool(found.recalls) is funded
    facts = facts_of(tenants, envelopes, [cap], [mine], [charge("m", 2, 2, 1)])
    room = Room(facts, NOW)
    assert cover(room, use("x", "me", 2)).code is FundingCode.CAP
    assert explain(room, use("x", "me", 2)).rungs[0].recallable == 0
    half = facts_of(
        tenants, envelopes, [cap], [use("m", "me", 1), use("s", "sibling", 1)],
        [charge("m", 2, 1, 1), charge("s", 2, 1, 2)],
    )  # fmt: skip
    assert not cover(Room(half, NOW), use("x", "me", 2)).funded
    [recall] = cover(Room(half, NOW), use("x", "me", 1)).recalls
    assert recall.charge.job_id == "s"


def test_what_is_as_near_does_not_count_as_room():
    """The parent's is half a sibling's, as near, and half a cousin's."""
    tenants = tree(r=None, p="r", q="r", me="p", sibling="p", cousin="q")
    jobs = [use("s", "sibling", 1), use("c", "cousin", 1)]
    charges = [charge("s", 1, 1, 1), charge("c", 1, 1, 2)]
    room = Room(facts_of(tenants, [owned(1, "p", 2)], (), jobs, charges), NOW)
    assert cover(room, use("x", "me", 2)).deficit == 1
    assert [one.charge.job_id for one in cover(room, use("x", "me", 1)).recalls] == ["c"]


def test_what_is_given_up_for_one_job_is_told_to_no_other():
    """Whether the first is placed is not known: its other half is no room for the second yet."""
    tenants = tree(p=None, me="p", sibling="p")
    facts = facts_of(
        tenants, [owned(1, "me", 1)], (), [use("s", "sibling", 1)], [charge("s", 1, 1, 1)]
    )
    halves = [use(name, "me", 1, milli=500) for name in ("x", "y")]
    covers = fund(Room(facts, NOW), halves)
    assert [one.funded for one in covers.values()] == [True, False]
    assert [split.unfunded for split in evaluate(runs(facts, *halves), NOW).splits.values()] == [
        1000, 0, 0,
    ]  # fmt: skip


def test_a_contract_is_never_taken_back():
    lending = Lending(to=("b",), max=2)
    facts = facts_of(
        tree(a=None, b=None), [owned(1, "a", 2, lending=lending)], (),
        [use("x", "b", 2, terms=borrowing("a"))], [charge("x", 1, 2, 1, lent=True)],
    )  # fmt: skip
    assert cover(Room(facts, NOW), use("own", "a", 1)).code is FundingCode.NO_ROOM
    for spec in (owned(1, "a", 2), owned(1, "a", 1, lending=lending)):
        assert evaluate(facts._replace(envelopes={1: spec}), NOW).ended == ()
    over = owned(1, "a", 2, lending=lending, end=NOW)
    [ended] = evaluate(facts._replace(envelopes={1: over}), NOW).ended
    assert ended.code is FundingCode.NOT_OPEN


def test_who_cannot_be_stopped_starts_owned_or_borrowed():
    tenants = tree(p=None, me="p", other=None)
    envelopes = [owned(1, "p", 2), owned(2, "other", 1, lending=Lending(to=("me",), max=1))]
    room = Room(facts_of(tenants, envelopes), NOW)
    fixed = use("x", "me", 1, preemptible=False)
    found = explain(room, fixed)
    assert found.rungs[0][:2] == ("parent", "p")
    assert found.rungs[0].code is FundingCode.ACL_DENIED
    assert found.cover.code is FundingCode.BORROW_LIMIT
    assert {one.what for one in found.remedies} == {
        Helps.SPONSORS, Helps.BUDGET, Helps.PREEMPTIBLE,
    }  # fmt: skip
    assert gives(cover(room, fixed._replace(terms=borrowing("other")))) == {2: 1}


def test_an_envelope_that_is_not_shared():
    envelopes = [owned(1, "p", 2, sharing=Sharing.NONE)]
    room = Room(facts_of(tree(p=None, me="p"), envelopes), NOW)
    assert cover(room, use("x", "me", 1)).code is FundingCode.ACL_DENIED
    assert cover(room, use("x", "p", 1)).funded
    other = facts_of(tree(me=None), [owned(1, "me", 2, gpu_type="A100")])
    assert cover(Room(other, NOW), use("x", "me", 1)).code is FundingCode.NO_ENVELOPE


# --- caps


def test_a_cap_over_a_subtree():
    tenants = tree(p=None, a="p", b="p")
    envelopes = [owned(1, "a", 4), owned(2, "b", 4)]
    facts = facts_of(tenants, envelopes, [capped(7, "p", 5, {1, 2})])
    found = explain(Room(facts, NOW), use("x", "a", 6))
    assert (found.cover.code, found.cover.deficit) == (FundingCode.CAP, 1.0)
    assert found.remedies == (Remedy(Helps.FEWER, gpus=5), Remedy(Helps.CAP, gpus=1, cap=7))
    assert cover(Room(facts, NOW), use("x", "a", 5)).funded


def test_what_a_cap_leaves_is_told_of_each_envelope_below_it():
    """The first envelope has given all that the cap allows: the second one has room still."""
    facts = facts_of(
        tree(me=None), [owned(1, "me", 8), owned(2, "me", 4)],
        [capped(1, "me", 5, {1, 2})],
    )  # fmt: skip
    found = explain(Room(facts, NOW), use("j", "me", 8))
    told = [(rung.unused, rung.gives, rung.code) for rung in found.rungs]
    assert told == [(5_000, 5_000, FundingCode.CAP), (4_000, 0, FundingCode.CAP)]
    assert found.cover.code is FundingCode.CAP


@pytest.mark.parametrize(
    ("paid", "gang", "fewer"),
    [
        (10, None, 10),
        (10, Gang(unlabelled_nodes=True), 10),
        (10, Gang(group_gpus=4, spares_per_group=2), 6),
        (6, Gang(group_gpus=4, spares_per_group=2), 4),
        (5, Gang(group_gpus=4, spares_per_group=2), None),
    ],
)
def test_a_gang_asks_for_as_many_as_are_paid_for_with_their_spares(
    paid: int, gang: Gang | None, fewer: int | None
):
    job = JobRequest(id="j", gpus=12, gang=gang)
    higher = Remedy(Helps.CAP, gpus=1, cap=7)
    found = list(for_job(job, [Remedy(Helps.FEWER, gpus=paid), higher]))
    assert found == [*([Remedy(Helps.FEWER, gpus=fewer)] if fewer else []), higher]


def test_nothing_is_said_of_fewer_gpus_to_a_job_that_holds_whole_nodes():
    helps = [Remedy(Helps.FEWER, gpus=1), Remedy(Helps.CAP, gpus=1, cap=7)]
    assert list(for_job(JobRequest(id="j", gpus=2, sensitive=True), helps)) == helps[1:]


@pytest.mark.parametrize(
    ("sizes", "gang", "paid", "smaller"),
    [
        ({"min": 4, "max": 8, "step": 4}, None, 3, Remedy(Helps.SMALLER, gpus=3, step=1)),
        ({"min": 4, "max": 8, "step": 2}, None, 3, Remedy(Helps.SMALLER, gpus=2)),
        ({"min": 4, "max": 8}, None, 3, Remedy(Helps.SMALLER, gpus=3)),
        ({"min": 8, "max": 16, "step": 4}, 4, 7, Remedy(Helps.SMALLER, gpus=4)),
        ({"min": 8, "max": 16, "step": 8}, 8, 7, None),
    ],
)
def test_a_malleable_job_is_told_which_smallest_size_is_paid_for(
    sizes: dict[str, int], gang: int | None, paid: int, smaller: Remedy | None
):
    its = Malleable.model_validate(sizes)
    groups = Gang(group_gpus=gang) if gang else None
    job = JobRequest(id="j", gpus=its.max, gang=groups, malleable=its)
    assert list(for_job(job, [Remedy(Helps.FEWER, gpus=paid)])) == ([smaller] if smaller else [])
    if smaller:
        less = {"min": int(smaller.gpus or 0), "step": smaller.step or its.step}
        assert not its.model_copy(update=less).mistakes(None, groups, whole=True, saves=True)


def test_an_owner_takes_back_through_a_cap_over_its_envelopes():
    """The sibling has all that the cap allows of the other envelope."""
    tenants = tree(p=None, me="p", sibling="p")
    envelopes = [owned(1, "me", 4, gpu_type="A100"), owned(2, "me", 4, gpu_type="H100")]
    where = H100._replace(gpu_type="A100")
    facts = facts_of(
        tenants, envelopes, [capped(1, "me", 4, {1, 2})], [use("s", "sibling", 4, where=where)],
        [charge("s", 1, 4, 1)],
    )  # fmt: skip
    found = cover(Room(facts, NOW), use("x", "me", 2))
    assert gives(found) == {2: 2}
    assert [(one.charge.job_id, one.lost) for one in found.recalls] == [("s", (2, 3))]


def test_a_cap_that_is_cut():
    tenants = tree(p=None, me="p", sibling="p")
    jobs = [use("s", "sibling", 2), use("mine", "me", 2)]
    facts = facts_of(
        tenants, [owned(1, "me", 4)], [capped(1, "me", 2, {1})], jobs,
        [charge("s", 1, 2, 1), charge("mine", 1, 2, 2)],
    )  # fmt: skip
    [ended] = evaluate(facts, NOW).ended
    assert (ended.charge.job_id, ended.code, ended.lost) == ("s", FundingCode.CAP, (0, 1))


# --- parts of GPUs, several nodes, no budget


def test_parts_of_gpus_count_as_parts():
    room = Room(facts_of(tree(a=None), [owned(1, "a", 1.5)]), NOW)
    covers = fund(room, [use("x", "a", 1), use("y", "a", 1, milli=500), use("z", "a", 1, milli=1)])
    assert [one.funded for one in covers.values()] == [True, True, False]
    assert covers["z"].deficit == 0.001


def test_the_gpus_of_one_rank_may_have_several_payers():
    tenants = tree(p=None, a="p")
    room = Room(facts_of(tenants, [owned(1, "a", 3), owned(2, "p", 4)]), NOW)
    shares = tuple(Share(rank, H100, (2, 5, 7), 1000) for rank in (0, 1))
    gang = Use("gang", 1, "a", NOW, shares)
    found = cover(room, gang)
    assert [(one.rank, one.envelope, one.gpus) for one in found.charges] == [
        (0, 1, (2, 5, 7)), (1, 2, (2, 5, 7)),
    ]  # fmt: skip
    room = Room(facts_of(tenants, [owned(1, "a", 2), owned(2, "p", 4)]), NOW)
    found = cover(room, gang)
    assert [(one.rank, one.envelope, one.gpus) for one in found.charges] == [
        (0, 1, (2, 5)), (0, 2, (7,)), (1, 2, (2, 5, 7)),
    ]  # fmt: skip
    of = classes_of(gang, found.charges, room.facts)
    assert (of[0, 5], of[0, 7]) == (FundingClass.OWNED, FundingClass.SHARED)


def test_a_tenant_without_a_budget_asks_nobody():
    facts = facts_of({"a": Branch()}, [], (), [use("x", "a", 3), use("y", "nobody", 1)])
    funded = evaluate(facts, NOW)
    assert [split.owned for split in funded.splits.values()] == [3_000, 1_000]
    assert cover(Room(facts, NOW), use("z", "a", 3)) == Cover(True)
    left = facts._replace(charges=[charge("x", 1, 3, 1)], envelopes={1: owned(1, "a", 3)})
    assert [one.charge.job_id for one in evaluate(left, NOW).ended] == ["x"], "it left its budget"
