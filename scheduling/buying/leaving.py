"""Which idle nodes leave a pool first when it has more than it wants.

Machines that are billed as they run go first, the dearest before the others: they stop costing.
Time that is paid for goes after them. All blocks of a pool keep to one order, so that two that
are decided about at one moment do not both leave where one would do.
"""

from models.block_end import BlockScene
from models.job import Tier
from models.node import Node, NodeState
from scheduling.buying.fleet import Fleet, fleet_of, shape_of
from scheduling.buying.warm import counts, spare, wanted_of, wants_warm, warm_target

MOST_QUEUED = 256
"""Jobs of the queue that are looked at."""


def may_leave(scene: BlockScene) -> list[str]:
    """Return the block's nodes that nothing uses, is to use, or that the warm target wants.

    It wants one that is too near its end to count for it until another is there in its place.
    """
    fleet = fleet_of_scene(scene)
    mine = {machine.name for machine in scene.machines if machine.takes_work}
    held = {job.node_id for job in scene.jobs}
    leaving: list[str] = []
    room = _beyond_warm(scene, fleet)
    for node in sorted(_idle(scene, fleet), key=lambda node: _order(scene, node)):
        others = node.id not in mine
        if others and node.id not in scene.billed:
            continue  # whose paid time is sold first is settled where sales are stored
        if _counts(scene, node):
            if len(node.gpus) > room:
                continue
            room -= len(node.gpus)
        elif _stands_in(scene, fleet, node):
            continue
        if not others and node.id not in held:
            leaving.append(node.id)
    return leaving


def may_be_sold(scene: BlockScene) -> list[str]:
    """Return the block's machines whose time may be sold: of no use first, then the idle."""
    return [*scene.unstarted, *may_leave(scene)]


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
    mine = {machine.name for machine in scene.machines if machine.takes_work} & idle
    if not mine or may_leave(scene):
        return False
    # What it would go on for may be on its way already.
    counting = any(node.id in mine and _counts(scene, node) for node in fleet.nodes)
    return _warm_wants(scene, fleet) if counting else _is_short(scene, fleet)


def kept_for(scene: BlockScene) -> str:
    """Return why no node of the block may leave."""
    fleet = fleet_of_scene(scene)
    if scene.block.coming is not None:
        there = _starts_there(scene, fleet)
        return "a job is to start there" if there else "the pool's warm target wants it"
    free = {node.id for node in _idle(scene, fleet)}
    if not any(machine.takes_work and machine.name in free for machine in scene.machines):
        return "a job is to start there"
    mine = {machine.name for machine in scene.machines}
    if any(node.id in mine and _stands_in(scene, fleet, node) for node in fleet.nodes):
        return "the pool's warm target wants it until another is there in its place"
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
    of_type = shape is None or wants_warm(shape.gpu_type, scene.policy)
    return of_type and _beyond_warm(scene, fleet) < scene.block.gpus_per_node


def _beyond_warm(scene: BlockScene, fleet: Fleet) -> int:
    """Return how many GPUs of nodes that count for the warm target are beyond it."""
    tier, policy = scene.block.tier, scene.policy
    if tier is not Tier.FAST:
        return fleet.gpus_of(tier)
    queued = [job.request for job in scene.queue]
    of_type = fleet.of_type(policy.fast_warm_type)
    target = warm_target(wanted_of(queued, fleet, policy), policy, scene.demand)
    there = of_type.used_of(tier) + spare(fleet, policy, scene.packing, scene.now)
    return max(there - target, 0)


def _is_short(scene: BlockScene, fleet: Fleet, *, coming: bool = True) -> bool:
    """Return whether what counts for the warm target, beside what jobs want, is less than it."""
    if scene.block.tier is not Tier.FAST:
        return False
    wanted = wanted_of([job.request for job in scene.queue], fleet, scene.policy)
    beside = warm_target(wanted, scene.policy, scene.demand) - wanted
    return spare(fleet, scene.policy, scene.packing, scene.now, coming=coming) < beside


def _counts(scene: BlockScene, node: Node) -> bool:
    """Return whether a node that is there counts for the warm target; all do of other tiers."""
    if scene.block.tier is not Tier.FAST:
        return wants_warm(node.gpu_type, scene.policy)
    return counts(node, scene.policy, scene.packing, scene.now)


def _stands_in(scene: BlockScene, fleet: Fleet, node: Node) -> bool:
    """Return whether a node too near its end is all that there is until another has come."""
    near_end = wants_warm(node.gpu_type, scene.policy) and not _counts(scene, node)
    return near_end and _is_short(scene, fleet, coming=False)
