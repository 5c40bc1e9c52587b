"""Bills that came after the account of what they are for was closed."""

from sqlalchemy import text

from longshore.activities.buying import order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.ledger import book_cost, book_late
from longshore.activities.database import Database


async def book_bill(database: Database, key: str, total: int) -> str:
    """Bring what an order has cost to `total`, in micro-dollars; return why not, if so.

    The jobs that ran there pay what they paid: the difference counts as idle. Again, it changes
    nothing. No cap refuses what the market has taken.
    """
    async with database.transaction() as connection:
        order = await order_rows.lock(connection, key)
        found = await connection.execute(
            text("SELECT * FROM blocks WHERE id = :id FOR NO KEY UPDATE"), {"id": key}
        )
        block = found.mappings().first()
        if block is None or block["state"] != "ENDED" or order.state != "CLOSED":
            return "its account is still open"
        await book_cost(connection, order, total, simulated=block["simulated"])
        await book_late(connection, block, total - order.spent)
        await order_rows.close(connection, key)
        await rows.recount(connection, order.purchase_id)
    return ""
