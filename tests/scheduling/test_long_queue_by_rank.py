"""A part of a long queue is planned as the whole of it is, also where jobs pass each other."""

import random
from datetime import timedelta

import pytest

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.packing import QueueOrder
from longshore.models.placement import PackingPolicy, PackingRule
from longshore.models.score import ScorePolicy, ScoreProfile
from longshore.scheduling import long_queue
from longshore.scheduling.cycle import mix_kept, plan_cached
from longshore.scheduling.order import queue_order
from tests.scheduling.test_long_queue import kept_of, long_scene, queued, short_behind_long
from tests.support.packing import HOUR, NOW, a_job, a_node
from tests.support.packing_scenes import Scene
from tests.support.searches import seeds

MINUTE = timedelta(minutes=1)
RANK = QueueOrder.ATTAINED_SERVICE
TENANTS = ("lab", "shop", None)


def who_pass(chance: random.Random) -> Scene:
    """Return a scene whose jobs differ in all that a rank and a score look at."""
    scene = short_behind_long(chance) if chance.random() < 0.6 else long_scene(chance)
    long_ago = chance.choice([5, 30, 50])
    """Hours since the first came: of 36 on they come first."""
    queue = [_differing(job, chance, long_ago) for job in scene.queue]
    running = [
        job.model_copy(update={"waited": chance.choice([0, 10, 40]) * HOUR})
        for job in scene.running
    ]
    return Scene(scene.nodes, running, queue)


def _differing(job: JobRequest, chance: random.Random, long_ago: int) -> JobRequest:
    came = NOW - chance.randrange(60 * long_ago) * MINUTE
    known = chance.random() < 0.5
    new: dict[str, object] = {
        "submitted_at": came,
        "waits_since": chance.choice([None, came + chance.randrange(90) * MINUTE]),
        "can_stop": chance.random() < 0.6,
        "attained": chance.choice([0, 0, 0, chance.randrange(2_000)]) * MINUTE,
        "duration_known": known,
        "tenant": chance.choice(TENANTS),
    }
    if not known:
        new["expected_duration"] = HOUR
    return job.model_copy(update=new)


def policies(chance: random.Random) -> PackingPolicy:
    order, profile = chance.choice(
        [
            (RANK, None), (RANK, None), (None, ScoreProfile.BALANCED),
            (None, ScoreProfile.SERVICE), (QueueOrder.AGE, ScoreProfile.ML_TRAINING),
            (None, ScoreProfile.SENSITIVE),
        ]
    )  # fmt: skip
    policy = PackingPolicy(
        rule=chance.choice([PackingRule.KEEP_ROOM, PackingRule.SEED_SCORE]),
        max_reservations=chance.choice([0, 1, 3]),
        order=order,
        score=ScorePolicy(profile=profile) if profile else None,
        weights={"critical_path": chance.choice([0, 4])},  # pyright: ignore[reportArgumentType]
    )
    prices = chance.choice([{}, {}, {Tier.FAST: 3_000_000}])  # the other tiers have none
    had = {name: chance.random() * 1e6 for name in TENANTS if name}
    return policy.model_copy(update={"delay_price": prices, "usage": had})


@pytest.fixture(autouse=True)
def short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_queue, "LONG", 100)


def test_a_part_is_planned_as_the_whole_is() -> None:
    placed = kept_starts = compared = left_out = guaranteed = 0
    for seed in seeds(30):
        chance = random.Random(seed)
        scene, policy = who_pass(chance), policies(chance)
        kept = kept_of(scene)
        mix = mix_kept(scene.queue, kept, policy, ())
        whole = plan_cached(scene.queue, kept, policy, NOW, mix=mix)
        part = queued(scene.queue).to_plan(kept.open_gpus, kept.gpus, policy, NOW, wanted=())
        assert part is not None
        made = plan_cached(part.jobs, kept, policy, NOW, mix=mix)
        assert made.rearranged == whole.rearranged
        if made.rearranged:
            continue  # who places it plans the whole then
        compared += 1
        assert made.placements == whole.placements
        assert made.reservations == whole.reservations
        ids = {decision.job_id for decision in made.decisions}
        assert made.decisions == tuple(each for each in whole.decisions if each.job_id in ids)
        placed += len(made.placements)
        kept_starts += len(made.reservations)
        left_out += len(scene.queue) - len(part.jobs)
        guaranteed += any(NOW - (job.waits_since or job.submitted_at or NOW) >= 36 * HOUR
                          for job in part.jobs)  # fmt: skip
    # The comparison means something only where all of these happen.
    assert compared * 2 > len(seeds(30))
    assert placed > 15
    assert kept_starts > 8
    assert left_out > 3_000
    assert guaranteed > 3


def test_who_is_left_out_has_enough_before_it_that_run_as_long_or_less() -> None:
    """At whatever time: nothing is put into order anew while jobs wait."""
    left_out = long_ago = 0
    nodes = [a_node("n", gpus=32)]
    for seed in seeds(40):
        chance = random.Random(seed)
        policy, ago = policies(chance), chance.choice([5, 34])
        same = chance.choice([{}, {"can_stop": True}, {"can_stop": False, "tenant": "lab"}])
        tier, minutes = chance.choice(list(Tier)), chance.choice([(30, 40), (70, 80), (9, 2_000)])
        jobs = [
            _differing(
                a_job(
                    f"j{n:03}", tier=tier, path_behind=chance.choice([0, chance.random()]),
                    expected_duration=chance.randrange(*minutes) * MINUTE,
                ), chance, ago,
            ).model_copy(update=same)
            for n in range(200)
        ]  # fmt: skip
        queue = queued(jobs)
        for now in (NOW, NOW + chance.randrange(20) * HOUR):
            part = queue.to_plan(0, 32, policy, now, wanted=())
            assert part is not None
            there = {job.id for job in part.jobs}
            ordered = queue_order(jobs, policy, now, nodes)
            in_part = queue_order(part.jobs, policy, now, nodes)
            assert in_part == [job for job in ordered if job.id in there]
            for place, job in enumerate(ordered):
                if job.id not in there:
                    before = [
                        other for other in ordered[:place]
                        if other.expected_duration <= job.expected_duration
                    ]  # fmt: skip
                    assert len(before) > policy.starts_kept
                    left_out += 1
            long_ago += now - min(job.waits_since or NOW for job in jobs) >= 36 * HOUR
    assert left_out > 3_000
    assert long_ago > 10


@pytest.mark.parametrize("can_stop", [True, False])
def test_of_jobs_that_nobody_knows_a_few_are_planned(can_stop: bool) -> None:
    chance = random.Random(1)
    jobs = [
        a_job(
            f"j{n:03}", gpus=2, can_stop=can_stop, duration_known=False,
            submitted_at=NOW - chance.randrange(2_000) * MINUTE,
            attained=chance.choice([0, 0, chance.randrange(600)]) * MINUTE,
        )
        for n in range(600)
    ]  # fmt: skip
    kept = kept_of(Scene([a_node("full", busy=range(8))], [], jobs))
    for policy in (
        PackingPolicy(order=RANK, max_reservations=8),
        PackingPolicy(score=ScorePolicy(profile=ScoreProfile.BALANCED), max_reservations=8),
    ):
        part = queued(jobs).to_plan(kept.open_gpus, kept.gpus, policy, NOW, wanted=())
        assert part is not None
        assert len(part.jobs) < 120
        first = queue_order(jobs, policy, NOW)[:9]
        assert {job.id for job in first} <= {job.id for job in part.jobs}


def test_the_lanes_follow_the_policy() -> None:
    """What was put in by age is in the order of the rank once the pool asks for that."""
    chance = random.Random(3)
    jobs = [_differing(a_job(f"j{n:03}"), chance, 30) for n in range(300)]
    queue = queued(jobs)
    by_rank = PackingPolicy(order=RANK)
    balanced = PackingPolicy(score=ScorePolicy(profile=ScoreProfile.BALANCED))
    by_age = PackingPolicy(score=balanced.score, order=QueueOrder.AGE)
    unpriced = by_rank.model_copy(update={"delay_price": {Tier.FLEX: 1_000_000}})
    for policy in (
        PackingPolicy(), by_rank, unpriced, by_rank, balanced, by_age, balanced, PackingPolicy(),
    ):  # fmt: skip
        part = queue.to_plan(0, 8, policy, NOW, wanted=())
        new = queued(jobs).to_plan(0, 8, policy, NOW, wanted=())
        assert part is not None
        assert new is not None
        assert sorted(job.id for job in part.jobs) == sorted(job.id for job in new.jobs)


def test_only_a_pool_that_holds_jobs_back_plans_all() -> None:
    jobs = [a_job(f"j{n:03}", duration_known=False) for n in range(300)]
    for above, count in ((None, 17), (0.5, 300)):
        score = ScorePolicy(profile=ScoreProfile.BALANCED, start_above=above)
        part = queued(jobs).to_plan(0, 8, PackingPolicy(score=score), NOW, wanted=())
        assert part is not None
        assert len(part.jobs) == count
