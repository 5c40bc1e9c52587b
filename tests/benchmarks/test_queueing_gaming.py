"""What a tenant gains that games the order: the ways to game are played as they are told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.queueing import policies
from benchmarks.queueing_gaming import WAYS, flooded, in_pieces, largest_tenant, row_of
from benchmarks.queueing_planner import Shipped
from benchmarks.queueing_world import Job
from tests.benchmarks.test_queueing import HOUR, RESTART
from tests.support.local_stack import ROOT

pytestmark = pytest.mark.timeout(300)
RULES = policies("attained-service", RESTART)


def test_a_job_in_pieces_runs_all_of_them_and_begins_each_with_a_restart():
    jobs = [Job(0, 0.0, 2.5 * HOUR, 8, "cuts")]
    in_pieces(jobs, "cuts", HOUR)
    Shipped(jobs, 1, RESTART, RULES, exact=False, check=True).play()
    assert jobs[0].attempt == 3
    assert not jobs[0].stopped_at
    assert jobs[0].wait == 2 * RESTART


def test_a_piece_takes_over_what_those_before_it_ran_and_has_not_waited():
    jobs = [Job(0, 0.0, 2.5 * HOUR, 8, "cuts"), Job(1, HOUR / 2, HOUR / 4, 8, saves=False)]
    in_pieces(jobs, "cuts", HOUR)
    world = Shipped(jobs, 1, RESTART, RULES, exact=False, check=True)
    seen: list[tuple[float, float]] = []
    joined = world.joined

    def note(job: Job) -> None:
        joined(job)
        request = world._requests[job.id]  # pyright: ignore[reportPrivateUsage]
        assert request.submitted_at == request.waits_since == world.time
        seen.append((world.now, request.attained.total_seconds()))

    world.joined = note
    world.play()
    ran = [(0, 0), (HOUR / 2, 0), (HOUR, HOUR), (2 * HOUR + RESTART, 2 * HOUR)]
    assert seen == ran
    assert jobs[1].wait == 2 * HOUR + 2 * RESTART, "it ranks as one of 9,400 s"


def test_a_flood_is_told_apart_from_the_jobs_of_its_tenant():
    jobs = [Job(0, 0.0, HOUR, 8, "a"), Job(1, 600.0, 300.0, 1, "b"), Job(2, 900.0, HOUR, 8, "b")]
    assert largest_tenant(jobs) == "b"
    every, flood = flooded(jobs, "b", 2)
    assert [job.id for job in every] == [f"{number:07}" for number in range(9)]
    assert len(flood) == 6
    assert [job.submit for job in every] == sorted(job.submit for job in every)
    for job in every:
        job.ends = job.submit + job.seconds + (7.0 if job.id in flood else job.gpus)
    row = row_of("flood", every, "b", flood)
    assert (row.tenant, row.others, row.flood, row.jobs) == (4.5, 8, 7, 2)


def test_the_benchmark_plays_every_way(tmp_path: Path):
    trace = tmp_path / "jobs.csv"
    rows = [f"{n},{600 * n},{9000 if n % 3 else 200},{1 + n % 8},{'ab'[n % 2]}" for n in range(20)]
    trace.write_text("\n".join(["job_id,submit_s,duration_s,num_gpu,vc", *rows]))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.queueing_gaming", "--jobs", str(trace), "--nodes", "1",
         "--flood", "1", "--check", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {row["way"]: row for row in json.loads(done.stdout)["results"]}
    assert list(found) == list(WAYS)
    assert {row["jobs"] for row in found.values()} == {10}
    assert found["unstoppable"]["stops"] == 0
    assert found["flood"]["flood"] > 0 == found["honest"]["flood"]
