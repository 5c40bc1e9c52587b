"""Scale-down: which idle nodes a pool gives up first when it has more than it wants.

Machines that are billed as they run go first, the dearest before the others: they stop costing.
Time that is paid for goes after them. All blocks of a pool keep to one order, so that two that
are decided about at one moment do not both leave where one would do.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from longshore.models.block_end import BlockScene
from longshore.models.buying import BuyingPolicy
from longshore.models.job import Tier
from longshore.models.node import Node, NodeState
from longshore.scheduling.buying.fleet import Fleet, fleet_of, names_under_way
from longshore.scheduling.buying.warm_target import bought_for, counts, short_of_warm, wants_warm

MOST_QUEUED = 256
"""Jobs of the queue that are looked at."""
CLOSED_GRACE = timedelta(minutes=10)
"""An empty machine that is cordoned or drained, or whose agent has left, is kept for so long at
least: who cordons a node, as to restart its agent, may uncordon it."""
_NEVER = datetime.max.replace(tzinfo=UTC)


def removable_nodes(scene: BlockScene) -> list[str]:
    """Return the block's nodes that nothing uses, is to use, or that the warm target wants.

    It wants one that is too near its end to count for it until another is there in its place.
    """
    fleet = fleet_of_scene(scene)
    mine = {machine.name for machine in scene.machines if machine.takes_work}
    held = {job.node_id for job in scene.jobs}
    leaving: list[str] = []
    # Whose paid time is sold first is settled where sales are stored.
    idle = [node for node in _idle(scene, fleet) if node.id in mine or node.id in scene.billed]
    idle.sort(key=lambda node: _order(scene, node))
    last = max((place for place, node in enumerate(idle) if node.id in mine), default=-1)
    # To ask takes long in a large pool: where one is wanted, so is the like that lasts as long.
    wanted: list[tuple[Node, datetime]] = []
    target = _Target(scene, fleet)
    for node in idle[: last + 1]:
        kind, until = _kind(scene, node), node.expires_at or _NEVER
        if any(kind == other and until >= least for other, least in wanted):
            continue
        if _is_wanted(target, node):
            wanted.append((kind, until))
            continue
        target = _Target(scene, _without(target.fleet, {node.id}))
        wanted.clear()
        if node.id in mine and node.id not in held:
            leaving.append(node.id)
    return leaving


def may_be_sold(scene: BlockScene) -> list[str]:
    """Return the block's machines whose time may be sold: of no use first, then the idle."""
    return [*scene.unstarted, *removable_nodes(scene)]


def is_removable(scene: BlockScene) -> bool:
    """Return whether all machines of the block may leave: a cluster ends as one.

    Empty ones are of no use to anybody, and count for no warm target, whose agents have fallen
    silent, or that have been closed for long enough (`closed_until`): cordoned or drained, or
    left by their agents. What takes no work for another reason may by itself again: a full disk.
    """
    if not scene.machines or scene.jobs:
        return False
    if all(machine.lost for machine in scene.machines):
        return True
    until = _closed_until(scene)
    if until is not None and scene.now < until:
        return False
    mine = {machine.name for machine in scene.machines if machine.takes_work}
    return mine <= set(removable_nodes(scene)) if mine else _is_closed(scene)


def closed_until(closed: datetime, idle: datetime, policy: BuyingPolicy) -> datetime:
    """Return when a machine may end that is cordoned or drained since `closed`, or whose agent
    has left then, and on which nothing runs since `idle`."""
    return max(closed, idle) + closed_grace(policy)


def closed_grace(policy: BuyingPolicy) -> timedelta:
    """Return for how long an empty machine is kept at least that is cordoned or drained, or
    that its agent has left."""
    return max(CLOSED_GRACE, policy.idle_after)


def is_cancellable(scene: BlockScene) -> bool:
    """Return whether a machine on its way is of no use: no job of the queue would start there, and
    the warm target does not want it."""
    if scene.block.coming is None:
        return False
    fleet = fleet_of_scene(scene)
    return not _starts_there(scene, fleet) and not _Target(scene, fleet).needs(_on_its_way(scene))


def is_retained_warm(scene: BlockScene) -> bool:
    """Return whether the block has idle nodes, and the warm target wants every one of them."""
    fleet = fleet_of_scene(scene)
    idle = {node.id for node in _idle(scene, fleet)}
    mine = {machine.name for machine in scene.machines if machine.takes_work} & idle
    if not mine or removable_nodes(scene):
        return False
    # What it would go on for may be on its way already.
    counting = any(node.id in mine and _counts(scene, node) for node in fleet.nodes)
    target = _Target(scene, fleet)
    return target.needs(mine) if counting else target.short > 0


def why_retained(scene: BlockScene) -> str:
    """Return why no node of the block may leave."""
    fleet = fleet_of_scene(scene)
    if scene.block.coming is not None:
        there = _starts_there(scene, fleet)
        return "a job is to start there" if there else "the pool's warm target wants it"
    if scene.jobs:
        return "a job runs there"
    free = {node.id for node in _idle(scene, fleet)}
    takes = [machine.name for machine in scene.machines if machine.takes_work]
    until = _closed_until(scene)
    if not takes:
        return _why_closed_is_kept(scene, until)
    if until is not None and scene.now < until and set(takes) <= set(removable_nodes(scene)):
        return f"{_a_closed_node(scene)} until {until:%H:%M} UTC"
    if free.isdisjoint(takes):
        return "a job is to start there"
    mine = {machine.name for machine in scene.machines}
    there = [node for node in fleet.nodes if node.id in mine]
    target = _Target(scene, fleet)
    if any(not _counts(scene, node) and _is_wanted(target, node) for node in there):
        return "the pool's warm target wants it until another is there in its place"
    if target.needs(mine):
        return "the pool's warm target wants it"
    return "the pool's warm target wants it: another idle machine, which costs more, goes first"


def _closed_until(scene: BlockScene) -> datetime | None:
    """Return when those of its machines may end that are closed; None without any."""
    closed = [each.closed_since for each in scene.machines if each.closed_since is not None]
    if not closed:
        return None
    idle = scene.block.idle_since
    return closed_until(max(closed), idle or max(closed), scene.policy)


def _is_closed(scene: BlockScene) -> bool:
    """Return whether all machines of the block have come, and no node will take work by itself."""
    closed = all(each.lost or each.closed_since is not None for each in scene.machines)
    return closed and len(scene.machines) >= scene.block.expects


def _why_closed_is_kept(scene: BlockScene, until: datetime | None) -> str:
    """Return why a block is kept of which no node takes work."""
    if len(scene.machines) < scene.block.expects:
        return "not all of its machines are up"
    if until is None or not _is_closed(scene):
        return "it takes no work now, and may by itself again (`longshore nodes` says why)"
    one, gone = len(scene.machines) == 1, [each.gone for each in scene.machines]
    if all(gone):
        has_left = "its agent has left" if one else "their agents have left"
        closed, again = has_left, "it comes back" if one else "they come back"
    elif any(gone):
        closed = "its nodes are cordoned or drained, or their agents have left"
        again = "they take work again"
    else:
        closed = f"{'its node is' if one else 'its nodes are'} cordoned or drained"
        again = f"{'it is' if one else 'they are'} uncordoned"
    return f"{closed}: it ends at {until:%H:%M} UTC unless {again}"


def _a_closed_node(scene: BlockScene) -> str:
    """Return what is waited for of a block of which some nodes take work."""
    if any(each.gone for each in scene.machines):
        return "the agent of a node of it has left, and may come back"
    return "a node of it is cordoned or drained, and may be uncordoned"


def fleet_of_scene(scene: BlockScene) -> Fleet:
    """Return what the pool has of the block's tier, and what is coming."""
    fleet = fleet_of(scene.pool, scene.under_way, scene.packing, scene.recent)
    return fleet.of_tier(scene.block.tier)


def _starts_there(scene: BlockScene, fleet: Fleet) -> bool:
    """Return whether a job would start on what the block's purchase is bringing."""
    wanted = [job.request for job in scene.queue[:MOST_QUEUED]]
    return bool(fleet.outlook(wanted, scene.now).jobs_on(_on_its_way(scene)))


def _on_its_way(scene: BlockScene) -> set[str]:
    """Return the nodes that the block's purchase is bringing."""
    mine = [each for each in scene.under_way if each.id == scene.block.coming]
    return {name for each in mine for name in names_under_way(each)}


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


def _kind(scene: BlockScene, node: Node) -> Node:
    """Return a node without what does not matter to the warm target; of its end there is left
    whether it counts."""
    ends_at = None if _counts(scene, node) else scene.now
    return node.model_copy(
        update={
            "id": "", "block_id": None, "epoch": 0, "price": None, "labels": {}, "data": (),
            "expires_at": ends_at,
        }
    )  # fmt: skip


class _Target:
    """What lacks of the warm target with a fleet, and whether more would without some nodes."""

    def __init__(self, scene: BlockScene, fleet: Fleet) -> None:
        self.scene = scene
        self.fleet = fleet

    @cached_property
    def short(self) -> int:
        """GPUs that lack."""
        return _short(self.scene, self.fleet)

    @cached_property
    def lasting(self) -> "_Target":
        """The same of what is there, with nodes that do not end."""
        return _Target(self.scene, _lasting(self.scene, _without(self.fleet, self.fleet.coming)))

    def needs(self, names: Collection[str]) -> bool:
        """Return whether the warm target lacks more without these nodes."""
        return _short(self.scene, _without(self.fleet, names)) > self.short


def _is_wanted(target: _Target, node: Node) -> bool:
    """Return whether the warm target lacks more without an idle node.

    One too near its end to count is wanted until another is there in its place: what comes does
    not hold jobs yet.
    """
    if _counts(target.scene, node):
        return target.needs({node.id})
    if not wants_warm(node.gpu_type, target.scene.policy):
        return False
    return target.lasting.needs({node.id})


def _short(scene: BlockScene, fleet: Fleet) -> int:
    """Return how many GPUs lack of the warm target, as who buys for it counts them."""
    tier, policy = scene.block.tier, scene.policy
    if tier is not Tier.FAST or not policy.keeps_warm:
        return 0
    queue = bought_for(scene.queue, tier, fleet, policy, scene.now)
    return short_of_warm(queue, fleet, policy, scene.demand, scene.now)


def _counts(scene: BlockScene, node: Node) -> bool:
    """Return whether a node that is there counts for the warm target."""
    return counts(node, scene.policy, scene.packing, scene.now)


def _without(fleet: Fleet, names: Collection[str]) -> Fleet:
    running = tuple(job for job in fleet.running if job.node_id not in names)
    nodes = tuple(node for node in fleet.nodes if node.id not in names)
    return replace(fleet, nodes=nodes, running=running)


def _lasting(scene: BlockScene, fleet: Fleet) -> Fleet:
    """Return a fleet whose nodes of the target's type do not end."""
    nodes = tuple(
        node.model_copy(update={"expires_at": None})
        if wants_warm(node.gpu_type, scene.policy) else node
        for node in fleet.nodes
    )  # fmt: skip
    return replace(fleet, nodes=nodes)
