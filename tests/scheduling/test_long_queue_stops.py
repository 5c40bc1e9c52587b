"""For a part of a long queue the same jobs are stopped as for the whole of it."""

import random
from datetime import timedelta

import pytest

from longshore.models.job_request import JobRequest
from longshore.models.packing import QueueOrder
from longshore.models.placement import PackingPolicy
from longshore.models.preemption import RunningWork
from longshore.models.score import ScorePolicy, ScoreProfile
from longshore.scheduling import long_queue
from longshore.scheduling.placement.mix import mix_of
from longshore.scheduling.preemption.plan import plan_preemptions
from tests.scheduling.test_long_queue import queued
from tests.support.packing import HOUR, NOW, a_job, a_node
from tests.support.preemption import RULES, a_work, nodes_with, saved
from tests.support.searches import seeds

MINUTE = timedelta(minutes=1)
POLICIES = (
    PackingPolicy(max_reservations=2),
    PackingPolicy(order=QueueOrder.ATTAINED_SERVICE, max_reservations=2),
    PackingPolicy(score=ScorePolicy(profile=ScoreProfile.BALANCED), max_reservations=2),
)


def at_work(chance: random.Random) -> list[RunningWork]:
    """Return jobs on three nodes, most of which save."""
    works: list[RunningWork] = []
    for node in ("a", "b", "c"):
        first = 0
        while first < 8:
            last = min(first + chance.choice([1, 2, 4]), 8)
            if chance.random() < 0.9:
                save = saved(chance.randrange(30) * MINUTE) if chance.random() < 0.8 else None
                works.append(
                    a_work(
                        f"{node}{first}", {node: range(first, last)},
                        priority=chance.choice([2, 5]), ran=chance.randrange(1, 40) * HOUR,
                        left=chance.randrange(1, 9) * HOUR, checkpoint=save,
                    )
                )  # fmt: skip
            first = last
    return works


def waiting(chance: random.Random, count: int) -> list[JobRequest]:
    own = chance.random() < 0.5
    shapes = [
        {"gpus": chance.choice([1, 2, 4, 8]), "priority": chance.choice([3, 5, 8]),
         "can_stop": chance.random() < 0.5, "tenant": chance.choice(["lab", "shop"])}
        for _ in range(4)
    ]  # fmt: skip
    return [
        a_job(
            f"w{n:03}", **chance.choice(shapes), cpus=1, ram=1, vram_per_gpu=10,
            submitted_at=NOW - chance.randrange(3_000) * MINUTE, duration_known=own,
            attained=chance.choice([0, 0, chance.randrange(900)]) * MINUTE,
            expected_duration=chance.randrange(10, 900) * MINUTE if own else HOUR,
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("policy", POLICIES, ids=["age", "rank", "balanced"])
def test_who_is_stopped(policy: PackingPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_queue, "LONG", 100)
    stopped = looked_at = 0
    for seed in seeds(10):
        chance = random.Random(seed)
        works, queue = at_work(chance), waiting(chance, 200)
        nodes = nodes_with(works, [a_node(name) for name in "abc"])
        free = sum(gpu.is_free for node in nodes for gpu in node.gpus)
        rules = RULES.model_copy(update={"max_under_way": chance.choice([1, 4])})
        freed = sorted((len(work.shares[0].gpu_indices) for work in works), reverse=True)
        most = free + sum(freed[: rules.max_under_way])
        mix = mix_of(queue, (), len(works), policy)
        part = queued(queue).to_plan(most, 24, policy, NOW, wanted=())
        assert part is not None
        whole, some = (
            [
                (plan.job_id, plan.victims, plan.gains)
                for plan in plan_preemptions(jobs, nodes, works, rules, policy, NOW, mix=mix)
                if plan.preempts
            ]
            for jobs in (queue, part.jobs)
        )
        assert some == whole
        stopped += len(whole)
        looked_at += len(part.jobs)
    # The comparison means something only where these happen.
    assert stopped > 5
    assert looked_at < 0.8 * 200 * len(seeds(10))
