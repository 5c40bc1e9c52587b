"""The packing benchmarks run on the sample; what they write is checked as a stranger would."""

import csv
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.churn_streams import Stream, refusals, trace_stream
from benchmarks.live_pool import START, LivePool
from benchmarks.packing_lists import (
    SAMPLE,
    WHOLE,
    Nodes,
    NodeSize,
    Pod,
    altered,
    arrivals,
    could_take,
    job_of,
    read_nodes,
    read_pods,
)
from longshore.models.placement import PackingPolicy, PackingRule
from longshore.scheduling.cycle import plan
from tests.support.local_stack import ROOT

pytestmark = pytest.mark.timeout(300)


def test_packing_compares_rules_on_the_sample(tmp_path: Path):
    arguments = ("--seeds", "42", "--rules", "keep-room,fgd,best-fit", "--cycle", "8")
    report = _run("benchmarks.packing", *arguments, "--write", str(tmp_path))
    rows = {row["policy"]: row for row in report["results"]}
    assert set(rows) == {"keep-room", "fgd", "best-fit"}
    assert all(0 < row["alloc_100"] <= row["alloc_130"] <= 100 for row in rows.values())
    ahead = rows["keep-room"]["alloc_100"] - rows["fgd"]["alloc_100"]
    assert rows["keep-room"]["versus_fgd"] == pytest.approx(ahead)
    for rule, row in rows.items():
        assert _alloc_130(tmp_path, rule) == pytest.approx(row["alloc_130"])


def test_packing_measures_small_clusters():
    arguments = ("--seeds", "1", "--mode", "whole", "--rules", "tight,seed-score", "--cycle", "1")
    report = _run("benchmarks.packing", *arguments, "--small")
    rows = {row["policy"]: row for row in report["results"]}
    assert set(rows) == {"tight", "seed-score"}
    assert all(0 < row["alloc_100"] <= row["alloc_130"] <= 100 for row in rows.values())


def test_small_clusters_are_packed_as_sets():
    report = _run("benchmarks.small", "--seeds", "0-1", "--nodes", "6", "--seconds", "0")
    (row,) = report["results"]
    assert row["clusters"] == 2
    assert 0 < row["one_by_one"] <= 100
    assert row["as_a_set"] >= row["one_by_one"], "so it is on these clusters, not on all"


def test_churn_compares_rules_on_the_sample():
    arguments = ("--seeds", "0", "--nodes", "6", "--loads", "0.9", "--rules", "tight,keep-room")
    report = _run("benchmarks.churn", *arguments)
    rows = {row["policy"]: row for row in report["results"]}
    assert set(rows) == {"tight", "keep-room"}
    assert rows["tight"]["ratio"] == 1
    assert rows["keep-room"]["ratio"] == pytest.approx(
        rows["keep-room"]["gpu_time"] / rows["tight"]["gpu_time"]
    )


@pytest.mark.parametrize("rule", [PackingRule.KEEP_ROOM, PackingRule.SEED_SCORE])
def test_a_live_pool_decides_as_a_plan_from_nothing(rule: PackingRule):
    """With jobs that come and go, parts of GPUs, and models that a job allows."""
    chance = Random(7)
    nodes = read_nodes(SAMPLE).picked(range(0, 60, 4))
    pods = [pod for pod in read_pods(SAMPLE, "sample", "share") if pod.gpus]
    possible = [pod for pod in pods if any(could_take(size, pod) for size in nodes.sizes)]
    policy = PackingPolicy(rule=rule)
    pool = LivePool(nodes.idle(), policy)
    running: list[str] = []
    waits = 0
    for number in range(40):
        now = START + timedelta(minutes=number)
        queue = [job_of(10 * number + i, chance.choice(possible)) for i in range(4)]
        recent, busy = pool.recent(), pool.running()
        expected = plan(queue, list(pool.nodes.values()), busy, policy, now, recent)
        decisions = pool.place(queue, now)
        assert decisions == expected.decisions
        running += [made.job_id for made in decisions if made.node_id is not None]
        waits += sum(made.node_id is None for made in decisions)
        while running and chance.random() < 0.6:
            pool.end(running.pop(chance.randrange(len(running))))
    assert waits > 5
    for job_id in running:
        pool.end(job_id)
    assert all(gpu.is_free for node in pool.nodes.values() for gpu in node.gpus)
    assert all(not any(node.host_used) for node in pool.nodes.values())


def test_arrivals_are_the_list_and_then_draws_until_the_load():
    nodes = read_nodes(SAMPLE)
    pods = read_pods(SAMPLE, "sample", "share")
    queue = arrivals(pods, nodes.gpus, 42)
    assert sorted(queue[: len(pods)]) == sorted(pods)
    asked = sum(pod.gpu_milli for pod in queue)
    assert 1.3 * nodes.gpus * WHOLE - 8 * WHOLE < asked <= 1.3 * nodes.gpus * WHOLE + 8 * WHOLE
    assert queue == arrivals(pods, nodes.gpus, 42) != arrivals(pods, nodes.gpus, 43)


def test_a_list_can_name_more_types_and_have_more_pods_without_gpus():
    plain, named = Pod(0, 0, 1, WHOLE), Pod(0, 0, 1, WHOLE, models=("V",))
    none = Pod(4_000, 0)
    pods = [plain, none] * 450 + [named] * 50
    made = altered(pods, typed=20, cpu_only=3)
    assert made.count(named) == 50
    assert made.count(plain) == pytest.approx(200, rel=0.2)
    assert made.count(none) == pytest.approx(3 * 200, rel=0.2), "left out as the others are"
    assert made == altered(pods, typed=20, cpu_only=3)
    assert altered(pods, typed=None, cpu_only=1) == pods
    with pytest.raises(ValueError, match=r"fewer than 0\.5 %"):
        altered([plain] * 99 + [named], typed=0.5, cpu_only=1)


def test_a_pod_that_allows_models_goes_to_one_of_them():
    nodes = Nodes(("a", "b", "c"), tuple(NodeSize(8_000, 8_192, 1, model=m) for m in "TVX"))
    pool = LivePool(nodes.idle(), PackingPolicy(max_reservations=0))
    asked = [Pod(0, 0, 1, WHOLE, models=models) for models in (("V", "X"), ("V", "X"), ("V",))]
    made = pool.place([job_of(i, pod) for i, pod in enumerate(asked)], START)
    assert [decision.node_id for decision in made] == ["node-00001", "node-00002", None]


def test_a_job_that_finds_no_room_is_refused_and_what_ends_makes_room():
    stream = Stream(
        Nodes(("a",), (NodeSize(0, 0, 8),)),
        start=[0, 5, 10],
        seconds=[10, 90, 10],
        pods=[Pod(0, 0, 8, WHOLE)] * 3,
    )
    result = refusals(stream, PackingRule.TIGHT)
    assert result.gpu_time == pytest.approx(100 * 90 / 110)
    assert result.jobs == result.wide == pytest.approx(100 / 3)


def test_a_trace_is_read_in_order_and_without_gangs(tmp_path: Path):
    trace = tmp_path / "trace.csv"
    trace.write_text("submit_s,duration_s,num_gpu\n50,7,2\n40,0,1\n60,9,16\n")
    stream = trace_stream(trace, nodes=3, replicate=0)
    assert (stream.start, stream.seconds) == ([0, 10], [1, 7])
    assert [pod.gpus for pod in stream.pods] == [1, 2]
    assert [len(node.gpus) for node in stream.nodes.idle()] == [8, 8, 8]


def _alloc_130(folder: Path, rule: str) -> float:
    """Check the files of a rule GPU by GPU; return the share in use at the end, in per cent."""
    nodes = {row["node"]: row for row in _rows(folder / "nodes.csv")}
    milli = {name: [WHOLE] * int(row["gpu"]) for name, row in nodes.items()}
    cpu = {name: int(row["cpu_milli"]) for name, row in nodes.items()}
    ram = {name: int(row["memory_mib"]) for name, row in nodes.items()}
    total = sum(map(sum, milli.values()))
    asked = 0
    in_use: dict[int, list[float]] = {}
    pods = _rows(folder / "arrivals.csv")
    for pod, place in zip(pods, _rows(folder / f"placements-{rule}.csv"), strict=True):
        asked += int(pod["num_gpu"]) * int(pod["gpu_milli"])
        if name := place["node"]:
            gpus = [int(gpu) for gpu in place["gpus"].split("-") if gpu]
            cpu[name] -= int(pod["cpu_milli"])
            ram[name] -= int(pod["memory_mib"])
            for gpu in gpus:
                milli[name][gpu] -= int(pod["gpu_milli"])
            assert len(gpus) == int(pod["num_gpu"])
            assert min(cpu[name], ram[name], *milli[name]) >= 0
            assert nodes[name]["model"] in (pod["models"] or nodes[name]["model"]).split("|")
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
