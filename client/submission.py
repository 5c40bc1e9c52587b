"""Before a job is submitted: its id, its line in the Temporal UI, and a look at the nodes."""

import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy.exc import DBAPIError

from longshore.activities.admission import never_held
from longshore.activities.buying.incoming_capacity import purchases_under_way
from longshore.activities.buying.reasons import read_standing
from longshore.activities.database import Database, clock
from longshore.activities.ever_held import nodes_if_none_could_hold
from longshore.activities.funding.planning import funding_beside
from longshore.activities.funding.quotas import why_too_many_wait
from longshore.activities.funding.refusals import why_never_taken
from longshore.activities.snapshot import load_pool
from longshore.models.errors import RefusedError, SpecError, UnavailableError, UnsatisfiableError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.moment import format_moment
from longshore.models.node import Node, NodeState
from longshore.models.pool import Growth, PoolSpec
from longshore.models.spending import PurchaseUnderWay
from longshore.models.text import and_more, format_duration
from longshore.scheduling.advice import kind_of_node
from longshore.scheduling.buying.buying_status import BuyingStatus
from longshore.scheduling.buying.words import under_way
from longshore.scheduling.time_limits import why_too_long, with_limit
from longshore.scheduling.unready_nodes import in_the_way_for_good

_SUFFIX = 10
_MOST_NAMED = 2
"""Purchases that a warning names."""
GENERATED_ID = re.compile(rf"-[a-z2-7]{{{_SUFFIX}}}$")
"""Ends every job id that `new_job_id` makes."""


def new_job_id(spec: JobSpec, key: str | None) -> str:
    """Return a readable id: the name and ten letters, the same ones for the same key."""
    return new_id(spec.tenant, spec.name, key)


def new_id(tenant: str, name: str, key: str | None) -> str:
    """Return the same for whatever has a tenant and a name."""
    if key is None:
        raw = secrets.token_bytes(8)
    else:
        raw = hashlib.sha256(f"{tenant}\0{name}\0{key}".encode()).digest()
    return f"{name}-{base64.b32encode(raw).decode().lower()[:_SUFFIX]}"


async def preflight(
    database: Callable[[], Database], spec: JobSpec, *, queued: bool = False, job_id: str = ""
) -> tuple[str, ...]:
    """Hold the job against the nodes that are there, and the quotas of its tenant; return what
    its user should know. `job_id` is what it is to have, where that is known.

    Raises UnsatisfiableError when no node could ever hold it and none can come; SpecError when it
    is more than a quota alone, or names a sponsor that there is not; StoredError where the
    settings of its pool cannot be read; and where it is `queued` at once RefusedError when its
    tenant has as many waiting as it may. A database that is away does not keep a job from being
    submitted.
    """
    try:
        async with database().transaction() as connection:
            pool = await load_pool(connection, spec.pool)
            if why := why_too_long(spec, pool):
                raise UnsatisfiableError(why)
            spec = with_limit(spec, pool)
            now = await clock(connection)
            job = JobRequest.of(job_id, spec, now, 1)
            (never,) = await why_never_taken(connection, [(job, spec)])
            if never:
                raise SpecError(f"job {spec.name}", (never,))
            if queued and (many := await why_too_many_wait(connection, spec.tenant)):
                raise RefusedError(many)
            nodes = await nodes_if_none_could_hold(connection, spec.pool, job, now)
            if nodes is None:
                return (
                    *_past(spec, now),
                    *_tight(spec, now),
                    *_unpriced(spec, pool),
                    *_assumed(spec, pool),
                )
            if pool.growth is not Growth.OPEN:
                raise UnsatisfiableError(never_held(job, spec, pool, nodes, now))
            coming = await purchases_under_way(connection, pool)
            if pool.buying.enabled:
                funding = await funding_beside(connection, pool, job, spec, nodes, now)
                packing = pool.packing.model_copy(update={"funding": funding})
                pool = pool.model_copy(update={"packing": packing})
            standing = await read_standing(connection, pool, now, spec.tier, job_id)
    except UnavailableError as error:
        return (f"could not look at the nodes first ({error})",)
    except DBAPIError as error:
        return (f"could not look at the nodes first ({error.orig}): `longshore db upgrade`",)
    return (
        _warning(job, spec, pool, nodes, now, _what_comes(standing, coming)),
        *_past(spec, now),
        *_tight(spec, now),
        *_unpriced(spec, pool),
        *_assumed(spec, pool),
    )


async def refusals_for_good(
    database: Callable[[], Database], specs: Sequence[JobSpec]
) -> tuple[str, ...]:
    """Return of each job why its queue would refuse it whenever it comes; empty where it would
    not, or where the database does not answer."""
    try:
        async with database().transaction() as connection:
            now = await clock(connection)
            jobs = [(JobRequest.of("", spec, now, 1), spec) for spec in specs]
            return tuple(await why_never_taken(connection, jobs))
    except (UnavailableError, DBAPIError):  # whoever looks at the nodes says so
        return ("",) * len(specs)


def _past(spec: JobSpec, now: datetime) -> tuple[str, ...]:
    """Return what to say of a `begin` that is as none."""
    if spec.begin is None or spec.begins_at(now) is not None:
        return ()
    return (f"begin: {format_moment(spec.begin)} is past: the job may start at once",)


def _tight(spec: JobSpec, now: datetime) -> tuple[str, ...]:
    """Return what to say of a deadline that comes before the time limit has passed, of a job that
    does not say how long it takes: it may take less."""
    deadline, limit = spec.deadline_at(now), spec.max_duration
    if spec.deadline is None or deadline is None or limit is None or spec.expected_duration:
        return ()
    earliest = (spec.begins_at(now) or now) + limit
    if earliest <= deadline:
        return ()
    return (
        f"deadline: {format_moment(spec.deadline)} is before the job has run for its time limit "
        f"of {format_duration(limit)}, even where it starts at once: it is met only if the job "
        "takes less (`expected_duration` says how long)",
    )


def _unpriced(spec: JobSpec, pool: PoolSpec) -> tuple[str, ...]:
    """Return what to say of a threshold that nothing can be held against."""
    if spec.start_below is None or pool.price is not None:
        return ()
    return (
        f"start_below: pool {spec.pool} names no price (`longshore pool set {spec.pool} --price "
        "FILE`): it holds nothing up",
    )


def _assumed(spec: JobSpec, pool: PoolSpec) -> tuple[str, ...]:
    """Return for how long machines are bought where the job does not say how long it runs."""
    if not pool.buying.enabled or "expected_duration" in spec.model_fields_set:
        return ()
    length = format_duration(spec.likely_duration)
    return (
        f"the job does not say how long it runs: what pool {spec.pool} buys for it lasts for "
        f"{length}, as is assumed (`expected_duration`)",
    )


def _what_comes(standing: BuyingStatus, coming: tuple[PurchaseUnderWay, ...]) -> str:
    """Return what a pool does where nodes lack, or what it waits for."""
    if not coming and not standing.buys:
        return f"{standing.says}: {standing.helps}" if standing.says else ""
    buys = f"it {standing.says}" if standing.buys else ""
    there = under_way(coming[:_MOST_NAMED]), and_more(len(coming) - _MOST_NAMED)
    return f"{'; '.join(filter(None, (buys, *there)))} (`longshore why` shows what for this job)"


def _warning(
    job: JobRequest,
    spec: JobSpec,
    pool: PoolSpec,
    nodes: Sequence[Node],
    now: datetime,
    comes: str,
) -> str:
    """Return what becomes of a job that no node of an open pool could hold even when empty."""
    if not nodes:
        waits = f"the {_what(spec)} waits until one joins (`longshore agent --pool {spec.pool}`)"
        return f"pool {spec.pool} has no nodes yet: {comes or waits}"
    kind = kind_of_node(job, in_the_way_for_good(job, nodes, pool.packing, now), nodes, now)
    waits = f"it waits for {kind} (`longshore why` says what is missing, and what helps)"
    return f"{_which(spec, nodes)} even when empty: {comes or waits}"


def _what(spec: JobSpec) -> str:
    return "job" if spec.engine is None else "engine"


def _which(spec: JobSpec, nodes: Sequence[Node]) -> str:
    """Return ``none of the 5 nodes of pool default (3 of them lost) could hold the job``."""
    lost, what = sum(node.state is NodeState.LOST for node in nodes), _what(spec)
    if len(nodes) == 1:
        away = " (it is lost)" if lost else ""
        return f"the only node of pool {spec.pool}{away} cannot hold the {what}"
    away = f" ({lost} of them lost)" if lost else ""
    if spec.gang:
        return f"the {len(nodes)} nodes of pool {spec.pool}{away} cannot hold the {what} together"
    return f"none of the {len(nodes)} nodes of pool {spec.pool}{away} could hold the {what}"
