"""Running malleable jobs grow onto idle GPUs where that earns more than it costs."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.models.growth import Elastic, GrowthDecision, IdleNode, RankChange, SpeedUp
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.preemption import PreemptionPolicy, WorkCheckpoint
from longshore.models.topology import Gang
from longshore.scheduling import growth
from longshore.scheduling.cycle import plan
from longshore.scheduling.growth import Foreseen, Look, Pool
from longshore.scheduling.packer import place
from longshore.scheduling.placement.state import without_job, without_jobs
from longshore.scheduling.ranks import COUNTS_SAVES
from tests.scheduling.test_elastic_cycle import nodes_in
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved

SECOND = timedelta(seconds=1)
DOLLAR = 1_000_000
NO_VALUE = PreemptionPolicy(delay_price={})
"""Nobody says what time is worth."""


def elastic(
    name: str, gpus: dict[str, range], least: int, most: int, step: int, **fields: Any
) -> Elastic:
    """Return a job on these GPUs that saved a minute ago, in 20 s, and runs on for four hours."""
    given = ("done", "changed_at", "rank_changes")
    own = {name: fields.pop(name) for name in given if name in fields}
    of_sizes = ("serial_fraction", "desired", "in_place")
    extra = {name: fields.pop(name) for name in of_sizes if name in fields}
    gang = fields.pop("gang", None)
    sizes = Malleable(min=least, max=most, step=step, **extra)
    fields = {"checkpoint": saved(MINUTE), "malleable": sizes, **fields}
    work = a_work(name, gpus, **fields)
    held = sum(map(len, gpus.values()))
    asked = work.request.model_copy(update={"malleable": sizes, "gang": gang, "attempt": 2})
    target = asked.at_size(sizes.target).model_copy(update={"malleable": sizes})
    request = asked.at_size(sizes.min)
    work = work.model_copy(update={"request": request})
    assert sum(len(share.gpu_indices) for share in work.shares) == held
    return Elastic(work=work, asked=target, **own)


def looked(
    jobs: Sequence[Elastic],
    nodes: Sequence[Node],
    *,
    queue: Iterable[JobRequest] = (),
    policy: PreemptionPolicy = RULES,
    prices: dict[str, int] | None = None,
    idle_for: timedelta = HOUR,
    grow_after: timedelta = 5 * MINUTE,
) -> list[GrowthDecision]:
    """Return what is decided for the jobs: the first that grows is the last that is looked at."""
    works = [job.work for job in jobs]
    running = [share for work in works for share in work.shares]
    pool = Pool(
        nodes_with(works, nodes), running, tuple(queue), (), POLICY, policy, grow_after, NOW
    )  # fmt: skip
    look = Look(pool)
    decisions: list[GrowthDecision] = []
    for answer in look.answers(jobs):
        if isinstance(answer, Foreseen):
            idle = {
                name: IdleNode(price=(prices or {}).get(name, 0), ready_since=NOW - idle_for)
                for name in answer.nodes
            }
            answer = look.decide(answer, idle)
        decisions.append(answer)
        if answer.grows:
            break
    return decisions


def of_one(job: Elastic, nodes: Sequence[Node], **fields: Any) -> GrowthDecision:
    (decided,) = looked([job], nodes, **fields)
    return decided


def half_of_a_node(**fields: Any) -> Elastic:
    """Return a job on 4 of the 8 GPUs that it is to have."""
    return elastic("train", {"n1": range(4)}, 2, 8, 2, **fields)


def test_every_term_in_dollars_on_a_node_of_ones_own() -> None:
    decided = of_one(half_of_a_node(serial_fraction=0.05), [a_node("n1")])
    # From 3.478 to 5.926 times as fast as on one GPU: 4 h become 2 h 20 m 52 s. Class 2 waits at
    # $30.00 / 4^3 for a GPU-hour, and a GPU of one's own is worth $2.00 of it.
    sooner = 4 * HOUR * (1 - 3.4782608695652173 / 5.925925925925926)
    assert decided.earns == pytest.approx(sooner / HOUR * 4 * (2 + 30 / 64) * DOLLAR, rel=1e-6)
    lost = 0.1 * MINUTE + 20 * SECOND + 25 * SECOND  # by its chance; saves; comes back and starts
    waits = 25 * SECOND / HOUR * 4 * 30 / 64
    assert decided.stop == pytest.approx((lost / HOUR * 4 * 2 + waits) * DOLLAR, rel=1e-4)
    assert (decided.added, decided.to, decided.grows) == (0, 8, True)
    assert decided.reason.startswith("grown from 4 to 8 GPUs: it ends 1h39m8s sooner, which earns")
    assert (
        "$0.01 for 1m of work in no save, $0.04 to save, $0.07 to start, $0.00" in decided.reason
    )


@pytest.mark.parametrize("serial", [0.05, 0.0])
def test_billed_as_it_runs_it_pays_only_where_time_has_a_value(serial: float) -> None:
    job = half_of_a_node(serial_fraction=serial)
    nodes, prices = [a_node("n1")], {"n1": 2 * DOLLAR}
    decided = of_one(job, nodes, prices=prices, policy=NO_VALUE)
    assert not decided.grows
    assert decided.added > decided.earns - decided.stop
    assert decided.reason.startswith("4 of 8 desired GPUs: to grow to 8 would cost $")
    assert of_one(job, nodes, prices=prices).grows is (serial == 0)
    dear = PreemptionPolicy(delay_price={Tier.FAST: 300 * DOLLAR})
    assert of_one(job, nodes, prices=prices, policy=dear).grows


def test_a_speed_up_that_was_measured_counts_and_not_the_declared_one() -> None:
    nodes = [a_node("n1")]
    declared = of_one(half_of_a_node(serial_fraction=0.05), nodes)
    job = half_of_a_node(serial_fraction=1.0)  # as declared it would gain nothing
    assert not of_one(job, nodes).grows
    speedup = SpeedUp(serial_fraction=0.05, sizes=(2, 4))
    decided = of_one(job.model_copy(update={"measured": speedup}), nodes)
    assert (decided.grows, decided.earns) == (True, declared.earns)
    assert "it ends 1h39m8s sooner by its steps on 2, 4 GPUs, which earns" in decided.reason
    useless = SpeedUp(serial_fraction=1.0, sizes=(2, 4))
    job = half_of_a_node(serial_fraction=0.05).model_copy(update={"measured": useless})
    assert not of_one(job, nodes).grows


def test_paid_time_costs_what_its_resale_brings() -> None:
    job = half_of_a_node(serial_fraction=0.3)
    assert of_one(job, [a_node("n1")], policy=NO_VALUE, prices={"n1": DOLLAR // 10}).grows
    assert not of_one(job, [a_node("n1")], policy=NO_VALUE, prices={"n1": DOLLAR}).grows


def test_work_in_no_save_may_cost_more_than_it_earns() -> None:
    job = half_of_a_node(left=10 * MINUTE, ran=HOUR, checkpoint=WorkCheckpoint())
    decided = of_one(job, [a_node("n1")])
    assert not decided.grows
    assert decided.stop > 4 * 2 * DOLLAR  # an hour of 4 GPUs at $2.00
    assert "$8.00 for 1h of work in no save" in decided.reason


def run_of(groups: int, **fields: Any) -> Elastic:
    """Return J4's run on so many groups of 32, each on four nodes of a domain of its own."""
    gpus = {f"{domain}{i}": range(8) for domain in "abcde"[:groups] for i in range(4)}
    return elastic("run", gpus, 96, 160, 32, gang=Gang(group_gpus=32), **fields)


def domains(count: int) -> list[Node]:
    return [node for domain in "abcde"[:count] for node in nodes_in(domain, 4)]


def test_j4_it_grows_as_groups_come_free_and_keeps_what_is_desired() -> None:
    assert of_one(run_of(3), domains(4)).to == 128
    assert of_one(run_of(4), domains(5)).to == 160
    assert of_one(run_of(3), domains(5)).to == 160  # both groups with one stop
    half = [*domains(3), *nodes_in("d", 3)]
    decided = of_one(run_of(3), half)  # 24 are no group
    assert (decided.grows, decided.reason) == (
        False, "96 of 160 desired GPUs: no more are free for it",
    )  # fmt: skip
    back = of_one(run_of(4, desired=128), domains(5))
    assert back.desired == 128
    assert not back.grows


def test_j1_its_idle_14_go_to_j2() -> None:
    nodes = nodes_in("a", 9)
    j1 = a_work("j1", {f"a{i}": range(8) for i in range(4)})
    j3 = a_work("j3", {"a8": range(2)})
    busy = nodes_with([j1, j3], nodes)
    j2 = elastic("j2", {"a4": range(8)}, 8, 24, 8, gang=Gang(group_gpus=8))
    assert of_one(j2, busy).to == 24
    j4 = a_job("j4", 32, gang=Gang(), cpus=32, ram=32)
    waits = of_one(j2, busy, queue=[j4])
    assert (waits.grows, waits.reason) == (
        False, "8 of 24 desired GPUs: j4 waits, and could run there",
    )  # fmt: skip
    assert of_one(j2, busy, queue=[a_job("other", 2, gpu_type="B200")]).to == 24


def test_gpus_have_to_be_idle_for_long_enough() -> None:
    job = half_of_a_node()
    decided = of_one(job, [a_node("n1")], idle_for=40 * SECOND)
    assert decided.reason == (
        "4 of 8 desired GPUs: 4 more GPUs would be free, the last of them since 40s; "
        "it grows when they were for 5m"
    )
    assert decided.again == NOW + 5 * MINUTE - 40 * SECOND
    # Never for less than a save and a start take.
    soon = of_one(job, [a_node("n1")], idle_for=40 * SECOND, grow_after=SECOND)
    assert soon.again == NOW + 5 * SECOND
    assert of_one(job, [a_node("n1")], idle_for=45 * SECOND, grow_after=SECOND).grows


def test_the_gpu_that_came_free_last_counts() -> None:
    job = half_of_a_node()
    nodes = nodes_with([job.work], [a_node("n1")])
    look = Look(Pool(nodes, job.work.shares, (), (), POLICY, RULES, 5 * MINUTE, NOW))
    (found,) = look.answers([job])
    assert isinstance(found, Foreseen)
    node = IdleNode(ready_since=NOW - HOUR, freed_at={7: NOW - MINUTE, 0: NOW})  # 0 is its own
    assert look.decide(found, {"n1": node}).again == NOW + 4 * MINUTE
    again = node.model_copy(update={"ready_since": NOW - 30 * SECOND})
    assert look.decide(found, {"n1": again}).again == NOW + 5 * MINUTE - 30 * SECOND


def test_after_each_change_of_size_it_rests_twice_as_long() -> None:
    ends = [NOW - HOUR, NOW - 30 * MINUTE, NOW - 12 * MINUTE]
    for changes, rests in ((1, 10), (2, 20), (3, 40)):
        decided = of_one(half_of_a_node(changed_at=tuple(ends[-changes:])), [a_node("n1")])
        again = ends[-1] + rests * MINUTE
        assert decided.grows is (again <= NOW)
        assert decided.again == (None if decided.grows else again)
    assert decided.reason == (
        "4 of 8 desired GPUs: it was resized or preempted 3 times within a day, last 12m ago; "
        "it may grow from 12:28:00 UTC on"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"left": 4 * MINUTE}, "it should end in 4m, which is near"),
        ({"left": -MINUTE}, "it is overdue, and nobody knows when it ends"),
        ({"checkpoint": None}, "it has no checkpoint, and would start from the beginning"),
        ({"no_store": "the store is away"}, "it cannot save now: the store is away"),
        ({"done": 3600 * 4 * 4.0}, "it is overdue, and nobody knows when it ends"),
    ],
)
def test_some_do_not_grow_whatever_is_free(fields: dict[str, Any], said: str) -> None:
    decided = of_one(half_of_a_node(**fields), [a_node("n1")])
    assert (decided.grows, decided.reason) == (False, f"4 of 8 desired GPUs: {said}")


def test_ranks_join_only_where_saves_name_their_step() -> None:
    work = WorkCheckpoint(saved_at=NOW - MINUTE, without_step=True)
    alone = of_one(half_of_a_node(checkpoint=work), [a_node("n1")])
    assert COUNTS_SAVES not in alone.reason, "it is stopped, and starts as a whole"
    sizes = Malleable(min=2, max=8, step=2, in_place=True)
    job = half_of_a_node(checkpoint=work)
    gang = job.asked.model_copy(update={"gang": Gang(), "malleable": sizes})
    decided = of_one(job.model_copy(update={"asked": gang}), [a_node("n1")])
    assert (decided.grows, decided.settled) == (False, True)
    assert decided.reason == f"4 of 8 desired GPUs: {COUNTS_SAVES}"


def test_what_earlier_attempts_saved_is_not_done_again() -> None:
    whole = of_one(half_of_a_node(), [a_node("n1")])
    rest = of_one(half_of_a_node(done=4 * 3600 * 2.0), [a_node("n1")])  # two hours on 4 GPUs
    assert rest.earns == whole.earns / 2


def test_what_it_has_not_done_since_ranks_left_is_to_be_done_yet() -> None:
    whole = of_one(half_of_a_node(), [a_node("n1")])
    # Of 8 GPUs for 4 more hours, 4 have left half an hour ago: 34 GPU-hours, on 4 GPUs 8.5 hours.
    left = RankChange(at=NOW - 30 * MINUTE, gpus=4)
    since = of_one(half_of_a_node(rank_changes=(left,)), [a_node("n1")])
    assert since.earns == whole.earns * 17 / 8
    joined = left.model_copy(update={"gpus": -2})
    # Of 2 GPUs for 4 more hours, 2 more are there for half an hour: 7 GPU-hours on 4.
    more = of_one(half_of_a_node(rank_changes=(joined,)), [a_node("n1")])
    assert more.earns == whole.earns * 7 / 16


def test_a_pool_may_switch_it_off_and_a_leaving_node_keeps_nobody() -> None:
    off = of_one(half_of_a_node(), [a_node("n1")], grow_after=timedelta(0))
    assert "growth is off for this pool" in off.reason
    draining = a_node("n1", state=NodeState.DRAINING)
    assert "a node of it is not ready" in of_one(half_of_a_node(), [draining]).reason


def test_gpus_that_a_pool_keeps_warm_are_for_jobs_to_come() -> None:
    job = half_of_a_node()
    nodes = nodes_with([job.work], [a_node("n1")])
    for keeps_warm in (False, True):
        pool = Pool(nodes, job.work.shares, (), (), POLICY, RULES, MINUTE, NOW, keeps_warm)
        (answer,) = Look(pool).answers([job])
        assert isinstance(answer, GrowthDecision) is keeps_warm


def test_one_grows_at_a_time_the_first_of_the_queue_first() -> None:
    first = elastic("b", {"n1": range(2)}, 2, 4, 2, priority=5)
    second = elastic("a", {"n1": range(2, 4)}, 2, 4, 2)
    decided = looked([second, first], [a_node("n1")])
    assert [(each.job_id, each.to) for each in decided] == [("b", 4)]


def test_a_look_plans_for_a_few_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MOST_PLANNED", 2)
    jobs = [elastic(name, {"n1": range(i, i + 1)}, 1, 2, 1) for i, name in enumerate("abcd")]
    busy = [a_node("n1", gpus=4)]
    assert [each.job_id for each in looked(jobs, busy)] == ["a", "b"]


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Node], list[Elastic], list[JobRequest]]:
    """Return up to three nodes, jobs that run there on some of their sizes, and a queue."""
    nodes = [
        a_node(f"n{i}", gpus=draw(st.integers(4, 8)), gpu_type="AAB"[i])
        for i in range(draw(st.integers(1, 3)))
    ]
    jobs: list[Elastic] = []
    for node in nodes:
        at = 0
        while at < len(node.gpus) and draw(st.booleans()):
            held = draw(st.integers(1, min(len(node.gpus) - at, 3)))
            jobs.append(
                elastic(
                    f"e{len(jobs)}", {node.id: range(at, at + held)}, 1, 8, 1,
                    priority=draw(st.integers(0, 9)),
                    left=draw(st.sampled_from([-5, 2, 60, 600])) * MINUTE,
                    serial_fraction=draw(st.sampled_from([0.0, 0.1, 1.0])),
                    desired=draw(st.integers(held, 8)),
                )
            )  # fmt: skip
            at += held
    queue = [
        a_job(
            f"q{i}", draw(st.integers(1, 8)), priority=draw(st.integers(0, 9)),
            gpu_type=draw(st.sampled_from(["A", "B", "B", "C"])),
        )
        for i in range(draw(st.integers(0, 2)))
    ]  # fmt: skip
    return nodes, [job for job in jobs if job.gpus < job.sizes.target], queue


@given(pools(), st.sampled_from([0, DOLLAR]))
def test_nobody_loses_by_a_growth(
    scene: tuple[list[Node], list[Elastic], list[JobRequest]], price: int
) -> None:
    nodes, jobs, queue = scene
    prices = {node.id: price for node in nodes}
    by_id = {job.id: job for job in jobs}
    busy = nodes_with([job.work for job in jobs], nodes)
    for decided in looked(jobs, nodes, queue=queue, prices=prices):
        if not decided.grows:
            continue
        job = by_id[decided.job_id]
        assert job.gpus < (decided.to or 0) <= job.sizes.target
        assert decided.earns > decided.cost
        without = [
            without_job(node, job.work.shares[0]) if node.id == job.work.nodes[0] else node
            for node in busy
        ]
        others = [share for each in jobs if each is not job for share in each.work.shares]
        made = plan([*queue, job.asked], without, others, POLICY, NOW)
        mine = next(each for each in made.placements if each.job_id == job.id)
        assert len(mine.gpu_indices) == decided.to  # the next cycle gives it that
        held = [share for each in jobs for share in each.work.shares]
        before = {each.job_id for each in plan(queue, busy, held, POLICY, NOW).placements}
        assert {each.job_id for each in made.placements} == before | {job.id}
        there = {mine.node_id, *job.work.nodes}
        for waits in queue:  # none could run there, whoever leaves
            empty = [without_jobs(node) for node in nodes if node.id in there]
            assert place(waits, empty, POLICY, NOW).node_id is None
