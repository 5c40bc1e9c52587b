"""The page /costs as HTML: sums, and a bar for each name."""

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from console.parts import amount, facts, mark, number, table
from models.spending import CostView

PATH = "/costs"
_PARTS = (("used", "used"), ("idle", "idle"), ("open", "open"))


def sums_html(costs: Sequence[CostView]) -> str:
    """Return the sums over all pools."""
    spent = sum(each.spent for each in costs)
    return facts(
        (
            ("Spent", amount(spent)),
            ("Used by jobs", _of(sum(each.used for each in costs), spent)),
            ("Idle", _of(sum(each.idle for each in costs), spent)),
            ("In open blocks", _of(sum(each.open for each in costs), spent)),
            ("Sold again", amount(sum(each.resold - each.fees for each in costs))),
            ("Saved under the limits", amount(sum(each.saved for each in costs))),
        )
    )


def list_html(by: str, costs: Sequence[CostView]) -> str:
    """Return a row for each name, with what became of its money as a bar."""
    most = max((each.spent for each in costs), default=1) or 1
    shares = by in ("tenant", "job")
    heads = (by.capitalize(), "What became of it", "Spent", "Used", "Idle", "Open", "Sold again",
             "Saved")  # fmt: skip
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
    numbers = (each.used, each.saved) if shares else (
        each.spent, each.used, each.idle, each.open, each.resold - each.fees, each.saved
    )  # fmt: skip
    cells = "".join(number(amount(micro)) for micro in numbers)
    return (
        f"<tr><td>{_name(by, each.name)} {mark(each.simulated)}</td>"
        f'<td class="bars">{_bar(each, most)}</td>{cells}</tr>'
    )


def _bar(each: CostView, most: int) -> str:
    told = ", ".join(f"{amount(getattr(each, name))} {word}" for name, word in _PARTS)
    widths = {name: max(getattr(each, name), 0) / most * 100 for name, _ in _PARTS}
    pieces = "".join(
        f'<i class="part {name}" style="width:{width:.2f}%"></i>' for name, width in widths.items()
    )
    return f'<span class="bar-of" title="{told}">{pieces}</span>'


def _name(by: str, name: str) -> str:
    shown = escape(name or "no pool")
    if by == "block":
        return f'<a class="id" href="/blocks/{quote(name)}">{shown}</a>'
    return f'<span class="{"id" if by == "job" else ""}">{shown}</span>'


def _of(part: int, whole: int) -> str:
    share = f" <small>{part / whole * 100:.0f} %</small>" if whole else ""
    return f"{amount(part)}{share}"
