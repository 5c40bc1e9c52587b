"""What a DAG does next: the table of edges, the worked cases, and random DAGs to their end."""

import difflib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.dag import DagSpec, Join, OnFailure
from longshore.models.dag_edges import Condition, Edge
from longshore.models.dag_view import DagState, StepState
from longshore.scheduling.dag import (
    DagPlan,
    EdgeState,
    Graph,
    decide,
    edge_state,
    uncaught,
    waits_for,
)
from longshore.scheduling.dag_problems import problems
from longshore.scheduling.dag_retry import reopened

W, S, F, C, N, K, R = (
    StepState.WAITING, StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED,
    StepState.WITHDRAWN, StepState.SKIPPED, StepState.SUBMITTED,
)  # fmt: skip


def a_dag(**jobs: Any) -> tuple[DagSpec, Graph]:
    """Return a DAG of jobs, given as what each comes after, or as its fields."""
    fields = {
        name: given if isinstance(given, dict) and "after" in given else {"after": given}
        for name, given in jobs.items()
    }
    spec = DagSpec.model_validate(
        {"name": "d", "jobs": {name: {"command": "x", **each} for name, each in fields.items()}}
    )
    return spec, Graph.of(spec)


def step(
    graph: Graph, *, on_failure: OnFailure = OnFailure.CONTINUE, **states: StepState
) -> DagPlan:
    known = {name: states.get(name, W) for name in graph.order}
    return decide(graph, known, on_failure)


@pytest.mark.parametrize(
    ("upstream", "success", "failure", "any_end"),
    [
        (S, "satisfied", "dead", "satisfied"),
        (F, "dead", "satisfied", "satisfied"),
        (C, "dead", "satisfied", "satisfied"),
        (N, "dead", "dead", "satisfied"),
        (K, "dead", "dead", "satisfied"),
        (W, "open", "open", "open"),
        (R, "open", "open", "open"),
    ],
)
def test_what_an_end_does_to_an_edge(
    upstream: StepState, success: str, failure: str, any_end: str
):
    found = [edge_state(condition, upstream) for condition in Condition]
    assert [each.value for each in found] == [success, failure, any_end, success]


def test_a_line_runs_one_job_after_the_other():
    _, graph = a_dag(prepare=[], train="prepare", evaluate={"after": {"train": "any"}})
    assert step(graph).start == ("prepare",)
    assert step(graph, prepare=R).start == ()
    assert step(graph, prepare=S).start == ("train",)
    assert step(graph, prepare=S, train=F).start == ("evaluate",)
    done = step(graph, prepare=S, train=S, evaluate=S)
    assert (done.state, done.reason) == (DagState.SUCCEEDED, "")


def test_a_fan_out_starts_at_once_and_a_fan_in_waits_for_all():
    _, graph = a_dag(root=[], a="root", b="root", c="root", end=["a", "b", "c"])
    assert step(graph, root=S).start == ("a", "b", "c")
    assert step(graph, root=S, a=S, b=S, c=R).start == ()
    assert step(graph, root=S, a=S, b=S, c=S).start == ("end",)


def test_a_failure_skips_what_needs_success_down_the_line():
    _, graph = a_dag(a=[], b="a", c="b", clean={"after": {"c": "any"}})
    plan = step(graph, a=F)
    assert plan.skip == {
        "b": "needs the success of a, which failed",
        "c": "needs the success of b, which was skipped",
    }
    assert plan.start == ("clean",), "a clean-up runs whatever came before"
    end = step(graph, a=F, b=K, c=K, clean=S)
    assert (end.state, end.reason) == (DagState.FAILED, "a failed")


def test_a_failure_edge_catches_and_any_does_not():
    _, caught = a_dag(a=[], mend={"after": {"a": "failure"}})
    assert step(caught, a=F).start == ("mend",)
    assert step(caught, a=F, mend=S).state is DagState.SUCCEEDED
    assert step(caught, a=S).skip.keys() == {"mend"}
    _, cleaned = a_dag(a=[], clean={"after": {"a": "any"}})
    assert step(cleaned, a=F, clean=S).state is DagState.FAILED
    _, told = a_dag(a=[], tell={"after": {"a": {"condition": "failure", "catch": False}}})
    assert step(told, a=F).start == ("tell",)
    assert step(told, a=F, tell=S).state is DagState.FAILED


def test_notify_on_any_failure():
    _, graph = a_dag(a=[], b=[], tell={"after": {"a": "failure", "b": "failure"}, "join": "any"})
    assert step(graph, a=F, b=R).start == ("tell",), "it does not wait for b"
    assert step(graph, a=F, b=F, tell=R).start == (), "and does not start twice"
    assert step(graph, a=S, b=R).skip == {}
    assert step(graph, a=S, b=S).skip == {
        "tell": "needs the failure of a, which succeeded, and 1 more condition"
    }


def test_a_job_that_was_cancelled_before_it_started_has_not_failed():
    _, graph = a_dag(a=[], mend={"after": {"a": "failure"}})
    assert step(graph, a=N).skip.keys() == {"mend"}
    assert step(graph, a=C).start == ("mend",)


def test_stop_cancels_the_others_and_runs_those_that_wait_for_the_failure():
    spec, graph = a_dag(
        a=[], long=[], b="a", tell={"after": {"a": {"condition": "failure", "catch": False}}},
        after_long="long",
    )  # fmt: skip
    plan = step(graph, on_failure=OnFailure.STOP, a=F, long=R)
    assert plan.start == ("tell",)
    assert plan.cancel == ("long",)
    assert plan.stopped_by == "a"
    assert plan.skip.keys() == {"b", "after_long"}
    # What the stop cancels is no failure that stops it anew, and starts nothing.
    later = {"a": F, "long": C, "b": K, "tell": R, "after_long": K}
    again = decide(graph, later, spec.on_failure, stopped_by="a")
    assert (again.start, again.cancel) == ((), ())


def test_what_a_stop_skips_settles_the_jobs_that_wait_for_the_failure():
    """Nothing runs any more: nobody would look again."""
    _, graph = a_dag(a=[], b=[], c="b", k={"after": {"a": "any", "c": "any"}})
    plan = step(graph, on_failure=OnFailure.STOP, a=F, b=S)
    assert (plan.start, plan.skip.keys()) == (("k",), {"c"})
    _, graph = a_dag(a=[], b=[], c="b", k={"after": {"a": "any", "c": "success"}})
    plan = step(graph, on_failure=OnFailure.STOP, a=F, b=S)
    assert (plan.state, plan.skip.keys()) == (DagState.FAILED, {"c", "k"})


def test_a_cancel_that_comes_after_all_has_ended_changes_nothing():
    spec, graph = a_dag(a=[], b="a")
    plan = decide(graph, {"a": S, "b": S}, spec.on_failure, cancelled="too late")
    assert (plan.state, plan.reason) == (DagState.SUCCEEDED, "")


def test_stop_leaves_a_failure_that_is_caught():
    _, graph = a_dag(a=[], long=[], mend={"after": {"a": "failure"}})
    plan = step(graph, on_failure=OnFailure.STOP, a=F, long=R)
    assert (plan.start, plan.cancel, plan.stopped_by) == (("mend",), (), None)


def test_a_cancelled_dag_starts_nothing_not_even_a_notifier():
    spec, graph = a_dag(a=[], b="a", tell={"after": {"a": "any"}})
    plan = decide(graph, {"a": R, "b": W, "tell": W}, spec.on_failure, cancelled="enough")
    assert (plan.start, plan.cancel, plan.state) == ((), ("a",), DagState.RUNNING)
    assert dict(plan.skip) == {"b": "enough", "tell": "enough"}
    end = decide(graph, {"a": C, "b": N, "tell": N}, spec.on_failure, cancelled="enough")
    assert end.state is DagState.CANCELLED


def test_a_held_dag_skips_and_starts_nothing():
    spec, graph = a_dag(a=[], b="a", c={"after": {"a": "failure"}})
    plan = decide(graph, {"a": S, "b": W, "c": W}, spec.on_failure, held=True)
    assert (plan.start, plan.skip.keys()) == ((), {"c"})


def test_a_retry_runs_again_what_did_not_succeed_and_what_ran_because_of_it():
    _, graph = a_dag(
        a=[], b="a", c="b", tell={"after": {"b": "failure"}}, other=[], behind="other",
        clean={"after": {"c": "any"}},
    )  # fmt: skip
    states = {"a": S, "b": F, "c": K, "tell": S, "other": S, "behind": S, "clean": S}
    assert reopened(graph, states).jobs == ("b", "c", "tell", "clean")


def test_a_retry_has_something_to_run_where_a_job_failed_or_was_cancelled_caught_or_not():
    _, graph = a_dag(a=[], b="a", mend={"after": {"a": "failure"}}, tell={"after": {"b": "any"}})
    caught = {"a": F, "b": K, "mend": S, "tell": S}
    assert reopened(graph, caught).jobs == ("a", "b", "mend", "tell")
    left_out = {"a": S, "b": N, "mend": K, "tell": S}
    assert reopened(graph, left_out).jobs == ("b", "mend", "tell")
    green = {"a": S, "b": S, "mend": K, "tell": S}
    assert reopened(graph, green).jobs == (), "what was skipped would be skipped again"
    assert reopened(graph, green, anew={"b"}).jobs == ("b", "mend", "tell")


def test_a_job_that_somebody_cancels_while_it_waits_satisfies_only_any():
    _, graph = a_dag(
        a=[], b="a", c="b", mend={"after": {"b": "failure"}}, clean={"after": {"b": "any"}}
    )
    known = {"a": R, "b": W, "c": W, "mend": W, "clean": W}
    plan = decide(
        graph, known, OnFailure.CONTINUE, withdrawn={"a": "x", "b": "mistaken", "z": "x"}
    )
    assert plan.states == {"a": R, "b": N, "c": K, "mend": K, "clean": W}
    assert plan.skip == {
        "b": "mistaken",
        "c": "needs the success of b, which was cancelled before it started",
        "mend": "needs the failure of b, which was cancelled before it started",
    }
    assert (plan.start, plan.cancel) == (("clean",), ()), "a is for the caller"
    end = step(graph, a=S, b=N, c=K, mend=K, clean=S)
    assert (end.state, end.reason) == (DagState.FAILED, "b was cancelled before it started")
    held = decide(graph, known, OnFailure.CONTINUE, held=True, withdrawn={"b": "mistaken"})
    assert (held.states["b"], held.start) == (N, ())


def test_what_a_job_waits_for_is_told():
    _, graph = a_dag(a=[], b=[], c={"after": {"a": "success", "b": "any"}})
    states = {"a": W, "b": W, "c": W}
    assert waits_for(graph, "c", states) == "waits for the success of a and the end of b"
    assert waits_for(graph, "c", {**states, "a": S}) == "waits for the end of b"
    ready = {**states, "a": S, "b": S}
    assert waits_for(graph, "c", ready) == "is about to be submitted"
    assert (
        waits_for(graph, "c", ready, held=True)
        == "waits for the release of the DAG, which is held"
    )


def test_every_mistake_of_the_edges_is_named_at_once():
    found = problems(
        {"a": {"c": Edge()}, "b": {"a": Edge(condition=Condition.ANY)}, "c": {"b": Edge()},
         "d": {"d": Edge()}, "train": {}, "e": {"trian": Edge()}},
        most=5,
    )  # fmt: skip
    assert [(each.place, each.message) for each in found] == [
        (("jobs",), "has 6 jobs; 5 is the most (setting most_dag_jobs): use several DAGs"),
        (("jobs", "d", "after", "d"), "a job cannot come after itself"),
        (("jobs", "e", "after", "trian"), "no such job; did you mean train?"),
        (("jobs", "a", "after", "c"),
         "a cycle: a comes after c (success); c comes after b (success); b comes after a (any)"),
    ]  # fmt: skip


def test_no_job_is_named_like_the_retry_of_another():
    found = problems({"a": {}, "a.r2": {}, "b.r": {}, "c.r2.x": {}}, most=10)
    assert [each.place for each in found] == [("jobs", "a.r2")]


def test_each_of_two_cycles_is_named():
    edges = {"a": {"b": Edge()}, "b": {"a": Edge()}, "c": {"d": Edge()}, "d": {"c": Edge()}}
    assert [each.place[1] for each in problems(edges, most=10)] == ["a", "c"]


def test_cycles_that_share_a_job_are_named_at_once():
    edges = {"s": {"u": Edge(), "t": Edge()}, "t": {"s": Edge()}, "u": {"s": Edge()}}
    places = {each.place[1:] for each in problems(edges, most=10)}
    assert places == {("s", "after", "u"), ("s", "after", "t")}


def test_what_is_wrong_with_a_large_graph_is_found_soon(monkeypatch: pytest.MonkeyPatch):
    """A name that was meant is looked for a few times, and a few cycles are told."""
    asked: list[str] = []
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda name, names, n: asked.append(name) or []
    )
    unknown = {f"j{n}": {f"u{n}-{m}": Edge() for m in range(10)} for n in range(500)}
    found = problems(unknown, most=1000)
    assert (len(found), len(asked)) == (5000, 10)
    pairs = {f"j{n}": {f"j{n ^ 1}": Edge()} for n in range(500)}
    *cycles, more = problems(pairs, most=1000)
    assert (len(cycles), more.message) == (
        20,
        "there may be more cycles: the 20 named leave out that j40 comes after j41 (success)",
    )
    (ring,) = problems({f"j{n}": {f"j{(n + 1) % 500}": Edge()} for n in range(500)}, most=1000)
    assert ring.message.count("comes after") == 20
    assert ring.message.endswith("; and 480 more")


# --- random DAGs -------------------------------------------------------------------------------

_PLAIN = [each for each in Condition if each is not Condition.CORRESPONDING]
_ENDS = st.sampled_from([S, S, S, F, C, N])


@st.composite
def dags(draw: st.DrawFn) -> tuple[Graph, dict[str, StepState], OnFailure]:
    """Draw a DAG, how each job would end, and what a failure does."""
    names = [f"j{number}" for number in range(draw(st.integers(1, 9)))]
    edges: dict[str, dict[str, Edge]] = {}
    for number, name in enumerate(names):
        ups = (
            draw(st.lists(st.sampled_from(names[:number]), max_size=3, unique=True))
            if number
            else []
        )
        edges[name] = {
            up: Edge(condition=draw(st.sampled_from(_PLAIN)), catch=draw(st.booleans()))
            for up in ups
        }
    spec = DagSpec.model_validate(
        {"name": "d", "jobs": {
            name: {"command": "x", "after": after, "join": draw(st.sampled_from(Join))}
            for name, after in edges.items()
        }}
    )  # fmt: skip
    ends = {name: draw(_ENDS) for name in names}
    return Graph.of(spec), ends, draw(st.sampled_from(OnFailure))


def by_the_book(graph: Graph, ends: Mapping[str, StepState]) -> dict[str, StepState]:
    """Return how all jobs end where nothing stops the DAG: each looked at once, upstream first."""
    found: dict[str, StepState] = {}
    for name in graph.order:
        worth = [edge_state(edge.condition, found[up]) for up, edge in graph.edges[name].items()]
        alive = [each is EdgeState.SATISFIED for each in worth]
        runs = all(alive) if graph.joins[name] is Join.ALL else any(alive) or not alive
        found[name] = ends[name] if runs else K
    return found


@given(dags(), st.data())
def test_random_dags_come_to_their_end_as_by_the_book(
    drawn: tuple[Graph, dict[str, StepState], OnFailure], data: st.DataObject
):
    graph, ends, on_failure = drawn
    states = dict.fromkeys(graph.order, W)
    started: list[str] = []
    stopped_by: str | None = None
    plan = decide(graph, states, on_failure)
    for _ in range(4 * len(states) + 2):
        plan = decide(graph, states, on_failure, stopped_by=stopped_by)
        stopped_by = plan.stopped_by
        assert not set(plan.start) & set(plan.skip)
        started += plan.start
        states = {**plan.states, **dict.fromkeys(plan.start, R)}
        running = [name for name in graph.order if states[name] is R]
        if plan.state.ended:
            break
        assert running, "nothing runs, and it has not ended: it hangs"
        # A batch of any size ends between two looks; what is cancelled ends as cancelled.
        batch = data.draw(st.lists(st.sampled_from(running), min_size=1, unique=True))
        for name in batch:
            states[name] = C if name in plan.cancel else ends[name]
    assert plan.state.ended
    assert len(started) == len(set(started)), "a job started twice"
    assert (plan.state is DagState.FAILED) == bool(uncaught(graph, states))
    if stopped_by is None:
        assert states == by_the_book(graph, ends)


@given(dags())
def test_a_retry_ends_as_if_the_first_try_had_gone_well(
    drawn: tuple[Graph, dict[str, StepState], OnFailure],
):
    graph, ends, _ = drawn
    first = by_the_book(graph, ends)
    again = reopened(graph, first).jobs
    if not {F, C, N} & set(first.values()):
        assert again == (), "what was skipped would be skipped again"
        return
    kept = {name: state for name, state in first.items() if name not in again}
    assert set(kept.values()) <= {S}
    well = by_the_book(graph, dict.fromkeys(graph.order, S))
    states = {**dict.fromkeys(again, W), **kept}
    for _ in graph.order:
        plan = decide(graph, states, OnFailure.CONTINUE)
        states = {**plan.states, **dict.fromkeys(plan.start, S)}
    # A job that ran before because of a success keeps its result.
    assert {name: states[name] for name in again} == {name: well[name] for name in again}
