"""The pages of purchases as HTML: the list, and one purchase with its timeline and options."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from urllib.parse import quote

from longshore.activities.buying.switch import Cap, SwitchState
from longshore.activities.markets.reconcile import NEXT, MarketFinding, Mismatch
from longshore.console.accounts import account_html, money
from longshore.console.escaping import escape
from longshore.console.formats import with_code
from longshore.console.parts import CHOSEN, PICKED, cell, chip, facts, mark, number, table, when
from longshore.models.spending import (
    Happened,
    OptionRecord,
    OrderView,
    PurchaseDetail,
    PurchaseView,
    named,
    summed,
)
from longshore.models.text import amount, count, listed, price

PATH = "/purchases"
_SERVES = 12
"""Jobs that a purchase names."""
COMPARED = "what a market lists and nobody here knows, and the other way; compared every minute"
_MEANS = {
    Mismatch.ORDER: "nobody here knows it",
    Mismatch.MACHINE: "nobody here knows it",
    Mismatch.MISSING: "it is to be running, and is not listed",
    Mismatch.BILL: "it is over, and was billed another amount than is booked",
    Mismatch.AWAY: "not compared",
}


def link(purchase_id: str) -> str:
    """Return a link to the page of one purchase."""
    name = escape(purchase_id)
    return f'<a class="id" href="{PATH}/{quote(purchase_id)}">{name}</a>'


def switch_html(switch: SwitchState) -> str:
    """Return that buying is stopped, and the caps that hold; nothing where there are none."""
    notes: list[str] = []
    if switch.stopped:
        why = f" {escape(switch.reason)}." if switch.reason else ""
        notes.append(
            f"<b>Buying is stopped.</b>{why} What runs goes on. "
            "<code>longshore market resume</code> lets it be bought again."
        )
    caps = [cap for cap in switch.caps if cap.committed_micro_usd is not None]
    notes += [f"<b>No cap of {_of(cap)}.</b>" for cap in caps if cap.most_micro_usd is None]
    items = "".join(f"<li>{note}</li>" for note in notes)
    said = f'<ul class="notes" aria-label="Buying">{items}</ul>' if items else ""
    return said + (_caps(caps) if caps else "")


def sums_html(purchases: Sequence[PurchaseView]) -> str:
    """Return the sums of the purchases that are shown."""
    running = [each for each in purchases if not each.state.over]
    return facts(
        (
            ("Shown", count(len(purchases), "purchase")),
            ("Running", count(len(running), "purchase")),
            ("Nodes", count(sum(len(each.nodes) for each in running), "node")),
            ("Committed, running", amount(sum(each.committed_micro_usd for each in running))),
            *money(summed(purchases)),
        )
    )


def list_html(purchases: Iterable[PurchaseView]) -> str:
    """Return the table of purchases."""
    return table(
        "Purchases, the newest first",
        ("State", "Purchase", "What", "For", "Committed", "Paid", "Nodes", "Why"),
        (_row(each) for each in purchases),
        numbers=("Committed", "Paid"),
    )


def head_html(purchase: PurchaseDetail) -> str:
    """Return what a purchase is, and why it was made."""
    decided = purchase.decided or "Somebody asked for it: no decision of a pool stands behind it."
    decided = "; ".join([decided, *purchase.left_out])
    bad = [f"It cannot be read: {each}" for each in purchase.unreadable]
    why = "".join(
        f'<p class="reason bad">{escape(each)}</p>' for each in (purchase.reason, *bad) if each
    )
    split = escape(purchase.split_in_words)
    return (
        facts(
            (
                ("What", _what(purchase)),
                ("For", f"{escape(purchase.pool)} <small>{escape(purchase.tenant)}</small>"),
                ("Tier", escape(purchase.tier)),
                ("Planned at most", amount(purchase.planned_micro_usd)),
                ("Committed", amount(purchase.committed_micro_usd)),
                *((("Split", split),) if split else ()),
                *money(purchase),
            )
        )
        + account_html(purchase)
        + f'<p class="reason">{escape(decided)}</p>{why}{_serves(purchase)}'
    )


def timeline_html(happened: Iterable[Happened]) -> str:
    """Return what happened, oldest first."""
    items = "".join(
        f'<li class="of-{escape(each.what)}">{when(each.at)}<span>{escape(each.text)}</span></li>'
        for each in happened
    )
    return f'<ol class="happened">{items}</ol>'


def orders_html(purchase: PurchaseDetail) -> str:
    """Return the orders, each with what the market said of it."""
    if not purchase.made:
        return '<p class="quiet padded">No order has been made.</p>'
    return table(
        "Orders",
        ("Order", "State", "Bought", "Limit", "Paid"),
        (
            f"<tr><td>{_block_link(each.key, purchase.blocks)}</td>"
            f"<td>{escape(_order_state(each))}</td>"
            f"<td>{each.nodes} of {count(each.wanted, 'node')}</td>"
            f"{number(price(each.limit_micro_usd))}{number(amount(each.paid_micro_usd))}</tr>"
            + (f'<tr class="under"><td colspan="5">{escape(each.refused)}</td></tr>'
               if each.refused else "")
            for each in purchase.made
        ),
        numbers=("Limit", "Paid"),
    )  # fmt: skip


def _order_state(order: OrderView) -> str:
    """Return what the market last said of an open order; of a closed one that is old news."""
    return "closed" if order.closed_at is not None else order.order_state or order.state.lower()


def machines_html(purchase: PurchaseDetail) -> str:
    """Return the machines, each with when its agent registered."""
    if not purchase.machines:
        return '<p class="quiet padded">No machine has been asked for.</p>'
    return table(
        "Machines",
        ("Machine", "State", "Agent since", "Ended"),
        (
            f'<tr><td class="id">{escape(each.name)}</td><td>{chip(each.state)}</td>'
            f"<td>{when(each.registered_at)}</td><td>{when(each.ended_at)}</td></tr>"
            for each in purchase.machines
        ),
    )


def options_html(options: Sequence[OptionRecord]) -> str:
    """Return every way that was looked at, by tier, with its costs and why it lost."""
    return "".join(
        f"<h3>{escape(tier)}</h3>{_options(tier, list(of_tier))}"
        for tier, of_tier in groupby(
            sorted(options, key=lambda each: each.tier), key=lambda each: each.tier
        )
    )


def orphans_html(found: Iterable[MarketFinding]) -> str:
    """Return what a market lists and nobody here knows, and the other way."""
    return table(
        "Differences from the markets",
        ("What", "Market", "There", "Cost so far", "Since", "What is known"),
        (
            f"<tr><td>{chip(each.kind.value)}</td><td>{escape(each.provider)}</td>"
            f'<td><span class="id">{escape(each.id or "–")}</span>'
            f"<small>{escape(each.name)}</small></td>"
            f"{number(amount(each.cost_micro_usd) if each.id else '–')}<td>{when(each.since)}</td>"
            f'<td class="fold quiet">{_MEANS[each.kind]}: {escape(each.detail)}'
            f"<small>{escape(NEXT[each.kind])}</small></td></tr>"
            for each in found
        ),
        numbers=("Cost so far",),
    )


def _row(each: PurchaseView) -> str:
    nodes = count(len(each.nodes), "node") if each.nodes else "–"
    return (
        f"<tr><td>{chip(each.state.value)}</td>"
        f"<td>{link(each.id)}<small>{when(each.created_at)}</small></td>"
        f'<td data-head="What">{_what(each)}</td><td data-head="For">{escape(each.pool)}'
        f"<small>{escape(each.tenant)}, {escape(each.tier)}</small></td>"
        f"{number(amount(each.committed_micro_usd), 'Committed')}"
        f"{number(each.paid_so_far, 'Paid')}"
        f'<td data-head="Nodes">{nodes}</td><td class="fold">{escape(each.reason)}</td></tr>'
    )


def _what(each: PurchaseView) -> str:
    return (
        f"{each.wanted} × {escape(each.instance_type)} {mark(each.simulated)} "
        f"<small>{escape(each.provider)}</small>"
    )


def _caps(caps: Sequence[Cap]) -> str:
    heads = ("Cap of a day (UTC)", "Committed today", "At most", "Set by")
    rows = (
        f"<tr>{cell(_of(cap), heads[0])}{number(amount(cap.committed_micro_usd or 0), heads[1])}"
        f"{number(_most(cap), heads[2])}"
        f"{cell('its buying policy' if cap.of_policy else 'market caps', heads[3])}</tr>"
        for cap in caps
    )
    listed = table("Caps of today", heads, rows, numbers=heads[1:3])
    return f'<section class="card caps stacks"><div class="body">{listed}</div></section>'


def _most(cap: Cap) -> str:
    if cap.most_micro_usd is None:
        return "no limit"
    left = cap.most_micro_usd - (cap.committed_micro_usd or 0)
    most = amount(cap.most_micro_usd)
    return (
        f'{most} <span class="chip">nearly reached</span>'
        if 5 * left < cap.most_micro_usd
        else most
    )


def _of(cap: Cap) -> str:
    return escape(cap.scope) + ("" if cap.name == "*" else f" {escape(cap.name)}")


def _serves(purchase: PurchaseDetail) -> str:
    if not purchase.serves:
        return ""
    serves = [f"<code>{escape(name)}</code>" for name in named(purchase.serves)]
    return f'<p class="reason">For {listed(serves, _SERVES)}.</p>'


def _block_link(key: str, blocks: Sequence[str]) -> str:
    name = escape(key)
    if key not in blocks:
        return f'<span class="id">{name}</span>'
    return f'<a class="id" href="/blocks/{quote(key)}">{name}</a>'


def _options(tier: str, options: list[OptionRecord]) -> str:
    ordered = sorted(options, key=lambda each: (not each.chosen, each.total, each.title))
    return table(
        f"Options for {tier}",
        ("Option", "Money", "Delay", "Left over", "In all", "Why not"),
        (
            f'<tr{PICKED if each.chosen else ""}><td class="fold">{escape(each.title)}'
            f"{CHOSEN if each.chosen else ''}</td>{number(amount(each.committed), 'Money')}"
            f"{number(amount(each.delay), 'Delay')}"
            f"{number(amount(each.committed + each.delay - each.total), 'Left over')}"
            f'{number(f"<b>{amount(each.total)}</b>", "In all")}<td class="fold quiet">'
            f"{with_code(each.lost)}</td></tr>"
            for each in ordered
        ),
        numbers=("Money", "Delay", "Left over", "In all"),
    )
