"""What nodes hold as HTML: each data set, image and environment, with the nodes that have it."""

from collections.abc import Mapping, Sequence

from longshore.client.held_data import HeldOnNodes, held_on_nodes
from longshore.console.escaping import escape
from longshore.console.parts import table
from longshore.models.addresses import without_secrets
from longshore.models.data import HeldData
from longshore.models.text import and_more, listed
from longshore.models.units import format_bytes

_MOST = 100
"""Rows."""
_NODES = 8
"""Nodes of a row that are named."""
_HEADS = ("What", "From", "Size", "Nodes")


def held_html(holdings: Mapping[str, Sequence[HeldData]]) -> str:
    """Return a table of what nodes hold; nothing where no agent says anything."""
    found = held_on_nodes(holdings)
    if not found:
        return ""
    more = and_more(len(found) - _MOST)
    rest = f'<p class="quiet">{more}</p>' if more else ""
    rows = [_row(each) for each in found[:_MOST]]
    return (
        '<section class="card stacks" aria-labelledby="held"><header>'
        '<h2 id="held">Data on these nodes</h2></header><div class="body">'
        f"{table('Data on nodes', _HEADS, rows)}{rest}</div></section>"
    )


def _row(held: HeldOnNodes) -> str:
    what, source, size, nodes = _HEADS
    where = without_secrets(held.what.source)
    whose = f" <small>of {escape(held.what.tenant)}</small>" if held.what.tenant else ""
    return (
        f'<tr><th scope="row" class="fold" data-head="{what}">'
        f'<span class="id">{escape(held.what.name)}</span>{whose}</th>'
        f'<td class="fold" data-head="{source}">{escape(where) or "–"}</td>'
        f'<td data-head="{size}">{format_bytes(held.what.total) if held.what.total else "–"}</td>'
        f'<td class="fold" data-head="{nodes}">{escape(listed(held.nodes, _NODES))}</td></tr>'
    )
