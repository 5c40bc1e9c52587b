"""The steps of an array: onto the record, and from its slots and elements to what follows.

Every activity here may run twice. A slot that is to be opened is on record before it is, and its
id is of one slot: a repeat starts what is missing and nothing twice.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from longshore.activities.admission import why_never
from longshore.activities.array_rows import (
    end_waiting,
    lock_array,
    record_array,
    reopen,
    seen_of,
    slots_of,
    take_from_ended_slots,
)
from longshore.activities.dag_ends import mark_end, of_dag_at_retry, tell_end
from longshore.activities.database import Database, clock
from longshore.activities.deadlines import note_end
from longshore.activities.element_cancels import cancel_elements
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.job_end_rows import record_end
from longshore.activities.job_ends import ask_to_end
from longshore.activities.job_runs import is_job_over
from longshore.activities.job_starts import digest_of, start_job
from longshore.activities.metrics import JOB_ENDS, SILENT, Metrics
from longshore.activities.partners import (
    Woken,
    before_elements,
    settle_at_first,
    settle_followers,
    wake,
)
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_pool
from longshore.models.array_messages import (
    AdvanceArray,
    ArrayProgress,
    CancelElements,
    ElementsReply,
    OpenArray,
    OpenedArray,
)
from longshore.models.base import JOB_ID
from longshore.models.elements import ElementState, Slot
from longshore.models.job import JobSpec
from longshore.models.job_status import JobResult, JobState
from longshore.models.messages import JobInput, job_workflow_id
from longshore.models.visible import shown
from longshore.scheduling.arrays import ArrayPlan, ArraySeen, decide, too_many
from longshore.scheduling.time_limits import with_limit

_IN_FLIGHT = 25
UNRECORDED_AFTER = timedelta(minutes=1)
"""A slot that was submitted so long ago is in the queue, or its workflow tells why not."""
_LONGEST_SLOT_NAME = 56


class ArrayActivities:
    """Activities of `ArrayWorkflow`."""

    def __init__(
        self,
        database: Database,
        temporal: Client,
        signals: Signals,
        most_elements: int,
        most_slots: int,
        metrics: Metrics = SILENT,
    ) -> None:
        """Of an array with more than `most_elements` none is started; one without a limit has at
        most `most_slots` slots."""
        self._database = database
        self._temporal = temporal
        self._signals = signals
        self._most_elements = most_elements
        self._most_slots = most_slots
        self._metrics = metrics

    @activity.defn
    @reports_errors
    async def open_array(self, request: OpenArray) -> OpenedArray:
        """Put an array on record with its elements; or of one that has ended, those that are to
        run again. A repeat changes nothing."""
        array_id, spec = request.array_id, request.job.spec
        if not request.retry and (why := self._why_not(array_id, spec)):
            return OpenedArray(refusal=why)
        woken = Woken()
        async with self._database.transaction() as connection:
            if request.retry:
                await reopen(connection, array_id, request.retry)
            else:
                pool = await load_pool(connection, spec.pool)
                spec = with_limit(spec, pool)
                if not await _is_known(connection, array_id):
                    why = await why_never(connection, array_id, spec, pool, request.submitted_at)
                    if why:
                        return OpenedArray(refusal=why)
                limited = request.job.model_copy(update={"spec": spec})
                request = request.model_copy(update={"job": limited})
                before = await before_elements(connection, array_id)
                await record_array(connection, array_id, request, self._most_slots, before)
                found = await connection.scalar(
                    text("SELECT submitted_at FROM jobs WHERE id = :id"), {"id": array_id}
                )
                known = await connection.scalar(
                    text("SELECT id FROM arrays WHERE id = :id"), {"id": array_id}
                )
                if known is None or found != request.submitted_at:
                    why = f"a job {array_id} is on record already: give this one another id"
                    return OpenedArray(refusal=why, other=True)
                if before is not None:
                    # A repeat, which finds it on record, may have to signal.
                    woken = await settle_at_first(connection, array_id, before)
            await failpoint("open_array.before-commit")
        await failpoint("open_array.after-commit")
        await wake(self._database, self._signals, woken)
        return OpenedArray()

    def _why_not(self, array_id: str, spec: JobSpec) -> str:
        if spec.array is None:
            return "spec.array: is missing"
        if not JOB_ID.fullmatch(slot_id(array_id, 99_999) + ".b99999"):
            return (
                f"the id {shown(array_id)} leaves no room for those of its slots, such as "
                f"{shown(slot_id(array_id, 1))}"
            )
        return too_many(spec.array, self._most_elements)

    @activity.defn
    @reports_errors
    async def advance_array(self, request: AdvanceArray) -> ArrayProgress:
        """Look at slots and elements; open and cancel slots, and record the end."""
        array_id = request.array_id
        if request.check:
            await self._find_unrecorded(array_id)
        async with self._database.transaction() as connection:
            row = await lock_array(connection, array_id)
            spec = JobSpec.as_known(row["spec"])
            plan, seen, woken = await self._plan(connection, request, row, spec)
            ended = row["end_state"] is None and plan.state is not JobState.RUNNING
            result = _result(array_id, plan, started=row["started"]) if ended else None
            end = await record_end(connection, result) if result else None
            job = end.of_dag if end else None
            if row["end_state"] is not None:
                job = await of_dag_at_retry(connection, array_id)
            first = job is not None and await mark_end(connection, array_id, job)
            slots = await slots_of(connection, array_id)
            ended_at = await connection.scalar(
                text("SELECT ended_at FROM jobs WHERE id = :id"), {"id": array_id}
            )
            await failpoint("advance_array.before-commit")
        await failpoint("advance_array.after-commit")
        if result is not None:
            failure = result.failure.value if result.failure else "none"
            self._metrics.add(JOB_ENDS, pool=spec.pool, state=result.state.value, failure=failure)
        if end is not None:
            note_end(self._metrics, end.pool, array_id, end.late)
        await wake(self._database, self._signals, woken)
        if job is not None:
            await tell_end(self._database, self._signals, job, first=first)
        open_slots = [slot for slot in slots if slot["state"] == "SUBMITTING"]
        await self._submit(array_id, row, spec, open_slots, request.path_behind)
        await self._cancel(array_id, _to_cancel(plan, slots), plan.reason)
        return ArrayProgress(
            state=plan.state,
            counts=dict(seen.counts),
            claimed=seen.claimed,
            slots=seen.placed + seen.queued + plan.open,
            placed=seen.placed,
            reason=plan.reason,
            failure=plan.failure,
            again=bool(plan.give_up),
            wake_at=plan.wake_at,
            started=row["started"],
            ended_at=ended_at,
        )

    async def _plan(
        self,
        connection: AsyncConnection,
        request: AdvanceArray,
        row: RowMapping,
        spec: JobSpec,
    ) -> tuple[ArrayPlan, ArraySeen, Woken]:
        """Decide, and record what is decided; also for the elements that wait for its own."""
        array_id = request.array_id
        cancelled = row["cancelled"] or request.cancelled
        await connection.execute(
            text(_UPDATE_ARRAY), {"id": array_id, "held": request.held, "cancelled": cancelled}
        )
        if row["end_state"] is not None:
            seen = await seen_of(connection, row, request, cancelled)
            woken = await settle_followers(connection, array_id, ())  # of a try that was cut off
            return ArrayPlan(JobState(row["end_state"]), row["message"]), seen, woken
        ended = await take_from_ended_slots(
            connection, array_id, spec.retry, cancelled is not None
        )
        if cancelled is not None:
            ended += await end_waiting(
                connection, array_id, ElementState.CANCELLED, None, cancelled
            )
        seen = await seen_of(connection, row, request, cancelled)
        plan = decide(seen)
        if plan.give_up:
            ended += await end_waiting(
                connection, array_id, ElementState.FAILED, plan.failure, plan.give_up
            )
        if plan.open:
            await connection.execute(
                text(_OPEN_SLOTS),
                {"id": array_id, "open": plan.open, "generation": row["generation"]},
            )
        woken = await settle_followers(connection, array_id, sorted(ended))
        return plan, seen, woken

    async def _submit(
        self,
        array_id: str,
        array: RowMapping,
        spec: JobSpec,
        slots: Sequence[RowMapping],
        path_behind: float,
    ) -> None:
        """Start the workflows of slots, and record that they are there."""
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def submit(number: int, job_id: str) -> tuple[str, bool]:
            name = f"{spec.name[:_LONGEST_SLOT_NAME]}.s{number}"
            # It began with its array, and the deadline is that of all.
            whole = {"array": None, "begin": None, "deadline": None}
            alone = spec.model_copy(update={**whole, "name": name})
            slot = Slot(
                array_id=array_id, number=number, elements=array["elements"],
                first=array["first"], last=array["last"],
            )  # fmt: skip
            digest = digest_of(alone)
            start = JobInput(spec=alone, slot=slot, path_behind=path_behind)
            async with gate:
                try:
                    await start_job(self._temporal, job_id, start, digest)
                except WorkflowAlreadyStartedError:
                    handle = self._temporal.get_workflow_handle(job_workflow_id(job_id))
                    return job_id, (await (await handle.describe()).memo()).get("digest") == digest
            await failpoint("advance_array.after-first-start")
            return job_id, True

        if not slots:
            return
        ours = await asyncio.gather(*(submit(s["number"], s["job_id"]) for s in slots))
        async with self._database.transaction() as connection:
            await connection.execute(
                text(_SUBMITTED),
                {
                    "id": array_id, "jobs": [job_id for job_id, _ in ours],
                    "others": [job_id for job_id, is_ours in ours if not is_ours],
                },
            )  # fmt: skip

    async def _cancel(self, array_id: str, slots: Sequence[RowMapping], why: str) -> None:
        if not slots:
            return
        ids = [slot["job_id"] for slot in slots]
        await ask_to_end(self._temporal, dict.fromkeys(ids, why or "no element is left"))
        async with self._database.transaction() as connection:
            await connection.execute(text(_CANCEL_SENT), {"id": array_id, "jobs": ids})

    @activity.defn
    @reports_errors
    async def cancel_elements(self, request: CancelElements) -> ElementsReply:
        """Cancel elements: those that wait at once, those in a batch by their slot."""
        return await cancel_elements(self._database, self._signals, request)

    async def _find_unrecorded(self, array_id: str) -> None:
        """Note slots whose workflow is over and that have no record: no end of theirs comes."""
        async with self._database.transaction() as connection:
            since = await clock(connection) - UNRECORDED_AFTER
            rows = await connection.execute(
                text(_WITHOUT_RECORD), {"id": array_id, "since": since}
            )
            found = [row.job_id for row in rows]
        gone = [job_id for job_id in found if await is_job_over(self._temporal, job_id)]
        if gone:
            async with self._database.transaction() as connection:
                await connection.execute(text(_LOSE), {"id": array_id, "jobs": gone})


def slot_id(array_id: str, number: int) -> str:
    """Return the id of the job that is a slot."""
    return f"{array_id}.s{number}"


async def _is_known(connection: AsyncConnection, job_id: str) -> bool:
    """Return whether a job is on record: a repeat finds it, whatever its pool allows by now."""
    found = await connection.scalar(text("SELECT id FROM jobs WHERE id = :id"), {"id": job_id})
    return found is not None


def _result(array_id: str, plan: ArrayPlan, *, started: bool) -> JobResult:
    return JobResult(
        job_id=array_id, state=plan.state, failure=plan.failure, message=plan.reason,
        attempts=int(started),
    )  # fmt: skip


def _to_cancel(plan: ArrayPlan, slots: Sequence[RowMapping]) -> list[RowMapping]:
    open_ = [each for each in slots if each["end_state"] is None and not each["cancel_sent"]]
    if plan.cancel_all:
        return open_
    queued = [each for each in open_ if each["attempt"] == 0]
    return queued if plan.cancel_queued else []


_UPDATE_ARRAY = """
    UPDATE arrays SET poked = false, held = :held, cancelled = :cancelled WHERE id = :id
"""

_OPEN_SLOTS = """
    INSERT INTO array_slots (array_id, number, job_id, generation, submitted_at)
    SELECT :id, n, :id || '.s' || n, :generation, clock_timestamp()
      FROM (SELECT coalesce(max(number), 0) AS last FROM array_slots WHERE array_id = :id) s,
           generate_series(s.last + 1, s.last + :open) n
"""

_SUBMITTED = """
    UPDATE array_slots
       SET state = CASE WHEN job_id = ANY (:others) THEN 'LOST' ELSE 'SUBMITTED' END,
           reason = CASE WHEN job_id = ANY (:others) THEN 'another job has its id' ELSE '' END
     WHERE array_id = :id AND state = 'SUBMITTING' AND job_id = ANY (:jobs)
"""

_CANCEL_SENT = """
    UPDATE array_slots SET cancel_sent = true WHERE array_id = :id AND job_id = ANY (:jobs)
"""

_WITHOUT_RECORD = """
    SELECT s.job_id FROM array_slots s LEFT JOIN jobs j ON j.id = s.job_id
     WHERE s.array_id = :id AND s.state = 'SUBMITTED' AND j.id IS NULL AND s.submitted_at < :since
     ORDER BY s.number LIMIT 200
"""

_LOSE = """
    UPDATE array_slots s
       SET state = 'LOST', reason = 'its workflow ended before the job came into a queue'
     WHERE array_id = :id AND job_id = ANY (:jobs)
       AND NOT EXISTS (SELECT FROM jobs WHERE id = s.job_id)
"""
