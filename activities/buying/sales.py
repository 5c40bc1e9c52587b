"""The steps of a sale of time: stored, offered once, read until it is over, settled.

A sale is as dangerous as a purchase: what is sold twice, or sold while a job holds it, costs a
job or money. Its row and the cordon of its node are one transaction, before the market hears of
it. Every step may run twice.
"""

from contextlib import aclosing

from sqlalchemy.exc import DBAPIError
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying import sale_rows as sales
from longshore.activities.buying.scale_down import check_leaves
from longshore.activities.buying.sending import Sending
from longshore.activities.database import Database
from longshore.activities.error_translation import follows_up, reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.heartbeat import heartbeats
from longshore.activities.node_updates import drain_node, undrain_node
from longshore.activities.providers import registry
from longshore.models.block_end import SaleIntent, SaleRef, SaleSeen
from longshore.models.errors import (
    GoneError,
    LongshoreError,
    StaleError,
)
from longshore.models.market import OrderRequest
from longshore.models.settings import Settings


class SaleActivities:
    """Activities of `BlockWorkflow` on sales of time."""

    def __init__(self, database: Database, temporal: Client, settings: Settings) -> None:
        self._database = database
        self._temporal = temporal
        self._settings = settings
        # Only markets that remember keys are sold at: one that knew the order would have given it.
        self._sending = Sending(database, settings, "sales", sales.lock)

    @activity.defn
    @reports_errors
    async def intend_sale(self, intent: SaleIntent) -> SaleSeen:
        """Store a sale, and keep every job off its node, unless the database refuses it.

        Refused are a node that a job holds, time that is for sale already, and any sale while
        buying is stopped.
        """
        try:
            async with self._database.transaction() as connection:
                if not await sales.is_known(connection, intent.key):
                    await check_leaves(
                        connection, intent.block_id, intent.machine, self._settings.margins
                    )
                    await sales.insert(connection, intent)
                is_let_go = await sales.is_let_go(connection, intent.block_id)
                await failpoint("intend_sale.before-commit")
        except (DBAPIError, StaleError) as error:
            refused = str(error) if isinstance(error, StaleError) else sales.refusal_of(error)
            if refused is None:
                raise
            return SaleSeen(key=intent.key, machine=intent.machine, over=True, refused=refused)
        await failpoint("intend_sale.after-commit")
        seen = await self._seen(intent.key)
        if not seen.over and not is_let_go:
            await drain_node(self._temporal, seen.machine, sales.CORDON)
        return seen

    @activity.defn
    @reports_errors
    async def place_sale(self, ref: SaleRef) -> SaleSeen:
        """Offer the time at its market, once however often this runs.

        A market that does not take it, or that cannot have heard of it in several tries, is a
        part of the answer. Raises MarketAwayError while it is not known whether it arrived.
        """
        async with heartbeats():
            row, sent_before = await self._sending.mark(ref.key)
            if row["state"] != "INTENT":
                return await self._seen(ref.key)
            request = OrderRequest.model_validate(row["request"])
            await failpoint("place_sale.before-call")
            try:
                async with aclosing(registry.connect(self._settings, row["provider"])) as market:
                    order = await market.order(request)
            except LongshoreError as error:
                if not await self._sending.is_final(row, error, sent_before):
                    raise
                async with self._database.transaction() as connection:
                    await sales.close(connection, ref.key, refused=str(error))
                return await self._seen(ref.key)
            await failpoint("place_sale.after-call")
            async with self._database.transaction() as connection:
                await sales.record(connection, ref.key, order)
        await failpoint("place_sale.after-commit")
        return await self._seen(ref.key)

    @activity.defn
    @follows_up
    async def look_at_sale(self, ref: SaleRef) -> SaleSeen:
        """Read a sale at its market, and book what it has brought since the last look."""
        async with heartbeats():
            row = await self._sending.row(ref.key)
            if row["state"] == "UNSOLD" or row["order_id"] is None:
                return await self._seen(ref.key)
            order = await self._sending.read(row)
            if isinstance(order, GoneError):
                async with self._database.transaction() as connection:
                    await sales.close(connection, ref.key, refused=str(order))
                return await self._seen(ref.key)
            await failpoint("look_at_sale.after-call")
            async with self._database.transaction() as connection:
                await sales.record(connection, ref.key, order)
        return await self._seen(ref.key)

    @activity.defn
    @follows_up
    async def cancel_sale(self, ref: SaleRef) -> None:
        """Ask for the end of a sale. It may fill on until a look finds it over."""
        async with heartbeats():
            row = await self._sending.row(ref.key)
            if row["state"] in ("UNSOLD", "INTENT"):
                return
            await self._sending.cancel(row)

    @activity.defn
    @reports_errors
    async def settle_sale(self, ref: SaleRef) -> None:
        """Give a node whose time found no buyer back to the jobs, until its block's end."""
        async with self._database.transaction() as connection:
            row = await sales.lock(connection, ref.key)
            if row["state"] == "SOLD":
                await sales.note_sold(connection, row)
                return
            await sales.close(connection, ref.key)
            cordoned = await sales.release(connection, row)
        await failpoint("settle_sale.after-commit")
        if cordoned:
            await undrain_node(self._temporal, row["machine"], "its time found no buyer")

    async def _seen(self, key: str) -> SaleSeen:
        async with self._database.transaction() as connection:
            return await sales.seen(connection, key)
