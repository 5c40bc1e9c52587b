"""The pages /dags and /dags/ID as HTML: the list, the drawing of a graph, and its jobs."""

from collections.abc import Iterable
from datetime import datetime
from urllib.parse import quote

from longshore.client.dag_view import job_state, remark, told
from longshore.console.dag_layout import HEIGHT, WIDTH, Line, layout
from longshore.console.escaping import escape
from longshore.console.formats import with_code
from longshore.console.parts import cell, chip, facts, number, table, when
from longshore.models.dag import Join
from longshore.models.dag_edges import Condition, Extra
from longshore.models.dag_view import DagJobView, DagSummary, DagView
from longshore.models.elements import ElementState
from longshore.models.text import amount, count, span

PATH = "/dags"
MOST_DRAWN = 200
"""Jobs of a graph that is drawn; of a larger one the list tells more."""
_LONGEST = 19
"""Characters of a name that a box has room for."""
_LEAST = 6
"""Of the indices of an array, beside its name."""


def list_html(dags: Iterable[DagSummary], now: datetime) -> str:
    """Return the table of DAGs; each leads to its page."""
    heads = ("DAG", "State", "Tenant", "Jobs", "Ended", "Took", "Reason")
    return table(
        "DAGs", heads, (_row(dag, now) for dag in dags), numbers=("Jobs", "Ended", "Took")
    )


def _row(dag: DagSummary, now: datetime) -> str:
    ended = sum(number for state, number in dag.counts.items() if state.ended)
    held = "held: submits no further job" if dag.held and not dag.state.ended else ""
    link = f'<a class="id" href="{PATH}/{quote(dag.id)}">{escape(dag.id)}</a>'
    took = span((dag.ended_at or now) - dag.submitted_at)
    return (
        f"<tr>{cell(link)}{cell(chip(dag.state.value))}{cell(escape(dag.tenant), 'Tenant')}"
        f"{number(count(dag.jobs), 'Jobs')}{number(count(ended), 'Ended')}{number(took, 'Took')}"
        f"{cell(with_code(dag.reason or held or told(dag)), folds=True)}</tr>"
    )


def head_html(dag: DagView, now: datetime) -> str:
    """Return a DAG in a few facts, and why it ended."""
    pairs = [
        ("Jobs", count(dag.jobs)),
        ("Ended", count(sum(number for state, number in dag.counts.items() if state.ended))),
        ("Submitted", when(dag.submitted_at)),
        ("Took" if dag.state.ended else "Takes so far",
         span((dag.ended_at or now) - dag.submitted_at)),
        ("GPU time", span(dag.gpu_time)),
        ("Booked so far", amount(dag.booked_micro_usd)),
        ("Tenant", escape(dag.tenant)),
        ("At a failure", "stops" if dag.on_failure.value == "stop" else "goes on"),
    ]  # fmt: skip
    if dag.generation > 1:
        pairs.append(("Retries", count(dag.generation - 1)))
    reason = f'<p class="reason">{with_code(dag.reason)}</p>' if dag.reason else ""
    held = '<p class="reason">Held: submits no further job until it is released.</p>'
    return facts(pairs) + reason + (held if dag.held and not dag.state.ended else "")


def jobs_html(dag: DagView, now: datetime) -> str:
    """Return the table of its jobs, upstream first."""
    mutex = ("Mutex",) if any(step.mutex for step in dag.steps) else ()
    heads = ("Job", "State", "After", *mutex, "GPUs", "Took", "GPU time", "Booked", "Reason")
    rows = (_job(step, now, mutex=bool(mutex)) for step in dag.steps)
    return table("Jobs", heads, rows, numbers=("GPUs", "Took", "GPU time", "Booked"))


def _job(step: DagJobView, now: datetime, *, mutex: bool) -> str:
    lasted = step.took(now)
    took = "–" if lasted is None else span(lasted)
    asked = cell(escape(", ".join(step.mutex)), "Mutex", folds=True) if mutex else ""
    gpus = f"{step.gpus} × {escape(step.gpu_type)}" if step.gpu_type else count(step.gpus)
    return (
        f"<tr>{cell(_link(step, escape(step.name)))}{cell(chip(job_state(step)))}"
        f"{cell(escape(_after(step)), 'After', folds=True)}{asked}{number(gpus, 'GPUs')}"
        f"{number(took, 'Took')}{number(span(step.gpu_time), 'GPU time')}"
        f"{number(amount(step.booked_micro_usd), 'Booked')}"
        f"{cell(escape(remark(step)), folds=True)}</tr>"
    )


def _after(step: DagJobView) -> str:
    """Return ``prepare, clean (any)``; of a join `any` with "or"."""
    parts = [
        up if edge.shown == Condition.SUCCESS else f"{up} ({edge.shown})"
        for up, edge in step.after.items()
    ]
    return (", " if step.join is Join.ALL else " or ").join(parts) or "–"


def _link(step: DagJobView, html: str) -> str:
    if step.job_id is None:
        return html
    return f'<a class="id" href="/jobs/{quote(step.job_id)}">{html}</a>'


def drawing_html(dag: DagView) -> str:
    """Return the graph as a drawing from left to right; nothing of one that is too large."""
    if len(dag.steps) > MOST_DRAWN:
        return ""
    drawn = layout(dag.steps)
    joins = {step.name: step.join for step in dag.steps}
    lines = "".join(_line(line, joins[line.to]) for line in drawn.lines)
    boxes = "".join(_box(step, drawn.boxes[step.name]) for step in dag.steps)
    words = (
        f"{count(len(dag.steps), 'job')} from left to right: {told(dag)}. The list below has all."
    )
    return (
        f'<svg class="dag" viewBox="0 0 {drawn.width} {drawn.height}" width="{drawn.width}"'
        f' height="{drawn.height}"'
        f' role="img" aria-label="{escape(words)}">{lines}{boxes}</svg>'
    )


def _line(line: Line, join: Join) -> str:
    edge = line.edge
    kind = f"{edge.condition.value}{' either' if join is Join.ANY else ''}"
    title = {
        Condition.SUCCESS: "needs its success", Condition.FAILURE: "needs its failure",
        Condition.ANY: "needs its end", Condition.CORRESPONDING: "element needs element",
    }[edge.condition]  # fmt: skip
    if edge.extra is Extra.WAIT:
        title += ", elements without a partner wait for all of it"
    if edge.condition is Condition.FAILURE and not edge.catch:
        title += ", which fails the DAG all the same"
    if edge.word:
        title += f" ({edge.word})"
    return f'<path class="{kind}" d="{line.path}"><title>{title}</title></path>'


def _box(step: DagJobView, place: tuple[int, int]) -> str:
    x, y = place
    state, done = job_state(step).lower(), _done(step)
    behind, indices, title = "", "", f"{step.name}: {state}"
    if step.array:
        # A second sheet, a little to the right and above.
        behind = (
            f'<path class="sheet" d="M{x + 6} {y - 4}H{x + WIDTH - 2}'
            f'a6 6 0 0 1 6 6V{y + HEIGHT - 6}"/>'
        )
        indices = f" [{_cut(step.array, max(_LONGEST - len(step.name) - 3, _LEAST))}]"
        title = f"{step.name}, array {step.array}: {state}"
        title += f", {done} elements have succeeded" if done else ""
    if step.mutex:
        title += f"; mutex {', '.join(step.mutex)}"
    name = escape(_cut(step.name, _LONGEST - len(indices)))
    name += f"<tspan>{escape(indices)}</tspan>" if indices else ""
    box = (
        f'<g class="{step.step.value.lower()}"><title>{escape(title)}</title>{behind}'
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x + 10}" y="{y + 15}">{name}</text>'
        f'<text class="said" x="{x + 10}" y="{y + 28}">{f"{state} {done}".rstrip()}</text></g>'
    )
    return _link(step, box)


def _done(step: DagJobView) -> str:
    """Return of an array that was submitted how many of its elements have succeeded: ``3/8``."""
    if not step.elements:
        return ""
    return f"{step.elements.get(ElementState.SUCCEEDED, 0)}/{sum(step.elements.values())}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(most - 1, 1)]}…"


def legend_html(dag: DagView) -> str:
    """Return what the lines and boxes of the graph mean, those that it has."""
    edges = [(edge.condition, step.join) for step in dag.steps for edge in step.after.values()]
    found = {condition for condition, _ in edges}
    kinds = [(each.value, words) for each, words in _EDGES.items() if each in found]
    if any(join is Join.ANY for _, join in edges):
        kinds.append(("success either", "dashed: one of these is enough"))
    items = "".join(
        f'<span><svg width="28" height="10" aria-hidden="true">'
        f'<path class="{kind}" d="M0 5H28"/></svg>{words}</span>'
        for kind, words in kinds
    )
    if any(step.array for step in dag.steps):
        items += (
            '<span><svg width="28" height="14" aria-hidden="true">'
            '<path class="sheet" d="M6 1H24a3 3 0 0 1 3 3V10"/>'
            '<rect x="1" y="4" width="22" height="9" rx="3"/></svg>'
            "array, with its indices and how many elements have succeeded</span>"
        )
    return f'<div class="legend of-dag">{items}</div>' if items else ""


_EDGES = {
    Condition.SUCCESS: "after its success",
    Condition.CORRESPONDING: "element after element (corresponding)",
    Condition.ANY: "after any end",
    Condition.FAILURE: "at a failure",
}
