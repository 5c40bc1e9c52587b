"""What was bought for a job and does not hold it is not bought again."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.buying import (
    BoughtFor,
    BuyDecision,
    BuyingPolicy,
    CapacityUnderWay,
    OptionKind,
    UnmetJob,
)
from longshore.models.topology import Gang, SameConformance
from longshore.scheduling.buying.repeat_guard import why_not_repeated
from tests.support.buying import CLOUD, EXCHANGE, NOW, a_job, cloud, decided, exchange

BOOK, OFFERS = exchange(("2.00", 64)), cloud(("2.50", 1), ("2.40", 8))
MINUTE = timedelta(minutes=1)


def after(job: UnmetJob, *bought: BoughtFor) -> UnmetJob:
    return job.model_copy(update={"bought": bought})


def in_vain(
    purchase_id: str = "p-1",
    *,
    by_use: bool = False,
    shared: bool = False,
    ended_at: datetime | None = None,
) -> BoughtFor:
    return BoughtFor(
        purchase_id=purchase_id, by_use=by_use, ready=True, shared=shared, ended_at=ended_at
    )


def sources(decision: BuyDecision) -> set[bool]:
    """Return the kinds of machine that are bought: whether they are billed as they run."""
    return {plan.window is None for plan in decision.plans}


@given(
    st.integers(1, 8),
    st.sampled_from(("least-cost", "seed")),
    st.lists(st.booleans(), min_size=6, max_size=12),
    st.booleans(),
)
def test_a_job_that_nothing_ever_holds_costs_one_purchase_of_each_kind_at_most(
    gpus: int, rule: str, let_go: list[bool], gang: bool
):
    job = a_job(gpus=2 * gpus if gang else gpus, gang=Gang() if gang else None)
    known: list[BoughtFor] = []
    now = NOW
    for number, ended in enumerate(let_go):
        decision = decided([after(job, *known)], BOOK, OFFERS, now=now, rule=rule)
        ended_at = now + MINUTE if ended else None
        known += [
            in_vain(f"p-{number}", by_use=plan.window is None, ended_at=ended_at)
            for plan in decision.plans
        ]
        now += timedelta(hours=2)
    kinds = [each.by_use for each in known]
    assert known
    assert len(kinds) == len(set(kinds))


def test_the_other_kind_of_machine_is_tried_and_the_first_says_why_not():
    job = after(a_job(), in_vain(by_use=True))
    decision = decided([job], BOOK, OFFERS)
    assert sources(decision) == {False}
    pods = [option for option in decision.options if option.kind is OptionKind.PODS]
    assert pods
    assert {option.lost for option in pods} == {
        "bought once for it already (p-1), and the job still waits: `longshore why a`"
    }
    neither = decided([after(a_job(), in_vain(by_use=True), in_vain("p-2"))], BOOK, OFFERS)
    assert neither.plans == ()
    assert neither.reason.startswith("wait: bought once for it already (p-1)")
    only = decided([job], OFFERS)
    assert only.plans == ()
    assert only.reason.startswith("wait: bought once for it already (p-1)")


def test_other_jobs_are_bought_for_beside_one_that_is_not():
    stuck = after(a_job("stuck", 16, gang=Gang()), in_vain())
    (plan,) = decided([stuck, a_job("small")], BOOK, cloud(("2.50", 1))).plans
    assert plan.serves == ("small",)
    assert plan.gpus < 16


def test_what_others_took_or_the_market_lost_is_bought_again_but_not_for_ever():
    for once in (in_vain(shared=True), BoughtFor(purchase_id="p-1")):
        assert decided([after(a_job(), once)], BOOK, OFFERS).plans
        stopped = decided([after(a_job(), once, once, once)], BOOK, OFFERS)
        assert stopped.plans == ()
        assert "bought 3 times for it already" in stopped.reason


@pytest.mark.parametrize(("tries", "minutes"), [(1, 2), (2, 4)])
def test_after_a_purchase_that_was_let_go_unused_the_next_is_put_off(tries: int, minutes: int):
    unused = BoughtFor(purchase_id="p-1", ended_at=NOW)
    job = after(a_job(), *[unused] * tries)
    early = decided([job], BOOK, OFFERS, now=NOW + minutes * MINUTE - timedelta(seconds=1))
    assert early.plans == ()
    assert f"12:0{minutes}:00" in early.reason
    assert decided([job], BOOK, OFFERS, now=NOW + minutes * MINUTE).plans


def test_nothing_is_bought_for_a_gang_whose_groups_no_market_promises_to_hold():
    apart = BOOK.model_copy(
        update={"capabilities": EXCHANGE.model_copy(update={"fast_fabric": False})}
    )
    in_one = a_job(gpus=16, gang=Gang(group_gpus=16))
    assert decided([in_one], BOOK).plans
    assert decided([in_one], apart).plans == ()
    assert decided([a_job(gpus=16, gang=Gang(group_gpus=8))], apart).plans
    assert not CLOUD.fast_fabric
    alike = Gang(same_conformance=SameConformance.REQUIRE)
    refused = decided([a_job(gpus=16, gang=alike)], BOOK, OFFERS)
    assert refused.plans == ()
    assert "gang.same_conformance: require" in refused.reason


def test_a_group_is_not_bought_for_while_its_nodes_come_in_one_block():
    job = a_job(gpus=16, gang=Gang(group_gpus=16))
    coming = CapacityUnderWay(
        id="p", provider="exchange", instance_type="8xH100-80GB", nodes=2, expected_at=NOW + MINUTE
    )
    assert decided([job], BOOK, under_way=[coming]).plans
    together = coming.model_copy(update={"domain": "p.1"})
    assert decided([job], BOOK, under_way=[together]).plans == ()


def test_a_late_machine_is_stopped_before_another_is_bought():
    policy = BuyingPolicy(startup_limit=timedelta(minutes=15))
    late = BoughtFor(purchase_id="p-1", by_use=True, bought_at=NOW - timedelta(minutes=15))
    job = a_job(gpus=1)
    assert why_not_repeated(after(job, late), policy, NOW) == (
        "what was bought for it (p-1) is late, and is stopped first"
    )
    for other in (
        late.model_copy(update={"bought_at": NOW - timedelta(minutes=14)}),
        late.model_copy(update={"by_use": False}),
        late.model_copy(update={"came": True}),
        late.model_copy(update={"ended_at": NOW - timedelta(minutes=5)}),
    ):
        assert not why_not_repeated(after(job, other), policy, NOW)


def test_what_came_while_nobody_would_have_paid_for_the_job_is_no_try():
    kept_back = in_vain(by_use=True).model_copy(update={"kept_back": True})
    assert sources(decided([after(a_job(gpus=1), kept_back)], OFFERS)) == {True}
    policy = BuyingPolicy(enabled=True)
    job = after(a_job(gpus=1), *(kept_back,) * 3, in_vain(by_use=True))
    assert "bought once" not in why_not_repeated(job, policy, NOW)
    assert sources(decided([job], OFFERS)) == set()
