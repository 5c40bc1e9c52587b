"""The step of a service: from what is so of its replicas to those that are started and stopped.

It may run twice. A replica is on record before its job is started, and its job's id is of that
record: a repeat starts what is missing and nothing twice.
"""

import asyncio
import contextlib
import secrets
import string
from collections.abc import Collection, Sequence, Set
from datetime import datetime

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.job_ends import ask_to_end
from longshore.activities.job_starts import digest_of, start_job
from longshore.activities.pokes import mark_poked_if_useful, pools_of
from longshore.activities.serving.engine_notices import hear
from longshore.activities.serving.model_engine import replica_specs, with_sizes
from longshore.activities.serving.revisions import model_revision_of, revision_of, sizes_of
from longshore.activities.serving.service_rows import (
    facts_of,
    lock_service,
    mark,
    store_plan,
    to_cancel,
    to_start,
)
from longshore.activities.signals import Signals
from longshore.activities.stored_specs import stored_error
from longshore.models.errors import StoredError
from longshore.models.job import JobSpec
from longshore.models.messages import JobInput
from longshore.models.service import ServiceState
from longshore.models.service_messages import (
    AdvanceService,
    EngineNotice,
    ReplicaProgress,
    ServiceProgress,
)
from longshore.scheduling.serving.replicas import Replica, ServiceFacts, ServicePlan, plan

_LETTERS, _SUFFIX = string.ascii_lowercase + "234567", 10
"""As of other jobs whose id is made."""
_IN_FLIGHT = 25
_MOST_TOLD = 20
"""Replicas of which the card of a service tells."""


class ServiceActivities:
    """Activities of `ServiceWorkflow`."""

    def __init__(self, database: Database, temporal: Client) -> None:
        self._database = database
        self._temporal = temporal
        self._signals = Signals(temporal)

    @activity.defn
    @reports_errors
    async def advance_service(self, request: AdvanceService) -> ServiceProgress:
        """Record what agents said, and start and stop what follows.

        Raises NotFoundError where nobody has recorded the service, StoredError where its revision
        cannot be read and it is not being removed.
        """
        name = request.service
        if request.notices:
            await self._hear(name, request.notices)
        async with self._database.transaction() as connection:
            service = await lock_service(connection, name)
            revision = None
            if service["state"] == ServiceState.RUNNING:
                revision = await revision_of(connection, name, service["revision"])
            now = await clock(connection)
            facts = await facts_of(connection, service, revision and revision[0], now)
            if revision is not None:
                sizes = await sizes_of(connection, name, service["revision"])
                of_model = await model_revision_of(connection, name, service["revision"])
                facts = await with_sizes(connection, facts, *revision, sizes, of_model)
            planned = plan(facts, now)
            new = [_job_id(name, facts.revision) for _ in range(planned.start)]
            over = await store_plan(connection, service, planned, new)
            starting = await to_start(connection, name)
            stopping = await to_cancel(connection, name)
            await failpoint("advance_service.before-commit")
        await failpoint("advance_service.after-commit")
        ending = {job_id for job_id, _ in stopping}
        started = await self._start(name, starting, ending)
        unknown = await ask_to_end(self._temporal, dict(stopping))
        told = [job_id for job_id, _ in stopping]
        never = sorted(unknown & {job_id for job_id, _ in starting} - {*started})
        if started or told:
            async with self._database.transaction() as connection:
                await mark(connection, started=started, told=told, never=never)
        more = bool(planned.undo or never)
        progress = _progress(facts, planned, now, over=over, more=more)
        replicas = _replicas_after(facts, planned, new)
        model = revision[0].model if revision else ""
        return progress.model_copy(update={"model": model, "replicas": replicas})

    async def _hear(self, name: str, notices: Sequence[EngineNotice]) -> None:
        """Record what agents said, which is known then, whatever follows; wake the pools of those
        engines where one may leave for who waits there."""
        job_ids = [notice.job_id for notice in notices]
        async with self._database.transaction() as connection:
            await lock_service(connection, name)
            # A retry cannot know whether the one before it got as far as the signal.
            again = activity.info().attempt > 1
            may_leave = await hear(connection, name, notices) or again
            pools = await pools_of(connection, job_ids) if may_leave else ()
            first = [pool for pool in pools if await mark_poked_if_useful(connection, pool)]
            await failpoint("hear_engines.before-commit")
        await failpoint("hear_engines.after-commit")
        for pool in pools if again else first:
            await self._signals.poke_pool(pool)

    async def _start(
        self, name: str, starting: Sequence[tuple[str, int]], ending: Set[str]
    ) -> list[str]:
        """Start the jobs of replicas; return those that are there now.

        Of those that are `ending` one whose revision cannot be read is not started.
        """
        gate = asyncio.Semaphore(_IN_FLIGHT)
        specs = dict[str, JobSpec]()
        async with self._database.transaction() as connection:
            for number in {revision for _, revision in starting}:
                job_ids = [job_id for job_id, revision in starting if revision == number]
                try:
                    made = await _jobs_of(connection, name, number, len(job_ids))
                except StoredError:
                    if {*job_ids} - ending:
                        raise
                    continue
                specs |= zip(job_ids, made, strict=True)

        async def start(job_id: str, spec: JobSpec) -> None:
            async with gate:
                with contextlib.suppress(WorkflowAlreadyStartedError):  # by the try before this
                    await start_job(self._temporal, job_id, JobInput(spec=spec), digest_of(spec))
            await failpoint("advance_service.after-first-start")

        await asyncio.gather(*(start(job_id, spec) for job_id, spec in specs.items()))
        return list(specs)


async def _jobs_of(
    connection: AsyncConnection, name: str, number: int, count: int
) -> list[JobSpec]:
    """Return the jobs of so many replicas. Raises StoredError where no job can be like that, as
    one that an earlier version let in and that is too large to be started."""
    revision = await revision_of(connection, name, number)
    sizes = await sizes_of(connection, name, number)
    of_model = await model_revision_of(connection, name, number)
    try:
        return await replica_specs(connection, *revision, sizes, of_model, count)
    except ValidationError as error:
        raise stored_error(f"revision {number} of service {name}", None, error) from error


def _job_id(name: str, revision: int) -> str:
    letters = "".join(secrets.choice(_LETTERS) for _ in range(_SUFFIX))
    return f"{name}-r{revision}-{letters}"


def _progress(
    facts: ServiceFacts, planned: ServicePlan, now: datetime, *, over: bool, more: bool
) -> ServiceProgress:
    state = ServiceState.REMOVING if facts.removing else ServiceState.RUNNING
    look_in = None if planned.look_at is None else planned.look_at - now
    return ServiceProgress(
        state=ServiceState.REMOVED if over else state,
        revision=planned.undo.revision if planned.undo else facts.revision,
        wanted=0 if facts.removing else facts.wanted,
        ready=sum(each.ready for each in facts.replicas),
        reason=planned.reason or planned.stages,
        failure=facts.last_failure if any(each.failed_last for each in facts.replicas) else "",
        look_in=look_in,
        more=more,
    )


def _replicas_after(
    facts: ServiceFacts, planned: ServicePlan, new: Sequence[str]
) -> tuple[ReplicaProgress, ...]:
    """Return what the first replicas do once what was planned is done."""
    ending = {each.job_id for each in planned.stop}
    found = [_replica_progress(each, ending) for each in facts.replicas[:_MOST_TOLD]]
    for job_id in new[: _MOST_TOLD - len(found)]:
        begun = ReplicaProgress(job_id=job_id, revision=facts.revision, says="waits for a GPU")
        found.append(begun)
    return tuple(found)


def _replica_progress(replica: Replica, ending: Collection[str]) -> ReplicaProgress:
    if replica.stopping or replica.job_id in ending:
        says = "ends what it has begun"
    elif replica.stage is None:
        says = "waits to be tried again" if replica.tried_again else "waits for a GPU"
    else:
        says = replica.stage.value
        if replica.ready and replica.endpoint:
            says += f" at {replica.endpoint}"
    return ReplicaProgress(job_id=replica.job_id, revision=replica.revision, says=says)
