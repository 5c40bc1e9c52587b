"""What must hold of preemption on every pool, for every job."""

from datetime import timedelta
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PlacementKind, RunningJob
from longshore.models.preemption import PreemptionPlan, RunningWork
from longshore.scheduling.cycle import plan as cycle_plan
from longshore.scheduling.packer import place
from longshore.scheduling.placement.state import running_job, with_job
from longshore.scheduling.preemption.costs import probable_end, victim_of, why_not
from longshore.scheduling.preemption.plan import plan_preemption, plan_preemptions
from tests.support.packing import NOW, POLICY
from tests.support.preemption import RULES, beneficiaries, busy_pools, nodes_without

Busy = tuple[list[Node], list[RunningWork]]
EAGER = RULES.model_copy(update={"class_factor": 10.0, "max_victims": 20})
"""Waiting is dear, so that many plans stand."""


def planned(pool: Busy, job: JobRequest) -> PreemptionPlan:
    return plan_preemption(job, pool[0], pool[1], EAGER, POLICY, NOW)


def fits_without(pool: Busy, job: JobRequest, names: set[str]) -> bool:
    leaving = [work for work in pool[1] if work.id in names]
    found = place(job, nodes_without(leaving, pool[0]), POLICY, NOW, explain=False)
    return found.kind is PlacementKind.EXISTING_NODE


@given(busy_pools(), beneficiaries())
def test_only_lower_classes_that_may_be_stopped_lose_gpus(pool: Busy, job: JobRequest) -> None:
    works = {work.id: work for work in pool[1]}
    for victim in planned(pool, job).victims:
        work = works[victim.job_id]
        assert work.request.priority < job.priority
        assert work.preemptible
        assert abs(work.expected_end - NOW) >= EAGER.near_end
        assert work.checkpoint is not None or work.request.priority < EAGER.protected_class


@given(busy_pools(), beneficiaries())
def test_the_job_fits_without_its_victims_and_not_without_any_fewer(
    pool: Busy, job: JobRequest
) -> None:
    plan = planned(pool, job)
    if not plan.preempts:
        assert not plan.gains
        return
    names = {victim.job_id for victim in plan.victims}
    leaving = [work for work in pool[1] if work.id in names]
    found = place(job, nodes_without(leaving, pool[0]), POLICY, NOW, explain=False)
    gained = {(gain.node_id, gain.gpu_indices) for gain in plan.gains}
    assert gained == set(found.by_node)
    for name in names:
        assert not fits_without(pool, job, names - {name})


@given(busy_pools(), beneficiaries())
def test_no_set_of_jobs_would_lose_less(pool: Busy, job: JobRequest) -> None:
    plan = planned(pool, job)
    if fits_without(pool, job, set()):
        assert not plan.preempts
        return
    may = {work.id: work for work in pool[1] if why_not(work, job, EAGER, NOW) is None}
    alone = {name: _cost(pool, work, job) for name, work in may.items()}
    sets = [
        set(names)
        for size in range(1, len(may) + 1)
        for names in combinations(sorted(alone), size)
        if fits_without(pool, job, set(names))
    ]
    if not sets:
        assert not plan.preempts
    elif plan.preempts or plan.value:
        least = min(sum(alone[name] for name in names) for names in sets)
        assert plan.cost >= least
        cheapest = [names for names in sets if sum(alone[name] for name in names) == least]
        afterwards = [_cost_afterwards(pool, job, [may[name] for name in names])
                      for names in cheapest]  # fmt: skip
        # What is found first is one of them, and nothing dearer is taken than that.
        assert plan.cost <= max(afterwards)
        if plan.preempts:
            stopped = [may[victim.job_id] for victim in plan.victims]
            assert plan.cost == _cost_afterwards(pool, job, stopped)


@given(busy_pools(), beneficiaries())
def test_it_costs_less_than_to_wait(pool: Busy, job: JobRequest) -> None:
    plan = planned(pool, job)
    if plan.preempts:
        assert plan.cost < plan.value
        assert plan.cost == sum(victim.total for victim in plan.victims)
    assert sum(way.chosen for way in plan.ways) == (1 if plan.ways else 0)
    assert plan.reason


@given(busy_pools(), beneficiaries(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    pool: Busy, job: JobRequest, chance: object
) -> None:
    first = planned(pool, job).model_dump_json()
    for values in pool:
        chance.shuffle(values)  # pyright: ignore[reportAttributeAccessIssue]
    assert planned(pool, job).model_dump_json() == first


@given(busy_pools(), st.lists(beneficiaries(), min_size=1, max_size=4))
def test_the_plans_of_a_queue_stand_beside_each_other(pool: Busy, jobs: list[JobRequest]) -> None:
    queue = [job.model_copy(update={"id": f"wanted-{i}"}) for i, job in enumerate(jobs)]
    plans = plan_preemptions(queue, *pool, EAGER, POLICY, NOW)
    stopped = [victim.job_id for plan in plans for victim in plan.victims]
    assert len(stopped) == len(set(stopped))
    # What all plans give out together is really free once all victims have left.
    leaving = [work for work in pool[1] if work.id in stopped]
    free = {
        (node.id, gpu.index)
        for node in nodes_without(leaving, pool[0])
        for gpu in node.gpus
        if gpu.job_id is None
    }
    whole = {job.id for job in queue if job.gpu.whole}
    taken = [
        (gain.node_id, index)
        for plan in plans
        if plan.job_id in whole
        for gain in plan.gains
        for index in gain.gpu_indices
    ]
    assert len(taken) == len(set(taken))
    assert set(taken) <= free
    order = [plan.job_id for plan in plans]
    assert [plan.job_id for plan in plan_preemptions(queue[::-1], *pool, EAGER, POLICY, NOW)] == (
        order
    )


def _cost(pool: Busy, work: RunningWork, job: JobRequest) -> int:
    """Return what it costs to stop a job, by the packer's answers for it alone."""
    wait = _wait(work, job, pool[0], _shares(pool[1]))
    return victim_of(work, wait, EAGER, NOW).total


def _cost_afterwards(pool: Busy, job: JobRequest, stopped: list[RunningWork]) -> int:
    """Return what it costs to stop jobs for another: those that alone would run elsewhere at once
    are placed one after the other once that has its GPUs."""
    before = _shares(pool[1])
    shares = _shares([work for work in pool[1] if work not in stopped])
    nodes, shares = _placed(job, nodes_without(stopped, pool[0]), shares)
    cost = 0
    for work in sorted(
        stopped, key=lambda work: (-work.request.priority, work.started_at, work.id)
    ):
        wait = _wait(work, job, pool[0], before)
        if not wait:
            wait = _wait(work, job, nodes, shares)
            if not wait:
                nodes, shares = _placed(work.request, nodes, shares)
        cost += victim_of(work, wait, EAGER, NOW).total
    return cost


def _shares(works: list[RunningWork]) -> list[RunningJob]:
    return [
        share.model_copy(update={"expected_end": probable_end(work, EAGER, NOW)})
        for work in works
        for share in work.shares
    ]


def _wait(
    work: RunningWork, job: JobRequest, nodes: list[Node], shares: list[RunningJob]
) -> timedelta:
    (again,) = cycle_plan([work.request], nodes, shares, POLICY, NOW).decisions
    if again.kind is PlacementKind.EXISTING_NODE:
        return timedelta(0)
    if again.estimated_start is None:
        return job.expected_duration
    return min(job.expected_duration, again.estimated_start - NOW)


def _placed(
    job: JobRequest, nodes: list[Node], shares: list[RunningJob]
) -> tuple[list[Node], list[RunningJob]]:
    decision = place(job, nodes, POLICY, NOW, explain=False)
    by_id = {node.id: node for node in nodes}
    new: list[RunningJob] = []
    for name, gpus in decision.held:
        end = NOW + job.expected_duration
        new.append(running_job(job, by_id[name], gpus, decision.slices, end))
        part = job.model_copy(update={"gpus": len(gpus), "gang": None})
        by_id[name] = with_job(by_id[name], part, gpus, decision.slices)
    return list(by_id.values()), [*shares, *new]
