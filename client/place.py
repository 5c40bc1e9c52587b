"""`longshore place`: decide for one job, on a state in a file or on a pool as it is now."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NewType, TypeVar

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database
from longshore.activities.durations import learnt_for
from longshore.activities.locality import with_locality
from longshore.activities.preemption_inputs import PreemptionInputs, read_inputs
from longshore.activities.serving.model_engine import engine_of, replica_specs
from longshore.activities.serving.revisions import measured_load
from longshore.activities.snapshot import (
    load_nodes,
    load_queue,
    load_recent,
    load_running,
    load_simulated,
)
from longshore.activities.usage import load_pool_to_plan
from longshore.client.preempt_plan import plan_of, weighed, with_one_more, words_of_like
from longshore.models.document import read_document
from longshore.models.domains import Foreseen
from longshore.models.errors import SpecError
from longshore.models.gang import GangPacking
from longshore.models.job import JobSpec
from longshore.models.job_request import EngineKey, JobRequest, RecentJobs, fetched_name
from longshore.models.node import Node
from longshore.models.placement import (
    Decision,
    PackingPolicy,
    PackingRule,
    PlacementKind,
    RunningJob,
)
from longshore.models.preemption import PreemptionPlan
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSpec
from longshore.models.settings import Settings
from longshore.models.statefile import ClusterState
from longshore.scheduling.cycle import foresee
from longshore.scheduling.durations import with_learnt
from longshore.scheduling.forecast import as_if_begun
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.kept_starts import LATER_STARTS
from longshore.scheduling.packer import place
from longshore.scheduling.placement.state import with_job
from longshore.scheduling.serving.running_engine import turn_at

ModelName = NewType("ModelName", str)
"""The name of a model that was added."""
Rule = TypeVar("Rule", PackingRule, GangPacking)
"""What chooses nodes: for jobs on one node, or for gangs."""


def run_place(
    state_path: str | Path, job_path: str | Path, now: datetime
) -> tuple[ClusterState, JobRequest, Decision]:
    """Return the state, the job and the decision, with every candidate and rejection.

    `now` holds where the state file names no time of its own; the state that is returned names
    the time that was used. The job's id is its name; one that begins later is decided as if it
    began now. Raises SpecError for either file.
    """
    try:
        state, spec = read_document(state_path, ClusterState), read_document(job_path, JobSpec)
    except SpecError as error:
        raise _swapped(state_path, job_path) or error from None
    if state.now is not None:
        now = state.now
    else:
        state = state.model_copy(update={"now": now})
    spec, _ = as_if_begun(spec, now)
    job = JobRequest.of(spec.name, spec, submitted_at=now, attempt=1)
    # A state file names the data of its nodes as a job file does, also what nodes fetch.
    named = {
        fetched_name(each.source or "", spec.tenant): name for name, each in spec.data.items()
    }
    data = {named.get(name, name): size for name, size in job.data.items()}
    job = job.model_copy(update={"data": data})
    return state, job, place(job, state.packer_nodes(), state.policy, now)


def by_rule(
    rules: Iterable[Rule],
    job: JobRequest,
    nodes: Sequence[Node],
    policy: PackingPolicy,
    now: datetime,
    recent: Sequence[RecentJobs] = (),
) -> dict[Rule, Decision]:
    """Return what each rule would choose for a job, with all else as it is."""
    return {rule: place(job, nodes, _with(policy, rule), now, recent=recent) for rule in rules}


def foreseen_by_rule(
    rules: Iterable[Rule],
    used: Decision,
    job: JobRequest,
    queue: Sequence[JobRequest],
    nodes: Sequence[Node],
    running: Sequence[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    recent: Sequence[RecentJobs] = (),
) -> dict[Rule, Decision]:
    """Return what a cycle of the pool would do with a job by each rule, with the same queue and
    the same running jobs; `used` is what it does by the rule of the policy."""

    def decide(rule: Rule) -> Decision:
        if rule is policy.rule or rule is policy.gang_packing:  # a name of both is alike
            return used
        return foresee(job, queue, nodes, running, _with(policy, rule), now, recent).decision

    return {rule: decide(rule) for rule in rules}


def rules_of_gangs(job: JobRequest) -> tuple[GangPacking, ...]:
    """Return the rules that choose the nodes of a job: of a gang all, else none."""
    return tuple(GangPacking) if job.gang is not None else ()


def _with(policy: PackingPolicy, rule: PackingRule | GangPacking) -> PackingPolicy:
    field = "gang_packing" if isinstance(rule, GangPacking) else "rule"
    return policy.model_copy(update={field: rule})


async def place_live(
    asked: JobSpec | ModelName,
    pool: str | None,
    now: datetime,
    rules: Sequence[PackingRule] = (),
) -> tuple[Foreseen, tuple[Node, ...]]:
    """Return what a cycle of a pool would do now with a job, or with an engine of a model, and the
    pool's nodes.

    The nodes have the jobs that run, and those of the queue that would be placed before it. `pool`
    is the job's own unless given. Nothing is changed. Raises NotFoundError for no such pool or
    model, UnavailableError without a database.
    """
    settings = Settings()
    database = Database.for_people(settings.resolve_database_url(), pool_size=1)
    try:
        async with database.transaction() as connection:
            load = timedelta(0)
            if isinstance(asked, str):
                asked, load = await _engine_job(connection, asked, pool)
            spec, begins_at = as_if_begun(asked, now)
            pool = pool or spec.pool
            packing = (
                await load_pool_to_plan(connection, pool, settings.margins, known=True)
            ).packing
            entries = await load_queue(connection, pool)
            nodes = await load_nodes(connection, pool)
            running = await load_running(connection, pool)
            learns = any(rule.learns for rule in (packing.rule, *rules))
            recent = await load_recent(connection, pool) if learns else ()
            simulated = await load_simulated(connection, pool)
            job = JobRequest.of(spec.name, spec, submitted_at=now, attempt=1)
            job = with_learnt(job, await learnt_for(connection, "", spec))
            queue = [entry.request for entry in entries if not entry.held]
            queue = where_paid(queue, packing.funding)
            as_said = job
            (*queue, job), nodes = await with_locality(
                connection, pool, packing, [*queue, job], nodes
            )
            found = foresee(
                job, queue, nodes, running, packing, now, recent, is_new=True, later=LATER_STARTS
            )
            stops = None
            if found.decision.kind is not PlacementKind.EXISTING_NODE:
                inputs = await read_inputs(connection, pool, margins=settings.margins)
                inputs = await with_one_more(connection, inputs, as_said.smallest)
                stops = _who_would_stop(spec.engine, load, inputs, now)
    finally:
        await database.close()
    by_id = {node.id: node for node in nodes}
    waiting = {request.id: request for request in queue}
    for placed in found.before.placements:
        for node_id, gpu_indices in placed.held:
            other = waiting[placed.job_id]
            by_id[node_id] = with_job(by_id[node_id], other, gpu_indices, placed.slices)
    ahead = Foreseen(
        pool=pool,
        at=now,
        request=job,
        decision=found.decision,
        domains=found.domains,
        running=len({share.job_id for share in running}),
        ahead=len(found.before.decisions),
        placed_ahead=len(found.before.placements),
        kept_ahead=len({kept.job_id for kept in found.before.reservations}),
        simulated=not simulated.isdisjoint(_named_nodes(found.decision)),
        rule=packing.rule,
        begins_at=begins_at,
        stops=stops,
        by_rule=foreseen_by_rule(
            rules, found.decision, job, queue, nodes, running, packing, now, recent
        ),
        by_gang_packing=foreseen_by_rule(
            rules_of_gangs(job) if rules else (),
            found.decision,
            job,
            queue,
            nodes,
            running,
            packing,
            now,
            recent,
        ),
    )
    return ahead, tuple(by_id.values())


def _named_nodes(decision: Decision) -> set[str]:
    """Return the nodes that a job gets, and where it waits those that refused it."""
    gets = {node_id for node_id, _ in decision.by_node}
    return gets or {refusal.node_id for refusal in decision.rejections}


def _who_would_stop(
    engine: EngineSpec | None,
    load: timedelta,
    inputs: PreemptionInputs,
    now: datetime,
) -> PreemptionPlan | None:
    """Return who would be stopped for the last job of a queue, which a cycle leaves waiting, of an
    `engine` that takes so long to `load` also when it has its turn; None where the pool stops
    nobody."""
    policy = inputs.spec.preemption
    if not policy.enabled:
        return None
    *queue, job = inputs.queue
    if engine is not None:
        model = engine.model
        key = EngineKey.of(
            model.name, engine.runtime.name, source=model.source, adapters=model.adapters
        )
        at = turn_at(key, now, load, inputs.running, policy)
        job = job.model_copy(update={"engine": key, "turn_at": at})
        inputs = inputs.model_copy(update={"queue": (*queue, job)})
    found = plan_of(inputs, job, None, now)
    if found is None or found.preempts:
        return found
    turn = weighed(inputs, job.id, now).says if job.turn_at else ""
    more = [turn, words_of_like(inputs, job)]
    return found.model_copy(update={"reason": "; ".join(filter(None, [found.reason, *more]))})


async def _engine_job(
    connection: AsyncConnection, model: ModelName, pool: str | None
) -> tuple[JobSpec, timedelta]:
    """Return the job of an engine of a model, as of a service that says nothing else, and how long
    one like it took to load."""
    engine, sizes, of_model = await engine_of(connection, model)
    service = ServiceSpec.model_validate(
        {"name": "engine", "model": model} | ({"pool": pool} if pool else {})
    )
    (job,) = await replica_specs(connection, service, engine, sizes, of_model, 1)
    return job, await measured_load(connection, engine)


def _swapped(state_path: str | Path, job_path: str | Path) -> SpecError | None:
    """Return the mistake in one sentence where the one file is of the other's kind."""
    if _holds(state_path, JobSpec):
        said = f"{state_path}: is a job file: --state takes the nodes, and --job the job"
        return SpecError(str(state_path), (said,))
    if _holds(job_path, ClusterState):
        said = f"{job_path}: is a state file: --job takes the job, and --state the nodes"
        return SpecError(str(job_path), (said,))
    return None


def _holds(path: str | Path, model: type[BaseModel]) -> bool:
    try:
        read_document(path, model)
    except SpecError:
        return False
    return True
