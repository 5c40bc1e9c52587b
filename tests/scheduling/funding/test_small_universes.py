"""All that can happen in small universes: 3 tenants, 2 envelopes, 4 jobs, up to 6 events; the
envelopes of each two of the tenants, with a cap and without.

Each state is visited once, however it was come to. In a state that is settled, whatever happens
next is decided three times: kept from before, at once, and by a plain implementation.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import product
from typing import NamedTuple

import pytest

from longshore.models.funding import Lending, Sharing
from longshore.scheduling.funding.evaluate import Funded, evaluate
from longshore.scheduling.funding.facts import Branch, Capped, Charge, Facts, Owned, Use
from longshore.scheduling.funding.kept import KeptFunding
from longshore.scheduling.funding.split import classes_of
from tests.support.funding_scenes import (
    HOUR,
    NOW,
    applied,
    borrowing,
    capped,
    facts_of,
    owned,
    tree,
    use,
)
from tests.support.reference_funding import Plain, Steps, payers_of, plain_payers

TREES = {
    "family": tree(a=None, b="a", c="a"),
    "line": tree(a=None, b="a", c="b"),
    "strangers": tree(a=None, b="a", c=None),
}
OWNERS = list(product("abc", repeat=2))
SIZES = [(1, 2, None), (2, 3, None), (2, 3, 4)]
"""Of the envelopes, and of a cap over both."""
EVENTS = 6
MINUTE = timedelta(minutes=1)
State = frozenset[tuple[object, ...]]


class Universe(NamedTuple):
    tenants: dict[str, Branch]
    envelopes: tuple[Owned, ...]
    caps: tuple[Capped, ...]
    jobs: tuple[Use, ...]


def all_of() -> list[Universe]:
    """Each tree with each two owners, sizes and caps; the second is lent, and closes for an
    hour."""
    found: list[Universe] = []
    for tenants, owners, (*sizes, most) in product(TREES.values(), OWNERS, SIZES):
        lending = Lending(to=("a", "b", "c"), max=1)
        envelopes = (
            owned(1, owners[0], sizes[0]),
            owned(2, owners[1], sizes[1], lending=lending),
        )
        jobs = (
            use("j1", "a", 1), use("j2", "b", 2), use("j3", "c", 1, terms=borrowing("b", most=1)),
            use("j4", "c", 2, preemptible=False),
        )  # fmt: skip
        caps = (capped(1, "a", most, (1, 2)),) if most else ()
        found.append(Universe(tenants, envelopes, caps, jobs))
    return found


def events(universe: Universe, facts: Facts, now: datetime) -> Iterator[tuple[str, Facts]]:
    """What can happen next: a job begins or ends, an envelope closes, opens, shrinks or is no
    longer shared."""
    running = {one.job_id for one in facts.uses}
    for job in universe.jobs:
        if job.job_id in running:
            yield (
                f"end {job.job_id}",
                facts._replace(
                    uses=[one for one in facts.uses if one.job_id != job.job_id],
                    charges=[one for one in facts.charges if one.job_id != job.job_id],
                ),
            )
        else:
            begun = [*facts.uses, job._replace(since=now)]
            yield f"begin {job.job_id}", facts._replace(uses=begun)
    for first in universe.envelopes:
        is_now = facts.envelopes[first.id]
        others = [
            first._replace(spec=first.spec.model_copy(update=update))
            for update in ({}, {"gpus": 1.0}, {"start": NOW + HOUR}, {"sharing": Sharing.NONE})
        ]
        lent = sum(one.amount for one in facts.charges if one.lent and one.envelope == first.id)
        for number, other in enumerate(others):
            if other != is_now and other.spec.gpus * 1000 >= lent:
                changed = {**facts.envelopes, first.id: other}
                yield f"change {first.id} to {number}", facts._replace(envelopes=changed)


def state_of(facts: Facts) -> State:
    """What tells states apart: who runs, who pays, since when in order, and what envelopes are."""
    times = sorted({one.since for one in (*facts.uses, *facts.charges)})
    order = {since: place for place, since in enumerate(times)}
    return frozenset(
        [
            *(("runs", order[one.since], one.job_id) for one in facts.uses),
            *((order[one.since], one.envelope, one.job_id, one.gpus) for one in facts.charges),
            *(
                ("is", one.id, one.spec.gpus, one.spec.start, one.spec.sharing)
                for one in facts.envelopes.values()
            ),
        ]
    )


def explore(universe: Universe, depth: int) -> int:
    """Visit each state that so many events lead to; return how many there are."""
    first = facts_of(universe.tenants, universe.envelopes, universe.caps)
    seen = {state_of(first)}
    front = [first]
    for number in range(depth):
        now = NOW + number * MINUTE
        following: list[Facts] = []
        for facts in front:
            for event, after in events(universe, facts, now):
                settled = check(facts, event, after, now)
                if (state := state_of(settled)) not in seen:
                    seen.add(state)
                    following.append(settled)
        front = following
    return len(seen)


def check(before: Facts, event: str, after: Facts, now: datetime) -> Facts:
    """Return what is settled after an event; all that must hold of it does."""
    funded = evaluate(after, now)
    settled = applied(after, funded)
    found = payers_of(settled.charges)
    assert found == plain_payers(after, now), event
    again = evaluate(settled, now)
    assert (again.ended, again.opened) == ((), ()), event
    kept = KeptFunding(before, now - MINUTE)
    kept.changes()
    kept.advance(now)
    happen(kept, event, after)
    assert found == payers_of([paid.charge for held in kept.room.held.values()
                               for paid in held.values()]), event  # fmt: skip
    plain = Plain(settled, now)
    assert payers_of(plain.charges) == found, "all of it holds"
    assert all(plain.left(id) >= 0 for id in settled.envelopes), event
    assert all(plain.left_below(cap) >= 0 for cap in settled.caps), event
    assert all(is_of_one_class(one, settled) for one in settled.uses), event
    if event.startswith("end"):
        assert all(loses_to_who_is_nearer(after, funded, now)), event
    return settled


def is_of_one_class(use: Use, facts: Facts) -> bool:
    """Return whether each GPU that is paid for is the job's own, and is paid for once."""
    paid = Counter(
        (one.rank, gpu) for one in facts.charges if one.job_id == use.job_id for gpu in one.gpus
    )
    return max(paid.values(), default=1) == 1 and paid.keys() <= classes_of(use, (), facts).keys()


def happen(kept: KeptFunding, event: str, after: Facts) -> None:
    what, name, *_ = event.split()
    if what == "end":
        kept.end(name, 1)
    elif what == "begin":
        kept.start(next(one for one in after.uses if one.job_id == name))
    else:
        kept.change(after.envelopes[int(name)])


def loses_to_who_is_nearer(facts: Facts, funded: Funded, now: datetime) -> Iterator[bool]:
    plain = Plain(facts, now)
    for one in funded.ended:
        new: list[Charge] = [each for each in funded.opened if each.job_id == one.for_job]
        nearest: Steps = min(map(plain.steps, new))
        yield nearest < plain.steps(one.charge)


@pytest.mark.parametrize("number", range(0, len(all_of()), 11))
def test_some_small_universes(number: int) -> None:
    assert explore(all_of()[number], 3) > 100


@pytest.mark.exhaustive  # minutes; the test above has some of them
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(len(all_of())))
def test_all_small_universes(number: int) -> None:
    assert explore(all_of()[number], EVENTS) > 1000


def test_an_envelope_that_closes_makes_room_below_its_cap() -> None:
    """Who runs longest has it, before those who have just lost their payer."""
    envelopes = (owned(1, "a", 2), owned(2, "c", 3))
    jobs = [
        use("j1", "b", 2)._replace(since=NOW - 3 * MINUTE),
        use("j2", "c", 3)._replace(since=NOW - 2 * MINUTE),
    ]
    facts = facts_of(TREES["family"], envelopes, [capped(1, "a", 4, (1, 2))], jobs)
    charges = [
        Charge("j1", 1, 0, 1, (0,), 1000, False, jobs[0].since, 1),
        Charge("j2", 1, 0, 2, (0, 1, 2), 1000, False, jobs[1].since, 2),
    ]
    facts = facts._replace(charges=charges)
    closed = envelopes[1]._replace(spec=envelopes[1].spec.model_copy(update={"start": NOW + HOUR}))
    after = facts._replace(envelopes={**facts.envelopes, 2: closed})
    settled = check(facts, "change 2 to 2", after, NOW)
    assert {one.job_id: one.gpus for one in settled.charges if one.since == NOW} == {"j1": (1,)}
