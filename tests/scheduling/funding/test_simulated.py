"""Budgets in a small world that goes on: tenants, envelopes, jobs, edits, starts and ends."""

import math

import pytest

from tests.support.funding_world import World
from tests.support.searches import seeds

EVENTS = 60


def played(seed: int, *, loans: bool = False) -> World:
    world = World(seed, loans=loans)
    for number in range(EVENTS):
        world.happen()
        if number % 5 == 4:
            world.settle_down()
    return world


@pytest.mark.parametrize("seed", seeds(10))
def test_it_holds_after_each_event(seed: int) -> None:
    """No overdraft, nobody starts half paid for, owners wait for nobody beyond the grace, the end
    of a job demotes nobody, and nobody is stopped in a circle: the world looks at each event."""
    world = played(seed)
    classes = ("OWNED", "SHARED", "BORROWED", "UNFUNDED", "itself")
    of_class = {name: world.counted[name] for name in classes}
    assert math.isclose(sum(of_class.values()), world.counted["held"]), "each in one class"
    world.close_all()
    paid = of_class["OWNED"] + of_class["SHARED"] + of_class["BORROWED"]
    assert math.isclose(world.paid, paid, abs_tol=1e-6), "as the charges say"


@pytest.mark.parametrize("seed", seeds(5))
def test_it_holds_with_many_loans(seed: int) -> None:
    played(seed, loans=True)


@pytest.mark.parametrize(
    ("seed", "loans"),
    [
        (1566, False),
        (1682, False),
        (3049, False),
        (116, True),
        (495, True),
        (527, True),
        (1809, True),
    ],
)
def test_nobody_is_stopped_again_and_again(seed: int, loans: bool) -> None:
    """Worlds in which that was so: who began was paid for from what was kept for others that still
    waited, and was stopped for them; took the GPUs back that were freed for them; or was foreseen
    to be paid for, and lost that to who ran and had lost to it."""
    played(seed, loans=loans)


@pytest.mark.exhaustive  # minutes; a part of it is above
@pytest.mark.parametrize(
    ("first", "loans"),
    [*((first, False) for first in range(0, 3000, 250)),
     *((first, True) for first in range(0, 1500, 250))],
)  # fmt: skip
def test_it_holds_in_thousands_of_worlds(first: int, loans: bool) -> None:
    for seed in range(first, first + 250):
        try:
            played(seed, loans=loans)
        except Exception as wrong:
            raise AssertionError(f"world {seed}, with loans: {loans}") from wrong


def test_all_of_it_happens() -> None:
    worlds = [played(seed) for seed in range(10)]
    for what in ("paid", "lent", "recalled", "stopped", "owners waited"):
        assert sum(world.seen[what] for world in worlds) > 2, what
    for what in ("OWNED", "SHARED", "BORROWED", "UNFUNDED", "itself"):
        assert sum(world.counted[what] for world in worlds) > 0, what
