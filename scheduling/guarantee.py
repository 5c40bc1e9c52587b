"""Which jobs that have waited long come first for that: those that could start.

One that nobody pays for, or that no node of the pool could hold, waits on however far it comes
forward, and would take the place of those behind it for as long.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import cache

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.scheduling.placement.feasibility import fits_when_empty, when_empty
from longshore.scheduling.placement.filters import attributes_of, first_failure, labels_named
from longshore.scheduling.placement.state import Need
from longshore.scheduling.rank import GUARANTEED_AFTER, waits_since


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
    def there(labels: tuple[str, ...]) -> Collection[tuple[Node, int]]:
        """Return of each kind of node one, with the GPUs of all."""
        kinds: dict[object, tuple[Node, int]] = {}
        for node in nodes:
            kind = when_empty(node, labels)
            one, gpus = kinds.get(kind, (node, 0))
            kinds[kind] = one, gpus + len(node.gpus)
        return kinds.values()

    @cache
    def holds(need: Need, gpus_of_gang: int) -> bool:
        labels = labels_named((need,))
        if not gpus_of_gang:
            return any(fits_when_empty(node, need) for node, _ in there(labels))
        suits = (
            gpus
            for node, gpus in there(labels)
            if first_failure(attributes_of(node, labels), need) is None
        )
        return sum(suits) >= gpus_of_gang

    def may(job: JobRequest) -> bool:
        if job.id in held or (job.id in waits_for_funds and job.id in policy.unfunded):
            return False
        smallest = job.smallest
        return holds(Need.of(smallest, policy), smallest.gpus if smallest.gang else 0)

    return may
