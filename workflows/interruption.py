"""An attempt that is interrupted: preempted, moved, or failed over to a spare."""

from dataclasses import dataclass

from longshore.models.messages import InterruptRequest, LeaseEnd
from longshore.models.node_messages import ProcessReport
from longshore.models.placement import Placement


@dataclass(frozen=True)
class Interruption:
    """What an attempt was told, and how its leases are to end by it."""

    end: LeaseEnd
    """PREEMPTED, MOVED or RESIZED."""
    by: InterruptRequest

    @property
    def reason(self) -> str:
        if self.by.reason:
            return self.by.reason
        return f"preempted for {self.by.for_job}" if self.by.for_job else self.end.value

    def before_start(self) -> ProcessReport:
        """Return the report of an attempt that heard of it before its placement."""
        return ProcessReport(
            message=f"stopped before it started ({self.reason})", stopped_for=self.reason
        )


@dataclass
class Swaps:
    """Spares that are taking the places of nodes of a gang, or a next attempt that is queued as
    the leases of this one end: what is known of that attempt."""

    placement: Placement | None = None
    """None where no spare could, or before it is known."""
    queued: bool = False
    """The next attempt is put into the queue, or is there: a cycle may place it at any time."""
    interruption: Interruption | None = None
    """It was interrupted before it began."""
