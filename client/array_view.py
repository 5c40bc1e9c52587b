"""How arrays look: the bar of states, the first errors, and the elements one by one."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table

from longshore.client.terminal import Text, a_table, heading
from longshore.models.array_view import ArrayView, ElementView, ErrorGroup
from longshore.models.elements import ElementState
from longshore.models.text import count, span
from longshore.models.visible import in_one_line
from longshore.scheduling.arrays import aside_text, progress_text

_WIDTH = 40
_LOOKS = {
    ElementState.SUCCEEDED: ("#", "green"), ElementState.FAILED: ("x", "red"),
    ElementState.CANCELLED: ("-", "yellow"), ElementState.SKIPPED: ("/", "yellow"),
    ElementState.RUNNING: (">", "cyan"), ElementState.WAITING: (".", "dim"),
    ElementState.BLOCKED: (":", "dim"),
}  # fmt: skip


def array_parts(array: ArrayView) -> list[RenderableType]:
    """Return what `job` shows of an array beside what it shows of each job."""
    parts: list[RenderableType] = [
        Text(),
        Text.assemble(
            bar(array.counts, claimed=array.claimed), "  ",
            progress_text(array.counts, array.claimed),
        ),
        Text(_slots(array)),
    ]  # fmt: skip
    if array.errors:
        parts += [Text(), heading("Elements that failed"), _errors_table(array.errors)]
    return parts


def bar(counts: Mapping[ElementState, int], width: int = _WIDTH, *, claimed: int = 0) -> Text:
    """Return ``[######xx>>......]``: a state that has elements has a character at least.

    Those that a slot has claimed, and does not run, look as those that wait."""
    counts = {
        **counts,
        ElementState.RUNNING: counts.get(ElementState.RUNNING, 0) - claimed,
        ElementState.WAITING: counts.get(ElementState.WAITING, 0) + claimed,
    }
    total = sum(counts.values())
    found = [(state, counts[state]) for state in _LOOKS if counts.get(state)]
    cells = {state: max(round(width * number / total), 1) for state, number in found}
    while cells and sum(cells.values()) != width:
        largest = max(cells, key=lambda state: cells[state])
        cells[largest] += 1 if sum(cells.values()) < width else -1
    text = Text("[")
    for state, number in cells.items():
        character, style = _LOOKS[state]
        text.append(character * number, style)
    return text.append("]")


def elements_table(elements: Sequence[ElementView], now: datetime) -> Table:
    """Return a line for each attempt of an element."""
    table = a_table(
        ("index", "state", "#", "code", "lasted", "node", "error"),
        right=("index", "#", "code", "lasted"), fold=("error",),
    )  # fmt: skip
    for each in elements:
        _, style = _LOOKS[each.state]
        lasted = (each.ended_at or now) - each.started_at if each.started_at else None
        table.add_row(
            str(each.index),
            Text(each.state.value + ("" if each.newest else ", tried again"), style=style),
            str(each.attempt),
            "" if each.exit_code is None else str(each.exit_code),
            "" if lasted is None else span(lasted),
            each.node_id or "",
            in_one_line(each.message),
        )
    return table


def _slots(array: ArrayView) -> str:
    waits = f"; {array.waiting_slot} waits for GPUs" if array.waiting_slot else ""
    most = f"at most {count(array.limit, 'element')} at a time"
    aside = f"; {aside_text(array.aside)}" if array.aside else ""
    return f"{array.placed} of {count(array.slots, 'slot')} have GPUs, {most}{waits}{aside}"


def _errors_table(errors: Sequence[ErrorGroup]) -> Table:
    table = a_table(
        ("elements", "failure", "code", "last line", "index"), right=("elements", "code"),
        fold=("last line", "index"),
    )  # fmt: skip
    for each in errors:
        table.add_row(
            f"{each.elements:,}",
            each.failure.value if each.failure else "",
            "" if each.exit_code is None else str(each.exit_code),
            in_one_line(each.message),
            each.indices,
        )
    return table
