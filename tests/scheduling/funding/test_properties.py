"""What must hold of who pays, whoever asks."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.funding import FundingClass
from longshore.scheduling.funding.cover import cover, take
from longshore.scheduling.funding.evaluate import Funded, evaluate, evaluated
from longshore.scheduling.funding.facts import Charge, Facts
from longshore.scheduling.funding.kept import KeptFunding
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.split import classes_of, split_of
from longshore.scheduling.funding.turns import fund
from tests.support.funding_scenes import (
    HOUR,
    NOW,
    applied,
    drawn_uses,
    envelopes_of,
    universes,
    use,
    with_ids,
)
from tests.support.reference_funding import Plain, payers_of, plain_payers
from tests.support.searches import examples


def settled(facts: Facts) -> Facts:
    return applied(facts, evaluate(facts, NOW))


def check_sums(facts: Facts) -> None:
    """No envelope, cap or loan pays for more than it has, but for what had been lent before."""
    plain = Plain(facts._replace(charges=()), NOW)
    plain.charges = list(facts.charges)
    for id, owned in facts.envelopes.items():
        assert plain.left(id) >= 0
        assert owned.spec.lending is None or plain.lendable(id) >= 0
    assert all(plain.left_below(cap) >= 0 for cap in facts.caps)


@given(universes())
def test_a_plain_implementation_says_the_same(facts: Facts) -> None:
    assert payers_of(settled(facts).charges) == plain_payers(facts, NOW)


@given(universes(charged=False))
def test_no_more_is_paid_for_than_there_is(facts: Facts) -> None:
    check_sums(settled(facts))


@given(universes())
def test_every_gpu_is_of_one_class(facts: Facts) -> None:
    funded = evaluate(facts, NOW)
    after = applied(facts, funded)
    for one in facts.uses:
        charges = [charge for charge in after.charges if charge.job_id == one.job_id]
        split = funded.splits[one.job_id, 1]
        assert split == split_of(one, charges, facts)
        assert sum(split[:4]) == sum(share.amount for share in one.shares)
        assert min(split[:4]) >= 0
        counted: Counter[FundingClass] = Counter()
        each = {share.rank: share.milli for share in one.shares}
        for (rank, _), of in classes_of(one, charges, facts).items():
            counted[of] += each[rank]
        assert tuple(counted[of] for of in FundingClass) == split[:4]
        assert sum(amount for _, _, amount in split.payers) == sum(split[:3])


@given(universes())
def test_what_is_settled_stays(facts: Facts) -> None:
    after = settled(facts)
    again = evaluate(after, NOW)
    assert (again.ended, again.opened) == ((), ())


@given(universes())
def test_what_holds_is_never_moved(facts: Facts) -> None:
    """A charge ends for what is the matter with it, or for somebody nearer to the owner."""
    holds = payers_of(Plain(facts, NOW).charges)
    after = settled(facts)
    now_held = payers_of(after.charges)
    plain = Plain(after, NOW)
    steps = {(one.envelope, one.job_id): plain.steps(one) for one in after.charges}
    before = Plain(facts, NOW)
    moved = [charge for charge in before.charges for gpu in charge.gpus
             if now_held.get((charge.job_id, 1, charge.rank, gpu))
             != holds[charge.job_id, 1, charge.rank, gpu]]  # fmt: skip
    for charge in moved:
        below = {charge.envelope}.union(*(cap.envelopes for cap in before.caps(charge.envelope)))
        nearer = [at for (envelope, _), at in steps.items() if envelope in below]
        assert any((0, 0) <= at < before.steps(charge) for at in nearer)


@given(universes(), st.data())
def test_the_end_of_a_job_takes_from_nobody(facts: Facts, data: st.DataObject) -> None:
    """But for what somebody nearer takes back, who then has room for all that it wants."""
    after = settled(facts)
    gone = data.draw(st.sampled_from(after.uses))
    rest = after._replace(
        uses=[one for one in after.uses if one != gone],
        charges=[one for one in after.charges if one.job_id != gone.job_id],
    )
    funded = evaluate(rest, NOW)
    for one in funded.ended:
        assert one.for_job is not None
        new = [charge for charge in funded.opened if charge.job_id == one.for_job]
        plain = Plain(rest, NOW)
        assert min(map(plain.steps, new)) < plain.steps(one.charge)


@given(universes(), st.data())
def test_an_owner_has_at_once_what_relatives_have_of_its_own(
    facts: Facts, data: st.DataObject
) -> None:
    after = settled(facts)._replace(caps=())
    id = data.draw(st.sampled_from(sorted(after.envelopes)))
    owned = after.envelopes[id]
    plain = Plain(after, NOW)
    relatives = sum(
        charge.amount
        for charge in plain.charges
        if charge.envelope == id and plain.steps(charge) > (0, 0)
    )
    gpus = (plain.left(id) + relatives) // 1000
    if not gpus or owned.tenant not in after.tenants:
        return
    where = use("x", owned.tenant, gpus).shares[0].where
    place = where._replace(
        pool=owned.spec.pool or "pool",
        gpu_type=owned.spec.gpu_type or "H100",
        labels=frozenset(owned.spec.labels.items()),
    )
    wants = use("x", owned.tenant, gpus, where=place, preemptible=data.draw(st.booleans()))
    opens = not (owned.spec.start or NOW) > NOW and (owned.spec.end or NOW + HOUR) > NOW
    if opens:
        assert cover(Room(after, NOW), wants).funded


@given(universes(), st.data())
def test_a_cover_is_whole_and_taken_as_it_was_found(facts: Facts, data: st.DataObject) -> None:
    funded, room = evaluated(facts, NOW)
    after = applied(facts, funded)
    wants = data.draw(drawn_uses("x", sorted(facts.tenants)))
    found = cover(room, wants)
    assert cover(room, wants) == found, "it has taken nothing"
    plain = Plain(after, NOW)
    has_budget = facts.tenants[wants.tenant].budget_since is not None
    made = plain.cover(wants) if has_budget else []
    assert found.funded == (made is not None)
    assert (found.code is None) == found.funded
    if not has_budget or made is None:
        assert not found.charges
        assert found.funded or found.missing > 0
        return
    assert payers_of(found.charges) == payers_of(made)
    take(room, wants, found)
    held = [one.charge for held in room.held.values() for one in held.values()]
    assert payers_of(held) == payers_of(plain.charges)


@given(universes(), st.data())
def test_a_queue_is_paid_for_whole_and_without_too_much(facts: Facts, data: st.DataObject) -> None:
    """Whichever of its jobs then are placed."""
    funded, room = evaluated(facts, NOW)
    after = applied(facts, funded)
    names = sorted(facts.tenants)
    queue = [
        data.draw(drawn_uses(f"w{number}", names))
        for number in range(data.draw(st.integers(1, 6)))
    ]
    covers = fund(room, queue)
    charges: list[Charge] = list(after.charges)
    placed = [one for one in queue if data.draw(st.booleans())]
    lost = {
        (recall.charge.job_id, recall.charge.rank, gpu)
        for one in placed
        for recall in covers[one.job_id].recalls
        for gpu in recall.lost
    }
    assert all(job_id in {one.job_id for one in facts.uses} for job_id, _, _ in lost)
    left = [
        charge._replace(gpus=gpus)
        for charge in charges
        if (gpus := tuple(g for g in charge.gpus if (charge.job_id, charge.rank, g) not in lost))
    ]
    for one in placed:
        found = covers[one.job_id]
        paid = sum(charge.amount for charge in found.charges)
        has_budget = facts.tenants[one.tenant].budget_since is not None
        whole = sum(share.amount for share in one.shares)
        assert paid == (whole if found.funded and has_budget else 0)
        left += found.charges
    before = Plain(after._replace(charges=()), NOW)
    before.charges = list(after.charges)
    plain = Plain(after._replace(charges=()), NOW)
    plain.charges = left
    for id in facts.envelopes:  # less than nothing only where contracts had taken more than all
        assert plain.left(id) >= min(before.left(id), 0)
    for cap in facts.caps:
        assert plain.left_below(cap) >= min(before.left_below(cap), 0)


@examples(30)
@given(universes(), st.data())
def test_kept_from_change_to_change_it_is_the_same(facts: Facts, data: st.DataObject) -> None:
    names, now = sorted(facts.tenants), NOW
    kept = KeptFunding(facts, now)
    known = applied(facts, kept.everything())
    for number in range(data.draw(st.integers(1, 5))):
        what = data.draw(st.sampled_from(("end", "start", "change", "advance")))
        if what == "end" and known.uses:
            gone = data.draw(st.sampled_from(known.uses))
            kept.end(gone.job_id, gone.attempt)
            known = known._replace(
                uses=[one for one in known.uses if one != gone],
                charges=[one for one in known.charges if one.job_id != gone.job_id],
            )
        elif what == "start":
            new = data.draw(drawn_uses(f"n{number}", names))
            kept.start(new)
            known = known._replace(uses=[*known.uses, new])
        elif what == "change":
            id = data.draw(st.sampled_from(sorted(known.envelopes)))
            other = data.draw(envelopes_of(id, names))
            other = other._replace(tenant=known.envelopes[id].tenant)
            kept.change(other)
            known = known._replace(envelopes={**known.envelopes, id: other})
        else:
            now += HOUR
            kept.advance(now)
        whole = evaluate(known, now)
        changes = kept.changes()
        expected = applied(known, whole)
        known = applied_by_gpus(known, changes)
        assert payers_of(known.charges) == payers_of(expected.charges)
        assert codes(changes) == codes(whole)
        assert kept.everything().splits == whole.splits
        for attempt, split in changes.splits.items():
            assert split == whole.splits[attempt]


def codes(funded: Funded) -> list[tuple[object, ...]]:
    return [(one.charge._replace(id=0), one.lost, one.code) for one in funded.ended]


def applied_by_gpus(facts: Facts, funded: Funded) -> Facts:
    """As `applied`, for one who does not know the ids."""
    ended = {one.charge._replace(id=0) for one in funded.ended}
    before = [one for one in facts.charges if one._replace(id=0) not in ended]
    assert len(before) == len(facts.charges) - len(ended)
    return facts._replace(charges=with_ids([*before, *funded.opened]))
