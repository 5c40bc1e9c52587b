"""A job that grows in place gets as many groups as earn what they cost, of GPUs that are idle."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longshore.models.growth import Elastic, GrowthDecision, IdleNode
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.preemption import PreemptionPolicy
from longshore.models.topology import Gang
from longshore.scheduling import growth
from longshore.scheduling.growth import Foreseen, Look, Pool
from longshore.scheduling.joining import larger, plan_joining
from longshore.scheduling.packer import place
from longshore.scheduling.placement.state import without_jobs
from tests.scheduling.test_elastic_cycle import nodes_in
from tests.scheduling.test_growth import DOLLAR, NO_VALUE, elastic
from tests.support.packing import NOW, POLICY, a_job, a_node
from tests.support.preemption import MINUTE, RULES, nodes_with, saved

GROW_AFTER = 5 * MINUTE
LARGE = 2048
"""GB of RAM of a node that can hold what no other can."""


def in_place(**fields: Any) -> Elastic:
    """Return a job on the 8 GPUs of a0 that is to have up to 32, a node at a time."""
    fields = {"gang": Gang(), "in_place": True, **fields}
    return elastic("run", {"a0": range(8)}, 8, 32, 8, **fields)


def asked(
    job: Elastic,
    nodes: Sequence[Node],
    idle_for: Mapping[str, timedelta],
    *,
    price: int = 0,
    policy: PreemptionPolicy = RULES,
    queue: Sequence[JobRequest] = (),
) -> tuple[Look, GrowthDecision | Foreseen, dict[str, IdleNode]]:
    """Return a look, its answer, and what is known of nodes that have been idle for so long."""
    pool = Pool(
        nodes_with([job.work], nodes), job.work.shares, queue, (), POLICY, policy, GROW_AFTER, NOW
    )  # fmt: skip
    look = Look(pool)
    (answer,) = look.answers([job])
    idle = {
        node.id: IdleNode(price=price, ready_since=NOW - idle_for.get(node.id, 60 * MINUTE))
        for node in nodes
    }
    return look, answer, idle


def decided(
    job: Elastic, nodes: Sequence[Node], idle_for: Mapping[str, timedelta], **fields: Any
) -> GrowthDecision:
    look, answer, idle = asked(job, nodes, idle_for, **fields)
    return look.decide(answer, idle) if isinstance(answer, Foreseen) else answer


def test_two_groups_idle_for_10_minutes_and_one_for_1_it_grows_by_the_two() -> None:
    nodes = nodes_in("a", 4)
    for young in ("a1", "a2", "a3"):
        idle_for = dict.fromkeys(("a1", "a2", "a3"), 10 * MINUTE) | {young: MINUTE}
        answer = decided(in_place(), nodes, idle_for)
        assert (answer.grows, answer.gpus, answer.to) == (True, 8, 24)
        assert answer.reason.startswith("grown in place from 8 to 24 GPUs: it ends 2h40m sooner")
        # Once its save is made it gets these two.
        look, foreseen, idle = asked(in_place(), nodes, idle_for)
        assert isinstance(foreseen, Foreseen)
        assert foreseen.size == 32
        room = look.room_for(foreseen, 24, idle)
        assert isinstance(room, Foreseen)
        assert {name for name, _ in room.decision.by_node} == {"a1", "a2", "a3"} - {young}
        for other in (8, 12, 40):
            assert look.room_for(foreseen, other, idle) == (
                f"{other} GPUs are no size that it may grow to now"
            )


def test_a_job_that_is_stopped_for_it_gets_the_largest_size_or_none() -> None:
    idle_for = {"a1": 10 * MINUTE, "a2": 10 * MINUTE, "a3": MINUTE}
    answer = decided(in_place(in_place=False), nodes_in("a", 4), idle_for)
    assert (answer.grows, answer.to, answer.again) == (False, 32, NOW + 4 * MINUTE)


def test_the_same_size_may_find_room_on_gpus_that_are_idle_for_longer() -> None:
    job = in_place(desired=16)
    idle_for = {"a1": MINUTE, "a2": MINUTE, "a3": 10 * MINUTE}
    assert decided(job, nodes_in("a", 4), idle_for).to == 16


def test_of_a_node_it_takes_the_gpus_that_are_idle_for_long_enough() -> None:
    job = elastic("run", {"a0": range(4)}, 4, 12, 4, gang=Gang(), in_place=True)
    look, foreseen, idle = asked(job, nodes_in("a", 2), {})
    assert isinstance(foreseen, Foreseen)
    idle["a1"] = idle["a1"].model_copy(update={"freed_at": dict.fromkeys(range(4), NOW - MINUTE)})
    assert look.decide(foreseen, idle).to == 8
    room = look.room_for(foreseen, 8, idle)
    assert isinstance(room, Foreseen)
    assert room.decision.by_node == (("a1", (4, 5, 6, 7)),)


def test_where_none_is_idle_for_long_enough_it_looks_again_when_the_first_group_is() -> None:
    idle_for = {"a1": 4 * MINUTE, "a2": 3 * MINUTE, "a3": MINUTE}
    answer = decided(in_place(), nodes_in("a", 4), idle_for)
    assert answer.reason == (
        "8 of 32 desired GPUs: 24 more GPUs would be free, the last of them since 1m; "
        "it grows when they were for 5m"
    )
    assert (answer.grows, answer.to, answer.settled) == (False, 32, False)
    assert answer.again == NOW + MINUTE


def test_after_its_save_it_takes_gpus_that_came_free_just_now_only_for_want_of_others() -> None:
    labels = nodes_in("a", 1)[0].labels
    nodes = [*nodes_in("a", 3), a_node("a3", labels=labels, busy=range(8))]
    look, foreseen, idle = asked(in_place(), nodes, {"a1": MINUTE, "a2": 10 * MINUTE})
    assert isinstance(foreseen, Foreseen)
    for size, names in ((16, {"a2"}), (24, {"a1", "a2"})):
        room = look.room_for(foreseen, size, idle)
        assert isinstance(room, Foreseen)
        assert {name for name, _ in room.decision.by_node} == names
    none = look.room_for(foreseen, 32, idle)
    assert isinstance(none, str)
    assert "needs 24 GPUs" in none


@pytest.mark.parametrize(
    ("price", "to"),
    [
        # On 8, 16, 24 and 32 GPUs it is 5.93, 9.14, 11.16 and 12.55 times as fast as on one: its
        # 4 hours become 2.59, 2.12 and 1.89. Each hour less earns 8 x ($2.00 + $30.00 / 4^3).
        (0, 32),  # $41.69, and nothing to pay
        (DOLLAR // 2, 24),  # $27.80 - 10.37, $37.06 - 16.99 and $41.69 - 22.67: the largest pays
        (DOLLAR, 16),  # $27.80 - 20.74, $37.06 - 33.98; $41.69 - 45.33 does not pay
        (2 * DOLLAR, None),
    ],
)
def test_each_group_has_to_earn_its_price(price: int, to: int | None) -> None:
    job = in_place(serial_fraction=0.05)
    answer = decided(job, nodes_in("a", 4), {}, price=price)
    assert (answer.grows, answer.to) == (to is not None, to or 32)
    if to is None:
        assert answer.reason.startswith("8 of 32 desired GPUs: to grow to 32 would cost $91.")
    else:
        earns = {16: 27.80, 24: 37.06, 32: 41.69}[to]
        assert answer.earns == pytest.approx(earns * DOLLAR, rel=1e-3)
        time = {16: 2.5926, 24: 2.1244, 32: 1.8889}[to] + 25 / 3600
        assert answer.added == pytest.approx(time * (to - 8) * price, rel=1e-3)


def test_of_two_sizes_that_earn_the_same_it_gets_the_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2 hours sooner on 16 GPUs: $48.00 - 37.33 - 8.00; 2.67 on 24: $64.00 - 53.33 - 8.00."""
    monkeypatch.setattr(growth, "TO_START", 20 * MINUTE)
    job = in_place(price=3 * DOLLAR, checkpoint=saved(MINUTE, timedelta(0)))
    answer = decided(job, nodes_in("a", 4), {}, price=2 * DOLLAR, policy=NO_VALUE)
    assert (answer.to, answer.earns - answer.cost) == (24, 2_666_666)


def test_of_many_sizes_some_are_weighed_that_are_evenly_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth, "MOST_SIZES", 2)
    job = in_place(serial_fraction=0.05)
    assert decided(job, nodes_in("a", 4), {}, price=DOLLAR // 2).to == 32  # 24 would earn more
    assert decided(job, nodes_in("a", 4), {}, price=DOLLAR).to == 16


def test_a_node_that_a_waiting_job_could_use_is_left_out() -> None:
    labels = nodes_in("a", 1)[0].labels
    nodes = [*nodes_in("a", 2), a_node("a2", labels=labels, ram=LARGE), *nodes_in("a", 4)[3:]]
    waits = a_job("waits", 8, ram=1000, priority=1)
    look, foreseen, idle = asked(in_place(), nodes, {}, queue=[waits])
    assert isinstance(foreseen, Foreseen)
    assert (foreseen.size, look.decide(foreseen, idle).to) == (32, 24)
    room = look.room_for(foreseen, 24, idle)
    assert isinstance(room, Foreseen)
    assert {name for name, _ in room.decision.by_node} == {"a1", "a3"}
    # The answer is that about the largest size, and when the other two are idle for long enough.
    soon = decided(in_place(), nodes, {"a1": MINUTE, "a3": 2 * MINUTE}, queue=[waits])
    assert soon.reason == "8 of 32 desired GPUs: waits waits, and could run there"
    assert (soon.to, soon.again) == (32, NOW + 4 * MINUTE)
    anywhere = decided(in_place(), nodes, {}, queue=[a_job("waits", 8, priority=1)])
    assert (anywhere.grows, anywhere.again) == (False, None)
    assert anywhere.reason == "8 of 32 desired GPUs: waits waits, and could run there"


def test_since_when_gpus_are_idle_is_asked_of_a_few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MOST_NODES", 1)
    _, foreseen, _ = asked(in_place(desired=16), nodes_in("a", 8), {})
    assert isinstance(foreseen, Foreseen)
    assert len(foreseen.nodes) == 3  # its own, one for the largest size, and one beside


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Elastic, list[Node], dict[str, IdleNode], list[JobRequest]]:
    """Return a job that grows in place, nodes with some GPUs that others have, for how long the
    rest is idle, and a queue."""
    labels = nodes_in("a", 1)[0].labels
    nodes = [a_node("a0", labels=labels)]
    idle = {"a0": IdleNode(ready_since=NOW - 60 * MINUTE)}
    price = draw(st.sampled_from([0, DOLLAR // 4, DOLLAR // 2, DOLLAR, 2 * DOLLAR]))
    for n in range(1, draw(st.integers(2, 5))):
        busy = range(draw(st.sampled_from([0, 0, 0, 4, 6])))
        ram = draw(st.sampled_from([512, 512, LARGE]))
        nodes.append(a_node(f"a{n}", labels=labels, busy=busy, ram=ram))
        freed = draw(st.dictionaries(st.integers(0, 7), st.sampled_from([1, 4, 6]), max_size=3))
        idle[f"a{n}"] = IdleNode(
            price=price,
            ready_since=NOW - draw(st.sampled_from([1, 6, 60])) * MINUTE,
            freed_at={gpu: NOW - ago * MINUTE for gpu, ago in freed.items()},
        )
    held = draw(st.sampled_from([4, 8]))
    step = draw(st.sampled_from([4, 8]))
    most = held + step * draw(st.integers(1, 6))
    job = elastic(
        "run", {"a0": range(held)}, held, most, step, gang=Gang(), in_place=True,
        serial_fraction=draw(st.sampled_from([0.0, 0.02, 0.05, 0.2])),
    )  # fmt: skip
    queue = [a_job("q", 2, ram=1000, priority=draw(st.sampled_from([1, 9])))]
    queue = draw(st.sampled_from([[], queue]))
    return job, nodes, idle, queue


@given(scenes())
def test_the_size_earns_the_most_of_all_that_find_room_that_nobody_else_could_use(
    scene: tuple[Elastic, list[Node], dict[str, IdleNode], list[JobRequest]],
) -> None:
    job, nodes, idle, queue = scene
    look, answer, _ = asked(job, nodes, {}, queue=queue)
    assume(isinstance(answer, Foreseen))
    assert isinstance(answer, Foreseen)
    found = look.decide(answer, idle)

    def is_old(name: str, gpu: int) -> bool:
        node = idle[name]
        return max(node.ready_since, node.freed_at.get(gpu, node.ready_since)) <= NOW - GROW_AFTER

    def holds_a_rank(node: Node) -> bool:
        old = [gpu for gpu in node.gpus if gpu.is_free and is_old(node.id, gpu.index)]
        return len(old) >= job.gpus

    wanted = {
        node.id
        for node in nodes
        for each in queue
        if place(each, [without_jobs(node)], POLICY, NOW).node_id is not None
    }
    its = [
        a_node(
            node.id, labels=node.labels, ram=node.ram,
            busy=[
                gpu.index
                for gpu in node.gpus
                if not (gpu.is_free and is_old(node.id, gpu.index))
            ],
        )
        for node in nodes
        if node.id == "a0" or (node.id not in wanted and holds_a_rank(node))
    ]  # fmt: skip
    price = idle["a1"].price
    nets: dict[int, int] = {}
    for size in larger(job.asked, job.gpus):
        room = plan_joining(
            job.asked, job.gpus_by_node, [size], (), its, job.work.shares, POLICY, NOW
        )
        if room.gpus:
            weighed = look._weighed(job, size, (size - job.gpus) * price)  # pyright: ignore[reportPrivateUsage]
            if weighed.grows:
                nets[size] = weighed.earns - weighed.cost
    assert found.grows is bool(nets)
    if not found.grows:
        assert found.again is None or found.again > NOW
        return
    assert found.to is not None
    assert found.earns - found.cost == max(nets.values())
    assert found.to == max(size for size, net in nets.items() if net == max(nets.values()))
    room = look.room_for(answer, found.to, idle)
    assert isinstance(room, Foreseen)
    for name, gpus in room.decision.by_node:
        assert name not in {*wanted, *job.work.nodes}
        assert all(is_old(name, gpu) for gpu in gpus)
