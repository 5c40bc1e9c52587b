"""What to buy: five ways to serve the same jobs from the same markets, in dollars and waits.

    python -m benchmarks.buying [--days 0.5] [--seed 1] [--json]

Books come from the strangers of the simulated exchange (calm, with spikes, thin), beside an offer
list that is 12 % dearer on average and billed while used. Jobs of 1 to 8 GPUs arrive by day more
than by night; 60 % are FAST, the others FLEX with 12 hours to start. Machines come up in five
minutes; nobody sells time again. The way of least cost, the seeds' rule and the cheapest offer use
`scheduling.buying.decide`, and the packer places the jobs, on a virtual clock of five minutes.

`always on` are nodes at the exchange's mean price, as many as the 95th percentile of FAST and the
mean of FLEX. `bound` is the optimum of a linear program that knows the future and is below what
any plan can cost (benchmarks/buying_bound.py): the ratio is least cost / bound.
"""

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass

from benchmarks.buying_bound import lower_bound
from benchmarks.buying_replay import Outcome, always_on, by_policy, cheapest_now, replay
from benchmarks.buying_world import FLEX_WITHIN, MEAN_PRICE, START, STEP, World
from models.buying import BuyingPolicy, BuyingRule
from models.job import Tier
from models.money import MICRO
from simulation.market.background import Profile

PROFILES = (Profile.CALM, Profile.SPIKE, Profile.THIN)
BASE = BuyingPolicy(
    enabled=True,
    resale_share=0.0,
    flex_deadline=FLEX_WITHIN,
    flex_price=MEAN_PRICE,
    max_price={Tier.FLEX: 10 * MICRO},
)
SEED_RULE = BASE.model_copy(update={"rule": BuyingRule.SEED})
ALONE = BASE.model_copy(update={"reuse_share": 0.0, "fast_delay_price": 50 * MICRO})


@dataclass(frozen=True)
class Row:
    """One way to buy in one market."""

    market: str
    way: str
    outcome: Outcome
    over_bound: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--days", type=float, default=0.5, help="days of arrivals")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[Row] = []
    bounds: dict[str, float] = {}
    for profile in PROFILES:
        world = World(profile, arguments.seed, arguments.days)
        bounds[profile.value] = bound = lower_bound(world)
        rows += [
            Row(profile.value, way, outcome, outcome.dollars / bound)
            for way, outcome in outcomes(world).items()
        ]
    ratio = {row.market: row.over_bound for row in rows if row.way == "least cost"}
    if arguments.json:
        print(
            json.dumps(
                {
                    "results": [asdict(row) for row in rows],
                    "bound": bounds,
                    "ratio": ratio,
                    "seconds": time.perf_counter() - began,
                },
                indent=2,
            )
        )
        return
    show(rows, bounds)


def outcomes(world: World) -> dict[str, Outcome]:
    """Return what each way to buy comes to."""
    return {
        "least cost": replay(world, by_policy(BASE)),
        "seeds' rule": replay(world, by_policy(SEED_RULE)),
        "cheapest now": replay(world, cheapest_now(ALONE)),
        "always on": always_on(world, steady_nodes(world), MEAN_PRICE),
    }


def steady_nodes(world: World) -> dict[Tier, int]:
    """Return how many nodes each tier wants: the 95th percentile of FAST, the mean of FLEX."""
    fast = sorted(_wanted(world, Tier.FAST))
    flex = _wanted(world, Tier.FLEX)
    return {
        Tier.FAST: math.ceil(fast[int(0.95 * (len(fast) - 1))] / 8),
        Tier.FLEX: math.ceil(sum(flex) / len(flex) / 8),
    }


def show(rows: list[Row], bounds: dict[str, float]) -> None:
    print(
        f"{'market':<7}{'way':<14}{'money':>10}{'/ bound':>9}{'FAST waits':>12}{'p95':>7}"
        f"{'FLEX late':>11}{'used':>7}{'purchases':>11}"
    )
    for row in rows:
        of = row.outcome
        print(
            f"{row.market:<7}{row.way:<14}{of.dollars:>10,.2f}{row.over_bound:>9.2f}"
            f"{of.fast_wait_minutes:>8.1f} min{of.fast_wait_p95:>7.0f}{of.flex_late:>11}"
            f"{of.used_share:>7.0%}{of.purchases:>11}"
        )
    for market, bound in bounds.items():
        print(f"{market:<7}{'bound':<14}{bound:>10,.2f}{1:>9.2f}")


def _wanted(world: World, tier: Tier) -> list[int]:
    """Return the GPUs that are wanted at each step, were each job to start at once."""
    wanted = [0] * world.steps
    for job in world.jobs:
        assert job.submitted_at is not None
        first = int((job.submitted_at - START) / STEP)
        last = first + int(job.expected_duration / STEP)
        for step in range(first, min(last, world.steps) if job.tier is tier else first):
            wanted[step] += job.gpus
    return wanted


if __name__ == "__main__":
    main()
