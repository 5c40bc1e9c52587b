"""A change of the size of a malleable job: what is asked, what comes of it, what is shown."""

from typing import ClassVar

from pydantic import Field

from longshore.models.base import Input, Instant, Name, Reason, Wire
from longshore.models.messages import TravellingSpec
from longshore.models.placement import PlacementKey, Rank
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
    in_place: int | None = None
    """The size to which it goes, smaller or larger, without a stop of what stays."""
    reason: Reason = ""
    """In words, with what a stop costs."""


class SizeNotice(Wire):
    """Input of a node's activity `resize_process`: a job has another size, in the same attempt."""

    key: PlacementKey
    gpus_before: int
    gpus: int
    ranks: tuple[Rank, ...]
    """Those that stay, with the numbers that they have had, and those that join."""
    reason: Reason = ""


class RoomRequest(Wire):
    """Input of the activity `room_in_place`: would another job start, if these ranks left?"""

    key: PlacementKey
    pool: Name
    leaving: tuple[int, ...]
    for_job: str


def nobody_waits(for_job: str) -> str:
    """Return what `room_in_place` says where the job that was to get the GPUs waits no more."""
    return f"{for_job} waits no more"


class LeaveRequest(Wire):
    """Input of the activity `leave_ranks`: their leases end, and the attempt goes on."""

    key: PlacementKey
    pool: Name
    ranks: tuple[int, ...]
    message: Reason


class JoinRequest(Wire):
    """Input of the activity `join_ranks`: an attempt that runs is to have this size, with further
    ranks on top of those that it has."""

    key: PlacementKey
    spec: TravellingSpec
    submitted_at: Instant
    path_behind: float = 0.0
    """As in `JobInput`."""
    gpus: int
    first_rank: int
    """The number of the first that joins: the attempt has had all below it."""
    by_user: bool
    """Its user asked for the size. Else nobody who waits may be able to use the GPUs."""
    message: Reason


class JoinReply(Wire):
    """The ranks that joined, with their leases; or why none did."""

    ranks: tuple[Rank, ...] = ()
    """All ranks of the attempt by number: those that hold GPUs, and those that joined."""
    reason: Reason = ""
    """Why none joined; empty else."""


class SizeChange(Wire):
    """Two attempts of a job one after the other with different numbers of GPUs, or one that went
    on with another number."""

    attempt: int
    """The later one."""
    at: Instant
    """When it was placed; of a change in place, when that was done."""
    gpus_before: int
    gpus: int
    paused: Duration
    """For how long the job had no GPUs in between."""
    in_place: bool = False
    """What stayed of the attempt was not stopped for it: both sizes are the same attempt's."""
    end_reason: str
    """Why the attempt before ended, such as resized or preempted; of a change in place, why what
    left it did."""
    reason: str
    """The same in words, with what it cost where somebody asked for it."""
