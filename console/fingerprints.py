"""Fingerprints of nodes as HTML, with what firmware of their hosts is in each, and what not."""

from collections.abc import Iterable

from client.fingerprints import HEADINGS, fingerprints_of
from console.escaping import escape
from console.parts import table
from models.views import NodeView
from scheduling.words import and_more

_MOST = 100
"""Rows."""


def fingerprints_html(nodes: Iterable[NodeView]) -> str:
    """Return a table of fingerprints; nothing where no node has one."""
    found = fingerprints_of(nodes)
    if not found:
        return ""
    heads = [head.capitalize() for head in HEADINGS]
    rows = [_row(each.cells) for each in found[:_MOST]]
    more = and_more(len(found) - _MOST)
    rest = f'<p class="quiet">{more}</p>' if more else ""
    return (
        '<section class="card" aria-labelledby="fingerprints"><header>'
        '<h2 id="fingerprints">Fingerprints</h2></header><div class="body">'
        f"{table('Fingerprints of nodes', heads, rows)}{rest}</div></section>"
    )


def _row(cells: tuple[str, ...]) -> str:
    fingerprint, *others = map(escape, cells)
    columns = "".join(f'<td class="fold">{each}</td>' for each in others)
    return f'<tr><th scope="row"><span class="id">{fingerprint}</span></th>{columns}</tr>'
