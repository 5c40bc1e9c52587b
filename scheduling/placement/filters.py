"""The filters: what has to hold of a node before it may serve a job, whatever runs there.

One list. The queue's cycle and its compiled pass ask it of all nodes at once, gangs and preemption
of one node after the other, and buying plans as the cycle does. A filter looks at attributes of a
node that no placement changes; what is free there, and until when, is asked elsewhere.

A new constraint is an entry of `FILTERS`, with what it looks at in `Attributes`, `Need` and
`asked`.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from longshore.models.constraints import Constraint, OnNodes
from longshore.models.funding import PaidOn
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import RejectionCode
from longshore.models.text import listed
from longshore.models.visible import brief
from longshore.scheduling.placement.state import Need

_MOST_ALLOWED = 3
"""Fingerprints that a reason names."""
_MOST_CONSTRAINTS = 3
"""Constraints that a reason names, and labels."""


LabelNames = Sequence[str] | None
"""Of the labels that are looked at, in order; None: all. Nodes that differ in none of these get
equal answers from jobs that ask for no other one. With labels that each node has a value of its
own for, such as its domain, no two nodes would be alike."""


class Attributes(NamedTuple):
    """What the filters look at of a node."""

    tier: Tier
    gpu_types: tuple[str, ...]
    """The names of its type of GPU, in lower case."""
    container: bool
    """Whether it runs images."""
    fetches: bool
    """Whether its agent fetches data for jobs, and knows conda."""
    serves: bool
    """Whether its agent runs engines, and gives shares of several GPUs."""
    conformance: str | None
    """The fingerprint of its drivers, firmware and kernel parameters; None: it has not said."""
    changed: bool
    """Whether that is another than the one that was accepted for it."""
    labels: tuple[tuple[str, str], ...]
    """In the order of their names."""


class Filter(NamedTuple):
    """One constraint."""

    code: RejectionCode
    fails: Callable[[Attributes, Need], bool]
    why: Callable[[Node, Need], str]
    """Says what the node has and the job wants, where it fails: `node-a <this>`."""


def attributes_of(node: Node, names: LabelNames = None) -> Attributes:
    """Return what the filters look at of a node, of its labels those of these names."""
    names = sorted(node.labels) if names is None else names
    labels = tuple([(name, node.labels[name]) for name in names if name in node.labels])
    for name in names:
        if isinstance(name, OnNodes) and node.id in name.nodes:
            labels += ((name, ""),)
    return Attributes(
        node.tier, (node.gpu_type.casefold(),), node.container_runtime is not None,
        node.fetches, node.serves, node.conformance or None, node.changed, labels,
    )  # fmt: skip


def labels_named(jobs: Iterable[JobRequest | Need | PaidOn]) -> tuple[str, ...]:
    """Return the names of the labels that jobs ask for, in order, and those who pay for them."""
    return tuple(sorted({each.key for job in jobs if job.constraints for each in job.constraints}))


def all_labels(job: JobRequest, nodes: Iterable[Node]) -> LabelNames:
    """Return the names of all labels, with what a job asks of which nodes they are."""
    of_nodes = {each.key for each in job.constraints if each.why_on_nodes}
    return sorted(of_nodes.union(*(node.labels for node in nodes))) if of_nodes else None


def first_failure(of: Attributes, need: Need) -> RejectionCode | None:
    """Return the first constraint of the list that fails; None where the node may serve."""
    return next((each.code for each in FILTERS if each.fails(of, need)), None)


def asked(need: Need) -> Hashable:
    """Return all that the filters look at of a need: equal ones get equal answers."""
    return (
        need.tier,
        need.gpu_types,
        need.container,
        need.fetches,
        need.serves,
        need.known,
        need.allowed,
        need.alone,
        need.constraints,
    )


def _of_another_tier(of: Attributes, need: Need) -> bool:
    return of.tier is not need.tier


def _why_another_tier(node: Node, need: Need) -> str:
    return f"is a {node.tier} node, job is {need.tier}"


def _of_another_gpu_type(of: Attributes, need: Need) -> bool:
    return bool(need.gpu_types) and set(need.gpu_types).isdisjoint(of.gpu_types)


def _why_another_gpu_type(node: Node, need: Need) -> str:
    return f"has {node.gpu_type or 'unnamed'} GPUs, job wants {need.types_text}"


def _without_runtime(of: Attributes, need: Need) -> bool:
    return need.container and not of.container


def _why_no_runtime(node: Node, need: Need) -> str:
    return "has no container runtime, job runs an image"


def _too_old(of: Attributes, need: Need) -> bool:
    return (need.fetches and not of.fetches) or (need.serves and not of.serves)


def _why_too_old(node: Node, need: Need) -> str:
    if need.serves and not node.serves:
        if not need.whole and need.gpus > 1:
            return "has an agent of a version that gives no share of several GPUs, job wants one"
        return "has an agent of a version that runs no engines, job is one"
    return "has an agent of a version that fetches no data and knows no conda, job needs that"


def _other_labels(of: Attributes, need: Need) -> bool:
    return not _all_hold(of, [each for each in need.constraints if not each.why_on_nodes])


def _all_hold(of: Attributes, constraints: Sequence[Constraint]) -> bool:
    if not constraints:
        return True
    labels = dict(of.labels)
    return all(each.allows(labels.get(each.key)) for each in constraints)


def _why_other_labels(node: Node, need: Need) -> str:
    failed = [
        each
        for each in need.constraints
        if not each.why_on_nodes and not each.allows(node.labels.get(each.key))
    ]
    keys = dict.fromkeys(each.key for each in failed)
    has = [
        brief(f"{key}={node.labels[key]}") if key in node.labels else f"no label {key}"
        for key in keys
    ]
    wants = [brief(str(each)) for each in failed]
    return (
        f"has {listed(has, _MOST_CONSTRAINTS)}, "
        f"job wants {listed(wants, _MOST_CONSTRAINTS, between='; ')}"
    )


def _over_quota(of: Attributes, need: Need) -> bool:
    return not _all_hold(of, [each for each in need.constraints if each.why_on_nodes])


def _why_over_quota(node: Node, need: Need) -> str:
    keys = (each.key for each in need.constraints)
    why = next(key.why for key in keys if isinstance(key, OnNodes) and node.id not in key.nodes)
    return f"is none of the nodes on which the tenant has jobs ({why})"


def _not_known(of: Attributes, need: Need) -> bool:
    return need.known and of.conformance is None


def _why_not_known(node: Node, need: Need) -> str:
    who = "job" if need.known else "gang"
    return f"has not said what driver and kernel parameters it has, the {who} requires it"


def _not_allowed(of: Attributes, need: Need) -> bool:
    return bool(need.allowed) and of.conformance not in need.allowed


def _why_not_allowed(node: Node, need: Need) -> str:
    allowed = listed(need.allowed, _MOST_ALLOWED)
    return f"has the fingerprint {node.conformance}, job allows {allowed}"


def _changed(of: Attributes, need: Need) -> bool:
    return need.alone and of.changed


def _why_changed(node: Node, need: Need) -> str:
    return (
        f"has a fingerprint, {node.conformance}, that is not the one accepted for it; the job is "
        "sensitive"
    )


FILTERS = (
    Filter(RejectionCode.TIER, _of_another_tier, _why_another_tier),
    Filter(RejectionCode.GPU_TYPE, _of_another_gpu_type, _why_another_gpu_type),
    Filter(RejectionCode.CONTAINER_RUNTIME, _without_runtime, _why_no_runtime),
    Filter(RejectionCode.FETCHING, _too_old, _why_too_old),
    Filter(RejectionCode.CONSTRAINT, _other_labels, _why_other_labels),
    Filter(RejectionCode.QUOTA, _over_quota, _why_over_quota),
    Filter(RejectionCode.CONFORMANCE, _not_known, _why_not_known),
    Filter(RejectionCode.NOT_ALLOWED, _not_allowed, _why_not_allowed),
    Filter(RejectionCode.CHANGED, _changed, _why_changed),
)
"""In the order in which a reason names them."""
WHY = {each.code: each.why for each in FILTERS}
