"""The demo's scene at a simulated market: a job that nothing can hold, and what is bought for it.

Like the rest of the demo it only asks and looks: the pool buys by itself, and the control worker
carries that out. What has begun is known from the state and the capacity database, so that it goes
on after a crash. Nothing happens where markets are real: a demo spends no money.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import httpx
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.activities.database import Database
from longshore.activities.markets.reconcile import compare
from longshore.activities.providers.access import running_market
from longshore.client.api import Longshore
from longshore.client.markets import open_markets
from longshore.client.submission import new_job_id
from longshore.models.block import block_workflow_id
from longshore.models.buying_policy import BuyingPolicy, Caps
from longshore.models.errors import NotFoundError, RefusedError, StackError, UnavailableError
from longshore.models.job import JobSpec, Tier
from longshore.models.job_status import JobState
from longshore.models.messages import CommandReason
from longshore.models.money import MICRO
from longshore.models.pool import PoolSpec
from longshore.models.settings import MarketInfo
from longshore.models.spending import BlockDetail, PurchaseDetail, summed
from longshore.models.text import format_dollars
from longshore.models.views import JobView, NodeView
from longshore.scheduling.prices.fills import cost
from longshore.simulation.market.world import QUICK
from longshore.workers.demo.events import Event, events_between
from longshore.workers.demo.report import Bought
from longshore.workers.demo.state import DemoState, Snapshot
from longshore.workers.processes import wait_until
from longshore.workers.programs import program
from longshore.workers.stack import Stack

POOL = "demo-market"
MARKET = "market"
"""Name of the simulated market's process."""
JOB = "biggest"
STARTS_WITHIN = 30.0
WAKE_EVERY, SOLD_WITHIN = 5.0, 25.0
"""Seconds: so often blocks are asked to look, so long they have to sell what is left of them."""
_SIMULATED = "simulated"
_KINDS = {"intent": "decided", "order": "ordered", "money": "paid", "sale": "sold",
          "machine": "machine", "block": "ended", "end": "closed"}  # fmt: skip
_KNOBS = QUICK.model_dump(exclude_unset=True)
"""A real machine takes minutes to come up; nobody wants to look at that."""


class Notebook(Protocol):
    """What the demo remembers, and whom it tells."""

    @property
    def state(self) -> DemoState: ...

    def remember(self, **changes: object) -> None: ...

    def tell(self, kind: str, text: str) -> None: ...

    def show(self, event: Event) -> None: ...


class MarketScene:
    """One job, one purchase, and the end of what was bought."""

    def __init__(self, stack: Stack, api: Longshore, notebook: Notebook) -> None:
        self.nodes: tuple[NodeView, ...] = ()
        """Bought nodes that are there now."""
        self._stack = stack
        self._settings = stack.settings
        self._api = api
        self._notebook = notebook
        self._spec = biggest()
        self._begun = False
        self._database: Database | None = None
        self._told: dict[str, int] = {}
        self._job_ended_at: float | None = None
        self._next_signal = 0.0
        self._job = Snapshot(datetime.now(UTC))
        self._purchases: tuple[PurchaseDetail, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing is left to wait for."""
        if self._notebook.state.not_bought:
            return True
        ended = all(job.state.ended for job in self._job.jobs) and bool(self._job.jobs)
        return ended and all(purchase.state.over for purchase in self._purchases)

    async def begin(self) -> None:
        """Start a simulated market where none runs, let a pool buy there, and submit the job.

        A repeat finds what is there. Raises StackError when the market does not start.
        """
        if self._notebook.state.not_bought:
            return
        if self._settings.market != _SIMULATED:
            self._call_off(f"the setting market is {self._settings.market}: a demo buys nothing")
            return
        await self._have_market()
        if self._notebook.state.not_bought:
            return
        await self._api.set_pool(PoolSpec(name=POOL, buying=_POLICY))
        submitted = await self._api.submit(self._spec, key=self._notebook.state.batch)
        self._begun = True
        if submitted.created:
            self._notebook.tell(
                "submitted", f"{JOB}: 8 GPUs with 141 GB each, FAST, in a pool without a node"
            )

    async def look(self) -> None:
        """Tell what has happened since the last look, and terminate what is of no more use."""
        if not self._begun or self._notebook.state.not_bought:
            return
        info = running_market(self._settings)
        if info is None or info.pid != self._notebook.state.market_pid:
            await self._lose_market()
            return
        await self._look_at_job()
        self._purchases = await self._read_purchases()
        ours = {machine.name for each in self._purchases for machine in each.machines}
        self.nodes = tuple(n for n in await self._api.nodes(pool=POOL) if n.id in ours)
        for purchase in self._purchases:
            self._tell_of(purchase)
        if self._job.jobs and self._job.jobs[0].state.ended:
            await self._end_blocks()

    async def report(self) -> Bought | None:
        """Return what came of it, compared with what the market says; None where nothing was."""
        if not self._begun or self._notebook.state.not_bought or not self._purchases:
            return None
        purchase = next((p for p in self._purchases if p.blocks), self._purchases[0])
        blocks = await PurchaseDetails(self._base()).blocks(purchase.blocks)
        paid, wrong = await self._ask_market(purchase)
        said = b"".join([data async for data in self._api.logs(self._job_id)])
        line = (said.decode(errors="replace").strip().splitlines() or [""])[-1]
        return Bought(
            purchase=purchase.id, decided=purchase.decided, options=len(purchase.options),
            what=f"{purchase.wanted} x {purchase.instance_type} at {purchase.provider}",
            nodes=tuple(each.name for each in purchase.machines),
            price_micro_usd=blocks[0].price_micro_usd if blocks else 0, job=line,
            market_says_micro_usd=paid,
            problems=(*wrong, *self._problems(purchase, blocks, paid, line)),
            **summed([purchase]).model_dump(),
        )  # fmt: skip

    async def close(self) -> None:
        """Let the pool buy no more."""
        if self._begun:
            await self._api.set_pool(PoolSpec(name=POOL))
        if self._database:
            await self._database.close()

    @property
    def _job_id(self) -> str:
        return new_job_id(self._spec, self._notebook.state.batch)

    # --- the market -------------------------------------------------------------------------

    async def _have_market(self) -> None:
        info = running_market(self._settings)
        known = self._notebook.state.market_pid
        if known is not None and (info is None or info.pid != known):
            await self._lose_market()
            return
        if info is not None and known is None:
            self._notebook.remember(market_pid=info.pid)
            return
        if info is None:
            info = await asyncio.to_thread(self._start_market)
            self._notebook.remember(market_pid=info.pid, market_ours=True)
            self._notebook.tell("market", "a simulated market has begun: no money moves")

    def _start_market(self) -> MarketInfo:
        """Start a simulated market and have its machines come up at once."""
        self._stack.processes.spawn(
            MARKET, (program("longshore"), "market", "simulate", "--port", "0"),
            self._stack.child_env(),
        )  # fmt: skip
        wait_until(lambda: running_market(self._settings) is not None, STARTS_WITHIN, 0.1)
        info = running_market(self._settings)
        if info is None:
            raise StackError(
                "the simulated market did not start: "
                f"{self._stack.processes.log(MARKET)} says why."
            )
        httpx.post(
            f"{info.url}/simulation/knobs", json=_KNOBS, timeout=10, trust_env=False,
            headers={"Authorization": f"Bearer {info.token}"},
        ).raise_for_status()  # fmt: skip
        return info

    async def _lose_market(self) -> None:
        """Call the scene off: orders, machines and money of a simulated market end with it."""
        self._call_off("the simulated market has ended, and all that was bought there with it")
        await self._api.set_pool(PoolSpec(name=POOL))
        with contextlib.suppress(NotFoundError, RefusedError):
            await self._api.cancel(self._job_id, "the demo's simulated market has ended")

    def _call_off(self, why: str) -> None:
        self._notebook.remember(not_bought=why)
        self._notebook.tell("note", why)

    # --- what happens there -----------------------------------------------------------------

    async def _look_at_job(self) -> None:
        try:
            job = await self._api.job(self._job_id)
        except NotFoundError:
            return  # submitted, and not yet in its queue
        now = Snapshot(datetime.now(UTC), jobs=(job,))
        for event in events_between(self._job, now):
            self._notebook.show(event)
        self._job = now

    async def _read_purchases(self) -> tuple[PurchaseDetail, ...]:
        """Return what was bought for the job, or earlier and used by it; the first first."""
        database = self._base()
        found = await PurchaseViews(database).purchases(pool=POOL, with_ended=True, limit=20)
        details = [await PurchaseDetails(database).purchase(each.id) for each in reversed(found)]
        on = {job.node_id for job in self._job.jobs}
        return tuple(
            each for each in details
            if self._job_id in each.serves or on & {machine.name for machine in each.machines}
        )  # fmt: skip

    def _tell_of(self, purchase: PurchaseDetail) -> None:
        """Tell what the purchase's timeline has that was not told yet."""
        new = purchase.timeline[self._told.get(purchase.id, 0) :]
        self._told[purchase.id] = len(purchase.timeline)
        for each in new:
            if kind := _KINDS.get(each.what):
                text = purchase.decided or each.text if kind == "decided" else each.text
                self._notebook.tell(kind, f"{text} ({_SIMULATED})")

    async def _end_blocks(self) -> None:
        """Have blocks look at themselves, now that their job has ended: what is left is sold.

        A block that finds no buyer is terminated.
        """
        clock = asyncio.get_running_loop().time()
        self._job_ended_at = self._job_ended_at or clock
        if clock < self._next_signal:
            return
        self._next_signal = clock + WAKE_EVERY
        let_go = clock - self._job_ended_at > SOLD_WITHIN
        for purchase in self._purchases:
            for block in () if purchase.state.over else purchase.blocks:
                await self._signal(block, let_go)

    async def _signal(self, block: str, let_go: bool) -> None:
        handle = self._api.temporal.get_workflow_handle(block_workflow_id(block))
        try:
            if let_go:
                await handle.signal("let_go", CommandReason(reason="the demo needs it no more"))
            else:
                await handle.signal("wake")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise UnavailableError(f"Temporal does not answer: {error.message}") from error

    # --- what came of it --------------------------------------------------------------------

    async def _ask_market(self, purchase: PurchaseDetail) -> tuple[int, list[str]]:
        """Return what the market was paid for a purchase, and where its lists differ from ours."""
        paid = 0
        async with open_markets(self._settings) as markets:
            found = await compare(self._base(), markets, datetime.now(UTC), timedelta(0))
            by_name = {market.name: market for market in markets}
            for order in purchase.made:
                market = by_name[order.provider]
                if market.capabilities.fixed_window and order.order_id:
                    paid += cost((await market.order_by_id(order.order_id)).fills)
            for each in purchase.machines:
                market = by_name[each.provider]
                if not market.capabilities.fixed_window and each.machine_id:
                    paid += (await market.machine(each.machine_id)).billed or 0
        return paid, [
            f"{each.kind.value} {each.id or each.provider}: {each.detail or 'missing'}"
            for each in found
        ]

    def _problems(
        self, purchase: PurchaseDetail, blocks: Sequence[BlockDetail], paid: int, line: str
    ) -> list[str]:
        job: JobView = self._job.jobs[0]
        wrong: list[str] = []
        if job.state is not JobState.SUCCEEDED:
            wrong.append(f"{job.id} is {job.state.value} and not SUCCEEDED: {job.reason}")
        if not any(each.name in line for each in purchase.machines):
            wrong.append(f"{job.id} did not run on what was bought for it: {line!r}")
        if paid != purchase.paid_micro_usd:
            said = format_dollars(purchase.paid_micro_usd)
            wrong.append(f"the market was paid {format_dollars(paid)}, the ledger says {said}")
        wrong += [
            f"the account of block {each.id} does not add up: {each.sum_in_words}"
            for each in blocks
            if not each.adds_up
        ]
        return wrong

    def _base(self) -> Database:
        if self._database is None:
            self._database = Database(self._settings.resolve_database_url(), pool_size=2)
        return self._database


def stop_market(stack: Stack, state: DemoState) -> None:
    """End the simulated market that the demo started."""
    if state.market_ours:
        stack.processes.stop(MARKET, grace=15.0)


def biggest() -> JobSpec:
    """Return a job with more GPU memory than a node of the demo has.

    It ends long before it is expected to: most of the time that is bought for it is left over.
    """
    return JobSpec(
        name=JOB, tenant="demo", pool=POOL, tier=Tier.FAST, priority=8, gpus=8, gpu_type="H200",
        vram_per_gpu=141.0, expected_duration=timedelta(hours=3),
        command="sleep 3; echo ran on $LONGSHORE_NODE_ID with GPUs $CUDA_VISIBLE_DEVICES",
        stop_grace=timedelta(seconds=3),
    )  # fmt: skip


_POLICY = BuyingPolicy(
    enabled=True,
    instance_types=("8xH200",),
    caps=Caps(per_purchase=200 * MICRO),
    # Makes a window of the order book cheaper than a machine that is billed as it runs.
    idle_after=timedelta(hours=1),
)
