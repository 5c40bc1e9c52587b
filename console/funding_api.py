"""The REST API of budgets, and of who pays for what: what the commands print with --json."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from longshore.client.funding_reading import NOT_YET
from longshore.console.api import PROBLEMS, ForPrograms
from longshore.console.fleet import Fleet
from longshore.console.fleet_api import JobRef
from longshore.console.problems import ApiError, Problem
from longshore.models.base import Instant, Name
from longshore.models.errors import RefusedError, SpecError
from longshore.models.fund_view import FundView
from longshore.models.funding_use import FundingState, Leases, Payers, Usage, UsedBy

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    **{status: PROBLEMS[status] for status in (401, 422, 503)},
    404: {"model": Problem, "description": "There is no such job, node, GPU or tenant."},
}
_NODE = r"^[^/\s\x00-\x1f\x7f]{1,255}$"


def router(fleet: Fleet) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(route_class=ForPrograms, responses=_PROBLEMS, tags=["budgets"])

    @routes.get("/budgets", summary="Whose GPUs are whose, and who pays for those in use")
    async def budgets() -> FundingState:
        """The tenants, their budgets with what each envelope and cap is used, and the GPUs in use
        by tenant, class and envelope: `longshore tenants --json`, `longshore budget show --json`.
        """
        return await fleet.funding()

    @routes.get("/usage", summary="GPU-hours by class and by who paid")
    async def usage(
        by: Annotated[UsedBy, Query(description="By what it is summed up.")] = UsedBy.TENANT,
        tenant: Annotated[Name | None, Query(description="Only this tenant's jobs.")] = None,
        hours: Annotated[
            float, Query(gt=0, le=87_600, description="Of so many hours until now.")
        ] = 168,
    ) -> Usage:
        """Each GPU-second is of exactly one class: `longshore usage --json`.

        An answer is at most fifteen seconds old.
        """
        return await fleet.usage(hours, by, tenant)

    @routes.get("/leases", summary="Who held GPUs at a moment, and who paid for them then")
    async def leases(
        at: Annotated[
            Instant | None, Query(description="A time that has passed (default: now).")
        ] = None,
        node: Annotated[
            str | None, Query(pattern=_NODE, description="Only of this node.", examples=["node-a"])
        ] = None,
        gpu: Annotated[
            int | None, Query(ge=0, le=9_999, description="Only this GPU of the node.")
        ] = None,
        job: Annotated[
            str | None, Query(pattern=_NODE, description="Only of this job, by id or name.")
        ] = None,
    ) -> Leases:
        """A row for each GPU, or part of one: `longshore leases --json`."""
        if gpu is not None and node is None:
            raise ApiError(422, "invalid", "gpu: name its node too", field="gpu")
        try:
            return await fleet.leases(at, node, gpu, job)
        except SpecError as error:
            if NOT_YET not in error.problems:
                raise
            raise ApiError(422, "invalid", NOT_YET, field="at") from error

    @routes.get("/jobs/{job_id}/payers", summary="Who pays for a job, and who has paid")
    async def payers(job_id: JobRef) -> Payers:
        """Its GPUs by class and payer, and the GPU-hours of all of its attempts; nothing where no
        tenant has a budget. The same is in `longshore job ID --json`.
        """
        return await fleet.payers(job_id)

    @routes.get(
        "/jobs/{job_id}/fund",
        summary="Who would pay for a job, envelope by envelope",
        responses={409: {"model": Problem, "description": "The job has ended."}},
    )
    async def fund(job_id: JobRef) -> FundView:
        """Each envelope that it asks with what it has left and what it gives, the answer, and what
        would help: `longshore fund ID --json`.
        """
        try:
            return await fleet.fund(job_id)
        except RefusedError as error:
            raise ApiError(409, "refused", str(error)) from error

    return routes
