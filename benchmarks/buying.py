"""What to buy: five ways to serve the same jobs from the same markets, in dollars and waits.

    python -m benchmarks.buying [--days 0.5] [--seed 1] [--seeds 5] [--nothing-wrong]
                                [--nobody-buys] [--patience 15] [--without rivals,ends]
                                [--floor] [--json]

Books come from the strangers of the simulated exchange (calm, with spikes, thin), beside an offer
list that is 12 % dearer on average and billed while used. Jobs of 1 to 8 GPUs arrive by day more
than by night; 60 % are FAST, the others FLEX with 12 hours to start. Machines come up in five
minutes. Rivals take cheap asks between a look and an order, rows are gone when they are taken,
machines stay silent, and jobs end before their time (benchmarks/buying_troubles.py). What is left
of a window is sold where the product would, and for no more than was paid
(benchmarks/buying_selling.py). The way of least cost, the seeds' rule and
the cheapest offer use `scheduling.buying.plan.decide`, and the packer places the jobs, on a clock
of five minutes. It is decided at each while FAST jobs wait, and every 15 minutes for FLEX alone:
where all that matters is what FLEX costs, more looks cost the benchmark most of its time.

`always on` are nodes at the exchange's mean price, as many as the 95th percentile of FAST and the
mean of FLEX. The bound is that of a program that knows the future: no plan costs less which starts
FAST jobs within 15 minutes (benchmarks/buying_bound.py). Floors (`--floor`) are bounds of those
who can do less, and know all else. `--patience` runs least cost again with `fast_patience`;
`--without` with one trouble left out at a time, and with all of these, over the bound of the
market with all of them.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from benchmarks.buying_bound import Bound, lower_bound
from benchmarks.buying_replay import Outcome, always_on, by_policy, cheapest_now, replay
from benchmarks.buying_troubles import NONE, REAL, WITHOUT, without
from benchmarks.buying_world import FLEX_WITHIN, MEAN_PRICE, START, STARTUP, STEP, World
from longshore.models.buying import BuyingPolicy, BuyingRule
from longshore.models.job import Tier
from longshore.models.money import MICRO
from longshore.simulation.market.background import Profile

PROFILES = (Profile.CALM, Profile.SPIKE, Profile.THIN)
WAYS = ("least cost", "seeds' rule", "cheapest now", "always on")
BASE = BuyingPolicy(enabled=True, flex_deadline=FLEX_WITHIN)
"""As shipped, but for the deadline of the jobs of these worlds."""
SEED_RULE = BASE.model_copy(update={"rule": BuyingRule.SEED})
ALONE = BASE.model_copy(update={"reuse_share": 0.0, "fast_delay_price": 50 * MICRO})

FLOORS: dict[str, dict[str, Any]] = {
    "FAST jobs stay": {"stays": True},
    "and ends are not known": {"stays": True, "knows_ends": False},
    "and FAST starts in 5 minutes": {"stays": True, "knows_ends": False, "within": STARTUP},
    "the same, and sells": {
        "stays": True,
        "knows_ends": False,
        "within": STARTUP,
        "sells": True,
    },
}
"""Who can do less, from one to the next; the last may sell what jobs leave of nodes, at prices
that nobody gets who sells to one bid."""


@dataclass(frozen=True)
class Row:
    """One way to buy in one market, from one seed."""

    market: str
    seed: int
    way: str
    outcome: Outcome
    over_bound: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--days", type=float, default=0.5, help="days of arrivals")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--whole", type=float, default=0, metavar="SECONDS",
                        help="how long whole numbers are tried for each bound")  # fmt: skip
    parser.add_argument("--nothing-wrong", action="store_true",
                        help="no rivals, refusals, silence; all run to the end")  # fmt: skip
    parser.add_argument("--nobody-buys", action="store_true",
                        help="nothing is sold of what is left of windows")  # fmt: skip
    parser.add_argument("--patience", type=float, default=0, metavar="MINUTES",
                        help="also least cost where FAST jobs wait so long")  # fmt: skip
    parser.add_argument("--without", default="", metavar="NAMES",
                        help=f"also least cost without each of: {','.join(WITHOUT)}")  # fmt: skip
    parser.add_argument("--floor", action="store_true",
                        help="also the bounds of those who can do less")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    left_out = [name for name in arguments.without.split(",") if name]
    if unknown := ", ".join(name for name in left_out if name not in WITHOUT):
        parser.error(f"--without knows no {unknown}")
    began = time.perf_counter()
    patience = timedelta(minutes=arguments.patience)
    rows: list[Row] = []
    bounds: dict[str, Bound] = {}
    floors: dict[str, dict[str, float]] = {}
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        for profile in PROFILES:
            troubles = NONE if arguments.nothing_wrong else REAL
            if arguments.nobody_buys:
                troubles = replace(troubles, resale=False)
            world = World(profile, seed, arguments.days, troubles)
            bound = lower_bound(world, seconds=arguments.whole)
            bounds[f"{profile.value} {seed}"] = bound
            for who, less in FLOORS.items() if arguments.floor else ():
                floor = lower_bound(world, seconds=arguments.whole, **less).proven / bound.proven
                floors.setdefault(f"{profile.value} {seed}", {})[who] = floor
                say(f"{profile.value} {seed}: {who}: {floor:.3f} of the bound")
            found = outcomes(world, patience)
            found |= ablation(world, left_out)
            rows += [
                Row(profile.value, seed, way, outcome, outcome.dollars / bound.proven)
                for way, outcome in found.items()
            ]
            say(f"{profile.value} {seed}: bound ${bound.proven:,.2f}, least cost "
                f"{found[WAYS[0]].dollars / bound.proven:.3f} of it")  # fmt: skip
    if arguments.json:
        ratio = {
            market: statistics.fmean(row.over_bound for row in of)
            for (market, way), of in grouped(rows).items()
            if way == WAYS[0]
        }
        found = {
            "results": [asdict(row) for row in rows],
            "bound": {name: bound.proven for name, bound in bounds.items()},
            "ratio": ratio,
            "floor": floors,
            "seconds": time.perf_counter() - began,
        }
        print(json.dumps(found, indent=2))
        return
    show(rows)


def outcomes(world: World, patience: timedelta = timedelta(0)) -> dict[str, Outcome]:
    """Return what each way to buy comes to, with `patience` also that of least cost with it."""
    found = (
        replay(world, by_policy(BASE)),
        replay(world, by_policy(SEED_RULE)),
        replay(world, cheapest_now(ALONE)),
        always_on(world, steady_nodes(world), MEAN_PRICE),
    )
    ways: dict[str, Outcome] = dict(zip(WAYS, found, strict=True))
    if patience:
        policy = BASE.model_copy(update={"fast_patience": patience})
        ways["patient"] = replay(world, by_policy(policy))
    return ways


def ablation(world: World, names: Sequence[str]) -> dict[str, Outcome]:
    """Return what least cost comes to without one trouble at a time, and without all of these."""
    left_out: dict[str, tuple[str, ...]] = {f"no {name}": (name,) for name in names}
    if len(names) > 1:
        left_out["none of these"] = tuple(names)
    return {
        way: replay(replace(world, troubles=without(world.troubles, *each)), by_policy(BASE))
        for way, each in left_out.items()
    }


def steady_nodes(world: World) -> dict[Tier, int]:
    """Return how many nodes each tier wants: the 95th percentile of FAST, the mean of FLEX."""
    fast = sorted(_wanted(world, Tier.FAST))
    flex = _wanted(world, Tier.FLEX)
    return {
        Tier.FAST: math.ceil(fast[int(0.95 * (len(fast) - 1))] / 8),
        Tier.FLEX: math.ceil(sum(flex) / len(flex) / 8),
    }


def grouped(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of all seeds by market and way."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.market, row.way), []).append(row)
    order = [*WAYS, *(way for _, way in found if way not in WAYS)]
    return dict(sorted(found.items(), key=lambda item: (item[0][0], order.index(item[0][1]))))


def show(rows: Iterable[Row]) -> None:
    """Print means over the seeds, and between what the ratio to the bound lies."""
    print(
        f"{'market':<7}{'way':<14}{'money':>10}{'/ bound':>9}{'from - to':>14}{'FAST waits':>12}"
        f"{'p95':>5}{'FLEX late':>11}{'used':>6}{'purchases':>11}"
        f"{'short':>7}{'refused':>9}{'silent':>8}{'sold':>6}"
    )
    for (market, way), of in grouped(rows).items():
        found = [row.outcome for row in of]
        ratios = [row.over_bound for row in of]
        print(
            f"{market:<7}{way:<14}{statistics.fmean(o.dollars for o in found):>10,.2f}"
            f"{statistics.fmean(ratios):>9.2f}{f'{min(ratios):.2f} - {max(ratios):.2f}':>14}"
            f"{statistics.fmean(o.fast_wait_minutes for o in found):>8.1f} min"
            f"{max(o.fast_wait_p95 for o in found):>5.0f}{sum(o.flex_late for o in found):>11}"
            f"{statistics.fmean(o.used_share for o in found):>6.0%}"
            f"{statistics.fmean(o.purchases for o in found):>11.1f}"
            f"{sum(o.short for o in found):>7}{sum(o.refused for o in found):>9}"
            f"{sum(o.silent for o in found):>8}{sum(o.sold for o in found):>6}"
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _wanted(world: World, tier: Tier) -> list[int]:
    """Return the GPUs that are wanted at each step, were each job to start at once."""
    wanted = [0] * world.steps
    for job in world.jobs:
        assert job.submitted_at is not None
        first = int((job.submitted_at - START) / STEP)
        last = first + int(world.lasts[job.id] / STEP)
        for step in range(first, min(last, world.steps) if job.tier is tier else first):
            wanted[step] += job.gpus
    return wanted


if __name__ == "__main__":
    main()
