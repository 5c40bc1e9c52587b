"""A second pool that has no nodes and buys them at a simulated market, which has faults too.

In the end its ledger has to be what the market says that it was paid, to the last micro-dollar,
and nothing may run there that nobody here knows.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.service import RPCError

from models.buying import BuyingPolicy
from models.job import JobSpec
from models.messages import CommandReason
from models.pool import PoolSpec
from models.purchase import block_workflow_id, purchase_workflow_id
from models.settings import MarketInfo
from simulation.market.background import Profile
from simulation.market.nodes import AgentRoom
from tests.buying.buyer import differences
from tests.faults import scenes
from tests.faults.fleet import PATIENCE, Fleet
from tests.support.market import RunningMarket, running_market
from tests.support.waiting import eventually

POOL = "bought"
TROUBLES = (
    "slow", "dropped", "malformed_json", "rate_limited", "unavailable", "server_error", "funds",
    "order_rejected", "order_unfilled", "cancel_race", "instance_failed", "price_spike",
    "empty_availability", "stale_offer", "pod_cap", "pod_error", "spot_lost", "delete_error",
)  # fmt: skip
"""Faults of the market after which it serves again."""


class Trading:
    """What the pool buys, and what came of it."""

    def __init__(self, fleet: Fleet, market: RunningMarket) -> None:
        self._fleet = fleet
        self.market = market
        self._before = market.state()

    async def begin(self) -> None:
        policy = BuyingPolicy(enabled=True, idle_after=timedelta(seconds=5))
        spec = PoolSpec(name=POOL, buying=policy)
        await scenes.until_answered(lambda: self._fleet.longshore.set_pool(spec))

    def job(self, name: str, seconds: float, gpus: int) -> JobSpec:
        """Return a FAST job that only a bought node can run."""
        return self._fleet.journal.job(
            name, seconds, pool=POOL, gpus=gpus, expected_duration="10m", preemptible=False
        )

    def purchases(self) -> int:
        return len(self._fleet.rows("SELECT id FROM purchases WHERE state <> 'REFUSED'"))

    async def violations(self) -> list[str]:
        """End whatever is left of what was bought, and return where ledger and market differ."""
        self.market.clear_faults()
        try:
            await eventually(self._has_ended, timeout=3 * PATIENCE, interval=1)
        except AssertionError as error:
            return [f"still open: {error}"]

        async def rows(statement: str) -> list[dict[str, Any]]:
            return await asyncio.to_thread(self._fleet.rows, statement)

        return await differences(rows, POOL, self._before, self.market.state())

    async def _has_ended(self) -> bool:
        open_purchases = self._fleet.rows(
            "SELECT id, state, reason FROM purchases WHERE state NOT IN ('ENDED', 'REFUSED')"
        )
        blocks = self._fleet.rows("SELECT id, state FROM blocks WHERE state <> 'ENDED'")
        for row in open_purchases:
            await self._tell(purchase_workflow_id(row["id"]), "stop")
        for row in blocks:
            await self._tell(block_workflow_id(row["id"]), "let_go")
        assert not open_purchases, open_purchases
        assert not blocks, blocks
        return True

    async def _tell(self, workflow_id: str, signal: str) -> None:
        handle = self._fleet.longshore.temporal.get_workflow_handle(workflow_id)
        with contextlib.suppress(RPCError):  # it has ended
            await handle.signal(signal, CommandReason(reason="the end of the run"))


@contextmanager
def market_of(folder: Path) -> Iterator[RunningMarket]:
    """Yield a market whose machines are processes of this computer, for a stack in `folder`."""
    room = AgentRoom(folder / "room")
    try:
        with running_market(Profile.CALM, speed=1.0, machines=room, balance=10**12) as market:
            market.knobs(instance_start_seconds=0, pod_start_seconds=1, spot_loss_per_hour=0)
            info = MarketInfo(url=market.url, token=market.token, pid=os.getpid())
            (folder / "market.json").write_text(info.model_dump_json())
            yield market
    finally:
        room.clear()
