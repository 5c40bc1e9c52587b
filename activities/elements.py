"""Claims and results of the elements of an array: a slot's steps on the capacity database.

A claim is of one batch: of a slot's job, its attempt and a number. A result counts only for the
claim that it belongs to, so whatever is delivered twice, or late, changes nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.partners import Woken, is_repeat, settle_followers, wake
from longshore.activities.pokes import mark_array_poked
from longshore.activities.rpc_errors import is_unknown
from longshore.activities.signals import Signals
from longshore.models.array_messages import ClaimReply, ClaimRequest
from longshore.models.bounds import json_bytes
from longshore.models.elements import (
    Batch,
    BatchReport,
    Element,
    ElementResult,
    Slot,
)
from longshore.models.messages import job_workflow_id
from longshore.models.node_messages import Progress
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass, RetryPolicy
from longshore.scheduling.arrays import MOST_IN_BATCH, batch_size, outcome

_MOST_BYTES = 500_000
"""Of the variables of a batch: Temporal takes 2 MiB at once."""


class ElementActivities:
    """Activities of the slots of arrays."""

    def __init__(self, database: Database, temporal: Client, signals: Signals) -> None:
        self._database = database
        self._temporal = temporal
        self._signals = signals

    @activity.defn
    @reports_errors
    async def claim_elements(self, request: ClaimRequest) -> ClaimReply:
        """Record how a slot's batch ended, and give it the next elements.

        A repeat records nothing twice, and gives the same elements.
        """
        array_id, key = request.array_id, request.key
        row = {"id": array_id, "job": key.job_id, "attempt": key.attempt, "batch": request.batch}
        batch, woken = None, Woken()
        async with self._database.transaction() as connection:
            # The slot's own row: claims of one slot come one after the other.
            slot = (await connection.execute(text(_SLOT), row)).mappings().one_or_none()
            if slot is None:
                return ClaimReply(reason=f"{key.job_id} is no slot of array {array_id}")
            first = slot["attempt"] == 0
            if request.report is not None:
                # The array ends a slot that seems idle, which may just have got an element: that
                # one was not cancelled, and gets another attempt.
                cancelled = request.cancelled and slot["cancelled"] is not None
                ended = await _record(connection, request, slot["retry"], cancelled=cancelled)
                woken = await settle_followers(connection, array_id, ended)
            is_old = (slot["attempt"], slot["batch"]) > (key.attempt, request.batch)
            open_now = not (slot["held"] or slot["cancelled"] or slot["ended_at"] or is_old)
            if request.want and open_now:
                batch = await _claim(connection, request, slot)
                await connection.execute(text(_NOTE_CLAIM), row)
            more = slot["open"] < slot["slots"] and slot["waiting"] > 0
            # The array opens further slots, or learns that it runs.
            poke = first and (more or not slot["runs"]) and batch is not None
            poke = poke and await mark_array_poked(connection, array_id)
            await failpoint("claim_elements.before-commit")
        await failpoint("claim_elements.after-commit")
        if poke or is_repeat():
            await self._signals.poke_array(array_id)
        await wake(self._database, self._signals, woken)
        return ClaimReply(batch=batch, reason="" if batch else "no element is left for it")

    @activity.defn
    @reports_errors
    async def known_of_batch(self, key: PlacementKey) -> BatchReport:
        """Return what a node said last of the batch of a slot that it lost: a heartbeat's word.

        Of what it does not name nobody knows whether it ran.
        """
        handle = self._temporal.get_workflow_handle(job_workflow_id(key.job_id))
        try:
            found = (await handle.describe()).raw_description
        except RPCError as error:
            if not is_unknown(error):
                raise
            return BatchReport(complete=False)
        pending = [a for a in found.pending_activities if a.activity_type.name == "run_elements"]
        pending = [each for each in pending if each.heartbeat_details.payloads]
        if not pending:
            return BatchReport(complete=False)
        newest = max(pending, key=lambda each: int(each.activity_id))
        details = await self._temporal.data_converter.decode(
            newest.heartbeat_details.payloads, [Progress]
        )
        said: BatchReport | None = details[0].batch
        return BatchReport(results=said.results if said else (), complete=False)


async def _claim(
    connection: AsyncConnection, request: ClaimRequest, slot: RowMapping
) -> Batch | None:
    row = {
        "id": request.array_id, "job": request.key.job_id, "attempt": request.key.attempt,
        "batch": request.batch,
    }  # fmt: skip
    found = (await connection.execute(text(_CLAIMED), row)).mappings().all()
    repeat = (slot["attempt"], slot["batch"]) == (request.key.attempt, request.batch)
    if not found and not repeat:
        lately = request.report.results if request.report else ()
        size = batch_size(lately, slot["waiting"], slot["open"])
        claimed = await connection.execute(text(_CLAIM), row | {"most": min(size, MOST_IN_BATCH)})
        found = claimed.mappings().all()
    if not found:
        return None
    elements, size = list[Element](), 0
    for each in sorted(found, key=lambda each: each["index"]):
        variables = each["variables"] or {}
        size += json_bytes(variables)
        if elements and size > _MOST_BYTES:
            break
        elements.append(Element(index=each["index"], attempt=each["element"], variables=variables))
    if len(elements) < len(found):
        kept = [each.index for each in elements]
        await connection.execute(text(_GIVE_BACK), row | {"kept": kept})
    return Batch(
        slot=Slot(
            array_id=request.array_id, number=slot["number"], elements=slot["elements"],
            first=slot["first"], last=slot["last"],
        ),
        number=request.batch,
        elements=tuple(elements),
    )  # fmt: skip


async def _record(
    connection: AsyncConnection, request: ClaimRequest, retry: object, *, cancelled: bool
) -> Sequence[int]:
    """Record the results of a batch; what was not started goes back, what may have run is lost.

    `cancelled` says that somebody cancelled the array. Returns the elements that it was about,
    also at a repeat."""
    report = request.report or BatchReport()
    key = {
        "id": request.array_id, "job": request.key.job_id, "attempt": request.key.attempt,
        "batch": request.batch - 1,
    }  # fmt: skip
    rows = (await connection.execute(text(_CLAIMED + " FOR UPDATE"), key)).mappings().all()
    running = {each["index"]: each for each in rows}
    results = [each for each in report.results if each.index in running]
    told = {each.index for each in results}
    unstarted = [
        index for index, each in running.items() if index not in told and not each["cancel"]
    ]
    left_out = running.keys() - told - set(unstarted)
    results += [ElementResult(index=index, attempt=1, cancelled=True) for index in left_out]
    if not report.complete:
        results += [
            ElementResult(
                index=index, attempt=1, failure=request.stopped_as or FailureClass.NODE,
                error=request.message,
            )
            for index in unstarted
        ]  # fmt: skip
    elif unstarted:
        await connection.execute(text(_UNCLAIM), key | {"indices": unstarted})
    marked = {index for index, each in running.items() if each["cancel"]}
    results = [
        each.model_copy(update={"cancelled": True}) if each.index in marked and each.stopped
        else each
        for each in results
    ]  # fmt: skip
    await store_results(
        connection, key, results, RetryPolicy.model_validate(retry or {}), request.stopped_as,
        cancelled=cancelled, message=request.message,
    )  # fmt: skip
    return sorted({each.index for each in (*report.results, *results)})


async def store_results(
    connection: AsyncConnection,
    key: Mapping[str, object],
    results: Sequence[ElementResult],
    policy: RetryPolicy,
    stopped_as: FailureClass | None,
    *,
    cancelled: bool,
    message: str = "",
) -> None:
    """Record how attempts of claimed elements ended, and what follows for each.

    `key` names array (`id`) and claim (`job`, `attempt`, `batch`): results count for that alone.
    """
    if not results:
        return
    now = await clock(connection)
    ill = [each.index for each in results if each.failure or each.stopped]
    used = await _used(connection, key["id"], ill) if ill else {}
    states, again = list[str](), dict[int, datetime]()
    for each in results:
        next_ = outcome(each, policy, used.get(each.index, {}), stopped_as, cancelled=cancelled)
        states.append(next_.state.value)
        if next_.again is not None:
            again[each.index] = now + next_.again
    failures = [
        (each.failure or (stopped_as if each.stopped else None)) if state == "FAILED" else None
        for each, state in zip(results, states, strict=True)
    ]
    await connection.execute(
        text(_STORE),
        {
            **key, "now": now,
            "indices": [each.index for each in results], "states": states,
            "newest": [each.index not in again for each in results],
            "failures": [failure and failure.value for failure in failures],
            "codes": [each.exit_code for each in results],
            "errors": [
                (each.error or (message if each.stopped else ""))[:2000] for each in results
            ],
            "starts": [each.started_at for each in results],
            "ends": [each.ended_at or now for each in results],
            "out": [each.stdout.offset for each in results],
            "out_length": [each.stdout.length for each in results],
            "err": [each.stderr.offset for each in results],
            "err_length": [each.stderr.length for each in results],
        },
    )  # fmt: skip
    if again:
        await connection.execute(
            text(_AGAIN),
            {"id": key["id"], "indices": list(again), "times": list(again.values())},
        )


async def _used(
    connection: AsyncConnection, array_id: object, indices: Sequence[int]
) -> Mapping[int, Mapping[FailureClass, int]]:
    """Return how many retries each element has used up, by class of failure."""
    rows = await connection.execute(text(_USED), {"id": array_id, "indices": list(indices)})
    used: dict[int, Counter[FailureClass]] = {}
    for row in rows.mappings():
        used.setdefault(row["index"], Counter())[FailureClass(row["failure"])] += row["times"]
    return used


_SLOT = """
    SELECT s.number, s.attempt, s.batch, a.held, a.cancelled, a.elements, a.first, a.last,
           a.slots, j.ended_at, j.spec->'retry' AS retry,
           EXISTS (SELECT FROM array_slots o
                    WHERE o.array_id = s.array_id AND o.generation = s.generation
                      AND o.attempt > 0) AS runs,
           (SELECT count(*) FROM (
                SELECT FROM elements e
                 WHERE e.array_id = s.array_id AND e.state = 'WAITING'
                   AND (e.not_before IS NULL OR e.not_before <= clock_timestamp())
                 LIMIT 20000) ready) AS waiting,
           (SELECT count(*) FROM array_slots o LEFT JOIN jobs oj ON oj.id = o.job_id
             WHERE o.array_id = s.array_id AND o.state <> 'LOST'
               AND oj.ended_at IS NULL) AS open
      FROM array_slots s
      JOIN arrays a ON a.id = s.array_id
      JOIN jobs j ON j.id = s.array_id
     WHERE s.array_id = :id AND s.job_id = :job
       FOR NO KEY UPDATE OF s
"""

_NOTE_CLAIM = """
    UPDATE array_slots SET attempt = :attempt, batch = :batch
     WHERE array_id = :id AND job_id = :job AND (attempt, batch) < (:attempt, :batch)
"""

_CLAIMED = """
    SELECT index, attempt AS element, variables, cancel FROM elements
     WHERE array_id = :id AND job_id = :job AND job_attempt = :attempt AND batch = :batch
       AND state = 'RUNNING'
"""

_CLAIM = """
    WITH free AS MATERIALIZED (
        SELECT index, attempt FROM elements
         WHERE array_id = :id AND state = 'WAITING'
           AND (not_before IS NULL OR not_before <= clock_timestamp())
         ORDER BY index LIMIT :most
           FOR UPDATE SKIP LOCKED
    )
    UPDATE elements e
       SET state = 'RUNNING', job_id = :job, job_attempt = :attempt, batch = :batch,
           not_before = NULL
      FROM free
     WHERE e.array_id = :id AND e.index = free.index AND e.attempt = free.attempt
    RETURNING e.index, e.attempt AS element, e.variables
"""
"""Without MATERIALIZED the planner may ask for free ones again for each row, and take more."""

_UNCLAIM = """
    UPDATE elements SET state = 'WAITING', job_id = NULL, job_attempt = NULL, batch = NULL
     WHERE array_id = :id AND job_id = :job AND job_attempt = :attempt AND batch = :batch
       AND state = 'RUNNING' AND index = ANY (:indices)
"""

_GIVE_BACK = """
    UPDATE elements SET state = 'WAITING', job_id = NULL, job_attempt = NULL, batch = NULL
     WHERE array_id = :id AND job_id = :job AND job_attempt = :attempt AND batch = :batch
       AND state = 'RUNNING' AND index <> ALL (:kept)
"""

_STORE = """
    UPDATE elements e
       SET state = r.state, newest = r.newest, failure = r.failure, exit_code = r.code,
           message = r.error, started_at = r.started, ended_at = r.ended,
           stdout_offset = r.out, stdout_length = r.out_length,
           stderr_offset = r.err, stderr_length = r.err_length
      FROM unnest(CAST(:indices AS integer[]), CAST(:states AS text[]),
                  CAST(:newest AS boolean[]), CAST(:failures AS text[]),
                  CAST(:codes AS integer[]), CAST(:errors AS text[]),
                  CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[]),
                  CAST(:out AS bigint[]), CAST(:out_length AS bigint[]),
                  CAST(:err AS bigint[]), CAST(:err_length AS bigint[]))
           AS r (index, state, newest, failure, code, error, started, ended, out, out_length,
                 err, err_length)
     WHERE e.array_id = :id AND e.index = r.index AND e.state = 'RUNNING'
       AND e.job_id = :job AND e.job_attempt = :attempt AND e.batch = :batch
"""

_AGAIN = """
    INSERT INTO elements (array_id, index, attempt, generation, variables, not_before)
    SELECT e.array_id, e.index, e.attempt + 1, e.generation, e.variables, t.at
      FROM unnest(CAST(:indices AS integer[]), CAST(:times AS timestamptz[])) AS t (index, at)
      JOIN LATERAL (SELECT * FROM elements
                     WHERE array_id = :id AND index = t.index
                     ORDER BY attempt DESC LIMIT 1) e ON NOT e.newest
"""

_USED = """
    SELECT index, failure, count(*) AS times FROM elements
     WHERE array_id = :id AND index = ANY (:indices) AND NOT newest AND failure IS NOT NULL
       AND generation = (SELECT generation FROM arrays a WHERE a.id = :id)
     GROUP BY index, failure
"""
