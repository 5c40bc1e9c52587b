"""What is asked of the nodes while it is decided who gives way: what was asked before, and what
changed meanwhile, makes no answer another one."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from models.node import Node
from models.packing import PackingRule
from models.placement import JobRequest
from models.preemption import RunningWork
from scheduling.placement.mix import mix_of
from scheduling.preemption.ground import Ground, gains_of
from tests.support.packing import NOW, POLICY
from tests.support.preemption import beneficiaries, busy_pools

Busy = tuple[list[Node], list[RunningWork]]
Change = Callable[[Ground], object]


@given(
    busy_pools(), st.lists(beneficiaries(), min_size=1, max_size=5),
    st.lists(st.integers(0, 99), max_size=5), st.sampled_from(PackingRule),
)  # fmt: skip
def test_a_ground_that_was_asked_says_what_one_says_that_never_was(
    pool: Busy, jobs: list[JobRequest], turns: list[int], rule: PackingRule
) -> None:
    jobs = [job.model_copy(update={"id": f"job-{i}"}) for i, job in enumerate(jobs)]
    asked, changes = _ground(pool, jobs, rule), list[Change]()
    outs = [frozenset[str](), *(frozenset({work.id}) for work in pool[1][:3])]
    for turn in turns:
        _answers(asked, jobs, outs)
        job = jobs[turn % len(jobs)]
        decision = asked.decide(job)
        if turn % 3 == 0:
            leaving = frozenset({pool[1][turn % len(pool[1])].id})
            change = partial(Ground.remove, out=leaving)
        elif gains := gains_of(decision):
            change = partial(Ground.put, job=job, gains=gains)
        else:
            change = partial(Ground.reserve, job=job)
        change(asked)
        changes.append(change)
    fresh = _ground(pool, jobs, rule)
    for change in changes:
        change(fresh)
    assert _answers(asked, jobs, outs) == _answers(fresh, jobs, outs)


def _answers(ground: Ground, jobs: list[JobRequest], outs: list[frozenset[str]]) -> list[Any]:
    return [
        (
            ground.nodes_for(job), ground.first_start(job),
            [(ground.fits(job, out), ground.decide(job, out)) for out in outs],
            [ground.node_fits(name, job, outs[-1]) for name in ground.nodes_for(job)],
        )
        for job in jobs
    ]  # fmt: skip


def _ground(pool: Busy, jobs: list[JobRequest], rule: PackingRule) -> Ground:
    policy = POLICY.model_copy(update={"rule": rule})
    shares = [share for work in pool[1] for share in work.shares]
    return Ground(pool[0], shares, policy, NOW, mix_of(jobs, (), len(pool[1]), policy))
