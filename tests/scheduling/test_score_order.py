"""The order of a queue with a score: what each profile does to it, and what none may do."""

import math
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.packing import PackingPolicy, QueueOrder
from longshore.models.preemption import PreemptionPolicy
from longshore.models.score import ScoreProfile
from longshore.scheduling.cycle import foresee, plan
from longshore.scheduling.order import queue_order, worth
from longshore.scheduling.preemption.plan import plan_preemptions
from longshore.scheduling.rank import rank, waiting
from tests.scheduling.test_no_starvation import Clockwork
from tests.support.packing import NOW, a_job, a_node
from tests.support.preemption import MINUTE, a_work, saved
from tests.support.searches import examples

HOUR = timedelta(hours=1)
NODES = [a_node("n0", conformance="x", data=("set",)), a_node("n1", conformance="y")]
WAITING_ALONE = {"weights": {"waiting": 1.0}}


def scored(score: dict[str, Any], **fields: Any) -> PackingPolicy:
    return PackingPolicy.model_validate({"score": score, **fields})


def order_of(jobs: list[JobRequest], policy: PackingPolicy) -> list[str]:
    return [job.id for job in queue_order(jobs, policy, NOW, NODES)]


jobs = st.lists(
    st.builds(
        lambda number, hours, gpus, tenant, priority, data, saves, ran: a_job(
            f"j{number}", gpus, submitted_at=NOW - hours * HOUR, waits_since=NOW - hours * HOUR,
            tenant=tenant, priority=priority, data=data, saves=saves, can_stop=saves,
            attained=ran * HOUR, duration_known=False,
        ),
        st.integers(0, 10**6), st.floats(0, 100), st.sampled_from([1, 2, 8]),
        st.sampled_from(["a", "b", None]), st.integers(3, 5),
        st.sampled_from([{}, {"set": 3.0}, {"none": 1.0}]), st.booleans(), st.floats(0, 50),
    ),
    max_size=12, unique_by=lambda job: job.id,
)  # fmt: skip


@given(jobs)
def test_waiting_alone_is_the_order_of_today(queue: list[JobRequest]):
    for order in QueueOrder:
        plain = PackingPolicy(order=order)
        assert order_of(queue, scored(WAITING_ALONE, order=order)) == order_of(queue, plain)


@given(jobs, st.sampled_from(ScoreProfile), st.randoms(use_true_random=False))
def test_the_order_is_one_and_goes_by_class_first(
    queue: list[JobRequest], profile: ScoreProfile, shuffled: random.Random
):
    policy = scored({"profile": profile}).model_copy(update={"usage": {"a": 9.0, "b": 1.0}})
    once = order_of(queue, policy)
    shuffled.shuffle(queue)
    assert order_of(queue, policy) == once
    classes = {job.id: job.priority for job in queue}
    assert [classes[name] for name in once] == sorted(classes.values(), reverse=True)


@given(jobs, st.floats(0.1, 1))
def test_only_what_terms_count_beside_waiting_decides(queue: list[JobRequest], part: float):
    """What is given to terms that are equal for all changes no order."""
    usage = {"usage": {"a": 9.0, "b": 1.0}}
    some = {"waiting": 0.5, "fair_share": 0.3, "data": 0.2}
    scaled = {name: weight * part for name, weight in some.items()}
    scaled["backlog"] = 1 - sum(scaled.values())
    for order in QueueOrder:
        one, other = (
            scored({"weights": weights}, order=order).model_copy(update=usage)
            for weights in (some, scaled)
        )
        assert order_of(queue, one) == order_of(queue, other)


def test_of_one_class_the_older_is_first_and_the_starved_before_the_heavy():
    """B7 and B8 of the worked cases."""
    hpc = scored({"profile": "hpc-batch"})
    old = a_job("old", 1, submitted_at=NOW - 6 * HOUR)
    assert order_of([a_job("new", 1), old], hpc) == ["old", "new"]
    heavy = a_job("a-heavy", 1, tenant="heavy")
    starved = a_job("z-starved", 1, tenant="starved")
    usage = {"usage": {"starved": 10.0, "heavy": 90.0}}
    assert order_of([heavy, starved], hpc.model_copy(update=usage)) == ["z-starved", "a-heavy"]
    assert order_of([heavy, starved], PackingPolicy()) == ["a-heavy", "z-starved"]


def test_a_higher_class_is_first_whatever_the_terms_say():
    ml = scored({"profile": "ml-training"})
    with_data = a_job("data", 1, priority=4, data={"set": 1.0}, saves=True, can_stop=True)
    plain = a_job("plain", 1, priority=5, data={"none": 1.0})
    assert order_of([with_data, plain], ml) == ["plain", "data"]


def test_by_rank_the_terms_are_a_factor():
    policy = scored({"weights": {"waiting": 0.5, "data": 0.5}}, order="attained-service")
    service = waiting(a_job("j", 1, data={"set": 1.0}), NOW)
    other = waiting(a_job("j", 1, data={"none": 1.0}), NOW)
    value = worth(policy, NODES, NOW)
    assert value(service) == pytest.approx(rank(service, policy) * math.e)
    assert value(other) == rank(other, policy)


def test_who_runs_yields_below_half_of_the_rank_with_the_terms():
    """A job of the same rank stops another where its terms make it twice as much, and not before:
    exp(w_i f_i / w) > 2 from w_i / w = .7 on."""
    node = a_node(busy=(), conformance="x")

    def stops(weight: float) -> bool:
        weights = {"waiting": 1 - weight, "fair_share": weight}
        policy = scored({"weights": weights}, order="attained-service")
        policy = policy.model_copy(update={"usage": {"heavy": 1.0, "new": 0.0}})
        work = a_work("r", {"n": list(range(8))}, ran=HOUR, checkpoint=saved(MINUTE))
        request = work.request.model_copy(
            update={"tenant": "heavy", "can_stop": True, "duration_known": False, "priority": 5}
        )
        work = work.model_copy(update={"request": request})
        held = node.model_copy(
            update={"id": "n", "gpus": tuple(g.model_copy(update={"job_id": "r"})
                                             for g in node.gpus)}
        )  # fmt: skip
        job = a_job(
            "w", 8, tenant="new", attained=HOUR, can_stop=True, saves=True, duration_known=False
        )
        made = plan_preemptions([job], [held], [work], PreemptionPolicy(), policy, NOW)
        return any(each.preempts for each in made)

    assert not stops(0.35), "exp(.35 / .65) = 1.7"
    assert stops(0.5), "exp(1) = 2.7"


def test_who_has_waited_two_days_is_first_under_every_profile():
    for profile in ScoreProfile:
        policy = scored({"profile": profile})
        if not policy.by_terms:
            continue
        long = NOW - 49 * HOUR
        waits = a_job("z", 1, submitted_at=long, waits_since=long, data={"none": 1.0}, tenant="a")
        ready = [a_job(f"a{i}", 1, data={"set": 1.0}, saves=True, can_stop=True, tenant="b",
                       duration_known=False) for i in range(4)]  # fmt: skip
        usage = {"usage": {"a": 99.0, "b": 1.0}}
        assert order_of([*ready, waits], policy.model_copy(update=usage))[0] == "z"


@examples(6)
@given(st.sampled_from(ScoreProfile), st.integers(1, 4), st.integers(5, 30))
def test_a_wide_job_starts_under_endless_narrow_ones(
    profile: ScoreProfile, gpus: int, minutes: int
):
    """The narrow ones have better terms: their data is there, and they can be stopped."""
    policy = scored({"profile": profile}, max_reservations=2)
    world = Clockwork([a_node("n0", data=("set",), conformance="x"), a_node("n1")], policy)
    for step in range(90):
        if step == 3:
            long = world.now - 48 * HOUR  # until then others may go first
            world.queue.append(a_job("wide", 8, submitted_at=long, waits_since=long, cpus=64,
                                     data={"none": 1.0}))  # fmt: skip
        for lane in range(3):
            world.queue.append(
                a_job(f"narrow-{step:03}-{lane}", gpus, submitted_at=world.now, data={"set": 1.0},
                      expected_duration=minutes * MINUTE, saves=True, can_stop=True, cpus=1)
            )  # fmt: skip
        world.cycle()
        if "wide" in world.started:
            return
        world.tick()
    raise AssertionError("the wide job never started")


def test_a_job_below_the_threshold_waits_and_says_by_how_much():
    nodes = [a_node(conformance="x")]
    policy = scored({"profile": "hpc-batch", "start_above": 0.5})
    queue = [a_job("new", 1), a_job("old", 1, submitted_at=NOW - 6 * HOUR)]
    made = plan(queue, nodes, [], policy, NOW)
    told = {decision.job_id: decision for decision in made.decisions}
    assert told["old"].node_id is not None
    assert told["new"].node_id is None
    assert "below the pool's `start_above` of 0.5 (priority 0.15 x 0.50, waiting 0.2 x 0.00," in (
        told["new"].reason
    )
    assert not made.reservations
    found = foresee(a_job("asked", 1), [], nodes, [], policy, NOW, is_new=True)
    assert found.decision.node_id is None
    assert "start_above" in found.decision.reason
    again = foresee(a_job("runs", 1), [], nodes, [], policy, NOW)
    assert again.decision.node_id is not None, "one that runs is not asked again"


def test_nobody_is_held_back_for_longer_than_36_hours():
    policy = scored({"profile": "sensitive", "start_above": 1.0})
    waits = [a_job("young", 1), a_job("old", 1, waits_since=NOW - 36 * HOUR)]
    made = plan(waits, [a_node()], [], policy, NOW)
    assert [decision.job_id for decision in made.placements] == ["old"]
    (young,) = (d for d in made.decisions if d.job_id == "young")
    assert "it may in 1d12h" in young.reason


@pytest.mark.parametrize(("price", "starts"), [(None, True), (0.0, True), (1.0, False)])
def test_dear_energy_holds_back_and_an_unknown_price_does_nothing(price: float, starts: bool):
    weights = {"priority": 0.5, "energy": 0.5}
    policy = scored({"weights": weights, "start_above": 0.45})
    made = plan([a_job("j", 1)], [a_node()], [], policy.model_copy(
        update={"energy_price": price}), NOW)  # fmt: skip
    assert bool(made.placements) is starts
