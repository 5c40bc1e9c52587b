"""What a look at a long queue costs Slurm's backfill, and what it costs Longshore's cycle.

    python -m benchmarks.slurm_backfill [--nodes 256] [--jobs 2000] [--starts 8] [--turns 5]
                                        [--json]

One scene for both: nodes of 8 GPUs, all in use by jobs of one node each that end at times of their
own, and jobs of 1 to 8 GPUs that wait, with 600 different time limits. Nothing can start, and both
look at every job. Both keep starts for the first `--starts` jobs (`bf_job_part_count_reserve`;
`max_reservations`).

Slurm is a `slurmctld` as Debian installs it (`apt install slurmctld slurm-client`), with its
configuration in a temporary folder, without authentication, on a port of its own. Its nodes could
be powered up (State=CLOUD) and never are: jobs get them and hold them, and no `slurmd` is needed.
A cycle is `Last cycle` of `sdiag`, the time in which the last backfill worked, without the pauses
in which it lets go of its locks; one counts that looked at all jobs (`Last depth cycle`).

Longshore: `plan` answers all jobs, as the first cycle of a process does. `later` is a cycle after
it, which takes of a long queue what could start and what a start could be kept for
(`scheduling.long_queue`). Both by `keep-room`, on nodes that are kept. All in milliseconds on the
clock, one after the other on the same machine.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from benchmarks.slurm_controller import MISSING, Asked, slurm
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import CyclePlan, PackingPolicy, PackingRule, RunningJob
from longshore.scheduling.bulk.warm import warm
from longshore.scheduling.cycle import mix_kept, plan_cached
from longshore.scheduling.long_queue import LongQueue
from longshore.scheduling.placement.node_cache import NodeCache

GPUS, CPUS, RAM_GB = 8, 64, 512
NOW = datetime(2026, 11, 24, tzinfo=UTC)
_SHOWN = 8
"""Starts that are printed."""


@dataclass(frozen=True)
class Report:
    nodes: int
    jobs: int
    starts: int
    slurm: str
    """Its version."""
    scheduler_parameters: str
    slurm_ms: list[float]
    """Of each backfill cycle."""
    slurm_starts: list[float]
    """Hours until the starts that are kept, by the order of the queue."""
    plan_ms: list[float]
    later_ms: list[float]
    our_starts: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--jobs", type=int, default=2_000, help="that wait")
    parser.add_argument("--starts", type=int, default=8, help="that are kept")
    parser.add_argument("--turns", type=int, default=5, help="cycles of each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if MISSING:
        print(f"skipped: Slurm is not installed ({', '.join(MISSING)} not found)")
        return
    report = measure(arguments.nodes, arguments.jobs, arguments.starts, arguments.turns)
    if arguments.json:
        print(json.dumps(asdict(report), indent=2))
        return
    print(f"{report.slurm}, SchedulerParameters={report.scheduler_parameters}")
    print(f"{report.jobs} jobs wait for {report.nodes} nodes; hours until the starts kept:")
    for name, hours in (("Slurm", report.slurm_starts), ("Longshore", report.our_starts)):
        print(f"{name:>10} {', '.join(f'{each:.2f}' for each in hours[:_SHOWN])}")
    slurm_ms = statistics.median(report.slurm_ms)
    for name, took in (
        ("backfill", report.slurm_ms), ("plan", report.plan_ms), ("later", report.later_ms),
    ):  # fmt: skip
        middle, each = statistics.median(took), ", ".join(f"{ms:.1f}" for ms in took)
        print(f"{name:>10} {middle:8.1f} ms, {middle / slurm_ms:.2f} of backfill   ({each})")


def measure(nodes: int, jobs: int, starts: int, turns: int) -> Report:
    """Return what both take. Ends the program where one of them does not look at all jobs."""
    busy = [_asked(GPUS, 120 + number * 37 % 720) for number in range(nodes)]
    waiting = [_asked((1, 2, 4, 8)[i % 4], 60 + i * 7_919 % 600) for i in range(jobs)]
    parameters = (
        f"bf_max_job_test={nodes + jobs},bf_job_part_count_reserve={starts},bf_interval=5,"
        "bf_window=2880,bf_max_time=600,default_queue_depth=1,sched_interval=600"
    )
    with slurm(_asked(GPUS, 0), nodes, parameters) as controller:
        controller.submit(busy)
        controller.wait_for("CONFIGURING", nodes)
        controller.submit(waiting)
        controller.wait_for("PENDING", jobs)
        slurm_ms = controller.cycles(turns, jobs)
        theirs = controller.starts()
        version = controller.version
    plan_ms, later_ms, ours = _ours(busy, waiting, starts, turns)
    return Report(
        nodes=nodes, jobs=jobs, starts=starts, slurm=version, scheduler_parameters=parameters,
        slurm_ms=slurm_ms, slurm_starts=theirs, plan_ms=plan_ms, later_ms=later_ms,
        our_starts=ours,
    )  # fmt: skip


def _asked(gpus: int, minutes: int) -> Asked:
    return Asked(gpus, gpus * CPUS // GPUS, gpus * RAM_GB // GPUS, minutes)


def _ours(
    busy: list[Asked], waiting: list[Asked], starts: int, turns: int
) -> tuple[list[float], list[float], list[float]]:
    """Return what the cycles took, and the hours until the starts that are kept."""
    warm()
    kept = NodeCache()
    kept.update(
        {f"n{number}" for number in range(len(busy))},
        [_busy_node(number) for number in range(len(busy))],
        [_running(number, job) for number, job in enumerate(busy)],
    )
    queue = [_job(number, job) for number, job in enumerate(waiting)]
    policy = PackingPolicy(rule=PackingRule.KEEP_ROOM, max_reservations=starts)
    mix = mix_kept(queue, kept, policy, ())
    long = LongQueue()
    for job in queue:
        long.put(job)

    def plan_all() -> CyclePlan:
        return plan_cached(queue, kept, policy, NOW, mix=mix)

    def plan_part() -> CyclePlan:
        part = long.to_plan(kept.open_gpus, kept.gpus, policy, NOW, wanted=())
        if part is None:  # a short queue is planned whole
            return plan_all()
        return plan_cached(part.jobs, kept, policy, NOW, mix=mix, wanted=part.wanted)

    whole = plan_all()
    if whole.placements or len(whole.decisions) != len(queue):
        sys.exit("a job is placed on a node that is full, or has no decision")
    if plan_part().reservations != whole.reservations:
        sys.exit("a part of the queue keeps other starts than all of it")
    hours = [(each.start - NOW) / timedelta(hours=1) for each in whole.reservations]
    return _timed(plan_all, turns), _timed(plan_part, turns), hours


def _busy_node(number: int) -> Node:
    gpus = tuple(GPU(index=i, vram=80, job_id=f"r{number}") for i in range(GPUS))
    return Node(id=f"n{number}", gpus=gpus, cpus=CPUS, ram=RAM_GB, cpus_used=CPUS, ram_used=RAM_GB)


def _running(number: int, job: Asked) -> RunningJob:
    return RunningJob(
        job_id=f"r{number}", node_id=f"n{number}", gpu_indices=tuple(range(GPUS)),
        cpus=job.cpus, ram=job.ram_gb, expected_end=NOW + timedelta(minutes=job.minutes),
    )  # fmt: skip


def _job(number: int, job: Asked) -> JobRequest:
    return JobRequest(
        id=f"{number:06}", gpus=job.gpus, cpus=job.cpus, ram=job.ram_gb,
        expected_duration=timedelta(minutes=job.minutes),
        submitted_at=NOW - timedelta(days=1) + timedelta(seconds=number),
    )  # fmt: skip


def _timed(plan: Callable[[], object], turns: int) -> list[float]:
    """Return the milliseconds of so many turns."""
    took: list[float] = []
    for _ in range(turns):
        began = time.perf_counter()
        plan()
        took.append(1000 * (time.perf_counter() - began))
    return took


if __name__ == "__main__":
    main()
