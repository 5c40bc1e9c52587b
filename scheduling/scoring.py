"""How well a job suits a node: utilisation, fragmentation, expiry, provider.

total = utilization x weight + fragmentation x weight + expiry x weight + provider x weight, with
negative weights for the penalties. Utilisation is of GPU memory: a node whose GPUs are all taken
by jobs with little memory counts as almost empty.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from models.node import Node
from models.placement import JobRequest, PackingPolicy, ScoreTerms, ScoreWeights
from scheduling.gpus import average_gap
from scheduling.state import Need, NodeView, view_node

LARGE_JOB_GPUS = 8
"""A job of this size fills a node of SFCompute; smaller ones suit Prime's exact sizes."""


class Score(NamedTuple):
    """The terms of one node, not yet a travelling model: a cycle makes thousands."""

    total: float
    utilization: float
    fragmentation: float
    expiry: float
    provider: float

    def terms(self) -> ScoreTerms:
        return ScoreTerms.model_construct(**self._asdict())


def score(
    node: Node,
    job: JobRequest,
    gpu_indices: Sequence[int],
    weights: ScoreWeights,
    now: datetime,
) -> ScoreTerms:
    """Return the terms of placing `job` on these GPUs of `node`."""
    need = Need.of(job, PackingPolicy())
    view = view_node(node, (), now)
    return score_view(view, need, average_gap(gpu_indices), weights, now).terms()


def score_view(
    view: NodeView, need: Need, gap: float, weights: ScoreWeights, now: datetime
) -> Score:
    """Return the terms of a node for a job whose GPUs have this average gap."""
    used = utilization(view, need)
    expiry = expiry_penalty(view.node.expires_at, need.duration, now)
    provider = provider_bonus(view.node.provider, need.gpus)
    total = (
        weights.utilization * used
        + weights.fragmentation * gap
        + weights.expiry * expiry
        + weights.provider * provider
    )
    # Nodes that differ by the rounding of fractions alone must tie.
    return Score(round(total, 9), used, gap, expiry, provider)


def utilization(view: NodeView, need: Need) -> float:
    """Return the share of the node's GPU memory in use after placement, 0 to 1.

    On a node that names no memory it is the share of its GPUs.
    """
    if view.vram_total > 0:
        return min((view.vram_used + need.vram * need.gpus) / view.vram_total, 1.0)
    if not view.gpu_count:
        return 0.0
    held = view.gpu_count - view.free.bit_count()
    return min((held + need.gpus) / view.gpu_count, 1.0)


def expiry_penalty(expires_at: datetime | None, duration: timedelta, now: datetime) -> float:
    """Return 0 for a node that outlives twice the duration, up to 1 for one whose time is over."""
    if expires_at is None or not duration:
        return 0.0
    share = (expires_at - now) / (2 * duration)
    return min(max(1.0 - share, 0.0), 1.0)


def provider_bonus(provider: str, gpus: int) -> float:
    """Return the affinity of a job's size to a provider, before its weight."""
    if provider == "sfcompute" and gpus >= LARGE_JOB_GPUS:
        return 0.2
    if provider == "prime" and gpus < LARGE_JOB_GPUS:
        return 0.1
    return 0.0


def provider_for(gpus: int) -> str:
    """Return the provider that suits a job of this size."""
    return "sfcompute" if gpus >= LARGE_JOB_GPUS else "prime"
