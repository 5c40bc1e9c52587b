"""The benchmark of preemption on short loads: its world, its ways, and that nothing thrashes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.preemption import WAYS, Row, measure, ours, over_best
from benchmarks.preemption_plans import measure as measure_plans
from benchmarks.preemption_world import POLICY, Choice, Pool, arrivals
from longshore.models.job_request import JobRequest

HOURS = 3


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return measure(HOURS, [1])


def test_a_seed_makes_the_same_load():
    assert arrivals(HOURS, 1) == arrivals(HOURS, 1)
    assert arrivals(HOURS, 2) != arrivals(HOURS, 1)


def test_every_way_ends_every_job(rows: list[Row]):
    jobs = len(arrivals(HOURS, 1))
    assert [row.way for row in rows] == list(WAYS)
    for row in rows:
        assert row.sum("ended") == jobs
        assert bool(row.sum("preemptions")) is (row.way != "nobody is stopped")


def test_ours_loses_less_than_every_other_way(rows: list[Row]):
    assert 0 < over_best(rows) < 1
    by_way = {row.way: row.waits for row in rows}
    assert max(by_way["ours"]) < max(by_way["nobody is stopped"])


def test_a_load_is_played_the_same_again(rows: list[Row]):
    again = Pool(arrivals(HOURS, 1), saves=True, seed=1).run(ours)
    mine = rows[0].tallies[0]
    assert (again.waits, again.lost_dollars) == (mine.waits, mine.lost_dollars)


def test_no_job_is_stopped_to_and_fro():
    """Over hours of cycles: the limits hold for each job, and no two jobs stop each other."""
    stops: list[tuple[str, str]] = []

    def watched(pool: Pool, queue: Sequence[JobRequest]) -> list[Choice]:
        choices = ours(pool, queue)
        stops.extend((job.id, name) for job, victims, _ in choices for name in victims)
        return choices

    pool = Pool(arrivals(8, 4), saves=True, seed=4)
    pool.run(watched)
    assert len(stops) > 20
    assert not {(victim, job) for job, victim in stops} & set(stops)
    for at in pool.stopped.values():
        assert all(later - earlier >= POLICY.cooldown for earlier, later in pairwise(at))
        beyond = zip(at, at[POLICY.max_per_hour :], strict=False)
        assert all((later - first).total_seconds() >= 3600 for first, later in beyond)


def test_a_crowded_pool_is_planned_and_somebody_gives_way():
    scene = {"nodes": 30, "waiting": 100, "gangs": 0.05, "seed": 1}
    made = measure_plans(**scene)
    assert made == replace(measure_plans(**scene), cycle=made.cycle, plans=made.plans)
    assert made.gangs > 0
    assert made.stopped >= made.chosen > 0
