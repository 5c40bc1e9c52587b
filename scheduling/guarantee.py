"""Which jobs that have waited long come first for that: those that could start.

One that nobody pays for, or that no node of the pool could hold, waits on however far it comes
forward, and would take the place of those behind it for as long.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from functools import cache

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.topology import Gang
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.plan import could_ever_hold
from longshore.scheduling.placement.feasibility import fits_when_empty, when_empty
from longshore.scheduling.placement.filters import LabelNames, all_labels, labels_named
from longshore.scheduling.placement.state import Need, view_nodes
from longshore.scheduling.rank import GUARANTEED_AFTER, waits_since

_FEW = 64
"""Nodes that are looked at first: most gangs fit on these."""
_ANY_TIME = datetime.max.replace(tzinfo=UTC)


def has_waited_long(job: JobRequest, now: datetime) -> bool:
    """Return whether a job that waits has waited long in all."""
    since = waits_since(job)
    return since is not None and now - since >= GUARANTEED_AFTER


def may_come_first(
    policy: PackingPolicy, nodes: Iterable[Node], held: Collection[str] = ()
) -> Callable[[JobRequest], bool]:
    """Return whether a job may come first for having waited long, in a pool of these nodes; those
    that are `held` may not."""
    waits_for_funds = policy.funding.held if policy.funding else frozenset[str]()

    @cache  # few jobs are asked about, mostly none
    def there(labels: tuple[str, ...]) -> Collection[Node]:
        """Return a node of each kind."""
        return {when_empty(node, labels): node for node in nodes}.values()

    @cache
    def empty(labels: LabelNames, most: int | None) -> GangNodes:
        return GangNodes.of(view_nodes(tuple(nodes)[:most], (), _ANY_TIME), labels)

    @cache
    def holds(need: Need) -> bool:
        return any(fits_when_empty(node, need) for node in there(labels_named((need,))))

    known: dict[tuple[Need, Gang], bool] = {}

    def hold_gang(job: JobRequest, gang: Gang) -> bool:
        """Return whether they hold it together: its groups, in domains and of one flavor."""
        asked = Need.of(job, policy).but_for_time(), gang
        if asked not in known:
            names = all_labels(job, nodes)
            labels = None if names is None else tuple(names)
            some = (empty(labels, most) for most in (_FEW, None))
            known[asked] = any(could_ever_hold(job, each) for each in some)
        return known[asked]

    def may(job: JobRequest) -> bool:
        if job.id in held or (job.id in waits_for_funds and job.id in policy.unfunded):
            return False
        smallest = job.smallest
        if smallest.gang is not None:
            return hold_gang(smallest, smallest.gang)
        return holds(Need.of(smallest, policy))

    return may
