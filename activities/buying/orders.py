"""The steps of an order, to buy and to sell: stored, sent once, read until it is over.

Every step may run twice. What it did before is found by the order's key, or the machine's name.
A sale is as dangerous as a purchase: what is sold twice, or sold while a job holds it, costs a
job or money. So its row and the cordon of its node are one transaction.
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying import market_refusals
from longshore.activities.buying import order_rows as rows
from longshore.activities.buying import sale_rows as sales
from longshore.activities.buying.node_startup import script_for
from longshore.activities.buying.present_policy import kept_policy
from longshore.activities.buying.purchase_rows import (
    ask_for_renewal_again,
    block_to_start,
    lock_purchase,
    refusal_of,
)
from longshore.activities.buying.requotes import requoted
from longshore.activities.buying.scale_down import check_leaves
from longshore.activities.buying.sending import Sending
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import follows_up, reports_errors
from longshore.activities.failpoints import BlockEndPoint, BuyingPoint, failpoint
from longshore.activities.heartbeat import heartbeats
from longshore.activities.node_updates import drain_node, undrain_node
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.activities.snapshot import load_pool
from longshore.models.block import FOR_SALE
from longshore.models.block_end import SaleIntent, SaleSeen
from longshore.models.errors import (
    CredentialsError,
    FundsError,
    GoneError,
    LongshoreError,
    MarketError,
    OfferRefusedError,
    StaleError,
    StoredError,
)
from longshore.models.job import Tier
from longshore.models.market import Order, OrderRequest, Side, Window
from longshore.models.purchase import (
    Intended,
    OrderIntent,
    OrderRef,
    OrderSeen,
    PurchaseOption,
    PurchaseRequest,
    Requote,
    RequoteRequest,
    machine_names,
)
from longshore.models.records.buying import OrderRow
from longshore.models.settings import Settings
from longshore.scheduling.buying.present_policy import (
    why_not_ordered,
    why_not_quoted,
    within_price,
)

_POLL_EVERY = 1.0
_ON_THE_WAY = timedelta(seconds=5)
"""An order takes so long to its market: time that has begun by then is refused there."""
_OVER = ("CLOSED", "UNSOLD")


class OrderActivities:
    """Activities of `PurchaseWorkflow` and `BlockWorkflow` on orders.

    The steps named after sales are those of orders under the names that histories have.
    """

    def __init__(self, database: Database, temporal: Client, settings: Settings) -> None:
        self._database = database
        self._temporal = temporal
        self._settings = settings
        self._sending = Sending(database, settings)

    @activity.defn
    @reports_errors
    async def intend_order(self, intent: OrderIntent) -> Intended:
        """Store an order that is about to be made, unless the database refuses it, or the policy
        of its pool does that has changed since it was decided."""
        option = await self._option(intent.purchase_id, intent.option)
        try:
            with_window = _capabilities(self._settings, option.provider).fixed_window
        except LongshoreError as error:
            return Intended(key=intent.key, refused=str(error))
        now = await self._now()
        window = _window(option, now) if with_window else None
        order = OrderRequest(
            key=intent.key, instance_type=option.instance_type, nodes=intent.nodes, window=window,
            limit=intent.limit, standing=bool(option.standing_for), partial=option.partial,
            offer=intent.offer, place=option.place, for_gang=option.for_gang,
        )  # fmt: skip
        try:
            async with self._database.transaction() as connection:
                await lock_purchase(connection, intent.purchase_id)
                if not await rows.is_known(connection, intent.key):
                    if why := await _why_not_by_policy(connection, intent, option):
                        return Intended(key=intent.key, refused=why)
                    await rows.insert_order(
                        connection, intent, option.provider, order, option.gpus_per_node,
                        window.end if window else now + option.length,
                        is_machine=not with_window, now=now,
                    )  # fmt: skip
                await failpoint("intend_order.before-commit")
        except DBAPIError as error:
            refused = refusal_of(error)
            if refused is None:
                raise
            return Intended(key=intent.key, refused=refused)
        await failpoint("intend_order.after-commit")
        return Intended(key=intent.key, is_machine=not with_window)

    @activity.defn
    @follows_up
    async def intend_sale(self, intent: SaleIntent) -> SaleSeen:
        """Store a sale, and keep every job off its node, unless the database refuses it.

        Refused are a node that a job holds, time that is for sale already, and any sale while
        buying is stopped.
        """
        try:
            async with self._database.transaction() as connection:
                if not await rows.is_known(connection, intent.key):
                    await check_leaves(
                        connection, intent.block_id, intent.machine, self._settings.margins
                    )
                    await sales.insert_sale(connection, intent)
                is_draining = await sales.is_draining(connection, intent.block_id)
                await failpoint("intend_sale.before-commit")
        except (DBAPIError, StaleError) as error:
            refused = str(error) if isinstance(error, StaleError) else refusal_of(error)
            if refused is None:
                raise
            return SaleSeen(key=intent.key, machine=intent.machine, over=True, refused=refused)
        await failpoint("intend_sale.after-commit")
        seen = await self._sale(intent.key)
        if not seen.over and not is_draining:
            await drain_node(self._temporal, seen.machine, FOR_SALE)
        return seen

    @activity.defn
    @reports_errors
    async def place_order(self, ref: OrderRef) -> OrderSeen:
        """Send an order to its market, once however often this runs.

        A market that does not take it, or that cannot have heard of it in several tries, is a
        part of the answer. Raises MarketAwayError while it is not known whether it arrived.
        """
        told: Mapping[str, bool] = {}
        async with heartbeats():
            row, sent_before = await self._sending.mark(ref.key)
            if row.state != "INTENT":
                return await self._seen(ref.key)
            try:
                async with aclosing(registry.connect(self._settings, row.provider)) as market:
                    order = await self._ordered(market, row, sent_before)
            except LongshoreError as error:
                if not await self._sending.is_final(row, error, sent_before):
                    raise
                told = await self._refused(row, error)
            else:
                await self._record(ref.key, order, taken=True)
                await failpoint(_point(row, "place", "after-commit"))
        return (await self._seen(ref.key)).model_copy(update=told)

    @activity.defn
    @reports_errors
    async def place_sale(self, ref: OrderRef) -> SaleSeen:
        await self.place_order(ref)
        return await self._sale(ref.key)

    @activity.defn
    @follows_up
    async def look_at_order(self, ref: OrderRef) -> OrderSeen:
        """Read an order at its market, and book what it has filled since the last look."""
        async with heartbeats():
            row = await self._sending.row(ref.key)
            if row.state in _OVER or row.order_id is None:
                return await self._seen(ref.key)
            order = await self._sending.read(row)
            if isinstance(order, GoneError):
                async with self._database.transaction() as connection:
                    row = await rows.lock(connection, ref.key)
                    await rows.refuse(connection, row, str(order))
                return await self._seen(ref.key)
            await failpoint(_point(row, "look_at", "after-call"))
            await self._record(ref.key, order)
        await failpoint(_point(row, "look_at", "after-commit"))
        return await self._seen(ref.key)

    @activity.defn
    @follows_up
    async def look_at_sale(self, ref: OrderRef) -> SaleSeen:
        await self.look_at_order(ref)
        return await self._sale(ref.key)

    @activity.defn
    @follows_up
    async def cancel_order(self, ref: OrderRef) -> None:
        """Ask for the end of an order. It may fill on until a look finds it over."""
        async with heartbeats():
            row = await self._sending.row(ref.key)
            if row.state not in _OVER and row.order_id is not None:
                await self._sending.cancel(row)

    @activity.defn
    async def cancel_sale(self, ref: OrderRef) -> None:
        await self.cancel_order(ref)

    @activity.defn
    @follows_up
    async def settle_sale(self, ref: OrderRef) -> None:
        """Give a node whose time found no buyer back to the jobs, until its block's end."""
        async with self._database.transaction() as connection:
            sale = await rows.lock(connection, ref.key)
            if sale.state == "SOLD":
                await sales.note_sold(connection, sale)
                return
            await rows.close(connection, ref.key)
            cordoned = await sales.release(connection, sale)
        await failpoint("settle_sale.after-commit")
        if cordoned:
            await undrain_node(self._temporal, sale.machine or "", "its time found no buyer")

    @activity.defn
    @reports_errors
    async def requote(self, request: RequoteRequest) -> Requote:
        """Return what to pay now for what an option lacks, within its cap."""
        option = await self._option(request.purchase_id, request.option)
        async with self._database.transaction() as connection:
            found = await connection.execute(text(_BOUGHT_BY), {"id": request.purchase_id})
            purchase = found.one()
            pool = await load_pool(connection, purchase.pool, self._settings.margins)
            policy = pool.purchasing
            tier = Tier(purchase.tier) if purchase.decided else None
            refused = await market_refusals.refused_offers(connection, policy)
        if tier is not None:
            if why := why_not_quoted(option, policy):
                return Requote(reason=why)
            option = within_price(option, tier, policy)
        try:
            async with aclosing(registry.connect(self._settings, option.provider)) as market:
                fixed = market.capabilities.fixed_window
                now = await self._now()
                window = _window(option, now) if fixed else None
                return await requoted(
                    market, option, request.nodes, window, now, policy, refused, tier
                )
        except LongshoreError as error:
            return Requote(reason=str(error))

    async def _option(self, purchase_id: str, number: int) -> PurchaseOption:
        async with self._database.transaction() as connection:
            request = await connection.scalar(
                text("SELECT request FROM purchases WHERE id = :id"), {"id": purchase_id}
            )
        return PurchaseRequest.model_validate(request).options[number]

    async def _ordered(self, market: Provider, row: OrderRow, sent_before: bool) -> Order:
        request = OrderRequest.model_validate(row.request)
        buys = row.side == Side.BUY
        if row.is_machine:
            async with self._database.transaction() as connection:
                block = await block_to_start(connection, row.key)
                names = machine_names(row.key, request.nodes)
                script = script_for(names, block, self._settings, self._temporal)
            request = request.model_copy(update={"startup_script": script})
            if sent_before and (found := await self._look_for(market, row)) is not None:
                return found
        if buys and not sent_before:  # of one that may have arrived nothing else is asked
            await market.check_start(request)
        if buys and not row.is_machine:
            account = row.account or await self._account(market, row, sent_before)
            request = request.model_copy(update={"account": account})
        await failpoint(_point(row, "place", "before-call"))
        try:
            order = await market.order(request)
        except MarketError as error:
            if not sent_before or row.is_machine:  # the name of a machine was looked for
                raise
            order = await self._sending.found(market, row, request, error)
        await failpoint(_point(row, "place", "after-call"))
        return order

    async def _account(self, market: Provider, row: OrderRow, sent_before: bool) -> str:
        """Return where the time of an order goes, stored before it is sent: sent again, it is the
        same order only with the same account, and lists of accounts may lag behind.

        Not stored of one that was sent without: where it went is not known.
        """
        async with self._database.transaction() as connection:
            pool = await connection.scalar(text(_POOL), {"id": row.purchase_id})
        account = await market.make_account(f"longshore-{pool}")
        if not sent_before:
            async with self._database.transaction() as connection:
                await rows.change(connection, row.key, account=account)
        return account

    async def _look_for(self, market: Provider, row: OrderRow) -> Order | None:
        """Return an order that may have been placed before, once its list cannot lag any more."""
        assert row.sent_at is not None
        until = row.sent_at + self._settings.market_list_lag
        while True:
            found = await market.find_order(row.key)
            if found is not None or await self._now() > until:
                return found
            await asyncio.sleep(_POLL_EVERY)

    async def _refused(self, row: OrderRow, error: LongshoreError) -> Mapping[str, bool]:
        """Close an order that its market did not take; return what that says of other orders."""
        async with self._database.transaction() as connection:
            row = await rows.lock(connection, row.key)
            if row.side == Side.SELL:
                await rows.close(connection, row.key, refused=str(error))
                return {}
            late = rows.is_late(row, await clock(connection))
            final = isinstance(error, OfferRefusedError) and not late
            await rows.refuse(connection, row, str(error), finally_=final)
            if forbidden := isinstance(error, CredentialsError | FundsError):
                await market_refusals.note(connection, row.provider, error)
                await ask_for_renewal_again(connection, row.purchase_id)
        return {"late": late, "forbidden": forbidden}

    async def _record(self, key: str, order: Order, *, taken: bool = False) -> None:
        """Store what is known of an order, which was `taken` just now."""
        async with self._database.transaction() as connection:
            row = await rows.lock(connection, key)
            await rows.record(connection, row, order)
            if row.side == Side.BUY and (taken or row.is_machine):
                await market_refusals.forget(
                    connection, row.provider, only_funds=not row.is_machine
                )

    async def _now(self) -> datetime:
        async with self._database.transaction() as connection:
            return await clock(connection)

    async def _seen(self, key: str) -> OrderSeen:
        async with self._database.transaction() as connection:
            return rows.seen(await rows.read(connection, key))

    async def _sale(self, key: str) -> SaleSeen:
        async with self._database.transaction() as connection:
            return rows.seen_sale(await rows.read(connection, key))


def _point(row: OrderRow, step: str, moment: str) -> BuyingPoint | BlockEndPoint:
    kind = "sale" if row.side == Side.SELL else "order"
    return cast("BuyingPoint | BlockEndPoint", f"{step}_{kind}.{moment}")


def _capabilities(settings: Settings, provider: str) -> Any:
    return registry.connect(settings, provider).capabilities


def _window(option: PurchaseOption, now: datetime) -> Window:
    """Return what time to buy: whole minutes that begin now, or when the option says."""
    start = max(option.start or now, now + _ON_THE_WAY).replace(second=0, microsecond=0)
    minutes = -(-option.length // timedelta(minutes=1))
    return Window(start=start, end=start + timedelta(minutes=minutes))


async def _why_not_by_policy(
    connection: AsyncConnection, intent: OrderIntent, option: PurchaseOption
) -> str:
    """Return why the policy that its pool has now does not let an order be made that the pool
    decided; empty where it does. The policy stays until the end of the transaction."""
    found = await connection.execute(text(_BOUGHT_BY), {"id": intent.purchase_id})
    purchase = found.one()
    if not purchase.decided:
        return ""
    try:
        policy = await kept_policy(connection, purchase.pool)
    except StoredError as error:
        return str(error)
    return why_not_ordered(option, intent.offer, intent.limit, Tier(purchase.tier), policy)


_BOUGHT_BY = "SELECT pool, tier, decision IS NOT NULL AS decided FROM purchases WHERE id = :id"
_POOL = "SELECT pool FROM purchases WHERE id = :id"
