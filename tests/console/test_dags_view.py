"""The pages of DAGs as HTML: where the boxes of a graph stand, and that nothing is obeyed."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longshore.console.dag_layout import HEIGHT, WIDTH
from longshore.console.dag_timeline import MOST_SHOWN, timeline_html
from longshore.console.dags_view import (
    MOST_DRAWN,
    drawing_html,
    head_html,
    jobs_html,
    legend_html,
    list_html,
)
from longshore.models.dag import Join, OnFailure
from longshore.models.dag_edges import Edge
from longshore.models.dag_view import DagJobView, DagState, DagView, StepAttempt, StepState
from longshore.models.elements import ElementState
from longshore.models.job_status import JobState

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


def a_dag(after: dict[str, Any], **fields: Any) -> DagView:
    steps = tuple(
        DagJobView(
            name=name, after={up: Edge.model_validate("success") for up in ups}, join=Join.ALL,
            step=StepState.WAITING, gpus=1,
        )
        for name, ups in after.items()
    )  # fmt: skip
    basics: dict[str, Any] = {
        "id": "nightly-abcdefghij", "name": "nightly", "tenant": "lab", "state": DagState.RUNNING,
        "submitted_at": NOW - timedelta(minutes=3), "jobs": len(steps),
        "counts": {StepState.WAITING: len(steps)}, "on_failure": OnFailure.STOP, "steps": steps,
    }  # fmt: skip
    return DagView(**{**basics, **fields})


def corners(html: str) -> dict[str, tuple[int, int]]:
    found = re.findall(r'<rect x="(\d+)" y="(\d+)".*?<text[^>]*>([^<]*)</text>', html)
    return {name: (int(x), int(y)) for x, y, name in found}


def test_each_job_stands_right_of_all_that_it_comes_after():
    at = corners(drawing_html(a_dag({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "a"]})))
    assert at["a"][0] < at["b"][0] == at["c"][0] < at["d"][0]
    assert len(set(at.values())) == 4, "no two stand in one place"


def test_a_line_has_no_crossing():
    after = {"a": [], "x": [], "b": ["a"], "y": ["x"], "c": ["b"], "z": ["y"]}
    at = corners(drawing_html(a_dag(after)))
    assert at["a"][1] == at["b"][1] == at["c"][1] != at["x"][1] == at["y"][1] == at["z"][1]


def test_cells_name_their_columns_for_narrow_screens_and_remarks_fold():
    dag = a_dag({"a": [], "b": ["a"]})
    for html, row in ((jobs_html(dag, NOW), 2), (list_html([dag], NOW), 1)):
        heads = set(re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', html))
        named = re.findall(r'<td[^>]* data-head="([^"]+)"', html)
        assert set(named) == heads - {"Job", "DAG", "State", "Reason"}
        assert len(re.findall(r'<td class="fold">', html)) == row


def lines(html: str) -> list[list[tuple[float, float]]]:
    """Return points along each line that is drawn."""
    found: list[list[tuple[float, float]]] = []
    for path in re.findall(r' d="(M[^"]*)"><title>', html):
        begin, bend = path.split("C")
        x0, y1, x1 = (list(map(float, re.findall(r"[\d.]+", begin))) * 2)[:3]
        bx1, by1, bx2, by2, x2, y2 = map(float, re.findall(r"[\d.]+", bend))
        parts = [n / 20 for n in range(21)]
        points = [
            (
                (1 - t) ** 3 * x1 + 3 * (1 - t) ** 2 * t * bx1 + 3 * (1 - t) * t * t * bx2
                + t**3 * x2,
                (1 - t) ** 3 * y1 + 3 * (1 - t) ** 2 * t * by1 + 3 * (1 - t) * t * t * by2
                + t**3 * y2,
            )
            for t in parts
        ]  # fmt: skip
        points += [(x0 + (x1 - x0) * t, y1) for t in parts]  # past a column, where it does
        found.append(points)
    return found


@given(st.lists(st.sets(st.integers(0, 12), max_size=5), min_size=1, max_size=13))
def test_no_line_passes_through_a_box(drawn: list[set[int]]):
    after = {f"j{n}": [f"j{up}" for up in sorted(ups) if up < n] for n, ups in enumerate(drawn)}
    html = drawing_html(a_dag(after))
    at = corners(html)
    assert len(set(at.values())) == len(after), "no two stand in one place"
    for x, y in (point for line in lines(html) for point in line):
        for left, top in at.values():
            inside = left < x < left + WIDTH and top - 1 < y < top + HEIGHT + 1
            assert not inside
    view = re.search(r'viewBox="0 0 (\d+) (\d+)"', html)
    assert view
    for x, y in (point for line in lines(html) for point in line):
        assert 0 <= x <= int(view[1])
        assert 0 <= y <= int(view[2])
    assert len(lines(html)) >= sum(map(bool, after.values()))


def test_edges_of_one_condition_to_one_job_pass_others_together():
    html = drawing_html(a_dag({"a": [], "b": ["a"], "c": ["b"], "end": ["a", "b", "c"]}))
    assert len({y for _, y in corners(html).values()}) == 1
    found = re.findall(r' d="(M[^"]*)"><title>', html)
    # A line for each edge to the next column or a lane, and two that pass b, then c, for all.
    assert len(found) == 5 + 2
    assert sum(" H" in path for path in found) == 2


def test_an_edge_from_element_to_element_is_drawn_as_such():
    edge = Edge.model_validate("corresponding")
    dag = a_dag({"a": [], "b": ["a"]})
    b = dag.steps[1].model_copy(update={"after": {"a": edge}})
    dag = dag.model_copy(update={"steps": (dag.steps[0], b)})
    assert re.search('class="corresponding" d="[^"]*"><title>element needs', drawing_html(dag))
    assert "a (corresponding)" in jobs_html(dag, NOW)


def test_the_key_names_each_kind_of_line_that_is_drawn_and_no_other():
    words = {
        "success": "after its success", "failure": "at a failure", "any": "after any end",
        "corresponding": "element after element (corresponding)",
    }  # fmt: skip
    for condition in words:
        dag = a_dag({"a": [], "b": ["a"]})
        b = dag.steps[1].model_copy(update={"after": {"a": Edge.model_validate(condition)}})
        key = legend_html(dag.model_copy(update={"steps": (dag.steps[0], b)}))
        assert [each for each in words if words[each] in key] == [condition]
        assert f'<path class="{condition}"' in key
        assert "one of these is enough" not in key
        either = b.model_copy(update={"join": Join.ANY})
        key = legend_html(dag.model_copy(update={"steps": (dag.steps[0], either)}))
        assert "dashed: one of these is enough" in key
    assert legend_html(a_dag({"a": []})) == ""


def test_a_mutex_stands_in_a_column_of_its_own_where_a_job_has_one():
    dag = a_dag({"a": [], "b": ["a"]})
    assert "Mutex" not in jobs_html(dag, NOW)
    assert "mutex" not in drawing_html(dag)
    b = dag.steps[1].model_copy(update={"mutex": ("database", "disk")})
    dag = dag.model_copy(update={"steps": (dag.steps[0], b)})
    asked = re.findall(r'<td class="fold" data-head="Mutex">([^<]*)</td>', jobs_html(dag, NOW))
    assert asked == ["", "database, disk"]
    assert '<th scope="col">After</th><th scope="col">Mutex</th>' in jobs_html(dag, NOW)
    assert re.findall("<title>(.: .*?)</title>", drawing_html(dag)) == [
        "a: waiting", "b: waiting; mutex database, disk",
    ]  # fmt: skip


def test_an_array_has_a_mark_its_indices_and_how_many_elements_have_succeeded():
    dag = a_dag({"a": [], "b": []})
    counts = {ElementState.SUCCEEDED: 3, ElementState.RUNNING: 2, ElementState.WAITING: 3}
    ran = {"array": "0-7%2", "elements": counts, "step": StepState.SUBMITTED}
    a = dag.steps[0].model_copy(update={**ran, "state": JobState.RUNNING})
    dag = dag.model_copy(update={"steps": (a, dag.steps[1])})
    drawn = drawing_html(dag)
    assert "a<tspan> [0-7%2]</tspan></text>" in drawn
    assert ">running 3/8</text>" in drawn
    assert "a, array 0-7%2: running, 3/8 elements have succeeded" in drawn
    assert drawn.count('class="sheet"') == 1, "b is none"
    assert "array, with its indices" in legend_html(dag)
    long = a.model_copy(update={"name": "a" * 40, "array": "1,3,5,7,9,11,13,15,17"})
    (name, indices) = re.findall(
        r">([^<]*)<tspan>([^<]*)</tspan>",
        drawing_html(dag.model_copy(update={"steps": (long,)})),
    )[0]
    assert len(name + indices) <= 19


def test_facts_stand_in_rows_of_about_the_same_length():
    html = head_html(a_dag({"a": []}), NOW)
    assert html.count("<dt>") == 8
    assert 'style="--columns:4"' in html, "four and four, and not seven and one"
    nine = head_html(a_dag({"a": []}, generation=2), NOW)
    assert 'style="--columns:5"' in nine


def test_a_large_graph_is_not_drawn():
    line = {f"j{n}": [f"j{n - 1}"] if n else [] for n in range(MOST_DRAWN + 1)}
    assert not drawing_html(a_dag(line))
    assert drawing_html(a_dag({"a": []}))


def test_what_others_wrote_is_shown_and_not_obeyed():
    bad = "<script>alert(1)</script>"
    dag = a_dag({"a": []}, reason=bad, state=DagState.FAILED, ended_at=NOW)
    step = dag.steps[0].model_copy(update={"reason": bad, "gpu_type": bad})
    dag = dag.model_copy(update={"steps": (step,)})
    for html in (head_html(dag, NOW), jobs_html(dag, NOW), list_html([dag], NOW)):
        assert "&lt;script&gt;" in html
        assert "<script" not in html


def test_each_submitted_job_has_its_wait_and_its_run_on_the_timeline():
    dag = a_dag({"a": [], "b": ["a"], "c": ["b"]}, submitted_at=NOW - timedelta(minutes=10))
    a, b, c = dag.steps
    start = NOW - timedelta(minutes=10)
    ran = {"submitted_at": start, "started_at": start + timedelta(minutes=1),
           "ended_at": start + timedelta(minutes=5), "step": StepState.SUCCEEDED}  # fmt: skip
    waits = {"submitted_at": start + timedelta(minutes=5), "step": StepState.SUBMITTED}
    steps = (a.model_copy(update=ran), b.model_copy(update=waits), c)
    html = timeline_html(dag.model_copy(update={"steps": steps}), NOW)
    bars = r'class="(wait|use ran \w+)" style="left:([\d.]+)%;width:([\d.]+)%'
    assert re.findall(bars, html) == [
        ("wait", "0.0", "10.0"),
        ("use ran succeeded", "10.0", "40.0"),
        ("wait", "50.0", "50.0"),
    ]
    assert 'aria-label="a: waited 1m, ran 4m"' in html
    assert 'aria-label="b: waited 5m"' in html
    assert ">c<" not in html, "it was not submitted"
    assert timeline_html(dag, NOW) == ""
    line = a_dag({f"j{n}": [] for n in range(MOST_SHOWN + 1)})
    many = tuple(step.model_copy(update=ran) for step in line.steps)
    assert timeline_html(line.model_copy(update={"steps": many}), NOW) == ""


def test_attempts_stand_apart_on_the_timeline_with_the_waits_between_them():
    dag = a_dag({"a": []}, submitted_at=NOW - timedelta(minutes=100))
    start = NOW - timedelta(minutes=100)

    def at(minutes: int) -> datetime:
        return start + timedelta(minutes=minutes)

    tries = (
        StepAttempt(attempt=1, started_at=at(10), ended_at=at(30), end_reason="preempted"),
        StepAttempt(attempt=2, started_at=at(50), ended_at=at(55), end_reason="node-lost"),
        StepAttempt(attempt=3, started_at=at(60)),
    )
    runs = {"submitted_at": start, "started_at": at(10), "step": StepState.SUBMITTED}
    step = dag.steps[0].model_copy(update={**runs, "attempts": tries, "state": JobState.RUNNING})
    html = timeline_html(dag.model_copy(update={"steps": (step,)}), NOW)
    bars = r'class="(wait|use ran \w+)" style="left:([\d.]+)%;width:([\d.]+)%'
    assert re.findall(bars, html) == [
        ("wait", "0.0", "10.0"),
        ("use ran stopped", "10.0", "20.0"),
        ("wait", "30.0", "20.0"),
        ("use ran stopped", "50.0", "5.0"),
        ("wait", "55.0", "5.0"),
        ("use ran submitted", "60.0", "40.0"),
    ]
    assert 'title="attempt 1: 20m, preempted"><small>20m</small>' in html
    assert 'title="attempt 2: 5m, node-lost"></span>' in html, "no room for a label"
    assert "runs for 1h 30m in 3 attempts" in html
    assert "grey: an attempt before the last" in html
    queued = step.model_copy(update={"attempts": tries[:2], "state": JobState.QUEUED})
    html = timeline_html(dag.model_copy(update={"steps": (queued,)}), NOW)
    assert re.findall(bars, html)[-1] == ("wait", "55.0", "45.0")


def test_the_time_of_a_short_run_stands_beside_its_bar_and_within_the_axis():
    start = NOW - timedelta(minutes=100)
    dag = a_dag({"first": [], "last": []}, submitted_at=start)

    def ran(name: int, since: int, until: int) -> DagJobView:
        times = {"submitted_at": start + timedelta(minutes=since - 1),
                 "started_at": start + timedelta(minutes=since),
                 "ended_at": start + timedelta(minutes=until)}  # fmt: skip
        return dag.steps[name].model_copy(update={**times, "step": StepState.SUCCEEDED})

    html = timeline_html(
        dag.model_copy(update={"steps": (ran(0, 1, 2), ran(1, 98, 100)), "ended_at": NOW}), NOW
    )
    assert '<span class="beside-bar" style="left:2.0%"><small>1m</small></span>' in html
    assert '<span class="beside-bar before" style="right:3.0%"><small>2m</small></span>' in html
    assert html.count("<small>1m</small>") == 1


def test_the_times_of_a_short_axis_have_seconds_and_none_is_cut_at_its_end():
    start = NOW - timedelta(seconds=11)
    dag = a_dag({"a": []}, submitted_at=start, ended_at=NOW)
    ran = {"submitted_at": start, "started_at": start, "ended_at": NOW}
    step = dag.steps[0].model_copy(update={**ran, "step": StepState.SUCCEEDED})
    html = timeline_html(dag.model_copy(update={"steps": (step,)}), NOW)
    assert re.findall(r'class="tick" style="left:([\d.]+)%">([^<]*)<', html) == [
        ("9.091", "11:59:50"), ("54.545", "11:59:55"),
    ]  # fmt: skip
