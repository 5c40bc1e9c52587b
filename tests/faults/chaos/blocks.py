"""Faults of the market, and of what was bought there."""

import asyncio
import random

from tests.faults import scenes
from tests.faults.chaos.scene import Scene

TROUBLES = (
    "slow", "dropped", "malformed_json", "rate_limited", "unavailable", "server_error", "funds",
    "order_rejected", "order_unfilled", "cancel_race", "instance_failed", "price_spike",
    "empty_availability", "stale_offer", "pod_cap", "pod_error", "delete_error",
)  # fmt: skip
"""Faults of the market after which it serves again."""


async def trouble(scene: Scene, chance: random.Random) -> str:
    name, times = chance.choice(TROUBLES), chance.randint(1, 3)
    await asyncio.to_thread(scene.trading.market.fault, name, times)
    return f"{name}, {times} times"


async def take_away(scene: Scene, chance: random.Random) -> str:
    return await asyncio.to_thread(_take_away, scene, 0.0)


async def take_away_after_notice(scene: Scene, chance: random.Random) -> str:
    return await asyncio.to_thread(_take_away, scene, chance.uniform(3, 10))


async def end_early(scene: Scene, chance: random.Random) -> str:
    """Let a block go whatever runs there; then let the pool buy again, as an operator does."""
    live = "SELECT id FROM blocks WHERE state <> 'ENDED' ORDER BY id"
    blocks = await asyncio.to_thread(scene.fleet.rows, live)
    if not blocks:
        return ""
    block = str(chance.choice(blocks)["id"])
    await scenes.tell(lambda: scene.fleet.longshore.let_go(block, "chaos"))
    await scene.trading.resume_after(block)
    return block


def _take_away(scene: Scene, notice: float) -> str:
    """Have the market end a machine that it rents out as it runs, so many seconds from now."""
    market = scene.trading.market
    if not scene.trading.rented():
        return ""
    market.knobs(spot_notice_seconds=notice)
    market.fault("spot_lost")
    return f"within {notice:.1f} s" if notice else "at once"
