"""On how many GPUs each of several new replicas is to run: chosen as their jobs are made. Pure.

The packer says what has room. A job does not change its size while it waits.
"""

from collections.abc import Sequence
from datetime import datetime

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.scheduling.placement.state import with_job


def choose_sizes(
    options: Sequence[JobRequest],
    count: int,
    nodes: Sequence[Node],
    policy: PackingPolicy,
    now: datetime,
    largest: float,
) -> tuple[int, ...]:
    """Return for each of `count` replicas which of the options it is to be.

    `options` are the job in its sizes, the fewest GPUs first. That which can start now is taken,
    each replica beside those before it. Where none can, the first that a node would hold if it
    were empty; and where no node would, the first whose memory is at most `largest`, the GB of a
    GPU that may come, or the last.
    """
    if len(options) == 1:
        return (0,) * count
    chosen: list[int] = []
    for number, option in enumerate(options):
        queue = [option.model_copy(update={"id": f"{at:06}"}) for at in range(count - len(chosen))]
        if not queue:
            break
        placed = plan(queue, nodes, (), policy, now, as_a_set=False).placements
        chosen += [number] * len(placed)
        by_id = {node.id: node for node in nodes}
        for decision in placed:
            for node_id, gpus in decision.by_node:
                by_id[node_id] = with_job(by_id[node_id], option, gpus)
        nodes = list(by_id.values())
    waits = _while_it_waits(options, nodes, largest)
    return (*chosen, *[waits] * (count - len(chosen)))


def held_when_empty(options: Sequence[JobRequest], nodes: Sequence[Node]) -> tuple[bool, ...]:
    """Return of each option whether some node would hold it if it were empty."""
    return tuple(any(could_ever_hold(node, option) for node in nodes) for option in options)


def _while_it_waits(options: Sequence[JobRequest], nodes: Sequence[Node], largest: float) -> int:
    held = held_when_empty(options, nodes)
    if any(held):
        return held.index(True)
    may_come = (at for at, option in enumerate(options) if option.vram_per_gpu <= largest)
    return next(may_come, len(options) - 1)
