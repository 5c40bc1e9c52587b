"""Preemption: worked cases, one rule each."""

from datetime import datetime, timedelta

import pytest

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy, RunningJob
from longshore.models.pool import PoolPacking
from longshore.models.preemption import (
    BuyQuote,
    PreemptionLevels,
    PreemptionPlan,
    PreemptionPolicy,
    PreemptionUnderWay,
    RunningWork,
    Spared,
    WayKind,
    WorkCheckpoint,
)
from longshore.scheduling.cycle import plan
from longshore.scheduling.preemption.costs import cost_of, probable_end, victim_of
from longshore.scheduling.preemption.plan import plan_preemption, plan_preemptions
from tests.support.gangs import a_gang
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, one_by_one
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved

SECOND = timedelta(seconds=1)


def planned(
    job: JobRequest,
    works: list[RunningWork],
    nodes: list[Node] | None = None,
    rules: PreemptionPolicy = RULES,
    quote: BuyQuote | None = None,
) -> PreemptionPlan:
    """Return the plan on one node of 8 GPUs, or on these nodes, with the works on them."""
    busy = nodes_with(works, nodes or [a_node()])
    return plan_preemption(job, busy, works, rules, POLICY, NOW, quote)


def stopped(plan: PreemptionPlan) -> list[str]:
    return [victim.job_id for victim in plan.victims]


def full(priority: int = 2, **fields: object) -> RunningWork:
    """Return a job on all eight GPUs of node-a that saved five minutes ago."""
    usual: dict[str, object] = {"checkpoint": saved(5 * MINUTE), **fields}
    return a_work("full", {"node-a": range(8)}, priority=priority, **usual)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("job", "running", "gives_way"),
    [(4, 5, False), (6, 3, True), (5, 5, False), (10, 9, True), (1, 0, True), (10, 10, False)],
)
def test_only_a_lower_class_gives_way(job: int, running: int, gives_way: bool) -> None:
    plan = planned(a_job("urgent", 8, priority=job, expected_duration=HOUR), [full(running)])
    assert plan.preempts is gives_way
    if not gives_way:
        assert "1 not of a lower class" in plan.reason


@pytest.mark.parametrize(("job", "gives_way"), [(4, False), (5, False), (6, True)])
def test_nobody_is_stopped_for_a_job_of_a_class_that_it_had_risen_to(
    job: int, gives_way: bool
) -> None:
    """It was placed as one of class 5: stopped for another of that class it would go first again
    and take its GPUs back, and so on for ever."""
    plan = planned(a_job("urgent", 8, priority=job), [full(4, counted_as=5)])
    assert plan.preempts is gives_way
    if job == 5:
        (kept,) = plan.rejected
        assert kept.reason == (
            "is of class 4, counted as 5 when it was placed, which is not below 5"
        )


@pytest.mark.parametrize(
    ("job", "running", "gives_way"), [(6, 4, False), (6, 3, True), (7, 6, True)]
)
def test_with_bands_a_class_of_the_same_band_does_not(
    job: int, running: int, gives_way: bool
) -> None:
    rules = RULES.model_copy(update={"levels": PreemptionLevels.BANDS, "class_factor": 10.0})
    plan = planned(a_job("urgent", 8, priority=job), [full(running)], rules=rules)
    assert plan.preempts is gives_way


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"preemptible": False}, "says that it is not preemptible"),
        ({"left": 4 * MINUTE}, "should end at 12:04:00 UTC, which is near"),
        ({"priority": 7, "checkpoint": None}, "cannot save, and is of class 7"),
        ({"no_store": "no answer"}, "cannot save now: no answer"),
        ({"preempted_at": (NOW - 9 * MINUTE,)}, "was preempted 9m ago"),
        ({"preempted_at": (NOW - HOUR,), "ran": 2 * MINUTE}, "runs again since 2m only"),
        (
            {"preempted_at": tuple(NOW - n * MINUTE for n in (50, 40, 30))},
            "was preempted 3 times within an hour",
        ),
    ],
)
def test_who_keeps_its_gpus(fields: dict[str, object], reason: str) -> None:
    plan = planned(a_job("urgent", 8, priority=9), [full(**fields)])  # pyright: ignore[reportArgumentType]
    assert not plan.preempts
    assert [one.reason for one in plan.rejected] == [reason]
    assert plan.rejected_count == 1


@pytest.mark.parametrize(("most", "bound"), [(2, ""), (1, ", 1 at a time at most")])
def test_where_those_who_may_be_stopped_make_no_room_it_says_so(most: int, bound: str) -> None:
    low = [a_work(f"low-{gpu}", {"node-a": [gpu]}, checkpoint=saved(MINUTE)) for gpu in (0, 1)]
    high = a_work("high", {"node-a": range(2, 8)}, priority=9)
    rules = RULES.model_copy(update={"max_victims": most})
    plan = planned(a_job("urgent", 8, priority=9), [*low, high], rules=rules)
    assert plan.reason == (
        f"there would be no room for it if the 2 running jobs that may be stopped left{bound}"
    )


@pytest.mark.parametrize(
    ("fields", "until"),
    [
        ({"preempted_at": (NOW - 9 * MINUTE,)}, NOW + MINUTE),
        ({"preempted_at": (NOW - HOUR,), "ran": 2 * MINUTE}, NOW + 3 * MINUTE),
        # The cooldown ends before it has run for long enough.
        ({"preempted_at": (NOW - 8 * MINUTE,), "ran": MINUTE}, NOW + 4 * MINUTE),
        ({"preempted_at": tuple(NOW - n * MINUTE for n in (50, 40, 30))}, NOW + 10 * MINUTE),
    ],
)
def test_who_is_left_alone_for_a_time_is_named_with_its_end(
    fields: dict[str, object], until: datetime
) -> None:
    plan = planned(a_job("urgent", 8, priority=9), [full(**fields)])  # pyright: ignore[reportArgumentType]
    assert plan.spared == (Spared(job_id="full", until=until),)
    assert plan.reason == (
        "nobody may be stopped for it: of 1 running job, 1 preempted of late; "
        f"full was preempted lately and keeps its GPUs until {until:%H:%M:%S} UTC"
    )
    later = a_job("urgent", 8, priority=9)
    (work,) = [full(**fields)]  # pyright: ignore[reportArgumentType]
    for at, stops in ((until - SECOND, False), (until, True)):
        busy = nodes_with([work], [a_node()])
        assert plan_preemption(later, busy, [work], RULES, POLICY, at).preempts is stops


def test_who_keeps_its_gpus_for_another_reason_is_not_said_to_do_so_for_a_time() -> None:
    plan = planned(a_job("urgent", 8, priority=9), [full(preemptible=False)])
    assert plan.spared == ()


def test_what_the_limits_let_through_again() -> None:
    for at in ((NOW - 10 * MINUTE,), tuple(NOW - n * MINUTE for n in (61, 40, 30))):
        assert planned(a_job("urgent", 8, priority=9), [full(preempted_at=at)]).preempts


def test_the_costs_of_the_seeds_victims_are_in_their_order() -> None:
    """P1 to P4: how a job saves decides; how much of its time is used does not, in dollars."""

    def cost(nodes: int, ran: timedelta, checkpoint: WorkCheckpoint | None) -> int:
        gpus = {f"node-{i}": range(4) for i in range(nodes)}
        work = a_work("work", gpus, ran=ran, left=10 * HOUR - ran, checkpoint=checkpoint)
        return victim_of(work, timedelta(0), RULES, NOW).total

    p1 = cost(1, 30 * MINUTE, saved(10 * MINUTE))
    p2 = cost(1, 5 * HOUR, saved(10 * MINUTE))
    p3 = cost(1, 5 * HOUR, saved(2 * HOUR))
    p4 = cost(4, HOUR, None)
    assert p1 == p2 < p3 < p4
    assert p4 == cost_of(HOUR, 16, 2_000_000) == 32_000_000


def test_each_term_is_what_the_page_says() -> None:
    """Four GPUs at $2.00: half an hour unsaved, 90 s to save, then two hours of waiting."""
    work = a_work(
        "work", {"node-a": range(4)}, priority=4,
        checkpoint=saved(30 * MINUTE, 90 * SECOND, grace=2 * MINUTE),
    )  # fmt: skip
    victim = victim_of(work, 2 * HOUR, RULES, NOW)
    assert victim.recompute == cost_of(30 * MINUTE * RULES.save_risk, 4, 2_000_000) == 400_000
    assert victim.write == cost_of(90 * SECOND, 4, 2_000_000) == 200_000
    a_class_below_five = 30_000_000 / RULES.class_factor
    assert victim.requeue == cost_of(2 * HOUR, 4, a_class_below_five)
    assert victim.total == victim.recompute + victim.write + victim.requeue


@pytest.mark.parametrize(
    "checkpoint",
    [None, WorkCheckpoint(), saved(5 * MINUTE, 31 * SECOND)],
    ids=["no contract", "never saved", "saves take longer than its grace"],
)
def test_a_save_counts_only_where_one_has_come_in_time(checkpoint: WorkCheckpoint | None) -> None:
    work = a_work("work", {"node-a": range(4)}, checkpoint=checkpoint)
    lost = HOUR if checkpoint is None or checkpoint.saved_at is None else 5 * MINUTE
    victim = victim_of(work, timedelta(0), RULES, NOW)
    assert victim.recompute == cost_of(lost, 4, 2_000_000)


def test_exactly_three_of_four_jobs_on_two_nodes_each_are_stopped() -> None:
    nodes = [a_node(f"node-{i}", labels=_labels("one")) for i in range(8)]
    works = [
        a_work(f"pair-{i}", {f"node-{2 * i}": range(8), f"node-{2 * i + 1}": range(8)},
               checkpoint=saved((i + 1) * MINUTE))
        for i in range(4)
    ]  # fmt: skip
    plan = planned(a_job("wide", 48, priority=7, gang={}, ram=384), works, nodes)
    assert stopped(plan) == ["pair-0", "pair-1", "pair-2"]
    assert plan.reason.startswith("stop pair-0, pair-1, pair-2: they lose $")
    assert len({gain.node_id for gain in plan.gains}) == 6


def test_a_job_on_four_nodes_is_stopped_whole() -> None:
    nodes = [a_node(f"node-{i}", labels=_labels("one")) for i in range(4)]
    wide = a_work("wide", {f"node-{i}": range(8) for i in range(4)}, checkpoint=saved(MINUTE))
    plan = planned(a_job("urgent", 8, priority=8), [wide], nodes)
    assert stopped(plan) == ["wide"]
    assert plan.reason.startswith("stop wide: it loses $")
    (victim,) = plan.victims
    assert (victim.gpus, len(victim.nodes), len(plan.gains)) == (32, 4, 1)


def test_a_gang_takes_the_domain_where_least_is_lost() -> None:
    nodes = [a_node(f"node-{i}", labels=_labels("one" if i < 2 else "two")) for i in range(4)]
    works = [
        a_work(f"work-{i}", {f"node-{i}": range(8)},
               checkpoint=saved(MINUTE if i in (0, 2, 3) else 200 * MINUTE))
        for i in range(4)
    ]  # fmt: skip
    gang = {"allow_cross_group_spread": False}
    plan = planned(a_job("gang", 16, priority=8, gang=gang, ram=128), works, nodes)
    assert stopped(plan) == ["work-2", "work-3"]


def test_one_large_victim_goes_before_many_cheap_ones_that_do_not_suffice() -> None:
    """The seeds' greedy choice used up its three victims on jobs of other nodes."""
    nodes = [a_node("node-a"), *(a_node(f"node-{i}") for i in range(3))]
    cheap = [
        a_work(f"cheap-{i}", {f"node-{i}": [0]}, priority=0, checkpoint=saved(MINUTE))
        for i in range(3)
    ]
    rest = [
        a_work(f"rest-{i}", {f"node-{i}": range(1, 8)}, priority=9, checkpoint=saved(MINUTE))
        for i in range(3)
    ]
    plan = planned(a_job("urgent", 8, priority=9), [*cheap, *rest, full()], nodes)
    assert stopped(plan) == ["full"]


def test_at_equal_cost_the_newest_goes_and_no_more_than_needed() -> None:
    works = [
        a_work(f"work-{i}", {"node-a": [2 * i, 2 * i + 1]}, ran=(4 - i) * HOUR, left=4 * HOUR,
               checkpoint=saved(5 * MINUTE))
        for i in range(4)
    ]  # fmt: skip
    plan = planned(a_job("urgent", 2, priority=8), works)
    assert stopped(plan) == ["work-3"]
    assert stopped(planned(a_job("urgent", 4, priority=8), works)) == ["work-2", "work-3"]


def test_cores_and_memory_are_freed_too() -> None:
    hungry = full()
    share = hungry.shares[0].model_copy(update={"gpu_indices": (0,), "cpus": 60.0, "ram": 16.0})
    request = hungry.request.model_copy(update={"gpus": 1, "cpus": 60.0, "ram": 16.0})
    works = [hungry.model_copy(update={"shares": (share,), "request": request})]
    plan = planned(a_job("urgent", 2, priority=8, cpus=32), works)
    assert stopped(plan) == ["full"]


def test_jobs_that_share_a_gpu_leave_it_together() -> None:
    works = [
        a_work(f"part-{gpu}-{n}", {"node-a": [gpu]}, milli=500,
               checkpoint=saved((1 if gpu == 5 else 100) * MINUTE)).model_copy()
        for gpu in range(8)
        for n in range(2)
    ]  # fmt: skip
    works = [_with_half_the_memory(work) for work in works]
    plan = planned(a_job("urgent", 1, priority=8, vram_per_gpu=80), works)
    assert stopped(plan) == ["part-5-0", "part-5-1"]
    assert [gain.gpu_indices for gain in plan.gains] == [(5,)]


def test_a_node_that_ends_too_soon_helps_nobody() -> None:
    plan = planned(a_job("urgent", 8, priority=9), [full()], [a_node(expires_in=HOUR)])
    assert plan.reason == "no node could take it, were nobody there"


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (a_gang(24, priority=9, unlabelled_nodes=True), "needs 24 GPUs, the domains together"),
        (a_job("urgent", 16, priority=9), "no known node could ever hold it"),
        (a_job("urgent", 8, priority=9, tier="FLEX"), "no known node could ever hold it"),
    ],
)
def test_no_wait_is_priced_for_what_can_never_fit(job: JobRequest, reason: str) -> None:
    plan = planned(job, [full()], [a_node("node-a"), a_node("node-b")])
    assert reason in plan.reason
    assert plan.reason.endswith(": no end and no stop of running jobs helps")
    assert (plan.ways, plan.victims) == ((), ())


@pytest.mark.parametrize("job", [a_job("urgent", 8, priority=9), a_gang(16, priority=9)])
def test_where_no_node_could_take_it_the_price_to_buy_at_is_named(job: JobRequest) -> None:
    quote = BuyQuote(cost=40_000_000, ready_at=NOW + 5 * MINUTE, title="buy 1 x 8xH100")
    (way,) = plan_preemption(job, [], [], RULES, POLICY, NOW, quote).ways
    assert (way.kind, way.title, way.cost, way.chosen) == (
        WayKind.BUY, "buy 1 x 8xH100", 40_000_000, True
    )  # fmt: skip


def test_where_nobody_may_be_stopped_to_buy_is_compared_with_the_wait() -> None:
    quote = BuyQuote(cost=10_000, ready_at=NOW + MINUTE)
    plan = planned(a_job("urgent", 8, priority=2), [full()], quote=quote)
    assert plan.reason.startswith("nobody may be stopped for it")
    assert [(way.kind, way.chosen) for way in plan.ways] == [
        (WayKind.BUY, True), (WayKind.WAIT, False)
    ]  # fmt: skip


def test_a_short_wait_is_cheaper_than_a_dear_victim() -> None:
    work = full(checkpoint=None, ran=10 * HOUR, left=6 * MINUTE)
    plan = planned(a_job("urgent", 8, priority=6), [work])
    assert not plan.preempts
    assert [(way.kind, way.chosen) for way in plan.ways] == [
        (WayKind.WAIT, True), (WayKind.PREEMPT, False),
    ]  # fmt: skip
    assert plan.cost > plan.value > 0
    assert plan.reason.startswith("wait until 2026-11-20 12:06:00 UTC: ")


def test_buying_goes_first_where_it_costs_less() -> None:
    job, work = a_job("urgent", 8, priority=6), full(checkpoint=None, ran=20 * HOUR)
    assert planned(job, [work]).preempts
    cheap = BuyQuote(cost=20_000_000, ready_at=NOW + MINUTE, title="buy 8xH100")
    plan = planned(job, [work], quote=cheap)
    assert not plan.preempts
    assert plan.reason.startswith("buy 8xH100: ")
    dear = BuyQuote(cost=900_000_000, ready_at=NOW + 10 * MINUTE)
    plan = planned(job, [work], quote=dear)
    assert plan.preempts
    assert {way.kind for way in plan.ways} == set(WayKind)


def test_jobs_that_name_data_give_way_too() -> None:
    work = full()
    request = work.request.model_copy(update={"data": {"imagenet": 150.0}})
    named = work.model_copy(update={"request": request})
    assert planned(a_job("urgent", 8, priority=8), [named]).preempts


def test_who_is_stopped_does_not_depend_on_the_rule_by_which_a_pool_ranks_nodes() -> None:
    nodes, works = nodes_with([full()], [a_node()]), [full()]
    job = a_job("urgent", 4, priority=8)
    live = plan_preemption(job, nodes, works, RULES, PoolPacking(), NOW)
    assert live == plan_preemption(job, nodes, works, RULES, POLICY, NOW)
    assert live.preempts


def test_nobody_is_stopped_for_a_job_that_the_next_cycle_places() -> None:
    # The score knows no difference between an empty node and one with a job that uses no memory,
    # and would send the small job to the first: the large one would then have no room.
    nodes = [a_node("a"), a_node("b"), a_node("c")]
    victim = a_work("victim", {"c": range(8)}, checkpoint=saved(5 * MINUTE))
    lean = a_work("lean", {"b": range(7)}, preemptible=False)
    shares = tuple(s.model_copy(update={"vram_per_gpu": 0.0}) for s in lean.shares)
    request = lean.request.model_copy(update={"vram_per_gpu": 0.0})
    lean = lean.model_copy(update={"shares": shares, "request": request})
    busy = nodes_with([victim, lean], nodes)
    small = a_job("small", 1, priority=9, vram_per_gpu=0, submitted_at=NOW)
    large = a_job("large", 8, priority=8, submitted_at=NOW)

    def plans(packing: PackingPolicy) -> list[str]:
        made = plan_preemptions([small, large], busy, [victim, lean], RULES, packing, NOW)
        return [each.job_id for each in made if each.preempts]

    def placed(packing: PackingPolicy) -> dict[str, str | None]:
        made = plan([small, large], busy, [*victim.shares, *lean.shares], packing, NOW)
        return {each.job_id: each.node_id for each in made.placements}

    assert placed(PoolPacking()) == {"small": "b", "large": "a"}
    assert plans(PoolPacking()) == []
    assert placed(POLICY) == {"small": "b", "large": "a"}, "the cycle has the small job make room"
    assert plans(POLICY) == []
    with one_by_one():
        assert placed(POLICY) == {"small": "a"}
        assert plans(POLICY) == ["large"]


def test_a_job_that_fits_or_a_pool_that_may_not_stops_nobody() -> None:
    work = a_work("half", {"node-a": range(4)})
    assert "needs nobody's GPUs" in planned(a_job("small", 4, priority=9), [work]).reason
    off = RULES.model_copy(update={"enabled": False})
    assert (
        "off for this pool" in planned(a_job("urgent", 8, priority=9), [full()], rules=off).reason
    )


def test_a_job_that_can_run_elsewhere_does_not_wait() -> None:
    nodes = [a_node("node-a"), a_node("node-b")]
    works = [
        a_work("narrow", {"node-a": range(4)}, checkpoint=saved(MINUTE)),
        a_work("rest", {"node-b": range(4)}, checkpoint=saved(2 * HOUR)),
    ]
    plan = planned(a_job("urgent", 8, priority=6), works, nodes)
    (victim,) = plan.victims
    assert (victim.job_id, victim.requeue) == ("narrow", 0)
    assert "runs elsewhere at once" in victim.reason


def test_a_job_whose_room_elsewhere_the_other_takes_waits() -> None:
    """Two GPUs of node-b are free, and go to the urgent job with four of the six of `narrow`."""
    nodes = [a_node("node-a"), a_node("node-b")]
    works = [
        a_work("stays", {"node-a": range(8)}, priority=9),
        a_work("narrow", {"node-b": range(4)}, checkpoint=saved(MINUTE)),
    ]
    plan = planned(a_job("urgent", 6, priority=6), works, nodes)
    (victim,) = plan.victims
    assert victim.job_id == "narrow"
    assert victim.requeue > 0
    assert "runs elsewhere" not in victim.reason
    assert plan.cost == victim.total


def test_two_that_are_stopped_do_not_run_elsewhere_on_the_same_gpus() -> None:
    nodes = [a_node("node-a"), a_node("node-b", busy=range(4))]
    works = [
        a_work("one", {"node-a": range(4)}, priority=2, checkpoint=saved(MINUTE)),
        a_work("two", {"node-a": range(4, 8)}, priority=3, checkpoint=saved(MINUTE)),
    ]
    plan = planned(a_job("urgent", 8, priority=6), works, nodes)
    waits = {victim.job_id: "waits" in victim.reason for victim in plan.victims}
    assert waits == {"one": True, "two": False}, "the higher class has the room"


def test_what_is_cheaper_with_all_in_their_places_is_taken() -> None:
    """To stop `near` seemed to cost its save alone; but then it waits for hours."""
    nodes = [a_node("node-a"), a_node("node-b")]
    near = a_work(
        "near", {"node-b": range(4)}, priority=4, left=9 * HOUR, checkpoint=saved(MINUTE)
    )
    far = a_work(
        "far", {"node-a": range(8)}, priority=0, left=9 * HOUR, checkpoint=saved(3 * MINUTE)
    )
    plan = planned(a_job("urgent", 6, priority=6), [near, far], nodes)
    assert [victim.job_id for victim in plan.victims] == ["far"]


def test_an_overdue_job_is_not_expected_back_in_a_minute() -> None:
    work = a_work("late", {"node-a": range(8)}, ran=8 * HOUR, left=-HOUR)
    assert probable_end(work, RULES, NOW) == NOW + 2 * HOUR
    young = a_work("late", {"node-a": range(8)}, ran=8 * MINUTE, left=-MINUTE)
    assert probable_end(young, RULES, NOW) == NOW + RULES.near_end


def test_a_queue_is_planned_in_order_and_nobody_is_stopped_twice() -> None:
    works = [
        a_work(f"work-{i}", {"node-a": range(4 * i, 4 * i + 4)}, checkpoint=saved(i * MINUTE))
        for i in range(2)
    ]
    queue = [a_job(f"urgent-{i}", 4, priority=7 + i) for i in range(3)]
    plans = plan_preemptions(queue, nodes_with(works, [a_node()]), works, RULES, POLICY, NOW)
    assert [(plan.job_id, stopped(plan)) for plan in plans] == [
        ("urgent-2", ["work-0"]), ("urgent-1", ["work-1"]), ("urgent-0", []),
    ]  # fmt: skip


def test_what_is_under_way_is_not_done_again() -> None:
    work = full()
    job, other = a_job("urgent", 8, priority=8), a_job("other", 8, priority=8)
    freed = RunningJob(
        job_id="urgent", node_id="node-a", gpu_indices=tuple(range(8)), expected_end=NOW + HOUR
    )
    under_way = [PreemptionUnderWay(job_id="urgent", victims=("full",), shares=(freed,))]
    nodes = nodes_with([work], [a_node()])
    (plan,) = plan_preemptions([job, other], nodes, [work], RULES, POLICY, NOW, under_way)
    assert (plan.job_id, plan.preempts) == ("other", False)
    assert [one.reason for one in plan.rejected] == ["is being stopped for urgent"]


def test_at_most_so_many_jobs_are_stopped_at_a_time() -> None:
    works = [a_work(f"w-{i}", {"node-a": [i]}, checkpoint=saved(MINUTE)) for i in range(8)]
    queue = [a_job(f"urgent-{i}", 2, priority=8) for i in range(4)]
    rules = RULES.model_copy(update={"max_under_way": 5})
    plans = plan_preemptions(queue, nodes_with(works, [a_node()]), works, rules, POLICY, NOW)
    assert [len(plan.victims) for plan in plans] == [2, 2, 0, 0]


def test_nobody_is_stopped_for_a_job_that_would_delay_one_before_it() -> None:
    """The wide job has the node from one o'clock on; a job of three hours would be in its way."""
    wide = a_work("wide", {"node-a": range(4)}, priority=9, left=HOUR, checkpoint=saved(MINUTE))
    narrow = a_work(
        "narrow", {"node-a": range(4, 8)}, priority=2, left=HOUR, checkpoint=saved(MINUTE)
    )
    first = a_job("first", 8, priority=9)
    long, short = (
        a_job(f"job-{hours}", 4, priority=7, expected_duration=timedelta(hours=hours))
        for hours in (3.0, 0.5)
    )
    nodes = nodes_with([wide, narrow], [a_node()])
    plans = plan_preemptions([first, long, short], nodes, [wide, narrow], RULES, POLICY, NOW)
    assert {plan.job_id: stopped(plan) for plan in plans} == {
        "first": [], "job-3.0": [], "job-0.5": ["narrow"],
    }  # fmt: skip


def test_among_many_the_choice_is_pruned_and_small() -> None:
    """Forty jobs on ten nodes; a gang wants four nodes' worth of one domain."""
    nodes = [a_node(f"node-{i}", labels=_labels("one")) for i in range(10)]
    works = [
        a_work(f"w-{i:02}", {f"node-{i // 4}": [2 * (i % 4), 2 * (i % 4) + 1]},
               checkpoint=saved((40 - i) * MINUTE))
        for i in range(40)
    ]  # fmt: skip
    rules = RULES.model_copy(update={"max_victims": 16})
    plan = planned(a_job("gang", 32, priority=9, gang={}, ram=256), works, nodes, rules)
    assert stopped(plan) == [f"w-{i}" for i in range(24, 40)]


def _labels(domain: str) -> dict[str, str]:
    return {"region": "eu", "cluster": "one", "fabric.domain": domain}


def _with_half_the_memory(work: RunningWork) -> RunningWork:
    shares = tuple(share.model_copy(update={"vram_per_gpu": 40.0}) for share in work.shares)
    return work.model_copy(update={"shares": shares})
