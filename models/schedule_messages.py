"""What travels between a schedule, the workflow that it starts, its activities and the client."""

import re
from datetime import UTC, datetime
from typing import ClassVar, Self

from pydantic import model_validator

from longshore.models.base import Instant, Name, Reason, StartInput, Wire
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.job import JobSpec
from longshore.models.messages import job_workflow_id
from longshore.models.schedule import Kind

SCHEDULE_RUN_WORKFLOW = "ScheduleRunWorkflow"
SCHEDULE_PREFIX = "user-"
"""Of the ids of schedules that people make; Longshore's own have others."""
_TIME = re.compile(r"-(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)$")


def schedule_id(name: str) -> str:
    """Return the id of a schedule at the server."""
    return f"{SCHEDULE_PREFIX}{name}"


def schedule_workflow_id(name: str) -> str:
    """Return what the ids of the workflows that a schedule starts begin with; the server adds the
    time."""
    return f"schedule-{name}"


def time_in(workflow_id: str) -> datetime | None:
    """Return the time that the server has added to a workflow's id; None where it has none."""
    found = _TIME.search(workflow_id)
    if found is None:
        return None
    try:
        return datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def run_id(name: str, at: datetime, number: int = 1) -> str:
    """Return the id of the job or DAG of a time: ``nightly-20261121t014744z``, and ``.r2`` with
    its second one."""
    again = f".r{number}" if number > 1 else ""
    return f"{name}-{at.astimezone(UTC):%Y%m%dt%H%M%Sz}{again}"


def run_workflow_id(kind: Kind, of: str) -> str:
    """Return the id of the workflow of a run's job or DAG."""
    return job_workflow_id(of) if kind is Kind.JOB else dag_workflow_id(of)


class ScheduleRunInput(StartInput):
    """Input of `ScheduleRunWorkflow`: what it starts, a job or a DAG."""

    instead: ClassVar[str] = (
        "make a schedule, which starts it: `longshore schedule create NAME FILE --cron LINE`"
    )
    schedule: Name
    job: JobSpec | None = None
    dag: DagSpec | None = None

    def own_id(self, found: str) -> str:
        wanted = schedule_workflow_id(self.schedule)
        ours = found == wanted or (found.startswith(f"{wanted}-") and time_in(found) is not None)
        return found if ours else wanted

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.job is None) is (self.dag is None):
            raise ValueError("give a job or a dag, and not both")
        return self

    @property
    def kind(self) -> Kind:
        return Kind.JOB if self.dag is None else Kind.DAG

    @property
    def spec(self) -> JobSpec | DagSpec:
        spec = self.job or self.dag
        assert spec is not None
        return spec


class FindRun(Wire):
    """Find the id for the job or DAG of a time."""

    schedule: Name
    kind: Kind
    at: Instant


class FoundRun(Wire):
    id: str | None = None
    """One that nothing has had, or that runs; null where the time has run too often."""
    running: bool = False
    """A job or DAG of this time runs: there is not to be another."""


class LookAtRun(Wire):
    """Ask how a job or DAG is that another workflow had started."""

    kind: Kind
    id: str


class CancelRun(Wire):
    """Ask a job or DAG to end."""

    kind: Kind
    id: str
    reason: Reason


class RunEnd(Wire):
    """How the job or DAG of a run is."""

    state: str | None = None
    """SUCCEEDED, FAILED or CANCELLED; null while it has not ended."""
    message: Reason = ""


class ScheduleRunResult(Wire):
    """How a run of a schedule ended: SUCCEEDED, or CANCELLED by its user."""

    schedule: str
    kind: Kind
    id: str
    state: str
    message: Reason = ""
