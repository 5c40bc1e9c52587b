"""Whether a model has room on any node that there is, or that may be bought."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.models.model_registry import ModelFacts
from longshore.models.serving import EngineSize, ModelSpec, Split
from longshore.models.text import count
from longshore.models.units import format_bytes, format_gb
from longshore.scheduling.serving.engine_sizes import engine_sizes


@dataclass(frozen=True, slots=True)
class NodeGPUs:
    """GPUs of a node."""

    node_id: str
    gpu_type: str
    gpus: int
    each: float
    """GB of the smallest."""

    @property
    def memory(self) -> float:
        return self.gpus * self.each


@dataclass(frozen=True, slots=True)
class Room:
    """What speaks against a model of this size; one of both at the most."""

    refused: str = ""
    """No GPU that is known could ever hold it."""
    warning: str = ""
    """No node that there is could."""


def room_for(
    spec: ModelSpec,
    memory: int,
    facts: ModelFacts | None,
    split: Split,
    nodes: Sequence[NodeGPUs],
    market: dict[str, float],
) -> Room:
    """Return whether some node holds a model of `memory` bytes.

    `market` are the GPU types that are known with the GB of one. Without nodes nothing is said of
    them.
    """
    sizes = engine_sizes(spec, facts, split, memory)
    numbers = tuple(size.gpus for size in sizes)
    if numbers == (1,):
        best = max(market, key=lambda name: market[name])
        most = max([market[best], *(node.each for node in nodes)])
        if memory > most * 1e9:
            whose = f" ({best})" if most == market[best] else ""
            return Room(
                refused=f"needs {format_bytes(memory)} on one GPU: the largest that is known has "
                f"{format_gb(most)}{whose}"
            )
    if not nodes or any(_holds(node, size) for node in nodes for size in sizes):
        return Room()
    gpu = max(nodes, key=lambda node: node.each)
    most = max(nodes, key=lambda node: node.memory)
    where = " on one GPU" if numbers == (1,) else f" on {numbers[0]} to {numbers[-1]} GPUs"
    where = f" on {numbers[0]} GPUs" if len(numbers) == 1 and numbers[0] > 1 else where
    spread = [size for size in sizes if 1 < size.gpus <= most.gpus]
    if spread:  # what all of its GPUs hold together may be enough, and each too small
        where += f" ({format_gb(spread[-1].memory / 1000)} of each of {spread[-1].gpus})"
    return Room(
        warning=f"needs {format_bytes(memory)}{where}, and no node that there is has room: the "
        f"largest GPU has {format_gb(gpu.each)} ({gpu.gpu_type} of {gpu.node_id}), the node with "
        f"the most {format_gb(most.memory)} ({count(most.gpus, 'GPU')} of {most.node_id})"
    )


def _holds(node: NodeGPUs, size: EngineSize) -> bool:
    """Return whether a node has so many GPUs that hold a part each."""
    return size.gpus <= node.gpus and size.memory <= node.each * 1000
