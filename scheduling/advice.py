"""What would help a job that no node can take.

The constraint that ruled a node out decides: one table for all who advise, which are `submit`,
`why` and the refusal of a fixed pool. To change the job is advised only where it then fits.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.job import Tier
from longshore.models.node import Node, NodeState
from longshore.models.placement import JobRequest, Rejection, RejectionCode
from longshore.models.text import count, listed
from longshore.models.visible import brief
from longshore.scheduling.packer import could_ever_place


class _Help(NamedTuple):
    joins: str
    """What kind of node the job waits for, where the constraint holds of empty nodes too."""
    change: str = ""
    """What to change about the job or the nodes."""
    busy: bool = False
    """Whether the ends of other jobs help, where an empty node would do."""


_IN_ONE_DOMAIN = " of one domain"
_MOST_CONSTRAINTS, _MOST_VALUES = 3, 5
"""That advice names."""
_CODES = {
    RejectionCode.TIER: _Help("a {tier} node"),
    RejectionCode.GPU_TYPE: _Help("a node with {gpu_type} GPUs"),
    RejectionCode.FLAVOR: _Help("a node with {gpu_type} GPUs"),
    RejectionCode.CONTAINER_RUNTIME: _Help(
        "a node that runs images",
        "no docker or podman was found there: give a command without an image, or install one "
        "and restart the agent",
    ),
    RejectionCode.FETCHING: _Help(
        "a node whose agent fetches data and knows conda",
        "restart the agent with the version of the control worker (`longshore doctor` names it)",
    ),
    RejectionCode.CONSTRAINT: _Help("a node with {constraints}"),
    RejectionCode.LABELS: _Help(
        "nodes that name their region, cluster and fabric.domain",
        "start the agents with labels, the same for nodes that share fast fabric, as in "
        "`longshore agent --pool {pool} --label region=r1 --label cluster=c1 "
        "--label fabric.domain=f1`",
    ),
    RejectionCode.CONFORMANCE: _Help(
        "a node that says what driver and kernel parameters it has",
        "leave out conformance, set gang.same_conformance to prefer, or add nodes that say what "
        "they have (`longshore topology`)",
    ),
    RejectionCode.NOT_ALLOWED: _Help(
        "a node with a fingerprint that it allows",
        "allow the fingerprints of other nodes too; `longshore topology` lists them",
    ),
    RejectionCode.EXPIRY: _Help(
        "a node that lasts longer",
        "lower expected_duration or the grace if they are too careful, or add a node that lasts "
        "longer",
    ),
    RejectionCode.CPU: _Help("a node with more cores", "ask for fewer cpus", busy=True),
    RejectionCode.RAM: _Help("a node with more RAM", "ask for less ram", busy=True),
    RejectionCode.STORAGE: _Help(
        "a node with more storage bandwidth", "ask for less storage_bandwidth", busy=True
    ),
    RejectionCode.POWER: _Help(
        "a node with more power",
        "limit what its GPUs draw and say so as power_per_gpu",
        busy=True,
    ),
    RejectionCode.GPU_COUNT: _Help(
        "a larger node",
        "ask for fewer GPUs: a job's GPUs are all on one node, unless `gang` lets it span several",
    ),
    RejectionCode.VRAM: _Help(
        "a node with larger GPUs", "ask for less vram_per_gpu, or add a node with larger GPUs"
    ),
    RejectionCode.MIG_PROFILE: _Help(
        "a node whose GPUs have the profile",
        "name another profile, or start an agent on GPUs in MIG mode",
    ),
    RejectionCode.MIG_BUSY: _Help("a larger node", "name a smaller profile", busy=True),
    RejectionCode.SHARES_BUSY: _Help(
        "a larger node", "ask for a smaller milli or less vram_per_gpu", busy=True
    ),
    RejectionCode.GPUS_BUSY: _Help("a larger node", busy=True),
    RejectionCode.DOMAIN: _Help("more nodes{together}", busy=True),
}
"""What rules a node out for a state, or for a reservation before the job, is not among them."""


def advice(
    job: JobRequest,
    rejections: Sequence[Rejection],
    nodes: Sequence[Node],
    now: datetime,
    *,
    pool: str,
    may_stop: bool = False,
) -> tuple[str, ...]:
    """Return what would help, the most frequent constraint first.

    `rejections` are of nodes as they are, and where one is for good, of the node as if it were
    empty (`scheduling.unready_nodes`). With `may_stop` jobs run there that may be preempted.
    """
    found: list[str] = []
    job = job.smallest
    for (code, permanent), _ in Counter((r.code, r.permanent) for r in rejections).most_common():
        if code is RejectionCode.STATE:
            found += _of_states(rejections, nodes)
            continue
        of = _CODES.get(code)
        if of is None:
            continue
        if of.busy and not permanent:
            found.append(_wait_for_ends(job, may_stop=may_stop))
        found += _changes(job, code, nodes, now, pool) if permanent else ()
        if of.change:
            found.append(of.change.format(pool=pool))
    return tuple(dict.fromkeys(found))


def kind_of_node(job: JobRequest, rejections: Iterable[Rejection]) -> str:
    """Return what kind of node the job waits for, where none that is there could ever hold it:
    ``a FLEX node``."""
    codes = {each.code for each in rejections if each.code in _CODES}
    if RejectionCode.DOMAIN in codes:
        codes = {RejectionCode.DOMAIN}
    if len(codes) != 1:
        return "one with all that it asks for"
    return _in_words(_CODES[codes.pop()].joins, job)


def _changes(
    job: JobRequest, code: RejectionCode, nodes: Sequence[Node], now: datetime, pool: str
) -> list[str]:
    """Return what changes of the job would let these nodes hold it, or which node would."""
    gang = job.gang
    tries: list[tuple[str, dict[str, object]]] = []
    last = ""
    if code is RejectionCode.TIER:
        other = Tier.FLEX if job.tier is Tier.FAST else Tier.FAST
        tries = [(f"give the job the tier {other} (`--set tier={other}`)", {"tier": other})]
        last = f"add a {job.tier} node: `longshore agent --pool {pool} --tier {job.tier.lower()}`"
    elif code in (RejectionCode.GPU_TYPE, RejectionCode.FLAVOR):
        tries = [("name another gpu_type, or leave it out", {"gpu_type": None})]
        last = f"add {_in_words(_CODES[code].joins, job)}"
    elif code is RejectionCode.CONSTRAINT:
        return _of_constraints(job, nodes, now, pool)
    elif code is RejectionCode.LABELS and gang is not None:
        tries = [("set gang.unlabelled_nodes", {"unlabelled_nodes": True})]
    elif code is RejectionCode.DOMAIN and gang is not None:
        tries = [
            ("let its groups spread over domains: gang.allow_cross_group_spread",
             {"allow_cross_group_spread": True}),
            ("make gang.group_gpus smaller", {"group_gpus": 1}),
            ("do without spares: gang.spares_required: false", {"spares_required": False}),
        ]  # fmt: skip
        last = _in_words("ask for fewer GPUs, or add nodes{together}", job)
    else:
        return []
    helps = [said for said, change in tries if could_ever_place(_with(job, change), nodes, now)]
    return [*helps, *filter(None, [last])]


def _of_constraints(job: JobRequest, nodes: Sequence[Node], now: datetime, pool: str) -> list[str]:
    """Return for each constraint that nodes do not satisfy what these have instead, and what helps
    with it; the one that most fail first."""
    failing = {
        each: [node for node in nodes if not each.allows(node.labels.get(each.key))]
        for each in job.constraints
    }
    found: list[str] = []
    for each in sorted(failing, key=lambda each: -len(failing[each]))[:_MOST_CONSTRAINTS]:
        if not failing[each]:
            continue
        found.append(f"{brief(str(each))} {_labels_there(each.key, failing[each], len(nodes))}")
        others = tuple(other for other in job.constraints if other != each)
        if could_ever_place(_with(job, {"constraints": others}), nodes, now):
            found[-1] += "; without it the job would fit"
        if each.values and not each.negated:
            label = shlex.quote(brief(f"{each.key}={each.values[0]}"))
            found.append(
                f"add a node with it, or start the agent of one anew so: "
                f"`longshore agent --pool {pool} --label {label}`"
            )
    return found


def _labels_there(key: str, failing: Sequence[Node], nodes: int) -> str:
    """Return ``holds on 1 of 6 nodes; the others have zone=b (3), zone=c (1), no label zone (1)``,
    for the nodes that fail."""
    values = Counter(node.labels.get(key) for node in failing)
    ordered = sorted(values.items(), key=lambda item: (item[0] is None, -item[1], item[0] or ""))
    has = [
        f"{brief(f'{key}={value}') if value is not None else f'no label {key}'} ({number})"
        for value, number in ordered
    ]
    on = nodes - len(failing)
    where = (
        f"holds on {on or 'none'} of {count(nodes, 'node')}{'; the others have' if on else ':'}"
    )
    return f"{where} {listed(has, _MOST_VALUES)}"


def _with(job: JobRequest, change: dict[str, object]) -> JobRequest:
    """Return the job with other fields; those of its gang are named as if they were its own."""
    if job.gang is None or not change.keys() <= type(job.gang).model_fields.keys():
        return job.model_copy(update=change)
    return job.model_copy(update={"gang": job.gang.model_copy(update=change)})


def _wait_for_ends(job: JobRequest, *, may_stop: bool) -> str:
    asks = f", ask who would be preempted for it (`longshore preempt --dry-run {job.id}`)"
    return (
        f"wait for running jobs to end (`longshore jobs`){asks if may_stop else ''}, or add a node"
    )


def _of_states(rejections: Sequence[Rejection], nodes: Sequence[Node]) -> list[str]:
    """Return what helps with nodes that are not ready: of those that somebody shut, the one with
    most free GPUs is let in again. Nothing keeps a bought one whose jobs leave it. Of another one
    the agent is looked at."""
    states = {each.node_id: each.reason for each in rejections if each.code is RejectionCode.STATE}
    unready = [node for node in nodes if node.id in states]
    draining = [node for node in unready if node.state is NodeState.DRAINING]
    shut = [node for node in draining if _is_shut_by_hand(node)]
    other = next((node for node in unready if node.state is not NodeState.DRAINING), None)
    hints: list[str] = []
    if shut:
        best = max(shut, key=lambda node: sum(gpu.is_free for gpu in node.gpus)).id
        hints.append(f"let {best} take jobs again: `longshore uncordon {best}`")
    if other:
        hints.append(
            f"look at the agent of {other.id}, which {states[other.id]} (`longshore nodes`)"
        )
    if draining and not hints:
        hints.append(f"add a node: {draining[0].id} is on its way out")
    return hints


def _is_shut_by_hand(node: Node) -> bool:
    """Return whether `longshore uncordon` lets a node that drains in again. A bought one that its
    jobs leave is on its way out; nobody else drains one of our own."""
    return node.cordoned or (node.block_id is None and node.expires_at is None)


def _in_words(text: str, job: JobRequest) -> str:
    gpu_type, together = (job.gpu_type or "").upper(), _IN_ONE_DOMAIN if _is_whole(job) else ""
    constraints = listed([brief(str(each)) for each in job.constraints], _MOST_CONSTRAINTS)
    return text.format(
        tier=job.tier, gpu_type=gpu_type, together=together, constraints=constraints
    )


def _is_whole(job: JobRequest) -> bool:
    """Return whether all GPUs of a gang have to be in one domain."""
    gang = job.gang
    if gang is None:
        return False
    named = gang.group_gpus is not None and len(gang.group_sizes(job.gpus)) == 1
    return named or not gang.allow_cross_group_spread
