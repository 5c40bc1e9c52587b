"""Preemption: four ways to stop jobs for more urgent ones, on the same load, in dollars.

    python -m benchmarks.preemption [--hours 10] [--loads 3] [--json]
    python -m benchmarks.preemption --live [--rounds 5] [--saves 0.5,2,5] [--megabytes 1]

Six nodes of eight GPUs at $1.80 to $3.30 a GPU-hour, on a virtual clock, with more work than they
hold. A job may take GPUs from lower bands of classes. What victims lose is work that has to be
done again, and GPUs that are paid while they save. `ours` is `scheduling.preemption.plan`;
`newest first` stops the job that started last; `by class` is the seeds' formula (how a job saves
and how much of its time is used, cheapest first, three at most); `kill and restart` takes the
lowest class, then the newest, and nothing is saved. All but the last save when they stop.

`--live` measures how long it takes on a real stack (benchmarks.preemption_live).
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from benchmarks.installation import forget_environment
from benchmarks.preemption_live import measure_live, print_live
from benchmarks.preemption_world import PACKING, POLICY, Choice, Pool, Tally, Way, arrivals, fits
from longshore.client.process import leave, run
from longshore.models.job_request import JobRequest
from longshore.models.preemption import RunningWork
from longshore.scheduling.placement.state import Need
from longshore.scheduling.preemption.costs import why_not
from longshore.scheduling.preemption.plan import plan_preemptions
from longshore.scheduling.preemption.what_if import WhatIfCluster, gains_of

_SEEDS_VICTIMS = 3
_MANY = 1000
Rank = tuple[float, ...]
Order = Callable[[RunningWork, Pool], Rank]
"""What comes first is stopped first."""


@dataclass(frozen=True)
class Row:
    """What one way came to, over all loads."""

    way: str
    tallies: tuple[Tally, ...]
    """Of each load."""

    def sum(self, name: str) -> float:
        return sum(getattr(tally, name) for tally in self.tallies)

    @property
    def waits(self) -> list[float]:
        return sorted(wait for tally in self.tallies for wait in tally.waits.values())

    @property
    def slowest_look(self) -> float:
        """Real seconds that the slowest decision to stop somebody took."""
        return max((look for tally in self.tallies for look in tally.looks), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=10, help="hours of arrivals")
    parser.add_argument("--loads", type=int, default=3, help="how many loads, seeds 1 and on")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--live", action="store_true", help="real processes on a real stack")
    parser.add_argument(
        "--rounds", type=int, default=5, help="preemptions for each time of saving"
    )
    parser.add_argument("--saves", default="0.5,2,5", help="seconds that the other job saves for")
    parser.add_argument("--megabytes", type=int, default=1, help="that it saves")
    arguments = parser.parse_args()
    if arguments.live:
        return live([float(each) for each in arguments.saves.split(",")], arguments)
    rows = measure(arguments.hours, range(1, arguments.loads + 1))
    if arguments.json:
        return print(json.dumps([_facts(row) for row in rows], indent=2))
    return show(rows)


def live(saves: Sequence[float], arguments: argparse.Namespace) -> None:
    forget_environment()
    rows = run(measure_live(saves, arguments.rounds, arguments.megabytes))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print_live(rows)
    leave(0)


def measure(hours: float, seeds: Sequence[int]) -> list[Row]:
    """Return what each way comes to on the same loads."""
    loads = {seed: arrivals(hours, seed) for seed in seeds}
    return [
        Row(
            name,
            tuple(
                Pool(jobs, saves=saves, seed=seed).run(way) for seed, jobs in loads.items()
            ),
        )
        for name, (way, saves) in WAYS.items()
    ]  # fmt: skip


def ours(pool: Pool, queue: Sequence[JobRequest]) -> list[Choice]:
    """Stop whom the plans of `scheduling.preemption.plan` name."""
    if not queue:
        return []
    plans = plan_preemptions(
        queue, pool.nodes_now(), pool.all_works(), POLICY, PACKING, pool.now, pool.under_way()
    )
    by_id = {job.id: job for job in queue}
    return [
        (by_id[plan.job_id], tuple(victim.job_id for victim in plan.victims), plan.gains)
        for plan in plans
        if plan.preempts
    ]


def nobody(pool: Pool, queue: Sequence[JobRequest]) -> list[Choice]:
    return []


def in_order(order: Order, most: int) -> Way:
    """Return the way that stops jobs on one node in an order until the job fits."""

    def way(pool: Pool, queue: Sequence[JobRequest]) -> list[Choice]:
        cluster, works = pool.cluster(), pool.works()
        chosen: list[Choice] = []
        for job in queue:
            if found := fits(cluster, job):
                cluster.put(job, found)
                continue
            names = _on_best_node(cluster, job, works, pool, order, most)
            if not names:
                continue
            gains = gains_of(cluster.decide(job, frozenset(names)))
            cluster.remove(frozenset(names))
            cluster.put(job, gains)
            works = [work for work in works if work.id not in names]
            chosen.append((job, names, gains))
        return chosen

    return way


def _on_best_node(
    cluster: WhatIfCluster,
    job: JobRequest,
    works: Sequence[RunningWork],
    pool: Pool,
    order: Order,
    most: int,
) -> tuple[str, ...]:
    """Return the first jobs of a node that suffice, on the node where they come first."""
    may = [work for work in works if _is_lower(work, job, pool)]
    ranked = {work.id: order(work, pool) for work in may}
    found: list[tuple[list[Rank], tuple[str, ...]]] = []
    for node in cluster.nodes_for(job):
        here = sorted((w for w in may if node in w.nodes), key=lambda w: (ranked[w.id], w.id))
        names: tuple[str, ...] = ()
        for work in here[:most]:
            names = (*names, work.id)
            if cluster.node_fits(node, Need.of(job, PACKING), frozenset(names)):
                found.append(([ranked[name] for name in names], names))
                break
    return min(found)[1] if found else ()


def _is_lower(work: RunningWork, job: JobRequest, pool: Pool) -> bool:
    plain = work.model_copy(update={"preempted_at": ()})
    return why_not(plain, job, POLICY, pool.now) is None


def _newest(work: RunningWork, pool: Pool) -> Rank:
    return (-work.started_at.timestamp(),)


def _lowest_then_newest(work: RunningWork, pool: Pool) -> Rank:
    return work.request.priority, -work.started_at.timestamp()


def _seeds_cost(work: RunningWork, pool: Pool) -> Rank:
    """Return the seeds' cost: how it saves, and how much of its time is used."""
    job = pool.arrivals[work.id]
    ran = pool.now - work.started_at
    saving = 5.0 if job.interval else 10.0
    if job.write is None:
        saving = len(work.nodes) * ran / timedelta(minutes=1)
    used = ran / work.request.expected_duration
    remaining = 1000.0 if used >= 0.9 else 1.0 if used < 0.1 else 100 * used
    return (saving + remaining,)


def show(rows: Sequence[Row]) -> None:
    print(
        f"{'way':<18}{'stopped':>8}{'done again':>12}{'saving':>9}{'lost':>11}{'/ ours':>8}"
        f"{'high starts':>13}{'p95':>8}{'most':>6}{'slowest look':>14}"
    )
    mine = rows[0].sum("lost_dollars")
    for row in rows:
        lost = row.sum("lost_dollars")
        p95 = row.waits[int(0.95 * (len(row.waits) - 1))]
        print(
            f"{row.way:<18}{row.sum('preemptions'):>8.0f}"
            f"{row.sum('recompute_seconds') / 3600:>10.1f} h"
            f"{row.sum('write_seconds') / 3600:>7.1f} h{dollars(lost):>11}{lost / mine:>8.2f}"
            f"{statistics.fmean(row.waits):>11.1f} s{p95:>6.0f} s"
            f"{max(tally.most_stopped for tally in row.tallies):>6}"
            f"{1000 * row.slowest_look:>11.0f} ms"
        )
    print(f"ours loses {over_best(rows):.2f} of what the best of the others loses")


def over_best(rows: Sequence[Row]) -> float:
    """Return what ours loses over the least that another way loses which stops jobs."""
    others = [row.sum("lost_dollars") for row in rows[1:] if row.sum("preemptions")]
    return rows[0].sum("lost_dollars") / min(others)


def dollars(amount: float) -> str:
    return f"${amount:,.2f}"


def _facts(row: Row) -> dict[str, float | str]:
    return {
        "way": row.way,
        "jobs": row.sum("ended"),
        "preemptions": row.sum("preemptions"),
        "recompute_gpu_seconds": row.sum("recompute_seconds"),
        "write_gpu_seconds": row.sum("write_seconds"),
        "lost_dollars": row.sum("lost_dollars"),
        "high_mean_wait_seconds": statistics.fmean(row.waits),
        "slowest_look_seconds": row.slowest_look,
    }


WAYS: dict[str, tuple[Way, bool]] = {
    "ours": (ours, True),
    "newest first": (in_order(_newest, _MANY), True),
    "by class": (in_order(_seeds_cost, _SEEDS_VICTIMS), True),
    "kill and restart": (in_order(_lowest_then_newest, _MANY), False),
    "nobody is stopped": (nobody, True),
}
"""Each with whether what is stopped may save."""


if __name__ == "__main__":
    main()
