"""The REST API of nodes and jobs: what the commands print with --json. Reads only."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from longshore.activities.checkpoints.rows import StoredCheckpoints
from longshore.console.api import PROBLEMS, ForPrograms
from longshore.console.bought_api import ID, After, Limit, PoolName
from longshore.console.fleet import Fleet
from longshore.console.problems import ApiError, Problem
from longshore.models.base import Frozen, Name
from longshore.models.cycles import PoolCycles
from longshore.models.dag_view import DagState, DagSummary, DagView
from longshore.models.domains import PoolTopology
from longshore.models.durations import NAME_FORM as KEY_FORM
from longshore.models.durations import DurationsView
from longshore.models.explanation import Explanation
from longshore.models.job_report import JobReport
from longshore.models.job_status import JobState
from longshore.models.labels import NAME_FORM, Selector, parse_selector
from longshore.models.queue_view import QueueHistory, QueueView, StartErrorsView
from longshore.models.schedule import ScheduleView
from longshore.models.views import JobView, NodeView, PoolView

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    **{status: PROBLEMS[status] for status in (401, 422, 503)},
    404: {"model": Problem, "description": "There is no such pool or job."},
}

JobRef = Annotated[
    str,
    Path(
        pattern=ID,
        description="A job's id, or a name for the newest job of it.",
        examples=["train-abcdefghij"],
    ),
]


OnePool = Annotated[Name, Query(description="The pool.", examples=["default"])]


LabelText = Annotated[str, Field(max_length=1_000, examples=["sweep=7"])]


DagRef = Annotated[
    str,
    Path(
        pattern=ID,
        description="A DAG's id, or a name for the newest DAG of it.",
        examples=["nightly-abcdefghij"],
    ),
]


ScheduleName = Annotated[
    str, Path(pattern=ID, description="A schedule's name.", examples=["nightly"])
]


class NodesResponse(Frozen):
    """A page of nodes, by id. Memory is GB."""

    nodes: tuple[NodeView, ...]
    next: str | None = None
    """Ask again with `after` set to this; none on the last page."""


class TopologyResponse(Frozen):
    """The domains of pools, by the names of these."""

    pools: tuple[PoolTopology, ...]


class PoolsResponse(Frozen):
    """The pools, by name."""

    pools: tuple[PoolView, ...]


class CyclesResponse(Frozen):
    """The cycles of pools, by the names of these. Times are milliseconds."""

    pools: tuple[PoolCycles, ...]


class DagsResponse(Frozen):
    """A page of DAGs, the newest first."""

    dags: tuple[DagSummary, ...]
    next: str | None = None
    """Ask again with `after` set to this; none on the last page."""


class SchedulesResponse(Frozen):
    """Schedules, by name."""

    schedules: tuple[ScheduleView, ...]


class JobsResponse(Frozen):
    """A page of jobs, the newest first."""

    jobs: tuple[JobView, ...]
    next: str | None = None
    """Ask again with `after` set to this; none on the last page."""


def _selector(texts: Sequence[str] | None) -> Selector:
    try:
        return parse_selector(texts or ())
    except ValueError as error:
        raise ApiError(422, "invalid", f"label: {error}", field="label") from error


def router(fleet: Fleet) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(route_class=ForPrograms, responses=_PROBLEMS, tags=["nodes and jobs"])
    _add_nodes(routes, fleet)
    _add_queues(routes, fleet)
    _add_jobs(routes, fleet)
    return routes


def _add_nodes(routes: APIRouter, fleet: Fleet) -> None:
    @routes.get("/nodes", summary="Nodes, with who holds each GPU")
    async def nodes(
        pool: PoolName = None,
        gone: Annotated[bool, Query(description="Those that have gone too.")] = False,
        after: After = None,
        limit: Limit = 100,
    ) -> NodesResponse:
        """Each GPU of each node with the job that holds it, or has a part of it.

        Each entry is one of `longshore nodes --json`.
        """
        found = await fleet.nodes(pool, gone=gone)
        rest = [node for node in found if after is None or node.id > after]
        page = tuple(rest[:limit])
        return NodesResponse(nodes=page, next=page[-1].id if len(rest) > limit else None)

    @routes.get("/topology", summary="Domains of fast fabric")
    async def topology(pool: PoolName = None) -> TopologyResponse:
        """The domains of each pool with their nodes, and what is used and free in each.

        Each entry is one of `longshore topology --json`.
        """
        return TopologyResponse(pools=await fleet.topology(pool))

    @routes.get("/pools", summary="Pools")
    async def pools() -> PoolsResponse:
        """Their settings, GPUs in use, and how many jobs run, wait and are held.

        Each entry is one of `longshore pools --json`.
        """
        return PoolsResponse(pools=await fleet.pools())

    @routes.get("/cycles", summary="Cycles of pools, and what they take")
    async def cycles(
        pool: PoolName = None,
        last: Annotated[
            int, Query(ge=0, le=1000, description="How many of the last cycles of each to list.")
        ] = 0,
    ) -> CyclesResponse:
        """How often each pool plans, and what a cycle takes in its parts, over the last hour.

        Each entry is one of `longshore cycles --json`.
        """
        return CyclesResponse(pools=await fleet.cycles(pool, last=last))


def _add_queues(routes: APIRouter, fleet: Fleet) -> None:
    @routes.get("/queue", summary="Who waits in a pool, in order")
    async def queue(pool: OnePool = "default") -> QueueView:
        """In the order in which the pool's next cycle decides: `longshore queue --json`."""
        return await fleet.queue(pool)

    @routes.get("/queue/history", summary="How many jobs waited and ran over the past day")
    async def queue_history(pool: OnePool = "default") -> QueueHistory:
        """Waiting and running jobs at the end of each quarter of an hour, and how many were
        stopped for others in it.

        An answer is at most fifteen seconds old.
        """
        return await fleet.queue_history(pool)

    @routes.get("/durations", summary="How long jobs run, as is learnt")
    async def durations(
        tenant: Annotated[Name | None, Query(description="Only this tenant's.")] = None,
        name: Annotated[
            str | None,
            Query(pattern=KEY_FORM, description="Only of this name, or form such as `train-*`."),
        ] = None,
    ) -> DurationsView:
        """By tenant, name and shape: `longshore durations --json`.

        An answer is at most fifteen seconds old.
        """
        return await fleet.durations(tenant, name)

    @routes.get("/queue/estimates", summary="How far off the starts were that jobs were told")
    async def queue_estimates(
        pool: OnePool = "default",
        hours: Annotated[
            int, Query(ge=1, le=8760, description="Starts that were told in so many hours.")
        ] = 24,
    ) -> StartErrorsView:
        """By how long before the start they were told: `longshore queue --estimates --json`.

        An answer is at most fifteen seconds old.
        """
        return await fleet.start_errors(pool, timedelta(hours=hours))


def _add_jobs(routes: APIRouter, fleet: Fleet) -> None:
    @routes.get("/jobs", summary="Jobs, the newest first")
    async def jobs(
        pool: PoolName = None,
        tenant: Annotated[Name | None, Query(description="Only this tenant's.")] = None,
        state: Annotated[
            JobState | None,
            Query(description="Only those in this state, however long ago they ended."),
        ] = None,
        label: Annotated[
            list[LabelText] | None,
            Query(
                description="Only those with this label: `sweep=7`, `sweep!=7`, `team in (a, b)`, "
                "`team notin (a, b)`, `team` or `!team`. Given again: all have to hold.",
            ),
        ] = None,
        name: Annotated[
            str | None,
            Query(
                pattern=NAME_FORM,
                description="Only those with such a name: `a-*` begins with a-; ? is any one "
                "character.",
            ),
        ] = None,
        ended: Annotated[
            bool, Query(description="Those too that ended more than an hour ago.")
        ] = False,
        after: After = None,
        limit: Limit = 100,
    ) -> JobsResponse:
        """Those that have not ended, and those of the last hour: where each is, or why it waits.

        Each entry is one of `longshore jobs --json`.
        """
        states = frozenset([state] if state else ())
        found = await fleet.jobs(
            pool=pool, tenant=tenant, states=states, labels=_selector(label), named=name,
            recent=not (ended or state), after=after, limit=limit + 1,
        )  # fmt: skip
        page = tuple(found[:limit])
        return JobsResponse(jobs=page, next=page[-1].id if len(found) > limit else None)

    @routes.get("/dags", summary="DAGs, the newest first")
    async def dags(
        state: Annotated[DagState | None, Query(description="Only those in this state.")] = None,
        after: After = None,
        limit: Limit = 100,
    ) -> DagsResponse:
        """Each with the number of its jobs in each state.

        Each entry is one of `longshore dag list --all --json`.
        """
        states = frozenset([state] if state else ())
        found = await fleet.dags(states=states, after=after, limit=limit + 1)
        page = tuple(found[:limit])
        return DagsResponse(dags=page, next=page[-1].id if len(found) > limit else None)

    @routes.get("/dags/{dag_id}", summary="One DAG in full")
    async def dag(dag_id: DagRef) -> DagView:
        """Its jobs, upstream first, with their conditions, states, times and costs:
        `longshore dag show ID --json`.
        """
        return await fleet.dag(dag_id)

    @routes.get("/schedules", summary="Schedules, by name")
    async def schedules() -> SchedulesResponse:
        """Each with its next times and its last runs.

        Each entry is one of `longshore schedule list --json`.
        """
        return SchedulesResponse(schedules=await fleet.schedules())

    @routes.get("/schedules/{name}", summary="One schedule")
    async def schedule(name: ScheduleName) -> ScheduleView:
        """Its next times, its last runs with their results, and how many were left out:
        `longshore schedule show NAME --json`.
        """
        return await fleet.schedule(name)

    @routes.get("/jobs/{job_id}", summary="One job in full")
    async def job(job_id: JobRef) -> JobReport:
        """What was submitted, what its workflow and its process say, its attempts with their
        nodes and GPUs, and its newest checkpoint: `longshore job ID --json`.

        While Temporal is away `status` and `progress` are null, and `missing` says why.
        """
        return await fleet.report(job_id)

    @routes.get("/jobs/{job_id}/why", summary="Why a job is where it is")
    async def why(job_id: JobRef) -> Explanation:
        """For a job that waits, node by node what is missing; for one that was placed, the scores
        of its node and of the best others: `longshore why ID --json`.
        """
        return await fleet.explain(job_id)

    @routes.get("/jobs/{job_id}/checkpoints", summary="What is stored of a job")
    async def checkpoints(job_id: JobRef) -> StoredCheckpoints:
        """What the checkpoint store has, the newest first: `longshore checkpoints ID --json`.

        An answer is at most fifteen seconds old.
        """
        return await fleet.checkpoints(job_id)
