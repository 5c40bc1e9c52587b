"""A change of the size of a malleable job: what is asked, what comes of it, what is shown."""

from typing import ClassVar

from pydantic import Field

from longshore.models.base import Input, Instant, Reason, Wire
from longshore.models.messages import TravellingSpec
from longshore.models.placement import PlacementKey
from longshore.models.units import Duration


class Resize(Input):
    """Input of the update `resize` of a job: the size that it is to have."""

    instead: ClassVar[str] = 'give an input: {"gpus": 8}'
    gpus: int = Field(ge=1)
    reason: Reason = ""
    from_start: bool = False
    """Also where it runs and has no checkpoint: it starts from the beginning."""


class ResizeRequest(Wire):
    """Input of the activity `resize`."""

    key: PlacementKey
    """The attempt that is queued or runs."""
    spec: TravellingSpec
    """With the new desired size."""
    submitted_at: Instant
    path_behind: float = 0.0
    """As in `JobInput`."""
    reason: Reason = ""


class ResizeReply(Wire):
    """What comes of a new desired size."""

    desired: int
    gpus: int | None = None
    """What the job has now; None where it does not run."""
    restarts: int | None = None
    """The size with which it starts again, where it is stopped for that now."""
    reason: Reason = ""
    """In words, with what a stop costs."""


class SizeChange(Wire):
    """Two attempts of a job one after the other with different numbers of GPUs."""

    attempt: int
    """The later one."""
    at: Instant
    """When it was placed."""
    gpus_before: int
    gpus: int
    paused: Duration
    """For how long the job had no GPUs in between."""
    end_reason: str
    """Why the attempt before ended, such as resized or preempted."""
    reason: str
    """The same in words, with what it cost where somebody asked for it."""
