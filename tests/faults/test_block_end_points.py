"""The control worker is killed at each step of a sale and of a renewal: one of each, and no more.

Afterwards the ledger is what the market's own accounts say, and nothing runs there that nobody
here knows. One of the cases runs always, all of them with `make faults`.
"""

import asyncio
import uuid
from datetime import timedelta
from typing import Any, get_args

import pytest

from longshore.activities.failpoints import BlockEndPoint
from longshore.models.block import block_workflow_id
from longshore.models.buying import BuyingPolicy
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseRequest, purchase_workflow_id
from tests.buying.buyer import block_option
from tests.faults import scenes
from tests.faults.buyers import disagreements
from tests.faults.cases import cases_of
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.support.control import a_spec
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

OF_A_RENEWAL = ("extend_machines", "hand_over")
UNSOLD = "settle_sale.after-commit"
"""Comes only where there was no buyer."""
ALWAYS = {
    ("place_sale.after-call", CONTROL),
}
ALSO_OF = ("place_sale.before-call", "intend_sale.before-commit", "hand_over.before-commit")
"""Here the servers are killed too."""


def _cases() -> list[object]:
    cases = [
        (point, victim)
        for point in get_args(BlockEndPoint)
        for victim in (CONTROL, *((POSTGRES, TEMPORAL) if point in ALSO_OF else ()))
    ]
    return cases_of(cases, ALWAYS)


@pytest.mark.parametrize(("point", "victim"), _cases())
async def test_one_sale_or_renewal_and_no_more(
    buyers: Fleet, market: RunningMarket, point: BlockEndPoint, victim: str
):
    market.clear_faults()
    market.book(
        {"side": "sell", "dollars_per_gpu_hour": "2.10", "nodes": 8},
        {"side": "buy", "dollars_per_gpu_hour": "1.50", "nodes": 4},
    )
    before = market.state()
    pool = f"ends-{uuid.uuid4().hex[:8]}"
    scene = _Scene(buyers, pool)
    await scene.buy()
    renews = point.startswith(OF_A_RENEWAL)
    if renews:
        await scene.overrun()
    if point == UNSOLD:
        market.fault("order_unfilled")
    buyers.arm(point)
    try:
        await scene.begin(renews=renews)
        if point.startswith("hand_over"):
            await eventually(scene.is_renewed, timeout=PATIENCE, interval=0.2)
            await scene.let_go()
        await buyers.reached(point)
        await asyncio.to_thread(buyers.kill, victim)
        buyers.let_go(point)
        await asyncio.to_thread(buyers.start_what_is_missing)
        done = scene.is_renewed if renews else scene.is_sold_or_not
        await eventually(done, timeout=PATIENCE, interval=0.2)
        await scene.end()
        await eventually(scene.has_ended, timeout=PATIENCE, interval=0.2)
    finally:
        buyers.let_go(point)
        await asyncio.to_thread(buyers.start_what_is_missing)

    wrong = await disagreements(buyers, market, pool, before)
    assert not wrong, "\n".join(wrong)
    new = [each for each in market.state()["orders"]
           if each["id"] not in {old["id"] for old in before["orders"]}]  # fmt: skip
    sides = sorted(each["side"] for each in new)
    # What found nobody is offered again when the block is let go.
    again = ["sell"] if point == UNSOLD else []
    assert sides == (["buy", "buy"] if renews else ["buy", "sell", *again])


class _Scene:
    """A pool with one block of four hours, on its way to a sale or a renewal."""

    def __init__(self, fleet: Fleet, pool: str) -> None:
        self._fleet = fleet
        self._pool = pool
        self._purchase = f"p-{uuid.uuid4().hex[:8]}"
        self._block = f"{self._purchase}.1"
        self._job: str | None = None

    async def buy(self) -> None:
        request = PurchaseRequest(
            pool=self._pool, options=(block_option(length=timedelta(hours=4)),),
            ready_within=timedelta(seconds=60),
        )  # fmt: skip
        await self._fleet.longshore.temporal.execute_workflow(
            "PurchaseWorkflow", request, id=purchase_workflow_id(self._purchase),
            task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip

    async def overrun(self) -> None:
        """Have a job run there for longer than it said, and the block end soon."""
        spec = a_spec(
            self._pool, gpus=8, command="sleep 600", cpus=0.1, ram=0.1, expected_duration="1s"
        )
        self._job = await scenes.submit(self._fleet, spec)
        await eventually(self._overruns, timeout=PATIENCE, interval=0.2)
        self._fleet.rows(
            "UPDATE blocks SET ends_at = date_trunc('minute', now()) + interval '10 minutes',"
            " starts_at = starts_at - interval '4 hours' WHERE id = %s RETURNING id",
            self._block,
        )

    async def begin(self, *, renews: bool) -> None:
        """Let the pool trade, and have its block looked at."""
        policy = BuyingPolicy.model_validate(
            {"enabled": True, "renew": renews, "resell": not renews, "startup_limit": "1h"}
        )
        pool = PoolSpec(name=self._pool, buying=policy)
        # What was killed before has taken the client's connections with it.
        await scenes.until_answered(lambda: self._fleet.longshore.set_pool(pool))
        temporal = self._fleet.longshore.temporal
        await temporal.get_workflow_handle(block_workflow_id(self._block)).signal("wake")

    async def let_go(self) -> None:
        await scenes.tell(lambda: self._fleet.longshore.let_go(self._block, "the test is over"))

    async def end(self) -> None:
        """Cancel what runs, and let every block of the pool go."""
        if (job_id := self._job) is not None:
            await scenes.tell(lambda: self._fleet.longshore.cancel(job_id))
        for row in self._blocks():
            if row["state"] != "ENDED":
                await scenes.tell(
                    lambda block=row["id"]: self._fleet.longshore.let_go(block, "the test is over")
                )

    def is_sold_or_not(self) -> bool:
        rows = self._fleet.rows(
            "SELECT s.state, s.closed_at, m.sale_key, m.state AS machine FROM orders s"
            " JOIN machines m ON m.name = s.machine WHERE s.block_id = %s", self._block,
        )  # fmt: skip
        assert len(rows) == 1, rows
        assert rows[0]["closed_at"] is not None, rows
        if rows[0]["state"] == "SOLD":
            assert rows[0]["machine"] == "ENDED", rows
        else:
            assert (rows[0]["state"], rows[0]["sale_key"]) == ("UNSOLD", None), rows
        return True

    def is_renewed(self) -> bool:
        rows = self._fleet.rows(
            "SELECT p.state, b.next_block FROM purchases p JOIN orders o"
            " ON o.purchase_id = p.id JOIN block_nodes b ON b.next_block = o.key"
            " WHERE p.renews = %s", self._block,
        )  # fmt: skip
        seen = self._fleet.rows(
            "SELECT b.state, b.decision, b.ends_at, (SELECT array_agg(p.state || ': ' || p.reason)"
            " FROM purchases p WHERE p.renews = b.id) AS renewals FROM blocks b WHERE b.id = %s",
            self._block,
        )
        assert [row["state"] for row in rows] == ["READY"], seen
        return True

    def has_ended(self) -> bool:
        rows = self._fleet.rows("SELECT id, state FROM purchases WHERE pool = %s", self._pool)
        assert rows
        assert {row["state"] for row in rows} == {"ENDED"}, rows
        return True

    def _blocks(self) -> list[dict[str, Any]]:
        return self._fleet.rows("SELECT id, state FROM blocks WHERE pool = %s", self._pool)

    def _overruns(self) -> bool:
        rows = self._fleet.rows(
            "SELECT 1 FROM placements WHERE job_id = %s AND ended_at IS NULL"
            " AND placed_at + make_interval(secs => expected_seconds) < clock_timestamp()",
            self._job,
        )
        return bool(rows)
