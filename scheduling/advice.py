"""What would help a job that no node can take.

The constraint that ruled a node out decides: one table for all who advise, which are `submit`,
`why` and the refusal of a fixed pool. To change the job is advised only where it then fits.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.block import FOR_SALE, mend_of_sale
from longshore.models.departures import DISK_REFUSES, is_full, mend_of_disk
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import PackingPolicy, Rejection, RejectionCode
from longshore.models.text import count, listed
from longshore.models.units import format_cores, format_gb, format_gb_per_second, format_watts
from longshore.models.visible import brief
from longshore.scheduling.job_changes import (
    FEWER_GPUS,
    adding,
    agent_command,
    changes,
    failing_constraints,
    labels_asked,
    lacking,
    most_gpus,
    together,
)
from longshore.scheduling.packer import could_ever_place, place


class _Help(NamedTuple):
    joins: str
    """What kind of node the job waits for, where the constraint holds of empty nodes too."""
    busy: bool = False
    """Whether the ends of other jobs help, where an empty node would do."""


_IN_ONE_DOMAIN = " of one domain"
_MOST_CONSTRAINTS, _MOST_VALUES = 3, 5
"""That advice names."""
_CODES = {
    RejectionCode.TIER: _Help("a {tier} node"),
    RejectionCode.GPU_TYPE: _Help("a node with {gpu_type} GPUs"),
    RejectionCode.FLAVOR: _Help("a node with {gpu_type} GPUs"),
    RejectionCode.CONTAINER_RUNTIME: _Help("a node that runs images"),
    RejectionCode.FETCHING: _Help("a node whose agent is of this version"),
    RejectionCode.CONSTRAINT: _Help("a node with {constraints}"),
    RejectionCode.LABELS: _Help("nodes that name their region, cluster and fabric.domain"),
    RejectionCode.CONFORMANCE: _Help("a node that says what driver and kernel parameters it has"),
    RejectionCode.NOT_ALLOWED: _Help("a node with a fingerprint that it allows"),
    RejectionCode.CHANGED: _Help("a node whose fingerprint has not changed"),
    RejectionCode.EXPIRY: _Help("a node that lasts longer"),
    RejectionCode.CPU: _Help("a node with {cores} or more{each}", busy=True),
    RejectionCode.RAM: _Help("a node with {ram} RAM or more{each}", busy=True),
    RejectionCode.STORAGE: _Help(
        "a node with {storage} storage bandwidth or more{each}", busy=True
    ),
    RejectionCode.POWER: _Help("a node with {power}", busy=True),
    RejectionCode.GPU_COUNT: _Help("a node with {gpus} or more"),
    RejectionCode.VRAM: _Help("a node with {gpus} of {vram} or more"),
    RejectionCode.MIG_PROFILE: _Help("a node whose GPUs have the profile"),
    RejectionCode.MIG_BUSY: _Help("a node whose GPUs have the profile", busy=True),
    RejectionCode.SHARES_BUSY: _Help("a node with {gpus} of {vram} or more", busy=True),
    RejectionCode.NOT_ALONE: _Help("a node without GPUs in MIG mode", busy=True),
    RejectionCode.GPUS_BUSY: _Help("a node with {gpus} or more", busy=True),
    RejectionCode.DOMAIN: _Help("more nodes{together}", busy=True),
}
"""What rules a node out for a state, or for a reservation before the job, is not among them."""
_ALL = "one with all that it asks for"
_LASTS_LONGER = (
    "lower expected_duration or the grace if they are too careful, or add a node that lasts longer"
)
_LASTS_FOR_A_REPLICA = "lower start_limit if it is too careful, or add a node that lasts longer"
_AS_EVER = PackingPolicy()
_NOT_TO_BE_LESS = (RejectionCode.DOMAIN, RejectionCode.GPUS_BUSY)
"""Where others are in the way: to ask for less is no advice."""


def advice(
    job: JobRequest,
    rejections: Sequence[Rejection],
    nodes: Sequence[Node],
    now: datetime,
    *,
    pool: str,
    may_stop: bool = False,
    may_end: bool = True,
    policy: PackingPolicy = _AS_EVER,
    closed: Collection[str] = (),
) -> tuple[str, ...]:
    """Return what would help, the most frequent constraint first.

    `rejections` are of nodes as they are, and where one is for good, of the node as if it were
    empty (`scheduling.unready_nodes`). With `may_stop` jobs run there that may be preempted;
    without `may_end` none that may end before the job has begun; `policy` is the pool's; `closed`
    are nodes that take none for what becomes of them or their blocks, and that nobody drains.
    Where no change does alone, all that it takes are told as one.
    """
    found: list[str] = []
    suffices = False
    job = job.smallest
    never = {each.node_id for each in rejections if each.permanent}
    there = nodes if job.gang is not None else [node for node in nodes if node.id in never]
    for (code, permanent), _ in Counter((r.code, r.permanent) for r in rejections).most_common():
        if code is RejectionCode.STATE:
            found += _of_states(rejections, nodes, closed)
        elif code in _CODES and permanent:
            helps, fits = _changes(job, code, there, now, pool)
            # A gang that is too large is told so beside.
            suffices = suffices or fits or code is RejectionCode.DOMAIN
            found += [*helps, *_additions(job, code, there, now, pool)]
        elif code in _CODES:
            if _CODES[code].busy:
                found.append(_wait_for_ends(job, may_stop=may_stop, may_end=may_end))
            found += _changes_now(job, code, nodes, policy, now, pool)
    if never and not suffices and all(each.permanent for each in rejections):
        found = [*_all_it_takes(job, there, now, pool), *found]
    return tuple(dict.fromkeys(found))


def kind_of_node(
    job: JobRequest, rejections: Collection[Rejection], nodes: Sequence[Node], now: datetime
) -> str:
    """Return what kind of node the job waits for, where none that is there could ever hold it:
    ``a FLEX node``; with what else is in the way behind that: ``a FLEX node with 100 cores or
    more``."""
    codes = {each.code for each in rejections if each.code in _CODES}
    if RejectionCode.DOMAIN in codes:
        codes = {RejectionCode.DOMAIN}
    if len(codes) != 1:
        return _ALL
    (code,) = codes
    job = job.smallest
    if job.gang is not None:
        return _in_words(_CODES[code].joins, job)
    behind = [each.code for each in together(job, nodes, now, "") if each.code is not code]
    return _kind([code, *behind], job)


def _kind(codes: Sequence[RejectionCode], job: JobRequest) -> str:
    """Return ``a FLEX node with 100 cores or more and with 16 GPUs or more``."""
    kinds = [_in_words(_CODES[code].joins, job) for code in codes]
    if len(kinds) == 1:
        return kinds[0]
    head = kinds.pop(0) if codes[0] is RejectionCode.TIER else "a node"
    return f"{head} {' and '.join(each.removeprefix('a node ') for each in kinds)}"


def _whole(job: JobRequest, code: RejectionCode, nodes: Sequence[Node], now: datetime) -> str:
    """Return what kind of node would hold the job, with all that one or the other of those that
    are there lacks: ``a FAST node with A100 GPUs and with 4 GPUs or more``."""
    codes = {code, *lacking(job, nodes, now)}
    return _kind([each for each in _CODES if each in codes], job)  # in one order: it is told once


def _all_it_takes(job: JobRequest, nodes: Sequence[Node], now: datetime, pool: str) -> list[str]:
    """Return the changes that let these nodes hold the job only together, as one piece of
    advice."""
    needed = together(job, nodes, now, pool)
    says = [each.says for each in needed]
    if len(says) < 2:
        return says
    if FEWER_GPUS in says:
        place, with_others = says.index(FEWER_GPUS), (job, nodes)
        for each in (*needed[:place], *needed[place + 1 :]):
            with_others = each.made(*with_others)
        says[place : place + 1] = _more_nodes(*with_others, now, pool)
    return [f"it takes all of this: {'; and '.join(says)}"]


def _changes(
    job: JobRequest, code: RejectionCode, nodes: Sequence[Node], now: datetime, pool: str
) -> tuple[list[str], bool]:
    """Return what changes of the job would each let these nodes hold it, and whether there are
    any; of labels also what the nodes have."""
    if code is RejectionCode.CONSTRAINT:
        return _on_constraints(job, nodes, now)
    # To ask for fewer GPUs is told beside to add nodes.
    tries = changes(code, job, nodes, pool)
    tries = tries[:-1] if code is RejectionCode.DOMAIN else tries
    helps = [each.says for each in tries if each.suffices(job, nodes, now)]
    return helps, bool(helps)


def _changes_now(
    job: JobRequest,
    code: RejectionCode,
    nodes: Sequence[Node],
    policy: PackingPolicy,
    now: datetime,
    pool: str,
) -> list[str]:
    """Return what changes of the job would each let it start now, where it has to wait."""
    if code is RejectionCode.EXPIRY:
        return [_LASTS_FOR_A_REPLICA if job.loads_within else _LASTS_LONGER]
    if code in _NOT_TO_BE_LESS:
        return []
    return [
        each.says
        for each in changes(code, job, nodes, pool)
        if place(*each.made(job, nodes), policy, now, explain=False).node_id is not None
    ]


def _additions(
    job: JobRequest,
    code: RejectionCode,
    nodes: Sequence[Node],
    now: datetime,
    pool: str,
) -> list[str]:
    """Return which nodes would help instead."""
    match code:
        case RejectionCode.TIER:
            start, of_tier = agent_command(job, pool), _in_words(_CODES[code].joins, job)
            if job.gang is not None:
                return [f"add {job.tier} nodes: {start}"]
            whole = _whole(job, code, nodes, now)
            # The command alone makes a node of the tier, and nothing else of what it is to have.
            return [f"add {whole}: {start}" if whole == of_tier else adding(whole, start)]
        case RejectionCode.GPU_TYPE | RejectionCode.FLAVOR:
            if job.gang is not None or len(lacking(job, nodes, now)) < 2:
                return [f"add {_in_words(_CODES[code].joins, job)}"]
            return [adding(_whole(job, code, nodes, now), agent_command(job, pool))]
        case RejectionCode.CONSTRAINT:
            return _with_labels(job, nodes, now, pool)
        case RejectionCode.MIG_PROFILE:
            start = agent_command(job, pool)
            return [
                f"add a node whose GPUs have the profile, in MIG mode: run {start} on that machine"
            ]
        case RejectionCode.EXPIRY:
            return [_LASTS_FOR_A_REPLICA if job.loads_within else _LASTS_LONGER]
        case RejectionCode.DOMAIN:
            return _more_nodes(job, nodes, now, pool)
        case _:
            return []


def _more_nodes(job: JobRequest, nodes: Sequence[Node], now: datetime, pool: str) -> list[str]:
    """Return what helps a gang that is too large for the nodes."""
    more = adding(_in_words("nodes{together}", job), agent_command(job, pool))
    most = most_gpus(job, nodes, now)
    return [f"ask for at most {count(most, 'GPU')}, or {more}" if most else more]


def _on_constraints(
    job: JobRequest, nodes: Sequence[Node], now: datetime
) -> tuple[list[str], bool]:
    """Return for each constraint that nodes do not satisfy what these have instead, the one that
    most fail first, and whether the job would fit without one of them."""
    found: list[str] = []
    fits = False
    failing = failing_constraints(job, nodes)
    for each in sorted(failing, key=lambda each: -len(failing[each]))[:_MOST_CONSTRAINTS]:
        found.append(f"{brief(str(each))} {_labels_there(each.key, failing[each], len(nodes))}")
        others = tuple(other for other in job.constraints if other != each)
        without = job.model_copy(update={"constraints": others})
        if could_ever_place(without, nodes, now):
            found[-1] += "; without it the job would fit"
            fits = True
    return found, fits


def _with_labels(job: JobRequest, nodes: Sequence[Node], now: datetime, pool: str) -> list[str]:
    """Return the command of an agent whose node has the labels that the job asks for."""
    labels = labels_asked(job)
    if not labels:
        return []
    start = agent_command(job, pool)
    those = [node.model_copy(update={"labels": {**node.labels, **labels}}) for node in nodes]
    if not could_ever_place(job, those, now):
        return [adding("a node with all that it asks for", start)]
    it = "it" if len(labels) == 1 else "them"
    return [f"add a node with {it}, or start the agent of one anew so: {start}"]


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


def _wait_for_ends(job: JobRequest, *, may_stop: bool, may_end: bool) -> str:
    if not may_end:
        return "add a node"
    asks = f", ask who would be preempted for it (`longshore preempt --dry-run {job.id}`)"
    return (
        f"wait for running jobs to end (`longshore jobs`){asks if may_stop else ''}, or add a node"
    )


def _of_states(
    rejections: Sequence[Rejection], nodes: Sequence[Node], closed: Collection[str]
) -> list[str]:
    """Return what helps with nodes that are not ready: of those that somebody shut, the one with
    most free GPUs is let in again. Where the disk of an agent refuses, that is mended; the sale of
    a bought one is waited for. Nothing keeps one whose jobs leave it, or whose block ends. Of
    another one the agent is looked at."""
    states = {each.node_id: each.reason for each in rejections if each.code is RejectionCode.STATE}
    unready = [node for node in nodes if node.id in states]
    draining = [node for node in unready if node.state is NodeState.DRAINING]
    refusing = [node for node in draining if node.state_reason.startswith(DISK_REFUSES)]
    for_sale = [node for node in draining if node.id in closed and node.state_reason == FOR_SALE]
    shut = [node for node in draining if node not in refusing and node.id not in closed]
    other = next((node for node in unready if node.state is not NodeState.DRAINING), None)
    hints: list[str] = []
    if shut:
        best = max(shut, key=lambda node: sum(gpu.is_free for gpu in node.gpus)).id
        hints.append(f"let {best} take jobs again: `longshore uncordon {best}`")
    if refusing:  # to let it in again places the job there in vain
        first = min(refusing, key=lambda node: not is_full(node.state_reason))
        hints.append(mend_of_disk(first.state_reason, first.id, first.id))
    if for_sale:
        hints.append(mend_of_sale(for_sale[0].id, for_sale[0].block_id or ""))
    if other:
        hints.append(
            f"look at the agent of {other.id}, which {states[other.id]} (`longshore nodes`)"
        )
    if draining and not hints:
        hints.append(f"add a node: {draining[0].id} is on its way out")
    return hints


def _in_words(text: str, job: JobRequest) -> str:
    gpu_type = " or ".join(each.upper() for each in job.types)
    together = _IN_ONE_DOMAIN if _is_whole(job) else ""
    constraints = listed([brief(str(each)) for each in job.constraints], _MOST_CONSTRAINTS)
    # Of a gang a node takes a part: what it is to have at least is for one GPU.
    gpus, each = (job.gpus, "") if job.gang is None else (1, " for each GPU")
    share = job.share_of(gpus)
    power = f"{format_watts(share.power)} of power or more{each}" if share.power else "more power"
    return text.format(
        tier=job.tier, gpu_type=gpu_type, together=together, constraints=constraints, each=each,
        gpus=count(gpus, "GPU"), vram=format_gb(job.vram_per_gpu), power=power,
        cores=format_cores(round(share.cpus, 3)), ram=format_gb(share.ram),
        storage=format_gb_per_second(share.storage),
    )  # fmt: skip


def _is_whole(job: JobRequest) -> bool:
    """Return whether all GPUs of a gang have to be in one domain."""
    gang = job.gang
    if gang is None:
        return False
    named = gang.group_gpus is not None and len(gang.group_sizes(job.gpus)) == 1
    return named or not gang.allow_cross_group_spread
