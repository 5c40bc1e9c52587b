"""What could be changed about a job, or about the nodes, so that these could hold it.

A change is tried: it is told where the job then fits, and where one does not do, all of those that
it takes together.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from longshore.models.constraints import Constraint, OnNodes
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy, RejectionCode
from longshore.models.text import listed
from longshore.models.topology import FABRIC_LABELS, SameConformance
from longshore.models.visible import brief
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.plan import could_ever_hold as gang_could_ever_hold
from longshore.scheduling.packer import could_ever_place
from longshore.scheduling.placement.feasibility import when_empty
from longshore.scheduling.placement.filters import all_labels, labels_named
from longshore.scheduling.placement.state import view_nodes
from longshore.scheduling.topology import missing_labels
from longshore.scheduling.unready_nodes import in_the_way_for_good

_MOST_CONSTRAINTS = 3
_MOST_KINDS = 50
"""Kinds of nodes that are asked what it takes there."""
_EXAMPLES = dict(zip(FABRIC_LABELS, ("r1", "c1", "f1"), strict=True))
FEWER_GPUS = "ask for fewer GPUs"
"""Of a gang; more nodes would do as well."""
_POLICY = PackingPolicy()
"""Empty nodes with time left: what a pool prefers does not matter."""


def _same_job(job: JobRequest) -> JobRequest:
    return job


def _same_nodes(nodes: Sequence[Node]) -> Sequence[Node]:
    return nodes


class Change(NamedTuple):
    """One change of the job or of the nodes; of an amount to the least that there can be."""

    code: RejectionCode
    says: str
    of_job: Callable[[JobRequest], JobRequest] = _same_job
    of_nodes: Callable[[Sequence[Node]], Sequence[Node]] = _same_nodes

    def made(self, job: JobRequest, nodes: Sequence[Node]) -> tuple[JobRequest, Sequence[Node]]:
        """Return both with it."""
        return self.of_job(job), self.of_nodes(nodes)

    def suffices(self, job: JobRequest, nodes: Sequence[Node], now: datetime) -> bool:
        """Return whether the nodes, empty, could hold the job then."""
        return could_ever_place(*self.made(job, nodes), now)


_LESS: dict[RejectionCode, tuple[str, dict[str, object]]] = {
    RejectionCode.GPU_TYPE: ("name another gpu_type, or leave it out", {"gpu_type": None}),
    RejectionCode.FLAVOR: ("name another gpu_type, or leave it out", {"gpu_type": None}),
    RejectionCode.CONTAINER_RUNTIME: (
        "no docker or podman was found there: give a command without an image, or install one "
        "and restart the agent",
        {"needs_container": False},
    ),
    RejectionCode.FETCHING: (
        "restart the agent with the version of the control worker (`longshore doctor` names it)",
        {"needs_conda": False, "data": {}, "serves": False},
    ),
    RejectionCode.NOT_ALLOWED: (
        "allow the fingerprints of other nodes too; `longshore topology` lists them",
        {"conformance": None},
    ),
    RejectionCode.CPU: ("ask for fewer cpus", {"cpus": 0.0}),
    RejectionCode.RAM: ("ask for less ram", {"ram": 0.0}),
    RejectionCode.STORAGE: ("ask for less storage_bandwidth", {"storage_bandwidth": 0.0}),
    RejectionCode.POWER: (
        "limit what its GPUs draw and say so as power_per_gpu", {"power_per_gpu": 0.0},
    ),
    RejectionCode.GPU_COUNT: (
        "ask for fewer GPUs: a job's GPUs are all on one node, unless `gang` lets it span several",
        {"gpus": 1},
    ),
    RejectionCode.VRAM: ("ask for less vram_per_gpu", {"vram_per_gpu": 0.0}),
    RejectionCode.SHARES_BUSY: (
        "ask for a smaller milli or less vram_per_gpu", {"milli": 1, "vram_per_gpu": 0.0},
    ),
}  # fmt: skip
"""Of a constraint that one change of the job's own fields meets."""
_SMALLER_MODEL = (
    "give its model a smaller context or concurrency, or less memory where that was given "
    "(`longshore models add` again, then `longshore serve`)"
)


def changes(
    code: RejectionCode, job: JobRequest, nodes: Sequence[Node], pool: str
) -> tuple[Change, ...]:
    """Return the changes that could help where this constraint ruled nodes out, each for itself,
    whether it suffices or not."""
    if code in _LESS:
        says, update = _LESS[code]
        if job.serves and "vram_per_gpu" in update:  # no field of its service says so
            says = _SMALLER_MODEL
        return (_of_job(code, says, update),)
    match code:
        case RejectionCode.TIER:
            other = Tier.FLEX if job.tier is Tier.FAST else Tier.FAST
            says = f"give the job the tier {other} (`--set tier={other}`)"
            return (_of_job(code, says, {"tier": other}),)
        case RejectionCode.CONSTRAINT:
            failing = failing_constraints(job, nodes)
            if not failing:
                return ()
            kept = tuple(each for each in job.constraints if each not in failing)
            named = listed([brief(str(each)) for each in failing], _MOST_CONSTRAINTS)
            return (_of_job(code, f"do without {named}", {"constraints": kept}),)
        case RejectionCode.LABELS:
            start = agent_command(job, pool, fabric=True)
            says = (
                "start the agents with labels, the same for nodes that share fast fabric, as in "
                f"{start}"
            )
            do_without = "set gang.unlabelled_nodes to true (`--set gang.unlabelled_nodes=true`)"
            alone = _of_job(code, do_without, {"unlabelled_nodes": True})
            return alone, Change(code, says, of_nodes=_labelled)
        case RejectionCode.CHANGED:
            says = (
                "look at what has changed there (`longshore nodes` lists fingerprints), and "
                "accept it: `longshore accept NODE`"
            )
            return (Change(code, says, of_nodes=_accepted),)
        case RejectionCode.CONFORMANCE if job.sensitive and job.conformance is None:
            says = (
                "add nodes that say what they have (`longshore topology`; simulated ones never "
                "do): a sensitive job runs on no other"
            )
            return (Change(code, says, _whatever_fingerprint),)
        case RejectionCode.CONFORMANCE:
            says = (
                "leave out conformance, set gang.same_conformance to prefer, or add nodes that "
                "say what they have (`longshore topology`; simulated ones never do)"
            )
            return (Change(code, says, _whatever_fingerprint),)
        case RejectionCode.MIG_PROFILE | RejectionCode.MIG_BUSY:
            there = {name for node in nodes for gpu in node.gpus for name in gpu.mig or ()}
            says = "name another profile"
            return tuple(_of_job(code, says, {"mig": name}) for name in sorted(there))
        case RejectionCode.DOMAIN:
            return _of_domains(code)
        case _:
            return ()


def together(
    job: JobRequest, nodes: Sequence[Node], now: datetime, pool: str
) -> tuple[Change, ...]:
    """Return the fewest changes with which some of the nodes, empty, could hold the job; none
    where it takes what is not the job's to change. A gang takes all nodes together."""
    if job.gang is not None:
        return _needed(_steps(job, nodes, now, pool), job, nodes, now)
    return min(filter(None, _ways(job, nodes, now, pool)), key=len, default=())


def lacking(job: JobRequest, nodes: Sequence[Node], now: datetime) -> tuple[RejectionCode, ...]:
    """Return what one or the other of these nodes, empty, lacks for the job: a node that has all
    of it could hold the job. The most frequent first."""
    ways = _ways(job, nodes, now, "")
    return tuple(code for code, _ in Counter(c.code for way in ways for c in way).most_common())


def _ways(
    job: JobRequest, nodes: Sequence[Node], now: datetime, pool: str
) -> list[tuple[Change, ...]]:
    """Return for each kind of node the fewest changes with which it could hold the job."""
    labels = labels_named((job,))
    alike: dict[object, Node] = {}
    for node in nodes:
        alike.setdefault(when_empty(node, labels), node)
        if len(alike) == _MOST_KINDS:
            break
    return [_needed(_steps(job, [node], now, pool), job, [node], now) for node in alike.values()]


def agent_command(job: JobRequest, pool: str, *, fabric: bool = False) -> str:
    """Return the command that starts an agent whose node has the tier and the labels that the job
    asks for; of its `fabric` too, where that is what lacks."""
    words = ["longshore agent --pool", shlex.quote(pool)]
    if job.tier is not Tier.FAST:
        words.append(f"--tier {job.tier.lower()}")
    labels = {**(_EXAMPLES if fabric or _needs_fabric(job) else {}), **labels_asked(job)}
    words += [f"--label {shlex.quote(f'{key}={value}')}" for key, value in labels.items()]
    return f"`{' '.join(words)}`"


def adding(what: str, start: str) -> str:
    """Return ``add a node with 8 GPUs or more: run `longshore agent --pool p` on it``: of any
    machine the command makes a node, so the sentence says which it has to be."""
    one = what.startswith(("a ", "one "))
    return f"add {what}: run {start} on {'it' if one else 'each'}"


def most_gpus(job: JobRequest, nodes: Sequence[Node], now: datetime) -> int:
    """Return how many GPUs at most a gang that these nodes, empty, cannot hold could have there;
    0 where it would not fit with fewer either."""
    if job.gang is None:
        return 0
    views = GangNodes.of(view_nodes(nodes, (), now), all_labels(job, nodes))

    def fits(gpus: int) -> bool:
        return gang_could_ever_hold(_with(job, {"gpus": gpus}), views)

    low = job.gang.group_gpus or 1  # a job has one group at least
    high = min(job.gpus - 1, sum(len(node.gpus) for node in nodes))
    if low > high or not fits(low):
        return high if low <= high and fits(high) else 0
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def labels_asked(job: JobRequest) -> dict[str, str]:
    """Return labels with which a node satisfies the constraints of the job."""
    values = {
        key: _value_for(key, job.constraints)
        for key in labels_named((job,))
        if not isinstance(key, OnNodes)
    }
    return {key: value for key, value in values.items() if value is not None}


def failing_constraints(job: JobRequest, nodes: Sequence[Node]) -> dict[Constraint, list[Node]]:
    """Return the constraints of the job that nodes do not satisfy, with these."""
    failing = {
        each: [node for node in nodes if not each.allows(node.labels.get(each.key))]
        for each in job.constraints
        if not each.why_on_nodes
    }
    return {each: fail for each, fail in failing.items() if fail}


def _of_job(code: RejectionCode, says: str, update: dict[str, object]) -> Change:
    return Change(code, says, partial(_with, change=update))


def _of_domains(code: RejectionCode) -> tuple[Change, ...]:
    return (
        _of_job(
            code,
            "let its groups spread over domains: gang.allow_cross_group_spread",
            {"allow_cross_group_spread": True},
        ),
        _of_job(code, "make gang.group_gpus smaller", {"group_gpus": 1}),
        _of_job(
            code, "do without spares: gang.spares_required: false", {"spares_required": False}
        ),
        Change(code, FEWER_GPUS, _of_one_gpu),
    )


def _steps(job: JobRequest, nodes: Sequence[Node], now: datetime, pool: str) -> tuple[Change, ...]:
    """Return changes with which the nodes could hold the job: of one constraint after the other,
    as each comes to be in the way."""
    steps: list[Change] = []
    tried: set[RejectionCode] = set()
    while not could_ever_place(job, nodes, now):
        codes = Counter(each.code for each in in_the_way_for_good(job, nodes, _POLICY, now))
        code = next((code for code, _ in codes.most_common() if code not in tried), None)
        found = () if code is None else changes(code, job, nodes, pool)
        if code is None:
            return ()
        tried.add(code)
        if not found:
            continue
        step = next((each for each in found if each.suffices(job, nodes, now)), found[-1])
        steps.append(step)
        job, nodes = step.made(job, nodes)
    return tuple(steps)


def _needed(
    steps: Collection[Change], job: JobRequest, nodes: Sequence[Node], now: datetime
) -> tuple[Change, ...]:
    """Return the steps without those that the others do not need."""
    kept = list(steps)
    for each in steps:
        fewer = [other for other in kept if other is not each]
        with_them = job, nodes
        for other in fewer:
            with_them = other.made(*with_them)
        if could_ever_place(*with_them, now):
            kept = fewer
    return tuple(kept)


def _with(job: JobRequest, change: dict[str, object]) -> JobRequest:
    """Return the job with other fields; those of its gang are named as if they were its own."""
    if job.gang is None or not change.keys() <= type(job.gang).model_fields.keys():
        return job.model_copy(update=change)
    return job.model_copy(update={"gang": job.gang.model_copy(update=change)})


def _of_one_gpu(job: JobRequest) -> JobRequest:
    alone: dict[str, object] = {
        "allow_cross_group_spread": True, "group_gpus": None, "spares_per_group": 0,
    }  # fmt: skip
    return _with(_with(job, alone), {"gpus": 1})


def _whatever_fingerprint(job: JobRequest) -> JobRequest:
    job = job.model_copy(update={"conformance": None, "sensitive": False})
    return job if job.gang is None else _with(job, {"same_conformance": SameConformance.PREFER})


def _accepted(nodes: Sequence[Node]) -> list[Node]:
    return [node.model_copy(update={"changed": False}) for node in nodes]


def _labelled(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes as if those without labels of their fabric were in one domain."""
    return [
        node.model_copy(update={"labels": {**_EXAMPLES, **node.labels}})
        if missing_labels(node)
        else node
        for node in nodes
    ]


def _needs_fabric(job: JobRequest) -> bool:
    return job.gang is not None and not job.gang.unlabelled_nodes


def _value_for(key: str, constraints: Sequence[Constraint]) -> str | None:
    """Return a value of a label that satisfies all that is asked of it; None where the node is to
    have no such label, or nothing is known to do."""
    asked = [each for each in constraints if each.key == key]
    if all(each.negated for each in asked):
        return None
    values = [value for each in asked if not each.negated for value in each.values]
    return next(
        (value for value in (*values, "true") if all(each.allows(value) for each in asked)), None
    )
