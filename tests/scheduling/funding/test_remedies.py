"""What would have somebody pay for a job: it does."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.funding import FundingTerms, Lending, Sharing, WhenUnfunded
from longshore.scheduling.funding import tried
from longshore.scheduling.funding.cover import Cover, cover
from longshore.scheduling.funding.evaluate import evaluate, evaluated
from longshore.scheduling.funding.explain import Helps, Remedy, explain
from longshore.scheduling.funding.facts import Capped, Charge, Facts, Use
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.tried import Turn
from longshore.scheduling.funding.turns import fund
from tests.support.funding_scenes import (
    HOUR,
    NOW,
    WAITING,
    applied,
    borrowing,
    capped,
    facts_of,
    owned,
    tree,
    universes,
    use,
)

GONE = NOW + HOUR / 2


def raised(facts: Facts, by: Mapping[int, float]) -> list[Capped]:
    return [
        cap._replace(
            spec=cap.spec.model_copy(update={"gpus": cap.spec.gpus + by.get(cap.id, 0.0)})
        )
        for cap in facts.caps
    ]


def below(facts: Facts, tenant: str, top: str) -> bool:
    seen: str | None = tenant
    while seen is not None:
        if seen == top:
            return True
        seen = facts.tenants[seen].parent
    return False


def done(facts: Facts, use: Use, remedy: Remedy) -> tuple[Facts, Use, datetime]:
    """What a remedy says, carried out."""
    at, terms = NOW, use.terms
    match remedy.what:
        case Helps.FEWER:
            (share,) = use.shares
            assert remedy.gpus is not None
            assert remedy.gpus < len(share.gpus)
            fewer = share._replace(gpus=share.gpus[: int(remedy.gpus)])
            use = use._replace(shares=(fewer,))
        case Helps.MAX_BORROW:
            terms = terms.model_copy(update={"max_borrow": -int(-(remedy.gpus or 0) // 1)})
        case Helps.SPONSORS:
            most = remedy.max_borrow or terms.max_borrow
            terms = FundingTerms(allow_borrow=True, sponsors=remedy.tenants, max_borrow=most)
        case Helps.LENDING:
            one = facts.envelopes[remedy.envelope or 0]
            assert one.spec.lending is not None
            lending = one.spec.lending.model_copy(update={"max": remedy.gpus})
            one = one._replace(spec=one.spec.model_copy(update={"lending": lending}))
            facts = facts._replace(envelopes={**facts.envelopes, one.id: one})
        case Helps.BUDGET if remedy.envelope is not None:
            one = facts.envelopes[remedy.envelope]
            one = one._replace(spec=one.spec.model_copy(update={"gpus": remedy.gpus}))
            facts = facts._replace(envelopes={**facts.envelopes, one.id: one})
        case Helps.BUDGET:
            new = owned(99, use.tenant, remedy.gpus or 0, gpu_type=remedy.gpu_type)
            over = [
                cap._replace(envelopes=cap.envelopes | {99})
                if below(facts, use.tenant, cap.tenant)
                else cap
                for cap in facts.caps
            ]
            facts = facts._replace(envelopes={**facts.envelopes, 99: new}, caps=over)
        case Helps.CAP:
            by = {remedy.cap or 0: remedy.gpus or 0, **dict(remedy.other_caps)}
            facts = facts._replace(caps=raised(facts, by))
        case Helps.PREEMPTIBLE:
            use = use._replace(preemptible=True)
        case Helps.ENDS | Helps.LATER:
            assert remedy.at is not None
            at = remedy.at
            if remedy.what is Helps.ENDS:
                charges = [charge for charge in facts.charges if charge.job_id != "j0"]
                uses = [each for each in facts.uses if each.job_id != "j0"]
                facts = facts._replace(uses=uses, charges=charges)
        case Helps.RUN_UNFUNDED:
            pass
    return facts, use._replace(terms=terms), at


@given(
    universes(),
    st.sampled_from(("a", "b")),
    st.integers(1, 4),
    st.sampled_from((1000, 1000, 500)),
    st.sampled_from((None, 1, 2)),
    st.booleans(),
)
def test_each_remedy_helps(
    facts: Facts, tenant: str, gpus: int, milli: int, most: int | None, preemptible: bool
) -> None:
    facts = applied(facts, evaluate(facts, NOW))
    terms = borrowing("b" if tenant == "a" else "a", most=most) if most else None
    wanted = use("w", tenant, gpus, milli=milli, terms=terms, preemptible=preemptible)
    found = explain(Room(facts, NOW), wanted, {"j0": GONE})
    assert found.cover.funded or gpus * milli / 1000 >= found.cover.deficit > 0
    for remedy in found.remedies:
        if remedy.what is Helps.RUN_UNFUNDED:
            continue
        changed, asking, at = done(facts, wanted, remedy)
        room = Room(changed, at)
        if changed is not facts or at > NOW:  # what runs with no payer takes of it first
            _, room = evaluated(changed, at)
        assert cover(room, asking).funded, remedy


def told(facts: Facts, wanted: Use, ends: Mapping[str, datetime] | None = None) -> list[Remedy]:
    return list(explain(Room(facts, NOW), wanted, ends or {}).remedies)


def paid(job: str, envelope: int, gpus: int) -> Charge:
    return Charge(job, 1, 0, envelope, tuple(range(gpus)), 1000, False, NOW - HOUR, 1)


def test_a_new_envelope_under_a_cap_that_is_used_up_is_no_help():
    envelopes, caps = [owned(1, "root", 8)], [capped(1, "root", 4, [1])]
    facts = facts_of(
        tree(root=None, red="root"), envelopes, caps, [use("r", "root", 4)], [paid("r", 1, 4)]
    )
    assert told(facts, use("w", "red", 4, where=WAITING)) == [Remedy(Helps.CAP, gpus=4, cap=1)]


def test_what_runs_with_no_payer_has_its_part_of_a_larger_envelope():
    runs = [use("one", "red", 4), use("idle", "red", 2)]
    facts = facts_of(tree(red=None), [owned(1, "red", 4)], (), runs, [paid("one", 1, 4)])
    wanted = use("w", "red", 2, where=WAITING)
    assert told(facts, wanted) == [Remedy(Helps.BUDGET, gpus=8, envelope=1)]


def test_two_caps_that_are_both_too_low_are_raised_together():
    caps = [capped(1, "root", 2, [1]), capped(2, "red", 3, [1])]
    facts = facts_of(tree(root=None, red="root"), [owned(1, "red", 8)], caps)
    assert told(facts, use("w", "red", 8, where=WAITING)) == [
        Remedy(Helps.FEWER, gpus=2), Remedy(Helps.CAP, gpus=6, cap=1, other_caps=((2, 5),)),
    ]  # fmt: skip


def test_a_cap_is_raised_by_no_more_than_is_needed():
    """3 of the 8 are paid for by an envelope that is under no cap, and comes after it."""
    envelopes = [owned(1, "red", 8), owned(2, "red", 3, sharing=Sharing.NONE)]
    facts = facts_of(tree(red=None), envelopes, [capped(1, "red", 4, [1])])
    helps = told(facts, use("w", "red", 8, where=WAITING))
    assert helps == [Remedy(Helps.FEWER, gpus=7), Remedy(Helps.CAP, gpus=1, cap=1)]


@pytest.mark.parametrize(
    ("gpus", "over", "last", "raised"),
    [
        # Beside the last, which is under none: 1 + 5 + 3, so that the first cap may stay.
        (9, (1, 1, 1), 3, ((2, 4), (3, 4))),
        # 4 + 3 + 1: what the last one gives the second need not, so that the third cap may stay.
        (8, (1, 2, 3), 1, ((1, 3), (2, 1))),
    ],
)
def test_of_several_caps_only_those_are_raised_that_have_to_be_and_by_no_more(
    gpus: int, over: tuple[int, ...], last: int, raised: tuple[tuple[int, int], ...]
):
    envelopes = [
        owned(1, "red", 4, gpu_type="H100"), owned(2, "red", 6),
        owned(3, "red", last, sharing=Sharing.NONE),
    ]  # fmt: skip
    of = ([1], [2], [2])
    caps = [capped(id, "red", over[id - 1], of[id - 1]) for id in (1, 2, 3)]
    helps = told(facts_of(tree(red=None), envelopes, caps), use("w", "red", gpus, where=WAITING))
    (found,) = [each for each in helps if each.what is Helps.CAP]
    assert ((found.cap, found.gpus), *found.other_caps) == raised


def test_caps_are_raised_together_where_those_that_it_needs_by_itself_go_to_others_first():
    """By itself it needs the second cap alone: but that is for the one ahead, who wants 3."""
    envelopes = [owned(1, "red", 4, sharing=Sharing.NONE), owned(2, "red", 5)]
    caps = [capped(1, "red", 2, [1]), capped(2, "red", 2, [1, 2]), capped(3, "red", 4, [2])]
    facts = facts_of(tree(red=None), envelopes, caps)
    wanted = use("w", "red", 5, where=WAITING)
    ahead = [use("x", "red", 3, where=WAITING)]
    room = Room(facts, NOW)
    fund(room, ahead)
    helps = explain(room, wanted, {}, ahead).remedies
    (found,) = [each for each in helps if each.what is Helps.CAP]
    assert ((found.cap, found.gpus), *found.other_caps) == ((1, 5), (2, 6))
    _, then = evaluated(facts._replace(caps=raised(facts, {1: 5, 2: 6})), NOW)
    fund(then, ahead)
    assert cover(then, wanted).funded


def test_no_more_sponsors_are_named_than_are_needed():
    lending = Lending(to=("red",), max=9)
    envelopes = [
        owned(1, "bank", 2, lending=lending), owned(2, "fund", 4, lending=lending),
        owned(3, "rich", 1, lending=lending),
    ]  # fmt: skip
    facts = facts_of(tree(red=None, bank=None, fund=None, rich=None), envelopes)

    def asked(gpus: int, *sponsors: str) -> tuple[str, ...]:
        terms = borrowing(*sponsors) if sponsors else None
        helps = told(facts, use("w", "red", gpus, where=WAITING, terms=terms))
        return next(each.tenants for each in helps if each.what is Helps.SPONSORS)

    assert asked(4) == ("fund",)
    assert asked(6) == ("bank", "fund")
    assert asked(7) == ("bank", "fund", "rich")
    assert asked(5, "rich") == ("rich", "fund"), "who is a sponsor already stays one"


def test_the_end_of_a_job_is_no_help_after_the_end_of_the_envelope():
    runs, charges = [use("r", "red", 4)], [paid("r", 1, 4)]
    facts = facts_of(tree(red=None), [owned(1, "red", 4, end=NOW + HOUR)], (), runs, charges)
    wanted = use("w", "red", 4, where=WAITING)
    for end, helps in ((NOW + HOUR / 2, True), (NOW + 2 * HOUR, False)):
        remedies = told(facts, wanted, {"r": end})
        assert (Remedy(Helps.ENDS, at=end) in remedies) is helps


def test_other_sponsors_are_asked_within_what_a_job_may_borrow():
    envelopes = [owned(2, "bank", 8, lending=Lending(to=("red",), max=8))]
    facts = facts_of(tree(red=None, bank=None, cash=None), [owned(1, "red", 2), *envelopes])
    wanted = use("w", "red", 4, where=WAITING, terms=borrowing("cash", most=2))
    (ask,) = (one for one in told(facts, wanted) if one.what is Helps.SPONSORS)
    assert ask == Remedy(Helps.SPONSORS, gpus=2, tenants=("bank",))
    wanted = use("w", "red", 5, where=WAITING, terms=borrowing("cash", most=2))
    (ask,) = (one for one in told(facts, wanted) if one.what is Helps.SPONSORS)
    assert ask == Remedy(Helps.SPONSORS, gpus=3, tenants=("bank",), max_borrow=3)


def test_fewer_parts_are_told_as_a_number_of_parts():
    facts = facts_of(tree(red=None), [owned(1, "red", 1.5)])
    helps = told(facts, use("w", "red", 4, where=WAITING, milli=500))
    assert helps[0] == Remedy(Helps.FEWER, gpus=3)


def queued(facts: Facts, *queue: Use, ends: Mapping[str, datetime] | None = None) -> list[Remedy]:
    """What helps the last of a queue."""
    *ahead, wanted = queue
    room = Room(facts, NOW)
    fund(room, ahead)
    return list(explain(room, wanted, ends or {}, ahead).remedies)


@pytest.mark.parametrize("others", [1, 2, 20])
def test_those_ahead_who_have_no_payer_take_their_part_first(others: int):
    runs, charges = [use("r0", "red", 2)], [paid("r0", 1, 2)]
    facts = facts_of(tree(red=None), [owned(1, "red", 2)], (), runs, charges)
    queue = [use(f"r{n}", "red", 2, where=WAITING) for n in range(1, others + 2)]
    larger = Remedy(Helps.BUDGET, gpus=2 * (others + 2), envelope=1)
    assert queued(facts, *queue, ends={"r0": GONE}) == [larger], "r0's room is r1's"
    assert Remedy(Helps.ENDS, at=GONE) in queued(facts, queue[0], ends={"r0": GONE})


def test_the_end_after_which_enough_is_left_behind_those_ahead_is_told():
    runs = [use(f"r{n}", "red", 1) for n in range(12)]
    charges = [paid(one.job_id, 1, 1) for one in runs]
    facts = facts_of(tree(red=None), [owned(1, "red", 12)], (), runs, charges)
    queue = [use(f"w{n}", "red", 1, where=WAITING) for n in range(9)]
    ends = {f"r{n}": NOW + (n + 1) * HOUR for n in range(12)}
    assert Remedy(Helps.ENDS, at=NOW + 9 * HOUR) in queued(facts, *queue, ends=ends)


def test_a_cap_a_loan_and_an_opening_are_enough_for_those_ahead_too():
    first, second = (use(name, "red", 2, where=WAITING) for name in ("w1", "w2"))
    under = facts_of(tree(red=None), [owned(1, "red", 9)], [capped(1, "red", 1, [1])])
    assert Remedy(Helps.CAP, gpus=3, cap=1) in queued(under, first, second)
    lending = Lending(to=("red",), max=1)
    lent = facts_of(tree(red=None, bank=None), [owned(1, "bank", 9, lending=lending)])
    terms = borrowing("bank")
    asked = [one._replace(terms=terms) for one in (first, second)]
    assert Remedy(Helps.LENDING, gpus=4, envelope=1) in queued(lent, *asked)
    opens = [owned(1, "red", 2, start=NOW + HOUR), owned(2, "red", 2, start=NOW + 2 * HOUR)]
    later = facts_of(tree(red=None), opens)
    assert Remedy(Helps.LATER, at=NOW + 2 * HOUR) in queued(later, first, second)


def test_a_nearer_job_takes_its_own_back_of_those_ahead():
    facts = facts_of(tree(root=None, red="root", blue="root"), [owned(1, "red", 2)])
    ahead = use("b", "blue", 2, where=WAITING)
    wanted = use("w", "red", 4, where=WAITING)
    helps = queued(facts, ahead, wanted)
    assert Remedy(Helps.BUDGET, gpus=4, envelope=1) in helps, "blue is farther away"


def test_what_does_not_help_a_job_alone_is_not_tried_behind_a_queue(
    monkeypatch: pytest.MonkeyPatch,
):
    """No envelope helps below a cap that is used up: one look, however many wait ahead."""
    facts = facts_of(
        tree(red=None), [owned(1, "red", 8)], [capped(1, "red", 4, [1])],
        [use("r", "red", 4)], [paid("r", 1, 4)],
    )  # fmt: skip
    wanted = use("w", "red", 2, where=WAITING, terms=FundingTerms(unfunded=WhenUnfunded.WAIT))
    ahead = [wanted._replace(job_id=f"a{n}") for n in range(50)]
    turns: list[int] = []

    def funding(room: Room, queue: Sequence[Use]) -> dict[str, Cover]:
        turns.append(len(queue))
        return fund(room, queue)

    monkeypatch.setattr(tried, "fund", funding)
    turn = Turn(Room(facts, NOW), wanted, ahead)
    larger = facts.envelopes[1]
    spec = larger.spec

    def changed(more: int) -> Facts:
        size = spec.model_copy(update={"gpus": spec.gpus + more / 1000})
        return facts._replace(envelopes={1: larger._replace(spec=size)})

    assert turn.least(changed) is None
    assert turns == [50, 0]


def test_each_way_to_help_asks_whether_anybody_waits_for_the_answer():
    """Of a job for which many are tried: whichever look is the last, nothing comes after."""
    envelopes = [
        owned(1, "red", 2), owned(2, "red", 4, start=NOW + HOUR),
        owned(3, "bank", 9, lending=Lending(to=("red",), max=1)),
    ]  # fmt: skip
    caps = [capped(1, "red", 1, [1])]
    runs, charges = [use("r0", "red", 1)], [paid("r0", 1, 1)]
    facts = facts_of(tree(red=None, bank=None), envelopes, caps, runs, charges)
    wanted = use("w", "red", 3, where=WAITING, terms=borrowing("bank"))
    looks, last = [0], 10**9

    class Left(Exception):
        pass

    def go_on() -> None:
        looks[0] += 1
        if looks[0] == last:
            raise Left

    room = Room(facts, NOW)
    found = explain(room, wanted, {"r0": GONE}, go_on=go_on)
    assert Helps.LENDING in {each.what for each in found.remedies}
    assert looks[0] > 5
    for last in range(1, looks[0] + 1):
        looks[0] = 0
        with pytest.raises(Left):
            explain(room, wanted, {"r0": GONE}, go_on=go_on)
        assert looks == [last]
    assert explain(room, wanted, {"r0": GONE}) == found, "it took nothing"
