"""Gangs with spares: a node is lost, one is left, and one is lost with no spare to follow."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.support.scripted_node import FABRIC, ScriptedNode

WISH: dict[str, Any] = {"gpus": 16, "gang": {"group_gpus": 16, "spares_per_group": 8}}


async def play(
    start_job: Callable[..., Awaitable[Any]],
    node: Callable[..., AbstractAsyncContextManager[ScriptedNode]],
) -> None:
    """Run one job after the other on three nodes; ranks go by the names of nodes."""
    async with (
        node("spares-a", pool="spares", labels=FABRIC) as a,
        node("spares-b", pool="spares", labels=FABRIC) as b,
        node("spares-c", pool="spares", labels=FABRIC) as c,
    ):
        await start_job("gang-moved", pool="spares", **WISH)
        await a.started("gang-moved")
        await b.started("gang-moved")
        await b.drain("new disk", move=True, at_once=True)
        for node_left in (a, c):
            await node_left.end("gang-moved", 2)
        await b.uncordon()
        no_retry = {"node": {"max_retries": 1, "backoff": 0}}
        await start_job("gang-swapped", pool="spares", retry=no_retry, **WISH)
        await a.started("gang-swapped")
        await b.started("gang-swapped")
        b.leave()
        await a.started("gang-swapped", 2)
        await c.started("gang-swapped", 2)
        c.leave()  # no spare is left, and no retry
        await a.started("gang-swapped", 2)
