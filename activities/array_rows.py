"""Rows of arrays, their elements and slots, as the steps of `activities.arrays` read and write
them."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.array_views import CLAIMED, COUNTS
from longshore.activities.database import clock
from longshore.activities.elements import store_results
from longshore.activities.funding.quotas import waiting_of
from longshore.activities.partners import Before
from longshore.activities.queue_rows import INSERT_JOB, ensure_pool
from longshore.models.array import expanded
from longshore.models.array_messages import AdvanceArray, OpenArray
from longshore.models.elements import ElementResult, ElementState
from longshore.models.errors import NotFoundError
from longshore.models.job_status import JobState
from longshore.models.retry import FailureClass, RetryPolicy
from longshore.models.visible import shown
from longshore.scheduling.arrays import ArraySeen, QueueRoom, slot_limit

_ROWS_AT_ONCE = 5_000
_ASK_AGAIN = timedelta(minutes=1)
"""So long an array waits for room in a queue: who leaves one tells no array of it."""
_LOST = "its slot ended and did not say what became of it"


async def record_array(
    connection: AsyncConnection,
    array_id: str,
    request: OpenArray,
    most_slots: int,
    before: Before | None,
) -> None:
    """Put an array and its elements on record, unless a job of that id is; those that succeeded
    in the array `before` a retry stay. Without a limit of its own it has at most `most_slots`."""
    spec = request.job.spec
    assert spec.array is not None
    indices = expanded(spec.array.ranges)
    await ensure_pool(connection, spec.pool)
    made = await connection.scalar(
        text(INSERT_JOB),
        {
            "id": array_id, "name": spec.name, "tenant": spec.tenant, "pool": spec.pool,
            "key": request.job.key, "spec": spec.model_dump_json(),
            "submitted_at": request.submitted_at,
            "begins_at": spec.begins_at(request.submitted_at),
            "deadline_at": spec.deadline_at(request.submitted_at),
        },
    )  # fmt: skip
    if not made:
        return
    await connection.execute(
        text(_INSERT_ARRAY),
        {
            "id": array_id, "elements": len(indices), "first": indices[0],
            "last": indices[-1], "held": request.job.held,
            "slots": slot_limit(spec.array, most_slots, len(indices)),
        },
    )  # fmt: skip
    if before is not None and before.kept_from is not None:
        kept = await connection.scalars(
            text(_KEEP_ELEMENTS), {"id": array_id, "kept_from": before.kept_from}
        )
        indices = tuple(sorted(set(indices) - set(kept)))
    state = ElementState.BLOCKED if before and before.blocked else ElementState.WAITING
    for at in range(0, len(indices), _ROWS_AT_ONCE):
        some = indices[at : at + _ROWS_AT_ONCE]
        await connection.execute(
            text(_INSERT_ELEMENTS),
            {
                "id": array_id, "state": state.value, "indices": list(some),
                "variables": [_json(spec.array.parameters(index)) for index in some],
            },
        )  # fmt: skip


def _json(variables: Mapping[str, str]) -> str | None:
    return json.dumps(variables) if variables else None


async def lock_array(connection: AsyncConnection, array_id: str) -> RowMapping:
    """Hold the array's row until the end of the transaction, as `mark_array_poked` does."""
    rows = await connection.execute(text(_ARRAY), {"id": array_id})
    row = rows.mappings().one_or_none()
    if row is None:
        raise NotFoundError(f"no array {shown(array_id)}: `longshore jobs --all` lists them")
    return row


async def slots_of(connection: AsyncConnection, array_id: str) -> Sequence[RowMapping]:
    """Return the slots of an array by number, with how the jobs that they are have ended."""
    return (await connection.execute(text(_SLOTS), {"id": array_id})).mappings().all()


async def seen_of(
    connection: AsyncConnection,
    row: RowMapping,
    request: AdvanceArray,
    cancelled: str | None,
) -> ArraySeen:
    """Return what is decided from; `row` is that of `lock_array`."""
    array_id = request.array_id
    counts = await connection.execute(text(COUNTS), {"id": array_id})
    by_state = {ElementState(each.state): each.number for each in counts}
    claimed = await connection.scalar(text(CLAIMED), {"id": array_id})
    ready = (await connection.execute(text(_READY), {"id": array_id})).mappings().one()
    slots = await slots_of(connection, array_id)
    open_ = [each for each in slots if each["state"] != "LOST" and each["end_state"] is None]
    failed = [
        each for each in slots
        if each["generation"] == row["generation"]
        and (each["state"] == "LOST" or each["end_state"] == JobState.FAILED)
        and not _was_not_let_in(each)
    ]  # fmt: skip
    last = max(failed, key=lambda each: each["number"]) if failed else None
    return ArraySeen(
        limit=row["slots"], counts=by_state, ready=ready["now"], next_ready=ready["next"],
        placed=sum(each["attempt"] > 0 for each in open_),
        queued=sum(each["attempt"] == 0 for each in open_),
        begun=any(each["attempt"] > 0 for each in slots),
        failed=len(failed),
        slot_failure=FailureClass(last["failure"]) if last and last["failure"] else None,
        slot_message=(last["message"] or last["reason"] or "") if last else "",
        held=request.held, begins_at=request.begins_at, cancelled=cancelled,
        claimed=claimed or 0, queue_room=await _queue_room(connection, array_id),
    )  # fmt: skip


def _was_not_let_in(slot: RowMapping) -> bool:
    """Return whether the queue refused a slot for a quota that others had used up: no fault of
    the array's."""
    refused = slot["failure"] == FailureClass.UNSATISFIABLE and slot["attempt"] == 0
    return refused and "max_queued: " in (slot["message"] or "")


async def _queue_room(connection: AsyncConnection, array_id: str) -> QueueRoom | None:
    tenant = await connection.scalar(text(_TENANT), {"id": array_id})
    waiting = await waiting_of(connection, tenant)
    if not waiting:
        return None
    names = sorted(frozenset[str]().union(*(each.below for each in waiting)))
    rows = await connection.execute(text(_COMING), {"tenants": names})
    coming = {row.tenant: row.number for row in rows}
    left, full = min(
        (each.most - each.queued - sum(coming.get(name, 0) for name in each.below), each.full)
        for each in waiting
    )
    return QueueRoom(left, full, await clock(connection) + _ASK_AGAIN)


async def take_from_ended_slots(
    connection: AsyncConnection, array_id: str, policy: RetryPolicy, cancelled: bool
) -> list[int]:
    """End the attempts of elements whose slot is over: what became of them nobody knows.

    Returns which."""
    rows = (await connection.execute(text(_ORPHANS), {"id": array_id})).mappings().all()
    by_claim: dict[tuple[str, int, int], list[ElementResult]] = {}
    for row in rows:
        claim = (row["job_id"], row["job_attempt"], row["batch"])
        by_claim.setdefault(claim, []).append(
            ElementResult(
                index=row["index"], attempt=row["attempt"], failure=FailureClass.NODE, error=_LOST,
                cancelled=cancelled or row["cancel"],
            )
        )  # fmt: skip
    for (job_id, attempt, batch), results in by_claim.items():
        key = {"id": array_id, "job": job_id, "attempt": attempt, "batch": batch}
        await store_results(
            connection, key, results, policy, FailureClass.NODE, cancelled=cancelled
        )
    return [row["index"] for row in rows]


async def end_waiting(
    connection: AsyncConnection,
    array_id: str,
    state: ElementState,
    failure: FailureClass | None,
    why: str,
) -> list[int]:
    """End the elements that wait for a slot; of a cancelled array those too that are blocked.

    Returns which."""
    row = {
        "id": array_id, "state": state.value, "why": why,
        "failure": failure.value if failure and state is ElementState.FAILED else None,
    }  # fmt: skip
    ended = list[int]()
    if state is ElementState.CANCELLED:
        # First: what is locked may be WAITING after that.
        ended += await connection.scalars(text(_END_WAITING.format(which=_BLOCKED)), row)
    return [*ended, *await connection.scalars(text(_END_WAITING.format(which=_UNCLAIMED)), row)]


async def reopen(
    connection: AsyncConnection, array_id: str, states: Sequence[ElementState]
) -> None:
    """Have the elements of an array that ended in these `states` wait again."""
    row = await lock_array(connection, array_id)
    if row["end_state"] is None:
        return  # a repeat, or one whose workflow was ended from outside: it goes on
    asked = {"id": array_id, "states": [state.value for state in states]}
    for statement in (_REOPEN_ARRAY, _REOPEN_ELEMENTS, _REOPEN_JOB):
        await connection.execute(text(statement), asked)


_INSERT_ARRAY = """
    INSERT INTO arrays (id, elements, first, last, slots, held)
    VALUES (:id, :elements, :first, :last, :slots, :held)
"""

_INSERT_ELEMENTS = """
    INSERT INTO elements (array_id, index, state, variables)
    SELECT :id, e.index, :state, CAST(e.variables AS jsonb)
      FROM unnest(CAST(:indices AS integer[]), CAST(:variables AS text[]))
           AS e (index, variables)
"""

_KEEP_ELEMENTS = """
    INSERT INTO elements (array_id, index, attempt, state, variables, job_id, job_attempt, batch,
                          exit_code, started_at, ended_at, stdout_offset, stdout_length,
                          stderr_offset, stderr_length)
    SELECT :id, index, attempt, state, variables, job_id, job_attempt, batch, exit_code,
           started_at, ended_at, stdout_offset, stdout_length, stderr_offset, stderr_length
      FROM elements
     WHERE array_id = :kept_from AND newest AND state = 'SUCCEEDED'
    RETURNING index
"""
"""With the slot and batch that have their output."""

_ARRAY = """
    SELECT a.*, j.spec, j.end_state, j.message,
           EXISTS (SELECT FROM array_slots s WHERE s.array_id = a.id AND s.attempt > 0) AS started
      FROM arrays a JOIN jobs j ON j.id = a.id
     WHERE a.id = :id FOR NO KEY UPDATE OF a
"""

_READY = """
    SELECT count(*) FILTER (WHERE not_before IS NULL OR not_before <= clock_timestamp()) AS now,
           min(not_before) FILTER (WHERE not_before > clock_timestamp()) AS next
      FROM elements WHERE array_id = :id AND state = 'WAITING'
"""

_SLOTS = """
    SELECT s.number, s.job_id, s.state, s.attempt, s.generation, s.cancel_sent, s.reason,
           j.end_state, j.failure, j.message
      FROM array_slots s LEFT JOIN jobs j ON j.id = s.job_id
     WHERE s.array_id = :id
     ORDER BY s.number
"""

_TENANT = "SELECT tenant FROM jobs WHERE id = :id"

_COMING = """
    SELECT j.tenant, count(*) AS number
      FROM jobs j
      JOIN array_slots s ON s.array_id = j.id
      LEFT JOIN jobs o ON o.id = s.job_id
     WHERE j.tenant = ANY (:tenants) AND j.ended_at IS NULL
       AND s.attempt = 0 AND s.state <> 'LOST' AND o.end_state IS NULL
       AND NOT EXISTS (SELECT FROM queue q WHERE q.job_id = s.job_id)
       AND NOT EXISTS (SELECT FROM placements p WHERE p.job_id = s.job_id)
     GROUP BY j.tenant
"""
"""Slots that are on their way to the queue, of all arrays. One that has had a node has been
there, though it has asked for no elements yet."""

_ORPHANS = """
    SELECT e.index, e.attempt, e.job_id, e.job_attempt, e.batch, e.cancel
      FROM elements e
      JOIN array_slots s ON s.array_id = e.array_id AND s.job_id = e.job_id
      LEFT JOIN jobs j ON j.id = e.job_id
     WHERE e.array_id = :id AND e.state = 'RUNNING'
       AND (j.ended_at IS NOT NULL OR s.state = 'LOST')
"""

_END_WAITING = """
    UPDATE elements e
       SET state = :state, failure = :failure, message = :why, ended_at = clock_timestamp()
      FROM (SELECT index, attempt FROM elements WHERE array_id = :id AND {which}) w
     WHERE e.array_id = :id AND e.index = w.index AND e.attempt = w.attempt
    RETURNING e.index
"""

_BLOCKED = "state = 'BLOCKED' ORDER BY index FOR UPDATE"

_UNCLAIMED = "state = 'WAITING' FOR UPDATE SKIP LOCKED"
"""A claim that has locked some may wait for the array's row, which we have."""

_REOPEN_ARRAY = """
    UPDATE arrays SET generation = generation + 1, cancelled = NULL WHERE id = :id
"""

_REOPEN_ELEMENTS = """
    WITH over AS (
        UPDATE elements SET newest = false
         WHERE array_id = :id AND newest AND state = ANY (:states)
        RETURNING array_id, index, attempt, variables
    )
    INSERT INTO elements (array_id, index, attempt, generation, variables)
    SELECT o.array_id, o.index, o.attempt + 1, a.generation, o.variables
      FROM over o JOIN arrays a ON a.id = o.array_id
"""

_REOPEN_JOB = """
    UPDATE jobs
       SET ended_at = NULL, end_state = NULL, failure = NULL, exit_code = NULL, message = '',
           attempts = 0, begins_at = NULL
     WHERE id = :id
"""
