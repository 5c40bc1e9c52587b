"""What becomes of a block: examples, and what holds for every one."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.block_end import (
    BlockDecision,
    BlockFacts,
    BlockJob,
    BlockMachine,
    BlockOptionKind,
    BlockScene,
    SaleTerms,
)
from longshore.models.buying import BookQuote, BuyingPolicy, CapacityUnderWay, Release, UnmetJob
from longshore.models.funding import Payer, PoolFunding
from longshore.models.job import Tier
from longshore.models.market import Level, NoQuote, NoQuoteReason, OrderBook
from longshore.models.money import micro_of
from longshore.models.node import NodeState
from longshore.models.pool import PoolPacking
from longshore.models.text import format_duration
from longshore.scheduling.buying.block_end import TRY_AGAIN, decide_block, resale_window
from tests.support.buying import NOW, a_job, a_release

HOUR = timedelta(hours=1)
ENDS_AT = NOW + 8 * HOUR


def quote(*, asks: tuple[tuple[str, int], ...] = (), bids: tuple[tuple[str, int], ...] = ()):
    book = OrderBook(
        provider="exchange", instance_type="8xH100", lot=8, observed_at=NOW,
        asks=tuple(Level(price=micro_of(p), gpus=g, place="a") for p, g in asks),
        bids=tuple(Level(price=micro_of(p), gpus=g, place="a") for p, g in bids),
    )  # fmt: skip
    return BookQuote(instance_type="8xH100", answer=book)


def a_block(**changes: Any) -> BlockFacts:
    fields: dict[str, Any] = {
        "id": "b1", "provider": "exchange", "instance_type": "8xH100", "tier": Tier.FAST,
        "gpus_per_node": 8, "starts_at": NOW - 2 * HOUR, "ends_at": ENDS_AT,
        "price": micro_of("2.00"), "resellable": True, "renewable": True,
    }  # fmt: skip
    return BlockFacts.model_validate({**fields, **changes})


def a_job_there(node: str = "n1", hours: float = 1, **changes: Any) -> BlockJob:
    fields: dict[str, Any] = {
        "id": f"on-{node}", "node_id": node, "gpus": 8, "tier": Tier.FAST,
        "expected_end": NOW + hours * HOUR, "lost": HOUR,
    }  # fmt: skip
    return BlockJob.model_validate({**fields, **changes})


def a_scene(*releases: Release, **changes: Any) -> BlockScene:
    policy = changes.pop("policy", {})
    pool = releases or (a_release("n1"), a_release("n2"))
    fields: dict[str, Any] = {
        "block": a_block(), "pool": pool, "place": "a", "now": NOW,
        "machines": tuple(BlockMachine(name=release.node.id) for release in pool),
        "policy": BuyingPolicy.model_validate({"enabled": True, **policy}),
        "packing": PoolPacking(),
        "rest": quote(bids=(("1.50", 16),)), "terms": SaleTerms(fee_bps=400),
    }  # fmt: skip
    return BlockScene.model_validate({**fields, **changes})


def kinds(decision: BlockDecision) -> list[str]:
    return [option.kind.value for option in decision.options]


def test_the_rest_of_idle_nodes_is_sold_in_whole_hours_for_what_the_bids_pay():
    decision = decide_block(a_scene())
    assert decision.kind is BlockOptionKind.SELL
    first, second = decision.sales
    # From an hour's beginning at least ten minutes ahead, to the last whole hour of the block.
    assert (first.window.start, first.window.end) == (NOW + HOUR, ENDS_AT)
    assert [first.machine, second.machine] == ["n1", "n2"]
    assert first.proceeds == micro_of("1.50") * 8 * 7
    assert first.fee == first.proceeds * 4 // 100
    (sale,) = [each for each in decision.options if each.kind is BlockOptionKind.SELL]
    assert sale.gain == 2 * (first.proceeds - first.fee)
    assert "gains $161.28" in decision.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"resell": False}},
        {"policy": {"enabled": False}, "block": a_block(decided=False)},
        {"block": a_block(resellable=False)},
        {"block": a_block(renewed=True)},
        {"block": a_block(ends_at=NOW + 90 * timedelta(minutes=1))},
        {"block": a_block(tried_at=NOW - TRY_AGAIN / 2)},
        {"rest": None},
        {"rest": quote()},
        {"rest": quote(bids=(("1.50", 4),))},
        {"place": "b"},
        {"rest": BookQuote(instance_type="8xH100", answer=NoQuote(reason=NoQuoteReason.EMPTY))},
    ],
)
def test_nothing_is_sold_where_it_may_not_or_cannot_be(changes: dict[str, Any]):
    assert decide_block(a_scene(**changes)).kind is BlockOptionKind.KEEP


def test_a_node_that_a_job_runs_on_or_is_to_run_on_is_kept():
    busy, free = a_release("n1", busy_hours=2), a_release("n2")
    scene = a_scene(busy, free, jobs=(a_job_there("n1", 2),))
    assert [sale.machine for sale in decide_block(scene).sales] == ["n2"]
    queued = a_scene(busy, free, jobs=(a_job_there("n1", 2),), queue=(a_job("next", 8),))
    assert decide_block(queued).kind is BlockOptionKind.KEEP


def test_a_node_that_waits_for_a_reserved_job_is_kept():
    def sold(**fields: Any) -> list[str]:
        busy, free = a_release("n1", busy_hours=2, **fields), a_release("n2", **fields)
        both = a_job("gang", 16, gang={})
        scene = a_scene(busy, free, jobs=(a_job_there("n1", 2),), queue=(both,))
        return [sale.machine for sale in decide_block(scene).sales]

    assert sold(labels={"region": "r", "cluster": "c", "fabric.domain": "d"}) == []
    assert sold() == ["n2"], "a gang whose ranks could not meet there does not keep it"


def test_time_on_which_no_machine_can_be_started_is_sold_first_and_is_worth_nothing_here():
    low = quote(bids=(("0.90", 8), ("0.80", 8)))
    decision = decide_block(a_scene(unstarted=("m3",), rest=low, demand=16.0))
    assert decision.kind is BlockOptionKind.SELL
    assert [sale.machine for sale in decision.sales] == ["m3"]  # the other two may yet be used
    assert decision.sales[0].limit == micro_of("0.90")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rest": quote()}, "nobody bids for it"),
        ({"block": a_block(resellable=False)}, "exchange takes no time back"),
        ({"policy": {"resell": False}}, "the policy sells nothing"),
    ],
)
def test_time_on_which_nothing_starts_and_that_is_not_sold_is_told_in_dollars(
    changes: dict[str, Any], why: str
):
    decision = decide_block(a_scene(unstarted=("m3",), **changes))
    assert decision.kind is BlockOptionKind.KEEP
    said = "not “sell 1 node on which nothing starts, $128.00 of paid time”: "
    assert f"{said}{why}" in decision.reason


def test_what_the_demand_of_late_would_use_is_worth_more_than_a_low_bid():
    low = quote(bids=(("0.90", 16),))
    assert decide_block(a_scene(rest=low)).kind is BlockOptionKind.SELL
    assert decide_block(a_scene(rest=low, demand=16.0)).kind is BlockOptionKind.KEEP
    assert decide_block(a_scene(demand=16.0)).kind is BlockOptionKind.SELL


def test_all_the_time_that_is_given_up_has_its_worth_not_only_what_is_sold():
    # 2 h 58 min are left, of which an hour is traded: by the demand $17.80 against $6.91.
    fields = {"block": a_block(ends_at=NOW + timedelta(hours=2, minutes=58)), "demand": 6.0}
    low = quote(bids=(("0.90", 16),))
    decision = decide_block(a_scene(a_release("n1"), rest=low, **fields))
    assert decision.kind is BlockOptionKind.KEEP
    sold = decide_block(a_scene(a_release("n1"), rest=quote(bids=(("3.00", 16),)), **fields))
    (option,) = [option for option in sold.options if option.chosen]
    assert option.terms["use by jobs to come"] == -micro_of("17.80")


def test_the_warm_target_is_never_sold():
    scene = a_scene(policy={"fast_warm_gpus": 8})
    assert len(decide_block(scene).sales) == 1
    assert decide_block(a_scene(policy={"fast_warm_gpus": 16})).sales == ()


def ending(*, asks: tuple[tuple[str, int], ...] = (("2.00", 16),), **changes: Any) -> BlockScene:
    """Return a block that ends in 20 minutes, with a job that needs two hours more."""
    fields: dict[str, Any] = {
        "block": a_block(ends_at=NOW + timedelta(minutes=20)),
        "jobs": (a_job_there("n1", 2),), "following": quote(asks=asks),
        "elsewhere": micro_of("2.00"),
    }  # fmt: skip
    return a_scene(a_release("n1", busy_hours=2), a_release("n2"), **{**fields, **changes})


def test_the_time_after_a_block_is_bought_for_work_that_does_not_end():
    decision = decide_block(ending())
    assert decision.kind is BlockOptionKind.RENEW
    assert decision.renewal is not None
    window = decision.renewal.window
    assert (decision.renewal.nodes, window.start) == (1, NOW + timedelta(minutes=20))
    assert format_duration(window.length) == "1h45m"  # 1 h 40 min left, 5 min margin
    (renew,) = [each for each in decision.options if each.kind is BlockOptionKind.RENEW]
    assert renew.terms["price"] == -micro_of("2.00") * 8 * 7 // 4
    assert renew.terms["done again"] == micro_of("2.00") * 8
    assert renew.gain == sum(renew.terms.values()) > 0


def test_a_renewal_may_cost_no_more_than_the_next_best_way():
    thin = (("2.00", 8), ("19.00", 1600))  # the recommended limit is that of the dear ones
    jobs = (a_job_there("n1", 2, lost=timedelta(0)),)
    decision = decide_block(ending(asks=thin, jobs=jobs, policy={"slippage": 10}))
    renewal, gains = decision.renewal, sorted(each.gain for each in decision.options)
    assert renewal is not None
    most = renewal.limit * 8 * renewal.nodes * renewal.window.hours
    assert 0 < most - renewal.cost <= gains[-1] - gains[-2]
    assert renewal.cap == renewal.limit > micro_of("2.00")
    close = decide_block(ending(asks=thin, jobs=jobs, policy={"slippage": 0.1})).renewal
    assert close is not None
    assert close.limit == micro_of("2.20")


def test_the_time_after_a_block_is_bought_for_queued_work_that_would_run_there():
    node = a_release("n1", expires_at=NOW + timedelta(minutes=20))
    fields: dict[str, Any] = {
        "block": a_block(ends_at=NOW + timedelta(minutes=20)), "queue": (a_job("long", 8, 3),),
        "following": quote(asks=(("2.00", 16),)), "elsewhere": micro_of("2.00"),
    }  # fmt: skip
    decision = decide_block(a_scene(node, **fields))
    assert decision.kind is BlockOptionKind.RENEW
    (renew,) = [each for each in decision.options if each.kind is BlockOptionKind.RENEW]
    # What is left of the block is free: 20 minutes of 3 hours that are bought elsewhere in full.
    assert renew.terms["the same elsewhere"] == micro_of("2.00") * 8 * 3
    assert renew.terms["price"] == -micro_of("2.00") * 8 * 11 // 4
    other = a_release("n2")
    beside = a_scene(node, other, machines=(BlockMachine(name="n1"),), **fields)
    assert "renew" not in kinds(decide_block(beside)), "another node holds it"


@pytest.mark.parametrize("paid", [True, False])
def test_no_time_is_bought_for_a_job_that_nobody_pays_for(paid: bool):
    """Neither for one that runs nor for one that waits."""
    node = a_release("n1", expires_at=NOW + timedelta(minutes=20))
    queued = a_scene(
        node, block=a_block(ends_at=NOW + timedelta(minutes=20)), queue=(a_job("long", 8, 3),),
        following=quote(asks=(("2.00", 16),)), elsewhere=micro_of("2.00"),
    )  # fmt: skip
    for scene, job in ((ending(), ending().jobs[0].id), (queued, "long")):
        payers = {job: Payer(frozenset({"red"}), paid, "red")}
        funding = PoolFunding(payers, {} if paid else {job: "no room"}, frozenset())
        packing = scene.packing.model_copy(update={"funding": funding})
        renews = decide_block(scene.model_copy(update={"packing": packing}))
        assert ("renew" in kinds(renews)) is paid


def test_a_dear_renewal_loses_against_cheap_machines_elsewhere():
    dear = ending(asks=(("9.50", 16),), elsewhere=micro_of("1.00"))
    decision = decide_block(dear.model_copy(update={"jobs": (_saved(dear.jobs[0]),)}))
    assert decision.kind is BlockOptionKind.KEEP
    assert "gains" in next(each.lost for each in decision.options if each.kind == "renew")


def _saved(job: BlockJob) -> BlockJob:
    return job.model_copy(update={"lost": timedelta(0)})


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"policy": {"max_price": {"FAST": "$1.90"}}}, "over the cap"),
        ({"policy": {"caps": {"per_purchase": "$1.00"}}}, "over the cap of a purchase"),
        ({"following": None}, "nobody sells"),
        ({"place": "b"}, "no asks"),
    ],
)
def test_what_cannot_be_renewed_says_why(changes: dict[str, Any], lost: str):
    decision = decide_block(ending(**changes))
    assert decision.kind is BlockOptionKind.KEEP
    (renew,) = [each for each in decision.options if each.kind is BlockOptionKind.RENEW]
    assert lost in renew.lost


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"renew": False}},
        {"jobs": (a_job_there("n1", 0.1),)},
        {"block": a_block(ends_at=NOW + timedelta(minutes=20), renewed=True)},
        {"block": a_block()},
    ],
)
def test_a_renewal_is_no_option_before_its_time_or_without_need(changes: dict[str, Any]):
    assert "renew" not in kinds(decide_block(ending(**changes)))


def by_use(**changes: Any) -> BlockFacts:
    return a_block(
        by_use=True, resellable=False, renewable=False,
        **{"idle_since": NOW - timedelta(minutes=11), **changes},
    )  # fmt: skip


def test_a_machine_that_is_billed_as_it_runs_is_let_go_when_idle_but_for_the_warm_target():
    decision = decide_block(a_scene(a_release("n1"), block=by_use()))
    assert decision.kind is BlockOptionKind.LET_GO
    assert "nothing has run there" in decision.reason
    young = by_use(idle_since=NOW - timedelta(seconds=50))
    assert decide_block(a_scene(a_release("n1"), block=young)).kind is BlockOptionKind.KEEP
    warm = a_scene(a_release("n1"), block=by_use(), policy={"fast_warm_gpus": 8})
    decision = decide_block(warm)
    assert decision.kind is BlockOptionKind.KEEP
    said = "leave it as it is; not “terminate it: nothing has run there for 11m”: the pool's warm"
    assert decision.reason.startswith(said)


def a_closed(name: str = "n1", minutes: float = 11) -> BlockMachine:
    since = NOW - timedelta(minutes=minutes)
    return BlockMachine(name=name, takes_work=False, closed_since=since)


@pytest.mark.parametrize("warm", [0, 8])
def test_an_empty_machine_that_is_cordoned_ends_also_in_a_pool_that_keeps_some_warm(warm: int):
    closed = a_release("n1", state=NodeState.DRAINING)
    scene = a_scene(
        closed, block=by_use(), machines=(a_closed(),), policy={"fast_warm_gpus": warm}
    )
    assert decide_block(scene).kind is BlockOptionKind.LET_GO
    waits = scene.model_copy(update={"queue": (a_job("next", 8),)})
    assert decide_block(waits).kind is BlockOptionKind.LET_GO
    job = scene.model_copy(update={"jobs": (a_job_there("n1"),)})
    assert "a job runs there" in decide_block(job).reason


@pytest.mark.parametrize(
    ("closed", "idle", "idle_after", "kept"),
    [
        (9, 600, "1m", 1),  # idle for hours: it counts from the cordon
        (600, 9, "1m", 1),  # drained for hours, with a job that has just ended
        (11, 30, "20m", 9),
        (10, 10, "1m", 0),
    ],
)
def test_a_machine_that_is_cordoned_is_kept_for_a_while(
    closed: float, idle: float, idle_after: str, kept: float
):
    scene = a_scene(
        a_release("n1", state=NodeState.DRAINING), machines=(a_closed(minutes=closed),),
        block=by_use(idle_since=NOW - timedelta(minutes=idle)), policy={"idle_after": idle_after},
    )  # fmt: skip
    decision = decide_block(scene)
    if not kept:
        assert decision.kind is BlockOptionKind.LET_GO
        return
    at = NOW + timedelta(minutes=kept)
    said = f"its node is cordoned or drained: it ends at {at:%H:%M} UTC unless it is uncordoned"
    assert decision.kind is BlockOptionKind.KEEP
    assert decision.reason.endswith(said)


def test_a_machine_that_takes_no_work_but_may_by_itself_again_is_kept():
    """Its disk is full."""
    away = BlockMachine(name="n1", takes_work=False)
    scene = a_scene(a_release("n1", state=NodeState.DRAINING), block=by_use(), machines=(away,))
    assert "may by itself again" in decide_block(scene).reason
    both = scene.model_copy(update={"machines": (away, a_closed("n2"))})
    assert "may by itself again" in decide_block(both).reason


def a_left(name: str = "n1", minutes: float = 11) -> BlockMachine:
    return a_closed(name, minutes).model_copy(update={"gone": True})


@pytest.mark.parametrize("warm", [0, 8])
def test_a_machine_whose_agent_has_left_is_kept_for_a_while(warm: int):
    """Its agent may start anew. A node that has gone is none of the pool any more."""
    policy = {"fast_warm_gpus": warm, "idle_after": "1m"}
    scene = a_scene(block=by_use(), machines=(a_left(minutes=9),), policy=policy)
    decision = decide_block(scene)
    assert decision.kind is BlockOptionKind.KEEP
    at = NOW + timedelta(minutes=1)
    said = f"its agent has left: it ends at {at:%H:%M} UTC unless it comes back"
    assert decision.reason.endswith(said)
    later = scene.model_copy(update={"machines": (a_left(minutes=10),)})
    assert decide_block(later).kind is BlockOptionKind.LET_GO


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (a_left("n2", 1), "their agents have left: it ends at"),
        (a_closed("n2", 1), "cordoned or drained, or their agents have left: it ends at"),
        (BlockMachine(name="n2"), "the agent of a node of it has left, and may come back until"),
        (BlockMachine(name="n2", takes_work=False), "may by itself again"),
    ],
)
def test_a_cluster_that_one_agent_has_left_is_kept_for_what_its_other_node_does(
    other: BlockMachine, said: str
):
    there = a_release("n2", state=NodeState.READY if other.takes_work else NodeState.DRAINING)
    scene = a_scene(there, block=by_use(), machines=(a_left(minutes=5), other))
    assert said in decide_block(scene).reason
    if not other.takes_work:
        return
    later = scene.model_copy(update={"machines": (a_left(), other)})
    assert decide_block(later).kind is BlockOptionKind.LET_GO
    wanted = later.model_copy(update={"queue": (a_job("next", 8),)})
    assert "a job is to start there" in decide_block(wanted).reason
    warm = a_scene(there, block=by_use(), machines=(a_left(), other), policy={"fast_warm_gpus": 8})
    assert "the pool's warm target wants it" in decide_block(warm).reason


def test_a_cluster_of_which_one_machine_is_not_up_yet_is_kept():
    closed = a_release("n1", state=NodeState.DRAINING)
    scene = a_scene(closed, block=by_use(expects=2), machines=(a_closed(),))
    assert "not all of its machines are up" in decide_block(scene).reason


def test_an_idle_cluster_of_which_one_machine_was_just_cordoned_is_kept_for_a_while():
    pool = (a_release("n1", state=NodeState.DRAINING), a_release("n2"))
    machines = (a_closed(minutes=1), BlockMachine(name="n2"))
    scene = a_scene(*pool, block=by_use(), machines=machines)
    assert "may be uncordoned until" in decide_block(scene).reason
    later = scene.model_copy(update={"machines": (a_closed(), machines[1])})
    assert decide_block(later).kind is BlockOptionKind.LET_GO


def test_a_cluster_of_which_one_machine_takes_no_work_is_kept_while_a_job_is_to_start_there():
    pool = (a_release("n1", state=NodeState.DRAINING), a_release("n2"))
    machines = (BlockMachine(name="n1", takes_work=False), BlockMachine(name="n2"))
    scene = a_scene(*pool, block=by_use(), machines=machines, queue=(a_job("next", 8),))
    assert "a job is to start there" in decide_block(scene).reason
    idle = scene.model_copy(update={"queue": ()})
    assert decide_block(idle).kind is BlockOptionKind.LET_GO


def test_a_pool_that_buys_no_more_has_what_it_bought_end_and_sold():
    off = {"enabled": False, "fast_warm_gpus": 8}
    idle = a_scene(a_release("n1"), block=by_use(), policy=off)
    assert decide_block(idle).kind is BlockOptionKind.LET_GO
    assert decide_block(a_scene(policy=off)).kind is BlockOptionKind.SELL


@pytest.mark.parametrize(("gpu_type", "kind"), [("h100", "keep"), ("RTX4090", "let-go")])
def test_the_warm_target_keeps_machines_of_its_type_alone(gpu_type: str, kind: str):
    policy = {"fast_warm_gpus": 8, "fast_warm_type": gpu_type}
    assert decide_block(a_scene(a_release("n1"), block=by_use(), policy=policy)).kind == kind


def test_a_machine_that_the_warm_target_wants_goes_on_in_place_of_another():
    policy = {"fast_warm_gpus": 8, "fast_warm_type": "H100"}
    ends_at = NOW + timedelta(minutes=25)
    scene = a_scene(a_release("n1"), block=by_use(ends_at=ends_at), policy=policy)
    decision = decide_block(scene)
    assert (decision.kind, decision.until) == (BlockOptionKind.GO_ON, ends_at + HOUR)
    assert "the warm target wants it" in decision.reason
    early = by_use(ends_at=NOW + timedelta(hours=3))
    assert decide_block(a_scene(a_release("n1"), block=early, policy=policy)).kind == "keep"


def test_a_machine_whose_agent_fell_silent_is_let_go_unless_a_job_holds_it():
    lost = (BlockMachine(name="n1", takes_work=False, lost=True),)
    gone = a_release("n1", state=NodeState.LOST)
    scene = a_scene(gone, block=by_use(), machines=lost)
    assert decide_block(scene).kind is BlockOptionKind.LET_GO
    held = scene.model_copy(update={"jobs": (a_job_there("n1"),)})
    assert decide_block(held).kind is not BlockOptionKind.LET_GO


@pytest.mark.parametrize("waits", [False, True])
def test_a_machine_on_its_way_is_called_off_unless_a_job_would_start_there(waits: bool):
    coming = CapacityUnderWay(
        id="p-1", instance_type="8xH100", nodes=1, expected_at=NOW, until=NOW + timedelta(hours=9)
    )
    block = by_use(idle_since=None, coming="p-1")
    queue = (a_job("other", 8),) if waits else ()
    busy = a_release("n1", busy_hours=9)
    scene = a_scene(busy, block=block, machines=(), under_way=(coming,), queue=queue)
    decision = decide_block(scene)
    assert decision.kind is (BlockOptionKind.KEEP if waits else BlockOptionKind.LET_GO)
    assert ("a job is to start there" if waits else "wants it any more") in decision.reason


# --- for every block ----------------------------------------------------------------------


def prices() -> st.SearchStrategy[str]:
    return st.integers(1, 400).map(lambda cents: f"{cents / 100:.2f}")


def levels() -> st.SearchStrategy[tuple[tuple[str, int], ...]]:
    return st.lists(st.tuples(prices(), st.sampled_from((4, 8, 12, 16, 24))), max_size=5).map(
        tuple
    )


@st.composite
def scenes(draw: st.DrawFn) -> BlockScene:
    count = draw(st.integers(1, 4))
    releases: list[Release] = []
    jobs: list[BlockJob] = []
    for number in range(1, count + 1):
        busy = draw(st.none() | st.floats(0.1, 12))
        state = draw(st.sampled_from((NodeState.READY, NodeState.READY, NodeState.DRAINING)))
        releases.append(a_release(f"n{number}", busy_hours=busy, state=state))
        if busy is not None:
            lost = draw(st.integers(0, 300)) * timedelta(minutes=1)
            jobs.append(a_job_there(f"n{number}", busy, lost=lost))
    queue: list[UnmetJob] = [
        a_job(f"q{number}", gpus)
        for number, gpus in enumerate(draw(st.lists(st.sampled_from((1, 4, 8)), max_size=3)))
    ]
    ends_at = NOW + draw(st.integers(1, 20 * 60)) * timedelta(minutes=1)
    machines = tuple(
        BlockMachine(name=r.node.id, takes_work=draw(st.booleans())) for r in releases
    )
    return a_scene(
        *releases, block=a_block(ends_at=ends_at), jobs=tuple(jobs), queue=tuple(queue),
        machines=machines, rest=quote(bids=draw(levels())), following=quote(asks=draw(levels())),
        demand=draw(st.floats(0, 40)), elsewhere=draw(st.none() | prices().map(micro_of)),
        policy={
            "max_price": {"FAST": draw(prices().map(lambda p: f"${p}"))},
            "fast_warm_gpus": draw(st.sampled_from((0, 0, 8))),
        },
    )  # fmt: skip


@given(scenes())
def test_no_sold_node_is_used_or_promised(scene: BlockScene):
    decision = decide_block(scene)
    held = {job.node_id for job in scene.jobs}
    ready = {r.node.id for r in scene.pool if r.node.state is NodeState.READY}
    mine = {machine.name for machine in scene.machines if machine.takes_work}
    sold = [sale.machine for sale in decision.sales]
    assert len(set(sold)) == len(sold)
    assert set(sold) <= (ready & mine) - held
    # What is left holds what the queue was going to have before the block's end: nobody that
    # would have started now waits.
    wanted = sum(job.request.gpus for job in scene.queue)
    free = 8 * len(ready - held)
    if wanted <= free:
        assert wanted <= 8 * len(ready - held - set(sold))


@given(scenes())
def test_proceeds_are_what_walking_the_bids_brings_and_more_than_the_time_is_worth(
    scene: BlockScene,
):
    decision = decide_block(scene)
    if not decision.sales:
        return
    assert scene.rest is not None
    assert isinstance(scene.rest.answer, OrderBook)
    nodes = sorted(
        (bid.price for bid in scene.rest.answer.bids for _ in range(bid.gpus // 8)), reverse=True
    )
    window = resale_window(scene.block.ends_at, scene.now)
    assert window is not None
    for sale, price in zip(decision.sales, nodes, strict=False):
        assert (sale.limit, sale.window) == (price, window)
        assert sale.proceeds <= price * 8 * window.hours
        assert sale.proceeds > sale.fee
    assert window.end <= scene.block.ends_at
    assert window.start >= scene.now


@given(scenes())
def test_a_renewal_is_within_the_cap_and_pays(scene: BlockScene):
    renewal = decide_block(scene).renewal
    if renewal is None:
        return
    cap = scene.policy.max_price[Tier.FAST]
    assert cap is not None
    assert renewal.limit <= renewal.cap <= cap
    assert renewal.cost <= cap * renewal.nodes * 8 * renewal.window.hours + 1
    assert renewal.window.start == scene.block.ends_at
    assert renewal.window.length <= scene.policy.longest_window


@given(scenes())
def test_the_decision_is_the_best_of_its_options_and_always_the_same(scene: BlockScene):
    decision = decide_block(scene)
    assert decision == decide_block(BlockScene.model_validate_json(scene.model_dump_json()))
    (chosen,) = [option for option in decision.options if option.chosen]
    assert chosen.kind is decision.kind
    assert chosen.gain >= 0
    assert all(option.lost for option in decision.options if not option.chosen)
    assert chosen.gain == sum(chosen.terms.values())


def test_a_renewal_says_for_which_jobs_it_is():
    jobs = (
        a_job_there("n1", 2, id="a", gpus=6), a_job_there("n1", 1, id="b", gpus=2),
        a_job_there("n1", 0.1, id="ends", gpus=2),
    )  # fmt: skip
    renewal = decide_block(ending(jobs=jobs)).renewal
    assert renewal is not None
    assert renewal.uses == {"a": 6 * 100 * 60, "b": 2 * 40 * 60}
