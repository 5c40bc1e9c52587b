"""How the domains of pools look: a row for each domain, and one for each of its nodes."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType

from longshore.client.limits import limit_columns
from longshore.client.terminal import Text, a_table, heading
from longshore.client.words import SIMULATED, styled
from longshore.models.domains import DomainNode, PoolTopology
from longshore.models.text import count

_FIRST = ("domain", "node", "state", "GPUs", "used", "free")
_NUMBERS = ("GPUs", "used", "free")


def render_topology(pools: Sequence[PoolTopology]) -> RenderableType:
    """Return a table for each pool: the domains, then the nodes that belong to none."""
    parts: list[RenderableType] = []
    for pool in pools:
        parts += [Text(), _head(pool), _table(pool)] if parts else [_head(pool), _table(pool)]
        missing = sorted({label for node in pool.unlabelled for label in node.missing_labels})
        if missing:
            nodes = count(len(pool.unlabelled), "node")
            parts.append(Text(f"{nodes} of no domain: without {', '.join(missing)}", style="dim"))
    return Group(*parts)


def _head(pool: PoolTopology) -> RenderableType:
    return heading(f"pool {pool.pool}: {count(len(pool.domains), 'domain')}")


def _table(pool: PoolTopology) -> RenderableType:
    nodes = [*(node for domain in pool.domains for node in domain.nodes), *pool.unlabelled]
    # What no node says takes no room.
    more = [(heading, words) for heading, words in _SAID if any(words(node) for node in nodes)]
    more += limit_columns(nodes)
    headings = (*_FIRST, *(heading for heading, _ in more))
    table = a_table(headings, right=_NUMBERS, fold=("domain", "node"))
    for domain in pool.domains:
        sums = (str(domain.gpus), str(domain.used), str(domain.free))
        nodes = count(len(domain.nodes), "node")
        table.add_row(domain.domain, nodes, "", *sums, *[""] * len(more), style="bold")
        for node in domain.nodes:
            table.add_row(*_row("", node), *(words(node) for _, words in more))
    for number, node in enumerate(pool.unlabelled):
        first = "" if number else "(none)"
        table.add_row(*_row(first, node), *(words(node) for _, words in more))
    return table


def _row(domain: str, node: DomainNode) -> tuple[RenderableType, ...]:
    state = styled(node.state)
    if node.simulated:
        state.append(f" {SIMULATED}", style="dim")
    return domain, node.node_id, state, str(node.gpus), str(node.used), str(node.free)


def _link(node: DomainNode) -> str:
    return node.slowest_link.value if node.slowest_link else ""


_SAID: tuple[tuple[str, Callable[[DomainNode], str]], ...] = (
    ("flavor", lambda node: node.flavor),
    ("rack", lambda node: node.rack),
    ("link", _link),
    ("conformance", lambda node: node.conformance or ""),
)
