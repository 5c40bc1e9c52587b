"""What the cycles of a pool do, and what they cost: for whoever runs a large one."""

from datetime import timedelta

from longshore.models.base import Instant, Wire

LOOKED_BACK = timedelta(hours=1)
NOTED_EVERY = timedelta(minutes=1)
"""A cycle that changes nothing is noted when none has been for so long."""
AT_MOST = 500
"""Cycles that are summed up: those of the last hour, and not more than these."""


class CycleView(Wire):
    """One cycle. Of those of earlier versions only `took_ms` is known."""

    id: str
    at: Instant
    queued: int
    """Jobs in the queue when it began."""
    placed: int
    refused: int
    """Placements that no longer held when they were committed."""
    looked_at: int | None = None
    """Jobs that it decided about."""
    took_ms: float
    read_ms: float | None = None
    plan_ms: float | None = None
    commit_ms: float | None = None
    explain_ms: float | None = None
    """Writing why the others wait."""


class PoolCycles(Wire):
    """The last cycles of one pool summed up; times are milliseconds on the clock."""

    pool: str
    simulated: bool = False
    """Whether a node of it has simulated GPUs."""
    waiting: int
    """Jobs of its queue now, without those that are held."""
    cycles: int
    """How many these are: of the last hour, 500 at most. Of those that changed nothing one a
    minute."""
    since: Instant | None = None
    """When the first of them was."""
    per_minute: float
    placed: int
    refused: int
    looked_at: float | None = None
    """Jobs in a cycle, on average."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    read_ms: float | None = None
    """On average, as the three below."""
    plan_ms: float | None = None
    commit_ms: float | None = None
    explain_ms: float | None = None
    latest: tuple[CycleView, ...] = ()
    """The newest first."""
