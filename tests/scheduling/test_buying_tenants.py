"""For whom a purchase counts that serves the jobs of several tenants."""

from longshore.activities.buying.decisions import _request, tenants_of
from longshore.activities.buying.inputs import PoolNeed
from longshore.models.buying import BuyDecision, Unmet, UnmetJob
from longshore.models.money import micro_of
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseRequest
from longshore.scheduling.buying.caps import counted_by_tenant, shares
from tests.support.buying import a_job, caps_left, decided, exchange

NODE = exchange(("2.00", 8))
JOBS = [
    a_job("long", 6, hours=10, tenant="big"),
    *(a_job(name, 1, hours=1, tenant="small") for name in ("s1", "s2")),
]
"""Most GPU-hours are big's, most jobs small's."""


def requested(jobs: list[UnmetJob], decision: BuyDecision) -> PurchaseRequest:
    need = PoolNeed(unmet=Unmet(jobs=tuple(jobs)), releases=())
    (plan,) = decision.plans
    return _request(PoolSpec(name="p"), need, decision, plan)


def test_it_is_of_the_tenant_that_pays_most_of_it():
    decision = decided(JOBS, NODE)
    request = requested(JOBS, decision)
    assert request.tenant == "big"
    assert request.split["big"] > request.split["small"] > 0
    assert counted_by_tenant(JOBS, decision.plans) == {"big": decision.max_total}


def test_what_is_decided_is_what_the_database_takes():
    # It counts whole for big: what is left for small does not matter, and all of it for big does.
    whole = decided(JOBS, NODE).max_total
    assert decided(JOBS, NODE, caps=caps_left(big=whole, small=0)).plans
    over = decided([JOBS[0], *JOBS[1:]], NODE, caps=caps_left(big=whole - 1, small=whole))
    assert not any({"long", "s1"} <= {*plan.serves} for plan in over.plans)


def test_what_no_job_uses_is_of_the_default_tenant():
    warm = {"fast_warm_gpus": 8, "rule": "seed"}
    decision = decided([], NODE, policy=warm)
    assert shares([], decision.plans) == {"default": decision.max_total}
    assert requested([], decision).tenant == "default"
    assert "default" in tenants_of(PoolNeed(unmet=Unmet(jobs=tuple(JOBS)), releases=()))
    cap = caps_left(default=micro_of("1.00"))
    assert decided([], NODE, policy=warm, caps=cap).plans == ()


def test_beside_jobs_the_warm_target_costs_nobody_else():
    jobs = [a_job("a", 1, tenant="red")]
    decision = decided(jobs, NODE, fast_warm_gpus=7)
    for plan in decision.plans:
        owner = "red" if "a" in plan.serves else "default"
        assert counted_by_tenant(jobs, [plan]) == {owner: plan.most}
        assert shares(jobs, [plan]) == {owner: plan.most}
