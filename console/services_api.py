"""The REST API of services, their engines, models and runtimes: what the commands print with
--json."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from longshore.console.api import PROBLEMS, ForPrograms
from longshore.console.bought_api import ID, WRITING, needs_token
from longshore.console.fleet import Fleet
from longshore.console.problems import Problem
from longshore.models.base import Wire
from longshore.models.model_registry import ModelView, RuntimeView
from longshore.models.service import EvictedReplica, ReplicaView, ServiceView

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    **{status: PROBLEMS[status] for status in (401, 422, 503)},
    404: {"model": Problem, "description": "There is none of this name."},
}
_EVICTING: dict[int | str, dict[str, Any]] = {
    **WRITING,
    404: {"model": Problem, "description": "There is no such engine."},
    409: {"model": Problem, "description": "It is being stopped already."},
    503: {"model": Problem, "description": "The database or Temporal is away; `Retry-After` says "
          "when to ask again."},
}  # fmt: skip
_NAME = r"^[^/\s\x00-\x1f\x7f]{1,63}$"
ServiceName = Annotated[
    str, Path(pattern=_NAME, description="Name of the service.", examples=["chat"])
]
EngineId = Annotated[
    str,
    Path(pattern=ID, description="The engine, by its job's id.", examples=["chat-r1-7ypzo2kqda"]),
]
ModelName = Annotated[
    str, Path(pattern=_NAME, description="Name of the model.", examples=["tiny"])
]
RuntimeName = Annotated[
    str, Path(pattern=_NAME, description="Name of the runtime.", examples=["llama.cpp"])
]


class ServicesResponse(Wire):
    """Services with their replicas."""

    services: tuple[ServiceView, ...]


class SlotsResponse(Wire):
    """Engines of services."""

    slots: tuple[ReplicaView, ...]


class ModelsResponse(Wire):
    """Models that may be served."""

    models: tuple[ModelView, ...]


class RuntimesResponse(Wire):
    """Programs that serve models."""

    runtimes: tuple[RuntimeView, ...]


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

    @routes.get("/slots", summary="Engines, by service")
    async def slots() -> SlotsResponse:
        """What each holds of GPU memory, was reckoned with and really takes, and where it answers:
        `longshore slots --json`."""
        return SlotsResponse(slots=await fleet.slots())

    @routes.post("/slots/{job_id}/evict", summary="Stop one engine", responses=_EVICTING)
    async def evict(request: Request, job_id: EngineId) -> EvictedReplica:
        """It ends what it has begun; its service starts another where one lacks: `longshore evict
        JOB --json`. `notes` says where its service could not be told."""
        needs_token(request)
        return await fleet.evict(job_id)

    @routes.get("/models", summary="Models that may be served, by name")
    async def models() -> ModelsResponse:
        """Each with its memory and what its files say: `longshore models list --json`."""
        return ModelsResponse(models=await fleet.models())

    @routes.get("/models/{name}", summary="One model")
    async def model(name: ModelName) -> ModelView:
        """What it is served with: `longshore models show NAME --json`."""
        return await fleet.model(name)

    @routes.get("/runtimes", summary="Programs that serve models")
    async def runtimes() -> RuntimesResponse:
        """Those that are built in first: `longshore runtimes --json`."""
        return RuntimesResponse(runtimes=await fleet.runtimes())

    @routes.get("/runtimes/{name}", summary="One runtime")
    async def runtime(name: RuntimeName) -> RuntimeView:
        """Its command in full: `longshore runtimes show NAME --json`."""
        return await fleet.runtime(name)

    return routes
