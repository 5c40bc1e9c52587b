"""What the capacity database says of jobs, nodes and pools. Temporal is not needed for it, but to
know of workflows that were ended from outside, or have refused their job."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from longshore.activities.array_views import ArrayViews
from longshore.activities.checkpoints.rows import StoredCheckpoints, checkpoints_of
from longshore.activities.cycle_views import CycleViews
from longshore.activities.dag_views import DagViews
from longshore.activities.database import Database
from longshore.activities.durations import DurationViews
from longshore.activities.queue_views import QueueViews
from longshore.activities.serving.service_views import replica_to_explain
from longshore.activities.staged_data import held_by
from longshore.activities.views import Views
from longshore.client.dag_reading import DagReading
from longshore.client.explain import mend_of_spec, unreadable_spec, with_trouble
from longshore.client.explainer import Explainer
from longshore.client.no_record import (
    newest_not_taken_up,
    refuse_no_reference,
    why_no_record,
)
from longshore.client.outside_ends import (
    ended_outside_lately,
    freed,
    outside_ends_of,
    shown,
)
from longshore.client.topology import topology_in
from longshore.models.checkpoint import CheckpointInfo
from longshore.models.checkpointing import CheckpointDecision
from longshore.models.cycles import PoolCycles
from longshore.models.data import HeldData
from longshore.models.domains import PoolTopology
from longshore.models.durations import DurationsView
from longshore.models.errors import (
    LongshoreError,
    NotFoundError,
    NotSubmittedError,
    StoredError,
)
from longshore.models.explanation import Explanation
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import JobState
from longshore.models.labels import Selector
from longshore.models.pool import no_such_pool
from longshore.models.queue_view import QueueView, StartErrorsView
from longshore.models.settings import Settings
from longshore.models.text import listed
from longshore.models.views import JobView, NodeView, PoolView
from longshore.models.visible import brief, visible

T = TypeVar("T")

RECENT = timedelta(hours=1)
"""A list of jobs shows those that ended so lately, unless it is asked for others."""


class Reading(DagReading):
    """Reads, and changes nothing. Every call may raise UnavailableError."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._database: Database | None = None

    async def close(self) -> None:
        """End the connection to the capacity database."""
        if self._database is not None:
            await self._database.close()

    async def refuse_newer(self) -> None:
        """Raise RefusedError where a newer version has upgraded the capacity database.

        Every first read of it does; this is for what somebody else is to do there.
        """
        async with self._db().transaction():
            pass

    async def list(
        self,
        *,
        pool: str | None = None,
        tenant: str | None = None,
        states: frozenset[JobState] = frozenset(),
        labels: Selector = (),
        named: str | None = None,
        recent: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[JobView, ...]:
        """Return jobs, newest first: those after the one with the id `after`.

        `labels` is what theirs have to be (`models.labels.parse_selector`), `named` the form of
        their names, such as ``a-*``. With `recent` only those that have not ended, or have within
        the last hour.
        """
        ended_since = datetime.now(UTC) - RECENT if recent else None
        ended = await self._ended_outside()
        found = await self._views().jobs(
            pool=pool, tenant=tenant, states=states, labels=labels, named=named,
            ended_since=ended_since, after=after, limit=limit + len(ended),
        )  # fmt: skip
        if not ended:
            return found
        # The database would look for them by the state that it has.
        others = await self._views().jobs(
            pool=pool, tenant=tenant, labels=labels, named=named, ids=tuple(ended), after=after,
            limit=len(ended),
        )  # fmt: skip
        others = (ended[job.id] if not job.state.ended else job for job in others)
        both = [job for job in found if job.id not in ended]
        both += [
            job
            for job in others
            if (not states or job.state in states)
            and not (ended_since and job.ended_at and job.ended_at <= ended_since)
        ]
        both.sort(key=lambda job: job.id)
        both.sort(key=lambda job: job.submitted_at, reverse=True)
        return tuple(both[:limit])

    async def job(self, ref: str) -> JobView:
        """Return the job with this id, or the newest of this name. Raises NotFoundError, and
        NotTakenUpError where no control worker has taken that one up yet."""
        job = await self._looked_up(ref, self._views().job)
        await self._refuse_newer_job(ref, job.id)
        return job if job.state.ended else await self._as_it_is(job)

    async def spec(self, ref: str) -> JobSpec:
        """Return what was submitted. Raises NotFoundError, and StoredError where that cannot be
        read, with what to do."""
        job_id = await self._looked_up(ref, self._views().id_of)
        await self._refuse_newer_job(ref, job_id)
        try:
            return await self._views().spec(job_id)
        except StoredError as error:
            mend = f"{mend_of_spec(await self._views().job(job_id))}."
            raise StoredError(error.source, (*error.problems, mend)) from error

    async def saving(self, ref: str) -> CheckpointDecision | None:
        """Return what was decided last about a save of a job; None where nobody has looked."""
        return await self._views().saving(await self._resolve(ref))

    async def checkpoints(self, ref: str) -> StoredCheckpoints:
        """Return what the checkpoint store has of a job, whole or not, newest first.

        Raises UnavailableError when the store cannot be read.
        """
        job_id = await self._resolve(ref)
        return await checkpoints_of(self.settings.resolve_checkpoint_store(), job_id)

    async def report(self, ref: str) -> JobReport:
        """Return one job in full, as far as database and checkpoint store know it.

        Raises NotFoundError.
        """
        job = await self.job(ref)
        spec, unread = await self._spec_of(job)
        attempts = await self._views().attempts(job.id)
        saving = None if job.state.ended else await self.saving(job.id)
        checkpoint, missing = await self._stored(job.id, spec)
        is_array = spec.array is not None if spec else job.elements is not None
        explainer = self._explainer()
        return JobReport(
            job=job, spec=spec, attempts=attempts, checkpoint=checkpoint, saving=saving,
            missing=(*unread, *missing), payers=await explainer.payers_of(job.id),
            **await explainer.waiting_for(job),
            array=await ArrayViews(self._db()).array(job.id) if is_array else None,
            stderr_tail=await explainer.stderr_tail(job), data=await explainer.staged(job),
        )  # fmt: skip

    async def _spec_of(self, job: JobView) -> tuple[JobSpec | None, tuple[str, ...]]:
        """Return what was submitted as a job, or why that cannot be read, and what to do."""
        try:
            return await self._views().spec(job.id), ()
        except StoredError:
            trouble = await self._views().why_unreadable(job.id)
        return None, (f"{unreadable_spec(trouble)}. {mend_of_spec(job)}",)

    async def stderr_tail(self, job: JobView, node_id: str = "") -> tuple[str, ...]:
        """Return the last lines that the last attempt of a job that failed wrote to stderr.

        Of a gang on `node_id`, or else on the node of rank 0. None where the job did not fail,
        or where the log store does not answer soon.
        """
        return await self._explainer().stderr_tail(job, node_id)

    async def explain(self, ref: str) -> Explanation:
        """Say why a job is where it is; for a queued one node by node, as things are now.

        For the name of a service that is one of its replicas: see `replica_to_explain`.
        """
        job = await self.job(await self.replica_to_explain(ref) or ref)
        told = await self._explainer().explanation(job)
        trouble = "" if job.state.ended else await self._views().why_unreadable(job.id)
        return with_trouble(told, trouble) if trouble else told

    async def replica_to_explain(self, service: str) -> str | None:
        """See `service_views.replica_to_explain`."""
        if "\0" in service:  # no name has that, and PostgreSQL takes no such text
            return None
        async with self._db().transaction() as connection:
            return await replica_to_explain(connection, service)

    async def nodes(
        self, *, pool: str | None = None, with_gone: bool = False
    ) -> tuple[NodeView, ...]:
        """Return the nodes by id, with who holds each GPU."""
        return await self._views().nodes(pool=pool, with_gone=with_gone)

    async def node(self, node_id: str) -> NodeView:
        """Return one node, with what it holds. Raises NotFoundError."""
        every = await self.nodes(with_gone=True)
        found = next((each for each in every if each.id == node_id), None)
        if found is None:
            raise NotFoundError(f"no node {visible(node_id)}: `longshore nodes --all` lists them")
        holds = await self.holdings((node_id,))
        return found.model_copy(update={"holds": holds.get(node_id, ())})

    async def holdings(self, node_ids: Sequence[str]) -> dict[str, tuple[HeldData, ...]]:
        """Return what the agents of these nodes say that they hold, the largest first."""
        async with self._db().transaction() as connection:
            return await held_by(connection, node_ids)

    async def topology(self, pool: str | None = None) -> tuple[PoolTopology, ...]:
        """Return the domains of one pool, or of all by name. Raises NotFoundError."""
        return await topology_in(self._db(), pool)

    async def pools(self) -> tuple[PoolView, ...]:
        """Return the pools by name."""
        return await self._views().pools()

    async def queue(self, pool: str = "default") -> QueueView:
        """Return who waits in a pool, in the order in which its next cycle decides. Raises
        NotFoundError."""
        return await QueueViews(self._db()).queue(pool)

    async def durations(
        self, *, tenant: str | None = None, name: str | None = None
    ) -> DurationsView:
        """Return how long jobs run, as is learnt from those that succeeded, by tenant, name and
        shape; `name` may be a form such as ``a-*``."""
        return await DurationViews(self._db()).durations(tenant=tenant, name=name)

    async def start_errors(
        self, pool: str = "default", over: timedelta = timedelta(days=1)
    ) -> StartErrorsView:
        """Return how far off the starts were that jobs of a pool were told in the last time.
        Raises NotFoundError."""
        return await QueueViews(self._db()).start_errors(pool, over)

    async def cycles(self, pool: str | None = None, *, last: int = 0) -> tuple[PoolCycles, ...]:
        """Return what the cycles of one pool did and took, or of all by name, with the `last` of
        each. Raises NotFoundError."""
        found = await CycleViews(self._db()).cycles(pool, last=last)
        if pool is not None and not found:
            raise no_such_pool(pool, [each.spec.name for each in await self.pools()])
        return found

    async def _as_it_is(self, job: JobView) -> JobView:
        """Return a job that the database has as one that goes on, as it is."""
        return (await self._shown([job])).get(job.id, job)

    async def _ended_outside(self) -> Mapping[str, JobView]:
        """Return, as they are shown, jobs whose end from outside nobody has recorded yet."""
        temporal = await self._temporal()
        ids = await ended_outside_lately(temporal) if temporal else ()
        found = await self._views().jobs(ids=ids, limit=len(ids)) if ids else ()
        return await self._shown(found)

    async def _shown(self, jobs: Sequence[JobView]) -> Mapping[str, JobView]:
        temporal = await self._temporal()
        if temporal is None:
            return {}
        ends = await outside_ends_of(temporal, jobs)
        when = await freed(temporal, frozenset(ends.values()))
        known = {job.id: job for job in jobs}
        return {job_id: shown(known[job_id], end, when[end]) for job_id, end in ends.items()}

    async def _resolve(self, ref: str) -> str:
        """Return the id of the job that `ref` names: an id, or the name of the newest."""
        return await self._looked_up(ref, self._views().id_of)

    async def _refuse_dag(self, ref: str) -> None:
        """Raise NotFoundError with the jobs of a DAG, where `ref` is the id or name of one."""
        views = DagViews(self._db())
        try:
            jobs = (await views.spec(await views.id_of(ref))).jobs
        except NotFoundError:
            return
        named = listed([f"{ref}.{name}" for name in jobs], 5)
        raise NotFoundError(
            f"{brief(ref)} is a DAG, of the jobs {named}: `longshore dag show {ref}` draws it"
        )

    async def _looked_up(self, ref: str, look: Callable[[str], Awaitable[T]]) -> T:
        """Return what the database has of a job. Raises NotFoundError; NotTakenUpError where it
        is submitted and not in a queue yet, NoRecordError where Temporal says that it is over,
        and NotSubmittedError of a job of a DAG that waits."""
        refuse_no_reference(ref)
        try:
            return await look(ref)
        except NotFoundError:
            of_dag = await self._not_submitted(ref)
            if isinstance(of_dag, NotSubmittedError):
                raise of_dag from None
            if of_dag is not None and of_dag != ref:
                return await look(of_dag)
            temporal = await self._temporal()
            why = await why_no_record(temporal, ref) if temporal else None
            if why is None and temporal:
                why = await newest_not_taken_up(temporal, self._views(), ref)
            if why is None:
                await self._refuse_dag(ref)
                raise
        try:
            return await look(ref)  # it may have come and ended meanwhile
        except NotFoundError:
            raise why from None

    async def _refuse_newer_job(self, ref: str, job_id: str) -> None:
        """Raise NotTakenUpError where a name has found an older job than the newest."""
        temporal = await self._temporal() if ref != job_id else None
        newest = await newest_not_taken_up(temporal, self._views(), ref) if temporal else None
        if newest is not None:
            raise newest

    async def _stored(
        self, job_id: str, spec: JobSpec | None
    ) -> tuple[CheckpointInfo | None, tuple[str, ...]]:
        """Return the newest whole checkpoint in the store, or why nobody can say."""
        if spec is None or spec.checkpoint is None or not spec.checkpoint.store:
            return None, ()
        try:
            found = await self.checkpoints(job_id)
        except LongshoreError as error:
            return None, (str(error),)
        return next((each for each in found.checkpoints if each.whole), None), ()

    def _explainer(self) -> Explainer:
        return Explainer(self._db(), self.settings, self._temporal)

    def _views(self) -> Views:
        return Views(self._db())

    @property
    def database(self) -> Callable[[], Database]:
        """What opens the capacity database, or returns it where it is open."""
        return self._db

    def _db(self) -> Database:
        if self._database is None:
            self._database = Database.for_people(self.settings.resolve_database_url(), pool_size=3)
        return self._database
