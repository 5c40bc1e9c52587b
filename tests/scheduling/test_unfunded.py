"""What nobody pays for: behind all else, stopped first, and nothing is bought for it."""

from datetime import timedelta
from graphlib import TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.funding import ITSELF, Payer, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy, PackingRule, PlacementKind
from longshore.models.preemption import BuyQuote, PreemptionPlan, RunningWork
from longshore.scheduling import cycle
from longshore.scheduling.order import queue_order
from longshore.scheduling.preemption.costs import why_not
from longshore.scheduling.preemption.payers import Right, right_over, says_who_would_pay
from longshore.scheduling.preemption.plan import plan_preemption
from longshore.scheduling.preemption.stoppable import Stoppable
from longshore.scheduling.thresholds import held_back, not_bought_for
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node
from tests.support.packing_scenes import Scene, scenes
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved

RED, BLUE = Payer(frozenset({"red"})), Payer(frozenset({"blue"}))
NOBODY = Payer(frozenset({"red"}), funded=False)
"""Of a job of red for which no budget pays."""


PAYERS = st.sampled_from([
    RED, BLUE, NOBODY, Payer(frozenset({"blue"}), funded=False), ITSELF,
    Payer(frozenset({"red"}), True, "red"), Payer(frozenset({"red"}), True, "blue",
                                                  frozenset({"red"})),
])  # fmt: skip


def funded(**payers: Payer) -> PackingPolicy:
    """Return a policy under which these jobs have these payers."""
    unfunded = {name: "no budget has room" for name, each in payers.items() if not each.funded}
    funding = PoolFunding(payers, unfunded, frozenset())
    return POLICY.model_copy(update={"funding": funding})


def half(name: str, first: int, priority: int = 5, **fields: object) -> RunningWork:
    """Return a job on four GPUs of node-a, that saved five minutes ago."""
    usual: dict[str, object] = {"checkpoint": saved(5 * MINUTE), **fields}
    gpus = {"node-a": range(first, first + 4)}
    return a_work(name, gpus, priority=priority, **usual)  # pyright: ignore[reportArgumentType]


def planned(
    job: JobRequest, works: list[RunningWork], policy: PackingPolicy, quote: BuyQuote | None = None
) -> PreemptionPlan:
    return plan_preemption(job, nodes_with(works, [a_node()]), works, RULES, policy, NOW, quote)


def stopped(plan: PreemptionPlan) -> list[str]:
    return [victim.job_id for victim in plan.victims]


def test_jobs_that_somebody_pays_for_go_first_whatever_their_class():
    low, high, other = a_job("low", priority=1), a_job("high", priority=9), a_job("other")
    policy = funded(high=NOBODY, low=RED)
    assert [job.id for job in queue_order([high, low, other], policy, NOW)] == [
        "other", "low", "high",
    ]  # fmt: skip
    assert queue_order([high, low, other], POLICY, NOW)[0] is high


def test_whom_others_pay_for_waits_behind_the_own_jobs_of_its_relatives():
    """Else it would take back what was freed for them, and be stopped for them again."""
    own, guest, other = a_job("own", priority=1), a_job("guest", priority=9), a_job("other")
    payers = {"own": RED, "guest": Payer(frozenset({"red"}), True, "blue", frozenset({"red"}))}
    funding = PoolFunding(payers, {}, frozenset(), behind={"guest": 1})
    policy = POLICY.model_copy(update={"funding": funding})
    assert [job.id for job in queue_order([guest, own, other], policy, NOW)] == [
        "other", "own", "guest",
    ]  # fmt: skip


def test_class_does_not_decide_where_the_other_is_nearer_to_who_shares_with_both():
    shares = frozenset({"root"})
    near, far = Payer(shares, True, "near", shares, 8), Payer(shares, True, "far", shares, 16)
    funding = PoolFunding({"near": near, "far": far}, {}, frozenset())
    assert right_over("near", "far", funding) is Right.NONE
    assert right_over("far", "near", funding) is Right.CLASS


def test_what_nobody_pays_for_fills_what_is_left_and_delays_no_start_that_is_kept():
    work = half("runs", 0, left=HOUR)
    wide, idle = a_job("wide", 8, priority=1), a_job("idle", 4, priority=9)
    nodes = nodes_with([work], [a_node()])
    shares = list(work.shares)
    for takes, starts in ((HOUR, True), (3 * HOUR, False)):
        unfunded = idle.model_copy(update={"expected_duration": takes})
        policy = funded(idle=NOBODY)
        plan = cycle.plan([unfunded, wide], nodes, shares, policy, NOW)
        assert [decision.job_id for decision in plan.placements] == (["idle"] if starts else [])
        without = cycle.plan([unfunded, wide], nodes, shares, POLICY, NOW)
        assert [decision.job_id for decision in without.placements] == ["idle"]


def test_one_that_says_wait_does_not_start_and_has_nothing_bought():
    job, other = a_job("waits", 2), a_job("runs", 2)
    funding = PoolFunding({}, {"waits": "no envelope of red has room", "runs": "none"},
                          frozenset({"waits"}))  # fmt: skip
    policy = POLICY.model_copy(update={"funding": funding})
    plan = cycle.plan([job, other], [a_node()], (), policy, NOW)
    assert [decision.job_id for decision in plan.placements] == ["runs"]
    (waiting,) = (each for each in plan.decisions if each.job_id == "waits")
    assert waiting.kind is not PlacementKind.EXISTING_NODE
    assert "no envelope of red has room" in waiting.reason
    assert held_back([job, other], policy, NOW, (), ()) == {"waits": "no envelope of red has room"}
    assert set(not_bought_for([job, other], policy, NOW, (), ())) == {"waits", "runs"}
    assert not_bought_for([job, other], POLICY, NOW, (), ()) == {}


@pytest.mark.parametrize("priority", [0, 5, 10])
def test_it_is_stopped_for_a_job_that_somebody_pays_for(priority: int):
    works = [half("paid", 0, 0), half("idle", 4, priority)]
    plan = planned(a_job("owner", 4, priority=5), works, funded(idle=NOBODY, paid=RED, owner=BLUE))
    assert stopped(plan) == ["idle"]
    assert "stop idle, since a budget pays for owner first: it loses $" in plan.reason
    assert [way.kind.value for way in plan.ways if way.chosen] == ["preempt"]


def test_of_two_the_one_that_loses_less_is_stopped():
    works = [half("old", 0, 9, checkpoint=saved(50 * MINUTE)), half("new", 4, 9)]
    policy = funded(old=NOBODY, new=NOBODY, owner=BLUE)
    assert stopped(planned(a_job("owner", 4, priority=0), works, policy)) == ["new"]
    assert stopped(planned(a_job("owner", 8, priority=0), works, policy)) == ["new", "old"]


def test_neither_its_cost_nor_what_spares_others_helps_it():
    spared = half("idle", 0, 9, checkpoint=None, preempted_at=(NOW - MINUTE,), left=2 * MINUTE)
    works = [spared, half("paid", 4)]
    job = a_job("owner", 4, priority=0, expected_duration=MINUTE)
    cheap = BuyQuote(title="buy", cost=1, ready_at=NOW)
    policy = funded(idle=NOBODY, paid=BLUE, owner=RED)
    assert stopped(planned(job, works, policy, cheap)) == ["idle"]
    assert not planned(job, works, POLICY, cheap).preempts
    fixed = spared.model_copy(update={"preemptible": False})
    assert not planned(job, [fixed, works[1]], policy, cheap).preempts


def test_what_nobody_pays_for_goes_before_a_lower_class_of_the_same_payer():
    cheap, dear = half("cheap", 0, 0), half("idle", 4, 9, checkpoint=None)
    policy = funded(cheap=RED, idle=NOBODY, owner=RED)
    assert stopped(planned(a_job("owner", 4, priority=9), [cheap, dear], policy)) == ["idle"]
    both = planned(a_job("owner", 8, priority=9), [cheap, dear], policy)
    assert set(stopped(both)) <= {"cheap", "idle"}
    paid = funded(cheap=RED, idle=RED, owner=RED)
    assert stopped(planned(a_job("owner", 4, priority=9), [cheap, dear], paid)) == ["cheap"]


@pytest.mark.parametrize(
    ("running", "asking", "may"),
    [
        (RED, RED, True), (RED, BLUE, False), (BLUE, RED, False), (ITSELF, RED, False),
        (RED, ITSELF, False), (ITSELF, ITSELF, True), (NOBODY, NOBODY, True), (RED, NOBODY, False),
        (BLUE, NOBODY, False), (NOBODY, ITSELF, True), (ITSELF, NOBODY, False),
    ],
)  # fmt: skip
def test_class_decides_within_one_payer(running: Payer, asking: Payer, may: bool):
    works = [half("one", 0, 1), half("two", 4, 1)]
    payers = {"one": running, "two": running, "urgent": asking}
    plan = planned(a_job("urgent", 4, priority=9), works, funded(**payers))
    assert plan.preempts is may
    if not may:
        says = "paid for by others" if running.tenants else "of tenants without a budget"
        assert f"2 {says}" in plan.reason
        who = "is paid for by " if running.tenants else "is of a tenant without a budget"
        assert all(one.reason.startswith(who) for one in plan.rejected)


@pytest.mark.parametrize(("priority", "may"), [(0, False), (1, False), (2, True)])
def test_a_higher_class_takes_over_what_a_lower_one_of_its_tenant_is_paid(
    priority: int, may: bool
):
    works = [half("one", 0, 1), half("two", 4, 1)]
    payers = {"one": RED, "two": RED, "urgent": NOBODY}
    funding = PoolFunding(
        payers, {"urgent": "no room"}, frozenset(), takes_over={"urgent": frozenset({"two"})}
    )
    policy = POLICY.model_copy(update={"funding": funding})
    job = a_job("urgent", 4, priority=priority)
    assert stopped(planned(job, works, policy)) == (["two"] if may else [])


GUEST = Payer(frozenset({"red"}), True, "blue", frozenset({"red"}))
"""A job of blue for which red pays as long as it does not need its GPUs."""
OWNER = Payer(frozenset({"red"}), True, "red")


@pytest.mark.parametrize("priority", [0, 9])
def test_what_a_relative_shares_is_stopped_for_its_own_jobs_and_never_the_other_way(priority: int):
    guests = [half("one", 0, 9 - priority), half("two", 4, 9 - priority)]
    policy = funded(one=GUEST, two=GUEST, asks=OWNER)
    assert len(stopped(planned(a_job("asks", 4, priority=priority), guests, policy))) == 1
    owners = funded(one=OWNER, two=OWNER, asks=GUEST)
    plan = planned(a_job("asks", 4, priority=9), [half("one", 0, 0), half("two", 4, 0)], owners)
    assert not plan.preempts


def test_whose_payer_is_recalled_for_a_job_is_stopped_for_it():
    works = [half("far", 0, 9), half("near", 4, 9)]
    payers = {"far": GUEST, "near": GUEST, "asks": Payer(frozenset({"red"}), True, "green",
                                                         frozenset({"red"}))}  # fmt: skip
    funding = PoolFunding(payers, {}, frozenset(), {"asks": frozenset({"far"})})
    policy = POLICY.model_copy(update={"funding": funding})
    assert stopped(planned(a_job("asks", 4, priority=0), works, policy)) == ["far"]


@given(st.lists(st.tuples(PAYERS, st.integers(0, 10)), min_size=2, max_size=6))
def test_nobody_is_stopped_in_turn(jobs: list[tuple[Payer, int]]):
    """Where nobody takes over what another is paid, no chain of stops comes back to its begin."""
    names = [f"job-{place}" for place in range(len(jobs))]
    payers = dict(zip(names, (each for each, _ in jobs), strict=True))
    funding = PoolFunding(payers, {}, frozenset())
    classes = dict(zip(names, (each for _, each in jobs), strict=True))
    stops = {
        asking: [
            running for running in names
            if (right := right_over(running, asking, funding)) is Right.FIRST
            or (right is Right.CLASS and classes[asking] > classes[running])
        ]
        for asking in names
    }  # fmt: skip
    TopologicalSorter(stops).prepare()  # raises CycleError


@given(st.data())
def test_the_round_knows_who_may_be_stopped_as_one_question_does(data: st.DataObject):
    kinds = st.tuples(PAYERS, st.integers(0, 10), st.booleans())
    drawn = data.draw(st.lists(kinds, min_size=1, max_size=5))
    works = [
        a_work(f"run-{place}", {"node-a": [place]}, priority=priority, preemptible=preemptible)
        for place, (_, priority, preemptible) in enumerate(drawn)
    ]
    asking = a_job("asks", 1, priority=data.draw(st.integers(0, 10)))
    payers = {work.id: each for work, (each, _, _) in zip(works, drawn, strict=True)}
    funding = PoolFunding({**payers, "asks": data.draw(PAYERS)}, {}, frozenset())
    stoppable = Stoppable(works, RULES, NOW, None, funding)
    may = [
        place for place, work in enumerate(works)
        if why_not(work, asking, RULES, NOW, None, funding) is None
    ]  # fmt: skip
    assert list(stoppable.whom(asking)) == may


def test_without_budgets_all_is_as_before():
    works = [half("low", 0, 1), half("same", 4, 5)]
    nobody = POLICY.model_copy(update={"funding": PoolFunding({}, {}, frozenset())})
    for job in (
        a_job("urgent", 4, priority=9),
        a_job("urgent", 8, priority=9),
        a_job("urgent", 4),
    ):
        assert planned(job, works, nobody) == planned(job, works, POLICY)
    queue = [a_job(f"job-{n}", priority=n % 3, submitted_at=NOW - timedelta(minutes=n))
             for n in range(6)]  # fmt: skip
    assert queue_order(queue, nobody, NOW) == queue_order(queue, POLICY, NOW)


@pytest.mark.parametrize("compiled", [False, True])
@given(scenes(linked=True, gangs=True, sensitive=True), st.sampled_from(PackingRule))
def test_without_budgets_a_plan_is_the_same_to_the_byte(
    compiled: bool, scene: Scene, rule: PackingRule
):
    plans = [
        cycle.plan(
            scene.queue, scene.nodes, scene.running,
            POLICY.model_copy(update={"rule": rule, "funding": funding}), NOW, compiled=compiled,
        ).model_dump_json()
        for funding in (None, PoolFunding({}, {}, frozenset()))
    ]  # fmt: skip
    assert plans[0] == plans[1]


def test_of_a_job_over_its_quota_the_quota_is_told_and_not_that_it_has_no_budget():
    why = "quota of tenant red: max_gpus: 4 + 4 > 4: it waits (QUOTA)"
    funding = PoolFunding({}, {"walled": why}, frozenset({"walled"}))
    assert says_who_would_pay("walled", funding) == why
    assert says_who_would_pay("other", funding) == "its tenant has no budget, and pays for itself"
