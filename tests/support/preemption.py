"""Small builders of running work for tests of preemption: a test says only what matters to it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import RunningJob
from longshore.models.preemption import PreemptionPolicy, RunningWork, WorkCheckpoint
from longshore.scheduling.placement.state import with_job, without_job
from tests.support.packing import HOUR, NOW, a_job, a_node

MINUTE = timedelta(minutes=1)
RULES = PreemptionPolicy()


def saved(
    ago: timedelta, write: timedelta = timedelta(seconds=20), **fields: Any
) -> WorkCheckpoint:
    """Return the saves of a job that last saved so long ago."""
    return WorkCheckpoint(saved_at=NOW - ago, write=write, **fields)


def a_work(
    name: str,
    gpus: Mapping[str, Sequence[int]],
    *,
    priority: int = 2,
    ran: timedelta = HOUR,
    left: timedelta = 4 * HOUR,
    price: int = 2_000_000,
    milli: int = 1000,
    **fields: Any,
) -> RunningWork:
    """Return a job that holds these GPUs by node, with 40 GB of each, a core and 8 GB for each."""
    held = sum(len(indices) for indices in gpus.values())
    wants = {"gang": {}} if len(gpus) > 1 else {}
    request = a_job(
        name, held, priority=priority, milli=milli, cpus=held, ram=8 * held,
        expected_duration=ran + left, submitted_at=NOW - ran, **wants,
    )  # fmt: skip
    shares = tuple(
        RunningJob(
            job_id=name, node_id=node, gpu_indices=tuple(indices), vram_per_gpu=40.0, milli=milli,
            cpus=len(indices), ram=8 * len(indices), expected_end=NOW + left,
        )
        for node, indices in gpus.items()
    )  # fmt: skip
    return RunningWork(
        **{
            "request": request, "shares": shares, "started_at": NOW - ran,
            "expected_end": NOW + left, "price": price, **fields,
        }
    )  # fmt: skip


def nodes_with(works: Sequence[RunningWork], nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes once the works hold what they hold."""
    by_id = {node.id: node for node in nodes}
    for work in works:
        for share in work.shares:
            held = work.request.model_copy(update={"cpus": share.cpus, "ram": share.ram})
            by_id[share.node_id] = with_job(by_id[share.node_id], held, share.gpu_indices)
    return list(by_id.values())


def nodes_without(works: Sequence[RunningWork], nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes once the works have left."""
    by_id = {node.id: node for node in nodes}
    for work in works:
        for share in work.shares:
            by_id[share.node_id] = without_job(by_id[share.node_id], share)
    return list(by_id.values())


LABELS = {"region": "eu", "cluster": "one"}


@st.composite
def busy_pools(draw: st.DrawFn, most_works: int = 8) -> tuple[list[Node], list[RunningWork]]:
    """Return up to three nodes of four GPUs, and works on them: some span nodes, some share
    GPUs."""
    names = [f"node-{letter}" for letter in "abc"[: draw(st.integers(1, 3))]]
    free = {(name, gpu) for name in names for gpu in range(4)}
    room = dict.fromkeys(free, 1000)
    works: list[RunningWork] = []
    for number in range(draw(st.integers(1, most_works))):
        fields = {
            "priority": draw(st.integers(0, 9)),
            "ran": draw(st.integers(60, 300)) * MINUTE,
            "left": draw(st.integers(-60, 600)) * MINUTE,
            "price": draw(st.sampled_from([0, 1_000_000, 2_500_000])),
            "preemptible": draw(st.sampled_from([True, True, True, False])),
            "checkpoint": draw(
                st.sampled_from([None, saved(2 * MINUTE), saved(90 * MINUTE), WorkCheckpoint()])
            ),
        }
        if draw(st.booleans()) or not free:  # a part of a GPU, or of each of two
            milli = draw(st.sampled_from([250, 500]))
            spots = sorted(spot for spot, left in room.items() if left >= milli)
            if not spots:
                break
            name, gpu = draw(st.sampled_from(spots))
            others = [spot for spot in spots if spot[0] == name and spot[1] != gpu]
            beside = draw(st.sampled_from([None, None, *others]))
            gpus = sorted([gpu] if beside is None else [gpu, beside[1]])
            for each in gpus:
                room[name, each] -= milli
                free.discard((name, each))
            work = a_work(f"work-{number}", {name: gpus}, milli=milli, **fields)
            half = [share.model_copy(update={"vram_per_gpu": 20.0}) for share in work.shares]
            request = work.request.model_copy(update={"vram_per_gpu": 20.0})
            works.append(work.model_copy(update={"shares": tuple(half), "request": request}))
            continue
        held = draw(st.lists(st.sampled_from(sorted(free)), min_size=1, max_size=4, unique=True))
        free -= set(held)
        room = {spot: left for spot, left in room.items() if spot not in held}
        by_node: dict[str, list[int]] = {}
        for name, gpu in sorted(held):
            by_node.setdefault(name, []).append(gpu)
        works.append(a_work(f"work-{number}", by_node, **fields))
    domains = draw(st.sampled_from([["one"] * 3, ["one", "one", "two"]]))
    nodes = [
        a_node(name, gpus=4, cpus=16, ram=256, labels={**LABELS, "fabric.domain": domain})
        for name, domain in zip(names, domains, strict=False)
    ]
    return nodes_with(works, nodes), works


@st.composite
def beneficiaries(draw: st.DrawFn) -> JobRequest:
    """Return a job for such a pool: on one node, on several, or a part of a GPU."""
    kind = draw(st.sampled_from(["whole", "whole", "part", "gang"]))
    fields: dict[str, Any] = {
        "priority": draw(st.integers(1, 10)),
        "expected_duration": draw(st.integers(1, 300)) * MINUTE,
        "cpus": draw(st.integers(0, 8)),
        "submitted_at": NOW,
    }
    if kind == "part":
        gpus, milli = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([300, 600]))
        return a_job("wanted", gpus, milli=milli, ram=8, **fields)
    gpus = draw(st.integers(1, 8 if kind == "gang" else 4))
    gang: dict[str, Any] = {}
    if kind == "gang":
        gang["gang"] = {"allow_cross_group_spread": draw(st.booleans())}
    return a_job("wanted", gpus, **fields, **gang)
