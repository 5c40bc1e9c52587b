"""Each benchmark of the whole runs, at a tiny size. How fast it is, is not judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.slurm_controller import MISSING, MISSING_TO_RUN
from benchmarks.soak import judge
from tests.support.local_stack import ROOT

pytestmark = pytest.mark.timeout(300)


def test_end_to_end_compares_jobs_with_a_bare_workflow():
    report = _run("benchmarks.end_to_end", "--jobs", "4", "--concurrency", "1,2")
    assert report["ratio"] > 0
    assert [row["concurrency"] for row in report["results"]] == [1, 2]
    for row in report["results"]:
        assert 0 < row["start_p50_ms"] < row["done_p50_ms"]
        # A job that is placed at once: start, enqueue, placed, its state, run_process, finish.
        assert (row["actions"], row["bare_actions"]) == (6, 5)
        assert {"temporal", "postgres", "control", "agents"} <= set(row["cpu_ms"])


def test_an_array_stands_beside_single_jobs_of_the_same_run():
    sizes = ("--elements", "120", "--jobs", "4", "--slots", "2", "--slurm-elements", "4")
    report = _run("benchmarks.arrays", *sizes)
    assert (report["elements"], report["jobs"], report["opened"]) == (120, 4, 2)
    assert report["elements_per_s"] > report["jobs_per_s"] > 0
    assert report["ratio"] == pytest.approx(report["elements_per_s"] / report["jobs_per_s"])
    assert report["actions_per_job"] == 6
    assert 0 < report["actions_per_element"] < 1
    assert report["batches"] >= 2
    assert (report["slurm_per_s"] is None) == bool(MISSING_TO_RUN)
    assert (report["slurm_elements"], bool(report["scheduler_parameters"])) == (4, True)


def test_jobs_of_dags_stand_beside_the_same_jobs_singly():
    sizes = ("--chain", "3", "--fan", "3", "--random", "4", "--gpus", "2", "--turns", "1")
    rows = _run("benchmarks.dag", *sizes)["results"]
    assert [(row["shape"], row["jobs"]) for row in rows] == [
        ("chain", 3), ("fan", 5), ("random", 4),
    ]  # fmt: skip
    for row in rows:
        assert row["ratio"] == pytest.approx(row["dag_ms"] / row["single_ms"])
        assert row["children_ms"] > 0
        assert 0 < row["actions"] < row["events"]
        assert row["single_actions"] == 6


def test_a_live_preemption_is_measured_step_by_step():
    arguments = ("--live", "--rounds", "2", "--saves", "0.2")
    (row,) = _run("benchmarks.preemption", *arguments)
    assert (row["saves_for"], row["rounds"]) == (0.2, 2)
    assert min(row["steps"].values()) > 0
    assert row["steps"]["saved"] >= 0.2
    assert row["start"] > row["beside_the_save"] > 0


def test_growth_stands_beside_the_empty_queue_of_the_same_run():
    rows = _run("benchmarks.growth", "--waiting", "0,60", "--jobs", "3")["results"]
    assert [row["waiting"] for row in rows] == [0, 60]
    assert (rows[0]["time_ratio"], rows[0]["rate_ratio"]) == (1, 1)
    for row in rows:
        assert 0 < row["done_p50_ms"] <= row["done_p95_ms"]
        assert row["time_ratio"] == pytest.approx(row["done_p50_ms"] / rows[0]["done_p50_ms"])
        assert row["rate_ratio"] == pytest.approx(row["jobs_per_s"] / rows[0]["jobs_per_s"])
        parts = row["cycle_ms"]
        assert 0 < sum(parts[part] for part in ("read", "plan", "commit")) < parts["took"]
        assert row["cycles"] > 0 < row["wal_kb"]
        assert {"temporal", "postgres", "control", "agents"} <= set(row["cpu_ms"])
        assert set(row["calls_ms"]) == {"submit", "list", "pools", "report", "why", "cancel"}
        assert min(row["calls_ms"].values()) > 0


def test_a_whole_cycle_places_what_fits_and_says_what_it_took():
    arguments = ("--nodes", "60", "--waiting", "80", "--turns", "1")
    report = _run("benchmarks.whole_cycle", *arguments)
    for cycle in (report["first"], *report["later"]):
        assert cycle["waiting"] == 80
        assert 6 <= cycle["placed"] <= 24
        parts = cycle["ms"]
        assert 0 < sum(parts[part] for part in ("read", "plan", "commit")) < parts["took"]
    assert report["memory"] > 0


@pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: {', '.join(MISSING)}")
def test_the_cycle_stands_beside_the_backfill_of_a_real_slurm():
    arguments = ("--nodes", "4", "--jobs", "12", "--starts", "5", "--turns", "1")
    report = _run("benchmarks.slurm_backfill", *arguments)
    assert report["slurm"].startswith("slurm")
    assert len(report["slurm_starts"]) == len(report["our_starts"]) == 5
    # The node that comes free first does so after two hours, and its first job ends an hour later.
    assert report["slurm_starts"][0] == pytest.approx(report["our_starts"][0], abs=1 / 60)
    assert report["our_starts"][0] == 2
    for took in ("slurm_ms", "plan_ms", "later_ms"):
        assert len(report[took]) == 1
        assert min(report[took]) > 0


def test_the_benchmark_beside_slurm_is_skipped_in_a_line_where_there_is_none(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.slurm_backfill"], cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("skipped: Slurm is not installed (")
    assert "sbatch" in line


def test_a_soak_says_what_grew():
    report = _run("benchmarks.soak", "--minutes", "0.1", "--rate", "2", "--keep-runs", "2")
    assert report["verdict"]
    assert 0 < report["succeeded"] == report["submitted"]
    names = [line["name"] for line in report["results"] if not line["flat"]]
    assert report["verdict"] == ("; ".join(names) or "flat")


@pytest.mark.parametrize(
    ("name", "values", "flat"),
    [
        ("control worker, MB", [100, 140, 150, *[160] * 9], True),
        ("control worker, MB", [100 + 10 * minute for minute in range(12)], False),
        ("queue", [0, 9, 1, 7, 0, 8, 1, 6, 0, 9, 0, 7], True),
        ("files of runs", [0, 90, 180, 270, 20, 110, 200, 290, 30, 120, 210, 280], True),
        ("files of runs", [90 * minute for minute in range(12)], False),
        ("history of the pool, events", [50, 4_000, 20, 3_900, 40, 4_100], True),
        ("history of the pool, events", [2_000 * minute for minute in range(12)], False),
    ],
)
def test_a_quantity_is_flat_or_grows(name: str, values: list[float], flat: bool):
    assert judge(name, values).flat is flat


def _run(module: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--json"],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_environment_is_built_once_and_reused():
    sizes = ("--packages", "3", "--modules", "2", "--jobs", "3")
    report = _run("benchmarks.environments", *sizes)
    assert report["builds_of_them"] == 1
    assert 0 < report["reused_s"] < report["built_s"]


def test_a_script_with_its_packages_starts_beside_a_plain_job():
    sizes = ("--files", "3", "--packages", "2", "--modules", "2", "--jobs", "2")
    report = _run("benchmarks.own_script", *sizes)
    assert min(report["plain_ms"], report["code_ms"], report["both_ms"]) > 0
    assert report["ratio"] == pytest.approx(report["both_ms"] / report["plain_ms"])


def test_a_gpu_waits_less_for_data_that_came_while_its_job_waited():
    report = _run("benchmarks.staging", "--megabytes", "8", "--rate", "4")
    assert report["staged_s"] < report["inside_s"]
    assert report["ratio"] == pytest.approx(report["staged_s"] / report["inside_s"])
    assert report["kept"] == pytest.approx(report["beside_mb_s"] / report["alone_mb_s"])
