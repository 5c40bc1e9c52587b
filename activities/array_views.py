"""Reading arrays and their elements for people."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, text

from longshore.activities.database import Database
from longshore.models.array import IndexRange, ranges_text
from longshore.models.array_view import ArrayView, ElementView, ErrorGroup, SlotsAside
from longshore.models.elements import ElementState, Span
from longshore.models.errors import NotFoundError

_GROUPS = 20


class ArrayViews:
    """Read-only views of arrays."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def array(self, array_id: str) -> ArrayView | None:
        """Return an array in short; None where the job of this id is none."""
        asked = {"id": array_id, "groups": _GROUPS}
        async with self._database.transaction() as connection:
            found = await connection.execute(text(_ARRAY), asked)
            row = found.mappings().one_or_none()
            if row is None:
                return None
            counts = (await connection.execute(text(COUNTS), asked)).mappings().all()
            claimed = await connection.scalar(text(CLAIMED), asked)
            slots = (await connection.execute(text(_SLOTS), asked)).mappings().all()
            groups = (await connection.execute(text(_ERRORS), asked)).mappings().all()
        return ArrayView(
            elements=row["elements"], first=row["first"], last=row["last"],
            counts={ElementState(each["state"]): each["number"] for each in counts},
            claimed=claimed or 0,
            attempts=row["attempts"], limit=row["slots"], generation=row["generation"],
            slots=len(slots), placed=sum(each["placed"] for each in slots),
            waiting_slot=next((each["job_id"] for each in slots if each["waits"]), None),
            aside=_aside(slots),
            errors=tuple(
                ErrorGroup(
                    failure=each["failure"], exit_code=each["exit_code"], message=each["message"],
                    elements=each["number"], indices=ranges_text(tuple(each["indices"])),
                )
                for each in groups
            ),
        )  # fmt: skip

    async def slots_aside(self, array_id: str) -> SlotsAside | None:
        """Return the slots of an array that are set aside; None where none is."""
        async with self._database.transaction() as connection:
            slots = (await connection.execute(text(_SLOTS), {"id": array_id})).mappings().all()
        return _aside(slots)

    async def elements(
        self,
        array_id: str,
        *,
        states: frozenset[ElementState] = frozenset(),
        ranges: Sequence[IndexRange] = (),
        all_attempts: bool = False,
        after: int = -1,
        limit: int = 100,
    ) -> tuple[ElementView, ...]:
        """Return elements by index, the last attempt of each; with `all_attempts` those before
        it too. An empty filter takes all."""
        asked = {
            "id": array_id, "states": [state.value for state in states] or None,
            "all": all_attempts, "after": after, "limit": limit,
            "firsts": [each.first for each in ranges] or None,
            "lasts": [each.last for each in ranges], "steps": [each.step for each in ranges],
        }  # fmt: skip
        async with self._database.transaction() as connection:
            rows = (await connection.execute(text(_ELEMENTS), asked)).mappings().all()
            ups: Sequence[str] = ()
            if any(row["state"] == ElementState.BLOCKED for row in rows):
                ups = (await connection.scalars(text(_UPSTREAM), asked)).all()
            return tuple(_element(row, ups) for row in rows)

    async def element(self, array_id: str, index: int, attempt: int | None) -> ElementView:
        """Return one attempt of one element, the last without a number. Raises NotFoundError."""
        found = await self.elements(
            array_id, ranges=(IndexRange(index, index),), all_attempts=True, limit=10_000
        )
        if not found:
            raise NotFoundError(
                f"array {array_id} has no element {index}: `longshore elements {array_id}` lists "
                "those that it has"
            )
        for each in reversed(found):
            if attempt in (None, each.attempt):
                return each
        raise NotFoundError(f"element {index} of {array_id} has no attempt {attempt}")

    async def dag_of(self, array_id: str) -> str | None:
        """Return the DAG of which an array is a job."""
        async with self._database.transaction() as connection:
            return await connection.scalar(
                text("SELECT dag_id FROM dag_jobs WHERE job_id = :id"), {"id": array_id}
            )


def _aside(slots: Sequence[RowMapping]) -> SlotsAside | None:
    aside = [each for each in slots if each["aside"] is not None]
    if not aside:
        return None
    return SlotsAside(slots=len(aside), first=aside[0]["job_id"], reason=aside[0]["aside"])


def _element(row: RowMapping, upstream: Sequence[str]) -> ElementView:
    values: dict[str, Any] = {
        name: value for name, value in row.items() if not name.endswith(("_offset", "_length"))
    }
    if row["state"] == ElementState.BLOCKED:
        values["message"] = f"waits for element {row['index']} of {', '.join(upstream)}"
    for stream in ("stdout", "stderr"):
        if row[f"{stream}_offset"] is not None:
            values[stream] = Span(
                offset=row[f"{stream}_offset"], length=row[f"{stream}_length"] or 0
            )
    return ElementView.model_validate(values)


_ARRAY = """
    SELECT a.*, (SELECT count(*) FROM elements e
                  WHERE e.array_id = a.id AND e.started_at IS NOT NULL) AS attempts
      FROM arrays a WHERE a.id = :id
"""

COUNTS = """
    SELECT state, count(*) AS number FROM elements
     WHERE array_id = :id AND newest GROUP BY state
"""

CLAIMED = """
    SELECT count(*) - count(DISTINCT job_id) FROM elements
     WHERE array_id = :id AND state = 'RUNNING'
"""
"""A slot has one batch at a time, and runs one element of it at a time."""

_SLOTS = """
    SELECT s.job_id,
           EXISTS (SELECT FROM placements p
                    WHERE p.job_id = s.job_id AND p.ended_at IS NULL) AS placed,
           q.job_id IS NOT NULL AND q.decision->>'kind' IS DISTINCT FROM 'SET_ASIDE' AS waits,
           CASE q.decision->>'kind' WHEN 'SET_ASIDE' THEN q.decision->>'reason' END AS aside
      FROM array_slots s
      LEFT JOIN jobs j ON j.id = s.job_id
      LEFT JOIN queue q ON q.job_id = s.job_id
     WHERE s.array_id = :id AND s.state <> 'LOST' AND j.ended_at IS NULL
     ORDER BY s.number
"""

_ERRORS = """
    SELECT failure, exit_code, count(*) AS number,
           (array_agg(message ORDER BY index))[1] AS message,
           array_agg(index ORDER BY index) AS indices
      FROM elements
     WHERE array_id = :id AND newest AND state = 'FAILED'
     GROUP BY failure, exit_code, regexp_replace(message, '[0-9]+', 'N', 'g')
     ORDER BY count(*) DESC, min(index) LIMIT :groups
"""

_UPSTREAM = """
    SELECT c.upstream FROM dag_jobs d
      JOIN element_edges c ON c.dag_id = d.dag_id AND c.name = d.name
     WHERE d.job_id = :id ORDER BY c.upstream
"""

_ELEMENTS = """
    SELECT e.index, e.attempt, e.newest, e.state, e.failure, e.exit_code, e.message, e.variables,
           e.job_id, e.job_attempt, e.batch, e.started_at, e.ended_at, e.stdout_offset,
           e.stdout_length, e.stderr_offset, e.stderr_length, p.node_id,
           e.state = 'RUNNING' AND NOT EXISTS (
               SELECT FROM elements o
                WHERE o.array_id = e.array_id AND o.job_id = e.job_id AND o.state = 'RUNNING'
                  AND o.job_attempt = e.job_attempt AND o.batch = e.batch AND o.index <> e.index
           ) AS alone
      FROM elements e
      LEFT JOIN placements p ON p.job_id = e.job_id AND p.attempt = e.job_attempt AND p.rank = 0
     WHERE e.array_id = :id AND e.index > :after AND (:all OR e.newest)
       AND (CAST(:states AS text[]) IS NULL OR e.state = ANY (:states))
       AND (CAST(:firsts AS integer[]) IS NULL OR EXISTS (
               SELECT FROM unnest(CAST(:firsts AS integer[]), CAST(:lasts AS integer[]),
                                  CAST(:steps AS integer[])) AS r (first, last, step)
                WHERE e.index BETWEEN r.first AND r.last AND (e.index - r.first) % r.step = 0))
     ORDER BY e.index, e.attempt LIMIT :limit
"""
