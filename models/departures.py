"""Jobs that are to leave a node: why, by when, and what is decided for each of them."""

import errno
import os
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from longshore.models.base import Frozen, Input, Instant, Name, Reason, Wire
from longshore.models.margins import Margins as Margins
from longshore.models.placement import PlacementKey

DISK_REFUSES = "the work folder of its agent cannot be written"
"""Why an agent has its node take no more jobs; the error follows."""
CORDONED_BY_HAND, DRAINED_BY_HAND = "cordoned by hand", "drained by hand"
"""Why a node takes no more jobs, where nobody gave a reason."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def disk_refuses(code: int) -> str:
    """Return why an agent has its node take no more jobs, from the error of its disk."""
    return f"{DISK_REFUSES}: {os.strerror(code)}"


def is_full(why: str) -> bool:
    """Return whether a node takes no jobs because the disk of its agent was full."""
    return why in map(disk_refuses, FULL_DISK)


def mend_of_disk(why: str, node_id: str, where: str) -> str:
    """Return what to do where the disk of an agent refuses, which is on the machine `where`: it is
    not enough to let its node take jobs again."""
    if is_full(why):
        return (
            f"make room on {where} (docs/operations.md, Disk space): its agent lifts the cordon "
            "once that lasts"
        )
    return f"mend the disk of {where}, then run `longshore uncordon {node_id}`"


class Cause(StrEnum):
    """Why the jobs of a node are to leave it."""

    DRAIN = "drain"
    """Somebody wants the node empty; it goes on."""
    EXPIRY = "expiry"
    """Its time ends."""
    NOTICE = "notice"
    """It is about to be taken away."""


class Leaving(Wire):
    """The jobs of a node are to leave it."""

    cause: Cause
    reason: Reason
    by: Instant | None = None
    """When nothing may run there any more. Without it those leave that can save, at once."""
    at_once: bool = False
    """Not only by then."""

    @property
    def hard(self) -> bool:
        """Whether the node is no more afterwards."""
        return self.cause is not Cause.DRAIN and self.by is not None


class Occupant(Frozen):
    """A job that runs on a node."""

    key: PlacementKey
    grace: timedelta
    """What it gets to save or clean up."""
    saves: bool
    """It has checkpoints."""
    expected_end: Instant
    spare: bool = False
    """Only a spare of it is there: nothing runs."""
    replica: bool = False
    """It is a replica of a service: another may be begun in its place before it leaves."""


class Departure(Wire):
    """A job that leaves now."""

    key: PlacementKey
    reason: Reason
    spare: bool = False
    """Only a spare of it is there: that is given up, and the job goes on."""


class DeparturePlan(Wire):
    """What is to be done on a node now, and when to look again."""

    cordon: str = ""
    """Why it takes no new job; empty where it may."""
    departures: tuple[Departure, ...] = ()
    overdue: tuple[PlacementKey, ...] = ()
    """Jobs that are still there, and are killed before the node ends."""
    next_look: Instant | None = None
    """None when nothing is left to do."""
    expires_at: Instant | None = None
    """When the node ends, as the capacity database knows it."""


class DepartureRequest(Wire):
    """Input of the activity `see_off`."""

    node_id: Name
    epoch: int
    leavings: tuple[Leaving, ...]
    """Beside the end of the node's time, which the capacity database knows."""


class NodeDrain(Input):
    """Update `drain`: no new job; with `move`, those that run there leave."""

    instead: ClassVar[str] = 'give an input: {"reason": "WHY", "move": true}, or {}'
    reason: Reason = ""
    move: bool = False
    """False for what older callers mean: a cordon."""
    by: Instant | None = None
    at_once: bool = False


class ExpiryChange(Input):
    """Update `expiry_changed`: the node ends at another time, or never."""

    instead: ClassVar[str] = (
        'give an input: {"expires_at": "2026-11-20T12:00:00Z"}, or with null for never'
    )
    expires_at: Instant | None
    reason: Reason = ""


class ExpiryRow(Wire):
    """Input of the activity `set_expiry`."""

    node_id: Name
    epoch: int
    expires_at: Instant | None


class SpotNotice(Wire):
    """Signal `spot_notice`: the machine is about to be taken away."""

    at: Instant | None = None
    """When; without, it may be at any moment."""
    reason: Reason = ""
