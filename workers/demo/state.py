"""What the demo remembers, so that it goes on after everything was killed, and what it sees."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from longshore.models.base import Instant, Wire
from longshore.models.job_status import JobState
from longshore.models.views import JobView, NodeView
from longshore.workers.processes import write_atomically

TOO_OLD = timedelta(hours=12)
"""An unfinished demo that began longer ago is not gone on with."""


class DemoState(Wire):
    """One demo, from its first moment until its summary: the file `demo.json`."""

    batch: str
    """Key of every submission: submitted again, a job is found and not repeated."""
    jobs: int
    nodes: int
    seed: int
    began_at: Instant
    interruptions: int = 0
    disturbances: int = 0
    """How often parts had to be started again that the demo had not ended itself."""
    cycles_before: int | None = None
    """Cycles that the pool had run before the demo."""
    cancelled_job: str | None = None
    killed_node: str | None = None
    killed_at: Instant | None = None
    declared_lost_at: Instant | None = None
    market_pid: int | None = None
    """The simulated market at which is bought; another one knows nothing of it."""
    market_ours: bool = False
    """The demo started it, and ends it."""
    not_bought: str = ""
    """Why nothing is bought, or no more."""

    @classmethod
    def new(cls, jobs: int, nodes: int, seed: int) -> Self:
        now = datetime.now(UTC)
        batch = f"demo-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        return cls(batch=batch, jobs=jobs, nodes=nodes, seed=seed, began_at=now)

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(f"demo-{number}" for number in range(1, self.nodes + 1))


class StateFile:
    """The file that holds the state of an unfinished demo."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "demo.json"

    def unfinished(self) -> DemoState | None:
        """Return the demo that was interrupted, unless that was too long ago."""
        try:
            state = DemoState.model_validate_json(self._path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return state if datetime.now(UTC) - state.began_at < TOO_OLD else None

    def save(self, state: DemoState) -> None:
        write_atomically(self._path, state.model_dump_json(indent=2))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Snapshot:
    """The demo's nodes and jobs at one moment."""

    at: datetime
    nodes: tuple[NodeView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    """In the order of their submission."""

    def in_state(self, *states: JobState) -> tuple[JobView, ...]:
        return tuple(job for job in self.jobs if job.state in states)

    @property
    def open(self) -> tuple[JobView, ...]:
        return tuple(job for job in self.jobs if not job.state.ended)

    @property
    def ended(self) -> tuple[JobView, ...]:
        return tuple(job for job in self.jobs if job.state.ended)

    def job(self, job_id: str) -> JobView | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def node(self, node_id: str) -> NodeView | None:
        return next((node for node in self.nodes if node.id == node_id), None)


def of_batch(jobs: Iterable[JobView], ids: tuple[str, ...]) -> tuple[JobView, ...]:
    """Return the jobs with these ids, in their order, without those that are not known yet."""
    found = {job.id: job for job in jobs}
    return tuple(found[job_id] for job_id in ids if job_id in found)
