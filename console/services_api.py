"""The REST API of services: what the commands print with --json."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from longshore.console.api import PROBLEMS, ForPrograms
from longshore.console.fleet import Fleet
from longshore.console.problems import Problem
from longshore.models.base import Wire
from longshore.models.service import ServiceView

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    **{status: PROBLEMS[status] for status in (401, 422, 503)},
    404: {"model": Problem, "description": "There is no such service."},
}
ServiceName = Annotated[
    str,
    Path(
        pattern=r"^[^/\s\x00-\x1f\x7f]{1,63}$",
        description="Name of the service.",
        examples=["chat"],
    ),
]


class ServicesResponse(Wire):
    """Services with their replicas."""

    services: tuple[ServiceView, ...]


def router(fleet: Fleet) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(route_class=ForPrograms, responses=_PROBLEMS, tags=["services"])

    @routes.get("/services", summary="Services, by name")
    async def services() -> ServicesResponse:
        """Each with its replicas, where they answer, what they hold of GPU memory and what they
        take: `longshore services --json`."""
        return ServicesResponse(services=await fleet.services())

    @routes.get("/services/{name}", summary="One service in full")
    async def service(name: ServiceName) -> ServiceView:
        """Its replicas and its revisions: `longshore service NAME --json`."""
        return await fleet.service(name)

    return routes
