"""The steps of a purchase but for its orders: its intent, its states, its end.

Every step may run twice.
"""

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying import order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.database import Database
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.queue_rows import ensure_pool
from longshore.activities.signals import Signals
from longshore.models.errors import NotFoundError, SpecError
from longshore.models.problems import beyond_bounds
from longshore.models.purchase import (
    LONGEST_PURCHASE_ID,
    PURCHASE_ID,
    LeftOrders,
    Opened,
    OpenOrder,
    PurchaseRef,
    PurchaseRequest,
    PurchaseState,
    StateChange,
)
from longshore.models.visible import brief


class PurchasingActivities:
    """Activities of `PurchaseWorkflow` on purchases."""

    def __init__(self, database: Database, temporal: Client) -> None:
        self._database = database
        self._temporal = temporal

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
            orders = await order_rows.lock_open(connection, ref.purchase_id)
            for row in orders:
                if row.sent_at is None:
                    await order_rows.refuse(
                        connection, row, "its workflow ended before it was sent"
                    )
            left = await connection.execute(text(_LEFT), {"id": ref.purchase_id})
        return LeftOrders(
            state=purchase["state"],
            open=tuple(
                OpenOrder(key=row.key, option=row.option or 0, is_machine=row.is_machine)
                for row in orders
                if row.sent_at is not None
            ),
            **left.mappings().one(),
        )

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
            # What kept it up its orders and machines tell in its timeline.
            has_all = change.state is PurchaseState.READY and not change.reason
            await connection.execute(
                text("UPDATE purchases SET buying = false,"
                     " reason = CASE WHEN :has_all THEN '' ELSE reason END WHERE id = :id"),
                {"id": change.purchase_id, "has_all": has_all},
            )  # fmt: skip
            await rows.enter(connection, change.purchase_id, change.state, change.reason)
            await rows.end_if_over(connection, change.purchase_id)
        await failpoint("settle_purchase.after-commit")
        if purchase is not None and purchase["renews"] and change.state is not PurchaseState.READY:
            await Signals(self._temporal).wake_blocks([purchase["renews"]])


def _odd_id(purchase_id: str) -> tuple[str, ...]:
    """Return what is wrong with the id of a purchase that begins, if anything is."""
    if PURCHASE_ID.fullmatch(purchase_id):
        return ()
    return (
        f"the workflow id must be purchase- and 1 to {LONGEST_PURCHASE_ID} lower-case letters, "
        "digits, dots, dashes and underscores, of which the first and the last are a letter or a "
        f"digit; purchase-{brief(purchase_id)} is not",
    )


_LEFT = """
    SELECT (SELECT count(*) FROM blocks WHERE purchase_id = :id AND state <> 'ENDED') AS blocks,
           ARRAY(SELECT name FROM machines WHERE purchase_id = :id AND state = 'READY'
                  ORDER BY name) AS nodes
"""
