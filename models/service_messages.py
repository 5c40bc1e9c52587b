"""What travels between a service's workflow, its activities, agents and the client."""

from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import Field

from longshore.models.base import Instant, Reason, StartInput, Wire, WithoutNul
from longshore.models.service import ServiceState
from longshore.models.serving import EngineReport

SERVICE_WORKFLOW = "ServiceWorkflow"


def service_workflow_id(service: str) -> str:
    return f"service-{service}"


class EngineNotice(Wire):
    """What an agent says of one engine of a service."""

    job_id: Annotated[WithoutNul, Field(max_length=300)]
    attempt: int = Field(ge=0, le=10**9)
    node_id: Annotated[WithoutNul, Field(max_length=300)]
    """Where it runs, for who reads the history."""
    report: EngineReport


class ReplicaProgress(Wire):
    """A replica after a look, for the card that the Temporal UI shows."""

    job_id: str
    revision: int
    says: str
    """What it does: `ready at http://10.0.0.1:40123/v1`."""


class ServiceProgress(Wire):
    """Where a service is after a look."""

    state: ServiceState
    revision: int = 0
    wanted: int = 0
    ready: int = 0
    reason: Reason = ""
    """What is being replaced, or waited for."""
    model: str = ""
    replicas: tuple[ReplicaProgress, ...] = ()
    """The first that have not ended; `ready`, `wanted` and `reason` are of all."""
    failure: Reason = ""
    """How an engine of the revision ended last, where one is to be tried again after a failure."""
    look_in: timedelta | None = None
    """When to look again, if nobody wakes it."""
    more: bool = False
    """What follows is to be looked at at once."""


class ServiceInput(StartInput):
    """Input of `ServiceWorkflow`; the service's name is the workflow id without `service-`."""

    instead: ClassVar[str] = "give an input such as {}: `longshore serve FILE` starts services"
    notices: tuple[EngineNotice, ...] = ()
    """What the run before has heard, and no look has dealt with yet."""
    progress: ServiceProgress | None = None
    max_looks_per_run: int = Field(default=400, ge=1)

    def own_id(self, found: str) -> str:
        return service_workflow_id(found.removeprefix(service_workflow_id("")))


class AdvanceService(Wire):
    """Look at the replicas of a service, and do what follows."""

    service: str
    notices: tuple[EngineNotice, ...] = ()


class ServiceResult(Wire):
    """How a service ended."""

    service: str
    ended_at: Instant | None = None
