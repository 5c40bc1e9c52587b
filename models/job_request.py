"""What the packer needs to know of a job."""

import json
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from types import MappingProxyType
from typing import Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen, Instant, Name
from longshore.models.data import name_of_environment
from longshore.models.durations import Learnt
from longshore.models.gpu_hour_price import GPUHourPrice
from longshore.models.job import ASSUMED_DURATION, JobSpec, Tier
from longshore.models.resource_request import ResourceRequest
from longshore.models.resources import HostAmounts
from longshore.models.units import GB, LONGEST, MOST, Duration

IMAGE_SIZE = 10.0
"""GB, a guess beside data that has sizes: nobody says how large an image is."""
ENVIRONMENT_SIZE = 5.0
"""GB, likewise: an environment with PyTorch has as much, and takes minutes to build."""


FILLS = (
    "nobody asks its engine: it comes where there is room, and nobody is stopped and nothing is "
    "bought for it"
)


_MOST_GPUS = 1_000_000
"""More than any version takes. Who plans may list them one by one: a row that somebody wrote into
by hand would take the memory of the control worker, and with it all pools."""


class EngineKey(Frozen):
    """What the engine of a job serves, and for which service."""

    model: Name
    runtime: Name
    service: Name | None = None
    files: Name | None = None
    """Tells models of one name apart: a digest of where its files and its adapters are."""

    @classmethod
    def of(
        cls,
        model: str,
        runtime: str,
        service: str | None = None,
        source: str = "",
        adapters: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Return the key of an engine; what is stored may be what somebody wrote by hand."""
        files = json.dumps([source, sorted(adapters.items())])
        digest = sha256(files.encode()).hexdigest()[:32]
        return cls.trusted(model=model, runtime=runtime, service=service, files=digest)

    @property
    def serves(self) -> tuple[str, str, str | None]:
        """What it serves: a model with these files and LoRA adapters, by a runtime."""
        return self.model, self.runtime, self.files

    def is_like(self, other: "EngineKey | None") -> bool:
        """Return whether an engine serves the same model, or the same service."""
        if other is None:
            return False
        same_service = self.service is not None and self.service == other.service
        return same_service or self.serves == other.serves


_SAID = ResourceRequest.model_fields.keys() - {"expected_duration", "max_duration"}
"""What a job asks for as its file says it; how long it is planned with follows from more."""


class JobRequest(ResourceRequest):
    """What the packer needs to know of a job.

    Of a job that may span nodes, or runs on several sizes, the amounts are those of the whole job
    at its desired size; `at_size` has those of another. Bounds are wider than those of a job file:
    a newer version may take more.
    """

    id: str
    tier: Tier = Tier.FAST
    priority: int = Field(default=5, ge=0, le=10)
    gpus: int = Field(ge=1, le=_MOST_GPUS)
    gpu_type: str | None = None
    gpu_types: tuple[str, ...] = Field(default=(), max_length=1000, exclude=True)
    """Of one that names no type: those on which somebody pays for it, where that is not so of all
    (`scheduling.funding.where_paid`); any when empty. Who plans sets it."""
    cpus: float = Field(default=0.0, ge=0, le=MOST)
    ram: GB = 0.0
    # Frozen, so that a narrower type is safe.
    expected_duration: Duration = ASSUMED_DURATION  # pyright: ignore[reportIncompatibleVariableOverride]
    """What it is planned with."""
    duration_known: bool = Field(default=True, exclude=True)
    """Whether its user has said so. The queue has it, as it has `attained`."""
    learnt: Learnt | None = Field(default=None, exclude=True)
    """What those of its tenant, name and shape before it took, where its user has not said it. The
    queue has it, too; `expected_duration` follows from it (`scheduling.durations`)."""
    max_duration: Duration | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """Of a malleable job: no size makes it run longer. That of any other is in
    `expected_duration`."""
    grace: Duration = timedelta(seconds=10)
    """What it gets to save or clean up when it has to leave its node."""
    saves: bool = False
    """It has checkpoints: what it did before it leaves is not lost."""
    can_stop: bool = Field(default=False, exclude=True)
    """It can be preempted and lose next to nothing: it saves on its own, or when it is asked to
    while it runs, where others can read it. The queue has it, too."""
    needs_container: bool = False
    needs_conda: bool = False
    """Its environment is an environment.yml."""
    serves: bool = Field(default=False, exclude_if=lambda serves: not serves)
    """Its node has to know engines, or shares of several GPUs."""
    engine: EngineKey | None = Field(default=None, exclude=True)
    """Set where its process is an engine. Who plans preemption reads it, as it reads `turn`."""
    loads_within: Duration | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """Of a replica of a service: how long its engine may take to load. It is replaced before its
    node ends, which need not last for `expected_duration`."""
    fills: bool = Field(default=False, exclude_if=lambda fills: not fills)
    """It takes what is free and no more: `FILLS` says why."""
    turn: Instant | None = Field(default=None, exclude=True)
    """Of an engine that has waited for so long that one of its own class is stopped for it, which
    may be in use: since when it waits. Of several the one comes first that has waited longest."""
    turn_at: Instant | None = Field(default=None, exclude=True)
    """Of an engine that is to have its turn: from when on, where no engine serves its model then.
    None where it has it."""
    submitted_at: Instant | None = None
    waits_since: Instant | None = Field(default=None, exclude=True)
    """Since when it would have waited, had it waited all its time in the queue at one stretch;
    since its submission when left out. The queue has it: it is not stored with the rest."""
    attained: Duration = Field(default=timedelta(0), exclude=True)
    """For how long earlier attempts held its GPUs, as far as the next one goes on from that. The
    queue has it, too."""
    start_below: GPUHourPrice | None = Field(default=None, exclude_if=lambda price: price is None)
    """Nothing is bought for it above this price."""
    tenant: str | None = Field(default=None, exclude=True)
    """Whose it is, where that is known. The queue has it, too."""
    path_behind: float = Field(default=0.0, ge=0, le=1)
    """Of a job of a DAG: the longest path of jobs that come after it, as a part of the DAG's."""
    attempt: int = 1
    data: dict[str, GB] = Field(default_factory=dict[str, float])
    """What it reads, by name, with the size where that is known: what nodes fetch by its source
    (`fetched_name`). Its container image too, and a checkpoint that it goes on from."""

    @model_validator(mode="after")
    def _gpus_agree(self) -> Self:
        self.gpu.check(self.gang)
        return self

    def __hash__(self) -> int:
        """Return the hash of all fields; a dict has none, so that of its entries in any order."""
        entries = {**self.__dict__, "data": frozenset(self.data.items())}
        return hash(tuple(entries[name] for name in type(self).model_fields))

    @property
    def types(self) -> tuple[str, ...]:
        """The types of GPU that it may have; any when empty."""
        return (self.gpu_type,) if self.gpu_type else self.gpu_types

    def takes(self, gpu_type: str) -> bool:
        """Return whether it may have GPUs of a type."""
        return not self.types or gpu_type.casefold() in map(str.casefold, self.types)

    @property
    def fetches(self) -> bool:
        """Whether the node has to bring what agents of before protocol 10 cannot."""
        return self.needs_conda or any(name.startswith(_FETCHED) for name in self.data)

    @property
    def gpus_held(self) -> int:
        """The GPUs that it holds when it runs: its own, and the spares of a gang."""
        return self.gpus + (self.gang.spares_of(self.gpus) if self.gang else 0)

    def share_of(self, gpus: int, gpu_power: float = 0.0) -> HostAmounts:
        """Return what it takes of a node that has so many of its GPUs, each of which may draw
        `gpu_power` watts."""
        power = self.gpu._replace(gpus=gpus).power(self.power_per_gpu, gpu_power)
        cpus, ram, storage = self.cpus, self.ram, self.storage_bandwidth
        if gpus != self.gpus:
            cpus, ram, storage = (whole * gpus / self.gpus for whole in (cpus, ram, storage))
        return HostAmounts(cpus, ram, storage, power)

    def at_size(self, gpus: int) -> "JobRequest":
        """Return a malleable job as one that wants exactly so many GPUs; any other as it is.

        Cores, RAM and storage bandwidth go with the GPUs, the duration with its speed on them.
        """
        if self.malleable is None:
            return self
        host = self.share_of(gpus)
        faster = self.malleable.speed(gpus) / self.malleable.speed(self.gpus)
        return self.model_copy(
            update={
                "gpus": gpus, "cpus": host.cpus, "ram": host.ram,
                "storage_bandwidth": host.storage, "malleable": None,
                "expected_duration": min(
                    self.expected_duration / faster, self.max_duration or LONGEST
                ),
                "max_duration": None,
            }
        )  # fmt: skip

    def up_to(self, gpus: int) -> "JobRequest":
        """Return a malleable job as one that is to have at most so many GPUs, one of its sizes;
        any other as it is."""
        sizes = self.malleable
        if sizes is None or gpus >= sizes.target:
            return self
        update = {
            "malleable": sizes.model_copy(update={"desired": gpus}),
            "max_duration": self.max_duration,
        }
        return self.at_size(gpus).model_copy(update=update)

    @property
    def smallest(self) -> "JobRequest":
        """A malleable job as one that wants its fewest GPUs; any other as it is."""
        return self if self.malleable is None else self.at_size(self.malleable.min)

    def may_grow(self, gpus: int) -> bool:
        """Return whether so many GPUs are fewer than a malleable job is to have, or may be when it
        has gone on without a lost node."""
        sizes = self.malleable
        return sizes is not None and (gpus < sizes.target or sizes.in_place)

    @classmethod
    def of(
        cls,
        job_id: str,
        spec: JobSpec,
        submitted_at: Instant,
        attempt: int,
        path_behind: float = 0.0,
    ) -> "JobRequest":
        asked = cls._as_said(job_id, spec, submitted_at, attempt, path_behind)
        if spec.malleable is None:
            return asked
        at_target = asked.at_size(spec.malleable.target)
        return at_target.model_copy(
            update={"malleable": spec.malleable, "max_duration": spec.max_duration}
        )

    @property
    def runs_engine(self) -> bool:
        return self.loads_within is not None

    @classmethod
    def _as_said(
        cls, job_id: str, spec: JobSpec, submitted_at: Instant, attempt: int, path_behind: float
    ) -> "JobRequest":
        return cls(
            **{name: getattr(spec, name) for name in _SAID},
            id=job_id, tier=spec.tier, priority=spec.priority,
            expected_duration=spec.likely_duration,
            duration_known=spec.expected_duration is not None, can_stop=spec.can_stop,
            needs_container=spec.image is not None,
            needs_conda=spec.environment is not None and spec.environment.conda is not None,
            serves=spec.engine is not None or (spec.gpus > 1 and not spec.gpu.whole),
            engine=_key_of(spec), loads_within=_loads_within(spec),
            # A job that begins later has not waited before.
            submitted_at=spec.begins_at(submitted_at) or submitted_at,
            tenant=spec.tenant, start_below=spec.start_below, path_behind=path_behind,
            attempt=attempt, grace=spec.grace,
            data={**_data_of(spec), **_image_of(spec), **_environment_of(spec)},
            saves=spec.checkpoint is not None,
        )  # fmt: skip


def _key_of(spec: JobSpec) -> EngineKey | None:
    if spec.engine is None:
        return None
    served = spec.engine
    return EngineKey.of(
        served.model.name, served.runtime.name, served.service,
        served.model.source, served.model.adapters,
    )  # fmt: skip


def _loads_within(spec: JobSpec) -> timedelta | None:
    return None if spec.engine is None else spec.engine.model.start_limit


class RecentJobs(Frozen):
    """Jobs of one shape that a pool has placed lately: what to expect of the next ones."""

    request: JobRequest
    """The shape; what else it says is of one of them."""
    count: int = Field(default=1, ge=1)
    ended: int = Field(default=0, ge=0)
    """How many of them have ended."""


_FETCHED = "data "


def fetched_name(source: str, tenant: str) -> str:
    """Return the name, among `JobRequest.data`, of a data set that nodes fetch: whoever names the
    same source means the same, by whichever name. No data of a job has a space in its name."""
    return f"{_FETCHED}{source} of {tenant}"


def checkpoint_name(job_id: str) -> str:
    """Return the name, among `JobRequest.data`, of the checkpoint that a job goes on from: a node
    that it left has that."""
    return f"checkpoint of {job_id}"


def _data_of(spec: JobSpec) -> dict[str, float]:
    """Return what a job reads, with its GB; 0 where that is not known."""
    return {
        fetched_name(each.source, spec.tenant) if each.source else name: each.size
        for name, each in spec.data.items()
    }


def _image_of(spec: JobSpec) -> dict[str, float]:
    """Return the job's container image as data: no data of a job has a space in its name."""
    return {f"image {spec.image}": IMAGE_SIZE} if spec.image else {}


def _environment_of(spec: JobSpec) -> dict[str, float]:
    """Return the job's Python environment as data, where its submit told which that is."""
    asked = spec.environment
    if asked is None or asked.digest is None:
        return {}
    return {name_of_environment(asked.digest): ENVIRONMENT_SIZE}
