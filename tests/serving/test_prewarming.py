"""Of engines that nobody asks those of a model with the fewest copies come first."""

from datetime import timedelta

from longshore.models.packing import PackingPolicy
from longshore.scheduling.order import queue_order
from longshore.scheduling.serving.prewarming import copies_before
from tests.support.packing import NOW, a_job


def test_each_copy_comes_after_those_that_run_and_those_before_it():
    assert copies_before({"a": 2}, ["a", "b", "b", "a", "c"]) == [2, 0, 1, 3, 0]


def test_a_model_has_a_copy_before_another_has_two_whatever_their_age_and_class():
    served = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "b2": "b", "c1": "c"}
    copies = dict(zip(served, copies_before({"c": 1}, served.values()), strict=True))
    queue = [
        a_job(name, fills=True, priority=9 if name[0] == "a" else 5,
              submitted_at=NOW + at * timedelta(seconds=1))
        for at, name in enumerate(served)
    ]  # fmt: skip
    queue.append(a_job("z", priority=0, submitted_at=NOW + timedelta(hours=1)))
    ordered = queue_order(reversed(queue), PackingPolicy(copies=copies), NOW)
    assert [job.id for job in ordered] == ["z", "a1", "b1", "a2", "b2", "c1", "a3"]


def test_without_what_is_read_for_a_plan_a_policy_is_as_it_was_set():
    policy = PackingPolicy()
    assert policy.as_set is policy
    assert PackingPolicy(copies={"a": 1}).as_set == policy
