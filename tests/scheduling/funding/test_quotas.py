"""Hard quotas in a plan: whom they keep from starting, where, and who comes past them."""

import copy
from collections.abc import Sequence

import pytest

from longshore.activities.cycle_inputs import Planning
from longshore.models.constraints import OnNodes
from longshore.models.elastic import Malleable
from longshore.models.funding import FundingTerms, PoolFunding, Quotas, WhenUnfunded
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.scheduling import cycle
from longshore.scheduling.buying.unverifiable_constraints import why_unverifiable
from longshore.scheduling.funding.facts import Charge, Facts, Kind, OverQuota, Share, Use, Wall
from longshore.scheduling.funding.pool import Asks, pool_funding, settled
from longshore.scheduling.funding.quotas import QuotaRoom, in_its_way, lifted, raises, refused
from longshore.scheduling.funding.sizes import MayGrow
from longshore.scheduling.funding.where_paid import as_bought, where_paid
from longshore.scheduling.guarantee import may_come_first
from longshore.scheduling.placement.feasibility import when_empty
from longshore.scheduling.placement.filters import labels_named
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.preemption.plan import plan_preemption
from longshore.scheduling.thresholds import not_bought_for
from tests.scheduling.funding.test_pool import BEFORE, WHERE, a_use, an_envelope, facts
from tests.scheduling.test_unfunded import half
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import NOW, POLICY, a_job, a_node
from tests.support.preemption import RULES, nodes_with

ON_N0 = {"milli": 1000, "jobs": 1, "nodes": frozenset({"n0"})}
SPLIT = Kind("H100", frozenset())
WAIT = Asks(FundingTerms(unfunded=WhenUnfunded.WAIT))


def of_red(quotas: Quotas, **held: object) -> Wall:
    return Wall("red", frozenset({"red"}), quotas)._replace(**held)


def paying(queue: list[JobRequest], *walls: Wall, given: Facts | None = None) -> PoolFunding:
    return pool_funding(given or Facts({}, {}), "pool", queue, {}, NOW, walls)


def planned(
    queue: list[JobRequest], nodes: list[Node], funding: PoolFunding, compiled: bool = False
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return where each job starts, and what it is told."""
    policy = POLICY.model_copy(update={"funding": funding})
    made = cycle.plan(where_paid(queue, funding), nodes, (), policy, NOW, compiled=compiled)
    return (
        {each.job_id: each.node_id for each in made.placements},
        {each.job_id: each.reason for each in made.decisions},
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_whose_quota_of_nodes_is_used_up_starts_on_its_own_alone(compiled: bool):
    queue = [a_job("first", 4, tenant="red", priority=9), a_job("behind", 8, tenant="free")]
    found = paying(queue, of_red(Quotas(max_nodes=1), **ON_N0))
    full = a_node("n0", busy=range(8))
    starts, says = planned(queue, [full, a_node("n1")], found, compiled)
    assert starts == {"behind": "n1"}
    assert "over-quota" in says["first"]
    starts, _ = planned(queue, [a_node("n0", busy=range(4)), a_node("n1")], found, compiled)
    assert starts == {"first": "n0", "behind": "n1"}
    assert not paying(queue, of_red(Quotas(max_nodes=2), **ON_N0)).own_nodes


def test_who_may_have_no_node_at_all_starts_on_none():
    queue = [a_job("first", 4, tenant="red"), a_job("behind", 4, tenant="blue")]
    found = paying(queue, of_red(Quotas(max_nodes=0)))
    starts, says = planned(queue, [a_node("n0")], found)
    assert starts == {"behind": "n0"}
    assert "over-quota" in says["first"]


def test_a_quota_of_nodes_makes_two_kinds_of_alike_nodes():
    found = paying([a_job("j", 4, tenant="red")], of_red(Quotas(max_nodes=1), **ON_N0))
    (asked,) = where_paid([a_job("j", 4, tenant="red")], found)
    kinds = {when_empty(a_node(f"n{n}"), labels_named((asked,))) for n in range(9)}
    assert len(kinds) == 2
    (key,) = labels_named((copy.deepcopy(asked),))
    assert isinstance(key, OnNodes)
    assert (key.nodes, key.why) == ({"n0"}, "quota of tenant red: max_nodes: 1 + 1 > 1 (QUOTA)")


@pytest.mark.parametrize("own", ["n0", "n2", "n5"])
def test_who_waited_long_comes_first_whichever_node_is_its_own(own: str):
    job = a_job("j", 4, tenant="red")
    found = paying([job], of_red(Quotas(max_nodes=1), nodes=frozenset({own})))
    (asked,) = where_paid([job], found)
    nodes = [a_node(f"n{n}") for n in range(6)]
    assert may_come_first(POLICY.model_copy(update={"funding": found}), nodes)(asked)


def test_whose_quota_of_nodes_is_used_up_grows_on_its_own_alone():
    job = a_job("m", 32, tenant="red", malleable=Malleable(min=8, max=32, step=8))
    wall = of_red(Quotas(max_nodes=1), **ON_N0)
    found = pool_funding(Facts({}, {}), "pool", (), {}, NOW, [wall], growing=[MayGrow(job, 8)])
    (asked,) = where_paid([job], found)
    (on,) = asked.constraints
    assert isinstance(on.key, OnNodes)
    assert on.key.nodes == {"n0"}
    assert on.why_on_nodes == "quota of tenant red: max_nodes: 1 + 1 > 1 (QUOTA)"


def test_nobody_is_stopped_for_whom_a_quota_refuses_the_node():
    job, wall = a_job("j", 4, tenant="red"), of_red(Quotas(max_nodes=1), **ON_N0)
    works = [half("idle", 0), half("other", 4)]
    uses = (a_use("idle", "blue", 4), a_use("other", "blue", 4))
    given = facts(an_envelope(1, "red", 4, sharing="none"), uses=uses)
    for nodes, stops in ((ON_N0["nodes"], []), (frozenset({"node-a"}), ["idle"])):
        found = paying([job], wall._replace(nodes=nodes), given=given)
        policy = POLICY.model_copy(update={"funding": found})
        (asked,) = where_paid([job], found, everyone=True)
        there = nodes_with(works, [a_node()])
        plan = plan_preemption(asked, there, works, RULES, policy, NOW, None)
        assert [victim.job_id for victim in plan.victims] == stops


def test_no_machine_is_bought_for_whom_a_quota_of_nodes_keeps_to_its_own():
    queue = [a_job("first", 8, tenant="red")]
    found = paying(queue, of_red(Quotas(max_nodes=1), **ON_N0))
    policy = POLICY.model_copy(update={"funding": found})
    says = {"first": "quota of tenant red: max_nodes: 1 + 1 > 1 (QUOTA)"}
    assert not_bought_for(queue, policy, NOW, (), ()) == says
    (asked,) = as_bought(queue, found)
    assert why_unverifiable(asked) == says["first"]


@pytest.mark.parametrize(
    ("quotas", "held", "says"),
    [
        (
            Quotas(sensitive_nodes=1),
            {"sensitive": frozenset({"n0"})},
            "sensitive_nodes: 1 + 1 > 1",
        ),
        (Quotas(max_nodes=1), {}, "max_nodes: 1 + 1 > 1"),
        (Quotas(max_gpus=4), {"milli": 1000}, "max_gpus: 1 + 8 > 4"),
    ],
)
def test_a_sensitive_job_counts_with_all_of_a_node(
    quotas: Quotas, held: dict[str, object], says: str
):
    queue = [a_job("first", 1, tenant="red", sensitive=True), a_job("behind", 8, tenant="free")]
    given = Facts({}, {}, kinds=frozenset({SPLIT}), sizes={SPLIT: (8,)})
    found = paying(queue, of_red(quotas, **{**ON_N0, **held}), given=given)
    assert found.over_quota == found.held == {"first"}
    starts, told = planned(queue, [a_node("n1", conformance="x")], found)
    assert starts == {"behind": "n1"}
    assert says in told["first"]


def test_a_sensitive_job_asks_its_budget_for_all_of_a_node():
    job, other = a_job("s", 1, tenant="red", sensitive=True), Kind("A100", frozenset())
    four = facts(an_envelope(1, "red", 4))
    of_eight = four._replace(kinds=frozenset({SPLIT}), sizes={SPLIT: (8,)})
    found = pool_funding(of_eight, "pool", [job], {"s": WAIT}, NOW)
    assert found.held == {"s"}
    assert "4 GPUs" in found.unfunded["s"]
    of_both = of_eight._replace(sizes={SPLIT: (4, 8)})
    found = pool_funding(of_both, "pool", [job], {"s": WAIT}, NOW)
    assert found.of("s").funded, "on a node of four"
    both = four._replace(kinds=frozenset({SPLIT, other}), sizes={SPLIT: (8,), other: (4,)})
    both = both._replace(envelopes={1: an_envelope(1, "red", 4, gpu_type="A100"),
                                    2: an_envelope(2, "red", 4, gpu_type="H100")})  # fmt: skip
    found = pool_funding(both, "pool", [job], {"s": WAIT}, NOW)
    assert found.of("s").funded
    assert [each.gpus for each in found.foreseen["s"]] == [4]
    assert found.only_on["s"].gpu_types == ("A100",)
    where = WHERE._replace(gpu_type="A100")
    begins = Use("s", 1, "red", NOW, (Share(0, where, (0, 1, 2, 3), 1000),))
    assert not settled(both, (begins,), NOW, foreseen=found.foreseen).splits["s", 1].unfunded


def test_what_a_plan_takes_of_a_quota_is_counted_on_the_nodes_that_it_has():
    """A gang on two nodes, of which the quota leaves one: it waits, and who is behind starts."""
    nodes = [in_domain("d", name) for name in ("n1", "n2")]
    gang = a_gang(16, tenant="red", priority=9)
    queue = [gang, a_job("behind", 8, tenant="free")]
    wall = of_red(Quotas(max_nodes=2), **ON_N0)
    kept = NodeCache()
    kept.update([node.id for node in nodes], nodes, ())
    policy = POLICY.model_copy(update={"funding": paying(queue, wall)})
    without, made = (
        Planning(kept, policy, NOW, (), None, None, walls=walls)(queue) for walls in ((), (wall,))
    )
    assert [each.job_id for each in without.placements] == ["gang"]
    over = refused([wall], without.placements, {job.id: job for job in queue},
                   {node.id: node for node in nodes})  # fmt: skip
    assert over["gang"].why.startswith("quota of tenant red: max_nodes: 1 + 2 > 2: ")
    assert [each.job_id for each in made.placements] == ["behind"]
    assert {each.job_id: each.reason for each in made.decisions}["gang"] == over["gang"].why


@pytest.mark.parametrize("sizes", [(16,) * 8, tuple(range(16, 8, -1))])
def test_many_that_a_quota_refuses_keep_nobody_behind_them_from_starting(sizes: tuple[int, ...]):
    nodes = [in_domain("d", name) for name in ("n1", "n2")]
    gangs = [
        a_gang(size, tenant="red", priority=9).model_copy(update={"id": f"g{place}"})
        for place, size in enumerate(sizes)
    ]
    queue = [*gangs, a_job("behind", 8, tenant="free")]
    wall = of_red(Quotas(max_nodes=2), **ON_N0)
    kept = NodeCache()
    kept.update([node.id for node in nodes], nodes, ())
    policy = POLICY.model_copy(update={"funding": paying(queue, wall)})
    made = Planning(kept, policy, NOW, (), None, None, walls=(wall,))(queue)
    assert [each.job_id for each in made.placements] == ["behind"]
    told = {each.job_id: each.reason for each in made.decisions}
    assert all(told[job.id].startswith("quota of tenant red: max_nodes: ") for job in gangs)


def test_a_plan_that_is_used_has_nothing_that_a_quota_refuses():
    """Of jobs that could be on one node each, the quota has room for one."""
    nodes = [a_node("n1"), a_node("n2")]
    queue = [a_job("first", 8, tenant="red"), a_job("second", 7, tenant="red")]
    wall = of_red(Quotas(max_nodes=2), **ON_N0)
    kept = NodeCache()
    kept.update([node.id for node in nodes], nodes, ())
    made = Planning(kept, POLICY, NOW, (), None, None, walls=(wall,))(queue)
    assert [each.job_id for each in made.placements] == ["first"]
    assert "max_nodes: 2 + 1 > 2" in made.decisions[1].reason


@pytest.mark.parametrize("asks", [WAIT, Asks()])
def test_who_does_not_start_takes_no_quota_of_who_would(asks: Asks):
    queue = [a_job("w", 8, tenant="red", priority=9), a_job("x", 4, tenant="red")]
    wall = of_red(Quotas(max_gpus=8))
    found = pool_funding(facts(an_envelope(1, "red", 4)), "pool", queue, {"w": asks}, NOW, [wall])
    assert found.held == {"w"}
    assert found.over_quota == (frozenset() if asks is WAIT else {"w"})
    assert found.of("x").funded
    if asks is not WAIT:
        assert "max_gpus: 4 + 8 > 8, with 4 for jobs before it: " in found.unfunded["w"]
        ((over,),) = in_the_way(queue, [wall], facts(an_envelope(1, "red", 4)))
        assert (over.used, over.asked) == (4, 8)


def in_the_way(
    queue: Sequence[JobRequest], walls: Sequence[Wall], given: Facts, asks: Asks | None = None
) -> list[list[OverQuota]]:
    """What is in the way of each job of a queue that waits for a quota."""
    all_ask = {job.id: asks or Asks() for job in queue}
    found = pool_funding(given, "pool", queue, all_ask, NOW, walls)
    told: list[list[OverQuota]] = []
    for job in queue:
        if job.id in found.over_quota:
            none = lifted(walls, job.tenant)
            free = pool_funding(given, "pool", queue, all_ask, NOW, none)
            told.append([over for _, over in in_its_way(QuotaRoom(walls), free, queue, job)])
    return told


def test_those_ahead_that_wait_for_the_same_quota_have_their_parts_of_a_higher_one():
    queue = [a_job(name, 2, tenant="red") for name in ("one", "two", "three")]
    wall = of_red(Quotas(max_gpus=6, max_jobs=3), milli=5000, jobs=2)
    one, two, three = in_the_way(queue, [wall], facts(an_envelope(1, "red", 16)))
    assert one == [OverQuota("max_gpus", 5, 2, 6)]
    assert two == [OverQuota("max_gpus", 7, 2, 6), OverQuota("max_jobs", 3, 1, 3)]
    assert three == [OverQuota("max_gpus", 9, 2, 6), OverQuota("max_jobs", 4, 1, 3)]
    higher = of_red(Quotas(max_gpus=9, max_jobs=4), milli=5000, jobs=2)
    assert len(in_the_way(queue, [higher], facts(an_envelope(1, "red", 16)))) == 1


def test_who_ahead_would_not_start_with_more_of_a_quota_has_no_part_of_it():
    """Nobody pays for `one`, which starts only where somebody does."""
    queue = [a_job("one", 9, tenant="red"), a_job("two", 2, tenant="red")]
    wall = of_red(Quotas(max_gpus=1))
    *_, two = in_the_way(queue, [wall], facts(an_envelope(1, "red", 4)), WAIT)
    assert two == [OverQuota("max_gpus", 0, 2, 1)]


def test_who_takes_room_back_has_the_quota_too():
    """`guest` is paid for until `owner`, behind it, takes its own back."""
    queue = [a_job("guest", 4, tenant="blue"), a_job("owner", 4, tenant="red"),
             a_job("more", 4, tenant="free")]  # fmt: skip
    walls = [Wall("root", frozenset({"root", "red", "blue", "free"}), Quotas(max_gpus=8))]
    given = facts(an_envelope(1, "red", 4))
    found = pool_funding(given, "pool", queue, {}, NOW, walls)
    assert found.over_quota == {"guest"}, "nobody pays for it"
    assert found.of("owner").funded


@pytest.mark.parametrize("quotas", [Quotas(max_jobs=1), Quotas(max_gpus=4)])
def test_what_a_job_gives_back_of_a_quota_is_there_for_who_was_refused(quotas: Quotas):
    """c takes back from a what pays for it, so that a does not start, and b and d may."""
    queue = [a_job("a", 4, tenant="blue"), a_job("b", 1, tenant="blue"),
             a_job("d", 4, tenant="grey"), a_job("c", 4, tenant="red")]  # fmt: skip
    given = facts(an_envelope(1, "red", 4), an_envelope(2, "blue", 1, sharing="none"))
    walls = [
        Wall("blue", frozenset({"blue"}), quotas),
        Wall("root", frozenset({"root", "blue", "grey"}), Quotas(max_gpus=5)),
    ]
    found = pool_funding(given, "pool", queue, dict.fromkeys("abc", WAIT), NOW, walls)
    assert found.held == {"a"}
    assert found.over_quota == set()
    assert found.of("b").funded


def test_for_whom_others_gave_way_has_the_quota_first():
    queue = [a_job("a", 4, tenant="red"), a_job("b", 4, tenant="red")]
    wall = of_red(Quotas(max_gpus=4))
    given = facts(an_envelope(1, "red", 8))
    found = pool_funding(given, "pool", queue, {}, NOW, [wall], freed=frozenset({"b"}))
    assert found.over_quota == {"a"}
    assert found.turn("b") < found.turn("a")


def test_others_shapes_are_in_nobodys_way_who_takes_over_its_own():
    low = a_use("low", "red", 8)._replace(since=BEFORE)
    paid = Charge("low", 1, 0, 1, tuple(range(8)), 1000, False, BEFORE, 1)
    given = facts(an_envelope(1, "red", 8, sharing="none"), uses=(low,))
    queue = [a_job(f"b{n}", n + 1, tenant="blue") for n in range(25)]
    queue.append(a_job("urgent", 8, tenant="red", priority=9))
    found = pool_funding(given._replace(charges=(paid,)), "pool", queue, {}, NOW)
    assert found.takes_over == {"urgent": {"low"}}


def test_of_those_paid_for_alike_each_is_taken_over():
    uses = tuple(a_use(name, "red", 2)._replace(since=BEFORE) for name in ("x", "y"))
    uses += (a_use("small", "red", 1)._replace(since=BEFORE),)
    paid = tuple(Charge(use.job_id, 1, 0, 1, use.shares[0].gpus, 1000, False, BEFORE, n)
                 for n, use in enumerate(uses, 1))  # fmt: skip
    given = facts(an_envelope(1, "red", 5, sharing="none"), uses=uses)._replace(charges=paid)
    found = pool_funding(given, "pool", [a_job("w", 2, tenant="red")], {}, NOW)
    assert found.takes_over == {"w": {"x", "y"}}


def test_the_command_that_raises_a_quota_has_all_digits():
    said = [raises("red", "max_gpus", to) for to in (1000.125, 1_234_567)]
    assert said == [
        f"`longshore tenant set red --max-gpus {to}`" for to in ("1000.125", "1234567")
    ]
