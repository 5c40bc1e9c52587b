"""Clusters and queues of every kind, for tests of what must hold for all of them."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from longshore.models.constraints import Constraint, contradiction, parse_constraint
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.mig import positions_of, slices_gb
from longshore.models.node import GPU, GPUParts, Node, NodeState
from longshore.models.placement import CyclePlan, RunningJob
from longshore.models.topology import (
    CLUSTER_LABEL,
    DOMAIN_LABEL,
    FLAVOR_LABEL,
    RACK_LABEL,
    REGION_LABEL,
    Conformance,
    Gang,
    LinkClass,
    NodeTopology,
    SameConformance,
)
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.state import held_gpus, with_job
from tests.support.packing import NOW, POLICY, a_job, a_node

MINUTE = timedelta(minutes=1)
H100 = positions_of("H100", 80)
PROFILES = ["1g.10gb", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
minutes = st.integers(1, 240).map(lambda count: count * MINUTE)
durations = st.one_of(minutes, minutes, minutes, st.just(timedelta(0)))


fingerprints = st.sampled_from(
    [None, None, None, Conformance(known=True), Conformance(allowed=("new", "newer"))]
)


ON_LABELS = [
    "rack=x", "rack!=x", "rack in (x, y)", "rack notin (x, z)", "rack", "!rack",
    "fabric.domain=a", "fabric.domain!=a", "cluster=c", "ib", "ib!=true",
]  # fmt: skip
_TOGETHER: list[tuple[Constraint, ...]] = [
    one for one in combinations(map(parse_constraint, ON_LABELS), 2) if contradiction(one) is None
]
_ALONE = [(parse_constraint(text),) for text in ON_LABELS]
constraints = st.sampled_from([0, 0, 0, 1, 2]).flatmap(
    lambda count: st.sampled_from([[()], _ALONE, _TOGETHER][count])
)
"""On the labels that `labels` draws; mostly none."""


SECOND = timedelta(seconds=1)
host_wishes = st.fixed_dictionaries(
    {
        "grace": st.sampled_from([10 * SECOND, 10 * SECOND, 4 * MINUTE, 30 * MINUTE]),
        "saves": st.booleans(),
        "storage_bandwidth": st.sampled_from([0, 0, 0, 1, 3]),
        "power_per_gpu": st.sampled_from([None, None, None, 200, 600]),
        "data": st.sampled_from(
            [
                {},
                {},
                {"data s3://a of b": 5, "a": 5},
                {"a": 10},
                {"a": 10, "b": 30},
                {"b": 0, "c": 0},
            ]
        ),
    }
)


def uneven_nodes(chance: random.Random) -> list[Node]:
    """Return six empty nodes, some with many cores for a GPU and some with few."""
    return [
        a_node(f"n{i}", gpus=chance.choice([2, 4, 8]), cpus=chance.choice([24, 64, 96]))
        for i in range(6)
    ]


@st.composite
def requests(
    draw: st.DrawFn,
    name: str,
    mixed: bool = False,
    linked: bool = False,
    sensitive: bool = False,
) -> JobRequest:
    """Any job; a `mixed` one may also want a part of a GPU, a `linked` one a fingerprint, and one
    that is not in parts its nodes alone."""
    part = draw(st.sampled_from(["whole", "share", "share", "mig"])) if mixed else "whole"
    if part != "whole":
        return draw(part_requests(name, mig=part == "mig"))
    conformance = draw(fingerprints) if linked else None
    return a_job(
        name,
        tier=draw(st.sampled_from([Tier.FAST, Tier.FAST, Tier.FLEX])),
        priority=draw(st.integers(0, 2)),
        gpus=draw(st.sampled_from([1, 1, 2, 3, 4, 8, 9])),
        gpu_type=draw(st.sampled_from([None, None, "H100"])),
        vram_per_gpu=draw(st.sampled_from([0, 10, 40, 80])),
        cpus=draw(st.sampled_from([0, 1, 8, 32])),
        ram=draw(st.sampled_from([0, 16, 256])),
        **draw(host_wishes),
        expected_duration=draw(durations),
        needs_container=draw(st.sampled_from([False] * 5 + [True])),
        conformance=conformance,
        constraints=draw(constraints) if linked else (),
        sensitive=sensitive and draw(st.booleans()),
        submitted_at=NOW - draw(st.integers(0, 3)) * MINUTE,
    )


@st.composite
def part_requests(draw: st.DrawFn, name: str, *, mig: bool) -> JobRequest:
    wish: dict[str, Any] = {"mig": draw(st.sampled_from(PROFILES)), "vram_per_gpu": 0}
    if not mig:
        wish = {
            "milli": draw(st.sampled_from([1, 100, 250, 300, 500, 600, 999])),
            "vram_per_gpu": draw(st.sampled_from([5, 20, 40, 80])),
        }
    return a_job(
        name,
        1 if mig else draw(st.sampled_from([1, 1, 2, 3, 4])),
        tier=draw(st.sampled_from([Tier.FAST, Tier.FAST, Tier.FLEX])),
        priority=draw(st.integers(0, 2)),
        cpus=draw(st.sampled_from([0, 1, 8])),
        ram=draw(st.sampled_from([0, 16, 128])),
        **draw(host_wishes),
        expected_duration=draw(durations),
        submitted_at=NOW - draw(st.integers(0, 3)) * MINUTE,
        **wish,
    )


@st.composite
def gang_requests(draw: st.DrawFn, name: str, sensitive: bool = False) -> JobRequest:
    gpus = draw(st.sampled_from([2, 3, 5, 8, 12, 16, 20]))
    size = draw(st.sampled_from([None, None, 1, 2, 4, 8, gpus]).map(lambda n: n and min(n, gpus)))
    gang = Gang(
        group_gpus=size,
        allow_cross_group_spread=draw(st.sampled_from([True, True, False])),
        spares_per_group=draw(st.sampled_from([0, 0, 1, 2, 4])) if size else 0,
        spares_required=draw(st.booleans()),
        same_conformance=draw(st.sampled_from(SameConformance)),
        unlabelled_nodes=draw(st.booleans()),
    )
    return a_job(
        name,
        gpus,
        gang=gang,
        tier=draw(st.sampled_from([Tier.FAST, Tier.FAST, Tier.FLEX])),
        priority=draw(st.integers(0, 2)),
        gpu_type=draw(st.sampled_from([None, None, "H100", "h100-80gb"])),
        vram_per_gpu=draw(st.sampled_from([0, 10, 40])),
        cpus=draw(st.sampled_from([0, gpus, 1 / 3])),
        ram=draw(st.sampled_from([0, 8 * gpus])),
        **draw(host_wishes),
        expected_duration=draw(durations),
        needs_container=draw(st.sampled_from([False] * 5 + [True])),
        conformance=draw(fingerprints),
        constraints=draw(constraints),
        sensitive=sensitive and draw(st.booleans()),
        submitted_at=NOW - draw(st.integers(0, 3)) * MINUTE,
    )


labels = st.fixed_dictionaries(
    {
        REGION_LABEL: st.just("r"),
        CLUSTER_LABEL: st.sampled_from(["c", "c", "c", ""]),
        DOMAIN_LABEL: st.sampled_from("aab"),
    },
    optional={
        RACK_LABEL: st.sampled_from("xy"),
        FLAVOR_LABEL: st.just("H100-80GB"),
        "ib": st.sampled_from(["true", "false"]),
    },
)


@st.composite
def topologies(draw: st.DrawFn, count: int) -> NodeTopology:
    """Any links between so many GPUs, some not known, with network cards or without."""
    kinds = st.sampled_from([None, *LinkClass])
    links = {pair: draw(kinds) for pair in combinations(range(count), 2)}
    rows = tuple(
        tuple(None if a == b else links[min(a, b), max(a, b)] for b in range(count))
        for a in range(count)
    )
    nics = draw(st.just(()) | st.tuples(*[st.sampled_from([None, "a", "b"])] * count))
    return NodeTopology(gpus=tuple(range(count)), links=rows, nics=nics)


@st.composite
def empty_nodes(
    draw: st.DrawFn,
    name: str,
    mixed: bool = False,
    linked: bool = False,
    sensitive: bool = False,
) -> Node:
    gpus = draw(st.integers(0, 10))
    vram = draw(st.sampled_from([80, 80, 80, 0]))  # 0: a node that names no memory
    kept = draw(st.lists(st.sampled_from([0, 0, 0, vram / 2]), min_size=gpus, max_size=gpus))
    modes = [None, None, H100, {"1g.10gb": (4, 8), "3g.40gb": (240,)}] if mixed else [None]
    migs = draw(st.lists(st.sampled_from(modes), min_size=gpus, max_size=gpus))
    expires_in = draw(st.none() | minutes.map(lambda span: 2 * span))
    return Node(
        id=name,
        tier=draw(st.sampled_from([Tier.FAST, Tier.FAST, Tier.FLEX])),
        gpu_type=draw(st.sampled_from(["H100", "h100", "A100"])),
        gpus=tuple(
            GPU(index=i, vram=80, parts=GPUParts(mig=mig))
            if mig
            else GPU(index=i, vram=vram, vram_used=used)
            for i, (used, mig) in enumerate(zip(kept, migs, strict=True))
        ),
        cpus=draw(st.sampled_from([16, 64])),
        ram=draw(st.sampled_from([128, 512])),
        storage_bandwidth=draw(st.sampled_from([None, None, 4])),
        power=draw(st.sampled_from([None, None, 1000, 2800])),
        gpu_power=draw(st.sampled_from([0, 350, 700])),
        data=draw(st.sampled_from([(), (), ("a",), ("b", "a"), ("c",)])),
        provider=draw(st.sampled_from(["own", "prime", "sfcompute"])),
        expires_at=None if expires_in is None else NOW + expires_in,
        state=draw(st.sampled_from([NodeState.READY] * 9 + [NodeState.DRAINING, NodeState.LOST])),
        fetches=draw(st.sampled_from([True, True, False])),
        serves=draw(st.sampled_from([True, True, False])),
        container_runtime=draw(st.sampled_from(["docker", "docker", None])),
        topology=draw(st.none() | topologies(gpus)) if linked else None,
        conformance=draw(st.sampled_from([None, "old", "new", "new"])) if linked else None,
        changed=sensitive and draw(st.sampled_from([False, False, True])),
        labels=draw(labels) if linked else {},
        epoch=draw(st.integers(0, 2)),
    )


@dataclass
class Scene:
    """Arguments of a plan."""

    nodes: list[Node]
    running: list[RunningJob]
    queue: list[JobRequest]


@st.composite
def scenes(
    draw: st.DrawFn,
    max_nodes: int = 5,
    max_jobs: int = 12,
    mixed: bool = False,
    linked: bool = False,
    gangs: bool = False,
    sensitive: bool = False,
) -> Scene:
    """A cluster on which some jobs run, placed by the packer itself, and a queue.

    When `mixed`, jobs want whole GPUs, shares and MIG instances, and some GPUs are in MIG mode.
    When `linked`, some nodes say what connects their GPUs, what driver they have and where they
    are, and some jobs ask for the driver. With `gangs` some jobs span nodes, and with
    `sensitive` some hold theirs alone.
    """

    def job(name: str) -> JobRequest:
        gang = gangs and draw(st.sampled_from([False, False, True]))
        return draw(
            gang_requests(name, sensitive) if gang else requests(name, mixed, linked, sensitive)
        )

    names = [f"node-{i}" for i in range(draw(st.integers(0, max_nodes)))]
    nodes = [draw(empty_nodes(name, mixed, linked, sensitive)) for name in names]
    old = [job(f"old-{i}") for i in range(draw(st.integers(0, 8)))]
    started = plan(old, nodes, [], POLICY, NOW)
    nodes = applied(nodes, old, started)
    by_id = {node.id: node for node in nodes}
    jobs = {each.id: each for each in old}
    at_work = [
        running_job(
            jobs[decision.job_id], node_id, gpus, decision.slices, by_id[node_id].gpu_power,
            overdue=draw(st.sampled_from([False, False, False, True])),
        ).model_copy(
            update={"gpu_indices": tuple(held_gpus(jobs[decision.job_id], by_id[node_id], gpus))}
        )
        for decision in started.placements
        if draw(st.booleans())
        for node_id, gpus in decision.held
    ]  # fmt: skip
    queue = [job(f"job-{i:02}") for i in range(draw(st.integers(0, max_jobs)))]
    return Scene(nodes, at_work, queue)


def running_job(
    job: JobRequest,
    node_id: str,
    gpu_indices: tuple[int, ...],
    slices: int = 0,
    gpu_power: float = 0.0,
    *,
    overdue: bool = False,
) -> RunningJob:
    """Return the job as it runs, or its part there; an instance is one of a GPU of 80 GB."""
    host = job.share_of(len(gpu_indices), gpu_power)
    return RunningJob(
        job_id=job.id,
        node_id=node_id,
        gpu_indices=gpu_indices,
        vram_per_gpu=slices_gb(80, slices) if job.mig else job.vram_per_gpu,
        milli=0 if job.mig else job.milli,
        slices=slices,
        cpus=host.cpus,
        ram=host.ram,
        storage=host.storage,
        power=host.power,
        expected_end=NOW - MINUTE if overdue else NOW + job.expected_duration,
    )


def applied(nodes: Sequence[Node], queue: Iterable[JobRequest], made: CyclePlan) -> list[Node]:
    """Return the nodes once every placement is carried out; fails where a GPU is taken already."""
    by_id = {node.id: node for node in nodes}
    jobs = {job.id: job for job in queue}
    for decision in made.placements:
        job = jobs[decision.job_id]
        for node_id, gpu_indices in decision.held:
            node = by_id[node_id]
            taken = [gpu for gpu in node.gpus if gpu.index in gpu_indices]
            assert len(taken) == len(gpu_indices)
            if job.gpu.whole:
                assert not any(gpu.job_id or gpu.milli_used or gpu.mig for gpu in taken)
            # The model refuses a GPU that is held and shared, or shared beyond its thousandths.
            assert not any(gpu.slices_used & decision.slices for gpu in taken)
            after = with_job(node, job, gpu_indices, decision.slices)
            by_id[node_id] = Node.model_validate(after.model_dump())
    return list(by_id.values())
