"""What the command line writes: results on stdout, remarks on stderr, one JSON document at a time.

On a terminal results have colours and fit its width; in a pipe they are plain lines, and
nothing but a very long id is cut.
"""

import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Self, cast

import typer
from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import StyleType
from rich.table import Table
from rich.text import Text as RichText

from longshore.models.visible import in_one_line, visible

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
MOST_LISTED = 1_000_000
"""Entries of a list, at most: the database takes no number that is much larger."""
LIMIT = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=MOST_LISTED, help="Show at most N.")
]

_PIPE_WIDTH = 4000
_LONGEST_ID = 74
"""Of a cell that is not folded: as long as an id that is made of the longest name of a job."""
_LEAST_FOLDED, _LEAST_CUT = 10, 20
"""Columns that a cell has at least which may be folded, and one which may be cut short."""
WIDE = 120
"""From so many columns on, tables show everything."""


class Text(RichText):
    """A text with a style; what others wrote in it is shown and not obeyed."""

    def __init__(self, text: str = "", style: StyleType = "", **layout: Any) -> None:
        super().__init__(visible(text), style, **layout)

    def append(self, text: RichText | str, style: StyleType | None = None) -> Self:
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self


class SeveralLines(Text):
    """A cell that has several lines, each of which was made from one."""

    def __init__(self, lines: Iterable[str | RichText]) -> None:
        super().__init__()
        for number, line in enumerate(lines):
            if number:
                self.append("\n")
            self.append(in_one_line(line) if isinstance(line, str) else line)


class Rows(Table):
    """A table in which no text of others makes lines that look like rows. Where it is too narrow
    for its columns, each row is a paragraph of headings and values: nothing is cut off."""

    def add_row(self, *cells: RenderableType | None, **layout: Any) -> None:
        shown = [_cell(cell) for cell in cells]
        for number, (column, cell) in enumerate(zip(self.columns, shown, strict=False)):
            # Where a cell is not folded, or up to a width, it makes every row as wide.
            if isinstance(cell, str) and (column.no_wrap or column.max_width is not None):
                shown[number] = _shortened(cell)
        super().add_row(*shown, **layout)
        for column, cell in zip(self.columns, shown, strict=False):
            if column.max_width is not None and isinstance(cell, str | RichText):
                # Only what is longer is folded, and not what is longer than the table likes: a
                # table that is too narrow takes from the columns that give way, and from no other.
                longest = max(map(cell_len, str(cell).split("\n")))
                widest = max(column.width or cell_len(str(column.header)), longest)
                column.width = min(widest, column.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self._rows_of_text()
        if not self.show_header or rows is None or self._least_width(rows) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        for row in rows:
            headings = [str(column.header) for column in self.columns]
            yield _paragraph(headings, row, console, options.max_width)

    def _rows_of_text(self) -> list[tuple[RichText, ...]] | None:
        """Return the cells row by row; None where some are no text."""
        columns = [list(column.cells) for column in self.columns]
        if not all(isinstance(cell, str | RichText) for cells in columns for cell in cells):
            return None
        texts = ([RichText(cell) if isinstance(cell, str) else cell for cell in cells]
                 for cells in cast("list[list[str | RichText]]", columns))  # fmt: skip
        return list(zip(*texts, strict=True))

    def _least_width(self, rows: Sequence[tuple[RichText, ...]]) -> int:
        """Return how wide it is at least, with what is folded or cut short at its shortest."""
        widths: list[int] = []
        for number, column in enumerate(self.columns):
            cells = [row[number] for row in rows]
            longest = max((cell_len(line) for cell in cells for line in cell.plain.split("\n")),
                          default=0)  # fmt: skip
            cut = any(cell.overflow == "ellipsis" for cell in cells)
            if column.width is not None:
                widths.append(column.width)
            else:
                most = _LEAST_CUT if cut else longest if column.no_wrap else _LEAST_FOLDED
                widths.append(max(min(longest, most), cell_len(str(column.header))))
        return sum(widths) + 2 * (len(widths) - 1)


def _paragraph(
    headings: Sequence[str], cells: Sequence[RichText], console: Console, width: int
) -> RichText:
    """Return one row as lines of headings and values; those after the first are indented."""
    lines: list[RichText] = []
    for heading, cell in zip(headings, cells, strict=True):
        if not cell.plain:
            continue
        value = RichText(" ").join(cell.split("\n"))
        pair = RichText.assemble((heading, "dim"), " ", value)
        if lines and cell_len(lines[-1].plain) + 2 + cell_len(pair.plain) <= width:
            lines[-1].append("  ").append(pair)
            continue
        indent = "  " if lines else ""
        wrapped = pair.wrap(console, width - 2, overflow="fold", no_wrap=False)
        lines += [RichText(indent if at == 0 else "  ").append(each)
                  for at, each in enumerate(wrapped)]  # fmt: skip
    return RichText("\n").join(lines)


class PlainConsole(Console):
    """A console that shows what others wrote, and obeys nothing in it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **style: Any) -> RichText:
        return super().render_str(visible(text), **style)


def out() -> Console:
    """Return a console of stdout as it is now."""
    console = PlainConsole()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    console.width = _PIPE_WIDTH
    return console


def show(*parts: RenderableType) -> None:
    """Print on stdout."""
    console = out()
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    buffer = io.StringIO()
    plain = PlainConsole(file=buffer, width=console.width, color_system=None)
    plain.print(*parts, sep="\n")
    for line in buffer.getvalue().splitlines():
        print(line.rstrip())
    sys.stdout.flush()


def say(line: str) -> None:
    """Print a line on stdout, at once."""
    print(in_one_line(line), flush=True)


def note(text: str) -> None:
    """Print a remark on stderr: not part of the result."""
    print(visible(text), file=sys.stderr, flush=True)


def note_simulated(simulated: bool) -> None:
    """Say so where some of the GPUs that a screen is about are simulated."""
    if simulated:
        note("Some of the GPUs are simulated.")


def warn(text: str) -> None:
    note(f"warning: {text}")


def print_json(value: object) -> None:
    """Print models, or lists and dicts of them, as one JSON document."""
    print(json.dumps(value, indent=2, default=_as_json, ensure_ascii=False), flush=True)


def print_json_line(value: object) -> None:
    print(json.dumps(value, default=_as_json, ensure_ascii=False), flush=True)


def now() -> datetime:
    return datetime.now(UTC)


def a_table(
    headings: Sequence[str],
    *,
    right: Iterable[str] = (),
    fold: Iterable[str] = (),
    widest: Mapping[str, int] | None = None,
) -> Table:
    """Return a table without lines. Columns named in `fold` give way when it is narrow; those in
    `widest` fold what is longer than that."""
    table = Rows(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    right, fold, widest = set(right), set(fold), widest or {}
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            no_wrap=heading not in fold and heading not in widest,
            overflow="fold",
            ratio=None,
            max_width=widest.get(heading),
        )
    return table


def without_empty(
    headings: Sequence[str], rows: Iterable[Mapping[str, object]], empty: Mapping[str, object]
) -> list[str]:
    """Return the headings for a narrow table: without those of `empty` whose cells are all what
    that says of them."""
    found = {name for row in rows for name, cell in empty.items() if row[name] != cell}
    return [heading for heading in headings if heading not in empty or heading in found]


def room_for(
    name: str,
    headings: Sequence[str],
    rows: Iterable[Mapping[str, str]],
    widest: Mapping[str, int],
    width: int,
) -> int:
    """Return how wide a column may be, at least as in `widest`, beside the others of a narrow
    table: rich cuts a table off whose columns are wider together."""
    takes = {heading: len(heading) for heading in headings if heading != name}
    for row in rows:
        takes = {each: max(least, len(row[each])) for each, least in takes.items()}
    taken = sum(min(takes[each], widest.get(each, width)) for each in takes)
    return max(widest[name], width - taken - 2 * len(takes))


def width_of_ids(width: int) -> int:
    """Return how much of a table job ids take at most: people can choose long ones."""
    return width * 2 // 5


def pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return labels with their values, one pair a line."""
    table = Rows.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    return table


def heading(text: str) -> Text:
    return Text(text, style="bold")


def _cell(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return in_one_line(cell)
    if isinstance(cell, RichText) and "\n" in cell.plain and not isinstance(cell, SeveralLines):
        joined = RichText("\\n").join(cell.split("\n"))
        joined.no_wrap, joined.overflow, joined.style = cell.no_wrap, cell.overflow, cell.style
        return joined
    return cell


def _shortened(text: str) -> str:
    """Return the text without the middle of what is too long: the ends of ids tell them apart."""
    if len(text) <= _LONGEST_ID:
        return text
    tail = _LONGEST_ID // 2
    return f"{text[: _LONGEST_ID - tail - 1]}…{text[-tail:]}"


def _as_json(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")
