"""The pages of blocks as HTML: all on one time axis, and one with its jobs and its money."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from urllib.parse import quote

from longshore.activities.buying.block_end_views import BlockEndView, SaleView
from longshore.console import lanes
from longshore.console.accounts import account_html, money
from longshore.console.escaping import escape
from longshore.console.formats import with_code
from longshore.console.parts import CHOSEN, PICKED, chip, facts, mark, number, table, when
from longshore.console.purchases_view import link as purchase_link
from longshore.models.block import BlockState
from longshore.models.spending import BlockDetail, summed
from longshore.models.text import amount, count, price, span

PATH = "/blocks"


def sums_html(blocks: Sequence[BlockDetail]) -> str:
    """Return the sums of the blocks that are shown."""
    running = [each for each in blocks if each.state is not BlockState.ENDED]
    gpus = sum(each.nodes * each.gpus_per_node for each in running)
    held = sum(use.gpus for each in running for use in each.uses if use.ended_at is None)
    return facts(
        (
            ("Running", count(len(running), "block")),
            ("GPUs in use", f"{held:g} <small>of {gpus}</small>"),
            *money(summed(blocks)),
        )
    )


def axis_html(blocks: Sequence[BlockDetail], axis: lanes.Axis) -> str:
    """Return every block on one axis, with what it is on the left."""
    rows = "".join(
        f'<div class="about">{_about(each)}</div>{lanes.lanes_html(each, axis)}' for each in blocks
    )
    return (
        f'<div class="timeline"><div class="about head quiet">Times are UTC</div>'
        f"{lanes.ruler_html(axis)}{rows}</div>"
    )


def head_html(block: BlockDetail) -> str:
    """Return what a block is, and what became of its money."""
    why = f'<p class="reason">{escape(block.reason)}.</p>' if block.reason else ""
    purchase = purchase_link(block.purchase_id) if block.purchase_id else "–"
    return (
        facts(
            (
                ("What", _what(block)),
                ("Purchase", purchase),
                ("Pool", escape(block.pool or "–")),
                ("From", when(block.starts_at)),
                ("Ended" if block.ended_at else "Until", when(block.ended_at or block.ends_at)),
                ("A GPU-hour", price(block.price_micro_usd)),
                *money(block),
                *_so_far(block),
                ("Utilisation", _meter(block)),
                ("Billed", "as it runs" if block.is_machine else "a window, paid whole"),
            )
        )
        + account_html(block)
        + why
    )


def uses_html(block: BlockDetail) -> str:
    """Return the jobs on a block, in order of time."""
    if not block.uses:
        return '<p class="quiet padded">No job has run here yet.</p>'
    return table(
        "Jobs on this block",
        ("Job", "Tenant", "Node", "GPUs", "From", "Held for", "End"),
        (
            f'<tr><td><span class="dot {lanes.colour_of(use.job_id)}"></span>{escape(use.job)}'
            f"<small>{escape(use.job_id)}{_attempt(use.attempt)}</small></td>"
            f'<td>{escape(use.tenant)}</td><td class="id">{escape(use.node_id)}</td>'
            f"{number(f'{use.gpus:g}')}<td>{when(use.started_at)}</td>"
            f"<td>{span((use.ended_at or block.measured_at) - use.started_at)}</td>"
            f"<td>{escape((use.end_reason or 'runs').lower())}</td></tr>"
            for use in sorted(block.uses, key=lambda use: (use.started_at, use.job_id))
        ),
        numbers=("GPUs",),
    )


def machines_html(block: BlockDetail) -> str:
    """Return the machines of a block."""
    if not block.machines:
        return '<p class="quiet padded">No machine has been asked for.</p>'
    return table(
        "Machines",
        ("Machine", "State", "Agent since", "Ended", "Why"),
        (
            f'<tr><td class="id">{escape(each.name)}</td><td>{chip(each.state)}</td>'
            f"<td>{when(each.registered_at)}</td><td>{when(each.ended_at)}</td>"
            f'<td class="fold">{escape(each.reason)}</td></tr>'
            for each in block.machines
        ),
    )


def decision_html(end: BlockEndView) -> str:
    """Return what was decided last about a block: the answer, and every option in dollars."""
    decision = end.decision
    if end.left_alone:
        return (
            '<p class="padded">Nothing is decided about it, and it ends at its time: '
            f"{escape(end.left_alone)}.</p>"
        )
    if decision is None:
        return '<p class="quiet padded">Nothing: its pool does not buy, or there was no need.</p>'
    by = end.renewed_by
    renewed = by and f'<p class="padded">The time after it is bought by {purchase_link(by)}.</p>'
    return f'<p class="padded">{escape(decision.reason)}</p>{renewed or ""}' + table(
        "Options for the block",
        ("Option", "Gain", "Made of", "Why not"),
        (
            f'<tr{PICKED if each.chosen else ""}><td class="fold">{escape(each.title)}'
            f"{CHOSEN if each.chosen else ''}</td>{number(amount(each.gain), 'Gain')}"
            f'<td class="fold" data-head="Made of">{_terms(each.terms)}</td>'
            f'<td class="fold quiet">{with_code(each.lost)}</td></tr>'
            for each in decision.options
        ),
        numbers=("Gain",),
    )


def sales_html(sales: Iterable[SaleView]) -> str:
    """Return the sales of a block's time."""
    return table(
        "Sales",
        ("State", "Node", "From", "Until", "Resold", "Fee"),
        (
            f'<tr><td>{chip(each.state)}</td><td><span class="id">{escape(each.machine)}</span>'
            f"</td><td>{when(each.starts_at)}</td><td>{when(each.ends_at)}</td>"
            f"{number(amount(each.resold_micro_usd))}{number(amount(each.fee_micro_usd))}</tr>"
            + (f'<tr class="under"><td colspan="6">{escape(each.refused)}</td></tr>'
               if each.refused else "")
            for each in sales
        ),
        numbers=("Resold", "Fee"),
    )  # fmt: skip


def nearest_end(blocks: Iterable[BlockDetail]) -> str:
    """Return in words when the next block expires; nothing when none runs."""
    ends = [
        (each.ends_at - each.measured_at, each.id)
        for each in blocks
        if each.state is not BlockState.ENDED and each.ends_at
    ]
    if not ends:
        return ""
    left, name = min(ends)
    return f"{name} expires in {span(max(left, timedelta(0)))}"


def _so_far(block: BlockDetail) -> Iterable[tuple[str, str]]:
    """Yield what the time that has passed cost, while a block lasts."""
    for name, micro in (
        ("Used so far", block.used_so_far_micro_usd), ("Idle so far", block.idle_so_far_micro_usd)
    ):  # fmt: skip
        if micro is not None:
            yield name, amount(micro)


def _about(block: BlockDetail) -> str:
    left = ""
    if block.state is not BlockState.ENDED and block.ends_at is not None:
        rest = block.ends_at - block.measured_at
        left = f"<span>{span(rest)} left</span>" if rest > timedelta(0) else ""
    return (
        f'<div><a class="id" href="{PATH}/{quote(block.id)}">{escape(block.id)}</a> '
        f"{chip(block.state.value)}</div>"
        f"<p>{_what(block)}</p>"
        f'<div class="money">{_meter(block)}{left}</div>'
        f'<div class="money"><span>{_idle(block)} of {_paid(block)} at '
        f"{price(block.price_micro_usd)} a GPU-hour</span></div>"
    )


def _paid(block: BlockDetail) -> str:
    return block.paid_so_far if block.estimated_micro_usd else f"{block.paid_so_far} paid"


def _idle(block: BlockDetail) -> str:
    if block.idle_so_far_micro_usd is not None:
        return f"{amount(block.idle_so_far_micro_usd)} idle so far"
    return f"{amount(block.idle_micro_usd)} idle"


def _what(block: BlockDetail) -> str:
    return (
        f"{block.nodes} × {escape(block.instance_type)} {mark(block.simulated)} "
        f"<small>{escape(block.provider)}</small>"
    )


def _meter(block: BlockDetail) -> str:
    if block.utilisation is None:
        return "<span>not begun</span>"
    share = f"{block.utilisation * 100:.0f}"
    return (
        f'<span class="meter" title="{share} % of its GPU-time so far was held by jobs">'
        f'<i style="width:{share}%"></i></span><span>{share} %</span>'
    )


def _terms(terms: Mapping[str, int]) -> str:
    return ", ".join(f"{escape(what)} {amount(micro)}" for what, micro in terms.items())


def _attempt(attempt: int) -> str:
    return f", attempt {attempt}" if attempt > 1 else ""
