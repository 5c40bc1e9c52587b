"""Packing a public trace by the live cycle: how much of the GPUs each rule gets into use.

    python -m benchmarks.packing --data FOLDER [--workload NAME,...] [--mode share|whole|vram]
                                 [--seeds 42-51] [--rules NAME,...] [--cycle 32] [--small]
                                 [--typed PERCENT] [--cpu-only TIMES] [--json] [--write FOLDER]

Pods come one by one and never leave; a pod that fits nowhere is dropped. `alloc@100` is the share
of the GPUs in use when as many have been asked for as there are, `alloc@130` when 30 % more have.
Every pod that wants GPUs is a job of `scheduling.cycle`, `--cycle` of them in one cycle, decided
in the order that they came. Longshore has no jobs without GPUs: pods that want none take cores
where the GPUs need them least, in the same way whatever the rule. Without arguments the small
sample in examples/trace/packing is measured.

`--small` draws clusters of 12 nodes (share) or 16 (otherwise), and each number is of a queue that
ends there. `--typed` leaves out pods that name no type until so many per cent of those that want
GPUs name one; `--cpu-only` has each pod that wants none so many times. `--write` writes the first
workload and seed as nodes.csv and arrivals.csv, with placements-RULE.csv, so that another program
can check and score them.
"""

import argparse
import csv
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.live_pool import START, LivePool
from benchmarks.packing_lists import (
    MODES,
    SAMPLE,
    WHOLE,
    Nodes,
    Pod,
    altered,
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
from longshore.models.placement import PackingPolicy, PackingRule
from longshore.scheduling.bulk import FEWEST
from longshore.scheduling.bulk.warm import warm

OURS, RIVAL = PackingRule.KEEP_ROOM.value, PackingRule.FGD.value
CYCLE = 32
SMALL_NODES = {"share": 12, "whole": 16, "vram": 16}


class Place(NamedTuple):
    """Where a pod went: the row of its node, and its GPUs there."""

    node: int
    gpus: tuple[int, ...]


class Played(NamedTuple):
    places: list[Place | None]
    """Of each pod."""
    milliseconds: float
    """Of the processor for each pod that wants GPUs."""


@dataclass(frozen=True)
class Result:
    """One rule on one list, means over seeds. All but the last three are per cent."""

    workload: str
    mode: str
    policy: str
    alloc_100: float
    alloc_130: float
    first_failure: float
    """Asked for when the first pod that wants GPUs was dropped."""
    failed_8: float
    """Pods of 8 GPUs dropped until 100 % was asked for."""
    ms_per_job: float
    """Of the processor: cycles, and what takes in what they placed."""
    versus_fgd: float = 0.0
    """alloc@100 less that of `fgd` with the same arrivals."""
    error: float = 0.0
    """Standard error of that difference."""


def main() -> None:
    arguments = _parse()
    folder: Path = arguments.data
    names = arguments.workload.split(",") if arguments.workload else workloads_in(folder)
    rules = [PackingRule(name) for name in arguments.rules.split(",")]
    seeds = parse_seeds(arguments.seeds)
    nodes = read_nodes(folder)
    if arguments.cycle >= FEWEST:  # as a control worker has it once its plans take long
        warm()
    results: list[Result] = []
    for name in names:
        pods = _pods(name, arguments)
        measured = measure(nodes, pods, rules, seeds, arguments)
        results.extend(_summary(name, arguments.mode, measured))
        if not arguments.json:
            _print(results[-len(measured) :])
    if arguments.write:
        pods = _pods(names[0], arguments)
        write(arguments.write, nodes.shuffled(seeds[0]), pods, rules, seeds[0], arguments)
    if arguments.json:
        print(json.dumps({"results": [asdict(r) for r in results]}, indent=2))


Measured = dict[str, list[dict[str, float]]]
"""By rule: what was measured, seed by seed."""


def measure(
    nodes: Nodes,
    pods: Sequence[Pod],
    rules: Sequence[PackingRule],
    seeds: Sequence[int],
    arguments: argparse.Namespace,
) -> Measured:
    """Measure every rule on all nodes, or on small clusters."""
    measured: Measured = defaultdict(list)
    for seed in seeds:
        drawn, possible = nodes, pods
        if arguments.small:
            drawn = small_cluster(nodes, seed, SMALL_NODES[arguments.mode])
            possible = placeable(pods, drawn)
        queue = arrivals(possible, drawn.gpus, seed)
        order = drawn.shuffled(seed)
        for rule in rules:
            played = play(order, queue, rule, arguments.cycle, vram=arguments.mode == "vram")
            measured[rule.value].append(_row(order, queue, played, small=arguments.small))
    return measured


def play(
    nodes: Nodes, queue: Sequence[Pod], rule: PackingRule, cycle: int, *, vram: bool = False
) -> Played:
    """Place a queue in cycles of so many jobs. A pod without GPUs comes after the cycle of those
    before it."""
    policy = PackingPolicy(rule=rule, max_reservations=0)
    pool = LivePool(nodes.idle(vram=vram), policy)
    rest = Rest(nodes)
    places: list[Place | None] = [None] * len(queue)
    rows = {name_of(row): row for row in range(len(nodes.sizes))}
    begin, jobs = time.process_time(), 0

    def run(numbers: list[int]) -> None:
        asked = [job_of(number, queue[number], vram=vram) for number in numbers]
        for decision in pool.place(asked, START):
            if decision.node_id is not None:
                number, row = int(decision.job_id), rows[decision.node_id]
                places[number] = Place(row, decision.gpu_indices)
                rest.take(row, queue[number])
        numbers.clear()

    waiting: list[int] = []
    for number, pod in enumerate(queue):
        if pod.gpus:
            waiting.append(number)
            jobs += 1
            if len(waiting) == cycle:
                run(waiting)
        elif (row := rest.spare(pod)) is not None:
            places[number] = Place(row, ())
            rest.take(row, pod)
            node = pool.nodes[name_of(row)]
            cpus, ram = node.cpus_used + pod.cpu / 1000, node.ram_used + pod.ram / 1024
            pool.replace(node.model_copy(update={"cpus_used": cpus, "ram_used": ram}))
    run(waiting)
    spent = time.process_time() - begin
    return Played(places, 1000 * spent / max(jobs, 1))


class Rest:
    """What is left of each node, counted for pods that want no GPU."""

    def __init__(self, nodes: Nodes) -> None:
        self._cpu = np.array([size.cpu for size in nodes.sizes])
        self._ram = np.array([size.ram for size in nodes.sizes])
        self._milli = np.array([size.gpus * WHOLE for size in nodes.sizes])

    def take(self, row: int, pod: Pod) -> None:
        self._cpu[row] -= pod.cpu
        self._ram[row] -= pod.ram
        self._milli[row] -= pod.gpu_milli

    def spare(self, pod: Pod) -> int | None:
        """Return the node with the most free cores for each free GPU, the first among equals."""
        fits = (self._cpu >= pod.cpu) & (self._ram >= pod.ram)
        if not fits.any():
            return None
        return int(np.where(fits, self._cpu / (self._milli + 1), -1.0).argmax())


def _row(nodes: Nodes, queue: Sequence[Pod], played: Played, *, small: bool) -> dict[str, float]:
    total, asked, used = nodes.gpus * WHOLE, 0, 0
    in_use: dict[int, list[float]] = defaultdict(list)
    first_failure, at_100 = float("nan"), 0.0
    wide = [0, 0]
    for pod, place in zip(queue, played.places, strict=True):
        asked += pod.gpu_milli
        if place is not None:
            used += pod.gpu_milli
        elif pod.gpus and np.isnan(first_failure):
            first_failure = 100 * asked / total
        if asked <= total:
            at_100 = 100 * used / total
            if pod.gpus == 8:
                wide[place is None] += 1
        in_use[round(100 * asked / total)].append(100 * used / total)
    return {
        "alloc_100": at_100 if small else _near(in_use, 100),
        "alloc_130": 100 * used / total if small else _near(in_use, 130),
        "first_failure": first_failure,
        "failed_8": 100 * wide[1] / sum(wide) if sum(wide) else float("nan"),
        "ms_per_job": played.milliseconds,
    }


def write(
    folder: Path,
    nodes: Nodes,
    pods: Sequence[Pod],
    rules: Sequence[PackingRule],
    seed: int,
    arguments: argparse.Namespace,
) -> None:
    """Write one seed in files: the nodes in order, the arrivals, and what each rule did."""
    folder.mkdir(parents=True, exist_ok=True)
    queue = arrivals(pods, nodes.gpus, seed)
    _csv(
        folder / "nodes.csv",
        ("node", "cpu_milli", "memory_mib", "gpu", "model", "vram_mib"),
        [
            (name, size.cpu, size.ram, size.gpus, size.model, size.vram)
            for name, size in zip(nodes.names, nodes.sizes, strict=True)
        ],
    )
    _csv(
        folder / "arrivals.csv",
        ("k", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "models", "min_vram_mib"),
        [
            (k, pod.cpu, pod.ram, pod.gpus, pod.milli, "|".join(pod.models), pod.vram)
            for k, pod in enumerate(queue)
        ],
    )
    for rule in rules:
        played = play(nodes, queue, rule, arguments.cycle, vram=arguments.mode == "vram")
        _csv(
            folder / f"placements-{rule}.csv",
            ("k", "node", "gpus"),
            [
                (k, nodes.names[p.node], "-".join(map(str, p.gpus))) if p else (k, "", "")
                for k, p in enumerate(played.places)
            ],
        )


def _pods(name: str, arguments: argparse.Namespace) -> list[Pod]:
    pods = read_pods(arguments.data, name, arguments.mode)
    return altered(pods, arguments.typed, arguments.cpu_only)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=SAMPLE, help="folder with the lists")
    parser.add_argument("--workload", help="names of lists, with commas; default: all")
    parser.add_argument("--mode", choices=MODES, default="share")
    parser.add_argument("--seeds", default="42-51", help="42-51 or 1,2,3")
    parser.add_argument("--rules", default=",".join(PackingRule), help="names of rules")
    parser.add_argument("--cycle", type=int, default=CYCLE, help="jobs of one cycle")
    parser.add_argument("--small", action="store_true", help="small clusters")
    parser.add_argument("--typed", type=float, help="per cent of the pods with a type of GPU")
    parser.add_argument("--cpu-only", type=int, default=1, help="times that those are there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", type=Path, help="write files for another program into a folder")
    return parser.parse_args()


def _summary(workload: str, mode: str, measured: Measured) -> list[Result]:
    known = measured.get(RIVAL)
    results: list[Result] = []
    for policy, rows in measured.items():
        rival = known or rows
        ahead = np.array(
            [row["alloc_100"] - other["alloc_100"] for row, other in zip(rows, rival, strict=True)]
        )
        means = {key: _mean([row[key] for row in rows]) for key in rows[0]}
        error = float(ahead.std(ddof=1) / len(ahead) ** 0.5) if len(ahead) > 1 else 0.0
        results.append(
            Result(workload, mode, policy, **means, versus_fgd=float(ahead.mean()), error=error)
        )
    return results


def _print(results: Sequence[Result]) -> None:
    print(
        f"{'workload':12} {'mode':6} {'rule':14} {'alloc@100':>9} {'@130':>6} {'to fgd':>14} "
        f"{'first failure':>13} {'8-GPU failed':>12} {'ms':>6}"
    )
    for r in results:
        print(
            f"{r.workload:12} {r.mode:6} {r.policy:14} {r.alloc_100:9.2f} {r.alloc_130:6.2f} "
            f"{r.versus_fgd:+7.2f} ± {r.error:4.2f} {r.first_failure:13.2f} "
            f"{r.failed_8:12.2f} {r.ms_per_job:6.2f}",
            flush=True,
        )


def _near(in_use: dict[int, list[float]], load: int) -> float:
    nearest = min(in_use, key=lambda at: (abs(at - load), at))
    return float(np.mean(in_use[nearest]))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
