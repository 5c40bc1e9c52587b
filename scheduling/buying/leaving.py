"""Which idle nodes leave a pool first when it has more than it wants.

Machines that are billed as they run go first, the dearest before the others: they stop costing.
Time that is paid for goes after them. All blocks of a pool keep to one order, so that two that
are decided about at one moment do not both leave where one would do.
"""

from models.block_end import BlockScene
from models.job import Tier
from models.node import Node, NodeState
from scheduling.buying.costs import warm_target
from scheduling.buying.fleet import Fleet, fleet_of

MOST_QUEUED = 256
"""Jobs of the queue that are looked at."""


def may_leave(scene: BlockScene) -> list[str]:
    """Return the block's nodes that nothing uses, is to use, or that the warm target wants."""
    fleet = fleet_of_scene(scene)
    mine = {machine.name for machine in scene.machines if machine.takes_work}
    held = {job.node_id for job in scene.jobs}
    leaving: list[str] = []
    room = _beyond_warm(scene, fleet)
    for node in sorted(_idle(scene, fleet), key=lambda node: _order(scene, node)):
        others = node.id not in mine
        if others and node.id not in scene.billed:
            continue  # whose paid time is sold first is settled where sales are stored
        if len(node.gpus) > room:
            continue
        room -= len(node.gpus)
        if not others and node.id not in held:
            leaving.append(node.id)
    return leaving


def kept_for(scene: BlockScene) -> str:
    """Return why no idle node of the block may leave."""
    fleet = fleet_of_scene(scene)
    free = {node.id for node in _idle(scene, fleet)}
    if not any(machine.takes_work and machine.name in free for machine in scene.machines):
        return "a job is to start there"
    if _beyond_warm(scene, fleet) < scene.block.gpus_per_node:
        return "the pool's warm target wants it"
    return "the pool's warm target wants it: another idle machine, which costs more, goes first"


def fleet_of_scene(scene: BlockScene) -> Fleet:
    """Return what the pool has of the block's tier, and what is coming."""
    fleet = fleet_of(scene.pool, scene.under_way, scene.packing, scene.recent)
    return fleet.of_tier(scene.block.tier)


def _idle(scene: BlockScene, fleet: Fleet) -> list[Node]:
    """Return the nodes that are there, on which nothing runs and for which nothing is reserved."""
    held = {job.node_id for job in fleet.running}
    wanted = [job.request for job in scene.queue[:MOST_QUEUED]]
    reserved = fleet.outlook(wanted, scene.now).uses
    return [
        node for node in fleet.nodes
        if node.state is NodeState.READY and node.id not in held and not reserved.get(node.id)
    ]  # fmt: skip


def _order(scene: BlockScene, node: Node) -> tuple[bool, int, str]:
    hourly = scene.billed.get(node.id)
    return hourly is None, -(hourly or 0), node.id


def _beyond_warm(scene: BlockScene, fleet: Fleet) -> int:
    """Return how many GPUs of the pool's READY nodes are beyond its warm target."""
    tier = scene.block.tier
    there = fleet.gpus_of(tier)
    if tier is not Tier.FAST:
        return there
    queued = sum(job.request.gpus for job in scene.queue if job.request.tier is tier)
    target = warm_target(queued + fleet.used_of(tier), scene.policy, scene.demand)
    return max(there - target, 0)
