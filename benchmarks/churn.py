"""Jobs that come and go without a queue: how much GPU time the live cycle refuses by each rule.

    python -m benchmarks.churn --data FOLDER [--workload NAME,...] [--mode share|whole]
                               [--loads 0.9,1.0] [--seeds 0-19] [--nodes 128] [--rules NAME,...]
                               [--json]
    python -m benchmarks.churn --trace FILE [--nodes 64] [--seeds 0-4] [--rules NAME,...]
                               [--json]

The first draws pods of a list that want GPUs, at random moments and for exponential times, on
nodes drawn anew for each seed. The second replays a trace of jobs (submit_s, duration_s, num_gpu)
on equal nodes of 8 GPUs; seed 0 is the trace itself, others move its submit times a little. Every
job is a cycle of its own. Differences are to `tight` with the same jobs. Without arguments the
small sample in examples/trace/packing is played.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.churn_streams import Refusals, Stream, pod_stream, refusals, trace_stream
from benchmarks.packing_lists import SAMPLE, Pod, parse_seeds, read_nodes, read_pods, workloads_in
from longshore.models.placement import PackingRule

RIVAL = PackingRule.TIGHT.value
CHURN_MODES = ("share", "whole")


@dataclass(frozen=True)
class Result:
    """One rule on one stream, means over seeds, in per cent."""

    stream: str
    policy: str
    gpu_time: float
    """GPU time refused."""
    jobs: float
    wide: float
    """Jobs of four or more GPUs refused."""
    versus_tight: float
    """GPU time refused less that of `tight` with the same jobs."""
    error: float
    """Standard error of that difference."""
    ratio: float
    """GPU time refused / that of `tight`."""


def main() -> None:
    arguments = _parse()
    seeds = parse_seeds(arguments.seeds or ("0-4" if arguments.trace else "0-19"))
    rules = [PackingRule(name) for name in arguments.rules.split(",")]
    results: list[Result] = []
    if arguments.trace:
        nodes = arguments.nodes or 64
        name = f"{arguments.trace.name}, {nodes} nodes"
        results += compare(
            name, lambda seed: trace_stream(arguments.trace, nodes, seed), seeds, rules
        )
        if not arguments.json:
            _print(results)
    else:
        results += _lists(arguments, seeds, rules)
    if arguments.json:
        print(json.dumps({"results": [asdict(r) for r in results]}, indent=2))


def compare(
    name: str,
    make: Callable[[int], Stream],
    seeds: Sequence[int],
    rules: Sequence[PackingRule],
) -> list[Result]:
    """Play the same streams by every rule."""
    refused: dict[str, list[Refusals]] = {rule.value: [] for rule in rules}
    for seed in seeds:
        stream = make(seed)
        for rule in rules:
            refused[rule.value].append(refusals(stream, rule))
    rival = np.array([row.gpu_time for row in refused.get(RIVAL) or refused[rules[0].value]])
    results: list[Result] = []
    for policy, rows in refused.items():
        gpu_time = np.array([row.gpu_time for row in rows])
        more = gpu_time - rival
        results.append(
            Result(
                stream=name,
                policy=policy,
                gpu_time=float(gpu_time.mean()),
                jobs=float(np.mean([row.jobs for row in rows])),
                wide=float(np.mean([row.wide for row in rows])),
                versus_tight=float(more.mean()),
                error=float(more.std(ddof=1) / len(more) ** 0.5) if len(more) > 1 else 0.0,
                ratio=float(gpu_time.mean() / rival.mean()) if rival.mean() else float("nan"),
            )
        )
    return results


def _lists(
    arguments: argparse.Namespace, seeds: Sequence[int], rules: Sequence[PackingRule]
) -> list[Result]:
    folder: Path = arguments.data
    nodes = read_nodes(folder)
    size = arguments.nodes or min(128, len(nodes.sizes) // 2)
    names = arguments.workload.split(",") if arguments.workload else workloads_in(folder)
    results: list[Result] = []
    for name in names:
        pods = read_pods(folder, name, arguments.mode)
        for load in (float(part) for part in arguments.loads.split(",")):

            def make(seed: int, load: float = load, pods: Sequence[Pod] = pods) -> Stream:
                return pod_stream(nodes, pods, load, seed, size)

            measured = compare(f"{name} {arguments.mode} {load}", make, seeds, rules)
            if not arguments.json:
                _print(measured)
            results += measured
    return results


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=SAMPLE, help="folder with the lists")
    parser.add_argument("--workload", help="names of lists, with commas; default: all")
    parser.add_argument("--mode", choices=CHURN_MODES, default="whole")
    parser.add_argument("--loads", default="0.9,1.0", help="asked for / GPUs")
    parser.add_argument("--trace", type=Path, help="a trace of jobs, in place of lists")
    parser.add_argument("--nodes", type=int, help="128 drawn nodes, or 64 equal ones for a trace")
    parser.add_argument("--seeds", help="0-19, or 0-4 for a trace")
    parser.add_argument("--rules", default=",".join(PackingRule), help="names of rules")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _print(results: Sequence[Result]) -> None:
    print(
        f"{'stream':28} {'policy':16} {'GPU time':>8} {'to tight':>15} {'ratio':>6} "
        f"{'jobs':>6} {'4 and more GPUs':>15}"
    )
    for r in results:
        print(
            f"{r.stream:28} {r.policy:16} {r.gpu_time:8.2f} {r.versus_tight:+8.2f} ± "
            f"{r.error:4.2f} {r.ratio:6.3f} {r.jobs:6.2f} {r.wide:15.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
