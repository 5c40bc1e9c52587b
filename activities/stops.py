"""Whether any job that runs may be stopped for one that waits."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.locality import with_locality_of_both
from longshore.activities.preemption_inputs import load_running_work
from longshore.activities.serving.engine_turns import with_engine_turns
from longshore.activities.snapshot import load_running
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.pool import PoolSpec
from longshore.models.preemption import RunningWork
from longshore.scheduling.preemption.costs import why_not
from longshore.scheduling.preemption.yielding import Yielding


async def read_stops(
    connection: AsyncConnection, spec: PoolSpec, job: JobRequest, nodes: tuple[Node, ...]
) -> Callable[[AbstractSet[str], datetime], bool]:
    """Return who says, from what is read here, whether any job that runs on nodes of these names
    may be stopped at a moment for this one, as its queue has it; `nodes` are those of its pool."""
    if not spec.preemption.enabled:
        return lambda names, now: False
    shares = await load_running(connection, spec.name)
    works = await load_running_work(connection, spec.name, spec.preemption, shares)
    # Without what its engine serves it would be like no other.
    (job,) = await with_engine_turns(
        connection, spec.name, [job], works, spec.preemption, await clock(connection)
    )
    queue = [job]
    if spec.packing.by_rank:
        queue, works, nodes = await with_locality_of_both(
            connection, spec.name, spec.packing, queue, works, nodes
        )
    return partial(_may_stop_any, spec, job, queue, works, nodes)


def _may_stop_any(
    spec: PoolSpec, job: JobRequest, queue: Sequence[JobRequest], works: tuple[RunningWork, ...],
    nodes: Sequence[Node], names: AbstractSet[str], now: datetime,
) -> bool:  # fmt: skip
    there = [work for work in works if not names.isdisjoint(work.nodes)]
    if not there:
        return False
    yielding = None
    if spec.packing.by_rank:
        yielding = Yielding(works, queue, nodes, spec.preemption, spec.packing, now)
    return any(
        why_not(work, job, spec.preemption, now, yielding, spec.packing.funding) is None
        for work in there
    )
