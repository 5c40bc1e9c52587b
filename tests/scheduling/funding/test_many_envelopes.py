"""Envelopes that are used up are forgotten until there is room again: no answer changes by it."""

import random

import pytest

from longshore.scheduling.funding import taking
from longshore.scheduling.funding.cover import Cover
from longshore.scheduling.funding.evaluate import evaluated
from longshore.scheduling.funding.facts import Facts, Use
from longshore.scheduling.funding.turns import fund
from tests.support.funding_scenes import NOW, WAITING, capped, facts_of, owned, tree, use
from tests.support.searches import seeds


def a_scene(seed: int) -> tuple[Facts, list[Use]]:
    """A tree with many envelopes, most of them used up, by jobs that run; and jobs that wait."""
    chance = random.Random(seed)
    parents = {f"t{n}": f"t{(n - 1) // 8}" if n else None for n in range(60)}
    names = list(parents)
    envelopes = [owned(id, names[id % 60], chance.randint(4, 12)) for id in range(1, 151)]
    caps = [capped(1, "t1", 30, {one.id for one in envelopes if one.id % 10 == 0})]
    sizes = 1, 1, 2, 4, 8
    running = [use(f"r{n}", chance.choice(names), chance.choice(sizes)) for n in range(370)]
    queue = [
        use(f"w{n}", chance.choice(names), chance.choice(sizes), where=WAITING) for n in range(250)
    ]
    return facts_of(tree(**parents), envelopes, caps, running), queue


@pytest.mark.parametrize("seed", seeds(4))
def test_what_is_forgotten_changes_no_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, queue = a_scene(seed)
    found: list[dict[str, Cover]] = []
    for many in (0, taking.MANY, len(facts.envelopes)):
        monkeypatch.setattr(taking, "MANY", many)
        found.append(fund(evaluated(facts, NOW)[1], queue))
    assert found[0] == found[1] == found[2]
    assert 0 < sum(one.funded for one in found[0].values()) < len(queue)
    assert any(one.recalls for one in found[0].values())
