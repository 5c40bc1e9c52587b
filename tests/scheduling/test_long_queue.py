"""A part of a long queue is planned as the whole of it is."""

import random
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import pytest

from longshore.models.job import ASSUMED_DURATION
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import (
    CyclePlan,
    PackingPolicy,
    PackingRule,
    RunningJob,
    ScoreWeights,
)
from longshore.models.topology import Gang
from longshore.scheduling import bulk
from longshore.scheduling.cycle import mix_kept, plan_cached
from longshore.scheduling.long_queue import LONG, LongQueue, _Alike  # pyright: ignore[reportPrivateUsage]
from longshore.scheduling.order import queue_order
from longshore.scheduling.placement.node_cache import NodeCache
from tests.scheduling.test_reference import crowded, crowded_in_parts
from tests.support.packing import HOUR, NOW, a_job, a_node, one_by_one, running
from tests.support.packing_scenes import Scene, uneven_nodes
from tests.support.searches import seeds

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
DURATIONS = (timedelta(0), 20 * MINUTE, 240 * MINUTE, ASSUMED_DURATION)
JOBS = 400


def long_scene(chance: random.Random) -> Scene:
    """Return 4 nodes with jobs on most GPUs, and a queue of 400 jobs that ask in 10 ways, each for
    a time of its own, of a few, or of any length, and with data of its own."""
    scene = crowded_in_parts(chance) if chance.random() < 0.5 else crowded(chance)
    nodes = [
        node.model_copy(update={"data": tuple(chance.sample("abc", k=chance.randrange(3)))})
        for node in scene.nodes[:4]
    ]
    names = {node.id for node in nodes}
    shapes = scene.queue[:10]
    shapes[0] = shapes[0].model_copy(
        update={"gang": Gang(unlabelled_nodes=True), "mig": None, "milli": 1000, "gpus": 10}
    )
    few = [chance.choice(DURATIONS) for _ in range(chance.choice([1, 3, 0, 0]))]
    queue = [
        chance.choice(shapes).model_copy(
            update={
                "id": f"q{number:03}",
                "submitted_at": NOW - chance.randrange(600) * MINUTE,
                "expected_duration": chance.choice(few) if few else any_duration(chance),
                "path_behind": chance.choice([0, 0, chance.random()]),
                "data": {name: chance.randrange(3) for name in chance.sample("abc", k=1)},
            }
        )
        for number in range(JOBS)
    ]
    return Scene(nodes, [job for job in scene.running if job.node_id in names], queue)


def any_duration(chance: random.Random) -> timedelta:
    if chance.random() < 0.1:
        return chance.choice(DURATIONS)
    return timedelta(seconds=chance.randrange(1, 36_000))


def short_behind_long(chance: random.Random) -> Scene:
    """Return 2 to 4 nodes where room is kept or soon at its end, and a queue of 400 jobs that ask
    in 5 ways, some of them longer the earlier they came: only short ones can start."""
    nodes: list[Node] = []
    at_work: list[RunningJob] = []
    for number in range(chance.choice([2, 3, 4])):
        name, holders = f"n{number}", chance.choices(["", "known", "unknown"], [2, 3, 1], k=4)
        busy = [gpu for gpu, holder in enumerate(holders) if holder]
        ends = chance.choice([None, None, chance.randrange(30, 600) * MINUTE])
        nodes.append(
            a_node(name, gpus=4, busy=busy, expires_in=ends, cpus=chance.choice([12, 24, 64]))
        )
        at_work += [
            running(f"{name}-{gpu}", name, [gpu], chance.randrange(5, 300) * MINUTE)
            for gpu in busy
            if holders[gpu] == "known"
        ]
    shapes: list[dict[str, Any]] = [
        {
            "gpus": (gpus := chance.choice([1, 1, 2, 3, 4])),
            "cpus": gpus * chance.choice([2, 6, 10]),
            "priority": chance.randrange(3),
            "saves": chance.random() < 0.5,
            "grace": chance.choice([10, 240, 1800]) * SECOND,
        }
        for _ in range(4)
    ]
    shapes.append({"gpus": 4, "cpus": 4, "priority": 2})
    shorter = chance.choice([0, 2, 4])
    """Powers of ten from the first to the last."""
    queue = [
        a_job(
            f"q{n:03}", **chance.choice(shapes), ram=0, submitted_at=NOW - (1 - late) * HOUR,
            expected_duration=round(10 ** (4.5 - shorter * late - chance.random())) * SECOND,
        )
        for n, late in enumerate(chance.random() for _ in range(JOBS))
    ]  # fmt: skip
    return Scene(nodes, at_work, queue)


def kept_of(scene: Scene) -> NodeCache:
    kept = NodeCache()
    kept.update({node.id for node in scene.nodes}, scene.nodes, scene.running)
    return kept


def queued(jobs: list[JobRequest]) -> LongQueue:
    queue = LongQueue()
    for job in jobs:
        queue.put(job)
    return queue


def both(scene: Scene, policy: PackingPolicy) -> tuple[CyclePlan, CyclePlan, int]:
    """Return the plan of the whole queue, that of a part, and of how many jobs it is."""
    kept = kept_of(scene)
    mix = mix_kept(scene.queue, kept, policy, ())
    whole = plan_cached(scene.queue, kept, policy, NOW, mix=mix)
    part = queued(scene.queue).first_alike(kept.open_gpus, policy)
    return whole, plan_cached(part, kept, policy, NOW, mix=mix), len(part)


@pytest.mark.parametrize("rule", [PackingRule.KEEP_ROOM, PackingRule.SEED_SCORE])
def test_a_part_is_planned_as_the_whole_is(rule: PackingRule) -> None:
    placed = kept = compared = 0
    for seed in seeds(8):
        chance = random.Random(seed)
        scene = short_behind_long(chance) if seed % 3 else long_scene(chance)
        starts, weights = chance.choice([0, 1, 3]), ScoreWeights(critical_path=4 * (seed % 2))
        policy = PackingPolicy(rule=rule, max_reservations=starts, weights=weights)
        whole, part, planned = both(scene, policy)
        assert planned < JOBS
        assert part.rearranged == whole.rearranged
        if part.rearranged:
            continue  # who places it plans the whole then
        compared += 1
        assert part.placements == whole.placements
        assert part.reservations == whole.reservations
        ids = {decision.job_id for decision in part.decisions}
        assert part.decisions == tuple(each for each in whole.decisions if each.job_id in ids)
        placed += len(part.placements)
        kept += len(part.reservations)
    # The comparison means something only where all of these happen.
    assert compared * 2 > len(seeds(8))
    assert placed > 10
    assert kept > 5


def who_change_places(chance: random.Random) -> Scene:
    """Return empty nodes of several makes, and a queue of 400 jobs that are heavy in cores or not:
    some find room where others are placed elsewhere."""
    equally_long = chance.random() < 0.5
    queue = [
        a_job(
            f"j{i:03}", gpus := chance.choice([1, 2, 4]), vram_per_gpu=10, ram=0,
            cpus=gpus * chance.choice([2, 6, 10]), data={f"set-{i}": 1.0},
            expected_duration=HOUR if equally_long else any_duration(chance),
        )
        for i in range(JOBS)
    ]  # fmt: skip
    return Scene(uneven_nodes(chance), [], queue)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("rule", [PackingRule.KEEP_ROOM, PackingRule.SEED_SCORE])
def test_who_does_not_ask_is_left_out_where_one_alike_found_no_room(rule: PackingRule) -> None:
    scenes = (short_behind_long, long_scene, who_change_places)
    placed = kept = moved = decided = asked = 0
    for seed in seeds(9):
        chance = random.Random(seed)
        scene = scenes[seed % 3](chance)
        starts = 8 if seed % 3 == 2 else chance.choice([0, 1, 3])
        weights = ScoreWeights(critical_path=chance.choice([0, 4]))
        policy = PackingPolicy(rule=rule, max_reservations=starts, weights=weights)
        of = kept_of(scene)
        mix = mix_kept(scene.queue, of, policy, ())
        whole = plan_cached(scene.queue, of, policy, NOW, mix=mix)
        wanted = {job.id for job in chance.sample(scene.queue, chance.choice([0, 40]))}
        few = plan_cached(scene.queue, of, policy, NOW, mix=mix, wanted=wanted)
        assert few.placements == whole.placements
        assert few.reservations == whole.reservations
        assert few.rearranged == whole.rearranged
        ids = {decision.job_id for decision in few.decisions}
        assert wanted <= ids
        assert few.decisions == tuple(each for each in whole.decisions if each.job_id in ids)
        placed += len(few.placements)
        kept += len(few.reservations)
        moved += few.rearranged
        decided += len(ids - wanted)
        asked += len(scene.queue) - len(wanted)
    # The comparison means something only where all of these happen.
    assert placed > 50
    assert kept > 10
    assert moved > 0
    assert decided * 2 < asked


def test_of_those_that_differ_in_their_duration_one_is_decided_about() -> None:
    """Where nothing that the duration decides keeps them from starting."""
    chance = random.Random(4)
    nodes = [a_node("full", busy=range(8)), a_node("ends", busy=range(8), expires_in=HOUR)]
    jobs = [
        a_job(f"j{n:03}", gpus=8 if n % 2 else 16, expected_duration=any_duration(chance))
        for n in range(JOBS)
    ]
    known = [running("on-full", "full", range(8), HOUR)]
    for max_reservations in (0, 3):
        policy = PackingPolicy(max_reservations=max_reservations)
        made = plan_cached(jobs, kept_of(Scene(nodes, known, jobs)), policy, NOW, wanted=())
        ids = [decision.job_id for decision in made.decisions]
        # Two too short for the node that ends are told something else.
        assert 2 + max_reservations <= len(ids) <= 4 + max_reservations


def test_where_many_start_all_are_decided_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [a_node(f"n{number}") for number in range(5)]
    jobs = [a_job(f"j{number:03}") for number in range(60)]
    kept = kept_of(Scene(nodes, [], jobs))
    whole = plan_cached(jobs, kept, PackingPolicy(), NOW, compiled=False)
    monkeypatch.setattr(bulk, "is_worth", lambda count: count >= bulk.FEWEST)
    few = plan_cached(jobs, kept, PackingPolicy(), NOW, wanted={"j059"})
    assert few.placements == whole.placements
    assert few.reservations == whole.reservations
    ids = {decision.job_id for decision in few.decisions}
    assert few.decisions == tuple(each for each in whole.decisions if each.job_id in ids)
    assert "j059" in ids
    assert len(ids) < 60, "of those that find no room not all are told"


def test_jobs_change_their_places_in_the_part_or_not_in_the_whole() -> None:
    changed = 0
    for seed in seeds(8):
        whole, part, _ = both(who_change_places(random.Random(seed)), PackingPolicy())
        assert part.rearranged == whole.rearranged
        changed += part.rearranged
    assert changed > 0


def test_the_part_is_small_where_little_is_open() -> None:
    nodes = [a_node("full", busy=range(8)), a_node("half", busy=range(4))]
    jobs = [a_job(f"j{number:04}", gpus=1 + number % 2) for number in range(5_000)]
    kept = kept_of(Scene(nodes, [], jobs))
    part = queued(jobs).first_alike(kept.open_gpus, PackingPolicy(max_reservations=8))
    assert kept.open_gpus == 4
    assert len(part) == (4 + 9) + (2 + 9)
    assert {job.id for job in part} == {f"j{n:04}" for n in range(26)} - {"j0023", "j0025"}


def test_a_job_counts_where_few_before_it_are_as_short() -> None:
    chance = random.Random(2)
    for durations in (3, 3, 50, 50, 10_000, 10_000):
        jobs = [
            a_job(
                f"j{number:03}", gpus=1 + number % 2, data={f"set-{number}": 1.0},
                submitted_at=NOW - chance.randrange(600) * SECOND,
                expected_duration=chance.randrange(durations) * SECOND,
                path_behind=chance.choice([0, chance.random()]),
            )
            for number in range(300)
        ]  # fmt: skip
        without = {job.id for job in chance.sample(jobs, 40)}
        weights = ScoreWeights(critical_path=chance.choice([0, 0.05, 1]))
        policy = PackingPolicy(max_reservations=2, weights=weights)
        part = queued(jobs).first_alike(4, policy, without)
        there = queue_order((job for job in jobs if job.id not in without), policy, NOW)
        counts = [
            job
            for place, job in enumerate(there)
            if sum(
                other.gpus == job.gpus and other.expected_duration <= job.expected_duration
                for other in there[:place]
            )
            < 4 // job.gpus + 3
        ]
        assert queue_order(part, policy, NOW) == counts
    by_length = [a_job(f"j{n:04}", expected_duration=n * SECOND) for n in range(2_000)]
    assert len(queued(by_length).first_alike(0, PackingPolicy(max_reservations=8))) == 9


def weighed(hours: float) -> PackingPolicy:
    return PackingPolicy(max_reservations=2, weights=ScoreWeights(critical_path=hours))


def test_it_is_the_same_whatever_came_and_went() -> None:
    chance = random.Random(1)
    jobs = {job.id: job for job in long_scene(chance).queue}
    queue, there = LongQueue(), dict[str, JobRequest]()
    for number in range(3_000):
        job = chance.choice(list(jobs.values()))
        if number % 50 == 0:  # what is found now may not be said later
            queue.first_alike(chance.choice([0, 3]), weighed(chance.choice([0, 0, 2, 9])))
        if chance.random() < 0.4:
            queue.remove(job.id)
            there.pop(job.id, None)
        else:
            job = job.model_copy(
                update={
                    "attempt": chance.randrange(1, 4),
                    "expected_duration": chance.choice([HOUR, any_duration(chance)]),
                }
            )
            queue.put(job)
            there[job.id] = job
    assert len(queue) == len(there)
    new = queued(list(there.values()))
    for open_gpus, hours in ((0, 0), (3, 4), (3, 0), (0, 4), (400, 4)):
        found = queue.first_alike(open_gpus, weighed(hours))
        assert sorted(found, key=lambda job: job.id) == sorted(
            new.first_alike(open_gpus, weighed(hours)), key=lambda job: job.id
        )
    without = set(list(there)[::2])
    left = queue.first_alike(1_000, PackingPolicy(), without=without)
    assert {job.id for job in left} == there.keys() - without


def test_only_what_changed_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    find_first = _Alike._find_first  # pyright: ignore[reportPrivateUsage]

    def noting(alike: _Alike, most: int, without: Collection[str] = ()) -> list[JobRequest]:
        found = find_first(alike, most, without)
        looked_at.append(found[0].gpus)
        return found

    monkeypatch.setattr(_Alike, "_find_first", noting)
    queue = queued([a_job(f"j{n:02}", gpus=1 + n % 3, expected_duration=n * MINUTE)
                    for n in range(30)])  # fmt: skip
    policy = PackingPolicy(max_reservations=2)
    for open_gpus, change, expected in (
        (0, lambda: None, [1, 2, 3]),
        (0, lambda: None, []),
        (0, lambda: queue.put(a_job("more", gpus=2)), [2]),
        (0, lambda: queue.remove("j00"), [1]),
        (2, lambda: None, [1, 2]),
        (0, lambda: None, []),
    ):
        looked_at.clear()
        change()
        queue.first_alike(open_gpus, policy)
        assert sorted(looked_at) == expected
    looked_at.clear()
    queue.first_alike(0, policy, without={"j01", "j03"})
    assert sorted(looked_at) == [1, 2]


def test_of_gangs_all_are_planned() -> None:
    gangs = [a_job(f"g{n}", gpus=4, gang=Gang(unlabelled_nodes=True)) for n in range(40)]
    others = [a_job(f"j{n}", gpus=4) for n in range(40)]
    part = queued([*gangs, *others]).first_alike(0, PackingPolicy(max_reservations=2))
    assert sum(job.gang is not None for job in part) == 40
    assert sum(job.gang is None for job in part) == 3


def test_of_replicas_all_are_planned_so_that_whoever_has_its_turn_is_there() -> None:
    """The others come before it by their age, and ask alike."""
    replicas = [
        a_job(f"r{n}", submitted_at=NOW + n * SECOND, serves=True, loads_within=10 * MINUTE)
        for n in range(40)
    ]
    others = [a_job(f"j{n}") for n in range(40)]
    policy = PackingPolicy(max_reservations=2)
    part = queued([*replicas, *others]).first_alike(0, policy)
    assert {job.id for job in part if job.loads_within} == {job.id for job in replicas}
    assert sum(job.loads_within is None for job in part) == 3
    ordered = queue_order(part, policy.model_copy(update={"turns": ("r39",)}), NOW)
    assert ordered[0].id == "r39"


def test_all_are_planned_where_a_part_would_not_do() -> None:
    policy = PackingPolicy(class_rises_every=30 * DAY, max_reservations=8)
    jobs = [a_job(f"j{number:03}", submitted_at=NOW - DAY) for number in range(LONG)]
    queue = queued(jobs[1:])

    def planned(now: datetime = NOW, policy: PackingPolicy = policy, **more: Any) -> int | None:
        part = queue.to_plan(0, 8, policy, now, **{"wanted": (), **more})
        return None if part is None else len(part.jobs)

    assert planned() is None, "it is short"
    queue.put(jobs[0])
    assert planned() == 9
    assert planned(whole=True) == LONG
    assert planned(NOW + 29 * DAY) == LONG, "jobs may have risen a class"
    assert planned(NOW + 29 * DAY, PackingPolicy(class_rises_every=timedelta(0))) == 9
    queue.put(a_job("old", submitted_at=NOW, waits_since=NOW - 31 * DAY))
    assert planned() == LONG + 1
    queue.remove("old")
    queue.put(a_job("highest", submitted_at=NOW - 99 * DAY, priority=10))
    assert planned() == 9 + 1
    asked = [job.id for job in (*jobs[:3], *jobs[100:110])]
    some = queue.to_plan(0, 8, policy, NOW, wanted=[*asked, "unknown"], without={"j105"})
    assert some is not None
    assert set(some.wanted) == set(asked) - {"j105"}
    assert len(some.jobs) == 9 + 1 + 9
    assert planned(wanted=[job.id for job in jobs[:300]]) is None, "it is more than half"


def test_whoever_is_behind_one_that_waits_alike_has_no_room_either() -> None:
    """Without the search, which is what makes the difference above."""
    with one_by_one():
        for seed in seeds(4):
            whole, part, _ = both(long_scene(random.Random(seed)), PackingPolicy())
            assert part.placements == whole.placements
