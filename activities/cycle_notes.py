"""What is stored of cycles: one that changes something has a row, those after it share another."""

from collections.abc import Mapping

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.cycles import NOTED_EVERY


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
