"""A job whose start is due: who gives way to it, in which order, and by lottery."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from longshore.models.elastic import Malleable
from longshore.models.funding import Payer, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.preemption import (
    BuyQuote,
    Cut,
    LotteryEntry,
    Overcommit,
    PreemptionPlan,
    RunningWork,
)
from longshore.scheduling.preemption.due import cuts, draws, is_as_drawn, seed_of
from longshore.scheduling.preemption.plan import plan_preemptions
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved

SEED = seed_of("cycle-1|owner|1")
LOTTERY = RULES.model_copy(update={"overcommit": Overcommit.LOTTERY})
OWNER = Payer(frozenset({"owner"}), owner="owner")
SIZES = Malleable(min=2, max=8, step=2)


def runs(name: str, gpus: Mapping[str, Sequence[int]], **fields: Any) -> RunningWork:
    usual: dict[str, Any] = {"checkpoint": saved(5 * MINUTE), "tenant": name[0], **fields}
    spares = usual.pop("spares", ())
    sizes = usual.get("malleable")
    work = a_work(name, gpus, **usual)
    if sizes is not None:
        small = work.request.model_copy(update={"malleable": sizes}).smallest
        work = work.model_copy(update={"request": small})
    shares = tuple(
        share.model_copy(update={"spare": share.node_id in spares}) for share in work.shares
    )
    return work.model_copy(update={"shares": shares})


def planned(
    works: list[RunningWork],
    *queue: JobRequest,
    policy: Any = RULES,
    due: Sequence[str] = ("owner",),
    unpaid: Sequence[str] = (),
    quotes: Mapping[str, BuyQuote] | None = None,
    first: Sequence[str] = (),
    every: bool = False,
    idle: Sequence[str] = (),
) -> list[PreemptionPlan]:
    """The plans for a queue, with `every` also those that stop nobody; what runs is paid for by
    budgets of its own, but for the `unpaid`. Nobody runs on the nodes that are `idle`."""
    queue = queue or (a_job("owner", 2, tenant="owner"),)
    payers = {work.id: Payer(frozenset({work.tenant}), work.id not in unpaid, work.tenant)
              for work in works}  # fmt: skip
    payers |= {job.id: OWNER for job in queue}
    packing = POLICY.model_copy(
        update={"funding": PoolFunding(payers, {}, frozenset(), first=frozenset(first))}
    )
    names = sorted({*idle, *(name for work in works for name in work.nodes)})
    nodes = nodes_with(works, [a_node(name) for name in names])
    plans = plan_preemptions(
        queue, nodes, works, policy, packing, NOW,
        quotes=quotes, due=dict.fromkeys(due, SEED),
    )  # fmt: skip
    return [plan for plan in plans if every or plan.preempts]


def gang_with_spare() -> RunningWork:
    return runs("gang", {"node-a": range(8), "node-b": range(2)}, spares=("node-b",))


def fixed(name: str, node: str, gpus: range, **fields: Any) -> RunningWork:
    return runs(name, {node: gpus}, **fields)


def elastic(node: str = "node-c", sizes: Malleable = SIZES) -> RunningWork:
    return runs("elastic", {node: range(8)}, malleable=sizes)


# --- J17: a deficit of 2


def test_j17_a_spare_is_given_up_first():
    works = [gang_with_spare(), fixed("x", "node-b", range(2, 8)), elastic()]
    (plan,) = planned(works)
    assert plan.cut is Cut.SPARES
    (victim,) = plan.victims
    assert (victim.job_id, victim.spares_on, victim.gpus_left, victim.total) == (
        "gang", ("node-b",), None, 0,
    )  # fmt: skip
    assert [(gain.node_id, gain.gpu_indices) for gain in plan.gains] == [("node-b", (0, 1))]
    assert plan.reason.startswith("its start is due: gangs give up what stands by for them: gang;")
    assert [way.lost for way in plan.ways] == ["", "its start is due"]


def test_j17_else_one_group_is_shrunk():
    sizes = Malleable(min=4, max=8, step=4)
    (plan,) = planned([fixed("x", "node-b", range(8)), elastic(sizes=sizes)])
    assert plan.cut is Cut.SHRINK
    assert [(victim.job_id, victim.gpus_left) for victim in plan.victims] == [("elastic", 4)]


def test_j17_the_same_seed_draws_the_same():
    works = [fixed(name, f"node-{name}", range(8)) for name in ("a1", "a2", "b1", "c1")]
    plans = [planned(some, policy=LOTTERY)[0] for some in (works, works[::-1])]
    assert plans[0] == plans[1]
    lottery = plans[0].lottery
    assert lottery is not None
    assert [(each.tenant, each.jobs) for each in lottery.entries] == [
        ("a", ("a1", "a2")), ("b", ("b1",)), ("c", ("c1",)),
    ]  # fmt: skip
    assert lottery.drawn == tuple(victim.job_id for victim in plans[0].victims)
    assert is_as_drawn(lottery)
    assert not is_as_drawn(lottery.model_copy(update={"seed": seed_of("another")}))
    assert plans[0].reason.startswith(f"its start is due: drawn by lottery with seed {SEED}: ")


# --- J1d: no spares, nothing to shrink


def test_j1d_nobody_gives_way_unless_the_pool_draws():
    """J4 wants 32 of 72, of which J1 has 32, J2 24 at its fewest and J3 2; 14 are free."""
    j2 = Malleable(min=24, max=24, step=8)
    works = [
        runs("a-j1", {f"n{number}": range(8) for number in range(4)}),
        runs("b-j2", {f"n{number}": range(8) for number in range(4, 7)}, malleable=j2),
        fixed("c-j3", "n7", range(2)),
    ]  # fmt: skip
    job = a_job("owner", 32, tenant="owner", cpus=0, ram=0, gang={"unlabelled_nodes": True})
    assert planned(works, job, idle=["n8"]) == []
    (plan,) = planned(works, job, policy=LOTTERY, idle=["n8"])
    assert plan.cut is Cut.LOTTERY
    assert plan.lottery is not None
    assert {entry.tenant for entry in plan.lottery.entries} == {"a", "b", "c"}
    assert {victim.job_id for victim in plan.victims} <= set(plan.lottery.drawn)
    assert sum(len(gain.gpu_indices) for gain in plan.gains) == 32


# --- J2c: shrinking stops at the fewest


def test_j2c_a_run_is_never_shrunk_below_its_fewest():
    works = [elastic("node-a", Malleable(min=8, max=8)), fixed("m", "node-b", range(8))]
    assert planned(works) == []
    (plan,) = planned(works, policy=LOTTERY)
    assert [victim.gpus_left for victim in plan.victims] == [None]


def test_j2c_who_cannot_shrink_is_drawn_with_the_largest():
    """MM3 wants 64 of 72: 4 are free, RA2 has its fewest, 16, MM1 48 and MM2 4."""
    works = [
        runs("s-ra2", {f"n{number}": range(8) for number in range(2)},
             malleable=Malleable(min=16, max=48, step=8)),
        runs("v-mm1", {f"n{number}": range(8) for number in range(2, 8)}),
        fixed("u-mm2", "n8", range(4)),
    ]  # fmt: skip
    job = a_job("owner", 64, tenant="owner", cpus=0, ram=0, gang={"unlabelled_nodes": True})
    assert planned(works, job) == []
    (plan,) = planned(works, job, policy=LOTTERY)
    assert plan.cut is Cut.LOTTERY
    left = {victim.job_id: victim.gpus_left for victim in plan.victims}
    assert left == {"s-ra2": None, "v-mm1": None}, "4 + 16 + 48 are enough"
    assert sum(len(gain.gpu_indices) for gain in plan.gains) == 64


# --- the order


def test_the_order_is_unfunded_then_spares_then_shrinking():
    works = [gang_with_spare(), fixed("x", "node-b", range(2, 8)), elastic()]
    unpaid = fixed("u", "node-d", range(8), checkpoint=None, ran=24 * HOUR)
    (plan,) = planned([*works, unpaid], unpaid=("u",))
    assert [victim.job_id for victim in plan.victims] == ["u"], "whatever it costs"
    assert plan.cut is None
    four = a_job("owner", 4, tenant="owner")
    (plan,) = planned(works, four)
    assert [victim.job_id for victim in plan.victims] == ["elastic"], "two spares are too few"
    wide = fixed("y", "node-b", range(2, 4))
    shrinks = runs("elastic", {"node-b": range(4, 8)}, malleable=SIZES)
    (plan,) = planned([gang_with_spare(), wide, shrinks], four)
    assert [(victim.job_id, victim.spares_on, victim.gpus_left) for victim in plan.victims] == [
        ("elastic", (), 2), ("gang", ("node-b",), None),
    ]  # fmt: skip
    assert plan.cut is Cut.SHRINK
    assert plan.ways[0].title == "shrink elastic to 2 GPUs; take the spares of gang"
    assert plan.reason.startswith(
        "its start is due: malleable jobs shrink: elastic; "
        "gangs give up what stands by for them: gang; that costs "
    )


def test_no_more_is_taken_of_a_later_kind_than_it_takes():
    """Two spares would cost nothing; one of them, and a job that nobody pays for, are enough."""
    works = [
        runs("g1", {"node-a": range(4), "node-b": range(2)}, spares=("node-b",)),
        runs("g2", {"node-a": range(4, 8), "node-b": range(2, 4)}, spares=("node-b",)),
        fixed("u", "node-b", range(4, 6), checkpoint=None, ran=24 * HOUR),
        fixed("x", "node-b", range(6, 8)),
    ]
    (plan,) = planned(works, a_job("owner", 4, tenant="owner"), unpaid=("u",))
    assert [victim.job_id for victim in plan.victims] in (["g1", "u"], ["g2", "u"])
    elastic = runs("e", {"node-b": range(6, 8)}, malleable=Malleable(min=1, max=2))
    (plan,) = planned([*works[:3], elastic], a_job("owner", 7, tenant="owner"), unpaid=("u",))
    assert [victim.job_id for victim in plan.victims] == ["e", "g1", "g2", "u"]
    assert plan.reason.startswith(
        "its start is due: malleable jobs shrink: e; "
        "gangs give up what stands by for them: g1, g2; stopped: u; that costs "
    )


def test_who_is_drawn_is_only_stopped_where_others_are_too_few():
    works = [gang_with_spare(), fixed("x", "node-b", range(2, 8))]
    (plan,) = planned(works, policy=LOTTERY)
    assert plan.cut is Cut.SPARES


@pytest.mark.parametrize("policy", [RULES, LOTTERY])
def test_nobody_gives_way_before_the_start_is_due(policy: Any):
    works = [gang_with_spare(), fixed("x", "node-b", range(2, 8)), elastic()]
    assert planned(works, policy=policy, due=()) == []
    assert planned(works, policy=policy, due=("another",)) == []
    off = policy.model_copy(update={"enabled": False})
    assert planned(works, policy=off) == []


def test_who_is_not_preemptible_or_was_stopped_lately_takes_no_part():
    kept = {"preemptible": False}
    lately = {"preempted_at": (NOW - MINUTE,)}
    works = [fixed("a1", "node-a", range(8), **kept), fixed("b1", "node-b", range(8), **lately)]
    assert planned(works, policy=LOTTERY) == []
    (plan,) = planned([*works, fixed("c1", "node-c", range(8))], policy=LOTTERY)
    assert plan.lottery is not None
    assert plan.lottery.entries == (LotteryEntry(tenant="c", jobs=("c1",)),)


def test_who_keeps_its_gpus_from_a_start_that_is_due_says_why():
    near, known = elastic("node-a"), {"duration_known": True}
    near = near.model_copy(
        update={
            "expected_end": NOW + MINUTE, "request": near.request.model_copy(update=known),
        }
    )  # fmt: skip
    least = runs("m", {"node-b": range(8)}, malleable=Malleable(min=8, max=8))
    works = [near, least, fixed("x", "node-c", range(8)), runs("r", {"node-d": range(8)})]
    (plan,) = planned(works, first=("r",), every=True)
    assert {one.job_id: one.reason for one in plan.rejected} == {
        "elastic": "should end at 12:01:00 UTC, which is near",
        "m": "is paid for by m, and has no more than its fewest GPUs",
        "r": "others made room for it, so that it keeps its GPUs",
        "x": "is paid for by x",
    }
    assert "1 near the end" in plan.reason
    (plan,) = planned(works, due=(), every=True)
    assert {one.reason.partition(" by ")[0] for one in plan.rejected} == {"is paid for"}
    (plan,) = planned([elastic()], a_job("owner", 8, tenant="owner"), every=True)
    assert [one.reason for one in plan.rejected] == [
        "is paid for by e, and shrinks to no less than 2 GPUs"
    ]


def test_nobody_gives_way_where_it_is_better_to_buy():
    works = [elastic()]
    quote = BuyQuote(cost=1, ready_at=NOW + MINUTE)
    assert planned(works, quotes={"owner": quote}) == []
    assert planned(works)


def test_a_round_goes_on_with_the_next_cycle():
    first, second = a_job("owner", 2, tenant="owner"), a_job("second", 3, tenant="owner")
    works = [elastic(), elastic("node-d").model_copy(update={"tenant": "z"})]
    works[1] = runs("other", {"node-d": range(8)}, malleable=SIZES)
    plans = planned(works, first, second, due=("owner", "second"))
    assert [plan.job_id for plan in plans] == ["owner"]


def test_of_two_that_are_drawn_and_have_room_for_one_elsewhere_the_other_waits() -> None:
    works = [
        fixed("a1", "node-a", range(4)),
        fixed("b1", "node-a", range(4, 8)),
        fixed("c1", "node-b", range(4), preemptible=False),
    ]
    (plan,) = planned(works, a_job("owner", 8, tenant="owner"), policy=LOTTERY)
    assert plan.cut is Cut.LOTTERY
    assert sorted(victim.requeue > 0 for victim in plan.victims) == [False, True]


# --- the lottery


def test_each_tenant_is_drawn_as_likely_as_any_other():
    entries = [
        LotteryEntry(tenant="many", jobs=tuple(f"m{number}" for number in range(98))),
        LotteryEntry(tenant="one", jobs=("o",)), LotteryEntry(tenant="two", jobs=("t1", "t2")),
    ]  # fmt: skip
    first = Counter(next(draws(seed_of(str(n)), entries))[0] for n in range(3000))
    assert all(900 < first[name] < 1100 for name in "mot"), first
    assert sorted(draws("0" * 16, entries)) == sorted(job for e in entries for job in e.jobs)


def test_a_draw_is_what_the_page_says():
    """By hand: SHA-256 of `SEED/0` modulo the tenants, of `SEED/1` modulo the tenant's jobs."""
    entries = [LotteryEntry(tenant=name, jobs=(f"{name}1", f"{name}2")) for name in "abc"]
    seed = "00000000000000ff"
    tenant = "abc"[int(seed_of(f"{seed}/0"), 16) % 3]
    job = f"{tenant}{1 + int(seed_of(f'{seed}/1'), 16) % 2}"
    assert next(draws(seed, entries)) == job


def test_a_pool_waits_unless_it_says_otherwise():
    assert cuts(Overcommit.WAIT) == (Cut.SPARES, Cut.SHRINK)
    assert cuts(Overcommit.LOTTERY) == (Cut.SPARES, Cut.SHRINK, Cut.LOTTERY)
    assert "overcommit" not in RULES.model_dump()
