"""Which idle nodes leave a pool first when it has more than it wants.

Machines that are billed as they run go first, the dearest before the others: they stop costing.
Time that is paid for goes after them. All blocks of a pool keep to one order, so that two that
are decided about at one moment do not both leave where one would do.
"""

from models.block_end import BlockScene
from models.job import Tier
from models.node import Node, NodeState
from scheduling.buying.costs import wants_warm, warm_target
from scheduling.buying.fleet import Fleet, fleet_of, shape_of

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
        if wants_warm(node.gpu_type, scene.policy):
            if len(node.gpus) > room:
                continue
            room -= len(node.gpus)
        if not others and node.id not in held:
            leaving.append(node.id)
    return leaving


def leaves_whole(scene: BlockScene) -> bool:
    """Return whether all machines of the block may leave: a cluster ends as one.

    Those whose agents have fallen silent are of no use to anybody.
    """
    if scene.machines and all(machine.lost for machine in scene.machines):
        return not scene.jobs
    mine = {machine.name for machine in scene.machines if machine.takes_work}
    return bool(mine) and mine <= set(may_leave(scene))


def may_be_called_off(scene: BlockScene) -> bool:
    """Return whether a machine on its way is of no use: no job of the queue would start there, and
    the warm target does not want it."""
    if scene.block.coming is None:
        return False
    fleet = fleet_of_scene(scene)
    return not _starts_there(scene, fleet) and not _warm_wants(scene, fleet)


def is_kept_warm(scene: BlockScene) -> bool:
    """Return whether the block has idle nodes, and the warm target wants every one of them."""
    fleet = fleet_of_scene(scene)
    idle = {node.id for node in _idle(scene, fleet)}
    there = any(machine.takes_work and machine.name in idle for machine in scene.machines)
    return there and _warm_wants(scene, fleet) and not may_leave(scene)


def kept_for(scene: BlockScene) -> str:
    """Return why no node of the block may leave."""
    fleet = fleet_of_scene(scene)
    if scene.block.coming is not None:
        there = _starts_there(scene, fleet)
        return "a job is to start there" if there else "the pool's warm target wants it"
    free = {node.id for node in _idle(scene, fleet)}
    if not any(machine.takes_work and machine.name in free for machine in scene.machines):
        return "a job is to start there"
    if _warm_wants(scene, fleet):
        return "the pool's warm target wants it"
    return "the pool's warm target wants it: another idle machine, which costs more, goes first"


def fleet_of_scene(scene: BlockScene) -> Fleet:
    """Return what the pool has of the block's tier, and what is coming."""
    fleet = fleet_of(scene.pool, scene.under_way, scene.packing, scene.recent)
    return fleet.of_tier(scene.block.tier)


def _starts_there(scene: BlockScene, fleet: Fleet) -> bool:
    """Return whether a job would start on what the block's purchase is bringing."""
    mine = [name for name in fleet.coming if name.startswith(f"{scene.block.coming}-")]
    wanted = [job.request for job in scene.queue[:MOST_QUEUED]]
    return bool(fleet.outlook(wanted, scene.now).jobs_on(mine))


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


def _warm_wants(scene: BlockScene, fleet: Fleet) -> bool:
    shape = shape_of(scene.block.instance_type)
    counts = shape is None or wants_warm(shape.gpu_type, scene.policy)
    return counts and _beyond_warm(scene, fleet) < scene.block.gpus_per_node


def _beyond_warm(scene: BlockScene, fleet: Fleet) -> int:
    """Return how many GPUs of the pool's READY nodes are beyond its warm target, of its type."""
    tier, policy = scene.block.tier, scene.policy
    if tier is not Tier.FAST:
        return fleet.gpus_of(tier)
    fleet = fleet.of_type(policy.fast_warm_type)
    there = fleet.gpus_of(tier)
    queued = sum(
        job.request.gpus for job in scene.queue
        if job.request.tier is tier and wants_warm(job.request.gpu_type, policy)
    )  # fmt: skip
    target = warm_target(queued + fleet.used_of(tier), scene.policy, scene.demand)
    return max(there - target, 0)
