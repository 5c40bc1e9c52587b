"""Checkpoints that survive their machine: what is stored of one, and what is known of it."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import AfterValidator, Field

from longshore.models.base import Answer, Instant, Reason, Wire
from longshore.models.placement import PlacementKey
from longshore.models.units import Duration
from longshore.models.visible import shown

_LINE = re.compile(r"saved(?:, step (\d{1,18}))?(?:, took (\d{1,9}(?:\.\d{1,9})?)s)?", re.ASCII)
_NAME = re.compile(r"(\d{6})-(\d{6})-s(\d+|x)-(\d{4})of(\d{4})\.manifest")


def _within(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{shown(path)} leads out of the folder of checkpoints")
    return path


PathWithin = Annotated[str, AfterValidator(_within)]
"""A relative path that stays in the folder."""


class SavedLine(Wire):
    """What a job says with one line of the file LONGSHORE_SAVED."""

    step: int | None = None
    took: timedelta | None = None

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Return what ``saved``, ``saved, step 12`` or ``saved, step 12, took 3.5s`` says.

        None for anything else.
        """
        match = _LINE.fullmatch(line.strip())
        if match is None:
            return None
        step, took = match.groups()
        return cls(
            step=None if step is None else int(step),
            took=None if took is None else timedelta(seconds=float(took)),
        )


class ManifestName(Wire):
    """What the name of a stored manifest says: enough to know which checkpoints are whole."""

    attempt: int = Field(ge=0)
    number: int = Field(ge=1)
    """Of the checkpoints that this rank saved in the attempt, from 1."""
    step: int | None = None
    rank: int = Field(default=0, ge=0)
    ranks: int = Field(default=1, ge=1)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        attempt, number, step, rank, ranks = match.groups()
        return cls(
            attempt=int(attempt), number=int(number), step=None if step == "x" else int(step),
            rank=int(rank), ranks=int(ranks),
        )  # fmt: skip

    @property
    def order(self) -> tuple[int, int]:
        return self.attempt, self.number

    def __str__(self) -> str:
        return f"{self.stem}.manifest"

    @property
    def stem(self) -> str:
        """What the names of its manifest and of the folder of its files begin with."""
        step = "x" if self.step is None else self.step
        return f"{self.attempt:06}-{self.number:06}-s{step}-{self.rank:04}of{self.ranks:04}"


class StoredFile(Wire):
    """One file of a checkpoint, or a link to another one."""

    path: PathWithin
    """Below the folder, with slashes."""
    size: int = Field(default=0, ge=0)
    """Bytes."""
    sha256: str = ""
    mode: int = 0o644
    modified_ns: int = 0
    link: str | None = None
    """What it points to, where it is a symbolic link."""


class Manifest(Wire):
    """One checkpoint of one rank. Stored last: without it nothing of the checkpoint counts."""

    job_id: str
    attempt: int
    rank: int = 0
    ranks: int = 1
    number: int
    step: int | None = None
    prefix: str
    """Where its files are: file n of `files` is the object PREFIX/n."""
    files: tuple[StoredFile, ...]
    bytes: int
    write_seconds: float | None = None
    """How long the job took to save, where that is known."""
    saved_at: Instant
    published_at: Instant
    node_id: str
    simulated: bool = False
    """True where it was saved on simulated GPUs."""
    told: bool = False
    """Whether the job said that it was whole; else its end in time said so. Before it was kept
    here, only a step tells it."""

    @property
    def tells(self) -> bool:
        """Whether it is of a job that says when it has saved."""
        return self.told or self.step is not None

    @property
    def name(self) -> ManifestName:
        return ManifestName(
            attempt=self.attempt, number=self.number, step=self.step, rank=self.rank,
            ranks=self.ranks,
        )  # fmt: skip


class CheckpointInfo(Answer):
    """What is known of a checkpoint of a job."""

    job_id: str
    attempt: int
    number: int
    """Of the attempt's checkpoints, from 1."""
    step: int | None = None
    ranks: int = 1
    bytes: int
    """Of all ranks that are known here: of all where it is whole."""
    write_seconds: float | None = None
    """How long the job took to save; of the slowest rank."""
    saved_at: Instant
    published: bool = False
    """Whether it is in the checkpoint store."""
    whole: bool = False
    """Whether it is there from every rank: only then can a job go on from it."""
    simulated: bool = False

    @classmethod
    def unreadable(cls, why: str) -> Self:
        """Return what is a checkpoint of no job."""
        never = datetime.fromtimestamp(0, UTC)
        return cls(job_id="", attempt=0, number=0, bytes=0, saved_at=never)

    @property
    def is_known(self) -> bool:
        """Whether it could be read."""
        return bool(self.job_id)

    @property
    def order(self) -> tuple[int, int]:
        return self.attempt, self.number


def info_of(manifests: tuple[Manifest, ...], *, published: bool = True) -> CheckpointInfo:
    """Return what is known of a checkpoint from the manifests of its ranks, or of some of them."""
    first = manifests[0]
    times = [m.write_seconds for m in manifests if m.write_seconds is not None]
    return CheckpointInfo(
        job_id=first.job_id, attempt=first.attempt, number=first.number, step=first.step,
        ranks=first.ranks, bytes=sum(manifest.bytes for manifest in manifests),
        write_seconds=max(times, default=None),
        saved_at=max(manifest.saved_at for manifest in manifests), published=published,
        whole=published and len(manifests) == first.ranks,
        simulated=any(manifest.simulated for manifest in manifests),
    )  # fmt: skip


class LocalCheckpoint(Wire):
    """Which checkpoint a folder on a node holds, and which of its files other ranks wrote."""

    folder: str
    attempt: int
    number: int
    step: int | None = None
    rank: int = 0
    ranks: int = 1
    foreign: dict[str, tuple[int, int, int]] = Field(
        default_factory=dict[str, tuple[int, int, int]]
    )
    """By path: the rank that wrote it, bytes and time of change in ns when it was restored."""
    ran: int = 0
    """The newest attempt that was given this folder and what is in it."""
    told: bool = False
    """As of a manifest."""
    saved_at: Instant | None = None
    fingerprint: str = ""
    """Of its files when they were kept: whether what the folder holds is still that checkpoint."""

    @property
    def tells(self) -> bool:
        """Whether it is of a job that says when it has saved."""
        return self.told or self.step is not None

    @property
    def order(self) -> tuple[int, int]:
        return self.attempt, self.number


class SaveRequest(Wire):
    """Input of the activity `save_checkpoint`: save now, and go on."""

    key: PlacementKey
    within: Duration = timedelta(minutes=2)
    """How long saving, and publishing after it, may take."""
    reason: Reason = ""


class CheckpointsRequest(Wire):
    """Input of the activity `observe_checkpoints`."""

    pool: str


class CheckpointsSeen(Wire):
    """What the checkpoint store said of the running jobs of a pool."""

    newest: tuple[CheckpointInfo, ...] = ()
    """The newest whole checkpoint of each job that has one, by job id."""
    away_since: Instant | None = None
    """Since when this worker cannot read the store; none while it can."""
    reason: str = ""
    """Why it cannot."""
