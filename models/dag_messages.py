"""What travels between a DAG's workflow, its activities and the client."""

from typing import ClassVar

from pydantic import Field, field_validator

from longshore.models.base import Instant, Reason, StartInput, Wire
from longshore.models.dag import DagSpec
from longshore.models.dag_view import DagState, StepState

DAG_WORKFLOW = "DagWorkflow"


def dag_workflow_id(dag_id: str) -> str:
    return f"dag-{dag_id}"


class DagProgress(Wire):
    """Where a DAG is after a look."""

    state: DagState
    counts: dict[StepState, int]
    reason: Reason = ""
    """How it ended, or which failure stops it."""
    next: Reason = ""
    """The next job that waits, and for what."""
    more: bool = False
    """Jobs are left that can be submitted now."""
    ended_at: Instant | None = None


class DagInput(StartInput):
    """Input of `DagWorkflow`; the DAG's id is the workflow id without `dag-`."""

    instead: ClassVar[str] = 'give an input: {"spec": {...}}, with a DAG file as spec'
    spec: DagSpec | None = None
    """None of a run that goes on with the stored one."""
    retry: bool = False
    """Run again what did not succeed of a DAG that has ended."""
    held: bool = False
    """Start no job before a release."""
    submitted_at: Instant | None = None
    """Of a run that continues another; null of the first."""
    poked: bool = False
    withdrawn: dict[str, Reason] = Field(default_factory=dict[str, Reason])
    """Jobs that somebody cancelled and no look has dealt with yet, with why."""
    progress: DagProgress | None = None
    """What the run that it continues saw last."""
    max_looks_per_run: int = Field(default=400, ge=1)

    def own_id(self, found: str) -> str:
        return dag_workflow_id(found.removeprefix(dag_workflow_id("")))

    @field_validator("spec")
    @classmethod
    def _spec_travels_on(cls, spec: DagSpec | None) -> DagSpec | None:
        # With what its jobs share it may be far larger than as it came.
        if spec is not None and (why := spec.too_large):
            raise ValueError(why)
        return spec


class OpenDag(Wire):
    """Put a DAG on record, or open what a retry runs again."""

    dag_id: str
    spec: DagSpec | None = None
    retry: bool = False
    submitted_at: Instant


class OpenedDag(Wire):
    refusal: str = ""
    """Why it is not begun; nothing has changed."""


class AdvanceDag(Wire):
    """Look at the ends of a DAG's jobs, and do what follows."""

    dag_id: str
    held: bool = False
    cancelled: Reason | None = None
    withdrawn: dict[str, Reason] = Field(default_factory=dict[str, Reason])
    """Single jobs that somebody cancelled, with why."""
    check: bool = False
    """Ask Temporal too about jobs that have not come into a queue."""


class CancelDagJob(Wire):
    """Cancel one job of a DAG, also while it waits for others."""

    name: str
    reason: Reason = ""


class DagResult(Wire):
    """How a DAG ended."""

    dag_id: str
    state: DagState
    counts: dict[StepState, int]
    message: Reason = ""
    ended_at: Instant | None = None


class DagStatus(Wire):
    """What the `status` query of a DAG's workflow returns."""

    dag_id: str
    held: bool
    progress: DagProgress | None = None
