"""When jobs may start for which no start is kept: told by a plan, and changing nothing of it."""

from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.placement import CyclePlan, Decision, PackingPolicy, PlacementKind
from longshore.models.topology import SameConformance
from longshore.scheduling import planner
from longshore.scheduling.cycle import foresee, mix_kept, plan, plan_cached
from longshore.scheduling.guarantee import may_come_first
from longshore.scheduling.kept_starts import most_later
from longshore.scheduling.placement import given_back, reservations
from longshore.scheduling.placement.reservations import earliest_start
from longshore.scheduling.placement.state import NodeView
from tests.scheduling.test_elastic_cycle import elastic
from tests.scheduling.test_long_queue import kept_of, queued
from tests.scheduling.test_reference import crowded
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, a_job, a_node, running
from tests.support.packing_scenes import Scene, scenes
from tests.support.searches import seeds

ONE = PackingPolicy(max_reservations=1)
FULL = a_node("n", busy=range(8))
RUNS = running("runs", "n", range(8), HOUR)


def waits(made: CyclePlan, name: str) -> Decision:
    return next(each for each in made.decisions if each.job_id == name)


def hours(decision: Decision) -> float | None:
    start = decision.estimated_start
    return None if start is None else (start - NOW) / HOUR


def test_each_is_told_behind_those_before_it() -> None:
    queue = [a_job(f"j{n}", gpus=8, submitted_at=NOW + n * timedelta(seconds=1)) for n in range(4)]
    made = plan(queue, [FULL], [RUNS], ONE, NOW, later=2)
    assert [hours(each) for each in made.decisions] == [1, 2, 3, None]
    assert [each.start_kept for each in made.decisions] == [True, False, False, True]
    assert [kept.job_id for kept in made.reservations] == ["j0"]
    assert made.decisions[2].reason == (
        "no node can take it now (1 node: 1 gpus-busy); behind those before it, it waits until"
        " about 2026-11-20 15:00:00 UTC; no place is kept for it yet"
    )
    assert "its start is not known" in made.decisions[3].reason
    told = Decision.model_validate_json(made.decisions[1].model_dump_json())
    assert not told.start_kept
    assert "start_kept" not in made.decisions[0].model_dump_json()


@pytest.mark.parametrize(("last", "told"), [("j2", [2, 3]), (None, [2, 3, 4]), ("aside", [])])
def test_nobody_behind_the_last_of_a_part_is_told(last: str | None, told: list[float]) -> None:
    """Where that one was set aside who is behind it is not known."""
    queue = [a_job(f"j{n}", gpus=8, submitted_at=NOW + n * timedelta(seconds=1)) for n in range(4)]
    kept = kept_of(Scene([FULL], [RUNS], queue))
    made = plan_cached(queue, kept, ONE, NOW, wanted=(), later=9, later_until=last)
    assert [hours(each) for each in made.decisions if not each.start_kept] == told


def test_a_pool_that_keeps_no_starts_tells_them_too() -> None:
    none = PackingPolicy(max_reservations=0)
    made = plan([a_job("one", gpus=8)], [FULL], [RUNS], none, NOW, later=9)
    assert (hours(waits(made, "one")), made.reservations) == (1, ())


def test_gangs_and_malleable_jobs_are_told_as_well() -> None:
    nodes = [in_domain("a", name) for name in ("x", "y")]
    runs = [running(f"on-{name}", name, range(8), HOUR) for name in ("x", "y")]
    busy = [
        node.model_copy(
            update={"gpus": tuple(g.model_copy(update={"job_id": "r"}) for g in node.gpus)}
        )
        for node in nodes
    ]
    queue = [
        a_gang(16, id="first", submitted_at=NOW),
        a_gang(16, id="second", submitted_at=NOW + timedelta(seconds=1)),
        elastic("third", 4, 8, submitted_at=NOW + timedelta(seconds=2)),
    ]
    made = plan(queue, busy, runs, ONE, NOW, later=5)
    assert [hours(each) for each in made.decisions] == [1, 2, 3]
    assert "for 4 GPUs, the fewest of 4 to 8" in made.decisions[2].reason
    assert not made.decisions[1].rejections, "nobody asked node by node"


def test_who_can_never_start_is_told_nothing_and_takes_no_place() -> None:
    queue = [
        a_job("first", gpus=8, submitted_at=NOW),
        *(a_job(f"giant{n}", gpus=9, submitted_at=NOW + HOUR / 60) for n in range(3)),
        a_job("last", gpus=8, submitted_at=NOW + HOUR / 30),
    ]
    made = plan(queue, [FULL], [RUNS], ONE, NOW, later=1)
    assert hours(waits(made, "last")) == 2
    assert hours(waits(made, "giant0")) is None
    forever = plan(queue, [FULL], [], ONE, NOW, later=9)
    assert {hours(each) for each in forever.decisions} == {None}


@pytest.mark.parametrize(
    "giant",
    [a_gang(16), elastic("e", 9, 16), a_job("g", gpus=9)],
    ids=["gang", "malleable", "single"],
)
def test_nor_do_gangs_and_malleable_jobs_that_never_start(giant: JobRequest) -> None:
    queue = [
        a_job("first", gpus=8, submitted_at=NOW),
        *(
            giant.model_copy(update={"id": f"giant{n}", "submitted_at": NOW + HOUR / 60})
            for n in range(5)
        ),
        a_job("last", gpus=8, submitted_at=NOW + HOUR / 30),
    ]
    made = plan(queue, [FULL], [RUNS], ONE, NOW, later=1)
    assert hours(waits(made, "last")) == 2


def test_a_large_plan_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a gang the start is looked for at several moments: it counts fourfold."""
    assert [most_later(nodes) for nodes in (0, 64, 1_000, 10_000, 100_000)] == [64, 64, 64, 6, 0]
    monkeypatch.setattr(planner, "LATER_LOOKS", 6)
    queue = [
        a_job("kept", gpus=8, submitted_at=NOW),
        a_job("one", gpus=8, submitted_at=NOW + HOUR / 60),
        a_gang(8, id="gang", submitted_at=NOW + HOUR / 30),
        a_job("two", gpus=8, submitted_at=NOW + HOUR / 20),
        a_job("three", gpus=8, submitted_at=NOW + HOUR / 15),
    ]
    node = in_domain("a", "n")
    full = node.model_copy(update={"gpus": FULL.gpus})
    made = plan(queue, [full], [RUNS], ONE, NOW, later=9)
    assert [hours(each) for each in made.decisions] == [1, 2, 3, 4, None]


def test_gangs_that_find_no_start_at_many_looks_count_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Enough GPUs are given back again and again, of nodes that are not alike."""
    nodes = [
        in_domain("a", f"n{n:02}", busy=range(8)).model_copy(update={"conformance": f"c{n}"})
        for n in range(32)
    ]
    runs = [running(f"on-{n}", f"n{n:02}", range(8), HOUR * (1 + n)) for n in range(32)]
    queue = [a_job("kept", gpus=8, submitted_at=NOW)] + [
        a_gang(
            16, id=f"g{n}", submitted_at=NOW + n * timedelta(minutes=1),
            expected_duration=n * HOUR, same_conformance=SameConformance.REQUIRE,
        )
        for n in range(1, 33)
    ]  # fmt: skip
    asked = list[str]()
    wait_later = planner.Planner._wait_later  # pyright: ignore[reportPrivateUsage]

    def counted(self: planner.Planner, job: JobRequest) -> Decision:
        asked.append(job.id)
        return wait_later(self, job)

    monkeypatch.setattr(planner.Planner, "_wait_later", counted)
    monkeypatch.setattr(planner, "LATER_LOOKS", 32 * 4 * 32)
    plan(queue, nodes, runs, ONE, NOW, later=64)
    assert 1 < len(asked) < 10, "counted fourfold all 32 would be asked"


def test_what_a_cycle_would_do_with_a_job_says_it_too() -> None:
    queue = [a_job(f"j{n}", gpus=8, submitted_at=NOW + n * timedelta(seconds=1)) for n in range(3)]
    found = foresee(queue[2], queue[:2], [FULL], [RUNS], ONE, NOW, later=9)
    assert (hours(found.decision), found.decision.start_kept) == (3, False)
    assert found.decision.rejections
    assert len(found.before.reservations) == 1
    assert hours(foresee(queue[2], queue[:2], [FULL], [RUNS], ONE, NOW).decision) is None


def without_later(made: CyclePlan) -> tuple[object, ...]:
    """What a plan does: who starts where, what is kept, and who has a start kept."""
    kept = [
        (each.job_id, each.kind, each.held, each.estimated_start if each.start_kept else None)
        for each in made.decisions
    ]
    return kept, made.reservations


@pytest.mark.parametrize("compiled", [False, True])
@given(st.one_of(scenes(mixed=True), scenes(gangs=True)), st.integers(0, 2), st.integers(1, 5))
def test_nothing_else_of_a_plan_depends_on_it(
    compiled: bool, scene: Scene, starts: int, later: int
) -> None:
    policy = PackingPolicy(max_reservations=starts)
    given_ = scene.queue, scene.nodes, scene.running, policy, NOW
    plain = plan(*given_, compiled=compiled)
    told = plan(*given_, compiled=compiled, later=later)
    assert without_later(told) == without_later(plain)
    more = [each for each in told.decisions if not each.start_kept]
    assert len(more) <= later
    for each in more:
        assert each.kind is not PlacementKind.EXISTING_NODE
        assert each.estimated_start is not None
        assert each.estimated_start > NOW


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("further", [1_000, 10])
def test_a_part_of_a_long_queue_tells_the_same(
    monkeypatch: pytest.MonkeyPatch, further: int
) -> None:
    """Who is left out of a plan comes behind as many like it as are told, or behind the last of
    those that may be told: the first ones are told what they are in a plan of all."""
    monkeypatch.setattr("longshore.scheduling.long_queue.LONG", 1)
    monkeypatch.setattr("longshore.scheduling.long_queue.FURTHER", further)
    left_out = compared = cut = 0
    for seed in seeds(5):
        chance = Random(seed)
        scene = crowded(chance)
        queue = [
            job.model_copy(update={"id": f"{job.id}-{n}"})
            for n in range(20)
            for job in scene.queue
        ]
        later = chance.randrange(1, 6)
        kept = kept_of(scene)
        mix = mix_kept(queue, kept, ONE, ())
        part = queued(queue).to_plan(
            kept.open_gpus, kept.gpus, ONE, NOW, wanted=(), later=later,
            may_start=may_come_first(ONE, scene.nodes),
        )  # fmt: skip
        assert part is not None
        whole = plan_cached(queue, kept, ONE, NOW, mix=mix, later=later)
        some = plan_cached(
            part.jobs, kept, ONE, NOW, mix=mix, wanted=(), later=later,
            later_until=part.later_until,
        )  # fmt: skip
        if whole.rearranged:
            continue
        told = [(each.job_id, hours(each)) for each in whole.decisions if not each.start_kept]
        found = [(d.job_id, hours(d)) for d in some.decisions if not d.start_kept]
        assert found == told[: len(found)]
        assert len(found) == len(told) or part.later_until is not None
        left_out += len(queue) - len(part.jobs)
        compared += len(found)
        cut += part.later_until is not None
    assert left_out > 100
    assert compared > 10
    assert bool(cut) == (further == 10)


@pytest.mark.parametrize("kinds", [16, 100])
def test_kinds_that_no_node_could_hold_keep_nobody_from_being_told(
    monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    """At the head of the queue, more of them than are planned; of so many kinds each is asked."""
    monkeypatch.setattr("longshore.scheduling.long_queue.LONG", 1)
    monkeypatch.setattr("longshore.scheduling.long_queue.FURTHER", 10)
    monkeypatch.setattr("longshore.scheduling.long_queue._KINDS", 64)

    def at(second: int) -> datetime:
        return NOW + second * timedelta(seconds=1)

    giants = [
        a_job(f"giant{kind}-{n}", gpus=9 + kind, submitted_at=at(n))
        for kind in range(kinds)
        for n in range(4)
    ]
    queue = giants + [a_job(f"j{n}", gpus=8, submitted_at=at(100 + n)) for n in range(5)]
    kept = kept_of(Scene([FULL], [RUNS], queue))
    part = queued(queue).to_plan(
        kept.open_gpus,
        kept.gpus,
        ONE,
        NOW,
        wanted=(),
        later=3,
        may_start=may_come_first(ONE, [FULL]),
    )
    assert part is not None
    made = plan_cached(part.jobs, kept, ONE, NOW, wanted=(), later=3, later_until=part.later_until)
    told = [each.job_id for each in made.decisions if not each.start_kept]
    assert told == (["j1", "j2", "j3"] if kinds == 16 else [])


def test_few_nodes_are_looked_at_for_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that give back enough GPUs only after another one can start it."""
    asked: list[str] = []

    def noting(view: NodeView, *args: Any, **more: Any) -> datetime | None:
        asked.append(view.node.id)
        return earliest_start(view, *args, **more)

    monkeypatch.setattr(given_back, "earliest_start", noting)
    monkeypatch.setattr(reservations, "earliest_start", noting)
    nodes = [a_node(f"n{n:03}", busy=range(8)) for n in range(100)]
    runs = [running(f"r{n}", f"n{n:03}", range(8), (n + 1) * HOUR) for n in range(100)]
    queue = [a_job(f"j{n:02}", gpus=8, submitted_at=NOW + n * HOUR / 3600) for n in range(30)]
    made = plan(queue, nodes, runs, ONE, NOW, later=29)
    starts = [hours(each) for each in made.decisions]
    assert starts[:3] == [1, 2, 2]
    assert None not in starts
    assert len(asked) < 30 * 20, "of 3,000"


def test_of_a_part_the_same_is_further_whatever_came_and_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is found once is kept for as long as nobody comes or leaves who asks alike."""
    monkeypatch.setattr("longshore.scheduling.long_queue.LONG", 1)
    monkeypatch.setattr("longshore.scheduling.long_queue.FURTHER", 10)
    chance = Random(3)
    there: dict[str, JobRequest] = {}
    queue = queued([])
    for number in range(300):
        name = f"j{chance.randrange(60)}"
        if chance.random() < 0.3:
            there.pop(name, None)
            queue.remove(name)
        else:
            there[name] = a_job(
                name, gpus=chance.choice([1, 2]), priority=chance.choice([0, 5]),
                submitted_at=NOW - chance.randrange(600) * timedelta(seconds=1),
                expected_duration=chance.randrange(1, 9) * HOUR,
            )  # fmt: skip
            queue.put(there[name])
        if number % 5 == 0:
            said = [
                each.to_plan(0, 8, ONE, NOW, wanted=(), later=4, without=without)
                for each in (queue, queued(list(there.values())))
                for without in (set[str](), set(list(there)[::3]))
            ]
            for one, other in ((said[0], said[2]), (said[1], said[3])):
                if one is None or other is None:
                    assert one is other
                    continue
                assert sorted(j.id for j in one.jobs) == sorted(j.id for j in other.jobs)
                assert one.later_until == other.later_until
