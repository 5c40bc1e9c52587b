"""What is asked of the nodes while it is decided who is preempted: what was asked before, and what
changed meanwhile, makes no answer another one."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingRule
from longshore.models.preemption import RunningWork
from longshore.models.resources import HostAmounts
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.mix import mix_of
from longshore.scheduling.placement.reservations import first_start
from longshore.scheduling.placement.state import Hold, Need, view_nodes
from longshore.scheduling.preemption.plan import plan_preemptions
from longshore.scheduling.preemption.starts import Starts
from longshore.scheduling.preemption.what_if import WhatIfCluster, gains_of
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node
from tests.support.preemption import (
    MINUTE,
    RULES,
    a_work,
    beneficiaries,
    busy_pools,
    nodes_with,
)

Busy = tuple[list[Node], list[RunningWork]]
Change = Callable[[WhatIfCluster], object]


@given(
    busy_pools(), st.lists(beneficiaries(), min_size=1, max_size=5),
    st.lists(st.integers(0, 99), max_size=5), st.sampled_from(PackingRule),
)  # fmt: skip
def test_a_ground_that_was_asked_says_what_one_says_that_never_was(
    pool: Busy, jobs: list[JobRequest], turns: list[int], rule: PackingRule
) -> None:
    jobs = [job.model_copy(update={"id": f"job-{i}"}) for i, job in enumerate(jobs)]
    asked, changes = _cluster(pool, jobs, rule), list[Change]()
    outs = [frozenset[str](), *(frozenset({work.id}) for work in pool[1][:3])]
    for turn in turns:
        _answers(asked, jobs, outs)
        job = jobs[turn % len(jobs)]
        decision = asked.decide(job)
        if turn % 3 == 0:
            leaving = frozenset({pool[1][turn % len(pool[1])].id})
            change = partial(WhatIfCluster.remove, out=leaving)
        elif gains := gains_of(decision):
            change = partial(WhatIfCluster.put, job=job, gains=gains)
        else:
            change = partial(WhatIfCluster.reserve, job=job)
        if change.func is not WhatIfCluster.reserve:  # what is tried leaves nothing behind
            with asked.tried():
                change(asked)
                _answers(asked, jobs, outs)
        change(asked)
        changes.append(change)
    fresh = _cluster(pool, jobs, rule)
    for change in changes:
        change(fresh)
    assert _answers(asked, jobs, outs) == _answers(fresh, jobs, outs)


@given(busy_pools(), beneficiaries(), st.integers(0, 2))
def test_a_first_start_is_that_of_all_nodes_looked_at_one_by_one(
    pool: Busy, job: JobRequest, kept: int
) -> None:
    need = Need.of(job.model_copy(update={"gang": None}), POLICY)
    shares = [share for work in pool[1] for share in work.shares]
    views = view_nodes(pool[0], shares, NOW)
    for view in views[:kept]:  # some nodes are kept for a job from the end of another on
        ends = [hold.end for hold in view.holds]
        host = HostAmounts(1.0, 8.0, 0.0, 0.0)
        view.reserved.extend(
            Hold("kept", 1 << number, host, end, end + HOUR) for number, end in enumerate(ends[:2])
        )
    starts = Starts(pool[0], views, NOW)
    columns = Columns(views, NOW)
    assert starts.first(need) == first_start(range(len(views)), columns, need)


def test_of_nodes_where_a_job_can_start_at_one_time_the_first_is_named() -> None:
    """The second might start it sooner, as far as GPUs go, and is looked at first."""
    works = [
        a_work("full", {"node-a": range(4)}, left=HOUR),
        a_work("soon", {"node-b": [0]}, left=HOUR / 2),
        a_work("cores", {"node-b": [1]}, left=HOUR),
    ]
    works[2] = _with_cpus(works[2], 14)
    nodes = nodes_with(works, [a_node(name, gpus=4, cpus=16) for name in ("node-a", "node-b")])
    views = view_nodes(nodes, [share for work in works for share in work.shares], NOW)
    need = Need.of(a_job("wanted", 2, cpus=4), POLICY)
    assert Starts(nodes, views, NOW).first(need) == (0, NOW + HOUR)


def _with_cpus(work: RunningWork, cpus: int) -> RunningWork:
    request = work.request.model_copy(update={"cpus": cpus})
    shares = tuple(share.model_copy(update={"cpus": cpus}) for share in work.shares)
    return work.model_copy(update={"request": request, "shares": shares})


def test_where_nobody_is_stopped_for_a_job_nobody_is_for_one_behind_it_that_asks_alike() -> None:
    """The second would come before the first, at what those in between have left."""
    works = [a_work(f"near-{i}", {"node-a": [i]}, left=MINUTE) for i in range(4)]
    nodes = nodes_with(works, [a_node("node-a", gpus=4)])
    queue = [a_job(f"wanted-{i}", 4, priority=9, submitted_at=NOW) for i in range(2)]
    first, second = plan_preemptions(queue, nodes, works, RULES, POLICY, NOW)
    assert (first.job_id, second.job_id) == ("wanted-0", "wanted-1")
    assert first.model_copy(update={"job_id": "wanted-1"}) == second


def _answers(
    cluster: WhatIfCluster, jobs: list[JobRequest], outs: list[frozenset[str]]
) -> list[Any]:
    return [
        (
            cluster.nodes_for(job), cluster.first_start(job),
            [cluster.first_start(job, out) for out in outs],
            [(cluster.fits(job, out), cluster.decide(job, out)) for out in outs],
            [
                cluster.node_fits(name, Need.of(job, POLICY), outs[-1])
                for name in cluster.nodes_for(job)
            ],
        )
        for job in jobs
    ]  # fmt: skip


def _cluster(pool: Busy, jobs: list[JobRequest], rule: PackingRule) -> WhatIfCluster:
    policy = POLICY.model_copy(update={"rule": rule})
    shares = [share for work in pool[1] for share in work.shares]
    return WhatIfCluster(pool[0], shares, policy, NOW, mix_of(jobs, (), len(pool[1]), policy))
