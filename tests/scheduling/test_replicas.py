"""Replicas of a service: worked cases, and that an update never leaves too few or begins too
many."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.models.serving import EngineStage
from longshore.scheduling.serving.replicas import (
    LEAVE_BEFORE,
    LOOK_FOR_NODES,
    TRIES,
    Replica,
    ServiceFacts,
    begin_before_stops,
    in_the_end,
    plan,
    stages_in_words,
)

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
READY, LOADING = EngineStage.READY, EngineStage.LOADING
FAILED, DRAINING = EngineStage.FAILED, EngineStage.DRAINING


def replica(name: str, revision: int = 1, stage: EngineStage | None = READY, **more: object):
    born = NOW - timedelta(minutes=10)
    return replace(Replica(name, revision, born, stage), **more)  # pyright: ignore[reportArgumentType]


def facts(*replicas: Replica, **more: object) -> ServiceFacts:
    usual = ServiceFacts(
        revision=1, wanted=2, surge=1, unavailable=0, replicas=replicas, was_ready=True
    )
    return replace(usual, **more)  # pyright: ignore[reportArgumentType]


def stopped(found: ServiceFacts, now: datetime = NOW) -> list[str]:
    return [each.job_id for each in plan(found, now).stop]


def test_in_the_end_all_of_another_revision_are_replaced():
    """The next step of it is one beside the others."""
    found = facts(replica("a"), replica("b"), replica("c", stopping=True), revision=2)
    assert (plan(found, NOW).start, plan(found, NOW).stop) == (0, ())
    end = in_the_end(found, NOW)
    assert end.start == 2
    assert [(each.job_id, each.reason) for each in end.stop] == [
        ("a", "replaced by revision 2"), ("b", "replaced by revision 2"),
    ]  # fmt: skip
    fewer = in_the_end(replace(found, revision=1, wanted=1), NOW)
    assert (fewer.start, [each.reason for each in fewer.stop]) == (0, ["1 are wanted"])
    assert len(in_the_end(replace(found, removing=True), NOW).stop) == 2


@pytest.mark.parametrize(
    ("surge", "unavailable", "stage", "first"),
    [(1, 0, READY, 1), (2, 0, READY, 2), (0, 1, READY, 0), (1, 1, READY, 0), (1, 0, None, 2)],
)
def test_so_many_begin_before_one_that_has_gpus_is_stopped(
    surge: int, unavailable: int, stage: EngineStage | None, first: int
):
    both = (replica("a", stage=stage, pool="p"), replica("b", stage=stage, pool="p"))
    found = facts(*both, revision=2, surge=surge, unavailable=unavailable)
    assert begin_before_stops(found, "p", NOW) == first
    assert begin_before_stops(replace(found, revision=1), "p", NOW) == 2
    assert begin_before_stops(found, "other", NOW) == 2, "what is stopped has no GPU there"


def test_a_new_service_starts_what_is_wanted():
    planned = plan(facts(was_ready=False), NOW)
    assert (planned.start, planned.stop) == (2, ())
    assert (planned.reason, planned.stages) == ("", "of 2 replicas: 2 without a GPU")


@pytest.mark.parametrize("stage", [None, LOADING, FAILED])
def test_one_that_holds_too_little_is_replaced_at_once_unless_it_serves(stage: EngineStage | None):
    small = facts(replica("a", stage=stage, too_small=True), wanted=1)
    assert (stopped(small), plan(small, NOW).start) == (["a"], 1)
    assert "holds less memory" in plan(small, NOW).stop[0].reason
    assert stopped(facts(replica("a", too_small=True), wanted=1)) == []


def test_it_says_of_each_replica_what_it_does():
    does = [replica("a", stage=stage) for stage in (None, LOADING, FAILED, DRAINING)]
    said = "of 4 replicas: 1 without a GPU, 1 loading, 1 failed, 1 draining"
    assert plan(facts(*does, wanted=4), NOW).stages == said


def test_one_that_failed_and_waits_is_not_told_as_one_that_has_yet_to_begin():
    does = replica("a", stage=None), replica("b", stage=None, tried_again=True)
    said = "of 3 replicas: 2 without a GPU, 1 to be tried again after a failure"
    assert plan(facts(*does, wanted=3), NOW).stages == said


def test_those_that_are_no_longer_wanted_are_counted_until_they_are_stopped():
    assert stages_in_words(0, [None, None], 0) == "of 2 replicas: 2 without a GPU"


def test_one_that_is_as_it_should_be_is_left_alone():
    planned = plan(facts(replica("a"), replica("b")), NOW)
    assert (planned.start, planned.stop, planned.reason, planned.stages) == (0, (), "", "")


def test_an_update_begins_one_beside_them_and_stops_none_before_that_is_ready():
    old = (replica("a"), replica("b"))
    begun = facts(*old, revision=2, was_ready=False)
    assert (plan(begun, NOW).start, stopped(begun)) == (1, [])
    loads = facts(*old, replica("c", 2, LOADING), revision=2, was_ready=False)
    assert (plan(loads, NOW).start, stopped(loads)) == (0, [])
    ready = facts(*old, replica("c", 2), revision=2)
    assert (plan(ready, NOW).start, stopped(ready)) == (0, ["a"])
    goes = facts(replica("a", stopping=True), replica("b"), replica("c", 2), revision=2)
    assert plan(goes, NOW).start == 0, "what ends holds its GPU still"


def test_without_surge_one_goes_first():
    begun = facts(replica("a"), replica("b"), revision=2, surge=0, unavailable=1)
    assert (plan(begun, NOW).start, stopped(begun)) == (0, ["a"])


def test_what_is_not_ready_of_an_older_revision_goes_at_once():
    found = facts(replica("a"), replica("b", stage=None), revision=2)
    assert stopped(found) == ["b"]


def test_fewer_are_wanted_the_one_that_loads_goes_first_then_the_youngest():
    young = replica("young", created_at=NOW)
    found = facts(replica("old"), young, replica("loads", stage=LOADING), wanted=1)
    assert stopped(found) == ["loads", "young"]
    assert stopped(facts(replica("old"), wanted=0)) == ["old"]


def test_a_revision_that_never_gets_ready_is_undone():
    old = (replica("a"), replica("b"))
    fails = facts(
        *old, replica("c", 2, LOADING), revision=2, was_ready=False, failures=TRIES, previous=1,
        last_failure="out of memory",
    )  # fmt: skip
    undo = plan(fails, NOW).undo
    assert undo is not None
    assert undo.revision == 1
    assert undo.reason == (
        "revision 2 never got ready (3 engines failed): back to revision 1. The last one: out of "
        "memory"
    )
    assert plan(replace(fails, failures=TRIES - 1), NOW).undo is None
    assert plan(replace(fails, was_ready=True), NOW).undo is None
    assert plan(replace(fails, previous=None), NOW).undo is None


def test_a_replica_is_replaced_before_the_time_of_its_node_ends():
    soon = replica("a", leaves_at=NOW + LEAVE_BEFORE, load_time=timedelta(seconds=30))
    later = replica("b", leaves_at=NOW + timedelta(hours=5))
    found = facts(soon, later)
    assert (plan(found, NOW).start, stopped(found)) == (1, [])
    begun = replace(found, replicas=(*found.replicas, replica("c", stage=LOADING)))
    assert plan(begun, NOW).look_at == NOW + timedelta(hours=5) - LEAVE_BEFORE
    assert stopped(facts(soon, later, replica("c"))) == ["a"]


def test_a_replica_on_a_node_that_drains_stays_until_another_is_ready():
    drained = replica("a", node_drains=True)
    begun = plan(facts(drained, replica("b")), NOW)
    assert (begun.start, begun.stop) == (1, ())
    said = "1 replica to be replaced (1 on a node that drains): 1 of 2 new ones ready"
    assert begun.reason == said
    # Where there is no room elsewhere, or the new one fails, it stays.
    for stage in (None, LOADING, FAILED):
        waits = facts(drained, replica("b"), replica("c", stage=stage))
        assert (plan(waits, NOW).start, stopped(waits)) == (0, [])
    ready = plan(facts(drained, replica("b"), replica("c")), NOW)
    assert [(each.job_id, each.reason) for each in ready.stop] == [
        ("a", "replaced as its node drains")
    ]
    # Where nothing may run beside it, it goes first.
    alone = facts(drained, replica("b"), surge=0, unavailable=1)
    assert (plan(alone, NOW).start, stopped(alone)) == (0, ["a"])


def test_one_that_left_while_nobody_asked_it_holds_up_no_drain():
    """Nobody is stopped for it, so it may wait for long; the new one is ready in its place."""
    drained, left = replica("a", node_drains=True), replica("b", stage=None, left_idle=True)
    begun = facts(drained, left)
    assert (plan(begun, NOW).start, stopped(begun)) == (1, [])
    assert stopped(facts(drained, left, replica("c", stage=LOADING))) == []
    assert stopped(facts(drained, left, replica("c"))) == ["a"]
    assert stopped(facts(drained, replace(left, left_idle=False), replica("c"))) == []


def test_one_answers_whoever_else_left_while_nobody_asked():
    drained, left = replica("a", node_drains=True), replica("b", stage=None, left_idle=True)
    loads, waits = replica("c", stage=LOADING), replica("c", stage=None)
    assert stopped(facts(drained, left, loads, unavailable=1)) == []
    assert stopped(facts(drained, left, replica("c"), unavailable=1)) == ["a"]
    assert stopped(facts(drained, left, loads, wanted=1)) == ["b"]
    assert stopped(facts(drained, left, waits, wanted=1)) == ["b"], "c has others stopped, b not"
    assert stopped(facts(drained, left, replace(left, job_id="b2"), loads)) == ["b"]


@pytest.mark.parametrize("surge", [0, 1, 2])
def test_where_all_that_are_to_stay_left_another_begins_that_has_others_stopped(surge: int):
    """As after a scale down to the number of those that left, while one is drained."""
    drained, left = replica("a", node_drains=True), replica("b", stage=None, left_idle=True)
    old = facts(replica("a"), replace(left, revision=2), wanted=1, revision=2, surge=surge)
    for scene in (facts(drained, left, wanted=1, surge=surge), old):
        found = plan(scene, NOW)
        assert (found.start, stopped(scene)) == ((1, []) if surge == 2 else (0, ["b"]))
        waits = replica("c", stage=None, revision=scene.revision)
        begun = replace(scene, replicas=(*scene.replicas, waits))
        assert (plan(begun, NOW).start, stopped(begun)) == (0, ["b"])
        ready = replace(scene, replicas=(scene.replicas[0], replace(waits, stage=READY)))
        assert (plan(ready, NOW).start, stopped(ready)) == (0, ["a"])


def test_where_none_may_begin_beside_them_one_that_left_makes_way_for_another():
    drained, left = replica("a", node_drains=True), replica("b", stage=None, left_idle=True)
    one = facts(drained, left, surge=0, unavailable=1)
    assert (plan(one, NOW).start, stopped(one)) == (0, ["b"])
    assert "another begins in its place" in plan(one, NOW).stop[0].reason
    ends = facts(drained, replace(left, stopping=True), surge=0, unavailable=1)
    assert (plan(ends, NOW).start, stopped(ends)) == (0, [])
    alone = facts(drained, surge=0, unavailable=1)
    assert (plan(alone, NOW).start, stopped(alone)) == (1, [])
    begun = facts(drained, replica("c", stage=None), surge=0, unavailable=1)
    assert (plan(begun, NOW).start, stopped(begun)) == (0, [])
    assert stopped(facts(drained, replica("c"), surge=0, unavailable=1)) == ["a"]
    for others in (
        [left, replica("old", stopping=True)],
        [left, replica("old", stopping=True), replica("older", stopping=True)],
        [drained, left, replica("old", stopping=True)],
    ):
        ending = facts(*others, surge=len(others) - 2, unavailable=1)
        assert stopped(ending) == [], "there is room once that has ended"
    beside = facts(drained, left, replica("c", stage=LOADING), wanted=3, surge=0, unavailable=1)
    assert stopped(beside) == [], "one that is ready soon is there already"


def test_an_update_without_room_is_told_after_a_minute_what_helps():
    old, new = replica("a", revision=0), replica("b", stage=None, created_at=NOW)
    asked = facts(old, new, wanted=1)
    later = NOW + timedelta(minutes=1)
    assert plan(asked, NOW).look_at == later
    assert "unavailable" not in plan(asked, NOW).reason
    said = "with `unavailable: 1` an old one would leave first"
    assert plan(asked, later).reason.endswith(f"{said}, and nobody answers meanwhile")
    two = facts(old, replica("c"), new)
    assert plan(two, later).reason.endswith(said)
    assert plan(asked, later).look_at is None
    again = replace(new, created_at=NOW - timedelta(hours=1), queued_at=NOW, failed_last=True)
    tried = facts(old, again, wanted=1)
    assert plan(tried, NOW).look_at == later, "it waits for a GPU only since it is in the queue"
    assert "unavailable" not in plan(tried, NOW).reason
    assert said in plan(tried, later).reason
    for other in (
        facts(old, replace(new, stage=LOADING), wanted=1),
        facts(new, wanted=1),
        facts(old, new, wanted=2, unavailable=1),
        facts(old, replace(new, left_idle=True), wanted=1),
        facts(old, replace(new, tried_again=True), wanted=1),
        facts(old, replace(new, held=False), wanted=1),
    ):
        assert "unavailable" not in plan(other, later).reason
        assert plan(other, NOW).look_at is None


def test_one_that_an_update_starts_is_looked_at_after_a_minute():
    """Nobody else asks for that look while it waits for a GPU."""
    begun = plan(facts(replica("a"), replica("b"), revision=2), NOW)
    assert (begun.start, begun.look_at) == (1, NOW + timedelta(minutes=1))
    for other in (
        facts(replica("a")),
        facts(replica("a"), replica("b"), revision=2, unavailable=1),
    ):
        found = plan(other, NOW)
        assert (found.start, found.look_at) == (1, None)


def test_where_a_drain_is_undone_what_is_not_replaced_yet_stays():
    young = replica("c", stage=LOADING, created_at=NOW)
    assert stopped(facts(replica("a"), replica("b"), young)) == ["c"]
    half = facts(replica("a", stopping=True), replica("b"), replica("c"))
    assert (plan(half, NOW).start, stopped(half)) == (0, [])


def test_one_that_loads_on_a_node_that_drains_goes_once_another_is_ready():
    loads = replica("a", stage=LOADING, node_drains=True)
    assert stopped(facts(loads, replica("b"), replica("c", stage=LOADING))) == []
    assert stopped(facts(loads, replica("b"), replica("c"))) == ["a"]
    both = facts(loads, replica("b", node_drains=True), replica("c"))
    assert stopped(both) == ["a"], "the one that serves nobody first"
    small = facts(replace(loads, too_small=True), replica("b"))
    assert stopped(small) == ["a"]


def test_an_update_goes_on_on_nodes_that_drain():
    old = (replica("a"), replica("b", node_drains=True))
    begun = facts(*old, revision=2, was_ready=False)
    assert (plan(begun, NOW).start, stopped(begun)) == (1, [])
    new = replica("c", 2, node_drains=True)
    assert stopped(facts(*old, new, revision=2)) == ["a"], "no new one for an old one"
    both = facts(replica("d", node_drains=True), replica("c"), replica("b"))
    assert stopped(both) == ["d"]


def test_one_that_had_to_leave_before_another_was_ready_is_not_waited_for():
    """It waits in the queue then, and the one in its place loads already."""
    left = replica("a", stage=None)
    assert stopped(facts(left, replica("b", stage=LOADING, created_at=NOW), wanted=1)) == ["a"]


def test_one_that_waits_in_a_size_that_no_node_holds_is_made_anew():
    waits = replica("a", stage=None, held=False)
    found = plan(facts(waits, wanted=1, has_sizes=True), NOW)
    assert (found.start, found.stop, found.look_at) == (0, (), NOW + LOOK_FOR_NODES)
    misfit = replica("a", stage=None, held=False, held_otherwise=True)
    found = plan(facts(misfit, wanted=1, has_sizes=True), NOW)
    assert (found.start, [each.job_id for each in found.stop]) == (1, ["a"])
    assert "waits for more memory on a GPU than any has" in found.stop[0].reason
    # Where nothing may run beside it, first it goes.
    found = plan(facts(misfit, wanted=1, has_sizes=True, surge=0, unavailable=1), NOW)
    assert (found.start, [each.job_id for each in found.stop]) == (0, ["a"])
    # One that runs has its size.
    assert stopped(facts(replica("a", held=False, held_otherwise=True), has_sizes=True)) == []


def test_what_begins_in_one_of_several_sizes_is_looked_at_once_more():
    assert plan(facts(has_sizes=True), NOW).look_at == NOW + LOOK_FOR_NODES
    assert plan(facts(), NOW).look_at is None
    assert plan(facts(replica("a", stage=None), wanted=1, has_sizes=True), NOW).look_at is None


def test_what_ends_again_and_again_is_begun_ever_later():
    found = facts(replica("a"), ends=(NOW - timedelta(milliseconds=500),))
    planned = plan(found, NOW)
    assert (planned.start, planned.look_at) == (0, NOW + timedelta(milliseconds=500))
    assert plan(replace(found, ends=(NOW - timedelta(seconds=2),)), NOW).start == 1
    often = tuple(NOW - timedelta(seconds=100 - each) for each in range(100))
    assert plan(replace(found, ends=often), NOW).look_at == often[-1] + timedelta(minutes=5)


def test_a_service_that_is_removed_stops_all():
    found = facts(replica("a"), replica("b", stopping=True), removing=True)
    assert (plan(found, NOW).start, stopped(found)) == (0, ["a"])


class World:
    """A service whose replicas get ready, fail and end in any order."""

    def __init__(self, wanted: int, surge: int, unavailable: int) -> None:
        self.facts = facts(wanted=wanted, surge=surge, unavailable=unavailable, was_ready=False)
        self.now = NOW
        self.number = 0

    def look(self) -> None:
        planned = plan(self.facts, self.now)
        if planned.undo is not None:
            self.facts = replace(self.facts, revision=planned.undo.revision, was_ready=True)
            return
        going = {each.job_id for each in planned.stop}
        ready = sum(each.ready for each in self.facts.replicas)
        replicas = [
            replace(each, stopping=True) if each.job_id in going else each
            for each in self.facts.replicas
        ]
        lost = ready - sum(each.ready for each in replicas)
        left = sum(
            each.left_idle and not each.stopping and each.revision == self.facts.revision
            for each in replicas
        )
        least = max(self.facts.wanted - self.facts.unavailable, 0)
        enough = max(least - left, min(least, 1))
        assert lost == 0 or ready - lost >= min(enough, ready), "too few are left"
        for _ in range(planned.start):
            self.number += 1
            name = f"r{self.number}"
            replicas.append(Replica(name, self.facts.revision, self.now))
        if planned.start:
            most = self.facts.wanted + self.facts.surge
            assert len(replicas) <= most, "too many are begun"
        self.facts = replace(self.facts, replicas=tuple(replicas))

    def change(self, of: int, **changes: object) -> None:
        replicas = list(self.facts.replicas)
        if replicas:
            of %= len(replicas)
            replicas[of] = replace(replicas[of], **changes)  # pyright: ignore[reportArgumentType]
            self.facts = replace(self.facts, replicas=tuple(replicas))

    def end(self, of: int, *, asked: bool) -> None:
        replicas = [each for each in self.facts.replicas if each.stopping or not asked]
        if replicas:
            gone = replicas[of % len(replicas)]
            rest = tuple(each for each in self.facts.replicas if each is not gone)
            self.facts = replace(self.facts, replicas=rest)

    def settle(self) -> None:
        """All that is begun gets ready, all that is stopped ends, until nothing is left to do."""
        for _ in range(200):
            self.look()
            replicas = tuple(
                replace(each, stage=READY, left_idle=False)
                for each in self.facts.replicas
                if not each.stopping
            )
            self.facts = replace(self.facts, replicas=replicas, was_ready=True)
            self.now += timedelta(minutes=10)
        assert len(self.facts.replicas) == self.facts.wanted
        assert all(each.revision == self.facts.revision for each in self.facts.replicas)
        assert not any(each.node_drains for each in self.facts.replicas)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "look",
                "ready",
                "load",
                "lose",
                "end",
                "leave",
                "update",
                "scale",
                "drain",
                "undrain",
            ]
        ),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), STEPS)
def test_whatever_happens_the_number_is_kept_and_reached(
    wanted: int, surge: int, unavailable: int, steps: list[tuple[str, int]]
):
    world = World(wanted, surge if surge or unavailable else 1, unavailable)
    for what, number in steps:
        match what:
            case "look":
                world.look()
            case "ready":
                world.change(number, stage=READY, left_idle=False)
            case "load":
                world.change(number, stage=LOADING, left_idle=False)
            case "leave":
                world.change(number, stage=None, left_idle=True)
            case "lose":
                world.end(number, asked=False)
            case "end":
                world.end(number, asked=True)
            case "drain" | "undrain":
                world.change(number, node_drains=what == "drain")
            case "update":
                world.facts = replace(world.facts, revision=world.facts.revision + 1)
            case _:
                world.facts = replace(world.facts, wanted=number)
    world.settle()
