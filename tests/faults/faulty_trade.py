"""Many purchases at a market that fails in every way, while the control worker is killed.

What is bought, when the worker is killed and what fails follow from the seed.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.service import RPCError

from longshore.activities.buying.bills import book_bill
from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.database import Database
from longshore.activities.markets.reconcile import MarketFinding, compare
from longshore.activities.providers import registry
from longshore.models.block import block_workflow_id
from longshore.models.buying import BuyingPolicy
from longshore.models.market import InstanceType, Offer
from longshore.models.messages import CONTROL_TASK_QUEUE, CommandReason
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseOption, PurchaseRequest, purchase_workflow_id
from tests.buying.buyer import DOLLAR, block_option, pod_option
from tests.faults import scenes
from tests.faults.buyers import disagreements
from tests.faults.fleet import CONTROL, Fleet
from tests.faults.trade_checks import TOO_DEAR, dear_machines, wrong_bills
from tests.support.faulty_proxy import BOOKS, KINDS, FaultyProxy
from tests.support.waiting import eventually

ORDERS, JOBS = "orders", "jobs"
"""Pools: the first is bought for by hand, the second buys for its jobs."""
AT_ONCE = 6
PATIENCE = 25.0
"""Seconds that a buyer waits for machines, or for its block to end; then it goes on."""
AT_REST = 400.0
"""Seconds within which all has ended once nothing fails any more."""
PURCHASE_CAP = 60 * DOLLAR
DAY_CAP = 100_000 * DOLLAR
SPOT_LOST, LATE_BILL = "spot_lost", "late_bill"
TROUBLES = (
    "order_rejected", "order_unfilled", "order_partial", "cancel_race", "instance_failed",
    "machine_silent", "pod_error", "pod_without_ssh", "price_above", LATE_BILL, "list_lag",
    "stale_offer", "pod_cap", "funds", "delete_error", "unknown_status", "empty_availability",
    "bare_error", "old_error", "fastapi_error", "cursor_missing", "notice", SPOT_LOST,
    "price_spike",
)  # fmt: skip
"""Of the market itself; the wire's are the proxy's."""
_OVER = ("ENDED", "REFUSED")


class Trade:
    """So many purchases, and what came of them."""

    def __init__(
        self, fleet: Fleet, proxy: FaultyProxy, seed: int, count: int,
        say: Callable[[str], object] = print,
    ) -> None:  # fmt: skip
        self.fleet = fleet
        self.proxy = proxy
        self.market = proxy.market
        self.count = count
        self.kills = 0
        self._chance = random.Random(seed)
        self._say = say
        self._before = self.market.state()
        self._database = Database(fleet.stack.postgres.url())
        self._switch = BuyingSwitch(self._database)
        self._done = 0
        self._jobs: list[str] = []

    async def close(self) -> None:
        await self._database.close()

    # --- what is bought --------------------------------------------------------------------

    async def run(self) -> None:
        """Buy, with everything that fails; then let everything go, and wait until it has ended."""
        await self._switch.set_cap("purchase", "*", PURCHASE_CAP)
        await self._switch.set_cap("day", "*", DAY_CAP)
        policy = BuyingPolicy(
            enabled=True, idle_after=timedelta(seconds=2),
            refused_for=timedelta(seconds=10),  # all markets are to be bought from to the end
        )  # fmt: skip
        pool = PoolSpec(name=JOBS, interval=timedelta(seconds=2), buying=policy)
        await scenes.until_answered(lambda: self.fleet.longshore.set_pool(pool))
        self.proxy.sell(*BOOKS[0])
        self.proxy.honest = False
        killing = asyncio.create_task(self._kill_now_and_then())
        try:
            begun = 0
            while (missing := self.count - len(self._purchases())) > 0:
                places = asyncio.Semaphore(AT_ONCE)
                await asyncio.gather(
                    *(self._next(begun + number, places) for number in range(missing))
                )
                begun += missing
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing
        await self._come_to_rest()

    async def _next(self, number: int, places: asyncio.Semaphore) -> None:
        chance = random.Random(self._chance.random())
        async with places:
            self._trouble(chance)
            if number % 4 == 3:
                await self._job(chance, number)
            else:
                await self._purchase(chance, number)
            # Somebody opens a market again that refused our key.
            await self._switch.resume()
            self._done += 1
            if self._done % 10 == 0:
                self._say(
                    f"{self._done} of {self.count}, {self.kills} kills, "
                    f"{self.proxy.heard} requests: {dict(self.proxy.counts)}"
                )

    def _trouble(self, chance: random.Random) -> None:
        self.market.knobs(spot_notice_seconds=chance.choice((0, 2)))
        for name in chance.sample(TROUBLES, 2):
            self.market.fault(name)
        if chance.random() < 0.5:
            self.proxy.sell(*BOOKS[0])

    async def _purchase(self, chance: random.Random, number: int) -> None:
        purchase = f"p-{number}"
        request = PurchaseRequest(
            pool=ORDERS, nodes=chance.choice((1, 1, 1, 2)), options=await self._options(chance),
            ready_within=timedelta(seconds=PATIENCE),
        )  # fmt: skip
        await scenes.until_answered(
            lambda: self.fleet.longshore.temporal.start_workflow(
                "PurchaseWorkflow",
                request,
                id=purchase_workflow_id(purchase),
                task_queue=CONTROL_TASK_QUEUE,
            )
        )
        await self._until(lambda: self._state(purchase) in ("READY", *_OVER))
        if chance.random() < 0.15:
            # Until its market has billed a minute.
            await self._until(lambda: self._state(purchase) in _OVER, 65)
        await self._let_go(purchase)
        await self._until(lambda: self._state(purchase) in _OVER)

    async def _options(self, chance: random.Random) -> tuple[PurchaseOption, ...]:
        offers = await self._offers()
        pods = [
            pod_option(offer, reprices=chance.randint(0, 1), cap=2 * offer.price)
            for offer in chance.sample(offers, min(len(offers), chance.randint(1, 3)))
        ]
        blocks = [
            block_option(
                length=timedelta(minutes=chance.choice((45, 60, 75))),
                standing_for=timedelta(seconds=chance.choice((0, 0, 3))),
                partial=chance.random() < 0.5, reprices=chance.randint(0, 1),
                cap=chance.choice((5 * DOLLAR // 2, 27 * DOLLAR // 10)),
            )
        ]  # fmt: skip
        return tuple(chance.choice((pods, blocks, blocks + pods, pods[:1] + blocks)))

    async def _offers(self) -> list[Offer]:
        async with aclosing(registry.connect(self.market.settings(), "prime")) as market:
            kind = InstanceType.parse("1xH100")
            return [*await market.offers(kind), *await market.offers(InstanceType.parse("8xH100"))]

    async def _job(self, chance: random.Random, number: int) -> None:
        """Submit a job that only what is bought can run, and end it after a while."""
        spec = self.fleet.journal.job(
            f"job-{number}", chance.uniform(0.5, 3), pool=JOBS, gpus=chance.choice((1, 2, 8)),
            expected_duration="10m",
        )  # fmt: skip
        job = await scenes.submit(self.fleet, spec)
        self._jobs.append(job)
        over = "SELECT id FROM jobs WHERE id = %s AND ended_at IS NOT NULL"
        await self._until(lambda: bool(self.fleet.rows(over, job)), 2 * PATIENCE)
        await scenes.tell(lambda: self.fleet.longshore.cancel(job))

    # --- what fails, and its end -----------------------------------------------------------

    async def _kill_now_and_then(self) -> None:
        chance = random.Random(self._chance.random())
        while True:
            moment = self.proxy.heard + chance.randint(40, 160)
            await eventually(lambda moment=moment: self.proxy.heard >= moment, timeout=600)
            await asyncio.sleep(chance.uniform(0, 0.3))  # no wait for anything: a random moment
            await asyncio.to_thread(self.fleet.kill, CONTROL)
            self.kills += 1
            await asyncio.to_thread(self.fleet.start_what_is_missing)

    async def _come_to_rest(self) -> None:
        self._say("nothing fails any more: everything is let go")
        self.proxy.honest = True
        self.market.clear_faults()
        self.fleet.start_what_is_missing()
        for job in self._jobs:
            await scenes.tell(lambda job=job: self.fleet.longshore.cancel(job))
        await scenes.until_answered(lambda: self.fleet.longshore.set_pool(PoolSpec(name=JOBS)))
        await eventually(self._has_ended, timeout=AT_REST, interval=1)

    async def _has_ended(self) -> bool:
        still = [row for row in self._purchases() if row["state"] not in _OVER]
        for row in still:
            await self._let_go(row["id"])
        blocks = self.fleet.rows("SELECT id, state, reason FROM blocks WHERE state <> 'ENDED'")
        assert not still, still
        assert not blocks, blocks
        running = self.fleet.longshore.temporal.list_workflows(_BUYING)
        assert not [each.id async for each in running]
        return True

    async def _let_go(self, purchase: str) -> None:
        await self._tell(purchase_workflow_id(purchase), "stop")
        live = "SELECT id FROM blocks WHERE purchase_id = %s AND state <> 'ENDED'"
        for row in self.fleet.rows(live, purchase):
            await self._tell(block_workflow_id(row["id"]), "let_go")

    async def _tell(self, workflow: str, signal: str) -> None:
        handle = self.fleet.longshore.temporal.get_workflow_handle(workflow)
        with contextlib.suppress(RPCError):  # it has ended
            await handle.signal(signal, CommandReason(reason="the run lets it go"))

    async def _until(self, ask: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait, but not for ever: the market may fail for longer."""
        with contextlib.suppress(AssertionError):
            await eventually(ask, timeout=seconds, interval=0.5)

    # --- what came of it -------------------------------------------------------------------

    async def wrong(self) -> list[str]:
        """Return what is not as it has to be, and book the bills that came late."""
        late = await self._differences()
        state = self.market.state()
        rows = self.fleet.rows("SELECT key, spent FROM orders")
        booked = {row["key"]: row["spent"] for row in rows}
        came_late = _happened(state, LATE_BILL) - _happened(self._before, LATE_BILL)
        found = wrong_bills(late, booked, state["pods"], came_late)
        for each in late:
            if each.order is not None:
                found += filter(
                    None, [await book_bill(self._database, each.order, each.cost_micro_usd)]
                )
        found += [f"{each}" for each in await self._differences()]
        found += await disagreements(self.fleet, self.market, ORDERS, self._before, JOBS)
        found += self._above_limits()
        found += dear_machines(self.fleet.rows(_KEPT), state["pods"])
        found += [f"a cap was passed: {row}" for row in self.fleet.rows(_ABOVE_CAPS,
                  PURCHASE_CAP, DAY_CAP)]  # fmt: skip
        failed = self.fleet.longshore.temporal.list_workflows("ExecutionStatus = 'Failed'")
        found += [f"workflow {each.id} failed" async for each in failed
                  if not each.id.startswith("job")]  # fmt: skip
        found += [f"no request was {kind}" for kind in KINDS if not self.proxy.counts[kind]]
        return found + ([] if self.kills else ["the control worker was never killed"])

    def describe(self) -> str:
        """Return what was bought, what became of it, and what failed how often."""
        states = Counter(row["state"] for row in self._purchases())
        told = self.fleet.rows(
            "SELECT provider, count(*) AS orders, count(order_id) AS taken, sum(spent) AS micro"
            " FROM orders GROUP BY provider ORDER BY provider"
        )
        return (
            f"purchases {dict(states)}; orders {told}; {self.kills} kills; "
            f"{self.proxy.heard} requests, {dict(self.proxy.counts)}; "
            f"faults of the market {self.market.state()['faults']}"
        )

    async def _differences(self) -> list[MarketFinding]:
        clients = registry.connect_all(self.market.settings())
        try:
            now = datetime.now(UTC)
            return [*await compare(self._database, [*clients.values()], now, timedelta(0))]
        finally:
            for client in clients.values():
                await client.aclose()

    def _above_limits(self) -> list[str]:
        """Return the time that was filled above the limit of its order, by the market's word."""
        rows = self.fleet.rows("SELECT order_id, key, request ->> 'limit' AS most"
                               " FROM orders WHERE order_id IS NOT NULL")  # fmt: skip
        most = {row["order_id"]: int(row["most"]) for row in rows}
        return [
            f"order {order['id']} was filled at {fill['price_dollars_per_node_hour']} a node-hour,"
            f" and its limit was {most[order['id']]} micro-dollars a GPU-hour"
            for order in self.market.state()["orders"]
            if order["id"] in most and order["side"] == "buy"
            for fill in order["fills"]
            if _per_gpu(fill["price_dollars_per_node_hour"]) > most[order["id"]]
        ]

    def stopped_as_too_dear(self) -> int:
        """Return how many machines were stopped since they cost more than was allowed."""
        return len(self.fleet.rows("SELECT name FROM machines m JOIN blocks b ON b.id = m.block_id"
                                   " WHERE m.reason LIKE %s OR b.reason LIKE %s",
                                   f"%{TOO_DEAR}%", f"%{TOO_DEAR}%"))  # fmt: skip

    def _purchases(self) -> list[dict[str, Any]]:
        return self.fleet.rows("SELECT id, state, reason FROM purchases ORDER BY id")

    def _state(self, purchase: str) -> str:
        rows = self.fleet.rows("SELECT state FROM purchases WHERE id = %s", purchase)
        return rows[0]["state"] if rows else ""


def _happened(state: Any, fault: str) -> int:
    return state["faults"].get(fault, 0)


def _per_gpu(dollars_per_node_hour: str) -> float:
    return float(dollars_per_node_hour) * DOLLAR / 8


_BUYING = """
    ExecutionStatus = 'Running' AND WorkflowType IN ('BuyingWorkflow', 'PurchaseWorkflow')
"""

_KEPT = """
    SELECT o.order_id, (o.request ->> 'limit')::bigint AS most,
           concat_ws('; ', m.reason, b.reason) AS reason, m.ended_at - n.registered_at AS kept
      FROM orders o JOIN blocks b ON b.id = o.key
      JOIN machines m ON m.block_id = o.key JOIN nodes n ON n.id = m.name
     WHERE o.is_machine AND m.ended_at IS NOT NULL
"""

_ABOVE_CAPS = """
    SELECT id AS name, committed FROM purchases WHERE committed > %s
    UNION ALL SELECT name, committed FROM purchase_sums WHERE scope = 'day' AND committed > %s
"""
