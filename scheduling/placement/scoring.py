"""How well a job suits a node: utilisation, fragmentation, expiry, provider.

total = utilization x weight + fragmentation x weight + expiry x weight + provider x weight, with
negative weights for the penalties. Utilisation is of GPU memory: a node whose GPUs are all taken
by jobs with little memory counts as almost empty.

Each term is a column: use and gaps with an entry for each class of nodes, expiry and bonus with
one for each trait set.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy, ScoreTerms, ScoreWeights
from longshore.scheduling.placement.columns import Columns, Floats, microseconds
from longshore.scheduling.placement.gpus import average_gap
from longshore.scheduling.placement.state import Need, view_node

LARGE_JOB_GPUS = 8
"""A job of this size fills a node of SFCompute; smaller ones suit Prime's exact sizes."""


def score(
    node: Node,
    job: JobRequest,
    gpu_indices: Sequence[int],
    weights: ScoreWeights,
    now: datetime,
) -> ScoreTerms:
    """Return the terms of placing `job` on these GPUs of `node`."""
    need = Need.of(job, PackingPolicy())
    columns = Columns([view_node(node, (), now)], now)
    gaps = np.array([average_gap(gpu_indices)])
    used = utilization(columns, need, slice(1))
    expiry = expiry_penalty(columns, need.duration)
    provider = provider_bonus(columns, need.gpus)
    total = totals(used, gaps, weights.expiry * expiry, weights.provider * provider, weights)
    return ScoreTerms(
        utilization=float(used[0]),
        fragmentation=float(gaps[0]),
        expiry=float(expiry[0]),
        provider=float(provider[0]),
        total=float(total[0]),
    )


def totals(
    used: Floats,
    gaps: Floats,
    weighted_expiry: Floats,
    weighted_provider: Floats,
    weights: ScoreWeights,
    weighted_others: Floats | float = 0.0,
) -> Floats:
    """Return the score of each class; the last come with their weights already."""
    total = (
        weights.utilization * used
        + weights.fragmentation * gaps
        + weighted_expiry
        + weighted_provider
        + weighted_others
    )
    # To nine digits: nodes that differ by the rounding of fractions alone must tie.
    return np.rint(total * 1e9) / 1e9


def utilization(
    columns: Columns, need: Need, classes: slice, added: Floats | None = None
) -> Floats:
    """Return the share of the GPU memory in use after placement, 0 to 1, on nodes of `classes`.

    On a node that names no memory it is the share of its GPUs. `added` is what the job takes of
    each, where that is not the same everywhere.
    """
    traits = columns.traits[classes]
    more = columns.amount_added(need, traits) if added is None else added
    return np.minimum(
        (columns.amount_used[classes] + more) / columns.trait_sets.amount[traits], 1.0
    )


def expiry_penalty(columns: Columns, duration: timedelta) -> Floats:
    """Return for each trait set 0 where its nodes outlive twice the duration, up to 1 where their
    time is over."""
    if not duration:
        return np.zeros(len(columns.trait_sets))
    share = columns.trait_sets.left / microseconds(2 * duration)
    return np.clip(1.0 - share, 0.0, 1.0)


def ends_together(columns: Columns, duration: timedelta, classes: slice) -> Floats:
    """Return how near a job's end is to that of the last job on nodes of `classes`: the shorter of
    the two times over the longer, 1 for the same; 0 on nodes without jobs."""
    busy = columns.busy_for[classes]
    lasts = microseconds(duration)
    longer = np.maximum(np.maximum(busy, lasts), 1.0)  # of two times of 0 it is 0
    return np.minimum(busy, lasts) / longer


def provider_bonus(columns: Columns, gpus: int) -> Floats:
    """Return the affinity of a job's size to each trait set's provider, before its weight."""
    bonus = 0.2 if gpus >= LARGE_JOB_GPUS else 0.1
    return np.where(columns.trait_sets.providers.are(provider_for(gpus)), bonus, 0.0)


def provider_for(gpus: int) -> str:
    """Return the provider that suits a job of this size."""
    return "sfcompute" if gpus >= LARGE_JOB_GPUS else "prime"
