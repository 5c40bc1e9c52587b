"""How long jobs wait: a trace of GPU jobs on equal nodes, by the planner and by yardsticks.

    python -m benchmarks.queueing --jobs FILE [--nodes 64] [--restart 90] [--days N]
        [--speed-up 0.85] [--can-save 1.0] [--seed 0]
        [--durations exact|overstated|noisy|unknown|learnt]
        [--replicate N] [--plan-every 0] [--rule NAME ...] [--check] [--json]

The trace has a line for each job: submit_s, duration_s, num_gpu, and where known vc and priority.
`age` and `attained-service` are the planner of the product with these orders of a pool, and
`balanced` and the other profiles that with a score, where a tenant is a `vc` of the trace: at each
moment when a job comes, ends or has restarted `scheduling.cycle`, and for those that wait on
`scheduling.preemption`. `fifo`, `easy`, `sjf` and `srpt` know every duration and only count GPUs;
`srpt` stops jobs for shorter ones. Jobs that overstate say up to
five times what they run, noisy ones between a fifth and five times that, drawn by the seed. A wait
is end - submit - duration, so it holds every pause and restart. What a stop costs is --restart
seconds on all GPUs when the job goes on.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.queueing_planner import Policies, Shipped
from benchmarks.queueing_world import FACTORS, NODE_GPUS, Job, World, read_jobs
from benchmarks.queueing_yardsticks import YARDSTICKS
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.score import ScoreProfile

SHIPPED = ("age", "attained-service")
"""Rows of the planner of the product."""
SCORED = tuple(each.value for each in ScoreProfile)
"""The same with the weights of a profile, and the order that it is for. Run only when named."""
RULES = (*YARDSTICKS, *SHIPPED)
STATED = ("exact", *FACTORS)
DURATIONS = (*STATED, "unknown", "learnt")
"""What a pool knows of how long jobs run."""
WIDE = NODE_GPUS
_SHORT = 10.0
"""Seconds: a shorter job counts as so long, where its slowdown is told."""


@dataclass(frozen=True)
class Row:
    """One rule on one trace. Waits are seconds."""

    rule: str
    jobs: int
    mean: float
    p95: float
    p99: float
    wide: float
    """The mean of jobs with 8 GPUs or more."""
    longest: float
    slowdown: float
    """The mean of (wait + duration) / duration, where 10 s is the least duration."""
    utilisation: float
    """Per cent of all GPU time until the last job came."""
    lost: float
    """GPU time of restarts, in per cent of what the jobs run."""
    stops: float
    """For each job."""
    cpu: float
    """Seconds of processor for the whole replay."""
    cycles: int
    ms: float
    """Of processor for each cycle, all else included."""


def policies(name: str, restart: float) -> Policies:
    """Return what the pool of a row is told."""
    pool = PoolSpec(name="queueing")
    said = {"score": {"profile": name}} if name in SCORED else {"order": name}
    packing = PoolPacking.model_validate(said)
    stops = pool.preemption.model_copy(update={"restart": timedelta(seconds=restart)})
    return Policies(packing, stops, within_class=packing.by_rank)


def world_of(
    rule: str,
    jobs: Sequence[Job],
    nodes: int,
    restart: float,
    *,
    exact: bool = True,
    learns: bool = False,
    check: bool = False,
    plan_every: float = 0.0,
) -> World:
    """Return a world where a rule decides. It changes the jobs."""
    if rule in YARDSTICKS:
        return YARDSTICKS[rule](jobs, nodes, restart, check=check)
    return Shipped(
        jobs,
        nodes,
        restart,
        policies(rule, restart),
        exact=exact,
        learns=learns,
        check=check,
        plan_every=plan_every,
    )


def measure(rule: str, make: Callable[[], World], *, tell: bool = False) -> Row:
    """Play a world to its end."""
    world = make()
    began = time.process_time()
    world.play(rule if tell else "")
    return row_of(rule, world, time.process_time() - began)


def row_of(rule: str, world: World, cpu: float) -> Row:
    """Return what became of the jobs of a world that was played."""
    jobs = world.jobs
    waits = np.array([job.wait for job in jobs])
    ran = np.array([job.seconds for job in jobs])
    gpus = np.array([job.gpus for job in jobs])
    restarting = np.array([job.restarting for job in jobs])
    wide = waits[gpus >= WIDE]
    last = max(jobs[-1].submit, 1.0)
    p95, p99 = (float(each) for each in np.percentile(waits, (95, 99)))
    return Row(
        rule=rule,
        jobs=len(jobs),
        mean=float(waits.mean()),
        p95=p95,
        p99=p99,
        wide=float(wide.mean()) if len(wide) else 0.0,
        longest=float(waits.max()),
        slowdown=float(np.maximum((waits + ran) / np.maximum(ran, _SHORT), 1).mean()),
        utilisation=100 * world.used / (world.nodes * NODE_GPUS * last),
        lost=float(100 * (restarting * gpus).sum() / (ran * gpus).sum()),
        stops=sum(len(job.stopped_at) for job in jobs) / len(jobs),
        cpu=cpu,
        cycles=world.cycles,
        ms=1000 * cpu / max(world.cycles, 1),
    )


def main() -> None:
    arguments = _parse()
    read = partial(
        read_jobs, arguments.jobs, days=arguments.days, speed_up=arguments.speed_up,
        replicate=arguments.replicate, can_save=arguments.can_save, seed=arguments.seed,
        stated=arguments.durations,
    )  # fmt: skip
    rows: list[Row] = []
    if not arguments.json:
        _print_head()
    for rule in arguments.rule or RULES:
        make = partial(
            world_of, rule, read(), arguments.nodes, arguments.restart,
            exact=arguments.durations in STATED, learns=arguments.durations == "learnt",
            check=arguments.check,
            plan_every=arguments.plan_every,
        )  # fmt: skip
        rows.append(measure(rule, make, tell=True))
        if not arguments.json:
            _print(rows[-1])
    if arguments.json:
        print(json.dumps({"results": [asdict(row) for row in rows]}, indent=2))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=Path, required=True, help="the trace, .csv or .csv.gz")
    parser.add_argument("--nodes", type=int, default=64, help="of 8 GPUs each")
    parser.add_argument("--restart", type=float, default=90, help="seconds, after each stop")
    parser.add_argument("--days", type=float, help="only jobs submitted in the first days")
    parser.add_argument("--speed-up", type=float, default=1.0, help="factor on submit times")
    parser.add_argument("--can-save", type=float, default=1.0, help="share of the jobs")
    parser.add_argument("--durations", choices=DURATIONS, default="exact")
    parser.add_argument(
        "--seed", type=int, default=0, help="draws who can save, and what each says"
    )
    parser.add_argument("--replicate", type=int, default=0, help="0 is the trace itself")
    parser.add_argument(
        "--plan-every", type=float, default=0.0,
        help="seconds without a plan of preemption after one that stopped nobody",
    )  # fmt: skip
    parser.add_argument(
        "--rule", action="append", choices=(*RULES, *SCORED),
        help="several times; else all but the profiles of the score",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="check each moment, and all ends")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _print_head() -> None:
    print(
        f"{'rule':12} {'mean':>8} {'p95':>9} {'p99':>9} {'wide':>8} {'longest':>9} "
        f"{'slowdown':>8} {'used %':>7} {'lost %':>7} {'stops':>6} {'cpu s':>7} {'cycles':>8} "
        f"{'ms':>7}",
        flush=True,
    )


def _print(row: Row) -> None:
    print(
        f"{row.rule:12} {row.mean:8.0f} {row.p95:9.0f} {row.p99:9.0f} {row.wide:8.0f} "
        f"{row.longest:9.0f} {row.slowdown:8.2f} {row.utilisation:7.2f} {row.lost:7.2f} "
        f"{row.stops:6.2f} {row.cpu:7.1f} {row.cycles:8} {row.ms:7.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
