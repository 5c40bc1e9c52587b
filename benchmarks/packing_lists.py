"""Lists of nodes and pods of a public trace, as nodes and jobs of a pool, and their arrivals.

A pod may name several models: the nodes say theirs as type and as fingerprint, and a pod names
one as its type, several as the fingerprints that it allows. Where memory of GPUs is not looked at
a GPU has 1 GB, and a part of it as much of that.

The protocol is that of *Beware of Fragmentation* (USENIX ATC 2023): every pod of the list once, in
random order, then pods drawn with replacement, until 130 % of the GPUs are asked for.
"""

import csv
import gzip
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.topology import Conformance

SAMPLE = Path(__file__).parents[1] / "examples" / "trace" / "packing"
NODE_FILE = "openb_node_list_gpu_node.csv"
POD_FILE = "openb_pod_list_{}.csv"
MODES = ("share", "whole", "vram")
VRAM_MIB = {
    "P4": 7611, "2080": 11019, "1080": 11178, "M40": 11448, "T4": 15109, "V100M16": 16160,
    "P100": 16280, "A10": 22731, "3090": 24268, "V100M32": 32510, "A100": 81251,
    "G1": 10000, "G2": 20000, "G3": 30000,
}  # fmt: skip
"""MiB of each GPU, as published with the trace's simulator."""
NO_FLOOR = 7000
"""MiB that a pod without a model constraint needs in mode `vram`."""
WHOLE = 1000
"""Thousandths of one GPU."""
HOUR = timedelta(hours=1)


class NodeSize(NamedTuple):
    """What an idle node has: milli-cores, MiB of RAM, GPUs, MiB of memory of each."""

    cpu: int
    ram: int
    gpus: int
    vram: int = 0
    model: str = ""


class Pod(NamedTuple):
    """What a pod asks of one node. `milli` and `vram` are of each of its `gpus`."""

    cpu: int
    ram: int
    gpus: int = 0
    milli: int = 0
    vram: int = 0
    models: tuple[str, ...] = ()
    """Those that it allows, in order; all when empty."""

    @property
    def gpu_milli(self) -> int:
        return self.gpus * self.milli


class Nodes(NamedTuple):
    names: tuple[str, ...]
    sizes: tuple[NodeSize, ...]

    @property
    def gpus(self) -> int:
        return sum(size.gpus for size in self.sizes)

    def picked(self, rows: Iterable[int]) -> "Nodes":
        chosen = [int(row) for row in rows]
        return Nodes(
            tuple(self.names[row] for row in chosen), tuple(self.sizes[row] for row in chosen)
        )

    def shuffled(self, seed: int) -> "Nodes":
        """Return the nodes in the order that breaks ties: one permutation a seed."""
        return self.picked(np.random.default_rng([seed, 7]).permutation(len(self.sizes)))

    def idle(self, *, vram: bool = False) -> list[Node]:
        """Return the nodes of a pool, named by their place in this order; `vram` with the memory
        of their GPUs."""
        return [
            Node(
                id=name_of(row), gpu_type=size.model, conformance=size.model or None,
                gpus=tuple(GPU(index=i, vram=_gb(size.vram) if vram else 1.0)
                           for i in range(size.gpus)),
                cpus=size.cpu / 1000, ram=_gb(size.ram),
            )
            for row, size in enumerate(self.sizes)
        ]  # fmt: skip


def name_of(row: int) -> str:
    return f"node-{row:05}"


def job_of(number: int, pod: Pod, expected: timedelta = HOUR, *, vram: bool = False) -> JobRequest:
    """Return the job of a pod that wants GPUs; jobs are queued by number. `vram`: it asks for
    memory of its GPUs."""
    several = Conformance(allowed=pod.models) if len(pod.models) > 1 else None
    return JobRequest(
        id=f"{number:07}", gpus=pod.gpus, milli=pod.milli,
        vram_per_gpu=_gb(pod.vram) if vram else pod.milli / WHOLE,
        gpu_type=pod.models[0] if len(pod.models) == 1 else None, conformance=several,
        cpus=pod.cpu / 1000, ram=_gb(pod.ram), expected_duration=expected,
    )  # fmt: skip


def read_nodes(folder: Path) -> Nodes:
    """Read the nodes of a folder, by name."""
    rows = sorted(_rows(folder / NODE_FILE), key=lambda row: row["sn"])
    sizes = tuple(
        NodeSize(
            cpu=int(row["cpu_milli"]),
            ram=int(row["memory_mib"]),
            gpus=int(row["gpu"]),
            vram=VRAM_MIB.get(row["model"], 0),
            model=row["model"],
        )
        for row in rows
    )
    return Nodes(tuple(row["sn"] for row in rows), sizes)


def read_pods(folder: Path, workload: str, mode: str) -> list[Pod]:
    """Read a list of pods as a mode has them.

    share: parts of GPUs are shared. whole: only pods that want whole GPUs. vram: as whole, and a
    constraint on models becomes the VRAM that the smallest of them has.
    """
    rows = sorted(_rows(folder / POD_FILE.format(workload)), key=lambda row: row["name"])
    pods = [_pod(row, mode) for row in rows]
    if mode == "share":
        return pods
    return [pod for pod in pods if pod.gpus and pod.milli == WHOLE]


def altered(pods: Sequence[Pod], typed: float | None, cpu_only: int) -> list[Pod]:
    """Return a list in which `typed` per cent of the pods that want GPUs name types, and each that
    wants none stands `cpu_only` times. Too many that name no type are left out at random."""
    kept = list(pods)
    if typed is not None:
        named = [pod for pod in pods if pod.models]
        others = [pod for pod in pods if not pod.models]
        wanted = len(named) * (100 / typed - 1)
        share = wanted / sum(pod.gpus > 0 for pod in others)
        if not named or share > 1:
            raise ValueError(f"fewer than {typed} % of the pods name types")
        chance = np.random.default_rng(0)
        kept = named + [pod for pod in others if chance.random() < share]
    return [pod for pod in kept for _ in range(1 if pod.gpus else cpu_only)]


def arrivals(pods: Sequence[Pod], gpus: int, seed: int, ratio: float = 1.3) -> list[Pod]:
    """Return pods in the order that they come: together they ask for `ratio` of the GPUs."""
    chance = np.random.default_rng(seed)
    target = ratio * gpus * WHOLE
    order = [pods[int(i)] for i in chance.permutation(len(pods))]
    asked = sum(pod.gpu_milli for pod in order)
    while asked > target:
        asked -= order.pop(int(chance.integers(len(order)))).gpu_milli
    if len(order) < len(pods):
        return order
    while True:
        pod = pods[int(chance.integers(len(pods)))]
        if asked + pod.milli > target:
            return order
        asked += pod.gpu_milli
        order.append(pod)


def small_cluster(nodes: Nodes, seed: int, size: int) -> Nodes:
    """Return `size` nodes drawn at random, in the order of the list."""
    chance = np.random.default_rng([seed, 99])
    return nodes.picked(np.sort(chance.choice(len(nodes.sizes), size, replace=False)))


def placeable(pods: Iterable[Pod], nodes: Nodes) -> list[Pod]:
    """Return the pods that some node of a cluster could take when idle."""
    kinds = set(nodes.sizes)
    return [pod for pod in pods if any(could_take(kind, pod) for kind in kinds)]


def could_take(node: NodeSize, pod: Pod) -> bool:
    if node.cpu < pod.cpu or node.ram < pod.ram or node.gpus < pod.gpus:
        return False
    if not pod.gpus:
        return True
    return (not pod.models or node.model in pod.models) and pod.vram <= node.vram


def parse_seeds(text: str) -> list[int]:
    """Return the numbers of "42-51,60"."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def workloads_in(folder: Path) -> list[str]:
    """Return the names of the lists of pods in a folder."""
    prefix, suffix = POD_FILE.split("{}")
    names = {path.name.removesuffix(".gz") for path in folder.glob(f"{prefix}*{suffix}*")}
    return sorted(name.removeprefix(prefix).removesuffix(suffix) for name in names)


def _pod(row: dict[str, str], mode: str) -> Pod:
    gpus = int(row["num_gpu"])
    milli = min(WHOLE, int(row["gpu_milli"])) if gpus else 0
    named = {name for name in (row.get("gpu_spec") or "").split("|") if name} if gpus else set()
    models, vram = tuple(sorted(named)), 0
    if mode == "vram":
        vram = min((VRAM_MIB[name] for name in models if name in VRAM_MIB), default=NO_FLOOR)
        models = ()
    return Pod(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, milli, vram, models)


def _gb(mib: int) -> float:
    return round(mib / 1024, 3)


def _rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file, or the same with .gz."""
    if path.exists():
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    with gzip.open(f"{path}.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))
