"""Small builders of nodes and jobs for packing tests: a test says only what matters to it."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import PackingPolicy, RunningJob
from longshore.scheduling.placement import rearranging

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
POLICY = PackingPolicy()


@contextmanager
def one_by_one() -> Iterator[None]:
    """Have every job take what those before it left, and nobody change its place for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rearranging, "TRIES", 0)
        yield


def a_node(
    name: str = "node-a",
    *,
    gpus: int = 8,
    vram: float = 80.0,
    busy: Collection[int] = (),
    expires_in: timedelta | None = None,
    **fields: Any,
) -> Node:
    """Return a node of 8 x 80 GB, 64 cores, 512 GB; `busy` GPUs are held with all their memory."""
    slots = tuple(
        GPU(index=i, vram=vram, vram_used=vram, job_id=f"on-{name}")
        if i in busy
        else GPU(index=i, vram=vram)
        for i in range(gpus)
    )
    expires_at = None if expires_in is None else NOW + expires_in
    return Node(
        **{"id": name, "gpus": slots, "cpus": 64, "ram": 512, "expires_at": expires_at, **fields}
    )


def a_job(name: str = "job", gpus: int = 2, **fields: Any) -> JobRequest:
    """Return the FAST job of the documents: 40 GB a GPU, 8 cores, 64 GB, one hour."""
    defaults: dict[str, Any] = {
        "id": name,
        "tier": Tier.FAST,
        "gpus": gpus,
        "vram_per_gpu": 40.0,
        "cpus": 8,
        "ram": 64,
        "expected_duration": HOUR,
        "submitted_at": NOW,
    }
    return JobRequest(**{**defaults, **fields})


def read_back(request: JobRequest) -> JobRequest:
    """Return a request as a queue gives it back: some of it is in columns, and not in the JSON."""
    read = JobRequest.model_validate_json(request.model_dump_json())
    columns = {name: getattr(request, name) for name in ("duration_known", "can_stop", "tenant")}
    return read.model_copy(update=columns)


def running(
    name: str, node: str, gpus: Collection[int], ends_in: timedelta, **fields: Any
) -> RunningJob:
    """Return a running job without cores or memory unless they are given."""
    return RunningJob(
        job_id=name,
        node_id=node,
        gpu_indices=tuple(gpus),
        expected_end=NOW + ends_in,
        **fields,
    )
