"""A service: replicas of one engine, kept at a number, and updated without a gap."""

from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from longshore.models.base import Frozen, Instant, Name, Reason, ShortText, Wire
from longshore.models.bounds import is_taken
from longshore.models.constraints import Constraints
from longshore.models.counts import Count
from longshore.models.funding import FundingTerms
from longshore.models.mistakes import Mistake, refuse
from longshore.models.model_registry import MOST_IN_A_FILE, refuse_twice
from longshore.models.serving import EngineStage, ModelSpec
from longshore.models.text import format_duration
from longshore.models.units import GB, MOST_CPUS, Duration

MOST_REPLICAS = 1_000
DRAIN = timedelta(seconds=60)
MOST_DRAIN = timedelta(days=1)


def _bounded(drain: timedelta, info: ValidationInfo) -> timedelta:
    if drain > MOST_DRAIN and not is_taken(info):
        why = f"is {format_duration(drain)}, and may be {format_duration(MOST_DRAIN)} at most"
        raise ValueError(why)
    return drain


class ServiceSpec(Frozen):
    """What is served: which model, how often, for whom and where."""

    name: Name
    """What people call it. With the same name again, its replicas are replaced one by one."""
    model: Name
    """A model that was added: `longshore models`."""
    tenant: Name = "default"
    """Who it is for, and who pays."""
    pool: Name = "default"
    """The queue that its replicas wait in, and the nodes that they may run on."""
    priority: Count = Field(default=5, ge=0, le=10)
    """Priority class, 0 to 10; higher goes first."""
    replicas: Count = Field(default=1, ge=0, le=MOST_REPLICAS)
    """How many engines."""
    surge: Count = Field(default=1, ge=0, le=MOST_REPLICAS)
    """How many more may run while they are replaced."""
    unavailable: Count = Field(default=0, ge=0, le=MOST_REPLICAS)
    """How many fewer may be ready while they are replaced."""
    drain: Annotated[Duration, AfterValidator(_bounded)] = DRAIN
    """How long a replica that is replaced has to answer what it has begun; at most a day."""
    gpu_type: Annotated[ShortText, Field(min_length=1, max_length=64)] | None = None
    """Model of GPU, such as H100; any when left out."""
    constraints: Constraints = ()
    """Which nodes may serve, by their labels, as of a job."""
    cpus: float = Field(default=1.0, ge=0, le=MOST_CPUS)
    """CPU cores of each replica."""
    ram: GB = 1.0
    """Main memory of each replica."""
    funding: FundingTerms | None = None
    """Who may pay beside its tenant, as of a job."""

    @model_validator(mode="after")
    def _can_be_replaced(self) -> Self:
        refuse(list(self._mistakes()))
        return self

    def _mistakes(self) -> Iterator[Mistake]:
        if not self.surge and not self.unavailable:
            why = (
                "is 0 and so is unavailable: no replica could ever be replaced; allow one more "
                "(surge) or one less (unavailable)"
            )
            yield Mistake(("surge",), why, (("unavailable",),))


class ServiceFile(Frozen):
    """What `longshore serve FILE` reads: services, and models that they need."""

    models: Annotated[tuple[ModelSpec, ...], Field(max_length=MOST_IN_A_FILE)] = ()
    """Models to add, or to change, first."""
    services: Annotated[tuple[ServiceSpec, ...], Field(min_length=1, max_length=MOST_IN_A_FILE)]
    """What to serve."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        refuse_twice("models", [each.name for each in self.models])
        refuse_twice("services", [each.name for each in self.services])
        return self


class ServiceState(StrEnum):
    """Where a service is in its life."""

    RUNNING = "RUNNING"
    """Its replicas are kept at their number."""
    REMOVING = "REMOVING"
    """Somebody removed it: its replicas end what they have begun."""
    REMOVED = "REMOVED"
    """Nothing of it runs."""

    @property
    def in_words(self) -> str:
        return "being removed" if self is ServiceState.REMOVING else self.value.lower()


class LeftGPUs(Wire):
    """That an engine was stopped for a job."""

    for_job: str
    at: Instant
    why: Reason
    """What that costs, in dollars, and how."""


class ReplicaView(Wire):
    """One replica, as lists show it."""

    job_id: str
    service: str
    model: str
    revision: int
    stage: EngineStage | None
    """None while it waits for a GPU."""
    stopping: bool = False
    node_id: str | None = None
    gpu_indices: tuple[int, ...] = ()
    endpoint: str = ""
    """Where it answers; empty until it is ready, and from when on it is to stop."""
    leased: int = 0
    """MB of GPU memory that it holds, on each of its GPUs; 0 where what is stored of its revision
    cannot be read."""
    estimated: int = 0
    """MB on each of its GPUs that its revision was reckoned with; it holds more where engines like
    it were seen to take more."""
    used: int = 0
    """MB of GPU memory that it really takes; 0 where nobody can say."""
    load_seconds: float = 0.0
    failures: int = 0
    """Engines of it that failed."""
    failed: bool = False
    """Whether one of these was the last, and none has been ready since."""
    message: str = ""
    """Why it failed last, or what it waits for."""
    created_at: Instant
    ready_at: Instant | None = None
    """Since when the engine that runs now has been ready."""
    idle_since: Instant | None = None
    """Since when nobody has asked it anything; none while it is in use."""
    uses: int = 0
    """How often the engine that runs now was asked after a pause."""
    left: LeftGPUs | None = None
    """When it left its GPUs for a job last."""
    simulated: bool = False
    """True where its GPUs are simulated."""

    @property
    def leased_in_all(self) -> int:
        """MB of GPU memory that it holds, of all of its GPUs."""
        return self.leased * max(len(self.gpu_indices), 1)

    @property
    def over(self) -> bool:
        """Whether it takes more GPU memory than it holds."""
        return bool(self.leased) and self.used > self.leased_in_all


class EvictedReplica(ReplicaView):
    """One replica that somebody has evicted."""

    notes: tuple[str, ...] = ()
    """That its service was not told, where that is so."""


class RevisionView(Wire):
    """One revision of a service."""

    number: int
    model: str
    model_revision: int
    runtime: str = ""
    """What serves the model, by its name."""
    created_at: Instant
    ready_at: Instant | None = None
    """When a replica of it was ready first."""
    undone: Reason = ""
    """Why it was undone, where it was."""
    failures: int = 0
    """Engines of it that failed."""
    last_failure: Reason = ""
    """Why one of it failed last."""
    can_go_back: bool = False
    """Whether the service has another revision that was ready and was not undone."""


class ServiceView(Wire):
    """A service, as lists show it."""

    name: str
    state: ServiceState
    spec: ServiceSpec
    revision: int
    """The one that its replicas are to be of."""
    ready: int
    replicas: tuple[ReplicaView, ...] = ()
    revisions: tuple[RevisionView, ...] | None = None
    """The newest first; None where they were not read: they are of one service that is asked for
    by its name."""
    message: str = ""
    """What is being replaced or waited for, as of the last look; else what its replicas do now."""
    trouble: str = ""
    """Why what is stored of its revision cannot be read; `spec` then says its name and how many
    replicas are wanted, and no more."""
    updated_at: Instant

    @property
    def simulated(self) -> bool:
        """Whether any of its engines is on simulated GPUs."""
        return any(each.simulated for each in self.replicas)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where it answers now."""
        return tuple(each.endpoint for each in self.replicas if each.endpoint)
