"""Small pieces of HTML that pages share. Everything that is not from this file is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from urllib.parse import urlencode

from longshore.console.escaping import escape
from longshore.console.formats import clock, with_code

_LOOKS = {
    "INTENT": "begun", "ORDERED": "begun", "FILLED": "begun", "STARTING": "begun",
    "READY": "well", "OPEN": "well", "COMPENSATING": "ending", "DRAINING": "ending",
    "ENDED": "over", "REFUSED": "bad",
    "CORDONED": "ending", "DRAINED": "ending", "LOST": "bad", "GONE": "over",
    "SUBMITTED": "begun", "QUEUED": "begun", "HELD": "ending", "RUNNING": "well",
    "STOPPING": "ending", "RETRYING": "ending", "SUCCEEDED": "done", "FAILED": "bad",
    "WAITING": "begun",
}  # fmt: skip
SIMULATED = '<span class="sim" title="Bought at a simulated market: no money moved.">sim</span>'

SIMULATED_GPUS = '<span class="sim" title="Its GPUs are simulated: jobs run there for real, their \
GPUs are only said to be there.">simulated</span>'


def chip(state: str) -> str:
    """Return a state as a coloured word."""
    return f'<span class="state {_LOOKS.get(state, "over")}">{escape(state.lower())}</span>'


def mark(simulated: bool) -> str:
    """Return the mark of what is simulated; nothing for what is not."""
    return SIMULATED if simulated else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names with their values, which are HTML, in rows of about the same length."""
    shown = list(pairs)
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in shown)
    lines = max(-(-len(shown) // _MOST_IN_ROW), 1)
    columns = max(-(-len(shown) // lines), 1)
    return f'<dl class="facts wide" style="--columns:{columns}">{rows}</dl>'


def table(
    caption: str, heads: Sequence[str], rows: Iterable[str], *, numbers: Iterable[str] = ()
) -> str:
    """Return a table; `rows` are HTML, the columns named in `numbers` stand on the right."""
    right = set(numbers)
    columns = "".join(
        f'<th scope="col"{_NUMBER if head in right else ""}>{escape(head)}</th>' for head in heads
    )
    return (
        f'<table class="list"><caption class="sr-only">{escape(caption)}</caption>'
        f"<thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def number(html: str, head: str = "") -> str:
    """Return a cell with a number; it names its column where that may stand above each cell."""
    named = f' data-head="{escape(head)}"' if head else ""
    return f"<td{_NUMBER}{named}>{html}</td>"


def cell(html: str, head: str = "", *, folds: bool = False) -> str:
    """Return a cell with text; one that `folds` is as high as its text needs."""
    named = f' data-head="{escape(head)}"' if head else ""
    return f"<td{_FOLDS if folds else ''}{named}>{html}</td>"


def empty(head: str, *sentences: str) -> str:
    """Return what stands where nothing is, and what to do next."""
    said = "".join(f"<p>{with_code(each)}</p>" for each in sentences)
    return f'<div class="empty" role="status"><h2>{escape(head)}</h2>{said}</div>'


READING = '<div class="empty"><p>Reading …</p></div>'
"""What stands where an answer is to come."""


def no_answer(error: Exception, head: str = "The database does not answer") -> str:
    """Return what stands where an answer failed to come, on a page that follows."""
    return empty(head, str(error), "It is asked again every three seconds.")


def updated(at: datetime | None) -> str:
    """Return when the page last looked; that it could not, for None."""
    if at is None:
        return '<span class="live old"><span class="dot"></span>no answer</span>'
    return (
        f'<span class="live"><span class="dot"></span><time datetime="{at.isoformat()}">'
        f"updated {clock(at)}</time></span>"
    )


def pages_html(what: str, path: str, asked: Mapping[str, str], last: str) -> str:
    """Return links to a list's older things, those after the `last` one that is shown, and back
    to the newest; nothing where all are shown. `asked` is the query of this page."""
    rest = {key: value for key, value in asked.items() if key != "after"}
    newest = address(path, rest) if "after" in asked else ""
    older = address(path, {**rest, "after": last}) if last else ""
    links = "".join(
        f'<a href="{to}">{word}</a>' for word, to in (("Newest", newest), ("Older", older)) if to
    )
    return f'<nav class="pages" aria-label="Pages of {what}">{links}</nav>' if links else ""


def address(path: str, query: Mapping[str, str]) -> str:
    """Return the address of a page, as HTML has it in an attribute."""
    return escape(f"{path}?{urlencode(query)}" if query else path)


def when(at: datetime | None) -> str:
    """Return a time of day with its date; a dash for none."""
    if at is None:
        return "–"
    return f'<time datetime="{at.isoformat()}">{at:%d %b %H:%M:%S}</time>'


_MOST_IN_ROW = 7
"""Facts beside each other at most."""
_NUMBER = ' class="n"'
_FOLDS = ' class="fold"'

PICKED = ' class="pick" aria-current="true"'
"""Attributes of the row that was chosen."""
CHOSEN = '<span class="chip">chosen</span>'
