"""Lists of nodes and pods of a public trace, and the arrivals that the benchmarks make of them.

The protocol is that of *Beware of Fragmentation* (USENIX ATC 2023): every pod of the list once, in
random order, then pods drawn with replacement, until 130 % of the GPUs are asked for.
"""

import csv
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scheduling.packing.fleet import WHOLE, Fleet, NodeSize, Request

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
ABSENT_MODEL = 1 << 40


class Nodes(NamedTuple):
    names: tuple[str, ...]
    sizes: tuple[NodeSize, ...]
    models: tuple[str, ...]
    """Names of the model numbers."""

    @property
    def gpus(self) -> int:
        return sum(size.gpus for size in self.sizes)

    def picked(self, rows: Iterable[int]) -> "Nodes":
        chosen = [int(row) for row in rows]
        return Nodes(
            tuple(self.names[row] for row in chosen),
            tuple(self.sizes[row] for row in chosen),
            self.models,
        )

    def shuffled(self, seed: int) -> "Nodes":
        """Return the nodes in the order that breaks ties: one permutation a seed."""
        return self.picked(np.random.default_rng([seed, 7]).permutation(len(self.sizes)))

    def fleet(self) -> Fleet:
        return Fleet.of(self.sizes)


@dataclass(frozen=True)
class Pod:
    """What a pod takes, and the milli of each GPU that it really asked for."""

    request: Request
    asked_milli: int


def read_nodes(folder: Path) -> Nodes:
    """Read the nodes of a folder, by name."""
    rows = sorted(_rows(folder / NODE_FILE), key=lambda row: row["sn"])
    models = sorted({row["model"] for row in rows})
    sizes = tuple(
        NodeSize(
            cpu=int(row["cpu_milli"]),
            ram=int(row["memory_mib"]),
            gpus=int(row["gpu"]),
            vram=VRAM_MIB.get(row["model"], 0),
            model=models.index(row["model"]),
        )
        for row in rows
    )
    return Nodes(tuple(row["sn"] for row in rows), sizes, tuple(models))


def read_pods(folder: Path, workload: str, models: Sequence[str], mode: str) -> list[Pod]:
    """Read a list of pods as a mode has them.

    share: parts of GPUs are shared. whole: only pods that want whole GPUs. vram: as whole, and a
    constraint on models becomes the VRAM that the smallest of them has.
    """
    rows = sorted(_rows(folder / POD_FILE.format(workload)), key=lambda row: row["name"])
    pods = [_pod(row, models, mode) for row in rows]
    if mode == "share":
        return pods
    return [pod for pod in pods if pod.request.gpus and pod.request.milli == WHOLE]


def arrivals(pods: Sequence[Pod], gpus: int, seed: int, ratio: float = 1.3) -> list[Pod]:
    """Return pods in the order that they come: together they ask for `ratio` of the GPUs."""
    chance = np.random.default_rng(seed)
    target = ratio * gpus * WHOLE
    order = [pods[int(i)] for i in chance.permutation(len(pods))]
    asked = sum(pod.request.gpu_milli for pod in order)
    while asked > target:
        asked -= order.pop(int(chance.integers(len(order)))).request.gpu_milli
    if len(order) < len(pods):
        return order
    while True:
        pod = pods[int(chance.integers(len(pods)))]
        if asked + pod.request.milli > target:
            return order
        asked += pod.request.gpu_milli
        order.append(pod)


def small_cluster(nodes: Nodes, seed: int, size: int) -> Nodes:
    """Return `size` nodes drawn at random, in the order of the list."""
    chance = np.random.default_rng([seed, 99])
    return nodes.picked(np.sort(chance.choice(len(nodes.sizes), size, replace=False)))


def placeable(pods: Iterable[Pod], nodes: Nodes) -> list[Pod]:
    """Return the pods that some node of a cluster could take when idle."""
    kinds = set(nodes.sizes)
    return [pod for pod in pods if any(could_take(kind, pod.request) for kind in kinds)]


def could_take(node: NodeSize, request: Request) -> bool:
    if node.cpu < request.cpu or node.ram < request.ram or node.gpus < request.gpus:
        return False
    if not request.gpus:
        return True
    allowed = not request.models or bool(request.models >> node.model & 1)
    return allowed and request.vram <= node.vram


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


def _pod(row: dict[str, str], models: Sequence[str], mode: str) -> Pod:
    gpus = int(row["num_gpu"])
    asked = min(WHOLE, int(row["gpu_milli"])) if gpus else 0
    allowed = [name for name in (row.get("gpu_spec") or "").split("|") if name] if gpus else []
    mask = sum(1 << models.index(name) for name in set(allowed) if name in models)
    vram = 0
    if mode == "vram":
        vram = min((VRAM_MIB[name] for name in allowed if name in VRAM_MIB), default=NO_FLOOR)
        mask, allowed = 0, []
    if allowed and not mask:
        mask = ABSENT_MODEL
    request = Request(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, asked, vram, mask)
    return Pod(request, asked)


def _rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file, or the same with .gz."""
    if path.exists():
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    with gzip.open(f"{path}.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))
