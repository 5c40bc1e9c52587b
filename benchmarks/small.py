"""Small clusters: a queue taken one by one, as a set, and by an integer program.

    python -m benchmarks.small [--data FOLDER] [--workload NAME,...] [--seeds 0-19] [--nodes 12]
                               [--seconds 30] [--json]

Clusters are drawn from a public list of nodes; the queue asks for 100 % of their GPUs and is
given to one cycle, in the order of its rank. Numbers are the share of the GPUs that it gets.

`one by one` is the live cycle without the search of scheduling.placement.rearranging, and
`as a set` with it.
`program` is CP-SAT (ortools), free to leave out whom it likes: what it found in so many seconds,
and its bound. `in rank` is CP-SAT asked for each job in turn whether it can start beside all that
were started before it, 2 seconds for each question. Both need ortools, best in an environment of
its own (`pip install . ortools`); `--seconds 0` leaves them out. Pods that want no GPU are placed
first, in the same way for all.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.live_pool import START
from benchmarks.packing import Rest
from benchmarks.packing_lists import (
    SAMPLE,
    WHOLE,
    Nodes,
    NodeSize,
    Pod,
    arrivals,
    job_of,
    name_of,
    parse_seeds,
    placeable,
    read_nodes,
    read_pods,
    small_cluster,
    workloads_in,
)
from benchmarks.small_program import is_there, most, start_in_rank
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy, PackingRule
from longshore.scheduling.cycle import plan

NAMES = (
    "one by one", "as a set", "in rank", "program", "bound", "ms, one by one", "ms, as a set",
    "ms, slowest",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One list, means over its clusters; per cent of the GPUs."""

    workload: str
    clusters: int
    one_by_one: float
    as_a_set: float
    in_rank: float
    program: float
    bound: float
    ms_one_by_one: float
    """Of the processor for the whole queue, not compiled, and"""
    ms_as_a_set: float
    slowest_ms: float
    """as a set, in the worst cluster."""


def main() -> None:
    arguments = _parse()
    if arguments.seconds and not is_there():
        raise SystemExit(
            "ortools is not installed: pip install ortools, or leave out the integer "
            "program with --seconds 0"
        )
    names = arguments.workload.split(",") if arguments.workload else workloads_in(arguments.data)
    rows: list[Row] = []
    for name in names:
        rows.append(measure(name, arguments))
        if not arguments.json:
            _print(rows)
    if arguments.json:
        print(json.dumps({"results": [asdict(row) for row in rows]}, indent=2))


def measure(name: str, arguments: argparse.Namespace) -> Row:
    """Measure one list."""
    nodes = read_nodes(arguments.data)
    pods = read_pods(arguments.data, name, "share")
    sums: defaultdict[str, float] = defaultdict(float)
    slowest = 0.0
    seeds = parse_seeds(arguments.seeds)
    for seed in seeds:
        drawn = small_cluster(nodes, seed, arguments.nodes)
        queue = arrivals(placeable(pods, drawn), drawn.gpus, seed, ratio=1.0)
        there, left, jobs = _without_gpus(drawn, queue)
        percent = 100.0 / (WHOLE * drawn.gpus)
        for what, as_a_set in (("one_by_one", False), ("as_a_set", True)):
            started, spent = play(there, jobs, as_a_set=as_a_set)
            sums[what] += percent * sum(pod.gpu_milli for pod in started)
            sums[f"ms_{what}"] += 1000 * spent
        slowest = max(slowest, 1000 * spent)
        wanted = [pod for _, pod in jobs]
        if arguments.seconds:
            found, bound = most(left, wanted, arguments.seconds)
            sums["program"] += percent * found
            sums["bound"] += percent * bound
            sums["in_rank"] += percent * sum(pod.gpu_milli for pod in start_in_rank(left, wanted))
    means = {field.name: sums[field.name] / len(seeds) for field in fields(Row)[2:-1]}
    return Row(name, len(seeds), **means, slowest_ms=slowest)


def play(
    nodes: Sequence[Node], jobs: Sequence[tuple[int, Pod]], *, as_a_set: bool
) -> tuple[list[Pod], float]:
    """Give a queue to one cycle; return what started, and the seconds that it took."""
    policy = PackingPolicy(rule=PackingRule.KEEP_ROOM)
    asked = [job_of(number, pod) for number, pod in jobs]
    begin = time.process_time()
    made = plan(asked, nodes, (), policy, START, compiled=False, as_a_set=as_a_set)
    spent = time.process_time() - begin
    started = {decision.job_id for decision in made.placements}
    return [pod for (_, pod), job in zip(jobs, asked, strict=True) if job.id in started], spent


def _without_gpus(
    drawn: Nodes, queue: Sequence[Pod]
) -> tuple[list[Node], list[NodeSize], list[tuple[int, Pod]]]:
    """Place the pods that want no GPU; return the nodes, what they have left, and the others."""
    nodes = {node.id: node for node in drawn.idle()}
    left = list(drawn.sizes)
    rest = Rest(drawn)
    jobs: list[tuple[int, Pod]] = []
    for number, pod in enumerate(queue):
        if pod.gpus:
            jobs.append((number, pod))
        elif (row := rest.spare(pod)) is not None:
            rest.take(row, pod)
            node, size = nodes[name_of(row)], left[row]
            left[row] = size._replace(cpu=size.cpu - pod.cpu, ram=size.ram - pod.ram)
            used = {
                "cpus_used": round(node.cpus_used + pod.cpu / 1000, 3),
                "ram_used": round(node.ram_used + pod.ram / 1024, 3),
            }
            nodes[node.id] = node.model_copy(update=used)
    return list(nodes.values()), left, jobs


def _print(rows: Sequence[Row]) -> None:
    if len(rows) == 1:
        print(f"{'list':14}" + "".join(f"{name:>16}" for name in NAMES))
    numbers = list(asdict(rows[-1]).values())[2:]
    print(
        f"{rows[-1].workload:14}" + "".join(f"{n:16.2f}" if n else f"{'-':>16}" for n in numbers),
        flush=True,
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SAMPLE, metavar="FOLDER")
    parser.add_argument("--workload", help="names of lists; all of the folder when left out")
    parser.add_argument("--seeds", default="0-19")
    parser.add_argument("--nodes", type=int, default=12, help="in each cluster")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="for the program; 0: without it"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
