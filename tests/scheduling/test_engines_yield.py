"""Running engines leave for jobs: who of them, for whom, and what that costs."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.funding import ITSELF, Payer, PoolFunding
from longshore.models.job_request import FILLS, EngineKey, JobRequest
from longshore.models.packing import PackingPolicy, QueueOrder
from longshore.models.preemption import PreemptionPlan, RunningEngine, RunningWork
from longshore.scheduling import cycle
from longshore.scheduling.order import queue_order
from longshore.scheduling.preemption.costs import why_not
from longshore.scheduling.preemption.due import entries
from longshore.scheduling.preemption.plan import plan_preemption, plan_preemptions
from longshore.scheduling.preemption.what_if import WhatIfCluster
from longshore.scheduling.serving.running_engine import turn_at
from longshore.scheduling.thresholds import not_bought_for
from longshore.scheduling.words import format_part
from tests.support.packing import HOUR, NOW, a_job, a_node
from tests.support.preemption import RULES, a_work, nodes_with

MINUTE = timedelta(minutes=1)
IDLE: dict[str, Any] = {"ready_at": NOW - HOUR, "idle_since": NOW - MINUTE}
IN_USE: dict[str, Any] = {"ready_at": NOW - HOUR, "idle_since": None}
JUST_IDLE: dict[str, Any] = {"ready_at": NOW - HOUR, "idle_since": NOW - timedelta(seconds=4)}
LOADING: dict[str, Any] = {"ready_at": None}
PINNED: dict[str, Any] = IDLE | {"pinned": True}


def an_engine(name: str, gpu: int, fields: dict[str, Any], priority: int = 5) -> RunningWork:
    given: dict[str, Any] = {
        "model": "chat", "runtime": "llama.cpp", "load_time": timedelta(minutes=3), "uses": 4,
        **fields,
    }  # fmt: skip
    return a_work(
        name,
        {"n": [gpu]},
        priority=priority,
        milli=875,
        ran=2 * HOUR,
        engine=RunningEngine(**given),
    )


def asks_for(model: str, service: str = "new", **fields: Any) -> dict[str, Any]:
    """Return an engine that asks for nearly a whole GPU."""
    key = EngineKey(model=model, runtime="llama.cpp", service=service)
    return {"serves": True, "engine": key, "vram_per_gpu": 70.0, "milli": 875, **fields}


def planned(works: list[RunningWork], gpus: int = 1, **job: Any) -> PreemptionPlan:
    nodes = nodes_with(works, [a_node("n", gpus=max(len(works), gpus))])
    asking = a_job("asks", gpus, **({"priority": 5} | job))
    return plan_preemption(asking, nodes, works, RULES, PackingPolicy(), NOW)


@pytest.mark.parametrize("priority", [0, 5, 9])
def test_an_engine_that_nobody_uses_leaves_for_a_job_of_any_class(priority: int):
    plan = planned([an_engine("e", 0, IDLE, priority=9)], priority=priority)
    assert [victim.job_id for victim in plan.victims] == ["e"]


@pytest.mark.parametrize(("fields", "leaves"), [(IDLE, True), (IN_USE, False)])
def test_having_left_a_moment_ago_keeps_only_one_in_use(fields: dict[str, Any], leaves: bool):
    lately = {"preempted_at": tuple(NOW - n * MINUTE for n in (9, 6, 3))}
    plan = planned([an_engine("e", 0, fields).model_copy(update=lately)], priority=9)
    assert bool(plan.victims) == leaves
    if not leaves:
        [kept] = plan.rejected
        assert kept.reason == "was preempted 3m ago"


@pytest.mark.parametrize(("priority", "leaves"), [(4, False), (5, False), (6, True)])
def test_one_in_use_leaves_for_a_higher_class_alone(priority: int, leaves: bool):
    plan = planned([an_engine("e", 0, IN_USE)], priority=priority)
    assert bool(plan.victims) == leaves
    if not leaves:
        [kept] = plan.rejected
        assert kept.reason == f"is in use, of class 5, which is not below {priority}"


def test_of_one_that_is_idle_too_briefly_it_is_said():
    [kept] = planned([an_engine("e", 0, JUST_IDLE)]).rejected
    assert kept.reason == "is idle for 4s only, of class 5, which is not below 5"


BY_RANK = PackingPolicy(order=QueueOrder.ATTAINED_SERVICE)


@pytest.mark.parametrize("packing", [PackingPolicy(), BY_RANK])
@pytest.mark.parametrize(
    ("fields", "job", "why"),
    [
        (IN_USE, {}, "1 serving, and not of a lower class"),
        (LOADING, {"priority": 9}, "1 loading a model"),
        (LOADING, {}, "1 loading a model"),
        (PINNED, {}, "1 pinned"),
        (PINNED, {"priority": 9}, "1 pinned"),
        (PINNED, asks_for("chat"), "1 pinned"),
        (JUST_IDLE, {}, "1 idle too briefly, and not of a lower class"),
        (IDLE, asks_for("chat"), "1 serving the same model"),
        (IDLE, asks_for("other", "own"), "1 of the same service"),
    ],
)
def test_it_is_told_why_engines_stay(
    packing: PackingPolicy, fields: dict[str, Any], job: dict[str, Any], why: str
):
    """They yield to no rank: nothing else is said of them in a pool that goes by it."""
    work = an_engine("e", 0, fields)
    if job.get("engine") == asks_for("other", "own")["engine"]:
        key = EngineKey(model="chat", runtime="llama.cpp", service="own")
        work = work.model_copy(update={"request": work.request.model_copy(update={"engine": key})})
    nodes = nodes_with([work], [a_node("n", gpus=1)])
    plan = plan_preemption(a_job("asks", 1, **({"priority": 5} | job)), nodes, [work], RULES,
                           packing, NOW)  # fmt: skip
    assert plan.reason.startswith(f"nobody may be stopped for it: of 1 running job, {why}")


def test_one_of_the_highest_classes_in_use_has_nothing_to_save():
    plan = planned([an_engine("e", 0, IN_USE, priority=8)], priority=9)
    assert [victim.job_id for victim in plan.victims] == ["e"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (LOADING, "it loads, and yields to nobody until it is ready"),
        (IDLE | {"pinned": True}, "it is pinned"),
        (IN_USE | {"pinned": True}, "it is pinned"),
    ],
)
def test_one_that_loads_or_is_pinned_leaves_for_nobody(fields: dict[str, Any], why: str):
    for priority in (0, 10):
        plan = planned([an_engine("e", 0, fields, priority=0)], priority=priority)
        assert not plan.victims
        assert [kept.reason for kept in plan.rejected] == [why]
    payers = {"asks": Payer(frozenset({"a"})), "e": Payer(frozenset({"b"}), funded=False)}
    funding = PoolFunding(payers, {}, frozenset())
    work = an_engine("e", 0, fields)
    kept = why_not(work, a_job("asks", 1, priority=10), RULES, NOW, None, funding)
    assert kept is not None
    assert kept.reason == why


@pytest.mark.parametrize("priority", [0, 5, 9])
def test_an_engine_that_nobody_uses_leaves_for_that_of_another_model(priority: int):
    plan = planned([an_engine("e", 0, IDLE)], **asks_for("other", priority=priority))
    assert [victim.job_id for victim in plan.victims] == ["e"]
    if priority == 5:
        assert plan.reason.startswith("stop e, which yields since nobody asks it: it loses $0.40")


PAID, OTHER, NOBODY = (
    Payer(frozenset({"a"})), Payer(frozenset({"b"})), Payer(frozenset({"b"}), funded=False),
)  # fmt: skip


@pytest.mark.parametrize("serves", [{}, asks_for("other")])
@pytest.mark.parametrize(
    ("theirs", "mine"), [(PAID, OTHER), (ITSELF, OTHER), (PAID, ITSELF), (PAID, NOBODY)]
)
def test_one_that_nobody_uses_leaves_whoever_pays_for_it(
    theirs: Payer, mine: Payer, serves: dict[str, Any]
):
    """What somebody pays for is else stopped for no job that another pays for."""
    funding = PoolFunding({"e": theirs, "asks": mine}, {}, frozenset())
    policy = PackingPolicy(funding=funding)
    for fields, leaves in ((IDLE, True), (IN_USE, False)):
        work = an_engine("e", 0, fields)
        job = a_job("asks", 1, **({"priority": 9} | serves))
        plan = plan_preemption(
            job, nodes_with([work], [a_node("n", gpus=1)]), [work], RULES, policy, NOW
        )
        assert [victim.job_id for victim in plan.victims] == ["e"] * leaves
        assert (why_not(work, job, RULES, NOW, None, funding) is None) == leaves
        assert bool(entries([work], job, funding, RULES, NOW)) != leaves


def test_one_of_the_same_model_that_another_pays_for_stays():
    funding = PoolFunding({"e": PAID, "asks": OTHER}, {}, frozenset())
    job = a_job("asks", 1, **asks_for("chat", priority=9))
    kept = why_not(an_engine("e", 0, IDLE), job, RULES, NOW, None, funding)
    assert kept is not None
    assert kept.reason == "is paid for by a"


def test_it_does_not_for_one_of_its_own_model():
    plan = planned([an_engine("e", 0, IDLE)], **asks_for("chat"))
    assert not plan.victims
    [kept] = plan.rejected
    assert kept.reason == "serves the same model, of class 5, which is not below 5"


@pytest.mark.parametrize("fields", [IDLE, IN_USE])
def test_a_replica_leaves_for_none_of_its_own_service(fields: dict[str, Any]):
    """Its service says when it is stopped: when the new one is ready."""
    work = an_engine("e", 0, fields)
    key = EngineKey(model="chat", runtime="llama.cpp", service="own")
    work = work.model_copy(update={"request": work.request.model_copy(update={"engine": key})})
    plan = planned([work], **asks_for("other", "own", priority=9))
    assert not plan.victims
    assert [kept.reason for kept in plan.rejected] == ["is of the same service"]
    [wait] = plan.ways
    assert (wait.title, wait.start) == ("wait, nobody knows for how long", None)
    [wait, *_] = planned([work], **asks_for("other", "another")).ways[::-1]
    assert wait.start == NOW + 4 * HOUR, "of another service its end is counted on"


@pytest.mark.parametrize(
    ("fields", "priority", "model", "leaves"),
    [
        (IN_USE, 5, "other", True), (IN_USE, 4, "other", False), (IN_USE, 5, "chat", False),
        (LOADING, 5, "other", False), (IN_USE | {"pinned": True}, 5, "other", False),
    ],
)  # fmt: skip
def test_at_its_turn_an_engine_has_one_of_its_own_class_drained(
    fields: dict[str, Any], priority: int, model: str, leaves: bool
):
    works = [an_engine("e", 0, fields)]
    plan = planned(works, **asks_for(model, priority=priority, turn=NOW))
    assert bool(plan.victims) == leaves
    assert not planned(works, **asks_for(model, priority=priority)).victims
    if leaves:
        assert "which yields since the other has waited for its turn" in plan.reason
        idle = planned([an_engine("e", 0, IDLE)], **asks_for(model, priority=priority, turn=NOW))
        assert "which yields since nobody asks it" in idle.reason


@pytest.mark.parametrize("adapters", [{}, {"formal": "/m/formal.gguf"}])
def test_an_engine_serves_a_model_with_its_lora_adapters(adapters: dict[str, str]):
    asks = EngineKey.of("chat", "llama.cpp", "new", "/m/chat.gguf", adapters)
    serves = EngineKey.of("chat", "llama.cpp", "own", "/m/chat.gguf")
    work = an_engine("e", 0, IDLE)
    work = work.model_copy(update={"request": work.request.model_copy(update={"engine": serves})})
    asking: dict[str, Any] = asks_for("chat") | {"engine": asks}
    leaves = planned([work], **asking).victims
    has_turn = turn_at(asks, NOW, timedelta(0), [work], RULES) is not None
    assert (bool(leaves), has_turn) == (bool(adapters), bool(adapters))
    update = asks.model_copy(update={"service": "own"})
    assert turn_at(update, NOW, timedelta(0), [work], RULES) is None, "its old engine answers"


def test_a_turn_comes_after_the_wait_and_four_loads_where_nobody_serves_the_model():
    key = EngineKey(model="other", runtime="llama.cpp")

    def has(waited: int, load: int, *works: RunningWork) -> bool:
        since, takes = NOW - timedelta(seconds=waited), timedelta(seconds=load)
        at = turn_at(key, since, takes, works, RULES)
        return at is not None and at <= NOW

    assert (has(59, 1), has(60, 1), has(79, 20), has(80, 20)) == (False, True, False, True)
    assert has(100, 1, an_engine("e", 0, IN_USE))
    assert not has(100, 1, an_engine("e", 0, IN_USE | {"model": "other"}))


def test_in_one_round_a_job_has_what_an_engine_before_it_may_not():
    works = [an_engine("e", 0, IDLE)]
    nodes = nodes_with(works, [a_node("n", gpus=1)])
    queue = [
        a_job("other-engine", 1, **asks_for("chat", priority=5)),
        a_job("a-job", 1, priority=5),
    ]
    plans = plan_preemptions(queue, nodes, works, RULES, PackingPolicy(), NOW)
    assert {plan.job_id: len(plan.victims) for plan in plans if plan.victims} == {"a-job": 1}


def test_one_that_left_as_nobody_asked_it_has_nobody_stopped_and_nothing_bought():
    works = [
        a_work("low", {"n": [0]}, priority=0, ran=MINUTE), an_engine("e", 1, IN_USE, priority=0),
    ]  # fmt: skip
    nodes = nodes_with(works, [a_node("n", gpus=2)])
    asked: dict[str, Any] = {"priority": 9, "serves": True, "vram_per_gpu": 70.0, "milli": 875}
    back, fresh = a_job("back", 1, fills=True, **asked), a_job("fresh", 1, **asked)
    policy = PackingPolicy()
    plan = plan_preemption(back, nodes, works, RULES, policy, NOW)
    assert (plan.victims, plan.reason) == ((), FILLS)
    for work in works:
        kept = why_not(work, back, RULES, NOW)
        assert kept is not None
        assert kept.reason == FILLS
    plans = plan_preemptions([back, fresh], nodes, works, RULES, policy, NOW)
    assert {each.job_id for each in plans if each.victims} == {"fresh"}
    assert plan_preemptions([back], nodes, works, RULES, policy, NOW, stops_only=True) == ()
    assert not_bought_for([back, fresh], policy, NOW, nodes, ()) == {"back": FILLS}


def test_the_cost_is_a_reload_for_each_time_that_it_is_expected_to_be_asked():
    """3 minutes of a GPU of $2.00 an hour are $0.10; 4 times an hour it was asked."""
    [victim] = planned([an_engine("e", 0, IDLE)]).victims
    assert (victim.recompute, victim.write) == (400_000, 0)
    assert victim.reason == (
        "chat (e), idle for 1m: $0.40, a reload of $0.10 x 4.00 times that it is asked in an "
        "hour; comes back where there is room"
    )


def test_the_one_that_is_asked_least_leaves():
    works = [
        an_engine("often", 0, IDLE | {"uses": 40}),
        an_engine("seldom", 1, IDLE | {"uses": 1}),
        an_engine("works", 2, IN_USE | {"uses": 0}, priority=0),
    ]
    plan = planned(works, priority=5)
    assert [victim.job_id for victim in plan.victims] == ["works"]
    assert [victim.job_id for victim in planned(works[:2]).victims] == ["seldom"]


_STATES = st.sampled_from([IDLE, IN_USE, LOADING, IDLE | {"pinned": True}])
_ENGINES = st.lists(
    st.tuples(_STATES, st.integers(0, 9), st.integers(0, 50)), min_size=1, max_size=6
)


@given(
    _ENGINES, st.integers(0, 10), st.integers(1, 6), st.sampled_from([None, "chat", "other"]),
    st.booleans(),
)  # fmt: skip
def test_who_leaves_may_leave(
    drawn: list[tuple[dict[str, Any], int, int]], priority: int, gpus: int, serves: str | None,
    turn: bool,
):  # fmt: skip
    works = [
        an_engine(f"e{at}", at, state | {"uses": uses}, priority=own)
        for at, (state, own, uses) in enumerate(drawn)
    ]
    engine = EngineKey(model=serves, runtime="llama.cpp") if serves else None
    asks: dict[str, Any] = {
        "priority": priority,
        "engine": engine,
        "turn": NOW if turn and serves else None,
    }
    plan = planned(works, min(gpus, len(works)), **asks)
    by_id = {work.id: work for work in works}
    for victim in plan.victims:
        work = by_id[victim.job_id]
        assert work.engine is not None
        assert work.engine.ready_at is not None
        assert not work.engine.pinned
        if work.engine.idle_since is None or serves == "chat":
            equal = asks["turn"] and serves == "other"
            assert work.request.priority < priority + equal
    again = planned(works[::-1], min(gpus, len(works)), **asks)
    assert plan.victims == again.victims


def test_where_an_engine_is_placed_is_told_by_its_memory():
    """Its thousandths follow from that."""
    engine = a_job("e", 1, milli=625, vram_per_gpu=50.0, loads_within=MINUTE)
    assert format_part(engine, (3,)) == "50GB of GPU 3"
    assert format_part(engine, (2, 3)) == "50GB of each of GPUs 2-3"
    assert format_part(a_job("s", 1, milli=500), (3,)) == "500/1000 of GPU 3"


def test_one_that_only_fills_what_is_free_waits_behind_jobs_of_any_class():
    """Else it would have the room that an engine leaves for such a job, and leave that again."""
    work = an_engine("e", 0, IDLE)
    nodes = nodes_with([work], [a_node("n", gpus=1)])
    back = a_job("back", 1, **asks_for("back", fills=True, priority=9))
    job = a_job("a-job", 1, priority=0, expected_duration=9 * HOUR)
    plans = plan_preemptions([back, job], nodes, [work], RULES, PackingPolicy(), NOW)
    assert {plan.job_id for plan in plans if plan.victims} == {"a-job"}
    made = cycle.plan([back, job], [a_node("n", gpus=1)], [], PackingPolicy(), NOW)
    assert [placed.job_id for placed in made.placements] == ["a-job"]


def test_one_that_is_prewarmed_and_was_not_asked_is_idle_from_the_start():
    fields = {"ready_at": NOW, "idle_since": None, "uses": 0}
    assert not planned([an_engine("e", 0, fields)]).victims
    plan = planned([an_engine("e", 0, fields | {"prewarmed": True}, priority=9)], priority=0)
    assert "prewarmed and unused" in plan.victims[0].reason


@pytest.mark.parametrize("order", list(QueueOrder))
def test_one_that_had_its_turn_goes_before_the_one_that_was_stopped_for_it(order: QueueOrder):
    old = a_job("old", 1, submitted_at=NOW - HOUR, waits_since=NOW - HOUR)
    new = a_job("new", 1, submitted_at=NOW - MINUTE, waits_since=NOW - MINUTE)
    high = a_job("high", 1, priority=6)
    policy = PackingPolicy(order=order)
    ordered = queue_order([new, old, high], policy, NOW)
    assert [job.id for job in ordered] == ["high", "old", "new"]
    ordered = queue_order([new, old, high], policy.model_copy(update={"turns": ("new",)}), NOW)
    assert [job.id for job in ordered] == ["high", "new", "old"]


@pytest.mark.parametrize("order", QueueOrder)
def test_jobs_that_wait_before_it_in_its_class_keep_no_engine_from_its_turn(order: QueueOrder):
    """They may not have the engine stopped themselves: what is kept for them is not freed."""
    works = [an_engine("e", 0, IN_USE), a_work("fills", {"n": [1]}, priority=5, ran=HOUR)]
    nodes = nodes_with(works, [a_node("n", gpus=2)])
    before = [
        a_job(f"waits-{n}", 1, priority=5, submitted_at=NOW - 2 * HOUR - n * MINUTE)
        for n in range(2)
    ]
    wants = asks_for("other", turn=NOW, expected_duration=9 * HOUR)
    asks = a_job("asks", 1, priority=5, submitted_at=NOW - HOUR, **wants)
    packing = PackingPolicy(order=order)
    plans = plan_preemptions([*before, asks], nodes, works, RULES, packing, NOW)
    stops = {plan.job_id: [one.job_id for one in plan.victims] for plan in plans if plan.preempts}
    assert stops == {"asks": ["e"]}


@pytest.mark.parametrize("order", QueueOrder)
def test_of_several_at_their_turn_the_one_is_first_that_has_waited_longest(order: QueueOrder):
    """Not the one that was submitted first: that one would have each turn."""
    works = [an_engine("e", 0, IN_USE)]
    nodes = nodes_with(works, [a_node("n", gpus=1)])
    queue = [
        a_job(model, 1, priority=5, submitted_at=NOW - old, waits_since=NOW - old,
              **asks_for(model, turn=NOW - waits, expected_duration=9 * HOUR))
        for model, old, waits in (("old", 9 * HOUR, 2 * MINUTE), ("new", HOUR, 5 * MINUTE))
    ]  # fmt: skip
    packing = PackingPolicy(order=order)
    plans = plan_preemptions(queue, nodes, works, RULES, packing, NOW)
    assert [plan.job_id for plan in plans if plan.preempts] == ["new"]
    had = queue_order(queue, packing.model_copy(update={"turns": ("new", "old")}), NOW)
    assert [job.id for job in had] == ["new", "old"]


def test_no_second_engine_is_stopped_for_a_model_that_has_its_turn():
    works = [an_engine("e", 0, IN_USE), an_engine("f", 1, IN_USE)]
    nodes = nodes_with(works, [a_node("n", gpus=2)])
    queue = [
        a_job(f"r{n}", 1, priority=5,
              **asks_for("other", turn=NOW - n * MINUTE, expected_duration=9 * HOUR))
        for n in (1, 2)
    ]  # fmt: skip
    plans = plan_preemptions(queue, nodes, works, RULES, PackingPolicy(), NOW)
    assert [plan.job_id for plan in plans if plan.preempts] == ["r2"]
    own = a_job("own", 1, priority=5, **asks_for("third", turn=NOW, expected_duration=9 * HOUR))
    both = [queue[0], own]
    plans = plan_preemptions(both, nodes, works, RULES, PackingPolicy(), NOW)
    assert [plan.job_id for plan in plans if plan.preempts] == ["r1", "own"]


def test_one_that_waits_beside_its_own_service_keeps_no_start_on_its_gpus():
    """An update that waits for room beside the old engine: that is idle, and does not leave for
    it. Whoever came behind found no room either, as that start was kept."""
    key = EngineKey(model="chat", runtime="llama.cpp", service="own")
    old = an_engine("old", 0, IDLE)
    old = old.model_copy(update={"request": old.request.model_copy(update={"engine": key})})
    pinned = an_engine("pinned", 1, IDLE | {"model": "pinned", "pinned": True})
    nodes = nodes_with([old, pinned], [a_node("n", gpus=2)])
    long: dict[str, Any] = {"expected_duration": 9 * HOUR}
    update = a_job("update", 1, submitted_at=NOW - HOUR, **asks_for("new", "own"), **long)
    others = [
        a_job("other", 1, submitted_at=NOW - MINUTE, **asks_for("other", "another"), **long),
        a_job("job", 1, submitted_at=NOW - MINUTE, **long),
    ]
    for waits in others:
        plans = plan_preemptions(
            [update, waits], nodes, [old, pinned], RULES, PackingPolicy(), NOW
        )
        stops = {plan.job_id: [each.job_id for each in plan.victims] for plan in plans}
        assert stops == {"update": [], waits.id: ["old"]}


def test_nobody_is_stopped_where_a_start_is_known_behind_the_end_of_an_engine_of_its_service():
    """The first end is that of its own service, which is followed by another beside it."""
    key = EngineKey(model="chat", runtime="llama.cpp", service="own")
    engine = an_engine("old", 0, IN_USE).engine
    for left in (10 * MINUTE, 4 * HOUR):
        old = a_work(
            "old", {"n": [0]}, priority=5, milli=875, ran=2 * HOUR, left=left, engine=engine
        )
        works = [
            old.model_copy(update={"request": old.request.model_copy(update={"engine": key})}),
            a_work("long", {"m": [0]}, priority=2, ran=20 * HOUR, left=30 * MINUTE),
        ]
        nodes = nodes_with(works, [a_node("n", gpus=1), a_node("m", gpus=1)])
        new = a_job("new", 1, priority=5, **asks_for("other", "own"))
        plan = plan_preemption(new, nodes, works, RULES, PackingPolicy(), NOW)
        assert not plan.victims
        assert [way.start for way in plan.ways][:1] == [NOW + 30 * MINUTE]


def test_replicas_alike_ask_once_whether_a_start_may_be_kept(monkeypatch: pytest.MonkeyPatch):
    """With all engines of their service counted as staying there is none; to see that takes as
    long as there are engines."""
    key = EngineKey(model="chat", runtime="llama.cpp", service="own")
    works: list[RunningWork] = []
    for number in range(3):
        old = an_engine(f"old-{number}", 0, IN_USE)
        (share,) = old.shares
        shares = (share.model_copy(update={"node_id": f"n{number}"}),)
        request = old.request.model_copy(update={"engine": key})
        works.append(old.model_copy(update={"request": request, "shares": shares}))
    nodes = nodes_with(works, [a_node(f"n{number}", gpus=1) for number in range(3)])
    asked: list[str] = []
    reserve = WhatIfCluster.reserve

    def counted(cluster: WhatIfCluster, job: JobRequest, not_of: frozenset[str]) -> bool:
        asked.append(job.id)
        return reserve(cluster, job, not_of)

    monkeypatch.setattr(WhatIfCluster, "reserve", counted)
    queue = [a_job(f"new-{each}", 1, priority=5, **asks_for("other", "own")) for each in range(4)]
    plans = plan_preemptions(queue, nodes, works, RULES, PackingPolicy(), NOW)
    assert (len(plans), asked) == (4, ["new-0"])
