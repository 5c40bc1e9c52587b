"""What the fills of an order amount to: nodes held at one time, until when, for how much."""

from collections.abc import Sequence
from datetime import timedelta

from longshore.models.market import Fill, Window


def held(fills: Sequence[Fill]) -> tuple[int, Window] | None:
    """Return how many nodes are held from the first start on, and for how long as many are.

    None where nothing was bought. Fills without a window are none of node time, and do not count.
    What is held later, or longer by fewer nodes, is paid for and counted as idle: nothing may be
    placed that counts on it.
    """
    windows = [(fill.window, fill.nodes) for fill in fills if fill.window and fill.nodes]
    if not windows:
        return None
    start = min(window.start for window, _ in windows)
    nodes = sum(count for window, count in windows if window.start == start)
    for moment in sorted({edge for w, _ in windows for edge in (w.start, w.end) if edge > start}):
        at_it = sum(count for window, count in windows if window.start <= moment < window.end)
        if at_it < nodes:
            return nodes, Window(start=start, end=moment)
    raise AssertionError("after the last end nothing is held")


def cost(fills: Sequence[Fill]) -> int:
    """Return what the fills cost together, in micro-dollars, as far as it is known."""
    return sum(fill.cost or 0 for fill in fills)


def node_time(fills: Sequence[Fill]) -> timedelta:
    """Return the time of nodes in the fills, added up."""
    return sum(
        (fill.window.length * fill.nodes for fill in fills if fill.window), start=timedelta(0)
    )
