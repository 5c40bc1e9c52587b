"""The packing benchmarks run on the sample; what they write is checked as a stranger would."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.churn_streams import Stream, estimates_of, refusals, trace_stream
from benchmarks.packing_lists import SAMPLE, arrivals, read_nodes, read_pods
from benchmarks.queues import waits
from scheduling.packing.fleet import WHOLE, Fleet, NodeSize, Request
from scheduling.packing.policies import POLICIES, Rule
from tests.support.local_stack import ROOT

pytestmark = pytest.mark.timeout(300)


def test_packing_compares_every_policy_on_the_sample(tmp_path: Path):
    report = _run("benchmarks.packing", "--seeds", "42", "--write", str(tmp_path))
    rows = {row["policy"]: row for row in report["results"]}
    assert set(rows) == set(POLICIES)
    assert all(0 < row["alloc_100"] <= row["alloc_130"] <= 100 for row in rows.values())
    assert report["ratio"] == rows["keep-room"]["alloc_100"] / rows["fgd"]["alloc_100"]
    for policy, row in rows.items():
        assert _alloc_130(tmp_path, policy) == pytest.approx(row["alloc_130"])


def test_batches_are_measured_on_small_clusters():
    report = _run("benchmarks.packing", "--seeds", "1", "--mode", "whole", "--small")
    rows = {row["policy"]: row for row in report["results"]}
    assert len(rows) == len(POLICIES) + 1
    assert rows["keep-room, batches of 50"]["alloc_130"] >= rows["fgd"]["alloc_130"]


def test_churn_compares_every_policy_on_the_sample():
    report = _run("benchmarks.churn", "--seeds", "0", "--nodes", "12", "--loads", "0.9")
    rows = {row["policy"]: row for row in report["results"]}
    assert set(rows) == {*POLICIES, "keep-room, rough", "keep-room, exact"}
    assert rows["tight"]["ratio"] == 1
    assert report["ratio"] == rows["keep-room"]["gpu_time"] / rows["tight"]["gpu_time"]


def test_arrivals_are_the_list_and_then_draws_until_the_load():
    nodes = read_nodes(SAMPLE)
    pods = read_pods(SAMPLE, "sample", nodes.models, "share")
    queue = arrivals(pods, nodes.gpus, 42)
    assert sorted(pod.request for pod in queue[: len(pods)]) == sorted(p.request for p in pods)
    asked = sum(pod.request.gpu_milli for pod in queue)
    assert 1.3 * nodes.gpus * WHOLE - 8 * WHOLE < asked <= 1.3 * nodes.gpus * WHOLE + 8 * WHOLE
    assert queue == arrivals(pods, nodes.gpus, 42) != arrivals(pods, nodes.gpus, 43)


def test_a_job_that_finds_no_room_is_refused_and_what_ends_makes_room():
    one = Request(0, 0, 8, WHOLE)
    stream = Stream(
        Fleet.of([NodeSize(0, 0, 8, 0)]),
        start=[0, 5, 10],
        seconds=[10, 90, 10],
        requests=[one] * 3,
    )
    result = refusals(stream, Rule("tight"))
    assert result.gpu_time == pytest.approx(100 * 90 / 110)
    assert result.jobs == result.wide == pytest.approx(100 / 3)


def test_waits_are_those_of_the_order():
    """One node of 8 GPUs: the second job waits for the first, and the third may pass it."""
    start, seconds, gpus = [0.0, 1.0, 2.0, 200.0], [100.0, 50.0, 10.0, 5.0], [6, 8, 2, 1]
    for skip, expected in ((True, [0, 99, 0, 0]), (False, [0, 99, 148, 0])):
        found = waits(start, seconds, gpus, 1, Rule("tight"), skip=skip)
        assert found.tolist() == expected


def test_a_gang_waits_for_idle_nodes_and_its_rest():
    start, seconds, gpus = [0.0, 0.0, 1.0, 2.0], [10.0, 30.0, 5.0, 5.0], [8, 3, 16, 12]
    found = waits(start, seconds, gpus, 2, Rule("tight"), [9.0] * 4, skip=True)
    assert found.tolist() == [0, 0, 29, 8]


def test_queues_are_compared_on_a_trace(tmp_path: Path):
    trace = tmp_path / "trace.csv"
    rows = [f"{10 * i},{600 + 97 * i % 1000},{(1, 2, 4, 8)[i % 4]}" for i in range(60)]
    trace.write_text("\n".join(["submit_s,duration_s,num_gpu", *rows]))
    report = _run("benchmarks.queues", "--trace", str(trace), "--nodes", "3", "--seeds", "0-1")
    found = {row["policy"]: row for row in report["results"]}
    assert set(found) == {*POLICIES, "keep-room, rough", "keep-room, exact"}
    assert found["tight"]["versus_tight"] == 0
    assert all(row["wait"] > 0 for row in found.values())


def test_estimates_are_exact_or_off_by_a_factor_of_ten_at_most():
    seconds = [float(i) for i in range(1, 2_000)]
    rough = estimates_of(seconds, "rough", seed=3)
    assert rough is not None
    factors = [said / real for said, real in zip(rough, seconds, strict=True)]
    assert 0.0999 < min(factors) < 0.2
    assert 5 < max(factors) < 10.001
    assert estimates_of(seconds, "exact", seed=3) == seconds
    assert estimates_of(seconds, "none", seed=3) is None


def test_a_trace_is_read_in_order_and_without_gangs(tmp_path: Path):
    trace = tmp_path / "trace.csv"
    trace.write_text("submit_s,duration_s,num_gpu\n50,7,2\n40,0,1\n60,9,16\n")
    stream = trace_stream(trace, nodes=3, replicate=0)
    assert (stream.start, stream.seconds) == ([0, 10], [1, 7])
    assert [request.gpus for request in stream.requests] == [1, 2]
    assert len(stream.fleet) == 3


def _alloc_130(folder: Path, policy: str) -> float:
    """Check the files of a policy GPU by GPU; return the share in use at the end, in per cent."""
    nodes = {row["node"]: row for row in _rows(folder / "nodes.csv")}
    milli = {name: [WHOLE] * int(row["gpu"]) for name, row in nodes.items()}
    cpu = {name: int(row["cpu_milli"]) for name, row in nodes.items()}
    ram = {name: int(row["memory_mib"]) for name, row in nodes.items()}
    total = sum(map(sum, milli.values()))
    asked = 0
    in_use: dict[int, list[float]] = {}
    pods = _rows(folder / "arrivals.csv")
    for pod, place in zip(pods, _rows(folder / f"placements-{policy}.csv"), strict=True):
        asked += int(pod["num_gpu"]) * int(pod["gpu_milli"])
        if name := place["node"]:
            gpus = [int(gpu) for gpu in place["gpus"].split("-") if gpu]
            cpu[name] -= int(pod["cpu_milli"])
            ram[name] -= int(pod["memory_mib"])
            for gpu in gpus:
                milli[name][gpu] -= int(pod["gpu_milli"])
            assert len(gpus) == int(pod["num_gpu"])
            assert min(cpu[name], ram[name], *milli[name]) >= 0
        used = total - sum(map(sum, milli.values()))
        in_use.setdefault(round(100 * asked / total), []).append(100 * used / total)
    last = in_use[min(in_use, key=lambda load: (abs(load - 130), load))]
    return sum(last) / len(last)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _run(module: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--json"],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
