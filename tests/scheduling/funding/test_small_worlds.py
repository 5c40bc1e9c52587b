"""Who waits and who is stopped, in all that can happen to the small universes of
`test_small_universes`: jobs come, end and are withdrawn, envelopes change, close and open.

The world looks after each event at all that must hold: nobody whose own envelopes pay waits for
others beyond the grace, and nobody is stopped in a circle, or without end.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from longshore.models.funding import Sharing
from longshore.scheduling.funding.pool import Asks
from tests.scheduling.funding.test_small_universes import EVENTS, Universe, all_of, state_of
from tests.support.funding_scenes import HOUR, NOW, facts_of
from tests.support.funding_world import Job, World
from tests.support.packing import a_job

CLASSES = {"j1": 5, "j2": 8, "j3": 5, "j4": 2}
CHANGES = ({}, {"gpus": 1.0}, {"start": NOW + HOUR}, {"sharing": Sharing.NONE})
Event = Callable[[World], object]


def events(universe: Universe, world: World) -> Iterator[Event]:
    for use in universe.jobs:
        name = use.job_id
        if name in world.waiting:
            yield lambda other, name=name: other.waiting.pop(name)
        elif name not in world.running:
            request = a_job(
                name, len(use.shares[0].gpus), priority=CLASSES[name], tenant=use.tenant,
                gpu_type="H100", submitted_at=world.now + timedelta(seconds=1),
            )  # fmt: skip
            job = Job(request, Asks(use.terms, use.preemptible))
            yield lambda other, job=job: other.waiting.update({job.request.id: job})
        elif name not in world.leaving:
            yield lambda other, name=name: other.end(name)
    for first in universe.envelopes:
        is_now = world.facts.envelopes[first.id]
        lent = sum(c.amount for c in world.facts.charges if c.lent and c.envelope == first.id)
        for update in CHANGES:
            changed = first._replace(spec=first.spec.model_copy(update=update))
            if changed != is_now and changed.spec.gpus * 1000 >= lent:
                envelopes = {**world.facts.envelopes, first.id: changed}
                facts = {"envelopes": envelopes}
                yield lambda other, facts=facts: other.edit(**facts)


def state(world: World) -> object:
    """What tells states apart, without the time."""
    return (
        state_of(world.facts), tuple(world.waiting), tuple(world.running), tuple(world.leaving),
        frozenset(world.given_way), world.now >= NOW + HOUR,
    )  # fmt: skip


def explore(universe: Universe, gpus: int, depth: int) -> Counter[str]:
    """Visit each state that so many events lead to; return what happened on the way."""
    first = World.of(facts_of(universe.tenants, universe.envelopes, universe.caps), gpus)
    known, front, seen = {state(first)}, [first], Counter[str]()
    for _ in range(depth):
        following: list[World] = []
        for before in front:
            for event in events(universe, before):
                world = before.copy()
                world.seen = Counter()
                world.stops = []
                world.pass_time(timedelta(seconds=1))
                event(world)
                world.cycle()
                world.settle_down()
                seen.update(["steps", *(+world.seen)])
                if (now := state(world)) not in known:
                    known.add(now)
                    following.append(world)
        front = following
    return seen


@pytest.mark.parametrize("number", range(0, len(all_of()), 11))
def test_some_small_worlds(number: int) -> None:
    seen = explore(all_of()[number], 2, 3)
    assert min(seen["stopped"], seen["owners waited"]) > 0


@pytest.mark.exhaustive  # half a minute each; the test above has some of them
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(len(all_of())))
def test_all_small_worlds(number: int) -> None:
    seen = explore(all_of()[number], 2 + number % 3, EVENTS)
    assert seen["steps"] > 10_000
    assert min(seen["stopped"], seen["owners waited"]) > 100
