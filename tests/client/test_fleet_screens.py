"""The screens of nodes and pools, and of the whole fleet."""

import json

import pytest

from longshore.client import cycle_view, node_commands
from longshore.client.job_view import jobs_table
from longshore.client.node_view import cells, node_line, nodes_table, pools_table
from longshore.client.watch_command import Fleet, changes, fleet_screen
from longshore.models.cycles import CycleView, PoolCycles
from longshore.models.job_status import JobState
from longshore.models.node_messages import NodeStatus
from longshore.models.pool import PoolSpec
from longshore.models.views import (
    JobView,
    NodeView,
    PartView,
    PoolView,
)
from tests.support.screens import MINUTE, NOW, a_job, a_node, a_running_job, drawn


def test_gpus_of_a_node_are_cells_with_a_letter_for_each_job() -> None:
    assert cells(a_node("eval", "eval", None, "train")).plain == "[aa·b]"
    # No id of a job is empty; one that was let in all the same hides no node.
    assert cells(a_node("", None)).plain == "[a·]"
    assert drawn(nodes_table((a_node("", None),), NOW, 140), 140)
    kept_back = a_node(None).gpus[0].model_copy(update={"vram_used": 8.0})
    assert cells(a_node(gpus=(kept_back,))).plain == "[×]"


def test_jobs_that_share_a_gpu_stand_between_round_brackets() -> None:
    parts = (
        PartView(job_id="b-1", job_name="eval", vram=20, milli=500),
        PartView(job_id="c-1", job_name="chat", vram=10, mig="1g.10gb", slices=1),
    )
    shared = a_node(None).gpus[0].model_copy(update={"parts": parts, "vram_used": 30})
    node = a_node(gpus=(*a_node("train").gpus, shared, *a_node(None).gpus))
    assert cells(node).plain == "[a(bc)·]"
    assert "[a(bc)·] a=train b=eval 500/1000 c=chat 1g.10gb" in node_line(node)


def test_a_job_on_a_lent_spare_stands_beside_the_gang() -> None:
    lent = {"spare": True, "lent_to": "guest-1"}
    first, second, *others = a_node("gang", "gang", "train", None).gpus
    lent_gpus = (gpu.model_copy(update=lent) for gpu in (first, second))
    node = a_node(gpus=(*lent_gpus, *others))
    assert node_line(node).endswith("[(ab)(ab)c·] a=gang b=guest-1 on a lent spare c=train")


def test_a_part_of_a_gpu_is_said_with_the_job() -> None:
    running = a_running_job(gpus=1, gpu_indices=(2,), milli=500)
    assert "500/1000 of GPU 2" in drawn(jobs_table((running,), NOW, 140), 140)[1]
    running = a_running_job(gpus=1, gpu_indices=(2,), mig="1g.10gb", slices=0b1000000)
    assert "1g.10gb at slice 6 of GPU 2" in drawn(jobs_table((running,), NOW, 140), 140)[1]


@pytest.mark.parametrize("width", [80, 140])
def test_a_simulated_node_says_so(width: int) -> None:
    node = a_node("train", None, simulated=True, expires_at=NOW + 90 * MINUTE)
    screen = drawn(nodes_table((node,), NOW, width), width)
    text = "\n".join(screen)
    for part in ("node-a", "READY", "2 x H100", "simulated", "[a·]", "8/64", "64/512GB", "in 1h"):
        assert part in text
    assert "a=train" in text
    assert node_line(node) == "node node-a (simulated) READY [a·] a=train"
    assert "simulated" not in "\n".join(drawn(nodes_table((a_node(None),), NOW, width), width))


@pytest.mark.parametrize("width", [80, 140])
def test_storage_and_power_are_shown_where_a_node_limits_them(width: int) -> None:
    limited = a_node(None, storage_bandwidth=10, storage_used=2, power=5600, power_used=1400)
    free = a_node(None, id="node-b")
    text = "\n".join(drawn(nodes_table((limited, free), NOW, width), 140))
    for part in ("storage", "2GB/s of 10GB/s", "power", "1400W of 5600W", "no limit"):
        assert part in text
    plain = drawn(nodes_table((free,), NOW, width), width)
    assert "storage" not in plain[0]
    assert "power" not in plain[0]


def test_a_drained_node_says_why() -> None:
    node = a_node(None, state="DRAINING", state_reason="new disk", drained=True, clearing=True)
    assert "DRAINED new disk" in drawn(nodes_table((node,), NOW, 140), 140)[1]


def test_a_cordoned_node_is_not_called_draining() -> None:
    node = a_node("train", state="DRAINING", state_reason="new disk")
    assert "CORDONED new disk" in drawn(nodes_table((node,), NOW, 140), 140)[1]
    node = a_node("train", state="DRAINING", state_reason="new disk", clearing=True)
    assert "DRAINING new disk" in drawn(nodes_table((node,), NOW, 140), 140)[1]


def test_pools() -> None:
    pool = PoolView(
        spec=PoolSpec(), nodes=2, gpus=16, gpus_used=5, queued=3, held=1, running=2,
        last_cycle_at=NOW - MINUTE, last_cycle_ms=21.4,
    )  # fmt: skip
    row = drawn(pools_table((pool,), NOW))[1]
    assert row.split()[:7] == ["default", "open", "2", "5/16", "2", "3", "1"]
    assert row.endswith("1m ago, took 21 ms")


def test_cycles_by_pool_and_one_by_one() -> None:
    last = CycleView(id="c1", at=NOW - MINUTE, queued=3, placed=2, refused=0, took_ms=21.4)
    pool = PoolCycles(
        pool="default", simulated=True, waiting=1200, cycles=9, since=NOW, per_minute=4.5,
        placed=20, refused=1, looked_at=3.25, p50_ms=8.04, p95_ms=1234.5, read_ms=2.0,
        plan_ms=3.0, commit_ms=2.5, explain_ms=0.54, latest=(last,),
    )  # fmt: skip
    heads, row = (line.split() for line in drawn(cycle_view.pools_table((pool,)), 120)[:2])
    assert heads[:6] == ["pool", "a", "minute", "p50", "p95", "read"]
    assert row[:2] == ["default", "(simulated)"]
    assert row[2:] == ["4.5", "8.0", "1,234", "2.0", "3.0", "2.5", "0.5", "1200", "3.2", "20", "1"]
    row = drawn(cycle_view.latest_table(pool.latest, NOW), 120)[1]
    assert row.split() == ["1m", "ago", "21", "–", "–", "–", "–", "3", "–", "2", "0"]


def a_fleet(nodes: tuple[NodeView, ...] = (), *jobs: JobView) -> Fleet:
    live = tuple(job for job in jobs if not job.state.ended)
    ended = tuple(job for job in jobs if job.state.ended)
    return Fleet(at=NOW, nodes=nodes, jobs=live, ended=ended)


def test_changes_between_two_looks() -> None:
    queued, running = a_job(reason="waits"), a_running_job(simulated=True)
    done = a_job(JobState.SUCCEEDED, ended_at=NOW, reason="finished")
    first = a_fleet((a_node(None),), queued)
    assert changes(None, first) == ["node node-a READY [·]", "job train-abcdefghij QUEUED  waits"]
    assert changes(first, first) == []
    assert changes(first, a_fleet((a_node("train"),), running)) == [
        "node node-a READY [a] a=train",
        "job train-abcdefghij RUNNING on node-a GPUs 0-3 (simulated)",
    ]
    assert changes(a_fleet((), running), a_fleet((), done)) == [
        "job train-abcdefghij SUCCEEDED  finished"
    ]
    assert changes(first, a_fleet((), queued)) == ["node node-a has gone"]
    assert changes(None, a_fleet((), done)) == []


def test_the_whole_fleet_fits_the_terminal() -> None:
    jobs = [a_job(id=f"job-{i:02}", submitted_at=NOW + i * MINUTE) for i in range(60)]
    fleet = a_fleet((a_node("train", None),), *jobs, a_running_job())
    lines = drawn(fleet_screen(fleet, 80, 24))
    assert len(lines) <= 24
    assert "1 of 2 GPUs in use on 1 node, 1 running, 60 waiting" in lines[0]
    shown = [line.split()[0] for line in lines if line.startswith(("job-", "train-"))]
    assert shown[:2] == ["train-abcdefghij", "job-00"]
    assert f"and {61 - len(shown)} more" in lines


def test_an_empty_fleet_says_what_to_do() -> None:
    assert "`longshore up`" in "\n".join(drawn(fleet_screen(a_fleet(), 80, 24)))


def test_who_closes_a_bought_machine_is_warned_that_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    closed = NodeStatus(
        node_id="n", state="READY", epoch=1, draining=True, reason="r", note="n ends"
    )
    monkeypatch.setattr(node_commands, "call", lambda _: closed)
    node_commands.cordon("n")
    shown = capsys.readouterr()
    assert shown.out == "n takes no new job (r). Undo: longshore uncordon n\n"
    assert shown.err == "warning: n ends\n"
    node_commands.drain("n", as_json=True)
    assert json.loads(capsys.readouterr().out)["note"] == "n ends"
