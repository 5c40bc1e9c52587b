"""Gangs in a cycle, beside jobs of one node: whole or not at all, and never starved."""

from datetime import datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, PackingPolicy, PlacementKind, RunningJob
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL, Gang
from longshore.scheduling.cycle import plan
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running


def fabric(domain: str) -> dict[str, str]:
    return {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: domain}


def a_gang(name: str, gpus: int, **fields: object) -> JobRequest:
    gang = Gang.model_validate(fields.pop("gang", {}))
    return a_job(name, gpus, gang=gang, cpus=gpus, ram=8 * gpus, **fields)


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[JobRequest], list[Node], list[RunningJob]]:
    """A few labelled nodes, of which GPUs are held for some hours, and a queue of both kinds."""
    nodes: list[Node] = []
    held: list[RunningJob] = []
    for number in range(draw(st.integers(2, 6))):
        name = f"node-{number}"
        busy = draw(st.sets(st.integers(0, 7), max_size=8))
        known = draw(st.booleans())
        nodes.append(a_node(name, busy=busy, labels=fabric(draw(st.sampled_from("ab")))))
        if busy and known:
            ends_in = HOUR * draw(st.integers(1, 4))
            held.append(running(f"on-{name}", name, busy, ends_in, vram_per_gpu=80))
    queue: list[JobRequest] = []
    for number in range(draw(st.integers(1, 6))):
        priority = draw(st.integers(0, 10))
        if draw(st.booleans()):
            size = draw(st.sampled_from([None, 4, 8, 12]))
            gpus = draw(st.integers(size or 1, 40))
            gang = {"group_gpus": size, "allow_cross_group_spread": draw(st.booleans())}
            queue.append(a_gang(f"gang-{number}", gpus, gang=gang, priority=priority))
        else:
            gpus = draw(st.integers(1, 8))
            queue.append(a_job(f"job-{number}", gpus, priority=priority))
    return queue, nodes, held


@given(mixed())
def test_gangs_are_whole_and_nothing_is_given_twice(
    scene: tuple[list[JobRequest], list[Node], list[RunningJob]],
) -> None:
    queue, nodes, held = scene
    made = plan(queue, nodes, held, POLICY, NOW)
    jobs = {job.id: job for job in queue}
    free = {(node.id, gpu.index) for node in nodes for gpu in node.gpus if gpu.job_id is None}
    cpus = {node.id: node.cpus for node in nodes}
    for decision in made.placements:
        job, gpus = jobs[decision.job_id], 0
        for node_id, indices in decision.by_node:
            taken = {(node_id, index) for index in indices}
            assert len(taken) == len(indices)
            assert taken <= free
            free -= taken
            gpus += len(indices)
            cpus[node_id] -= job.share_of(len(indices))[0]
        assert gpus == job.gpus
    assert all(left >= -1e-6 for left in cpus.values())


@given(mixed())
def test_reservations_of_gangs_are_whole_and_beside_all_others(
    scene: tuple[list[JobRequest], list[Node], list[RunningJob]],
) -> None:
    queue, nodes, held = scene
    made = plan(queue, nodes, held, POLICY, NOW)
    jobs = {job.id: job for job in queue}
    for job_id in {reservation.job_id for reservation in made.reservations}:
        own = [each for each in made.reservations if each.job_id == job_id]
        assert sum(len(each.gpu_indices) for each in own) == jobs[job_id].gpus
        assert len({each.start for each in own}) == 1
    for node in nodes:
        for index in range(8):
            spans = _spans(made, held, jobs, node.id, index)
            for (_, end), (start, _) in pairwise(spans):
                assert end <= start


@given(mixed(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    scene: tuple[list[JobRequest], list[Node], list[RunningJob]], chance: object
) -> None:
    queue, nodes, held = scene
    first = plan(queue, nodes, held, POLICY, NOW).model_dump_json()
    chance.shuffle(queue)  # pyright: ignore[reportAttributeAccessIssue]
    assert plan(queue, nodes, held, POLICY, NOW).model_dump_json() == first


def test_a_wide_gang_is_not_starved_by_jobs_that_come_behind_it() -> None:
    nodes = [a_node(name, busy=range(8), labels=fabric("a")) for name in ("a", "b")]
    nodes[1] = a_node("b", labels=fabric("a"))
    held = [running("on-a", "a", range(8), HOUR, vram_per_gpu=80)]
    wide = a_gang("wide", 16, priority=9)
    long = a_job("long", 8, expected_duration=3 * HOUR)
    short = a_job("short", 8, expected_duration=timedelta(minutes=30))
    made = plan([long, short, wide], nodes, held, POLICY, NOW)
    by_job = {decision.job_id: decision for decision in made.decisions}
    assert by_job["wide"].kind is PlacementKind.REQUEST_MORE_CAPACITY
    assert by_job["wide"].estimated_start == NOW + HOUR
    assert "it waits for 2 nodes" in by_job["wide"].reason
    assert by_job["long"].node_id is None, "it would delay the gang"
    assert by_job["short"].node_id == "b", "it is over before the gang can start"


def test_a_gang_with_more_spares_than_it_has_gpus_there_is_not_starved_either() -> None:
    nodes = [a_node(name, busy=range(8), labels=fabric("a")) for name in ("a", "b")]
    held = [running(f"on-{n.id}", n.id, range(8), HOUR, vram_per_gpu=80) for n in nodes]
    gang = {"group_gpus": 2, "spares_per_group": 8}
    made = plan([a_gang("guarded", 2, gang=gang), a_job("next", 8)], nodes, held, POLICY, NOW)
    kept = [(r.job_id, len(r.gpu_indices), r.start) for r in made.reservations]
    assert kept[:2] == [("guarded", 2, NOW + HOUR), ("guarded", 8, NOW + HOUR)]


def test_what_stands_by_is_given_to_nobody_else_in_the_same_cycle() -> None:
    nodes = [a_node(name, labels=fabric("a")) for name in ("a", "b")]
    gang = {"group_gpus": 8, "spares_per_group": 8}
    for compiled in (False, True):
        queue = [a_gang("guarded", 8, gang=gang, priority=9), a_job("next", 1)]
        made = plan(queue, nodes, [], POLICY, NOW, compiled=compiled)
        assert [decision.node_id for decision in made.decisions] == ["a", None]


def test_what_is_kept_for_a_gang_leaves_the_longest_runs_of_what_is_free_then() -> None:
    node = a_node("a", busy=range(8), labels=fabric("a"))
    held = [running("soon", "a", {0, 1, 2, 4, 5}, HOUR, vram_per_gpu=80)]
    made = plan([a_gang("pair", 2)], [node], held, POLICY, NOW)
    assert [r.gpu_indices for r in made.reservations] == [(4, 5)]


def test_without_reservations_nothing_is_kept_for_a_gang() -> None:
    nodes = [a_node("a", busy=range(8), labels=fabric("a")), a_node("b", labels=fabric("a"))]
    held = [running("on-a", "a", range(8), HOUR, vram_per_gpu=80)]
    policy = PackingPolicy(max_reservations=0)
    made = plan([a_gang("wide", 16, priority=9), a_job("next", 8)], nodes, held, policy, NOW)
    assert made.reservations == ()
    assert made.decisions[1].node_id == "b"


def test_a_node_whose_time_ends_is_no_place_for_a_gang() -> None:
    nodes = [
        a_node("a", labels=fabric("a"), expires_in=HOUR / 2), a_node("b", labels=fabric("a")),
    ]  # fmt: skip
    made = plan([a_gang("wide", 16)], nodes, [], POLICY, NOW)
    assert made.placements == ()
    assert made.reservations == ()


def test_gangs_that_ask_alike_are_told_what_is_so_when_their_turn_comes() -> None:
    """Without starts that are kept: the second waits as the first does, the third behind a job."""
    nodes = [a_node("a", gpus=8, busy=range(4), labels=fabric("a"))]
    policy = PackingPolicy(max_reservations=0)
    first, second = (a_gang(f"wide-{i}", 6, priority=9) for i in range(2))
    between, third = a_job("small", 2, priority=5), a_gang("wide-2", 6, priority=4)
    queue = [first, second, between, third]
    made = plan(queue, nodes, [], policy, NOW)
    by_id = {decision.job_id: decision for decision in made.decisions}
    assert by_id["small"].node_id == "a"
    assert by_id["wide-1"] == by_id["wide-0"].model_copy(update={"job_id": "wide-1"})
    gangs = [by_id[name].gang for name in ("wide-0", "wide-2")]
    assert [gang.missing for gang in gangs if gang] == [2, 4]


def _spans(
    made: CyclePlan,
    held: list[RunningJob],
    jobs: dict[str, JobRequest],
    node_id: str,
    index: int,
) -> list[tuple[datetime, datetime]]:
    """Return from when until when the GPU is held or kept, in order."""
    spans = [
        (NOW, each.expected_end)
        for each in held
        if each.node_id == node_id and index in each.gpu_indices
    ]
    for decision in made.placements:
        for name, indices in decision.by_node:
            if name == node_id and index in indices:
                spans.append((NOW, NOW + jobs[decision.job_id].expected_duration))
    spans += [
        (each.start, each.end)
        for each in made.reservations
        if each.node_id == node_id and index in each.gpu_indices
    ]
    return sorted(spans)
