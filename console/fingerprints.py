"""Fingerprints of nodes as HTML, with what firmware of their hosts is in each, and what not."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from longshore.client.fingerprints import HEADINGS, Alike, fingerprints_of
from longshore.console.escaping import escape
from longshore.console.parts import table
from longshore.models.text import and_more
from longshore.models.views import NodeView
from longshore.models.visible import visible

_MOST = 100
"""Rows."""
_FINGERPRINT, _NODES, _FIRMWARE = (head.capitalize() for head in HEADINGS)


def fingerprints_html(nodes: Iterable[NodeView]) -> str:
    """Return a table of fingerprints, those of the first nodes; nothing where no node has one."""
    found = fingerprints_of(nodes)
    if not found:
        return ""
    rows = _rows(sorted(found[:_MOST], key=lambda each: each.fingerprint))
    more = and_more(len(found) - _MOST)
    rest = f'<p class="quiet">{more}</p>' if more else ""
    heads = (_FINGERPRINT, _NODES, _FIRMWARE)
    return (
        '<section class="card stacks" aria-labelledby="fingerprints"><header>'
        '<h2 id="fingerprints">Fingerprints</h2></header><div class="body">'
        f"{table('Fingerprints of nodes', heads, rows)}{rest}</div></section>"
    )


def link_html(fingerprint: str | None, *, changed: bool = False) -> str:
    """Return a link from a node to the row of its fingerprint, with whether it is another than
    the one that was accepted; nothing for a node without one."""
    if not fingerprint:
        return ""
    says = " (changed, not accepted)" if changed else ""
    to = quote(visible(_anchor(fingerprint)), safe="")
    return (
        f'<small><a class="id" href="#{to}" title="Its fingerprint">{escape(fingerprint)}</a>'
        f"{says}</small>"
    )


def _rows(fingerprints: Sequence[Alike]) -> list[str]:
    """Return the rows, where those of one fingerprint stand together, below its anchor."""
    known: set[str] = set()
    rows = []
    for each in fingerprints:
        anchor = f' id="{escape(_anchor(each.fingerprint))}"'
        here = "" if each.fingerprint in known else anchor
        known.add(each.fingerprint)
        lines = "".join(f"<div>{escape(line)}</div>" for line in each.lines)
        rows.append(
            f'<tr{here}><th scope="row" class="fold" data-head="{_FINGERPRINT}">'
            f'<span class="id">{escape(each.fingerprint)}</span></th>'
            f'<td class="fold" data-head="{_NODES}">{escape(each.named)}</td>'
            f'<td class="fold" data-head="{_FIRMWARE}">{lines}</td></tr>'
        )
    return rows


def _anchor(fingerprint: str) -> str:
    return f"fingerprint-{fingerprint}"
