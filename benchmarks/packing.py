"""Packing a public trace: how much of the GPUs each policy gets into use, side by side.

    python -m benchmarks.packing --data FOLDER [--workload NAME,...] [--mode share|whole|vram]
                                 [--seeds 42-51] [--small] [--json] [--write FOLDER]

Pods come one by one and never leave; a pod that fits nowhere is dropped. `alloc@100` is the share
of the GPUs in use when as many have been asked for as there are, `alloc@130` when 30 % more have.
Without arguments the small sample in examples/trace/packing is measured.

`--small` draws clusters of 12 nodes (share) or 16 (otherwise) and also places the queue in batches
of 50, each as a whole. `--write` writes the first workload and seed as nodes.csv and arrivals.csv,
with placements-POLICY.csv, so that another program can check and score them.
"""

import argparse
import csv
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.packing_lists import (
    MODES,
    SAMPLE,
    Nodes,
    Pod,
    arrivals,
    parse_seeds,
    placeable,
    read_nodes,
    read_pods,
    small_cluster,
    workloads_in,
)
from scheduling.packing.batch import place_batch
from scheduling.packing.fleet import WHOLE, Choice, Fleet
from scheduling.packing.outlook import OutlookKeeper
from scheduling.packing.policies import POLICIES
from scheduling.packing.shapes import typical

OURS, RIVAL = "keep-room", "fgd"
BATCH = 50
SMALL_NODES = {"share": 12, "whole": 16, "vram": 16}


@dataclass(frozen=True)
class Result:
    """One policy on one list, means over seeds. All but the last are per cent."""

    workload: str
    mode: str
    policy: str
    alloc_100: float
    alloc_130: float
    fragmented: float
    """Share of the GPUs that is idle and that a typical pod cannot use, at the end."""
    first_failure: float
    """Asked for when the first pod that wants GPUs was dropped."""
    failed_8: float
    """Pods of 8 GPUs dropped until 100 % was asked for."""
    us_per_decision: float
    """Of the processor, median; the first decision of a process may have to compile."""
    versus_fgd: float = 0.0
    """alloc@100 less that of `fgd` with the same arrivals."""
    error: float = 0.0
    """Standard error of that difference."""


def main() -> None:
    arguments = _parse()
    folder: Path = arguments.data
    names = arguments.workload.split(",") if arguments.workload else workloads_in(folder)
    seeds = parse_seeds(arguments.seeds)
    nodes = read_nodes(folder)
    results: list[Result] = []
    for name in names:
        pods = read_pods(folder, name, nodes.models, arguments.mode)
        measured = small(nodes, pods, arguments.mode, seeds) if arguments.small else full(
            nodes, pods, seeds
        )  # fmt: skip
        results.extend(_summary(name, arguments.mode, measured))
        if not arguments.json:
            _print(results[-len(measured) :])
    if arguments.write:
        pods = read_pods(folder, names[0], nodes.models, arguments.mode)
        write(arguments.write, nodes.shuffled(seeds[0]), pods, seeds[0])
    if arguments.json:
        ours = [r for r in results if r.policy == OURS]
        rival = [r for r in results if r.policy == RIVAL]
        ratio = float(
            np.mean([o.alloc_100 / r.alloc_100 for o, r in zip(ours, rival, strict=True)])
        )
        print(json.dumps({"results": [asdict(r) for r in results], "ratio": ratio}, indent=2))


Measured = dict[str, list[dict[str, float]]]
"""By policy: what was measured, seed by seed."""


def full(nodes: Nodes, pods: Sequence[Pod], seeds: Sequence[int]) -> Measured:
    """Measure every policy on all nodes."""
    measured: Measured = defaultdict(list)
    for seed in seeds:
        queue = arrivals(pods, nodes.gpus, seed)
        for policy in POLICIES:
            fleet = nodes.shuffled(seed).fleet()
            measured[policy].append(watch(fleet, pods, queue, policy)[0])
    return measured


def small(nodes: Nodes, pods: Sequence[Pod], mode: str, seeds: Sequence[int]) -> Measured:
    """Measure every policy on small clusters, and the queue placed in batches."""
    measured: Measured = defaultdict(list)
    for seed in seeds:
        drawn = small_cluster(nodes, seed, SMALL_NODES[mode])
        possible = placeable(pods, drawn)
        queue = arrivals(possible, drawn.gpus, seed)
        asked = np.cumsum([pod.request.gpu_milli for pod in queue])
        until_100 = queue[: int(np.searchsorted(asked, drawn.gpus * WHOLE, side="right"))]
        for policy in POLICIES:
            fleet = drawn.shuffled(seed).fleet()
            row, _ = watch(fleet.copy(), possible, queue, policy)
            row["alloc_100"] = _share_in_use(fleet, possible, until_100, policy)
            row["alloc_130"] = _share_in_use(fleet, possible, queue, policy)
            measured[policy].append(row)
        row = {"alloc_100": batches(drawn.shuffled(seed).fleet(), until_100)}
        measured[f"{OURS}, batches of {BATCH}"].append(
            row | {"alloc_130": batches(drawn.shuffled(seed).fleet(), queue)}
        )
    return measured


def watch(
    fleet: Fleet, pods: Sequence[Pod], queue: Sequence[Pod], policy_name: str
) -> tuple[dict[str, float], list[Choice | None]]:
    """Place a queue one by one. Return what was measured, and the placements."""
    policy = POLICIES[policy_name]([pod.request for pod in pods])
    total, asked, used = fleet.total_milli, 0, 0
    in_use: dict[int, list[float]] = defaultdict(list)
    first_failure = float("nan")
    wide = [0, 0]
    choices: list[Choice | None] = []
    deciding: list[float] = []
    for pod in queue:
        request = pod.request
        asked += request.gpu_milli
        begin = time.process_time()
        choice = policy.choose(fleet, request)
        deciding.append(time.process_time() - begin)
        choices.append(choice)
        if choice is not None:
            fleet.take(request, choice)
            used += request.gpu_milli
        elif request.gpus and np.isnan(first_failure):
            first_failure = 100 * asked / total
        if request.gpus == 8 and asked <= total:
            wide[choice is None] += 1
        in_use[round(100 * asked / total)].append(100 * used / total)
    row = {
        "alloc_100": _near(in_use, 100),
        "alloc_130": _near(in_use, 130),
        "fragmented": fragmented(fleet, pods),
        "first_failure": first_failure,
        "failed_8": 100 * wide[1] / sum(wide) if sum(wide) else float("nan"),
        "us_per_decision": 1e6 * float(np.median(deciding)) if deciding else 0.0,
    }
    return row, choices


def batches(fleet: Fleet, queue: Sequence[Pod]) -> float:
    """Return the share in use, in per cent, after placing a queue in batches."""
    keeper = OutlookKeeper()
    for begin in range(0, len(queue), BATCH):
        requests = [pod.request for pod in queue[begin : begin + BATCH]]
        for request, choice in zip(requests, place_batch(fleet, requests, keeper), strict=True):
            if choice is not None:
                fleet.take(request, choice)
    return 100 * (1 - fleet.free_milli() / fleet.total_milli)


def fragmented(fleet: Fleet, pods: Sequence[Pod]) -> float:
    """Return the share of the GPUs, in per cent, that is idle and no use to a typical pod."""
    from scheduling.packing.kernels import fragmentation

    need, weight = typical(pod.request for pod in pods)
    c = fleet.columns
    lost = sum(
        fragmentation(c.cpu[n], c.milli[n], c.gpus[n], c.model[n], need, weight)
        for n in range(len(fleet))
    )
    return 100 * float(lost) / fleet.total_milli


def write(folder: Path, nodes: Nodes, pods: Sequence[Pod], seed: int) -> None:
    """Write one seed in files: the nodes in order, the arrivals, and what each policy did."""
    folder.mkdir(parents=True, exist_ok=True)
    queue = arrivals(pods, nodes.gpus, seed)
    _csv(
        folder / "nodes.csv",
        ("node", "cpu_milli", "memory_mib", "gpu", "model", "vram_mib"),
        [
            (name, size.cpu, size.ram, size.gpus, nodes.models[size.model], size.vram)
            for name, size in zip(nodes.names, nodes.sizes, strict=True)
        ],
    )
    _csv(
        folder / "arrivals.csv",
        ("k", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "requested_milli", "models",
         "min_vram_mib"),
        [
            (k, r.cpu, r.ram, r.gpus, r.milli, pod.asked_milli, _allowed(nodes, r.models), r.vram)
            for k, pod in enumerate(queue)
            for r in (pod.request,)
        ],
    )  # fmt: skip
    for policy in POLICIES:
        _, choices = watch(nodes.fleet(), pods, queue, policy)
        _csv(
            folder / f"placements-{policy}.csv",
            ("k", "node", "gpus"),
            [
                (k, nodes.names[c.node], "-".join(map(str, c.gpus))) if c else (k, "", "")
                for k, c in enumerate(choices)
            ],
        )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=SAMPLE, help="folder with the lists")
    parser.add_argument("--workload", help="names of lists, with commas; default: all")
    parser.add_argument("--mode", choices=MODES, default="share")
    parser.add_argument("--seeds", default="42-51", help="42-51 or 1,2,3")
    parser.add_argument("--small", action="store_true", help="small clusters, and batches")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", type=Path, help="write files for another program into a folder")
    return parser.parse_args()


def _summary(workload: str, mode: str, measured: Measured) -> list[Result]:
    rival = np.array([row["alloc_100"] for row in measured[RIVAL]])
    results: list[Result] = []
    for policy, rows in measured.items():
        ahead = np.array([row["alloc_100"] for row in rows]) - rival
        means = {
            key: _mean([row.get(key, float("nan")) for row in rows]) for key in measured[RIVAL][0]
        }
        error = float(ahead.std(ddof=1) / len(ahead) ** 0.5) if len(ahead) > 1 else 0.0
        results.append(
            Result(workload, mode, policy, **means, versus_fgd=float(ahead.mean()), error=error)
        )
    return results


def _print(results: Sequence[Result]) -> None:
    print(
        f"{'workload':12} {'mode':6} {'policy':24} {'alloc@100':>9} {'@130':>6} {'to fgd':>14} "
        f"{'fragm.':>6} {'first failure':>13} {'8-GPU failed':>12} {'us':>6}"
    )
    for r in results:
        print(
            f"{r.workload:12} {r.mode:6} {r.policy:24} {r.alloc_100:9.2f} {r.alloc_130:6.2f} "
            f"{r.versus_fgd:+7.2f} ± {r.error:4.2f} {r.fragmented:6.2f} {r.first_failure:13.2f} "
            f"{r.failed_8:12.2f} {r.us_per_decision:6.0f}",
            flush=True,
        )


def _share_in_use(fleet: Fleet, pods: Sequence[Pod], queue: Sequence[Pod], policy: str) -> float:
    work = fleet.copy()
    watch(work, pods, queue, policy)
    return 100 * (1 - work.free_milli() / work.total_milli)


def _near(in_use: dict[int, list[float]], load: int) -> float:
    nearest = min(in_use, key=lambda at: (abs(at - load), at))
    return float(np.mean(in_use[nearest]))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _allowed(nodes: Nodes, mask: int) -> str:
    names = [name for bit, name in enumerate(nodes.models) if mask >> bit & 1]
    return "|".join(names) or ("none" if mask else "")


def _csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
