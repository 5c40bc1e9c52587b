"""A second pool that has no nodes and buys them at a simulated market, which has faults too.

In the end its ledger has to be what the market says that it was paid, to the last micro-dollar,
and nothing may run there that nobody here knows.
"""

import asyncio
import contextlib
from datetime import timedelta
from functools import partial

from temporalio.service import RPCError

from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.database import Database
from longshore.models.block import block_workflow_id
from longshore.models.buying import BuyingPolicy
from longshore.models.job import JobSpec
from longshore.models.messages import CommandReason
from longshore.models.pool import PoolSpec
from longshore.models.purchase import purchase_workflow_id
from longshore.workers.processes import wait_until
from tests.faults import scenes
from tests.faults.buyers import disagreements
from tests.faults.fleet import PATIENCE, Fleet
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

POOL = "bought"


class Trading:
    """What the pool buys, and what came of it."""

    def __init__(self, fleet: Fleet, market: RunningMarket) -> None:
        self._fleet = fleet
        self.market = market
        self._before = market.state()

    async def begin(self) -> None:
        policy = BuyingPolicy(
            enabled=True, idle_after=timedelta(seconds=5),
            refused_for=timedelta(seconds=20),  # the exchange stays a market
        )  # fmt: skip
        spec = PoolSpec(name=POOL, buying=policy)
        await scenes.until_answered(lambda: self._fleet.longshore.set_pool(spec))

    def job(self, name: str, seconds: float, gpus: int) -> JobSpec:
        """Return a FAST job that only a bought node can run."""
        return self._fleet.journal.job(
            name, seconds, pool=POOL, gpus=gpus, expected_duration="10m", preemptible=False
        )

    def rented(self) -> list[str]:
        """Return the machines that run at the market until somebody ends them."""
        pods = self.market.state()["pods"]
        return [pod["id"] for pod in pods if pod["status"] in ("ACTIVE", "PROVISIONING")]

    def purchases(self) -> int:
        return len(self._fleet.rows("SELECT id FROM purchases WHERE state <> 'REFUSED'"))

    async def resume_after(self, block: str) -> None:
        """Resume buying once a block has ended: where it was a window, nothing more is bought at
        its market before. One that takes long, whatever is done to it, is left to the end."""
        ended = "SELECT 1 FROM blocks WHERE id = %s AND state = 'ENDED'"
        has_ended = partial(wait_until, lambda: bool(self._fleet.rows(ended, block)), PATIENCE)
        if await asyncio.to_thread(has_ended):
            database = Database(self._fleet.stack.postgres.url())
            try:
                await scenes.until_answered(BuyingSwitch(database).resume)
            finally:
                await database.close()

    async def violations(self) -> list[str]:
        """End whatever is left of what was bought, and return where ledger and market differ."""
        self.market.clear_faults()
        try:
            await eventually(self._has_ended, timeout=3 * PATIENCE, interval=1)
        except AssertionError as error:
            return [f"still open: {error}"]

        return await disagreements(self._fleet, self.market, POOL, self._before)

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
