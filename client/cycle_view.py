"""How the cycles of pools look: a row for each pool, and one for each of the last cycles."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from longshore.client.terminal import a_table
from longshore.client.words import SIMULATED
from longshore.models.cycles import CycleView, PoolCycles
from longshore.models.text import ago
from longshore.models.units import format_ms

LEGEND = (
    "Milliseconds: of a whole cycle (p50, p95), and of its parts on average. "
    "Cycles of the last hour, 500 at most; of those that changed nothing one a minute."
)
_PARTS = ("read", "plan", "commit", "explain")


def pools_table(pools: Sequence[PoolCycles]) -> Table:
    """Return a row for each pool: how often it has a cycle, and what one takes."""
    numbers = ("a minute", "p50", "p95", *_PARTS, "waiting", "looked at", "placed", "refused")
    table = a_table(("pool", *numbers), right=numbers, fold=("pool",))
    for pool in pools:
        parts = (pool.read_ms, pool.plan_ms, pool.commit_ms, pool.explain_ms)
        table.add_row(
            f"{pool.pool} ({SIMULATED})" if pool.simulated else pool.pool,
            f"{pool.per_minute:.1f}",
            *(format_ms(each) for each in (pool.p50_ms, pool.p95_ms, *parts)),
            str(pool.waiting),
            "–" if pool.looked_at is None else f"{pool.looked_at:.1f}",
            str(pool.placed),
            str(pool.refused),
        )
    return table


def latest_table(cycles: Sequence[CycleView], now: datetime) -> Table:
    """Return a row for each cycle, as they are given."""
    numbers = ("took", *_PARTS, "queued", "looked at", "placed", "refused")
    table = a_table(("cycle", *numbers), right=numbers)
    for each in cycles:
        parts = (each.read_ms, each.plan_ms, each.commit_ms, each.explain_ms)
        table.add_row(
            ago(each.at, now),
            *(format_ms(ms) for ms in (each.took_ms, *parts)),
            str(each.queued),
            "–" if each.looked_at is None else str(each.looked_at),
            str(each.placed),
            str(each.refused),
        )
    return table
