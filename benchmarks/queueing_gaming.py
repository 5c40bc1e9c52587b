"""What a tenant gains that games the order of the queue, and what the others lose.

    python -m benchmarks.queueing_gaming --jobs FILE [--tenant VC] [--nodes 64] [--days N]
        [--restart 90] [--can-save 1.0] [--seed 0] [--rule attained-service]
        [--durations unknown|exact|...] [--piece 3600] [--flood 16] [--way NAME ...]
        [--plan-every 0] [--check] [--json]

The replay of `benchmarks.queueing`, once as the trace is (`honest`), and once for each way to
game:

- `pieces`: the tenant runs each job that is longer as jobs of --piece seconds, each submitted as
  the one before ends. A piece takes over what those before it ran, as in the product, and begins
  with a restart. The wait is that of all pieces together.
- `flood`: beside its own jobs the tenant submits jobs of one GPU and five minutes, as many as
  --flood GPUs can run, from the first to the last job of the trace.
- `unstoppable`: no job of the tenant can save, as far as it says.

The tenant is a `vc` of the trace, that with the most GPU time where none is named. Waits are
seconds, as in `benchmarks.queueing`; those of the flood itself are apart.
"""

import argparse
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.queueing import DURATIONS, SCORED, SHIPPED, STATED, WIDE, world_of
from benchmarks.queueing_world import Job, read_jobs

WAYS = ("honest", "pieces", "flood", "unstoppable")
_FLOOD_SECONDS = 300.0
"""What a job of the flood runs."""


@dataclass(frozen=True)
class Row:
    """One way on one trace. Waits are seconds."""

    way: str
    tenant: float
    """The mean of its jobs, without those of the flood."""
    tenant_p95: float
    others: float
    others_p95: float
    others_wide: float
    """The mean of those with 8 GPUs or more."""
    flood: float
    """The mean of the jobs of the flood; 0 where there is none."""
    longest: float
    """Of all but the flood."""
    stops: float
    """For each job of the tenant, without those of the flood."""
    jobs: int
    """Of the tenant, likewise."""


def largest_tenant(jobs: Iterable[Job]) -> str:
    """Return the tenant with the most GPU time."""
    used = Counter[str]()
    for job in jobs:
        used[job.tenant] += round(job.gpus * job.seconds)
    return used.most_common(1)[0][0]


def in_pieces(jobs: Sequence[Job], tenant: str, piece: float) -> None:
    """Have the tenant run its jobs in pieces of so many seconds."""
    for job in jobs:
        if job.tenant == tenant:
            job.cut(piece)


def unstoppable(jobs: Sequence[Job], tenant: str) -> None:
    """Have no job of the tenant save."""
    for job in jobs:
        job.saves &= job.tenant != tenant


def flooded(jobs: Sequence[Job], tenant: str, gpus: int) -> tuple[list[Job], frozenset[str]]:
    """Return the jobs with those of a flood among them, which as many GPUs can run, and the ids of
    these."""
    last = jobs[-1].submit
    count = int(last * gpus / _FLOOD_SECONDS)
    flood = [Job(-1, last * place / count, _FLOOD_SECONDS, 1, tenant) for place in range(count)]
    every = sorted([*jobs, *flood], key=lambda job: job.submit)
    made = [replace(job, number=number) for number, job in enumerate(every)]
    return made, frozenset(new.id for new, job in zip(made, every, strict=True) if job.number < 0)


def row_of(way: str, jobs: Sequence[Job], tenant: str, apart: Collection[str] = ()) -> Row:
    """Return what became of the jobs of a world that was played; `apart` are those of a flood."""
    usual = [job for job in jobs if job.id not in apart]
    own = [job for job in usual if job.tenant == tenant]
    others = [job for job in usual if job.tenant != tenant]
    return Row(
        way=way,
        tenant=_mean(own), tenant_p95=_p95(own),
        others=_mean(others), others_p95=_p95(others),
        others_wide=_mean([job for job in others if job.gpus >= WIDE]),
        flood=_mean([job for job in jobs if job.id in apart]),
        longest=max(job.wait for job in usual),
        stops=sum(len(job.stopped_at) for job in own) / max(len(own), 1),
        jobs=len(own),
    )  # fmt: skip


def _mean(jobs: Sequence[Job]) -> float:
    return float(np.mean([job.wait for job in jobs])) if jobs else 0.0


def _p95(jobs: Sequence[Job]) -> float:
    return float(np.percentile([job.wait for job in jobs], 95)) if jobs else 0.0


def main() -> None:
    asked = _parse()

    def read() -> list[Job]:
        return read_jobs(
            asked.jobs, days=asked.days, can_save=asked.can_save, seed=asked.seed,
            stated=asked.durations,
        )  # fmt: skip

    tenant = asked.tenant or largest_tenant(read())
    rows: list[Row] = []
    if not asked.json:
        print(f"tenant {tenant}, {asked.rule}, durations {asked.durations}")
        print(f"{'way':12} {'tenant':>8} {'p95':>8} {'stops':>6} {'others':>8} {'p95':>8} "
              f"{'wide':>8} {'flood':>8} {'longest':>9}", flush=True)  # fmt: skip
    for way in asked.way or WAYS:
        jobs, flood = read(), frozenset[str]()
        if way == "pieces":
            in_pieces(jobs, tenant, asked.piece)
        elif way == "unstoppable":
            unstoppable(jobs, tenant)
        elif way == "flood":
            jobs, flood = flooded(jobs, tenant, asked.flood)
        world = world_of(
            asked.rule, jobs, asked.nodes, asked.restart, exact=asked.durations in STATED,
            learns=asked.durations == "learnt", check=asked.check, plan_every=asked.plan_every,
        )  # fmt: skip
        world.play("" if asked.json else way)
        rows.append(row := row_of(way, jobs, tenant, flood))
        if not asked.json:
            print(f"{way:12} {row.tenant:8.0f} {row.tenant_p95:8.0f} {row.stops:6.2f} "
                  f"{row.others:8.0f} {row.others_p95:8.0f} {row.others_wide:8.0f} "
                  f"{row.flood:8.0f} {row.longest:9.0f}", flush=True)  # fmt: skip
    if asked.json:
        print(json.dumps({"tenant": tenant, "results": [asdict(row) for row in rows]}, indent=2))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=Path, required=True, help="the trace, .csv or .csv.gz")
    parser.add_argument("--tenant", help="the `vc` that games; else that with the most GPU time")
    parser.add_argument("--nodes", type=int, default=64, help="of 8 GPUs each")
    parser.add_argument("--restart", type=float, default=90, help="seconds, after each stop")
    parser.add_argument("--days", type=float, help="only jobs submitted in the first days")
    parser.add_argument("--can-save", type=float, default=1.0, help="share of the jobs")
    parser.add_argument("--seed", type=int, default=0, help="draws who can save")
    parser.add_argument("--durations", choices=DURATIONS, default="unknown")
    parser.add_argument("--rule", choices=(*SHIPPED, *SCORED), default=SHIPPED[-1])
    parser.add_argument("--piece", type=float, default=3600, help="seconds of each piece")
    parser.add_argument("--flood", type=int, default=16, help="GPUs that the flood keeps busy")
    parser.add_argument(
        "--way", action="append", choices=WAYS,
        help="several times; else all",
    )  # fmt: skip
    parser.add_argument(
        "--plan-every", type=float, default=0.0,
        help="seconds without a plan of preemption after one that stopped nobody",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="check each moment, and all ends")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
