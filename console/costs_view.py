"""The page /costs as HTML: sums, and a bar for each name."""

from collections.abc import Sequence
from urllib.parse import quote

from longshore.console.accounts import account_html, money
from longshore.console.escaping import escape
from longshore.console.parts import facts, mark, number, table
from longshore.models.spending import CostView, summed
from longshore.models.text import amount

PATH = "/costs"
_PARTS = (("used", "used"), ("idle", "idle"), ("open", "open"))


def sums_html(costs: Sequence[CostView]) -> str:
    """Return the sums over all pools."""
    account = summed(costs)
    saved = amount(sum(each.saved_micro_usd for each in costs))
    return facts((*money(account), ("Saved", saved))) + account_html(account)


def list_html(by: str, costs: Sequence[CostView]) -> str:
    """Return a row for each name, with what became of its money as a bar."""
    most = max((each.paid_micro_usd for each in costs), default=1) or 1
    shares = by in ("tenant", "job")
    heads = (by.capitalize(), "What became of it", "Paid", "Resold", "Fees", "Used", "Idle",
             "Open", "Saved")  # fmt: skip
    if shares:
        heads = (by.capitalize(), "What became of it", "Used", "Saved")
    return table(
        f"Costs by {by}", heads, (_row(by, each, most, shares) for each in costs),
        numbers=heads[2:],
    )  # fmt: skip


def legend_html(by: str) -> str:
    """Return what the colours of the bars mean."""
    parts = _PARTS[:1] if by in ("tenant", "job") else _PARTS
    words = {"used": "used by jobs", "idle": "idle", "open": "in blocks that have not ended"}
    items = "".join(f'<span><i class="part {name}"></i>{words[name]}</span>' for name, _ in parts)
    return f'<div class="legend" aria-hidden="true">{items}</div>'


def _row(by: str, each: CostView, most: int, shares: bool) -> str:
    parts = [("Used", amount(each.used_micro_usd))] if shares else money(each)
    parts = [*parts, ("Saved", amount(each.saved_micro_usd))]
    cells = "".join(number(html, head) for head, html in parts)
    return (
        f"<tr><td>{_name(by, each.name)} {mark(each.simulated)}</td>"
        f'<td class="bars">{_bar(each, most)}</td>{cells}</tr>'
    )


def _bar(each: CostView, most: int) -> str:
    parts = {
        "used": each.used_micro_usd, "idle": each.idle_micro_usd, "open": each.open_micro_usd,
    }  # fmt: skip
    told = ", ".join(f"{amount(parts[name])} {word}" for name, word in _PARTS)
    widths = {name: max(micro, 0) / most * 100 for name, micro in parts.items()}
    pieces = "".join(
        f'<i class="part {name}" style="width:{width:.2f}%"></i>' for name, width in widths.items()
    )
    return f'<span class="bar-of" title="{told}">{pieces}</span>'


def _name(by: str, name: str) -> str:
    shown = escape(name or "no pool")
    if by == "block":
        return f'<a class="id" href="/blocks/{quote(name)}">{shown}</a>'
    return f'<span class="{"id" if by == "job" else ""}">{shown}</span>'
