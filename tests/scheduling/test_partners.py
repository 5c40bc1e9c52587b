"""Elements that come after those of another array: the worked cases, joins, retries, mistakes."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.models.dag import DagSpec, Join, OnFailure
from longshore.models.dag_edges import Condition, Edge
from longshore.models.dag_view import DagState, StepState
from longshore.models.elements import ElementState
from longshore.models.job_status import JobState
from longshore.models.retry import FailureClass
from longshore.scheduling.arrays import ArraySeen
from longshore.scheduling.arrays import decide as decide_array
from longshore.scheduling.dag import (
    DagPlan,
    EdgeState,
    Elements,
    Graph,
    decide,
    edge_state,
    joined,
    waits_for,
)
from longshore.scheduling.dag_changes import changes
from longshore.scheduling.dag_problems import corresponding_problems
from longshore.scheduling.dag_retry import reopened
from longshore.scheduling.partners import elements_at_first, rulings, without_partner

W, S, F, C, N, K, R = (
    StepState.WAITING, StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED,
    StepState.WITHDRAWN, StepState.SKIPPED, StepState.SUBMITTED,
)  # fmt: skip
OPEN, GOOD, DEAD = EdgeState.OPEN, EdgeState.SATISFIED, EdgeState.DEAD


def a_dag(jobs: Mapping[str, Any]) -> DagSpec:
    """Return a DAG of arrays, given by their indices or by their fields; "" is a plain job."""
    filled = {
        name: {"command": "x", **(each if isinstance(each, dict) else {"array": each or None})}
        for name, each in jobs.items()
    }
    return DagSpec.model_validate({"name": "d", "jobs": filled})


def after(array: str, extra: str = "start", **others: Any) -> dict[str, Any]:
    edge = {"condition": "corresponding", "extra": extra}
    return {"array": array, "after": {"prepare": edge, **others}}


def step(
    spec: DagSpec, elements: Mapping[str, Elements] | None = None, **states: StepState
) -> DagPlan:
    known = {name: states.get(name, W) for name in spec.jobs}
    graph = Graph.of(spec)
    first = {name: elements_at_first(spec, name) for name in graph.partners}
    return decide(graph, known, OnFailure.CONTINUE, elements={**first, **(elements or {})})


def test_preprocess_of_10_and_train_of_15_five_start_at_once():
    """preprocess[0..9] -> train[0..14]: train[10..14] start immediately."""
    spec = a_dag({"prepare": "0-9", "train": after("0-14")})
    assert elements_at_first(spec, "train") == Elements({(OPEN,): 10, (None,): 5})
    assert step(spec).start == ("prepare", "train")
    assert [str(each) for each in without_partner(spec)] == [
        "indices 10-14 of train have no partner in prepare: they start at once"
    ]


def test_as_many_of_each_the_first_starts_with_its_partner():
    spec = a_dag({"prepare": "0-9", "train": after("0-9")})
    assert step(spec).start == ("prepare",)
    assert without_partner(spec) == ()
    assert step(spec, {"train": Elements({(OPEN,): 9, (DEAD,): 1})}, prepare=R).start == ()
    begun = {"train": Elements({(OPEN,): 8, (DEAD,): 1, (GOOD,): 1})}
    assert step(spec, begun, prepare=R).start == ("train",)


def test_train_3_failing_leaves_train_4_alone():
    """Partners alone decide: an element of the later array says nothing about another."""
    spec = a_dag({"prepare": "0-9", "train": after("0-9"), "use": "0-9"})
    found = {(each.satisfied, each.open, each.dead): each.state for each in rulings(
        spec.jobs["train"].join, None)}  # fmt: skip
    assert found[True, False, False] is ElementState.WAITING
    assert found[False, False, True] is ElementState.SKIPPED
    assert (False, True, False) not in found


def test_partners_are_found_by_the_value_of_the_index():
    """0-9 against 10-19 has no partner, however many each has."""
    spec = a_dag({"prepare": "0-9", "train": after("10-19")})
    assert elements_at_first(spec, "train") == Elements({(None,): 10})
    (alone,) = without_partner(spec)
    assert str(alone) == "indices 10-19 of train have no partner in prepare: they start at once"
    steps = a_dag({"prepare": "0-20:10", "train": after("0-20:5")})
    assert str(without_partner(steps)[0]).startswith("indices 5,15 of train have no")
    one = a_dag({"prepare": "1-9", "train": after("0-9", setup="success"), "setup": ""})
    assert str(without_partner(one)[0]) == (
        "index 0 of train has no partner in prepare: it does not wait for it"
    )


def test_extra_wait_does_as_slurm():
    spec = a_dag({"prepare": "0-9", "train": after("0-14", "wait")})
    assert str(without_partner(spec)[0]) == (
        "indices 10-14 of train have no partner in prepare: they wait for all of prepare "
        "(extra: wait)"
    )
    assert step(spec).start == ("prepare",)
    lost = {"train": Elements({(DEAD,): 10, (None,): 5})}
    assert step(spec, lost, prepare=F).skip.keys() == {"train"}
    won = {"train": Elements({(GOOD,): 10, (None,): 5})}
    assert step(spec, won, prepare=S).start == ("train",)


def test_an_array_that_was_skipped_takes_the_elements_behind_it_along():
    spec = a_dag({
        "setup": "", "prepare": {"array": "0-9", "after": "setup"}, "train": after("0-9"),
        "extra": after("0-10"), "clean": {"after": {"train": "any"}},
    })  # fmt: skip
    plan = step(spec, setup=F, extra=R)
    assert plan.skip.keys() == {"prepare", "train"}
    assert plan.start == ("clean",)
    assert plan.skip["train"] == "no element of prepare lets one start"


def test_other_edges_count_for_every_element_alike():
    spec = a_dag({"setup": "", "prepare": "0-9", "train": after("0-9", setup="success")})
    ready = {"train": Elements({(GOOD,): 1, (OPEN,): 9})}
    assert step(spec, ready, prepare=R, setup=R).start == ()
    assert step(spec, ready, prepare=R, setup=S).start == ("train",)
    dead = step(spec, ready, prepare=R, setup=F)
    assert dead.skip == {"train": "needs the success of setup, which failed"}


def test_with_the_join_any_each_element_takes_the_first_that_holds():
    train = {**after("0-9", setup="success"), "join": "any"}
    spec = a_dag({"setup": "", "prepare": "0-9", "train": train})
    waits = {"train": Elements({(DEAD,): 4, (OPEN,): 6})}
    assert step(spec, waits, prepare=R, setup=R).start == ()
    assert step(spec, waits, prepare=R, setup=S).start == ("train",)
    over = {"train": Elements({(DEAD,): 10})}
    assert step(spec, over, prepare=F, setup=R).skip == {}
    assert step(spec, over, prepare=F, setup=F).skip.keys() == {"train"}
    ruled = {(e.satisfied, e.open, e.dead): e.state for e in rulings(Join.ANY, OPEN)}
    assert (False, False, True) not in ruled, "setup may yet let it start"


@pytest.mark.parametrize("join", Join)
@pytest.mark.parametrize("others", [None, *EdgeState])
def test_rulings_are_the_join_of_the_edges(join: Join, others: EdgeState | None):
    found = {(e.satisfied, e.open, e.dead): e.state for e in rulings(join, others)}
    for edges in product([OPEN, GOOD, DEAD], repeat=2):
        worth = joined(join, [*edges, *([] if others is None else [others])])
        key = (GOOD in edges, OPEN in edges, DEAD in edges)
        expected = {GOOD: ElementState.WAITING, DEAD: ElementState.SKIPPED, OPEN: None}[worth]
        assert found.get(key) is expected


def test_an_array_with_elements_that_were_skipped_has_failed():
    def end(**counts: int) -> tuple[JobState, FailureClass | None]:
        by_state = {ElementState[name]: number for name, number in counts.items()}
        plan = decide_array(ArraySeen(1, by_state, 0, None, placed=0, queued=0))
        return plan.state, plan.failure

    assert end(SUCCEEDED=9, SKIPPED=1) == (JobState.FAILED, FailureClass.USER)
    assert end(SUCCEEDED=9, CANCELLED=1) == (JobState.FAILED, FailureClass.CANCELLED)
    assert end(SUCCEEDED=9, BLOCKED=1) == (JobState.RUNNING, None)
    assert end(SUCCEEDED=10) == (JobState.SUCCEEDED, None)


def test_an_array_opens_slots_for_what_may_start_alone():
    counts = {ElementState.BLOCKED: 90, ElementState.WAITING: 2}
    assert decide_array(ArraySeen(50, counts, 2, None, placed=0, queued=0)).open == 2
    blocked = ArraySeen(50, {ElementState.BLOCKED: 90}, 0, None, placed=0, queued=1)
    plan = decide_array(blocked)
    assert (plan.open, plan.cancel_queued, plan.state) == (0, True, JobState.RUNNING)
    assert plan.reason == "of 90 elements 90 blocked"


# --- retries -----------------------------------------------------------------------------------


def test_a_retry_keeps_elements_that_succeeded():
    spec = a_dag({"prepare": "0-9", "train": after("0-9"), "use": "", "other": "0-9"})
    found = reopened(Graph.of(spec), {"prepare": F, "train": F, "use": S, "other": S})
    assert (found.jobs, found.whole) == (("prepare", "train"), frozenset())


def test_a_retry_of_an_array_leaves_those_behind_it_that_did_not_need_what_failed():
    """prepare[7] failed, and train has 0-4 alone."""
    spec = a_dag({"prepare": "0-9", "train": after("0-4")})
    assert reopened(Graph.of(spec), {"prepare": F, "train": S}).jobs == ("prepare",)


def test_what_runs_anew_takes_all_elements_behind_it_along():
    spec = a_dag({"prepare": "0-9", "train": after("0-9")})
    found = reopened(Graph.of(spec), {"prepare": F, "train": F}, {"prepare"})
    assert found.whole == {"prepare", "train"}
    found = reopened(Graph.of(spec), {"prepare": S, "train": S}, {"prepare"})
    assert (found.jobs, found.whole) == (("prepare", "train"), {"prepare", "train"})


def test_an_array_that_ran_because_of_what_runs_again_runs_anew():
    spec = a_dag({"setup": "", "sweep": {"array": "0-9", "after": {"setup": "any"}}})
    found = reopened(Graph.of(spec), {"setup": F, "sweep": F})
    assert found.whole == {"sweep"}


def test_elements_kept_have_their_array_recorded_where_no_other_can_start():
    spec = a_dag({"prepare": "0-9", "train": after("0-9")})
    lost = Elements({(DEAD,): 1}, kept=9)
    assert step(spec, {"train": lost}, prepare=F).start == ("train",)
    assert step(spec, {"train": Elements({(OPEN,): 1}, kept=9)}, prepare=R).start == ()


def test_another_extra_is_another_job():
    old, new = (a_dag({"prepare": "0-9", "train": after("0-14", e)}) for e in ("start", "wait"))
    assert changes(old, new).changed == ("train",)


# --- words and mistakes ------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["corresponding", "aftercorr", "corr"])
def test_slurms_word_is_taken(word: str):
    spec = a_dag({"prepare": "0-9", "train": {"array": "0-9", "after": {"prepare": word}}})
    assert spec.jobs["train"].after["prepare"].condition is Condition.CORRESPONDING
    assert waits_for(Graph.of(spec), "train", {"prepare": R, "train": W}) == (
        "waits for the success of an element of prepare"
    )


def test_an_edge_says_extra_only_where_it_waits():
    assert Edge(condition=Condition.CORRESPONDING).model_dump(mode="json") == {
        "condition": "corresponding", "catch": True,
    }  # fmt: skip
    waits = {"condition": "corresponding", "extra": "wait"}
    assert Edge.model_validate(waits).model_dump(mode="json")["extra"] == "wait"


@pytest.mark.parametrize(
    ("edge", "says"),
    [
        ({"condition": "success", "extra": "wait"}, "extra is for the condition corresponding"),
        ({"condition": "corresponding", "extra": "skip"}, "'start' or 'wait'"),
        ({"condition": "correspond"}, "'corresponding'"),
    ],
)
def test_a_wrong_edge_is_refused(edge: dict[str, str], says: str):
    with pytest.raises(ValidationError, match=says):
        Edge.model_validate(edge)


def test_corresponding_is_for_two_arrays_and_without_a_mutex():
    edge = {"prepare": Edge(condition=Condition.CORRESPONDING)}
    edges: dict[str, dict[str, Edge]] = {"prepare": {}, "train": edge}
    assert corresponding_problems(edges, ["prepare", "train"], {}) == ()
    (found,) = corresponding_problems(edges, ["train"], {})
    assert found.place == ("jobs", "train", "after", "prepare")
    assert "prepare is none: give it `array:`" in found.message
    (found,) = corresponding_problems(edges, ["prepare"], {})
    assert "train is none" in found.message
    (found,) = corresponding_problems(edges, ["prepare", "train"], {"train": ("gpu",)})
    assert found.place == ("jobs", "train", "mutex")
    assert "train would keep it while its elements wait for those of prepare" in found.message


# --- random arrays, to the DAG's end ------------------------------------------------------------


@given(st.data())
def test_an_array_is_submitted_or_skipped_as_its_elements_say(data: st.DataObject):
    """Elements one by one, by hand, against the counts by which a DAG decides."""
    arrays = st.sampled_from(["0-3", "2-5", "0-8:2", "7", "1,3,9"])
    names = ["a", "b"][: data.draw(st.integers(1, 2))]
    edges = {up: {"condition": "corresponding", "extra": data.draw(
        st.sampled_from(["start", "wait"]))} for up in names}  # fmt: skip
    with_other = data.draw(st.booleans())
    join = data.draw(st.sampled_from(Join))
    own = {"array": data.draw(arrays), "join": join.value,
           "after": {**edges, **({"o": "success"} if with_other else {})}}  # fmt: skip
    spec = a_dag({**{up: data.draw(arrays) for up in names}, "o": "", "own": own})
    graph = Graph.of(spec)
    states = {"own": W, "o": data.draw(st.sampled_from([R, S, F]))}
    partners: dict[str, dict[int, EdgeState]] = {}
    for up in names:
        ends = {i: data.draw(st.sampled_from([OPEN, GOOD, DEAD])) for i in _indices(spec, up)}
        over = OPEN not in ends.values()
        states[up] = R if not over else S if DEAD not in ends.values() else F
        partners[up] = ends
    alike: dict[tuple[EdgeState | None, ...], int] = {}
    worths: list[EdgeState] = []
    for index in _indices(spec, "own"):
        key = tuple(partners[up].get(index) for up in names)
        alike[key] = alike.get(key, 0) + 1
        worths.append(_by_hand(spec, join, names, states, key, with_other=with_other))
    plan = decide(graph, states, OnFailure.CONTINUE, elements={"own": Elements(alike)})
    assert ("own" in plan.start) == (GOOD in worths)
    assert ("own" in plan.skip) == (set(worths) == {DEAD})
    if set(worths) == {DEAD} and not {R, W} & {states[each] for each in (*names, "o")}:
        assert plan.state is not DagState.RUNNING


def _indices(spec: DagSpec, name: str) -> Sequence[int]:
    array = spec.jobs[name].array
    assert array
    return [index for each in array.ranges for index in each.indices]


def _by_hand(
    spec: DagSpec, join: Join, ups: Sequence[str], states: Mapping[str, StepState],
    partners: Sequence[EdgeState | None], *, with_other: bool,
) -> EdgeState:  # fmt: skip
    """Return whether one element may start, never will, or waits."""
    found = [edge_state(Condition.SUCCESS, states["o"])] if with_other else []
    for up, partner in zip(ups, partners, strict=True):
        if partner is not None:
            found.append(partner)
        elif spec.jobs["own"].after[up].extra.value == "wait":
            found.append(edge_state(Condition.SUCCESS, states[up]))
    if not found:
        return GOOD
    good, dead = found.count(GOOD), found.count(DEAD)
    if join is Join.ALL:
        return DEAD if dead else GOOD if good == len(found) else OPEN
    return GOOD if good else DEAD if dead == len(found) else OPEN
