"""Who pays in one pool, before a plan and after it."""

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

import pytest

from longshore.models.funding import (
    Envelope,
    Foreseen,
    FundingTerms,
    Payer,
    WhenUnfunded,
)
from longshore.scheduling.funding import taken_from
from longshore.scheduling.funding.cover import Cover, cover
from longshore.scheduling.funding.facts import (
    Branch,
    Charge,
    Facts,
    Owned,
    Share,
    Use,
    Where,
)
from longshore.scheduling.funding.ladder import OWN, PARENT, Tree
from longshore.scheduling.funding.payers import behind_owners
from longshore.scheduling.funding.pool import Asks, next_change, pool_funding, settled
from longshore.scheduling.funding.room import Room
from tests.support.packing import NOW, a_job

WHERE = Where("pool", "H100", frozenset())
BEFORE = NOW - timedelta(hours=1)


def an_envelope(id: int, owner: str, gpus: float, **fields: object) -> Owned:
    spec = {"name": f"e{id}", "gpus": gpus, "start": BEFORE, "end": None, **fields}
    return Owned(id, owner, Envelope.model_validate(spec))


def facts(*envelopes: Owned, uses: tuple[Use, ...] = ()) -> Facts:
    tenants = {
        "root": Branch(None, BEFORE), "red": Branch("root", BEFORE),
        "blue": Branch("root", BEFORE), "free": Branch("root"),
    }  # fmt: skip
    return Facts(tenants, {owned.id: owned for owned in envelopes}, uses=uses)


def a_use(job: str, owner: str, gpus: int, since: int = 0) -> Use:
    shares = (Share(0, WHERE, tuple(range(gpus)), 1000),)
    return Use(job, 1, owner, NOW + timedelta(microseconds=since), shares)


def paid_for(charges: Iterable[Charge]) -> dict[str, int]:
    """Return for how many GPUs of each job is paid."""
    found: Counter[str] = Counter()
    for charge in charges:
        found[charge.job_id] += len(charge.gpus)
    return dict(found)


def test_each_job_takes_its_room_at_its_turn():
    queue = [a_job(name, 2, tenant="red") for name in ("a", "b", "c")]
    queue.append(a_job("free", 8, tenant="free"))
    found = pool_funding(facts(an_envelope(1, "red", 4)), "pool", queue, {}, NOW)
    assert set(found.unfunded) == {"c"}
    assert found.held == frozenset()
    assert found.payers["a"] == Payer(frozenset({"red"}), True, "red")
    assert found.payers["c"] == Payer(frozenset({"red"}), False, "red")
    assert "free" not in found.payers
    assert found.unfunded["c"].startswith("no budget pays for 2 GPUs: ")


def test_who_has_to_be_paid_for_is_held():
    asks = {"a": Asks(FundingTerms(unfunded=WhenUnfunded.WAIT)), "b": Asks(preemptible=False)}
    queue = [a_job(name, 2, tenant="blue") for name in ("a", "b", "c")]
    found = pool_funding(facts(an_envelope(1, "red", 8)), "pool", queue, asks, NOW)
    assert found.held == {"b"}, "a relative shares, and may take it back"
    assert found.payers["a"].shared == {"red"}


def test_a_relative_that_waits_gives_way_to_the_owner_behind_it():
    queue = [a_job("guest", 4, tenant="blue"), a_job("owner", 4, tenant="red")]
    found = pool_funding(facts(an_envelope(1, "red", 4)), "pool", queue, {}, NOW)
    assert set(found.unfunded) == {"guest"}


def test_a_job_that_begins_is_paid_for_whole_or_not_at_all():
    given = facts(an_envelope(1, "red", 6))
    both = (a_use("guest", "blue", 4, 1), a_use("owner", "red", 4, 2))
    found = settled(given, both, NOW)
    assert paid_for(found.opened) == {"owner": 4}
    assert paid_for(settled(given, both[:1], NOW).opened) == {"guest": 4}


def test_a_job_begins_on_the_envelopes_that_were_foreseen_for_it():
    """What is nearer was foreseen for one that still waits: it would take that back."""
    tenants = {
        "top": Branch(None, BEFORE), "aunt": Branch("top", BEFORE), "near": Branch("top", BEFORE),
        "far": Branch("near", BEFORE),
    }  # fmt: skip
    both = (an_envelope(1, "top", 2), an_envelope(2, "aunt", 4))
    given = Facts(tenants, {owned.id: owned for owned in both})
    queue = [a_job("far", 2, tenant="far"), a_job("near", 3, tenant="near")]
    found = pool_funding(given, "pool", queue, {}, NOW)
    assert found.foreseen["far"] == (Foreseen(2, 2, False),)
    assert set(found.foreseen["near"]) == {Foreseen(1, 2, False), Foreseen(2, 1, False)}
    begins = (a_use("far", "far", 2),)
    opened = settled(given, begins, NOW, foreseen=found.foreseen).opened
    assert [charge.envelope for charge in opened] == [2]
    runs = given._replace(uses=begins, charges=opened)
    assert pool_funding(runs, "pool", queue[1:], {}, NOW).recalls == {}
    # Where it does not hold any more, who begins is covered by what there is.
    for wrong in (Foreseen(2, 1, False), Foreseen(2, 2, False)):
        less = an_envelope(2, "aunt", 1)
        fewer = given._replace(envelopes={**given.envelopes, 2: less})
        opened = settled(fewer, begins, NOW, foreseen={"far": (wrong,)}).opened
        assert [(charge.envelope, len(charge.gpus)) for charge in opened] == [(1, 2)]
    elsewhere = {1: both[0], 2: an_envelope(2, "aunt", 4, labels={"region": "us"})}
    opened = settled(given._replace(envelopes=elsewhere), begins, NOW, foreseen=found.foreseen)
    assert [charge.envelope for charge in opened.opened] == [1]


def test_a_gang_begins_on_what_was_foreseen_across_its_nodes():
    given = facts(an_envelope(1, "red", 3), an_envelope(2, "root", 3), an_envelope(3, "red", 9))
    shares = tuple(Share(rank, WHERE, (0, 1), 1000) for rank in range(2))
    foreseen = {"gang": (Foreseen(2, 3, False), Foreseen(1, 1, False))}
    opened = settled(given, (Use("gang", 1, "red", NOW, shares),), NOW, foreseen=foreseen).opened
    assert sorted((one.rank, one.envelope, one.gpus) for one in opened) == [
        (0, 2, (0, 1)), (1, 1, (1,)), (1, 2, (0,)),
    ]  # fmt: skip


def test_for_whom_others_gave_way_has_its_room_before_others():
    queue = [a_job(name, 4, tenant="red") for name in ("old", "won")]
    given = facts(an_envelope(1, "red", 4))
    assert set(pool_funding(given, "pool", queue, {}, NOW).unfunded) == {"won"}
    won = frozenset({"won"})
    for found in (
        pool_funding(given, "pool", queue, {}, NOW, first=won),
        pool_funding(given, "pool", queue, {}, NOW, freed=won),
    ):
        assert set(found.unfunded) == {"old"}
        assert found.first == {"won"}
    # Among others it comes first only where no relative's own job would take that back.
    queue = [a_job("own", 4, tenant="red", priority=2), a_job("won", 2, tenant="blue", priority=9)]
    given = facts(an_envelope(1, "red", 8))
    found = pool_funding(given, "pool", queue, {}, NOW, freed=frozenset({"won"}))
    assert found.first == frozenset()
    assert found.turn("own") < found.turn("won")


def test_the_next_change_is_the_first_begin_or_end_to_come():
    later = NOW + timedelta(hours=2)
    soon = NOW + timedelta(hours=1)
    assert next_change(facts(an_envelope(1, "red", 4)), NOW) is None
    given = facts(an_envelope(1, "red", 4, end=later), an_envelope(2, "red", 4, start=soon))
    assert next_change(given, NOW) == timedelta(hours=1)
    assert next_change(given, soon) == timedelta(hours=1)


def test_a_job_of_a_lower_class_is_known_whose_room_would_do():
    queue = [a_job("high", 4, tenant="red", priority=9)]
    running = (a_use("low", "red", 4), a_use("small", "red", 1))
    given = facts(an_envelope(1, "red", 5), uses=running)
    found = pool_funding(given, "pool", queue, {}, NOW)
    assert found.takes_over == {"high": frozenset({"low"})}


def test_who_comes_behind_whom():
    """Behind the own jobs of its relatives, whatever the class: they may have it stopped."""
    given = facts(an_envelope(1, "root", 9), an_envelope(2, "red", 3))
    queue = [
        a_job(name, 2, tenant=tenant)
        for name, tenant in (("b", "blue"), ("f", "free"), ("r", "red"), ("top", "root"))
    ]
    found = pool_funding(given, "pool", queue, {}, NOW)
    assert found.payers["b"].shared == {"root"}
    assert (found.payers["b"].far, found.payers["r"].far) == (PARENT, OWN)
    assert found.behind == {"b": 1}
    assert [found.turn(job.id) for job in queue] == [1, 0, 0, 0]
    assert pool_funding(given, "pool", queue[:2], {}, NOW).behind == {}


def test_nobody_loses_a_payer_for_a_job_that_starts_unfunded():
    """`job` has two GPUs of its own tenant's, one of them taken back of a guest, and one of its
    parent's, which the guest has a right to in its turn."""
    tenants = {"a": Branch(None, BEFORE), "b": Branch("a", BEFORE), "d": Branch("a", BEFORE)}
    guest = a_use("guest", "d", 1)._replace(since=BEFORE)
    paid = Charge("guest", 1, 0, 1, (0,), 1000, False, BEFORE, 7)
    given = Facts(tenants, {1: an_envelope(1, "b", 1), 2: an_envelope(2, "a", 1)},
                  uses=(guest,), charges=(paid,))  # fmt: skip
    found = settled(given, (a_use("job", "b", 2),), NOW, {"job": 1})
    assert found.ended == found.opened == ()
    assert found.splits["guest", 1].shared == 1000
    assert found.splits["job", 1].unfunded == 2000


def test_who_was_refused_has_the_room_of_one_before_it_that_loses_its_own():
    """`wide` cannot do with what is left of red's envelope once `owner` has its part; `small` can,
    and comes before `far`, which is farther away."""
    tenants = {"root": Branch(None, BEFORE), "red": Branch("root", BEFORE),
               "blue": Branch("root", BEFORE), "kid": Branch("blue", BEFORE)}  # fmt: skip
    given = Facts(tenants, {1: an_envelope(1, "red", 2)})
    queue = [a_job("wide", 2, tenant="blue"), a_job("small", 1, tenant="blue"),
             a_job("owner", 1, tenant="red"), a_job("far", 1, tenant="kid")]  # fmt: skip
    asks = {"small": Asks(FundingTerms(unfunded=WhenUnfunded.WAIT))}
    for some in (queue[:3], queue):
        found = pool_funding(given, "pool", some, asks, NOW)
        assert set(found.unfunded) == {"wide", "far"} & {job.id for job in some}
        assert found.held == frozenset()


def test_how_near_tenants_are_is_asked_by_tenant_and_not_by_job(monkeypatch: pytest.MonkeyPatch):
    asked = Counter[tuple[str, str]]()
    steps = Tree.steps

    def counted(tree: Tree, tenant: str, owner: str) -> int | None:
        asked[tenant, owner] += 1
        return steps(tree, tenant, owner)

    tree = Tree(facts(an_envelope(1, "red", 1)).tenants)
    waiting = {f"own-{n}": Payer(frozenset({"red"}), True, "red") for n in range(50)}
    waiting |= {f"guest-{n}": Payer(frozenset({"red"}), True, "blue") for n in range(50)}
    monkeypatch.setattr(Tree, "steps", counted)
    assert behind_owners(tree, waiting) == {f"guest-{n}": 1 for n in range(50)}
    assert asked == {("blue", "red"): 1}


def test_of_jobs_that_are_paid_for_alike_one_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    uses = tuple(a_use(f"r{n}", "red", 1)._replace(since=BEFORE) for n in range(30))
    paid = tuple(Charge(use.job_id, 1, 0, 1, (0,), 1000, False, BEFORE, n + 1)
                 for n, use in enumerate(uses))  # fmt: skip
    given = facts(an_envelope(1, "red", 30, sharing="none"), uses=uses)._replace(charges=paid)
    looks = 0

    def counted(room: Room, use: Use) -> Cover:
        nonlocal looks
        looks += 1
        return cover(room, use)

    monkeypatch.setattr(taken_from, "cover", counted)
    found = pool_funding(given, "pool", [a_job("w", 1, tenant="red")], {}, NOW)
    assert len(found.takes_over["w"]) == 30
    assert looks == 1
