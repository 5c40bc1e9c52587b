"""Builders of labelled nodes and gangs: a test says only what matters to it."""

from collections.abc import Iterable
from typing import Any

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import Decision
from longshore.models.topology import (
    CLUSTER_LABEL,
    DOMAIN_LABEL,
    REGION_LABEL,
    Gang,
    LinkClass,
    NodeTopology,
)
from longshore.scheduling.packer import place
from tests.support.packing import NOW, POLICY, a_job, a_node


def in_domain(domain: str, name: str, gpus: int = 8, **fields: Any) -> Node:
    """Return a node of region r and cluster c, with cores and RAM for all of its GPUs."""
    labels = {REGION_LABEL: "r", CLUSTER_LABEL: "c", DOMAIN_LABEL: domain}
    sizes = {"cpus": 1000.0, "ram": 10_000.0}
    labels |= fields.pop("labels", {})
    return a_node(name, gpus=gpus, labels=labels, **{**sizes, **fields})


def a_gang(gpus: int, group_gpus: int | None = None, **fields: Any) -> JobRequest:
    """Return a job with a gang; fields of JobRequest and of Gang alike."""
    of_gang = {name: fields.pop(name) for name in list(fields) if name in Gang.model_fields}
    return a_job("gang", gpus=gpus, gang=Gang(group_gpus=group_gpus, **of_gang), **fields)


def decide(job: JobRequest, nodes: Iterable[Node], **policy: Any) -> Decision:
    return place(job, list(nodes), POLICY.model_copy(update=policy), NOW)


def taken(decision: Decision) -> list[tuple[str, dict[str, int]]]:
    """Return for each group the last part of its domain's name, and GPUs by node."""
    assert decision.gang is not None
    return [
        (
            group.domain.rpartition("/")[2],
            {share.node_id: len(share.gpu_indices) for share in group.nodes},
        )
        for group in decision.gang.groups
    ]


def residuals(decision: Decision) -> dict[str, int]:
    assert decision.gang is not None
    return {room.domain.rpartition("/")[2]: room.residual for room in decision.gang.domains}


def islands(*groups: tuple[int, ...], within: LinkClass, between: LinkClass) -> NodeTopology:
    """Return a topology of GPUs 0, 1, ... where those of one group are linked better."""
    gpus = sorted(gpu for group in groups for gpu in group)
    home = {gpu: number for number, group in enumerate(groups) for gpu in group}
    rows = tuple(
        tuple(None if a == b else within if home[a] == home[b] else between for b in gpus)
        for a in gpus
    )
    return NodeTopology(gpus=tuple(gpus), links=rows)
