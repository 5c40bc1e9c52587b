"""The steps of a purchase: each stores what it will do, does it, and stores what came of it.

Every step may run twice. What it did before is found by the order's key, or the machine's name.
"""

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying import market_refusals
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.node_startup import script_for
from longshore.activities.buying.requotes import requoted
from longshore.activities.buying.sending import Sending
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import follows_up, reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.heartbeat import heartbeats
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.activities.queue import ensure_pool
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.errors import (
    CredentialsError,
    FundsError,
    GoneError,
    LongshoreError,
    NotFoundError,
    OfferRefusedError,
    SpecError,
)
from longshore.models.market import Order, OrderRequest, Window
from longshore.models.problems import beyond_bounds
from longshore.models.purchase import (
    LONGEST_PURCHASE_ID,
    PURCHASE_ID,
    Intended,
    LeftOrders,
    Opened,
    OpenOrder,
    OrderIntent,
    OrderRef,
    OrderSeen,
    PurchaseOption,
    PurchaseRef,
    PurchaseRequest,
    PurchaseState,
    Requote,
    RequoteRequest,
    StateChange,
    machine_names,
)
from longshore.models.settings import Settings
from longshore.models.visible import brief

_LOOK_EVERY = 1.0
_ON_THE_WAY = timedelta(seconds=5)
"""An order takes so long to its market: time that has begun by then is refused there."""


class PurchasingActivities:
    """Activities of `PurchaseWorkflow` on intents and orders."""

    def __init__(self, database: Database, temporal: Client, settings: Settings) -> None:
        self._database = database
        self._temporal = temporal
        self._settings = settings
        self._sending = Sending(database, settings, "purchase_orders", rows.lock_order)

    @activity.defn
    @reports_errors
    async def open_purchase(self, request: PurchaseRequest) -> Opened:
        """Store the intent, before anything is ordered; or that it was refused, and why.

        Raises SpecError for a request beyond the bounds, and for an id that names no machine.
        """
        purchase_id = (activity.info().workflow_id or "").removeprefix("purchase-")
        try:
            async with self._database.transaction() as connection:
                await ensure_pool(connection, request.pool)
                known = await rows.lock_purchase(connection, purchase_id)
                if known is not None:
                    return Opened(state=known["state"], reason=known["reason"])
                if problems := (*_odd_id(purchase_id), *beyond_bounds(request)):
                    raise SpecError("input", problems)
                await rows.insert_purchase(connection, purchase_id, request)
                await failpoint("open_purchase.before-commit")
        except DBAPIError as error:
            refused = rows.refusal_of(error)
            if refused is None:
                raise
            async with self._database.transaction() as connection:
                await ensure_pool(connection, request.pool)
                await rows.insert_purchase(connection, purchase_id, request, refused=refused)
            return Opened(state=PurchaseState.REFUSED, reason=refused)
        await failpoint("open_purchase.after-commit")
        return Opened(state=PurchaseState.INTENT)

    @activity.defn
    @reports_errors
    async def leave_orders(self, ref: PurchaseRef) -> LeftOrders:
        """Send no more of what a purchase was about to order; return what may be at a market."""
        async with self._database.transaction() as connection:
            purchase = await rows.lock_purchase(connection, ref.purchase_id)
            if purchase is None:
                raise NotFoundError(f"no purchase {ref.purchase_id}")
            found = await connection.execute(text(_NOT_CLOSED), {"id": ref.purchase_id})
            orders = found.mappings().all()
            for row in orders:
                if row["sent_at"] is None:
                    await self._refused(connection, row, "its workflow ended before it was sent")
            await rows.recount(connection, ref.purchase_id)
            left = await connection.execute(text(_LEFT), {"id": ref.purchase_id})
        sent = (row for row in orders if row["sent_at"] is not None)
        return LeftOrders(
            state=purchase["state"],
            open=tuple(OpenOrder.model_validate(dict(row)) for row in sent),
            **left.mappings().one(),
        )

    @activity.defn
    @reports_errors
    async def intend_order(self, intent: OrderIntent) -> Intended:
        """Store an order that is about to be made, unless the database refuses it."""
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
                await rows.lock_purchase(connection, intent.purchase_id)
                known = await connection.scalar(
                    text("SELECT refused FROM purchase_orders WHERE key = :key"),
                    {"key": intent.key},
                )
                if known is None:
                    await rows.insert_order(
                        connection, intent, option.provider, order, option.gpus_per_node,
                        window.end if window else now + option.length,
                        is_machine=not with_window, now=now,
                    )  # fmt: skip
                await failpoint("intend_order.before-commit")
        except DBAPIError as error:
            refused = rows.refusal_of(error)
            if refused is None:
                raise
            return Intended(key=intent.key, refused=refused)
        await failpoint("intend_order.after-commit")
        return Intended(key=intent.key, is_machine=not with_window)

    @activity.defn
    @reports_errors
    async def place_order(self, ref: OrderRef) -> OrderSeen:
        """Send an order to its market, once however often this runs.

        A market that does not take it, or that cannot have heard of it in several tries, is a
        part of the answer. Raises MarketAwayError while it is not known whether it arrived.
        """
        async with heartbeats():
            row, sent_before = await self._sending.mark(ref.key)
            if row["state"] != "INTENT":
                return await self._seen(ref.key)
            try:
                async with aclosing(registry.connect(self._settings, row["provider"])) as market:
                    order = await self._ordered(market, row, sent_before)
            except LongshoreError as error:
                if not await self._sending.is_final(row, error, sent_before):
                    raise
                now = await self._now()
                final = isinstance(error, OfferRefusedError) and not rows.is_late(row, now)
                await self._refuse(ref.key, str(error), finally_=final)
                forbidden = isinstance(error, CredentialsError | FundsError)
                if forbidden:
                    async with self._database.transaction() as connection:
                        await market_refusals.note(connection, row["provider"], error)
                        await rows.ask_for_renewal_again(connection, row["purchase_id"])
                return (await self._seen(ref.key)).model_copy(
                    update={"late": rows.is_late(row, now), "forbidden": forbidden}
                )
            await self._record(ref.key, order, taken=True)
        await failpoint("place_order.after-commit")
        return await self._seen(ref.key)

    @activity.defn
    @follows_up
    async def look_at_order(self, ref: OrderRef) -> OrderSeen:
        """Read an order at its market, and book what it has bought since the last look."""
        async with heartbeats():
            row = await self._sending.row(ref.key)
            if row["state"] == "CLOSED" or row["order_id"] is None:
                return await self._seen(ref.key)
            order = await self._sending.read(row)
            if isinstance(order, GoneError):
                await self._refuse(ref.key, str(order))
                return await self._seen(ref.key)
            await failpoint("look_at_order.after-call")
            await self._record(ref.key, order)
        await failpoint("look_at_order.after-commit")
        return await self._seen(ref.key)

    @activity.defn
    @follows_up
    async def cancel_order(self, ref: OrderRef) -> None:
        """Ask for the end of an order. It may fill on until a look finds it over."""
        async with heartbeats():
            row = await self._sending.row(ref.key)
            if row["state"] == "CLOSED" or row["order_id"] is None:
                return
            await self._sending.cancel(row)

    @activity.defn
    @reports_errors
    async def requote(self, request: RequoteRequest) -> Requote:
        """Return what to pay now for what an option lacks, within its cap."""
        option = await self._option(request.purchase_id, request.option)
        policy = await self._policy(request.purchase_id)
        async with self._database.transaction() as connection:
            refused = await market_refusals.refused_offers(connection, policy)
        try:
            async with aclosing(registry.connect(self._settings, option.provider)) as market:
                fixed = market.capabilities.fixed_window
                now = await self._now()
                window = _window(option, now) if fixed else None
                return await requoted(market, option, request.nodes, window, now, policy, refused)
        except LongshoreError as error:
            return Requote(reason=str(error))

    @activity.defn
    @reports_errors
    async def mark_purchase(self, change: StateChange) -> None:
        """Put a purchase into a state."""
        async with self._database.transaction() as connection:
            await rows.lock_purchase(connection, change.purchase_id)
            await rows.enter(connection, change.purchase_id, change.state, change.reason)

    @activity.defn
    @reports_errors
    async def settle_purchase(self, change: StateChange) -> None:
        """No more orders: what was planned and not committed is free again.

        Of one that has all that it wanted, what was refused before is no reason any more. Where
        no time after a block was bought, that is looked at again.
        """
        async with self._database.transaction() as connection:
            purchase = await rows.lock_purchase(connection, change.purchase_id)
            await connection.execute(
                text("UPDATE purchases SET buying = false WHERE id = :id"),
                {"id": change.purchase_id},
            )
            await rows.enter(connection, change.purchase_id, change.state, change.reason)
            if change.state is PurchaseState.READY and not change.reason:
                await rows.forget_reason(connection, change.purchase_id)
            await rows.end_if_over(connection, change.purchase_id)
        await failpoint("settle_purchase.after-commit")
        if purchase is not None and purchase["renews"] and change.state is not PurchaseState.READY:
            await Signals(self._temporal).wake_blocks([purchase["renews"]])

    async def _option(self, purchase_id: str, number: int) -> PurchaseOption:
        async with self._database.transaction() as connection:
            request = await connection.scalar(
                text("SELECT request FROM purchases WHERE id = :id"), {"id": purchase_id}
            )
        return PurchaseRequest.model_validate(request).options[number]

    async def _policy(self, purchase_id: str) -> BuyingPolicy:
        async with self._database.transaction() as connection:
            pool = await connection.scalar(
                text("SELECT pool FROM purchases WHERE id = :id"), {"id": purchase_id}
            )
            return (await load_pool(connection, pool, self._settings.margins)).purchasing

    async def _ordered(self, market: Provider, row: rows.Row, sent_before: bool) -> Order:
        request = OrderRequest.model_validate(row["request"])
        if row["is_machine"]:
            async with self._database.transaction() as connection:
                block = await rows.block_to_start(connection, row["key"])
                names = machine_names(row["key"], request.nodes)
                script = script_for(names, block, self._settings, self._temporal)
            request = request.model_copy(update={"startup_script": script})
            if sent_before and (found := await self._look_for(market, row)) is not None:
                return found
        if not sent_before:  # of one that may have arrived nothing else is asked
            await market.check_start(request)
        if not row["is_machine"]:
            account = await market.make_account(await self._account_name(row))
            request = request.model_copy(update={"account": account})
        await failpoint("place_order.before-call")
        order = await market.order(request)
        await failpoint("place_order.after-call")
        return order

    async def _look_for(self, market: Provider, row: rows.Row) -> Order | None:
        """Return an order that may have been placed before, once its list cannot lag any more."""
        until = row["sent_at"] + self._settings.market_list_lag
        while True:
            found = await market.find_order(row["key"])
            if found is not None or await self._now() > until:
                return found
            await asyncio.sleep(_LOOK_EVERY)

    async def _account_name(self, row: rows.Row) -> str:
        async with self._database.transaction() as connection:
            pool = await connection.scalar(
                text("SELECT pool FROM purchases WHERE id = :id"), {"id": row["purchase_id"]}
            )
        return f"longshore-{pool}"

    async def _refuse(self, key: str, reason: str, *, finally_: bool = False) -> None:
        async with self._database.transaction() as connection:
            row = await rows.lock_order(connection, key)
            await self._refused(connection, row, reason, finally_=finally_)
            await rows.recount(connection, row["purchase_id"])

    async def _refused(
        self, connection: AsyncConnection, row: rows.Row, reason: str, *, finally_: bool = False
    ) -> None:
        """Close an order of which nothing came; `row` is locked."""
        await rows.close_order(connection, row["key"], refused=reason, finally_=finally_)
        if row["is_machine"]:
            values = {"key": row["key"], "reason": reason}
            await connection.execute(text(_END_MACHINE), values)
            await connection.execute(text(_END_BLOCK), values)

    async def _record(self, key: str, order: Order, *, taken: bool = False) -> None:
        """Store what is known of an order, which was `taken` just now."""
        async with self._database.transaction() as connection:
            row = await rows.lock_order(connection, key)
            if row["is_machine"]:
                await rows.record_machine_order(connection, row, order)
                await market_refusals.forget(connection, row["provider"])
            else:
                await rows.record_order(connection, row, order)
                if taken:
                    await market_refusals.forget(connection, row["provider"], only_funds=True)

    async def _now(self) -> datetime:
        async with self._database.transaction() as connection:
            return await clock(connection)

    async def _seen(self, key: str) -> OrderSeen:
        async with self._database.transaction() as connection:
            return await rows.seen(connection, key)


def _odd_id(purchase_id: str) -> tuple[str, ...]:
    """Return what is wrong with the id of a purchase that begins, if anything is."""
    if PURCHASE_ID.fullmatch(purchase_id):
        return ()
    return (
        f"the workflow id must be purchase- and 1 to {LONGEST_PURCHASE_ID} lower-case letters, "
        "digits, dots, dashes and underscores, of which the first and the last are a letter or a "
        f"digit; purchase-{brief(purchase_id)} is not",
    )


def _capabilities(settings: Settings, provider: str) -> Any:
    return registry.connect(settings, provider).capabilities


def _window(option: PurchaseOption, now: datetime) -> Window:
    """Return what time to buy: whole minutes that begin now, or when the option says."""
    start = max(option.start or now, now + _ON_THE_WAY).replace(second=0, microsecond=0)
    minutes = -(-option.length // timedelta(minutes=1))
    return Window(start=start, end=start + timedelta(minutes=minutes))


_NOT_CLOSED = """
    SELECT * FROM purchase_orders WHERE purchase_id = :id AND state <> 'CLOSED'
     ORDER BY number FOR UPDATE
"""

_LEFT = """
    SELECT (SELECT count(*) FROM blocks WHERE purchase_id = :id AND state <> 'ENDED') AS blocks,
           ARRAY(SELECT name FROM machines WHERE purchase_id = :id AND state = 'READY'
                  ORDER BY name) AS nodes
"""

_END_MACHINE = """
    UPDATE machines SET state = 'ENDED', reason = :reason, ended_at = clock_timestamp()
     WHERE block_id = :key AND state <> 'ENDED'
"""

_END_BLOCK = """
    UPDATE blocks SET state = 'ENDED', reason = :reason, nodes = 0, ended_at = clock_timestamp()
     WHERE id = :key AND state <> 'ENDED'
"""
