"""Machines of each type that some envelope is for are bought for a job, whichever is for sale. For
several jobs no more is bought of a type, and nobody stopped, than is paid for."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.buying import BuyingRule
from longshore.models.funding import Cap, Payer
from longshore.models.job_request import JobRequest
from longshore.models.topology import Gang
from longshore.scheduling.funding.facts import Branch, Capped, Charge, Kind, Share, Use, Where
from longshore.scheduling.funding.pool import Asks, pool_funding
from longshore.scheduling.funding.where_paid import as_bought, where_paid
from longshore.scheduling.preemption.plan import plan_preemptions
from tests.scheduling.funding.test_kinds import (
    BEFORE,
    WAITS,
    A,
    X,
    a_kind,
    facts,
    found_for,
    goes_to,
)
from tests.support import buying
from tests.support.packing import NOW, POLICY, a_job, a_node
from tests.support.preemption import RULES, a_work, nodes_with

TWO: dict[str, dict[str, Any]] = {
    "a": {"gpus": 2, "gpu_type": "B300"},
    "c": {"gpus": 4, "gpu_type": "L40S"},
}
B300, L40S = a_kind("B300"), a_kind("L40S")


def planned(envelopes: dict[str, Any], **fields: Any) -> JobRequest:
    asked = a_job("a", 2, tenant="red", cpus=0, ram=0, vram_per_gpu=0, **fields)
    found, (job,) = found_for(facts(envelopes, A, buys=True), asked, WAITS)
    assert found.of("a").funded
    assert where_paid([job], found, everyone=True) == [job], "said once"
    return job


@pytest.mark.parametrize("rule", BuyingRule)
def test_it_is_bought_of_the_type_that_is_for_sale(rule: BuyingRule):
    job = planned(TWO)
    assert goes_to(job, B300, L40S, A) == {B300, L40S}
    unmet = buying.a_job().model_copy(update={"request": job})
    other = buying.cloud(("1", 2), kind="A100-80GB")
    for kind in ("L40S-48GB", "B300-288GB"):
        bought = buying.decided([unmet], buying.cloud(("2", 2), kind=kind), other, rule=rule)
        assert [plan.instance_type for plan in bought.plans] == [f"2x{kind}"], bought.reason
    bought = buying.decided([unmet], other, rule=rule)
    assert not bought.plans
    assert bought.in_vain.get("a", rule) in (rule, "no machine with B300 or L40S GPUs is for sale")


def test_of_two_that_are_for_sale_it_is_the_cheaper_one():
    unmet = buying.a_job().model_copy(update={"request": planned(TWO)})
    sold = buying.cloud(("4", 2), kind="B300-288GB"), buying.cloud(("1", 2), kind="L40S-48GB")
    for markets in (sold, sold[::-1]):
        bought = buying.decided([unmet], *markets, rule=BuyingRule.LEAST_COST)
        assert [plan.instance_type for plan in bought.plans] == ["2xL40S-48GB"]


def test_a_gang_is_of_one_type_whichever():
    gang = Gang.model_validate({"group_gpus": 2})
    assert goes_to(planned(TWO, gang=gang), B300, L40S, A) == {B300, L40S}
    other = TWO | {"c": TWO["c"] | {"labels": {"region": "mars"}}}
    assert len(goes_to(planned(other, gang=gang), B300, a_kind("L40S", region="mars"))) == 1


def test_types_with_other_labels_each_are_not_named_together():
    """Else an L40S in another region would be bought, for which nobody pays."""
    job = planned(TWO | {"c": TWO["c"] | {"labels": {"region": "mars"}}})
    assert goes_to(job, L40S, a_kind("L40S", region="venus")) == set()
    both = {name: each | {"labels": {"region": "mars"}} for name, each in TWO.items()}
    job = planned(both)
    wanted = {a_kind("L40S", region="mars"), a_kind("B300", region="mars")}
    assert goes_to(job, B300, L40S, *wanted) == wanted


def test_what_is_too_small_is_not_asked_for():
    job = planned(TWO | {"a": {"gpus": 1, "gpu_type": "B300"}})
    assert goes_to(job, B300, L40S) == {L40S}


@pytest.mark.parametrize(
    ("b300", "l40s", "jobs", "to"),
    [
        (2, 2, 1, ["both"]),
        (2, 2, 2, ["B300", "L40S"]),
        (4, 2, 2, ["both", "B300"]),
        (2, 4, 2, ["both", "L40S"]),
        (4, 4, 2, ["both", "both"]),
        (4, 4, 3, ["both", "B300", "L40S"]),
        (2, 2, 3, ["B300", "L40S", "nowhere"]),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_for_jobs_that_wait_together_no_more_is_bought_of_a_type_than_is_paid_for(
    b300: int, l40s: int, jobs: int, to: list[str], there: bool
):
    """Each would take the cheaper type: then one of two had nobody who paid for it."""
    envelopes = {"b": {"gpus": b300, "gpu_type": "B300"}, "l": {"gpus": l40s, "gpu_type": "L40S"}}
    nodes = (B300, L40S) if there else (A,)
    queue = [a_job(f"j{n}", 2, tenant="red", vram_per_gpu=0) for n in range(jobs)]
    given = facts(envelopes, *nodes, buys=True)
    found = pool_funding(
        given, "pool", queue, {job.id: WAITS for job in queue}, NOW, together=True
    )
    words = {frozenset({B300, L40S}): "both", frozenset({B300}): "B300", frozenset({L40S}): "L40S"}
    asked = as_bought(queue, found)
    assert [
        words[frozenset(goes_to(job, B300, L40S))] if found.of(job.id).funded else "nowhere"
        for job in asked
    ] == to
    others = where_paid(queue, found)
    assert goes_to(others[0], B300, L40S) == {B300, L40S}, "what is there is taken as it is free"


def test_where_all_is_used_up_it_is_told_of_the_envelopes_and_not_of_other_types():
    queue = [a_job(f"j{n}", 2, tenant="red", vram_per_gpu=0) for n in range(2)]
    given = facts({"l": {"gpus": 2, "gpu_type": "L40S"}}, A, buys=True)
    found = pool_funding(given, "pool", queue, {}, NOW)
    assert found.of("j0").funded
    assert "NO_ROOM" in found.unfunded["j1"]


def goes_beside_another(envelopes: dict[str, Any], asked: JobRequest, caps: Any = ()) -> set[Any]:
    """Return the types on which a job is paid for beside one that another envelope pays for."""
    other = a_job("other", 1, tenant="red", vram_per_gpu=0, gpu_type="H100")
    given = facts(envelopes | {"h": {"gpus": 1, "gpu_type": "H100"}}, B300, L40S, X)
    given = given._replace(caps=caps)
    queue = [asked, other]
    asks = {job.id: WAITS for job in queue}
    found = pool_funding(given, "pool", queue, asks, NOW, together=True)
    assert found.of(asked.id).funded
    return goes_to(where_paid(queue, found, everyone=True)[0], B300, L40S)


def test_what_holds_for_a_job_on_one_type_is_not_in_its_own_way_on_another():
    both = {"b": {"gpus": 8, "gpu_type": "B300"}, "l": {"gpus": 8, "gpu_type": "L40S"}}
    job = a_job("a", 8, tenant="red", vram_per_gpu=0)
    cap = Capped(1, "red", Cap(name="c", gpus=8, envelopes=("b", "l")), frozenset({1, 2}))
    assert goes_beside_another(both, job, (cap,)) == {B300, L40S}
    shared = {
        "b": {"gpus": 2, "gpu_type": "B300"}, "l": {"gpus": 2, "gpu_type": "L40S"},
        "any": {"gpus": 2},
    }  # fmt: skip
    assert goes_beside_another(shared, a_job("a", 4, tenant="red", vram_per_gpu=0)) == {B300, L40S}


def test_what_a_job_takes_back_on_one_type_is_not_free_on_another():
    """On an L40S it takes nothing back from R: with that and z the cap is full."""
    given = facts({
        "b": {"gpus": 4, "gpu_type": "B300"}, "l": {"gpus": 8, "gpu_type": "L40S"},
        "h": {"gpus": 8, "gpu_type": "H100"},
    }, B300, L40S, X)  # fmt: skip
    owned = {id: each._replace(tenant="red" if id == 1 else "blue")
             for id, each in given.envelopes.items()}  # fmt: skip
    tenants = {
        name: Branch(above, BEFORE)
        for name, above in (("org", None), ("red", "org"), ("blue", "org"), ("kid", "red"))
    }
    cap = Cap(name="c", gpus=8, subtree=True)
    place = Where("pool", "B300", frozenset())
    runs = Use("R", 1, "kid", BEFORE, (Share(0, place, (0, 1, 2, 3), 1000),), WAITS.terms)
    charge = Charge("R", 1, 0, 1, (0, 1, 2, 3), 1000, False, BEFORE, 7)
    given = given._replace(
        tenants=tenants, envelopes=owned, caps=(Capped(1, "org", cap, frozenset(owned)),),
        uses=(runs,), charges=(charge,),
    )  # fmt: skip
    queue = [
        a_job("a", 4, tenant="red", vram_per_gpu=0),
        a_job("z", 4, tenant="blue", vram_per_gpu=0, gpu_type="H100"),
    ]
    asks = {job.id: WAITS for job in queue}
    found = pool_funding(given, "pool", queue, asks, NOW, together=True)
    assert found.recalls == {"a": {"R"}}
    assert found.of("z").funded
    assert goes_to(where_paid(queue, found, everyone=True)[0], B300, L40S) == {B300}
    alone = pool_funding(given, "pool", queue[:1], asks, NOW, together=True)
    assert goes_to(where_paid(queue[:1], alone, everyone=True)[0], B300, L40S) == {B300, L40S}


def a_family(
    envelopes: list[tuple[str, str, int]], cap: int, over: set[int], *runs: tuple[Use, int]
) -> Any:
    """Return facts of tenants below `org`: envelopes of an owner, for a type, a cap over some of
    them, and jobs that run, each paid for by an envelope."""
    fields = {f"e{n}": {"gpus": gpus, "gpu_type": kind or None}
              for n, (_, kind, gpus) in enumerate(envelopes)}  # fmt: skip
    given = facts(fields, B300, L40S)
    owned = {n: given.envelopes[n]._replace(tenant=owner)
             for n, (owner, *_) in enumerate(envelopes, 1)}  # fmt: skip
    tenants = {
        name: Branch(above, BEFORE)
        for name, above in (("org", None), ("red", "org"), ("blue", "org"), ("kid", "red"))
    }
    charges = tuple(
        Charge(use.job_id, 1, 0, by, use.shares[0].gpus, 1000, False, BEFORE, id)
        for id, (use, by) in enumerate(runs, 1)
    )
    return given._replace(
        tenants=tenants, envelopes=owned, uses=tuple(use for use, _ in runs), charges=charges,
        caps=(Capped(1, "org", Cap(name="c", gpus=cap, subtree=True), frozenset(over)),),
    )  # fmt: skip


def test_what_a_nearer_job_that_waits_would_take_back_does_not_pay_on_another_type():
    """On an L40S blue's envelope would pay for j0, and fill the cap: j1, which has red's envelope
    nearer than j0 has blue's, would take that room rather than blue's B300."""
    given = a_family([("blue", "L40S", 5), ("blue", "B300", 6), ("red", "B300", 4)], 2, {1, 3})
    queue = [
        a_job("j0", 2, tenant="red", vram_per_gpu=0),
        a_job("j1", 2, tenant="kid", vram_per_gpu=0),
    ]
    asks = {job.id: WAITS for job in queue}
    found = pool_funding(given, "pool", queue, asks, NOW, together=True)
    assert [each.envelope for each in found.foreseen["j1"]] == [2]
    first, second = where_paid(queue, found, everyone=True)
    assert goes_to(first, B300, L40S) == {B300}
    assert goes_to(second, B300, L40S) == {B300}
    alone = pool_funding(given, "pool", queue[:1], asks, NOW, together=True)
    assert goes_to(where_paid(queue[:1], alone, everyone=True)[0], B300, L40S) == {B300, L40S}


def test_who_takes_back_from_one_that_runs_would_rather_take_what_is_farther_away():
    """j2 takes back from R, a cousin of its; from j0 on red's envelope it would do so rather."""
    place = Where("pool", "B300", frozenset())
    runs = Use("R", 1, "kid", BEFORE, (Share(0, place, (0, 1), 1000),), WAITS.terms)
    given = a_family([("blue", "B300", 8), ("red", "", 8)], 6, {1, 2}, (runs, 2))
    queue = [
        a_job("j0", 2, tenant="blue", vram_per_gpu=0),
        a_job("j2", 3, tenant="red", vram_per_gpu=0, gpu_type="B300"),
    ]
    asks = {job.id: WAITS for job in queue}
    found = pool_funding(given, "pool", queue, asks, NOW, together=True)
    assert found.recalls == {"j2": {"R"}}
    assert goes_to(where_paid(queue, found, everyone=True)[0], B300, L40S) == {B300}
    alone = pool_funding(given, "pool", queue[:1], asks, NOW, together=True)
    assert goes_to(where_paid(queue[:1], alone, everyone=True)[0], B300, L40S) == {B300, L40S}


def test_a_gang_holds_no_room_on_types_that_it_does_not_come_to():
    envelopes = {"b": {"gpus": 8, "gpu_type": "B300"}, "l": {"gpus": 4, "gpu_type": "L40S"}}
    gang = Gang.model_validate({"group_gpus": 4})
    queue = [
        a_job("g", 4, tenant="red", vram_per_gpu=0, gang=gang),
        a_job("j", 4, tenant="red", vram_per_gpu=0),
    ]
    asks = {job.id: WAITS for job in queue}
    found = pool_funding(facts(envelopes, B300, L40S), "pool", queue, asks, NOW, together=True)
    first, second = where_paid(queue, found, everyone=True)
    assert goes_to(first, B300, L40S) == {B300}
    assert goes_to(second, B300, L40S) == {B300, L40S}


def stopped_for(queue: list[JobRequest], asks: dict[str, Asks], freed: frozenset[str]) -> set[str]:
    """Return who is stopped for jobs of 8 GPUs of which one is paid for on each of two types. Two
    that run on the one type cost little, and one on the other much."""
    envelopes = {"b": {"gpus": 8, "gpu_type": "B300"}, "l": {"gpus": 8, "gpu_type": "L40S"}}
    works = [
        a_work(name, {name: range(8)}, price=price)
        for name, price in (("l1", 100_000), ("l2", 200_000), ("b1", 4_000_000))
    ]
    types = {"l": "L40S", "b": "B300"}
    nodes = nodes_with(works, [a_node(work.id, gpu_type=types[work.id[0]]) for work in works])
    found = pool_funding(
        facts(envelopes, B300, L40S), "pool", queue, asks, NOW, freed=freed, together=True
    )
    nobody = Payer(frozenset({"blue"}), funded=False)
    found = found._replace(payers={**found.payers, **{work.id: nobody for work in works}})
    policy = POLICY.model_copy(update={"funding": found})
    asked = [job for job in where_paid(queue, found, everyone=True) if job.id not in freed]
    made = plan_preemptions(asked, nodes, works, RULES, policy, NOW)
    return {victim.job_id for plan in made for victim in plan.victims}


def test_for_jobs_that_wait_together_others_are_stopped_where_each_is_paid_for():
    """Both would stop who costs least, on the same type: one of them for a job without a payer."""
    queue = [a_job(f"j{n}", 8, tenant="red", vram_per_gpu=0, priority=5) for n in range(2)]
    asks = {job.id: WAITS for job in queue}
    assert stopped_for(queue, asks, frozenset()) == {"b1", "l1"}


@pytest.mark.parametrize(("gets", "stopped"), [(L40S, {"b1"}), (B300, {"l1"})])
def test_one_for_which_others_are_being_stopped_is_paid_for_where_that_is(
    gets: Kind, stopped: set[str]
):
    """It comes first in the queue then, and would be paid for on the type that is asked first."""
    queue = [a_job(f"j{n}", 8, tenant="red", vram_per_gpu=0, priority=5) for n in range(2)]
    asks = {"j0": WAITS, "j1": WAITS._replace(gets=gets)}
    assert stopped_for(queue, asks, frozenset({"j1"})) == stopped


@given(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=5),
    st.booleans(),
    st.integers(1, 14) | st.none(),
)
def test_whichever_of_its_types_each_gets_all_are_paid_for(
    gpus: tuple[int, int, int], sizes: list[tuple[int, bool]], buys: bool, capped: int | None
):
    envelopes: dict[str, Any] = {
        "b": {"gpus": gpus[0] + 1, "gpu_type": "B300"},
        "l": {"gpus": gpus[1] + 1, "gpu_type": "L40S"},
        "any": {"gpus": gpus[2] + 1},
    }
    given_facts = facts(envelopes, B300, L40S, buys=buys)
    if capped:
        cap = Cap(name="c", gpus=capped, envelopes=("b", "l", "any"))
        given_facts = given_facts._replace(caps=(Capped(1, "red", cap, frozenset({1, 2, 3})),))
    queue = [
        a_job(f"j{n}", size, tenant="red", vram_per_gpu=0,
              gang=Gang.model_validate({"group_gpus": size}) if wide else None)
        for n, (size, wide) in enumerate(sizes)
    ]  # fmt: skip
    asks = {job.id: WAITS for job in queue}
    found = pool_funding(given_facts, "pool", queue, asks, NOW, together=True)
    paid = [
        (job.gpus_held, goes_to(job, B300, L40S))
        for job in where_paid(queue, found, everyone=True)
        if found.of(job.id).funded
    ]
    assert all(types for _, types in paid), "each has nodes to come to"
    for chosen in product(*(types for _, types in paid)):
        asked = [
            sum(size for (size, _), each in zip(paid, chosen, strict=True) if each is kind)
            for kind in (B300, L40S)
        ]
        over = sum(max(wants - has - 1, 0) for wants, has in zip(asked, gpus, strict=False))
        assert over <= gpus[2] + 1
        assert capped is None or sum(asked) <= capped
