"""How the domains of pools look: a row for each domain, and one for each of its nodes."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from client.limits import limit_columns
from client.terminal import a_table, heading
from client.words import SIMULATED, styled
from models.domains import DomainNode, PoolTopology
from scheduling.words import count

_COLUMNS = (
    "domain",
    "node",
    "state",
    "flavor",
    "rack",
    "GPUs",
    "used",
    "free",
    "link",
    "conformance",
)
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
    nodes = [node for domain in pool.domains for node in domain.nodes]
    limits = limit_columns([*nodes, *pool.unlabelled])
    headings = (*_COLUMNS, *(heading for heading, _ in limits))
    table = a_table(headings, right=_NUMBERS, fold=("domain", "node"))
    for domain in pool.domains:
        sums = (str(domain.gpus), str(domain.used), str(domain.free))
        nodes = count(len(domain.nodes), "node")
        table.add_row(
            domain.domain, nodes, "", "", "", *sums, *[""] * (2 + len(limits)), style="bold"
        )
        for node in domain.nodes:
            table.add_row(*_row("", node), *(words(node) for _, words in limits))
    for number, node in enumerate(pool.unlabelled):
        first = "" if number else "(none)"
        table.add_row(*_row(first, node), *(words(node) for _, words in limits))
    return table


def _row(domain: str, node: DomainNode) -> tuple[RenderableType, ...]:
    state = styled(node.state)
    if node.simulated:
        state.append(f" {SIMULATED}", style="dim")
    numbers = (str(node.gpus), str(node.used), str(node.free))
    link = node.slowest_link.value if node.slowest_link else ""
    return (
        domain,
        node.node_id,
        state,
        node.flavor,
        node.rack,
        *numbers,
        link,
        node.conformance or "",
    )
