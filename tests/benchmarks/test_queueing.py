"""The replay of a trace: what its yardsticks do by hand, and that the planner runs every job."""

import csv
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from benchmarks.estimates import Telling
from benchmarks.live_pool import START
from benchmarks.queueing import RULES, policies
from benchmarks.queueing_planner import Shipped
from benchmarks.queueing_world import Job, World, read_jobs
from benchmarks.queueing_yardsticks import Easy, Sjf, Srpt, best_fit
from longshore.scheduling.estimates import start_errors
from tests.support.local_stack import ROOT

pytestmark = pytest.mark.timeout(300)
HOUR = 3600.0
RESTART = 90.0


def test_easy_agrees_with_what_a_hand_computes():
    """The second waits for the whole node. The third ends just when that one starts, and overtakes
    it; the fourth would not, and the fifth finds no GPU."""
    jobs = _jobs((0, 100, 6), (10, 50, 8), (20, 80, 2), (30, 200, 2), (40, 10, 1))
    assert _waits(Easy(jobs, 1, RESTART, check=True)) == [0, 90, 0, 120, 110]


def test_easy_lets_a_long_job_overtake_beside_what_is_kept():
    """The third is kept 7 GPUs of the first node from 100 on. So one GPU there is for the fourth
    for as long as it likes, and none for the fifth; the sixth has left by then."""
    jobs = _jobs((0, 100, 6), (0, 500, 8), (10, 50, 7), (20, 900, 1), (30, 900, 1), (40, 60, 1))
    assert _waits(Easy(jobs, 2, RESTART, check=True)) == [0, 0, 90, 0, 120, 0]


def test_the_shortest_goes_first_and_stops_others():
    rows = ((0, 1000, 8), (10, 300, 8), (20, 100, 4))
    assert _waits(Sjf(_jobs(*rows), 1, RESTART, check=True)) == [0, 1090, 980]
    jobs = _jobs(*rows)
    # The second stops the first at 10, the third stops the second at 20 and ends at 120. Then the
    # second restarts for 90 s and runs the 290 that it has left; the first follows at 500.
    assert _waits(Srpt(jobs, 1, RESTART, check=True)) == [580, 190, 0]
    assert [len(job.stopped_at) for job in jobs] == [1, 1, 0]
    for job in (unstoppable := _jobs(*rows)):
        job.saves = False
    assert _waits(Srpt(unstoppable, 1, RESTART, check=True)) == [0, 1090, 980]


def test_a_wide_job_takes_whole_nodes_and_the_rest_of_another():
    assert best_fit([8, 3, 8, 8, 5], 20) == [(0, 8), (2, 8), (4, 4)]
    assert best_fit([8, 3, 7], 16) is None


@pytest.mark.parametrize("exact", [True, False])
def test_the_planner_runs_every_job_to_its_end(exact: bool):
    jobs = _synthetic()
    world = Shipped(jobs, 2, RESTART, policies("age", RESTART), exact=exact, check=True)
    waits = _waits(world)
    assert len(waits) == 30
    assert max(waits) > 0
    assert not any(job.stopped_at for job in jobs), "all are of one class"
    assert world.cycles > 10
    assert world.plans == 0


def test_the_planner_stops_jobs_of_lower_classes_and_runs_them_to_their_ends():
    jobs = _synthetic()
    for job in jobs:
        job.priority = 9 if job.number % 5 == 4 else 3
    world = Shipped(jobs, 2, RESTART, policies("age", RESTART), check=True)
    _waits(world)
    stopped = [job for job in jobs if job.stopped_at]
    assert stopped
    assert all(job.priority == 3 for job in stopped)
    assert all(job.attempt == 1 + len(job.stopped_at) for job in jobs)


def test_by_attained_service_long_jobs_yield_and_all_run_to_their_ends():
    jobs = _of_two_kinds()
    world = Shipped(jobs, 2, RESTART, policies("attained-service", RESTART), exact=False,
                    check=True)  # fmt: skip
    by_rank = _waits(world)
    stopped = {job.number for job in jobs if job.stopped_at}
    assert stopped
    assert all(jobs[number].seconds > HOUR for number in stopped), "short ones run through"
    by_age = _waits(Shipped(_of_two_kinds(), 2, RESTART, policies("age", RESTART), exact=False))
    assert sum(by_rank) < sum(by_age) / 2


def test_who_cannot_save_is_not_stopped():
    jobs = _of_two_kinds()
    for job in jobs:
        job.saves = False
    rules = policies("attained-service", RESTART)
    _waits(Shipped(jobs, 2, RESTART, rules, exact=False, check=True))
    assert not any(job.stopped_at for job in jobs)


@pytest.mark.parametrize("learns", [False, True])
def test_nothing_is_decided_by_what_nobody_knows_yet(learns: bool):
    """Other durations of what has not ended by then change nothing before."""
    until = 3 * HOUR
    used: list[bool] = []

    def begun(jobs: list[Job]) -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []

        class Seen(Shipped):
            def joined(self, job: Job) -> None:
                super().joined(job)
                used.append(self.now < until and self._requests[job.id].learnt is not None)

            def begin(self, job: Job) -> None:
                seen.append((job.number, self.now))
                super().begin(job)

        rules = policies("attained-service", RESTART)
        _waits(Seen(jobs, 2, RESTART, rules, exact=False, learns=learns))
        return [each for each in seen if each[1] < until]

    jobs = _of_two_kinds(180 if learns else 30)
    before = begun(jobs)
    assert len(before) > 10
    assert any(used) == learns
    others = _of_two_kinds(len(jobs) - 3)
    changed = 0
    for job, as_it_was in zip(others, jobs, strict=True):
        if as_it_was.ends >= until:
            changed += 1
            job.seconds = job.left = job.seconds * 3
    assert changed > 3
    assert begun(others) == before


def test_a_trace_is_read_as_asked(tmp_path: Path):
    trace = _written(tmp_path)
    jobs = read_jobs(trace)
    assert [job.number for job in jobs] == list(range(30))
    assert jobs[0].submit == 0
    assert read_jobs(trace, speed_up=0.5)[-1].submit == round(jobs[-1].submit / 2)
    assert len(read_jobs(trace, days=jobs[-1].submit / 86_400)) == 29
    moved = [job.submit for job in read_jobs(trace, replicate=1)]
    assert moved == sorted(moved) != [job.submit for job in jobs]
    assert 5 < sum(job.saves for job in read_jobs(trace, can_save=0.5)) < 25


@pytest.mark.parametrize(("stated", "low"), [("overstated", 1.0), ("noisy", 0.2)])
def test_what_jobs_say_of_their_durations_is_drawn_by_a_seed(
    tmp_path: Path, stated: str, low: float
):
    trace = _written(tmp_path)
    says = [job.says for job in read_jobs(trace, stated=stated)]
    assert low <= min(says) < low * 1.5
    assert 3.5 < max(says) <= 5
    assert says == [job.says for job in read_jobs(trace, stated=stated)]
    assert says != [job.says for job in read_jobs(trace, stated=stated, seed=1)]
    assert {job.says for job in read_jobs(trace)} == {1.0}
    world = Shipped(read_jobs(trace, stated=stated), 2, RESTART, policies("age", RESTART))
    world.joined(job := world.jobs[3])
    request = world._requests[job.id]  # pyright: ignore[reportPrivateUsage]
    assert request.duration_known
    assert request.expected_duration == timedelta(seconds=job.seconds * job.says)
    assert len(_waits(Shipped(world.jobs, 2, RESTART, world.policies, check=True))) == 30


def test_the_benchmark_compares_rules(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.queueing", "--jobs", str(_written(tmp_path)),
         "--nodes", "2", "--check", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["rule"]: row for row in json.loads(done.stdout)["results"]}
    assert list(rows) == list(RULES)
    assert {row["jobs"] for row in rows.values()} == {30}
    assert rows["fifo"]["mean"] >= rows["easy"]["mean"] > rows["srpt"]["mean"] > 0
    assert rows["srpt"]["stops"] > 0 == rows["age"]["stops"]


def test_the_first_word_on_a_start_is_held_against_how_it_came():
    """The second is told the end of the first, the third that of the second. Of one that starts
    at once nothing is told."""
    jobs = _jobs((0, 100, 6), (10, 50, 8), (20, 80, 4))
    world = Telling(jobs, 1, RESTART, policies("age", RESTART))
    world.play()
    found = [((said.starts_at - START).total_seconds(), said.started_at) for said in world.told]
    assert [at for at, _ in found] == [100, 150]
    assert world.waits == 2
    (row,) = start_errors(world.told, world.time)
    assert (row.jobs, row.median, row.p90) == (2, timedelta(0), timedelta(0))
    blind = Telling(_jobs((0, 100, 6), (10, 50, 8)), 1, RESTART, policies("age", RESTART),
                    exact=False)  # fmt: skip
    blind.play()
    (row,) = start_errors(blind.told, blind.time)
    assert (row.earlier, row.median) == (
        1,
        timedelta(seconds=3510),
    )  # an hour was assumed, from then on


def _jobs(*rows: tuple[float, float, int]) -> list[Job]:
    return [Job(number, *row) for number, row in enumerate(rows)]


def _of_two_kinds(many: int = 30) -> list[Job]:
    """Return long jobs on all of two nodes, and then so many short ones in two and a half
    hours."""
    long = [(0.0, 20 * HOUR, 8), (1.0, 30 * HOUR, 4), (2.0, 25 * HOUR, 4)]
    every = 9000.0 / many
    short = [(HOUR + every * number, 200.0 + number, 1 + number % 4) for number in range(many)]
    return _jobs(*long, *short)


def _synthetic() -> list[Job]:
    """Return 30 jobs of 1 to 16 GPUs that come sooner than two nodes can run them."""
    chance = Random(3)
    at, jobs = 0.0, list[Job]()
    for number in range(30):
        gpus = 16 if number == 12 else chance.choice((1, 1, 2, 4, 8))
        jobs.append(Job(number, at, float(round(chance.lognormvariate(6, 1.2))), gpus))
        at += round(chance.expovariate(1 / 60))
    return jobs


def _written(folder: Path) -> Path:
    trace = folder / "jobs.csv"
    with trace.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job_id", "submit_s", "duration_s", "num_gpu"])
        writer.writerows([job.number, job.submit + 50, job.seconds, job.gpus]
                         for job in _synthetic())  # fmt: skip
    return trace


def _waits(world: World) -> list[float]:
    world.play()
    return [job.wait for job in world.jobs]
