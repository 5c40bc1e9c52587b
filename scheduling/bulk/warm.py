"""Loads and compiles the pass, by plans of a few jobs that come by each of its questions.

Run as `python -m longshore.scheduling.bulk.warm` it only fills numba's cache on the disk, in a
process of its own: whoever starts it goes on meanwhile.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import PackingPolicy, PackingRule, RunningJob
from longshore.scheduling import bulk
from longshore.scheduling.bulk.arrays import Classes, Headroom
from longshore.scheduling.bulk.tables import Tables
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.keep_room import HeadroomKeeper
from longshore.scheduling.placement.mix import NO_MIX

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)


def warm() -> None:
    """Load the pass, so that plans may go by it; half a minute where it was never compiled."""
    from longshore.scheduling.bulk import residuals  # loads numba

    compiled: Any = residuals

    running = [RunningJob(job_id="old", node_id="a", gpu_indices=(0,), expected_end=_NOW + _HOUR)]
    nodes = [
        Node(id="a", gpus=_gpus(2, held=1), cpus=8, ram=8),
        Node(id="b", gpus=_gpus(4), cpus=8, ram=8),
    ]
    queue = [
        _job(1, gpus=2, cpus=1),
        _job(2, gpus=4),  # waits for b, which is kept for it
        _job(3, gpus=2, expected_duration=_HOUR / 4),  # fits beside that
        _job(4, gpus=1, expected_duration=3 * _HOUR),
        _job(5, gpus=1, milli=500, vram_per_gpu=1),
    ]
    for rule in (PackingRule.SEED_SCORE, PackingRule.KEEP_ROOM):
        policy = PackingPolicy(rule=rule, safety_margin=timedelta())
        plan(queue, nodes, running, policy, _NOW, compiled=True)
    # Only where arrays grow, which these plans are too short for.
    compiled.index_residuals(*_nothing())
    bulk.loaded()


def _nothing() -> tuple[Classes, Headroom]:
    policy = PackingPolicy(rule=PackingRule.KEEP_ROOM)
    columns = Columns((), _NOW)
    tables = Tables(columns, policy, HeadroomKeeper(columns, NO_MIX), needs=(), jobs=1)
    return tables.c, tables.r


def _gpus(count: int, held: int = 0) -> tuple[GPU, ...]:
    return tuple(GPU(index=i, vram=8, job_id="old" if i < held else None) for i in range(count))


def _job(number: int, **request: Any) -> JobRequest:
    request = {"expected_duration": _HOUR, **request}
    return JobRequest(id=f"{number}", submitted_at=_NOW, **request)


if __name__ == "__main__":
    warm()
