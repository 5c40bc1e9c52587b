"""The page /cycles as HTML: a row for each pool, and one for each of its last cycles."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from longshore.console.escaping import escape
from longshore.console.parts import SIMULATED_GPUS, number, table, when
from longshore.models.cycles import CycleView, PoolCycles
from longshore.models.text import count
from longshore.models.units import format_ms

PATH = "/cycles"
_PARTS = ("Read", "Plan", "Commit", "Explain")
_POOLS = ("A minute", "p50", "p95", *_PARTS, "Waiting", "Looked at", "Placed", "Refused")
_CYCLES = ("Took", *_PARTS, "Queued", "Looked at", "Placed", "Refused")


def pools_html(pools: Iterable[PoolCycles]) -> str:
    """Return the table of pools; each leads to its last cycles."""
    rows = (_pool(each) for each in pools)
    return table("Cycles by pool, times in milliseconds", ("Pool", *_POOLS), rows, numbers=_POOLS)


def latest_html(cycles: Sequence[CycleView]) -> str:
    """Return the table of single cycles."""
    rows = (_cycle(each) for each in cycles)
    return table(
        "The last cycles, times in milliseconds", ("At, UTC", *_CYCLES), rows, numbers=_CYCLES
    )


def _pool(each: PoolCycles) -> str:
    times = (
        each.p50_ms, each.p95_ms, each.read_ms, each.plan_ms, each.commit_ms, each.explain_ms,
    )  # fmt: skip
    looked_at = "–" if each.looked_at is None else f"{each.looked_at:,.1f}"
    cells = (
        f"{each.per_minute:,.1f}", *map(format_ms, times), count(each.waiting), looked_at,
        count(each.placed), count(each.refused),
    )  # fmt: skip
    link = f'<a class="id" href="{PATH}?pool={quote(each.pool)}">{escape(each.pool)}</a>'
    mark = f" {SIMULATED_GPUS}" if each.simulated else ""
    return f"<tr><td>{link}{mark}</td>{''.join(map(number, cells, _POOLS))}</tr>"


def _cycle(each: CycleView) -> str:
    times = (each.took_ms, each.read_ms, each.plan_ms, each.commit_ms, each.explain_ms)
    looked_at = "–" if each.looked_at is None else count(each.looked_at)
    cells = (
        *map(format_ms, times), count(each.queued), looked_at, count(each.placed),
        count(each.refused),
    )  # fmt: skip
    return f"<tr><td>{when(each.at)}</td>{''.join(map(number, cells, _CYCLES))}</tr>"
