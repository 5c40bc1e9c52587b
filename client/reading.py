"""What the capacity database says of jobs, nodes and pools. Temporal is not needed for it, but to
know of workflows that were ended from outside, or have refused their job."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from longshore.activities.array_views import ArrayViews
from longshore.activities.buying.handover import closed_nodes, ends_unless_sold
from longshore.activities.buying.incoming_capacity import purchases_for, purchases_under_way
from longshore.activities.buying.reasons import BuyingReasons, read_standing
from longshore.activities.checkpoints.rows import StoredCheckpoints, checkpoints_of
from longshore.activities.cycle_views import CycleViews
from longshore.activities.dag_views import DagViews
from longshore.activities.database import Database, clock
from longshore.activities.durations import DurationViews
from longshore.activities.funding.fund import fund_view
from longshore.activities.funding.use import payers_of
from longshore.activities.growth import growth_of
from longshore.activities.lending import why_no_lent_spare
from longshore.activities.locality import with_locality
from longshore.activities.preemption_inputs import may_stop_any, read_inputs
from longshore.activities.prices.views import why_unpriced
from longshore.activities.queue_views import QueueViews
from longshore.activities.serving.service_views import waits_to_load
from longshore.activities.snapshot import (
    QueueEntry,
    entry_of,
    load_nodes,
    load_place,
    load_pool,
    load_recent,
)
from longshore.activities.staged_data import held_by, staged_data
from longshore.activities.usage import load_pool_to_plan
from longshore.activities.views import Views
from longshore.client.explain import explain, mend_of_spec, unreadable_spec, with_trouble
from longshore.client.holds import hold_of
from longshore.client.logs import stderr_tail
from longshore.client.no_record import (
    newest_not_taken_up,
    not_submitted,
    refuse_no_reference,
    why_no_record,
)
from longshore.client.outside_ends import ended_outside_lately, freed, outside_ends_of, shown
from longshore.client.preempt_plan import asks_for_cost, cost_of_meeting, store_away
from longshore.client.topology import topology_in
from longshore.models.checkpoint import CheckpointInfo
from longshore.models.checkpointing import CheckpointDecision
from longshore.models.cycles import PoolCycles
from longshore.models.dag_view import DagJobView, DagState, DagSummary, DagView
from longshore.models.data import HeldData, StagedData
from longshore.models.deadline import DeadlineCost
from longshore.models.domains import PoolTopology
from longshore.models.durations import DurationsView
from longshore.models.errors import (
    LongshoreError,
    NotFoundError,
    NotSubmittedError,
    RefusedError,
    StoredError,
)
from longshore.models.funding_use import Payers
from longshore.models.growth import GrowthDecision
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_request import FILLS
from longshore.models.job_status import JobState, JobStatus
from longshore.models.labels import Selector
from longshore.models.node import NodeState
from longshore.models.placement import PlacementKind, RejectionCode
from longshore.models.pool import PoolSpec, no_such_pool
from longshore.models.queue_view import QueueView, StartErrorsView
from longshore.models.resize import SizeChange
from longshore.models.settings import Settings
from longshore.models.text import listed
from longshore.models.views import Explanation, JobView, NodeView, PoolView
from longshore.models.visible import brief, visible
from longshore.scheduling.advice import advice, kind_of_node
from longshore.scheduling.deadline import LikelyDuration
from longshore.scheduling.elastic import changes_of
from longshore.scheduling.fair_tree import part_of
from longshore.scheduling.job_changes import agent_command
from longshore.scheduling.order import seconds_ahead
from longshore.scheduling.packer import place
from longshore.scheduling.placement.feasibility import why_not_ready
from longshore.scheduling.preemption.payers import says_who_would_pay
from longshore.scheduling.unready_nodes import look_past_states

if TYPE_CHECKING:
    from temporalio.client import Client

T = TypeVar("T")

RECENT = timedelta(hours=1)
"""A list of jobs shows those that ended so lately, unless it is asked for others."""

_FOR_STATE = RejectionCode.STATE.value
"""In the reason of a job that waits, where nodes are not ready."""


class Reading:
    """Reads, and changes nothing. Every call may raise UnavailableError."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._database: Database | None = None

    async def close(self) -> None:
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
        return JobReport(
            job=job, spec=spec, attempts=attempts, checkpoint=checkpoint, saving=saving,
            missing=(*unread, *missing), payers=await self._payers_of(job.id),
            **await self._waiting_for(job),
            array=await ArrayViews(self._db()).array(job.id) if is_array else None,
            stderr_tail=await self.stderr_tail(job), data=await self._staged(job),
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
        if job.state is not JobState.FAILED or not job.attempt or job.elements is not None:
            return ()
        node_id = node_id or (job.nodes[0] if len(job.nodes) > 1 else "")
        return await stderr_tail(self.settings.resolve_log_store(), job.id, job.attempt, node_id)

    async def explain(self, ref: str) -> Explanation:
        """Say why a job is where it is; for a queued one node by node, as things are now."""
        job = await self.job(ref)
        told = await self._explained(job)
        trouble = "" if job.state.ended else await self._views().why_unreadable(job.id)
        return with_trouble(told, trouble) if trouble else told

    async def _explained(self, job: JobView) -> Explanation:
        last, row = await self._views().last_decision(job.id)
        gave_way = await self._views().gave_way(job.id)
        saving = await self._views().saving(job.id)
        reasons = BuyingReasons(self._db())
        mutexes = await DagViews(self._db()).mutexes_of(job.id)
        if row is None or job.state.ended:
            on = await reasons.blocks_of_job(job.id)
            placed = await self._views().placed_by(job.id)
            told = explain(
                job, placed=placed, gave_way=gave_way, saving=saving, blocks=on, mutexes=mutexes
            )
            more = {"sizes": await self._sizes_of(job), "payers": await self._payers_of(job.id)}
            told = told.model_copy(update=more)
            if not job.state.ended:
                more = {"growth": await self._growth_of(job), "data": await self._staged(job)}
                async with self._db().transaction() as connection:
                    if waits := await waits_to_load(connection, job.id):
                        more["headline"] = f"{told.headline}; {waits}"
                return told.model_copy(update=more)
            attempts = await self._views().attempts(job.id)
            cost = await reasons.cost_of_job(job.id)
            return Explanation.model_validate(
                {
                    **told.__dict__, "attempts": attempts, "cost": cost,
                    "stderr_tail": await self.stderr_tail(job),
                }
            )  # fmt: skip
        async with self._db().transaction() as connection:
            pool = await load_pool_to_plan(connection, job.pool, self.settings.margins)
            position = await load_place(connection, job.pool, job.id, pool.packing)
            nodes = await load_nodes(connection, job.pool)
            recent = await load_recent(connection, job.pool) if pool.packing.rule.learns else ()
            coming = await purchases_under_way(connection, pool)
            purchases = await purchases_for(connection, pool, job.id)
            standing = await read_standing(connection, pool, job.submitted_at, job.tier, job.id)
            unpriced = await why_unpriced(connection, pool, job)
            alone, helps, kind, agent, behind, also = None, (), "", "", 0.0, ""
            if last is None or last.kind is not PlacementKind.SET_ASIDE:
                entry = entry_of(row)
                if not isinstance(entry, QueueEntry):
                    raise StoredError(f"what is stored of job {job.id}", (entry,))
                request = entry.request
                behind = request.path_behind
                (request,), nodes = await with_locality(
                    connection, job.pool, pool.packing, [request], nodes
                )
                moment = await clock(connection)
                alone = place(request, nodes, pool.packing, moment, recent=recent)
                ends = await ends_unless_sold(connection, job.pool)
                alone, last = look_past_states(
                    alone, last, request, nodes, pool.packing, moment, ends
                )
                also = (
                    FILLS
                    if request.fills
                    else await why_no_lent_spare(
                        connection, job.pool, request, nodes, pool.packing, moment
                    )
                )
                could = {each.node_id for each in alone.rejections if not each.permanent}
                helps = advice(
                    request, alone.rejections, nodes, moment, pool=job.pool,
                    may_stop=await may_stop_any(connection, pool, request, could, moment),
                    policy=pool.packing, closed=await closed_nodes(connection, job.pool),
                )  # fmt: skip
                agent = agent_command(request, job.pool)
                coming = await purchases_under_way(connection, pool, request, nodes)
                if alone.rejections and not could:
                    kind = kind_of_node(request, alone.rejections, nodes, moment)
        making_room = await self._views().making_room(job.id)
        spared = await self._views().spared(job.id) if pool.preemption.enabled else ()
        payers = await self._payers_of(job.id)
        if payers is not None:
            would = says_who_would_pay(job.id, pool.packing.funding)
            payers = payers.model_copy(update={"waiting": would})
        told = explain(
            job, alone=alone, last=last, decided_at=row["decided_at"], position=position or 1,
            path_behind=behind, head_start=timedelta(seconds=seconds_ahead(pool.packing) * behind),
            nodes=len(nodes), growth=pool.growth, making_room=making_room, spared=spared,
            gave_way=gave_way, saving=saving,
            buying=await reasons.of_pool(job.pool, job.id) if pool.buying.enabled else None,
            coming=coming, purchases=purchases, standing=standing, kind=kind,
            agent=agent, helps=helps, hold=await self._hold_of(job), mutexes=mutexes,
            unpriced=unpriced, unpaid=await self._unpaid(job, pool), also=also,
        )  # fmt: skip
        more = {
            "sizes": await self._sizes_of(job), "data": await self._staged(job),
            "meeting": await self._meeting_of(job), "payers": payers,
            "share": part_of(pool.packing, job.tenant),
        }  # fmt: skip
        return told.model_copy(update=more)

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

    async def dags(
        self,
        *,
        tenant: str | None = None,
        states: frozenset[DagState] = frozenset(),
        limit: int = 100,
    ) -> tuple[DagSummary, ...]:
        """Return DAGs, newest first."""
        return await DagViews(self._db()).dags(tenant=tenant, states=states, limit=limit)

    async def dag(self, ref: str) -> DagView:
        """Return a DAG in full, by its id or the newest of a name. Raises NotFoundError."""
        return await DagViews(self._db()).dag(ref)

    async def step(self, ref: str) -> DagJobView | None:
        """Return the job of a DAG that `DAG.JOB` names, submitted or not; None where none is."""
        return await DagViews(self._db()).step(ref)

    async def not_submitted(self, ref: str) -> NotSubmittedError | str | None:
        """Return what to say of a job of a DAG that is in no queue, or the id of the job that
        `DAG.JOB` stands for; None where it names no job of a DAG."""
        found = await DagViews(self._db()).step_of(ref) if "." in ref else None
        if found is None:
            return None
        dag, step = found
        return step.job_id or not_submitted(dag.id, step)

    async def output(self, ref: str) -> str:
        """Return the JSON that a job of a DAG put out, by `DAG.JOB`. Raises NotFoundError."""
        return await DagViews(self._db()).output(ref)

    async def _temporal(self) -> "Client | None":
        """Return who says which workflows are over; None where nobody does."""
        return None

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

    async def _sizes_of(self, job: JobView) -> tuple[SizeChange, ...]:
        """Return the changes of the size of a malleable job; none of another."""
        if job.malleable is None:
            return ()
        return changes_of(await self._views().attempts(job.id))

    async def _growth_of(self, job: JobView) -> GrowthDecision | None:
        """Return whether a running job would get more GPUs now, and why not."""
        sizes = job.malleable
        if sizes is None or job.state is not JobState.RUNNING or job.gpus >= sizes.target:
            return None
        return await growth_of(self._db(), job.pool, job.id, self.settings.margins)

    async def _meeting_of(self, job: JobView) -> DeadlineCost | None:
        """Return what it costs that a job which waits meets its deadline, by the prices that were
        seen of late: no market is asked."""
        judgment = job.deadline
        if judgment is None or job.state is not JobState.QUEUED or not asks_for_cost(judgment):
            return None
        try:
            spec = await self._views().spec(job.id)
        except StoredError:  # that is told beside
            return None
        away, now = await store_away(self.settings, job.id), datetime.now(UTC)
        async with self._db().transaction() as connection:
            inputs = await read_inputs(connection, job.pool, away, margins=self.settings.margins)
        learnt = next((each.learnt for each in inputs.queue if each.id == job.id), None)
        duration = LikelyDuration.of(spec.expected_duration, spec.max_duration, learnt)
        return cost_of_meeting(judgment, inputs, job.id, duration, None, now)

    async def _hold_of(self, job: JobView) -> JobStatus | None:
        temporal = await self._temporal() if job.state is JobState.HELD else None
        return await hold_of(temporal, job.id) if temporal else None

    async def _payers_of(self, job_id: str) -> Payers | None:
        """Return who pays for a job and who has; None where no tenant has a budget."""
        async with self._db().snapshot() as connection:
            return await payers_of(connection, job_id)

    async def _unpaid(self, job: JobView, pool: PoolSpec) -> tuple[str, ...] | None:
        """Return what would help a job that waits for a budget or a quota; None of any other."""
        funding = pool.packing.funding
        if funding is None or job.id not in funding.held:
            return None
        try:
            async with self._db().snapshot() as connection:
                found = await fund_view(connection, job.id, self.settings.margins)
        except RefusedError:  # it has started or ended meanwhile
            return None
        return tuple(remedy.says for remedy in found.remedies)

    async def _staged(self, job: JobView) -> tuple[StagedData, ...]:
        """Return how much of its data is where a job runs or is expected to start."""
        if job.state.ended:
            return ()
        async with self._db().transaction() as connection:
            return await staged_data(connection, job.id)

    async def _waiting_for(self, job: JobView) -> dict[str, Any]:
        """Return what is bought for a job that waits, why nothing is, and which nodes are not
        ready where some are."""
        if job.state is not JobState.QUEUED:
            return {}
        async with self._db().transaction() as connection:
            pool = await load_pool(connection, job.pool, self.settings.margins)
            nodes = await load_nodes(connection, job.pool) if _FOR_STATE in job.reason else ()
            purchases = await purchases_for(connection, pool, job.id)
            standing = await read_standing(connection, pool, job.submitted_at, job.tier, job.id)
        not_bought = "" if standing.buys or purchases else standing.says
        not_ready = tuple(
            f"{node.id} {why_not_ready(node)}"
            for node in nodes
            if node.state is not NodeState.READY
        )
        return {"purchases": purchases, "not_bought": not_bought, "not_ready": not_ready}

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
            of_dag = await self.not_submitted(ref)
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
