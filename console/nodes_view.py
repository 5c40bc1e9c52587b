"""The page of nodes as HTML: by pool and domain, a row for each node, what is alike folded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from urllib.parse import quote, urlencode

from longshore.client.node_view import letters_of, share_of, state_of
from longshore.console.escaping import escape
from longshore.console.fingerprints import link_html
from longshore.console.gpu_cells import cells_html, letter_html
from longshore.console.parts import SIMULATED_GPUS, chip, facts, when
from longshore.models.domains import DomainNode, PoolTopology
from longshore.models.node import NodeState
from longshore.models.text import and_more, count, span
from longshore.models.views import NodeView, PoolView

PATH = "/nodes"
NO_DOMAIN = "-"
"""Names in an address the nodes that belong to no domain."""
FOLDED_FROM = 4
"""So many nodes of a domain that are all idle, or all full, are one row."""
LINES = 100
"""Rows of a page at most."""
_JOBS = 8
_COLUMNS = ("Node", "State", "GPUs", "CPU, RAM", "Ends", "Jobs")

_WIDTHS = (
    '<colgroup><col class="w-node"><col class="w-state"><col class="w-gpu"><col class="w-cpu">'
    '<col class="w-end"><col></colgroup>'
)


@dataclass(frozen=True)
class Group:
    """The nodes of one pool that are in one domain, or in none."""

    pool: str
    domain: str
    """Empty for the nodes of no domain."""
    nodes: tuple[NodeView, ...]
    gpus: int
    used: int
    free: int


@dataclass(frozen=True)
class Line:
    """One row: a node, or several that are alike."""

    group: Group
    nodes: tuple[NodeView, ...]


def groups_of(
    nodes: Iterable[NodeView], topology: Iterable[PoolTopology], domain: str | None = None
) -> tuple[Group, ...]:
    """Return the groups in the order of pool and domain, those of no domain last.

    The sums are those of `longshore topology`. With `domain` that one alone.
    """
    by_id = {node.id: node for node in nodes}
    found: list[Group] = []
    for pool in topology:
        found += [_group(pool.pool, each.domain, each.nodes, by_id) for each in pool.domains]
        found.append(_group(pool.pool, "", pool.unlabelled, by_id))
    return tuple(
        group for group in found if group.nodes and domain in (None, group.domain or NO_DOMAIN)
    )


def lines_of(groups: Iterable[Group], *, fold: bool) -> tuple[Line, ...]:
    """Return the rows; with `fold` nodes that are alike, all idle or all full, are one row."""
    return tuple(
        Line(group, nodes)
        for group in groups
        for nodes in (_folded(group.nodes) if fold else ((node,) for node in group.nodes))
    )


def sums_html(
    groups: Sequence[Group], pools: Iterable[PoolView], pool: str | None, domain: str
) -> str:
    """Return the sums of all that is shown: of one pool or all, also those without nodes, whose
    jobs wait; of one domain only those with nodes in it."""
    in_domain = {group.pool for group in groups}
    nodes = [node for group in groups for node in group.nodes]
    gpus = [gpu for node in nodes for gpu in node.gpus]
    total, used, free = (
        sum(getattr(group, name) for group in groups) for name in ("gpus", "used", "free")
    )
    ready = sum(node.state is NodeState.READY for node in nodes)
    simulated = sum(len(node.gpus) for node in nodes if node.simulated)
    of_jobs = [
        each for each in pools
        if pool in (None, each.spec.name) and (not domain or each.spec.name in in_domain)
    ]  # fmt: skip
    share = f" <small>{used * 100 // total} %</small>" if total else ""
    return facts(
        (
            ("Nodes", f"{count(len(nodes))} <small>{count(ready)} ready</small>"),
            ("GPUs", count(total)),
            ("Used", f"{count(used)}{share}"),
            ("Free", count(free)),
            ("Idle, take no work", count(total - used - free)),
            ("Shared, or in MIG mode", count(sum(bool(gpu.parts) or gpu.mig for gpu in gpus))),
            ("Spares", count(sum(gpu.spare for gpu in gpus))),
            *([("Simulated", count(simulated))] if simulated else []),
            ("Jobs running", count(sum(pool.running for pool in of_jobs))),
            ("Jobs waiting", _waiting(of_jobs)),
        )
    )


def pools_html(
    lines: Sequence[Line], groups: Sequence[Group], now: datetime, asked: dict[str, str]
) -> str:
    """Return a table for each pool with these rows; `asked` is the query of the address."""
    return "".join(
        _pool(pool, list(of_pool), groups, now, asked)
        for pool, of_pool in groupby(lines, key=lambda line: line.group.pool)
    )


def only_html(domain: str, asked: dict[str, str]) -> str:
    """Return that one domain alone is shown, and how to see all; nothing where all are."""
    if not domain:
        return ""
    name = "nodes of no domain" if domain == NO_DOMAIN else f"domain {domain}"
    rest = {key: value for key, value in asked.items() if key not in ("domain", "show")}
    return f'<p class="quiet">Only {escape(name)}. {_link(rest, "Show all domains")}</p>'


def pages_html(page: int, pages: int, asked: dict[str, str]) -> str:
    """Return links to the page before and after; nothing where there is one page alone."""
    if pages <= 1:
        return ""
    before = _link({**asked, "page": str(page - 1)}, "Previous") if page > 1 else ""
    after = _link({**asked, "page": str(page + 1)}, "Next") if page < pages else ""
    return (
        f'<nav class="pages" aria-label="Pages of nodes">{before}'
        f"<span>Page {page} of {pages}</span>{after}</nav>"
    )


def _group(
    pool: str, domain: str, members: Sequence[DomainNode], by_id: dict[str, NodeView]
) -> Group:
    # A node that came between the two looks is shown at the next one.
    known = [each for each in members if each.node_id in by_id]
    return Group(
        pool=pool,
        domain=domain,
        nodes=tuple(by_id[each.node_id] for each in known),
        gpus=sum(each.gpus for each in known),
        used=sum(each.used for each in known),
        free=sum(each.free for each in known),
    )


def _folded(nodes: Sequence[NodeView]) -> list[tuple[NodeView, ...]]:
    """Return what is worth a row of its own, then what is alike."""
    alike: dict[tuple[str, ...], list[NodeView]] = {}
    for node in nodes:
        alike.setdefault(_likeness(node), []).append(node)
    single = [
        node for node in nodes
        if not _use(node) or len(alike[_likeness(node)]) < FOLDED_FROM
    ]  # fmt: skip
    rows = [(node,) for node in single]
    return rows + [
        tuple(each) for key, each in alike.items() if key[0] and len(each) >= FOLDED_FROM
    ]


def _likeness(node: NodeView) -> tuple[str, ...]:
    """Return what nodes of one folded row have in common."""
    simulated = str(node.simulated)
    return (_use(node), state_of(node), node.gpu_type, str(len(node.gpus)), simulated)


def _use(node: NodeView) -> str:
    """Return ``idle`` or ``full`` where that is all there is to say; empty for the others."""
    if node.state is not NodeState.READY or not node.gpus:
        return ""
    if all(gpu.job_id is not None and not gpu.spare for gpu in node.gpus):
        return "full"
    idle = all(not (gpu.job_id or gpu.parts or gpu.mig or gpu.vram_used) for gpu in node.gpus)
    return "idle" if idle else ""


def _pool(
    pool: str,
    lines: Sequence[Line],
    groups: Sequence[Group],
    now: datetime,
    asked: dict[str, str],
) -> str:
    mine = [group for group in groups if group.pool == pool]
    heads = "".join(f'<th scope="col">{head}</th>' for head in _COLUMNS)
    bodies = "".join(
        _domain(group, list(of_group), now, asked)
        for group, of_group in groupby(lines, key=lambda line: line.group)
    )
    label = f"pool-{escape(pool)}"
    nodes = count(sum(len(group.nodes) for group in mine), "node")
    caption = f'<caption class="sr-only">Nodes of pool {escape(pool)}, by domain</caption>'
    return (
        f'<section class="card stacks" aria-labelledby="{label}"><header><h2 id="{label}">Pool '
        f"{escape(pool)}</h2><span>{nodes}, {_sums(mine)}</span></header>"
        f'<div class="body"><table class="list nodes">{caption}{_WIDTHS}'
        f"<thead><tr>{heads}</tr></thead>{bodies}</table></div></section>"
    )


def _domain(group: Group, lines: Sequence[Line], now: datetime, asked: dict[str, str]) -> str:
    name = f"Domain {escape(group.domain)}" if group.domain else "No domain"
    rows = "".join(
        _row(line.nodes[0], now) if len(line.nodes) == 1 else _folded_row(line, asked)
        for line in lines
    )
    return (
        f'<tbody><tr class="of-domain"><th scope="rowgroup" colspan="{len(_COLUMNS)}">{name} '
        f"<small>{count(len(group.nodes), 'node')}, {_sums([group])}</small></th></tr>"
        f"{rows}</tbody>"
    )


def _row(node: NodeView, now: datetime) -> str:
    why = f"<small>{escape(node.state_reason)}</small>" if _has_reason(node) else ""
    gpu_type = escape(node.gpu_type or "GPU")
    mark = f" {SIMULATED_GPUS}" if node.simulated else ""
    host = node.hostname if node.hostname != node.id else ""
    about = " · ".join(filter(None, (node.tier.value, node.provider, host)))
    return (
        f'<tr><th scope="row" class="fold"><span class="id">{escape(node.id)}</span>'
        f"<small>{escape(about)}</small>{link_html(node.conformance, changed=node.changed)}</th>"
        f'<td class="why"{_head(1)}>{chip(state_of(node))}{why}</td>'
        f"<td{_head(2)}>{cells_html(node)}<small>{len(node.gpus)} × {gpu_type}{mark}</small></td>"
        f"<td{_head(3)}>{node.cpus_used:g} of {node.cpus:g}"
        f"<small>{node.ram_used:.0f} of {node.ram:.0f}GB</small></td>"
        f'<td{_head(4)}>{_end(node, now)}</td><td class="fold">{_jobs(node)}</td></tr>'
    )


def _folded_row(line: Line, asked: dict[str, str]) -> str:
    first, nodes = line.nodes[0], len(line.nodes)
    gpus = sum(len(node.gpus) for node in line.nodes)
    what = "all idle" if _use(first) == "idle" else "all full"
    here = {
        **asked, "pool": line.group.pool, "domain": line.group.domain or NO_DOMAIN, "show": "all",
    }  # fmt: skip
    here.pop("page", None)
    mark = f" {SIMULATED_GPUS}" if first.simulated else ""
    jobs = len({gpu.job_id for node in line.nodes for gpu in node.gpus if gpu.job_id})
    return (
        f'<tr class="folded"><th scope="row">{count(nodes, "node")}'
        f"<small>{escape(line.nodes[0].id)} to {escape(line.nodes[-1].id)}</small></th>"
        f"<td>{chip(state_of(first))}</td>"
        f"<td>{what}: {count(gpus, 'GPU')}"
        f"<small>{len(first.gpus)} × {escape(first.gpu_type or 'GPU')} each{mark}</small></td>"
        f"<td></td><td></td><td>{count(jobs, 'job') if jobs else ''} "
        f"{_link(here, 'List them')}</td></tr>"
    )


def _head(column: int) -> str:
    """Return what a cell says above its value where the table is stacked."""
    return f' data-head="{_COLUMNS[column]}"'


def _end(node: NodeView, now: datetime) -> str:
    """Return when a node ends, and what of its time is left."""
    if node.expires_at is None:
        return '<span class="quiet">never</span>'
    left, time = node.expires_at - now, node.expires_at - node.registered_at
    if left.total_seconds() <= 0:
        return f"over<small>{when(node.expires_at)}</small>"
    share = round(max(min(left / time, 1.0), 0.0) * 100) if time.total_seconds() > 0 else 0
    words = f"{share} % of its time since it joined is left"
    return (
        f'<span class="meter left" title="{words}"><i style="width:{share}%"></i></span>'
        f"in {span(left)}<small>{when(node.expires_at)}</small>"
    )


def _jobs(node: NodeView) -> str:
    """Return the jobs of a node, each with its letter and what it has there."""
    has: dict[str, tuple[str, list[str]]] = {}
    whole: dict[str, int] = {}
    for gpu in sorted(node.gpus, key=lambda gpu: gpu.index):
        if gpu.job_id is not None:
            has.setdefault(gpu.job_id, (gpu.job_name or gpu.job_id, []))
            whole[gpu.job_id] = whole.get(gpu.job_id, 0) + 1
        if gpu.lent_to is not None:
            has.setdefault(gpu.lent_to, (gpu.lent_to, ["on a lent spare"]))
        for part in gpu.parts:
            has.setdefault(part.job_id, (part.job_name, []))[1].append(share_of(part, gpu))
    spares = {gpu.job_id for gpu in node.gpus if gpu.spare}
    letters = letters_of(node)
    items = [
        f'<span class="job">{letter_html(job_id, letters[job_id])}'
        f'<a href="/jobs/{quote(job_id)}" title="{escape(job_id)}">{escape(name)}</a> '
        f"<small>{_has(whole.get(job_id, 0), parts, job_id in spares)}</small></span>"
        for job_id, (name, parts) in has.items()
    ]
    more = and_more(len(items) - _JOBS)
    rest = f'<span class="job quiet">{more}</span>' if more else ""
    return " ".join(items[:_JOBS]) + rest


def _has(whole: int, parts: Sequence[str], spare: bool) -> str:
    said = [count(whole, "GPU")] if whole else []
    words = escape(", ".join([*said, *parts]))
    return f"{words}, stands by" if spare else words


def _has_reason(node: NodeView) -> bool:
    return node.state is not NodeState.READY and bool(node.state_reason)


def _sums(groups: Sequence[Group]) -> str:
    total, used, free = (
        sum(getattr(group, name) for group in groups) for name in ("gpus", "used", "free")
    )
    return f"{count(used)} used and {count(free)} free of {count(total, 'GPU')}"


def _waiting(pools: Sequence[PoolView]) -> str:
    held = sum(pool.held for pool in pools)
    also = f" <small>and {count(held)} held</small>" if held else ""
    return f"{count(sum(pool.queued for pool in pools))}{also}"


def _link(query: dict[str, str], words: str) -> str:
    address = f"{PATH}?{urlencode(query)}" if query else PATH
    return f'<a href="{escape(address)}">{escape(words)}</a>'
