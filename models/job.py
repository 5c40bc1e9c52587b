"""A job as its user describes it."""

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from longshore.models.array import ArraySpec
from longshore.models.base import (
    LONGEST_TEXT,
    Frozen,
    Name,
    ShortText,
    Text,
)
from longshore.models.bounds import TAKEN, Most, is_given, is_taken, json_bytes, largest
from longshore.models.code import CodeField
from longshore.models.counts import Count
from longshore.models.data import Data, DataSet
from longshore.models.environment import EnvironmentField
from longshore.models.funding import FundingTerms
from longshore.models.gpu_hour_price import GPUHourPrice
from longshore.models.job_mistakes import leads_out, mistakes_of
from longshore.models.labels import JobLabels
from longshore.models.legacy_documents import clamped
from longshore.models.mistakes import refuse
from longshore.models.moment import Moment, at, why_in_vain
from longshore.models.output_pattern import can_match
from longshore.models.resource_request import ResourceRequest
from longshore.models.retry import RetryPolicy
from longshore.models.serving import EngineSpec
from longshore.models.signals import SignalName
from longshore.models.units import Duration, limit_leaves_time
from longshore.models.visible import shown

ASSUMED_DURATION = timedelta(hours=1)
"""How long a job is taken to run that does not say it."""


class Tier(StrEnum):
    """When a job starts: at once, or at the best price."""

    FAST = "FAST"
    FLEX = "FLEX"


class CheckpointContract(Frozen):
    """What the job does when it is asked to save, so that a later attempt goes on from there."""

    folder: ShortText = Field(min_length=1)
    """Where the job saves, absolute or relative to its working folder. With a `workdir`, or an
    absolute folder, each job gets a folder of its own below it, unless `store` is false."""
    signal: SignalName = "SIGTERM"
    """What asks it to save and stop."""
    grace: Duration = timedelta(seconds=30)
    """How long saving may take before the process is killed."""
    interval: Duration | None = None
    """How often the job saves by itself, where it does."""
    save_signal: SignalName | None = None
    """What asks it to save and go on. Every process of the job gets it: one without a handler
    may die of it."""
    save_file: bool = False
    """True: the job saves and goes on when it finds the file LONGSHORE_SAVE_REQUEST."""
    store: bool = True
    """Publish its checkpoints in the checkpoint store, and restore them on another node. False
    where the folder is on storage that all nodes see."""
    keep: Count = Field(default=2, ge=1, le=100)
    """Whole checkpoints that stay in the store; older ones are removed."""

    @property
    def can_be_asked(self) -> bool:
        """Whether the job can be asked to save and go on."""
        return self.save_signal is not None or self.save_file

    @property
    def while_running(self) -> bool:
        """Whether saves come of the job before it is stopped."""
        return self.can_be_asked or self.interval is not None


EnvName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=LONGEST_TEXT)
]
EnvValue = Annotated[
    Text, WithJsonSchema({"type": ["string", "number"], "maxLength": LONGEST_TEXT})
]
_MOST_ENTRIES = Most(10_000, "put what is long into a file")
Arguments = Annotated[tuple[Text, ...], Field(fail_fast=True), _MOST_ENTRIES]
Environment = Annotated[dict[EnvName, EnvValue], _MOST_ENTRIES]


_FILES_OF_A_NODE = (
    "containers-storage|dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball"
)
"""Transports of podman that lead to files of its node, and to no registry."""
_IMAGE = re.compile(
    rf"(docker://)?(?!({_FILES_OF_A_NODE}):)"
    r"((\w[\w.-]*|\[[0-9a-f:]+\])(:\d+)?/)?\w[\w.-]*(/\w[\w.-]*)*"
    r"(:\w[\w.-]*)?(@\w[\w+.-]*:[0-9a-f]+)?",
    re.ASCII | re.IGNORECASE,
)
MOST_BYTES = 1_000_000
"""Of a spec as JSON. Temporal takes 2 MiB at once: the other half is for what goes with the spec,
such as the nodes of a gang (about 200 bytes each) and the history of a job's attempts."""


def _stays_inside(pattern: str) -> str:
    if leads_out(pattern.removeprefix("!")):
        raise ValueError(f"{shown(pattern)} leads out of the job's folder: name what is below it")
    return pattern


def _can_match(pattern: str, info: ValidationInfo) -> str:
    # Asked of what is given now alone: jobs that were taken once go on without these files.
    if is_given(info) and not can_match(pattern):
        raise ValueError(
            f"{shown(pattern)} matches no file: write it as in a .gitignore, such as results or "
            '"*.pt"; "*" is all of the job\'s folder'
        )
    return pattern


OutputPattern = Annotated[
    ShortText,
    AfterValidator(_stays_inside),
    AfterValidator(_can_match),
    StringConstraints(min_length=1),
]
Outputs = Annotated[tuple[OutputPattern, ...], Field(fail_fast=True), Most(100)]


class JobIdentity(Frozen):
    """What a job is called, whose it is, and where it waits."""

    name: Name
    """What people call it; need not be unique."""
    tenant: Name = "default"
    """Who it is for."""
    pool: Name = "default"
    """The queue that it waits in, and the nodes that it may run on."""
    tier: Tier = Tier.FAST
    """FAST starts now and buys what is missing; FLEX waits for the best price."""
    priority: Count = Field(default=5, ge=0, le=10)
    """Priority class, 0 to 10; higher goes first."""
    labels: JobLabels = Field(default_factory=dict[str, str], exclude_if=lambda labels: not labels)
    """What people select jobs by, such as {sweep: 7, team: vision}: `longshore jobs --label
    sweep=7`. By Kubernetes' rules for names and values; they stay as submitted."""


class JobSpec(ResourceRequest, JobIdentity):
    """A job file: what to run, what it needs, and how patient it is.

    As JSON, as it travels, with the defaults of what it does not say, it has at most 1,000,000
    bytes.
    """

    array: ArraySpec | None = Field(default=None, exclude_if=lambda array: array is None)
    """Runs the command once for each index or row: 0-99, 0-99%8 for at most 8 at a time, or a
    table such as params.csv. Each element gets the GPUs above. See docs/arrays.md."""
    data: Data = Field(default_factory=dict[str, DataSet])
    """What it reads, by name: `{from: s3://bucket/imagenet/, size: 150GB}`, which nodes fetch
    while the job waits; or a size alone, or a list of names, where the job sees to it itself. A
    node that has it is preferred."""

    command: Text | Arguments | None = None
    """What to run: a list is run as it is, a text by `sh -c`."""
    engine: EngineSpec | None = Field(default=None, exclude_if=lambda engine: engine is None)
    """The model that it serves, in place of a command. `longshore serve` gives it to the jobs of a
    service. See docs/serving.md."""
    image: ShortText | None = Field(default=None, min_length=1)
    """A container image to run the command in (its own command when there is none). A node that
    has it is preferred, as for `data`."""
    env: Environment = Field(default_factory=dict)
    """Environment of the process, beside CUDA_VISIBLE_DEVICES and LONGSHORE_*."""
    code: CodeField | None = Field(default=None, exclude_if=lambda code: code is None)
    """What it finds in its folder: a folder, seen from the job file, or `{git: URL, ref: v1.2}`.
    `longshore submit` stores it, and every attempt gets the same. See docs/code.md."""
    environment: EnvironmentField | None = Field(
        default=None, exclude_if=lambda environment: environment is None
    )
    """Its packages: requirements.txt, uv.lock, environment.yml, {script: setup.sh}, each in the
    code of the job, a list such as [numpy==2.1, torch], or current: those of the Python that
    submits. Built once on a node. See docs/environments.md."""
    workdir: ShortText | None = None
    """Working folder on the node, or with `code` below it; a private one when left out."""
    outputs: Outputs = Field(default=(), exclude_if=lambda outputs: not outputs)
    """What of its folder is stored after each attempt, also one that failed: names and patterns as
    of .gitignore, such as `[results, "*.pt"]`. `longshore pull JOB` brings it."""

    checkpoint: CheckpointContract | None = None
    """How it saves and goes on; without one a stopped job starts from the beginning."""
    retry: RetryPolicy = RetryPolicy()
    """Retries by failure class."""
    preemptible: bool = True
    """Whether a job of a higher class may take its GPUs. It leaves a node that ends all the
    same."""
    funding: FundingTerms | None = Field(default=None, exclude_if=lambda terms: terms is None)
    """Who may pay for it beside its tenant and that tenant's relatives, and what it does where
    nobody would: `{allow_borrow: true, sponsors: [audio], unfunded: wait}`. It matters where its
    tenant has a budget. See docs/funding.md."""
    begin: Moment | None = Field(default=None, exclude_if=lambda begin: begin is None)
    """It is not started before, and nothing is kept, brought or bought for it: a time such as
    2026-11-20T08:00:00Z, or a duration such as 2h, which counts from the submit. Its wait counts
    from then on. One that is past is as none. See docs/queue.md."""
    deadline: Moment | None = Field(default=None, exclude_if=lambda deadline: deadline is None)
    """By when it should have ended: a time, or a duration after the submit, as `begin`.
    The job is told to be on time, at risk or late, and what meeting it costs. It goes on after it:
    `max_duration` is what ends a job. See docs/deadlines.md."""
    start_below: GPUHourPrice | None = Field(default=None, exclude_if=lambda price: price is None)
    """It is not started before the price of its pool (`longshore pool set POOL --price`) is below
    this, nothing is kept, brought or bought for it, and its age stands still; nothing is bought
    for it above this. Once started it stays. See docs/price-series.md."""
    queue_timeout: Duration | None = None
    """Give up when not placed within this time, counted from `begin`; wait without end when left
    out. A job that has been placed once waits without end for its next attempts."""
    stop_grace: Duration = timedelta(seconds=10)
    """Time between SIGTERM and SIGKILL when it is stopped."""

    @field_validator("command")
    @classmethod
    def _command_says_something(
        cls, command: str | tuple[str, ...] | None
    ) -> str | tuple[str, ...] | None:
        if command is not None and not (command.strip() if isinstance(command, str) else command):
            raise ValueError("is empty: give a text or a list, such as [python, train.py]")
        return command

    @classmethod
    def as_known(cls, stored: object) -> Self:
        """Return a spec that was taken already, by whichever version.

        It is without what only a newer one understands, and its amounts are within the bounds of
        this one; it may have more text and entries. Raises ValidationError.
        """
        try:
            return cls.model_validate(stored, extra="ignore", context=TAKEN)
        except ValidationError as error:
            within = clamped(stored, error)
            return cls.model_validate(within, extra="ignore", context=TAKEN)

    @field_validator("image")
    @classmethod
    def _image_is_a_name(cls, image: str | None) -> str | None:
        if image is not None and image.startswith("-"):
            raise ValueError("begins with a dash: give the name of an image")
        if image is not None and not _IMAGE.fullmatch(image):
            raise ValueError("is no name of an image, such as ghcr.io/example/train:1.4")
        return image

    _limit_leaves_time = field_validator("max_duration")(limit_leaves_time)

    @field_validator("env", mode="before")
    @classmethod
    def _env_values_are_text(cls, env: object) -> object:
        if not isinstance(env, dict):
            return env
        return {  # numbers are natural in YAML and unambiguous as text
            key: str(value)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else value
            for key, value in env.items()  # pyright: ignore[reportUnknownVariableType]
        }

    def model_post_init(self, context: Any, /) -> None:
        """Raise ValueError where it is too large; asked once, as it is made, and not of a spec in
        a message."""
        if context is not TAKEN and (why := self.too_large):
            raise ValueError(why)

    @model_validator(mode="after")
    def _fields_agree(self, info: ValidationInfo) -> Self:
        gpus = self.gpus if "gpus" in self.model_fields_set else None
        if self.malleable is not None and gpus is None:
            # It is being made: from here on it is frozen.
            object.__setattr__(self, "gpus", self.malleable.target)
            self.model_fields_set.add("gpus")
        # pyright knows this file by two names: in its folder, and beneath the package.
        found = mistakes_of(self, gpus, taken=is_taken(info))  # pyright: ignore[reportArgumentType]
        refuse(tuple(found))
        return self

    @property
    def runs_engine(self) -> bool:
        return self.engine is not None

    @property
    def too_large(self) -> str:
        """Why it has too many bytes, with its largest fields; empty where it has not."""
        if self.engine is not None and (why := self.engine.too_large):
            return why
        # All else has bounds of its own, far below the other half.
        if (
            json_bytes((self.command, self.env, self.data, self.conformance, self.array))
            < MOST_BYTES // 2
        ):
            return ""
        written = self.model_dump(mode="json")
        found = json_bytes(written)
        if found <= MOST_BYTES:
            return ""
        return (
            f"the job has {found:,} bytes as JSON ({largest(written)}); {MOST_BYTES:,} is the "
            "most: put what is long into a file"
        )

    @property
    def argv(self) -> tuple[str, ...]:
        """The command as an argument list; empty when only an image was given."""
        if self.command is None:
            return ()
        return ("sh", "-c", self.command) if isinstance(self.command, str) else self.command

    def begins_at(self, submitted_at: datetime) -> datetime | None:
        """Return from when on it may be placed; None where that is at once."""
        found = None if self.begin is None else at(self.begin, submitted_at)
        return found if found is not None and found > submitted_at else None

    def deadline_at(self, submitted_at: datetime) -> datetime | None:
        """Return by when it should have ended."""
        return None if self.deadline is None else at(self.deadline, submitted_at)

    def why_in_vain(self, submitted_at: datetime | None = None) -> str:
        """Return why its deadline cannot be met; empty where it can, and for one without. Without
        `submitted_at` as far as its file alone says."""
        if self.deadline is None:
            return ""
        takes = None if self.expected_duration is None else self.likely_duration
        return why_in_vain(self.deadline, self.begin, takes, submitted_at)

    @property
    def likely_duration(self) -> timedelta:
        """How long an attempt is taken to run: no longer than it may."""
        expected = ASSUMED_DURATION if self.expected_duration is None else self.expected_duration
        return expected if self.max_duration is None else min(expected, self.max_duration)

    @property
    def can_stop(self) -> bool:
        """Whether it can be preempted for another of its class: saves come of it while it runs,
        and are stored."""
        saves = self.checkpoint
        return self.preemptible and saves is not None and saves.store and saves.while_running

    @property
    def stop_signal(self) -> str:
        return self.checkpoint.signal if self.checkpoint else "SIGTERM"

    @property
    def grace(self) -> timedelta:
        """Time to save or clean up between the stop signal and SIGKILL."""
        return self.checkpoint.grace if self.checkpoint else self.stop_grace
