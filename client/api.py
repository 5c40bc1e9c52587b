"""The typed way in: submit jobs, follow them, steer them, ask why.

Submitting and steering go to Temporal alone; lists and explanations are read from the capacity
database. All times are UTC.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Self

from temporalio.client import (
    Client,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.buying.block_wakeups import blocks_to_decide_anew
from longshore.activities.fingerprints import Accepted, accept
from longshore.activities.job_starts import digest_of, start_job
from longshore.activities.prices.holds import anybody_waits
from longshore.activities.signals import Signals
from longshore.activities.views import set_pool
from longshore.client.arrays import ArrayControl
from longshore.client.budgets import BudgetControl
from longshore.client.code_submit import CodeStorer
from longshore.client.connection import connect
from longshore.client.data_urls import urls_without_host
from longshore.client.errors import as_ours
from longshore.client.forecast import forecast_of_submit
from longshore.client.funding_reading import FundingReading
from longshore.client.job_control import JobControl
from longshore.client.model_registry import ModelControl
from longshore.client.no_record import (
    newest_not_taken_up,
    refuse_no_reference,
)
from longshore.client.node_control import NodeControl
from longshore.client.outside_ends import is_outside_end
from longshore.client.recorded_end import ended_job, result_on_record
from longshore.client.schedules import ScheduleControl
from longshore.client.serve_plan import serve_preview
from longshore.client.services import ServiceControl
from longshore.client.status import began_again, progress_of, reset_after
from longshore.client.submission import GENERATED_ID, new_job_id, preflight
from longshore.client.untold import untold
from longshore.models.array_messages import job_input
from longshore.models.errors import (
    ConflictError,
    LongshoreError,
    NoRecordError,
    NotFoundError,
    NotTakenUpError,
    RefusedError,
    SpecError,
    UnavailableError,
)
from longshore.models.forecast import Forecast
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import JobResult, JobState, JobStatus
from longshore.models.node_messages import Progress
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PriceSeries
from longshore.models.serve_plan import ServePreview
from longshore.models.service import ServiceSpec
from longshore.models.serving import ModelSpec
from longshore.models.settings import Settings
from longshore.models.views import JobView, Submission
from longshore.scheduling.arrays import too_many
from longshore.scheduling.deadline import deadlines_in_vain


class Longshore(
    NodeControl,
    ScheduleControl,
    ArrayControl,
    BudgetControl,
    ModelControl,
    JobControl,
    FundingReading,
    ServiceControl,
):
    """A connection to Longshore. Use one for many calls, and `close` it in the end."""

    def __init__(
        self,
        temporal: Client,
        settings: Settings,
        *,
        on_away: Callable[[str], None] | None = None,
        on_back: Callable[[], None] | None = None,
    ) -> None:
        """`on_away` hears once, with the reason, that a server does not answer something that
        waits for it to come back, such as `wait`; `on_back` that it answers again."""
        super().__init__(settings, on_away=on_away, on_back=on_back)
        self.temporal = temporal
        self._known: deque[str] = deque(maxlen=1000)
        """Ids that need no look into the database."""

    @classmethod
    async def connect(
        cls,
        settings: Settings | None = None,
        *,
        on_away: Callable[[str], None] | None = None,
        on_back: Callable[[], None] | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Connect to where the settings say. Raises UnavailableError."""
        settings = settings or Settings()
        temporal = await connect(settings, runtime=runtime)
        return cls(temporal, settings, on_away=on_away, on_back=on_back)

    async def submit(
        self, spec: JobSpec, *, key: str | None = None, held: bool = False
    ) -> Submission:
        """Start a job. The same tenant, name and `key` again return the job that exists.

        Code that is a folder, seen from the current one, or a commit is stored first. Raises
        SpecError when it or its key is too large, its code is wrong, it is more than a quota of
        its tenant alone, or names a sponsor that there is not; RefusedError when its tenant has
        as many waiting as it may; UnsatisfiableError when no node that can ever come could hold
        it, ConflictError when the name and key were used for other content, UnavailableError when
        Temporal is away.
        """
        job = job_input(spec, key=key, held=held)
        many = too_many(spec.array, self.settings.most_array_elements) if spec.array else ""
        if wrong := (*job.refused, *filter(None, (spec.too_large, many))):
            raise SpecError(f"job {spec.name}", wrong)
        late = (*urls_without_host(spec), *deadlines_in_vain(spec, datetime.now(UTC)))
        if late and not (key and await self._was_taken(new_job_id(spec, key))):
            raise SpecError(f"job {spec.name}", late)
        job_id = new_job_id(spec, key)
        try:
            # Of one with a key that id may be in the queue already, or run.
            new = job_id if key is None else ""
            warnings = await preflight(self._db, spec, queued=True, job_id=new)
        except (SpecError, RefusedError):  # quotas may be lower than when it was submitted
            if not (key and await self._was_taken(new_job_id(spec, key))):
                raise
            warnings = ()
        spec = await CodeStorer(self.settings, self._db).of_job(spec)
        job = job_input(spec, key=key, held=held)
        digest = digest_of(spec)
        if key is not None and await self._is_over_and_forgotten(job_id):
            return Submission(job_id=job_id, created=False)
        try:
            await start_job(self.temporal, job_id, job, digest)
        except WorkflowAlreadyStartedError:
            await self._same_content_or_raise(job_id, digest)
            return Submission(job_id=job_id, created=False)
        except RPCError as error:
            raise as_ours(error, f"job {job_id}") from error
        self._known.append(job_id)
        return Submission(job_id=job_id, created=True, warnings=warnings)

    async def forecast(self, spec: JobSpec) -> Forecast | None:
        """Return what would become of a job if it were submitted now, and at which cost; None of
        an array, and where the database does not answer."""
        return await forecast_of_submit(self._db, self.settings, spec)

    async def serve_preview(
        self, specs: Sequence[ServiceSpec], models: Sequence[ModelSpec] = ()
    ) -> ServePreview:
        """Return what would become of services, and of models that are added first, were they
        served now: nothing is changed. Raises what `add_models` and `serve_all` raise."""
        looked_at = await self._look_at(models)
        return await serve_preview(self._db, self.settings, looked_at, specs)

    async def report(self, ref: str) -> JobReport:
        """Return one job in full; where Temporal does not answer, what the database knows.

        Raises NotFoundError.
        """
        return await self.with_live(await super().report(ref))

    async def with_live(self, known: JobReport) -> JobReport:
        """Return a report with what the job's workflow and its process say now."""
        try:
            if was_reset := await self.reset_after_end(known.job):
                return known.without_live(was_reset)
            status = await self.status(known.job.id)
            progress = None if status.state.ended else await self.progress(known.job.id)
        except NoRecordError as error:
            return known.without_live(f"its id was started again, and refused: {error.why}")
        except LongshoreError as error:
            return known.without_live(str(error))
        if known.job.ended_at is not None and status.submitted_at > known.job.ended_at:
            # Temporal lets an id that has ended be started again; the ledger does not.
            again = f"{status.submitted_at:%Y-%m-%d %H:%M:%S} UTC"
            return known.without_live(f"its id was started again at {again}, and refused")
        if known.job.state.ended and is_outside_end(status.reason):
            # Its workflow cannot say who ended it, nor what becomes of what it holds.
            status = status.model_copy(update={"reason": known.job.reason})
        tail = known.stderr_tail
        if tail and status.attempts and len(known.job.nodes) > 1:  # of the rank that failed first
            tail = await self.stderr_tail(known.job, status.attempts[-1].failed_on) or tail
        return known.model_copy(
            update={"status": status, "progress": progress, "stderr_tail": tail}
        )

    async def reset_after_end(self, job: JobView) -> str:
        """Return what to say of a job whose workflow was reset after it had ended; empty where it
        was not. Raises LongshoreError."""
        if job.ended_at is None:
            return ""
        return await reset_after(self._job(job.id), job.id, job.ended_at)

    async def _ended_before_a_reset(self, job_id: str) -> JobResult | None:
        """Return how a job has ended whose workflow was reset after that; None of any other, and
        where a server does not say."""
        try:
            if not await began_again(self._job(job_id)):
                return None  # as nearly all: the database need not be asked
            job = await self.job(job_id)
            return job.as_it_ended if await self.reset_after_end(job) else None
        except LongshoreError:
            return None

    async def progress(self, ref: str) -> Progress | None:
        """Return what the running process said last of itself; None when it runs nowhere."""
        job_id = await self._resolve(ref)
        try:
            return await progress_of(self.temporal, self._job(job_id))
        except RPCError as error:
            raise as_ours(error, f"job {ref}") from error

    async def wait(self, ref: str) -> JobResult:
        """Wait until the job has ended, however long, also while a server is away.

        One whose workflow was reset, or whose id was started again, after it had ended stays as
        it ended.
        """
        job_id = await self._resolve(ref)
        if (ended := await self._ended_before_a_reset(job_id)) is not None:
            return ended
        try:
            result = await self._when_back(f"job {job_id}", self._job(job_id).result)
        except WorkflowFailureError as error:
            result = await self._result_of_failure(job_id, error)
        except NotFoundError:  # Temporal keeps what has ended for a time
            if (job := await ended_job(job_id, self._views())) is None:
                raise
            return job.as_it_ended
        return await result_on_record(result, self._views())

    async def watch(self, ref: str, *, every: float = 0.5) -> AsyncIterator[JobStatus]:
        """Yield the job's status whenever it has changed, until it has ended."""
        job_id, last = await self._resolve(ref), None
        while last is None or not last.state.ended:
            status = await self._status_when_back(job_id)
            if status != last:
                yield status
            last = status
            if not status.state.ended:
                await asyncio.sleep(every)

    async def id_of(self, ref: str) -> str:
        """Return the id of the job that `ref` names: an id, or the name of the newest, whether or
        not it is in a queue yet. Raises NotFoundError."""
        return await self._resolve(ref)

    async def exists(self, ref: str) -> bool:
        """Return whether Temporal knows a job of this id, whether or not it is in a queue yet."""
        try:
            await self._job(ref).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise as_ours(error, f"job {ref}") from error
        return True

    async def set_pool(self, spec: PoolSpec, prices: PriceSeries | None = None) -> tuple[str, ...]:
        """Store a pool's settings, and make it where it is new; its next cycle uses them.

        `prices` is the series that was read from the source that they name; where that is a file,
        nobody else can read it. A pool that is to keep capacity warm, or names a price, runs a
        cycle now, also without a queue. What it has bought is decided about anew where its buying
        policy is another. Returns a note where the pool cannot be told: it is stored all the same.
        """
        async with self._db().transaction() as connection:
            blocks = await blocks_to_decide_anew(connection, spec)
            await set_pool(connection, spec, prices)
            priced = spec.price is not None or spec.start_below is not None
            priced = priced or await anybody_waits(connection, spec.name)

        async def tell() -> None:
            signals = Signals(self.temporal)
            if spec.buying.keeps_warm or priced or blocks:
                await signals.poke_pool(spec.name)
            await signals.wake_blocks(blocks)

        return await untold(f"pool {spec.name} was", tell())

    async def accept(self, node_id: str) -> Accepted:
        """Accept the fingerprint that a node has now: sensitive jobs may run there again.

        The answer has a note where its pool cannot be told: it is accepted all the same. Raises
        NotFoundError for a node that is not known, RefusedError for one without a fingerprint.
        """
        async with self._db().transaction() as connection:
            accepted = await accept(connection, node_id)
        if accepted.before == accepted.fingerprint:
            return accepted
        poke = Signals(self.temporal).poke_pool(accepted.pool)
        notes = await untold(f"pool {accepted.pool} was", poke)
        return accepted.model_copy(update={"notes": notes})

    async def _temporal(self) -> Client:
        return self.temporal

    async def _was_taken(self, job_id: str) -> bool:
        """Return whether there is a job of this id: its deadline may have passed meanwhile."""
        return await self.exists(job_id) or await ended_job(job_id, self._views()) is not None

    async def _is_over_and_forgotten(self, job_id: str) -> bool:
        """Return whether a job has ended by its record, and Temporal has no workflow of it any
        more: another one of its id would be refused."""
        ended = await ended_job(job_id, self._views())
        return ended is not None and not await self.exists(job_id)

    async def _same_content_or_raise(self, job_id: str, digest: str) -> None:
        memo = await (await self._job(job_id).describe()).memo()
        if memo.get("digest") != digest:
            raise ConflictError(
                f"job {job_id} was submitted before with the same name and key but other "
                "content. Give this one another key, or look at the first with "
                f"`longshore job {job_id}`."
            )

    async def _result_of_failure(self, job_id: str, error: WorkflowFailureError) -> JobResult:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.details:
            return JobResult.model_validate(cause.details[0])
        if isinstance(cause, ApplicationError):  # refused, before it came into a queue
            return JobResult(job_id=job_id, state=JobState.FAILED, message=cause.message)
        status = await self._status_when_back(job_id)
        if status.result is not None:
            return status.result
        # Ended from outside (terminated), before it could record anything.
        return JobResult(job_id=job_id, state=JobState.FAILED, message=str(cause))

    async def _resolve(self, ref: str) -> str:
        """Return the id of the job that `ref` names: an id, or the name of the newest.

        The database knows names, and Temporal those that no control worker has taken up yet. Of
        an id Temporal knows enough: a job can be steered, and got rid of, while the database is
        locked or away.
        """
        refuse_no_reference(ref)
        if ref in self._known:
            return ref
        like_an_id = GENERATED_ID.search(ref) is not None
        temporal_answers = True
        try:
            job_id = ref if like_an_id and await self.exists(ref) else ""
        except UnavailableError:
            job_id, temporal_answers = "", False
        try:
            job_id = job_id or await super()._resolve(ref)
        except NoRecordError:
            raise
        except NotTakenUpError as error:
            job_id = error.job_id
        except (NotFoundError, UnavailableError) as error:
            # An id that somebody chose looks like a name.
            if not temporal_answers:
                if isinstance(error, NotFoundError):
                    raise
                return ref  # neither server says whether it is one
            if not like_an_id and await self.exists(ref):
                return ref
            raise
        else:
            if job_id != ref:
                newer = await newest_not_taken_up(self.temporal, self._views(), ref)
                job_id = newer.job_id if newer else job_id
        self._known.append(job_id)
        return job_id
