"""What screens are drawn of: a job, a node, a status, and the lines of a screen."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console, RenderableType

from longshore.models.job_status import JobState, JobStatus
from longshore.models.views import (
    GPUView,
    JobView,
    NodeView,
)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

MINUTE = timedelta(minutes=1)


def a_job(state: JobState = JobState.QUEUED, **fields: Any) -> JobView:
    basics = {
        "id": "train-abcdefghij", "name": "train", "tenant": "default", "pool": "default",
        "tier": "FAST", "priority": 5, "gpus": 4, "gpu_type": "H100", "state": state,
        "submitted_at": NOW - 10 * MINUTE,
    }  # fmt: skip
    return JobView.model_validate({**basics, **fields})


def a_running_job(**fields: Any) -> JobView:
    return a_job(
        JobState.RUNNING,
        **{
            "attempt": 1, "node_id": "node-a", "gpu_indices": (0, 1, 2, 3),
            "started_at": NOW - 3 * MINUTE, "first_started_at": NOW - 3 * MINUTE, **fields,
        },
    )  # fmt: skip


def a_node(*holders: str | None, **fields: Any) -> NodeView:
    gpus = tuple(
        GPUView(
            index=i, model="H100", vram=80, vram_used=80 if job else 0, job_id=job, job_name=job
        )
        for i, job in enumerate(holders)
    )
    basics = {
        "id": "node-a", "pool": "default", "tier": "FAST", "provider": "own", "state": "READY",
        "epoch": 1, "simulated": False, "gpu_type": "H100", "gpus": gpus, "cpus": 64,
        "cpus_used": 8, "ram": 512.4, "ram_used": 64, "registered_at": NOW, "labels": {},
    }  # fmt: skip
    return NodeView.model_validate({**basics, **fields})


def a_status(state: JobState, **fields: Any) -> JobStatus:
    basics = {
        "job_id": "train-abcdefghij", "name": "train", "tenant": "default", "pool": "default",
        "state": state, "attempt": 1, "submitted_at": NOW, "since": NOW,
    }  # fmt: skip
    return JobStatus.model_validate({**basics, **fields})


def drawn(what: RenderableType, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]
