"""Jobs that need the same are asked once: between plans, and in one plan while nothing changes."""

from datetime import timedelta

from longshore.models.placement import PackingPolicy, PackingRule, RejectionCode
from longshore.scheduling.cycle import plan, plan_cached
from longshore.scheduling.placement.needs import KnownNeeds
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.placement.state import Need
from tests.support.packing import NOW, a_job, a_node

POLICY = PackingPolicy(rule=PackingRule.KEEP_ROOM)
STRICT = POLICY.model_copy(update={"safety_margin": timedelta(hours=2)})


def test_what_a_job_needs_is_known_by_the_request_and_the_policy():
    known = KnownNeeds()
    one, like_it, other = a_job("a", 1), a_job("b", 1), a_job("a", 2)
    need_of = known.under(POLICY, 2)
    assert need_of(one) is need_of(one) is need_of(like_it)
    assert need_of(other) == Need.of(other, POLICY) != need_of(like_it)
    assert known.under(STRICT, 2)(one) == Need.of(one, STRICT) != Need.of(one, POLICY)


def test_jobs_that_left_are_forgotten():
    known = KnownNeeds()
    for number in range(5_000):
        known.under(POLICY, 1)(a_job(f"job-{number}", 1))
    assert known.count <= 1_100


def test_a_job_that_came_again_with_other_wishes_is_planned_by_them():
    kept = NodeCache()
    kept.update(["node-a"], [a_node("node-a")], [])
    for gpus, policy in ((2, POLICY), (8, POLICY), (8, STRICT), (9, STRICT)):
        queue = [a_job("a", gpus)]
        assert plan_cached(queue, kept, policy, NOW) == plan(queue, kept.nodes, [], policy, NOW)


def test_a_placement_between_two_jobs_alike_changes_what_the_second_is_told():
    node = a_node("node-a", gpus=4, busy=(0, 1), cpus=16)
    wide = {"gpus": 4, "cpus": 4}
    queue = [
        a_job("first", priority=9, **wide), a_job("like it", priority=8, **wide),
        a_job("narrow", 2, priority=7, cpus=14), a_job("last", priority=6, **wide),
    ]  # fmt: skip
    made = {d.job_id: d for d in plan(queue, [node], [], POLICY, NOW).decisions}
    assert made["first"].rejected == {RejectionCode.GPUS_BUSY: 1}
    assert made["like it"] == made["first"].model_copy(update={"job_id": "like it"})
    assert made["narrow"].node_id == "node-a"
    assert made["last"].rejected == {RejectionCode.CPU: 1}
