"""Nodes and GPUs as their rows have them, with what somebody may have written there by hand: that
ends no cycle, and no list. What cannot be read is as if the agent had not said it."""

import contextlib
import json
from collections.abc import Callable
from typing import cast

from pydantic import ValidationError
from sqlalchemy import RowMapping

from longshore.models.job import Tier
from longshore.models.node import GPU, GPUParts, Node, NodeState
from longshore.models.protocol import PREPARES, SERVES
from longshore.models.topology import MOST_GPUS, NodeTopology


def can_be_index(index: int) -> bool:
    """Return whether a GPU can have this index; one with another is left out. Sets of GPUs are
    numbers with a bit for each index: they would take time and memory without end."""
    return 0 <= index < MOST_GPUS


def stored_labels(stored: object) -> dict[str, str] | None:
    """Return the labels of a node; None where its row has what are none, as JSON may: the node
    has none then. Labels are keys of dictionaries, so one that is a list ends whatever looks."""
    if not isinstance(stored, dict):
        return None
    labels = cast("dict[str, object]", stored)
    if not all(isinstance(value, str) for value in labels.values()):
        return None
    return cast("dict[str, str]", labels)


def gpu_of(
    index: int,
    vram_mb: int,
    vram_mb_used: int,
    job_id: str | None,
    milli_used: int,
    mig: str | None,
    slices_used: int,
) -> GPU:
    """Return a GPU; `mig` as JSON."""
    parts = None
    if milli_used or mig is not None:
        try:
            positions = None if mig is None else json.loads(mig)
            parts = GPUParts(mig=positions, milli_used=milli_used, slices_used=slices_used)
        except (ValueError, RecursionError):
            # Written by hand: nobody knows what fits there, so nothing does.
            parts = GPUParts(mig={}, slices_used=slices_used)
    return GPU.model_construct(
        index=index, vram=vram_mb / 1000, vram_used=vram_mb_used / 1000, job_id=job_id, parts=parts
    )


def topology_of(stored: str) -> NodeTopology | None:
    """Return what connects a node's GPUs; None where somebody wrote by hand what is none."""
    with contextlib.suppress(ValidationError):
        return NodeTopology.model_validate_json(stored)
    return None


def node_of(
    row: RowMapping, gpus: tuple[GPU, ...], read: Callable[[str], NodeTopology | None]
) -> Node:
    """Return a node with these GPUs; `read` is `topology_of`."""
    draining = row["state"] == NodeState.DRAINING.value
    return Node.trusted(
        id=row["id"], block_id=row["block_id"], provider=row["provider"], tier=Tier(row["tier"]),
        gpu_type=row["gpu_type"], gpus=gpus, cpus=row["cpu_milli"] / 1000,
        cpus_used=row["cpu_milli_used"] / 1000, ram=row["ram_mb"] / 1000,
        ram_used=row["ram_mb_used"] / 1000,
        storage_bandwidth=_thousandth(row["storage_mb_s"]),
        storage_used=row["storage_mb_s_used"] / 1000, power=_thousandth(row["milliwatts"]),
        power_used=row["milliwatts_used"] / 1000, gpu_power=row["gpu_milliwatts"] / 1000,
        expires_at=row["expires_at"],
        state=NodeState(row["state"]),
        cordoned=draining and not row["clearing"],
        state_reason=row["state_reason"] if draining else "",
        container_runtime=row["container_runtime"], fetches=row["agent_protocol"] >= PREPARES,
        serves=row["agent_protocol"] >= SERVES,
        labels=stored_labels(row["labels"]) or {}, epoch=row["epoch"],
        conformance=row["conformance"],
        changed=row["conformance"] is not None
        and row["accepted"] not in (None, row["conformance"]),
        price=row["price"],
        topology=row["topology"] and read(row["topology"]),
    )  # fmt: skip


def _thousandth(amount: int | None) -> float | None:
    return None if amount is None else amount / 1000
