"""What is stored of cycles: one that changes something has a row, those after it share another."""

from collections.abc import Mapping

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.queue_rows import ensure_pool
from longshore.models.cycles import NOTED_EVERY

_KEEP = 1000
"""Of each pool, the latest; older ones are kept where they placed a job."""


async def begin_cycle(connection: AsyncConnection, pool: str) -> None:
    """Make the pool where it is new, and take its poke.

    One that is not poked is left as it is: whoever pokes it from now on signals.
    """
    poked = await connection.scalar(
        text("SELECT poked FROM pools WHERE name = :name"), {"name": pool}
    )
    if poked is None:
        await ensure_pool(connection, pool)
    elif poked:
        await connection.execute(
            text("UPDATE pools SET poked = false WHERE name = :name"), {"name": pool}
        )


async def note_cycle(
    connection: AsyncConnection, values: Mapping[str, object], *, begun: bool, changed: bool
) -> None:
    """Store what a cycle did and took. One that changed nothing, and left as many waiting as were
    noted last, is noted once in `NOTED_EVERY`, in the row of the ones before it: an idle pool
    writes nothing else. `begun` says that this transaction has made its row.

    Raises IntegrityError where another attempt has made it since: that one's placements are not
    told otherwise, and the next attempt finds them.
    """
    rows = await connection.execute(text(_LAST), {**values, "every": NOTED_EVERY})
    last = rows.mappings().all()
    if changed or not last or last[0]["waiting"] != values["queued"]:
        await connection.execute(text(_NOTE_BEGUN if begun else _NOTE), values)
    elif last[0]["old"]:
        repeats = len(last) > 1 and _changed_nothing(last[0], last[1])
        noted = {**values, "of": last[0]["id"] if repeats else None}
        await connection.execute(text(_NOTE_AGAIN if repeats else _NOTE), noted)


async def forget_cycles(connection: AsyncConnection, pool: str, some: int) -> None:
    """Remove what is noted of old cycles that placed nobody: of `some` at most, those that have
    come to this age since the last time, and more."""
    await connection.execute(text(_FORGET), {"pool": pool, "keep": _KEEP, "some": some})


def _changed_nothing(row: RowMapping, before: RowMapping) -> bool:
    return row["did"] == 0 and row["waiting"] == before["waiting"]


_LAST = """
    SELECT id, queued - placed AS waiting, placed + refused AS did,
           committed_at < clock_timestamp() - CAST(:every AS interval) AS old
      FROM cycles WHERE pool = :pool AND id <> :id ORDER BY committed_at DESC LIMIT 2
"""

_NOTE = """
    INSERT INTO cycles (id, pool, queued, placed, refused, took_ms, looked_at, read_ms, plan_ms,
                        commit_ms, explain_ms)
    VALUES (:id, :pool, :queued, :placed, :refused, :took, :looked_at, :read, :plan, :commit,
            :explain)
"""

_NOTE_BEGUN = """
    UPDATE cycles
       SET queued = :queued, placed = :placed, refused = :refused, took_ms = :took,
           looked_at = :looked_at, read_ms = :read, plan_ms = :plan, commit_ms = :commit,
           explain_ms = :explain
     WHERE id = :id
"""

_NOTE_AGAIN = """
    UPDATE cycles
       SET committed_at = clock_timestamp(), queued = :queued, took_ms = :took,
           looked_at = :looked_at, read_ms = :read, plan_ms = :plan, commit_ms = :commit,
           explain_ms = :explain
     WHERE id = :of
"""

_FORGET = """
    DELETE FROM cycles c
     WHERE c.id IN (SELECT id FROM cycles WHERE pool = :pool
                     ORDER BY committed_at DESC OFFSET :keep LIMIT :some)
       AND NOT EXISTS (SELECT FROM placements WHERE cycle_id = c.id)
"""
