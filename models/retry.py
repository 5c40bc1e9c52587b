"""Why an attempt failed, and when it is tried again."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from longshore.models.base import Frozen
from longshore.models.counts import DIGITS
from longshore.models.units import Duration


class FailureClass(StrEnum):
    """Why an attempt ended without success. Classified before it is retried."""

    USER = "user"
    """The process ended by itself with another exit code than 0."""
    START = "start"
    """The process could not be started: no such command, folder or image. When that has come on
    two different nodes, it lies with the job: no third one is tried."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed the process for memory: it ended by SIGKILL, nobody had asked it to stop,
    and the kernel has killed for memory since it began. Memory of a GPU is not meant."""
    NODE = "node"
    """The node or its agent was lost, or the node's time ended. Also a node that is silent: what
    happened there nobody knows."""
    NETWORK = "network"
    """The node was cut off from the server, and said so when it was back: it had ended the process
    itself."""
    PREEMPTED = "preempted"
    """Longshore took the GPUs for another job."""
    QUEUE_TIMEOUT = "queue_timeout"
    """No placement came within the job's queue timeout."""
    UNSATISFIABLE = "unsatisfiable"
    """No node that can ever come could hold the job."""
    CANCELLED = "cancelled"
    """Somebody cancelled the job."""
    TIME_LIMIT = "time_limit"
    """It ran for as long as its `max_duration` allows, and was ended."""


class RetryRule(Frozen):
    """How often, and after what wait, an attempt that failed in one class is tried again."""

    max_retries: Annotated[int, Field(ge=0, le=1_000_000), DIGITS] | None = 0
    """Retries of this class; null for no limit."""
    backoff: Duration = timedelta(0)
    """Wait before the first retry."""
    multiplier: float = Field(default=2.0, ge=1.0, le=100.0)
    """Each further wait is this many times the one before."""
    max_backoff: Duration = timedelta(minutes=10)
    """No wait is longer than this."""

    def wait_before(self, retry: int) -> timedelta:
        """Return the wait before retry number `retry` (from 1)."""
        factor = min(self.multiplier ** min(retry - 1, 64), 1e9)
        return min(timedelta(seconds=self.backoff.total_seconds() * factor), self.max_backoff)


class RetryPolicy(Frozen):
    """A retry rule for each failure class that a retry can help."""

    user: RetryRule = RetryRule()
    start: RetryRule = RetryRule()
    out_of_memory: RetryRule = RetryRule()
    node: RetryRule = RetryRule(max_retries=10, backoff=timedelta(seconds=1))
    network: RetryRule | None = None
    """A node that was cut off from the server; the rule of `node` when left out."""
    preempted: RetryRule = RetryRule(max_retries=None)
    """By other jobs. A job that leaves a node for the node's sake uses up no retry."""
    time_limit: RetryRule | None = Field(default=None, exclude_if=lambda rule: rule is None)
    """An attempt that ran for as long as `max_duration` allows; none when left out. Worth it for
    a job that saves: another attempt goes on from there, with a time limit of its own."""

    def rule_for(self, failure: FailureClass) -> RetryRule:
        """Return the rule for a class; classes that no retry can help have none left."""
        if failure is FailureClass.NETWORK and self.network is None:
            return self.node
        return getattr(self, failure.value, None) or RetryRule()
