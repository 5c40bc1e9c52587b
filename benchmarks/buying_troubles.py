"""What goes wrong between a look at a market and the end of a job, made from a seed.

Drawn once for a world, whoever buys: when rivals order, which rows of the offer list are gone when
they are taken, how long jobs really run. Only which machine stays silent hangs on who buys it.
"""

import random
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from longshore.models.buying import BuyingPolicy
from longshore.models.job_request import JobRequest

EVERY = timedelta(minutes=5)
GIVEN_UP = BuyingPolicy().startup_limit
"""A pod without an agent is stopped so long after its order, and billed until then."""
REPLACED = GIVEN_UP + timedelta(minutes=5)
"""A node of a window without an agent gets another machine so long after its order."""
_MINUTE = timedelta(minutes=1)
_RIVAL_NODES = (1, 1, 2, 4)


@dataclass(frozen=True)
class Troubles:
    """How often; all of them 0, and `least_used` 1, is a market in which nothing goes wrong."""

    rivals: float = 0.2
    """The chance that somebody takes the cheapest asks just after a look, of 5 minutes each."""
    stale: float = 0.08
    """The chance that a row of the offer list is gone when it is taken, at a look."""
    silent: float = 0.03
    """The chance that no agent ever comes from a machine."""
    least_used: float = 0.2
    """Jobs use from this share of the time that they said to all of it, evenly."""
    reacts: timedelta = timedelta(seconds=15)
    """How long the product takes at most to stop a machine that was idle for long enough
    (tests/buying/test_no_idle_minute.py). Each minute that has begun is billed."""
    resale: bool = True
    """Whether strangers buy what is left of windows."""
    told: bool = False
    """Whether users say how long their jobs really run."""
    flex_looks: int = 3
    """Steps between decisions while only FLEX jobs wait, and none has to start soon."""

    def rival_nodes(self, seed: int, steps: int) -> tuple[int, ...]:
        """Return the nodes that rivals take after the look of each step."""
        chance = random.Random(f"rivals/{seed}")
        return tuple(
            chance.choice(_RIVAL_NODES) if chance.random() < self.rivals else 0
            for _ in range(steps)
        )

    def is_stale(self, chance: random.Random) -> bool:
        return chance.random() < self.stale

    def is_silent(self, seed: int, name: str) -> bool:
        return random.Random(f"silent/{seed}/{name}").random() < self.silent

    def lasts(self, seed: int, job: JobRequest) -> timedelta:
        """Return how long a job really runs: whole steps, one at least."""
        share = random.Random(f"lasts/{seed}/{job.id}").uniform(self.least_used, 1.0)
        return max(round(share * job.expected_duration / EVERY), 1) * EVERY

    def idles(self, idle_after: timedelta) -> timedelta:
        """Return for how long a machine is billed after its last job, which ends on a minute."""
        return -(-(idle_after + self.reacts) // _MINUTE) * _MINUTE


REAL = Troubles()
NONE = Troubles(
    rivals=0.0, stale=0.0, silent=0.0, least_used=1.0, reacts=timedelta(0), resale=False
)
WITHOUT: dict[str, dict[str, Any]] = {
    "rivals": {"rivals": NONE.rivals},
    "refusals": {"stale": NONE.stale},
    "silence": {"silent": NONE.silent},
    "ends": {"told": True},
    "looks": {"flex_looks": 1},
    "stops": {"reacts": NONE.reacts},
}
"""What is changed to leave a trouble out. Jobs end as early without `ends`: it is known when."""


def without(troubles: Troubles, *names: str) -> Troubles:
    """Return these troubles but for some of `WITHOUT`."""
    return replace(troubles, **{name: to for each in names for name, to in WITHOUT[each].items()})
