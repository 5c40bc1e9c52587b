"""The elements of an array: where each is, and what travels of them to a node and back."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from longshore.models.base import Instant, Reason, Wire, known_or
from longshore.models.retry import FailureClass

LONGEST_ERROR = 300
"""Characters of an error line that are kept."""


class ElementState(StrEnum):
    """Where an element of an array is in its life."""

    BLOCKED = "BLOCKED"
    """It waits for the element with its index of an array before its own."""
    WAITING = "WAITING"
    """For a slot, or for the wait before a retry."""
    RUNNING = "RUNNING"
    """In the hands of a slot: it runs, or is one of the next in its batch."""
    SUCCEEDED = "SUCCEEDED"
    """Its process ended with exit code 0."""
    FAILED = "FAILED"
    """An attempt failed and no retry was left."""
    CANCELLED = "CANCELLED"
    """Somebody cancelled it, or the array."""
    SKIPPED = "SKIPPED"
    """What it waited for can succeed no more."""

    @property
    def ended(self) -> bool:
        return self not in (ElementState.BLOCKED, ElementState.WAITING, ElementState.RUNNING)


class Slot(Wire):
    """Of a job that is a slot: the array whose elements it runs."""

    array_id: str = Field(max_length=201)
    number: int
    elements: int
    first: int
    """The lowest index."""
    last: int
    """The highest."""


class Element(Wire):
    """One element on its way to a node: the variables are its row of the table."""

    index: int
    attempt: int
    variables: dict[str, str] = Field(default_factory=dict[str, str])


class Batch(Wire):
    """Elements that a slot runs one after another."""

    slot: Slot
    number: int
    """From 1 in each attempt of the slot's job."""
    elements: tuple[Element, ...]


class Span(Wire):
    """A part of what a batch wrote to one stream."""

    offset: Annotated[int, Field(ge=0, lt=2**63)] = 0
    length: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def end(self) -> int:
        return self.offset + self.length


class ElementResult(Wire):
    """How one attempt of an element ended on its node."""

    index: int
    attempt: int
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    failure: Annotated[FailureClass | None, known_or(FailureClass, FailureClass.NODE)] = None
    """None for success, and where it was stopped."""
    stopped: bool = False
    """It was asked to stop while it ran."""
    cancelled: bool = False
    """It was stopped, or left out, because somebody cancelled it."""
    error: Reason = ""
    """The last line that it wrote, of one that failed; and how much of its output is lost."""
    started_at: Instant | None = None
    ended_at: Instant | None = None
    stdout: Span = Span()
    stderr: Span = Span()


class BatchReport(Wire):
    """What became of a batch, as far as the node's journal tells."""

    results: tuple[ElementResult, ...] = ()
    complete: bool = True
    """What is in no result was not started; where false, nobody knows."""
