"""The page of an array as HTML: its elements by state, those that failed alike, and some of them
one by one."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from longshore.client.job_view import cost_text
from longshore.console.escaping import escape
from longshore.console.formats import with_code
from longshore.console.jobs_view import link
from longshore.console.parts import cell, chip, number, table
from longshore.models.array_view import ArrayView, ElementView, ErrorGroup
from longshore.models.elements import ElementState
from longshore.models.spending import JobCost
from longshore.models.text import count, span
from longshore.scheduling.arrays import aside_text, progress_text

SHOWN = 50
"""Elements that are listed one by one."""
TOLD_FIRST = (ElementState.FAILED, ElementState.RUNNING)
"""States whose elements are listed, in this order, where there are any."""
_ORDER = (
    ElementState.SUCCEEDED, ElementState.FAILED, ElementState.CANCELLED, ElementState.SKIPPED,
    ElementState.RUNNING, ElementState.WAITING, ElementState.BLOCKED,
)  # fmt: skip
_CLAIMED = "claimed"


def array_facts(array: ArrayView) -> list[tuple[str, str]]:
    """Return how many elements an array has, and how many run at a time."""
    slots = f"{count(array.placed)} <small>at most {count(array.limit)}</small>"
    return [("Elements", count(array.elements)), ("Slots with GPUs", slots)]


def bar_html(array: ArrayView, cost: JobCost | None) -> str:
    """Return a bar of the elements by state with its legend, the slots, and the cost so far."""
    words = progress_text(array.counts, array.claimed)
    parts = {name: number for name, number in _parts(array.counts, array.claimed) if number}
    pieces = "".join(
        f'<span class="el {name}" style="flex-grow:{number}" title="{count(number)} {name}">'
        "</span>"
        for name, number in parts.items()
    )
    legend = "".join(
        f'<span><i class="part el {name}"></i>{count(number)} {name}</span>'
        for name, number in parts.items()
    )
    waits = array.waiting_slot
    slot = f"; {link(waits)} waits for GPUs" if waits else ""
    said = [f"{count(array.attempts, 'attempt')} of elements so far."]
    if array.slots:
        said.append(f"{array.placed} of {count(array.slots, 'slot')} have GPUs{slot}.")
    if array.aside:
        said.append(f"{escape(aside_text(array.aside))}.")
    if cost is not None:
        said.append(f"Cost: {escape(cost_text(cost))}.")
    return (
        f'<div class="padded"><div class="elements" role="img" aria-label="{escape(words)}">'
        f'{pieces}</div></div><div class="legend">{legend}</div>'
        f'<p class="reason">{" ".join(said)}</p>'
    )


def _parts(counts: Mapping[ElementState, int], claimed: int) -> Iterable[tuple[str, int]]:
    """Yield the states by the words of the legend, each with its elements; those that a slot has
    claimed, and does not run, apart."""
    for state in _ORDER:
        number = counts.get(state, 0)
        if state is ElementState.RUNNING:
            yield "running", number - claimed
            yield _CLAIMED, claimed
        else:
            yield state.value.lower(), number


def errors_html(errors: Sequence[ErrorGroup]) -> str:
    """Return the elements that failed, those alike in one row; nothing where none has."""
    if not errors:
        return ""
    return table(
        "Elements that failed, the largest groups first",
        ("Elements", "Failure", "Code", "Last line", "Index"),
        (
            f'<tr><th scope="row" data-head="Elements">{count(each.elements)}</th>'
            f"{cell(escape(each.failure.value.lower() if each.failure else '–'), 'Failure')}"
            f"{number('–' if each.exit_code is None else str(each.exit_code), 'Code')}"
            f"{cell(escape(each.message) or '–', 'Last line', folds=True)}"
            f"{cell(escape(each.indices), 'Index', folds=True)}</tr>"
            for each in errors
        ),
        numbers=("Code",),
    )


def elements_html(
    array_id: str, elements: Sequence[ElementView], of: int, claimed: int, now: datetime
) -> str:
    """Return elements, how many of the same states more there are (`of` in all), and that those
    which slots have `claimed` do not run."""
    if not elements:
        return ""
    more = of - len(elements)
    notes = [f"{count(more)} more:"] if more > 0 else []
    notes.append(f"`longshore elements {array_id}` lists all, `--state` those of one state.")
    if claimed:
        notes.append(
            f"Of those in the hands of slots {count(claimed)} are claimed, and do not run: a slot "
            "runs its elements one after another, and tells of several at once."
        )
    return (
        table(
            "Elements by index",
            ("Index", "State", "Attempt", "Code", "Lasted", "Node", "Error"),
            (_element(each, now) for each in elements),
            numbers=("Attempt", "Code", "Lasted"),
        )
        + f'<p class="reason">{with_code(" ".join(notes))}</p>'
    )


def _element(each: ElementView, now: datetime) -> str:
    # What there is not is empty, which takes no place on a phone.
    lasted = span((each.ended_at or now) - each.started_at) if each.started_at else ""
    node = f'<span class="id">{escape(each.node_id)}</span>' if each.node_id else ""
    code = "" if each.exit_code is None else str(each.exit_code)
    return (
        f'<tr><th scope="row" data-head="Index">{each.index}</th>'
        f"{cell(chip(each.state.value), 'State')}{number(str(each.attempt), 'Attempt')}"
        f"{number(code, 'Code')}{number(lasted, 'Lasted')}{cell(node, 'Node')}"
        f"{cell(escape(each.message), folds=True)}</tr>"
    )
