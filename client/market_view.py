"""How markets look: live books, who is configured, prices over time, how limits fared."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.markets import ProviderState, Quote, cheapest
from longshore.client.price_view import render_price
from longshore.client.terminal import Text, a_table, heading
from longshore.client.words import SIMULATED, period
from longshore.models.market import Capabilities, NoQuote
from longshore.models.market_memory import HistoryPoint, Quality
from longshore.models.price import PriceAnswer
from longshore.models.text import NONE, ago, count, dollars, format_dollars, format_duration

_ROWS = 6
"""Of a chart."""
_MOST_ROWS = 20
_FEWEST_ROWS = 3
_BESIDE_ROWS = 26
"""Lines of a book beside its asks and bids: headings, metrics, warnings."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_HEADROOM = 0.1
"""Of the range of prices is left free below the lowest."""


def quotes_screen(quotes: Sequence[Quote], now: datetime, *, plain: bool = False) -> Group:
    """Return the book of each market with its limit, warnings, and how old it is."""
    parts: list[RenderableType] = []
    for quote in quotes:
        if parts:
            parts.append(Text())
        parts += _quote(quote, now, plain=plain)
    return Group(*parts)


def quotes_in_place(quotes: Sequence[Quote], now: datetime, height: int) -> Group:
    """Return the same for a terminal of this height: the cheapest market with as many rows as
    there is room for, and a line for each other."""
    best = cheapest(quotes)
    lines = [Text(quote_line(quote), style="dim") for quote in quotes if quote is not best]
    rows = max((height - len(lines) - _BESIDE_ROWS) // 2, _FEWEST_ROWS)
    return Group(*lines, *_quote(best, now, plain=False, rows=rows))


def quote_line(quote: Quote) -> str:
    """Return a quote in one line, for what is not a terminal."""
    about = f"{count(quote.gpus, 'GPU')} of {quote.instance_type} at {_name(quote)}"
    answer = quote.answer
    if isinstance(answer, NoQuote):
        return f"{about}: no quote, {answer.detail or answer.reason.value}"
    limit = format_dollars(answer.limit)
    if answer.average is None:
        return (
            f"{about}: limit {limit}, and the asks hold {count(answer.ask_liquidity, 'GPU')} only"
        )
    return f"{about}: limit {limit}, average {format_dollars(answer.average)}"


def providers_table(states: Sequence[ProviderState], others: Iterable[str]) -> Table:
    """Return a row for each market; `others` are those that are known and not configured."""
    table = a_table(
        ("market", "configured", "account", "balance", "can"), right=("balance",), fold=("can",)
    )
    for state in states:
        account = state.account
        name = Text(state.name)
        if account and account.simulated:
            name.append(f" {SIMULATED}", style="yellow")
        balance = account.balance if account else None
        table.add_row(
            name,
            "yes",
            account.id if account else Text(state.trouble or NONE, style="red"),
            NONE if balance is None else format_dollars(balance),
            state.no_buying or ", ".join(abilities(state.capabilities)),
        )
    for name in others:
        table.add_row(name, Text("no", style="dim"), NONE, NONE, "")
    return table


def abilities(can: Capabilities) -> list[str]:
    """Return what a market can do, a word or a few each."""
    words = [
        (can.order_book, "order book"),
        (can.offer_list, "offers"),
        (can.fixed_window, "windows"),
        (can.resellable, "resale"),
        (can.interruptible, "spot"),
        (can.idempotent, "idempotent orders"),
        (can.fast_fabric, "fast fabric"),
        (can.lot_gpus > 1, f"lots of {can.lot_gpus} GPUs"),
        (bool(can.grain), f"in steps of {format_duration(can.grain)}"),
    ]
    return [word for true, word in words if true]


def history_screen(
    points: Sequence[HistoryPoint], quality: Sequence[Quality], width: int, now: datetime
) -> Group:
    """Return a chart of the lowest asks of each market, and how past limits fared."""
    parts: list[RenderableType] = []
    for name, series in groupby(points, key=lambda one: one.provider + _mark(one.simulated)):
        parts += [*_chart(name, list(series), width, now), Text()]
    if quality:
        parts += [heading("Past limits"), quality_table(quality)]
    else:
        parts.append(Text("No limit was recommended yet.", style="dim"))
    return Group(*parts)


def history_lines(points: Sequence[HistoryPoint]) -> list[str]:
    """Return a line for each point, for what is not a terminal."""
    return [
        f"{point.at:%Y-%m-%dT%H:%M:%SZ}  {point.provider}{_mark(point.simulated)}  "
        f"ask {dollars(point.ask)} ({dollars(point.ask_low)} to {dollars(point.ask_high)})  "
        f"bid {dollars(point.bid)}  {point.ask_gpus:.0f} GPUs asked  {point.books} books"
        for point in points
    ]


def quality_table(quality: Sequence[Quality]) -> Table:
    """Return a row for each market, type and size; docs/market-memory.md explains the columns."""
    table = a_table(
        ("market", "type", "GPUs", "limits", "judged", "at once", "within 1h", "over best later",
         "headroom"),
        right=("GPUs", "limits", "judged", "at once", "within 1h", "over best later", "headroom"),
    )  # fmt: skip
    for each in quality:
        table.add_row(
            f"{each.provider}{_mark(each.simulated)}",
            each.instance_type,
            each.size,
            str(each.made),
            str(each.judged),
            _share(each.at_once, each.judged),
            _share(each.in_time, each.judged),
            _percent(each.over_best),
            _percent(each.headroom),
        )
    return table


def _quote(
    quote: Quote, now: datetime, *, plain: bool, rows: int = _MOST_ROWS
) -> list[RenderableType]:
    answer = quote.answer
    if isinstance(answer, NoQuote):
        head = Text("NO QUOTE", style="bold yellow")
        head.append(f"  {quote.instance_type} at {_name(quote)}: ", style="none")
        return [head.append(answer.detail or answer.reason.value, style="none")]
    parts: list[RenderableType] = [_badge(answer)] if answer.simulated and not plain else []
    parts.append(render_price(answer, plain=plain, rows=rows))
    if not plain:
        parts.append(Text(f"read {ago(answer.observed_at, now)}", style="dim"))
    parts += [Text(f"warning: {warning}", style="yellow") for warning in answer.warnings]
    return parts


def _badge(answer: PriceAnswer) -> Text:
    return Text(f" {SIMULATED.upper()} ", style="black on yellow").append(
        f" {answer.provider}: no real market, no real money", style="yellow on default"
    )


def _chart(
    name: str, series: Sequence[HistoryPoint], width: int, now: datetime
) -> list[RenderableType]:
    """Return the lowest asks as columns; the newest ones where there is no room for all."""
    title = heading(name)
    asks = [(point.at, point.ask) for point in series if point.ask is not None]
    if not asks:
        return [title, Text("no asks", style="dim")]
    low, high = min(ask for _, ask in asks), max(ask for _, ask in asks)
    labels = [dollars(high), *[""] * (_ROWS - 2), dollars(low)]
    margin = max(map(len, labels))
    shown = asks[-max(width - margin - 2, 10) :]
    columns = [_height(ask, low, high) for _, ask in shown]
    rows = [
        Text(f"{label:>{margin}} ").append(
            "".join(_cell(column, _ROWS - 1 - row) for column in columns), style="red"
        )
        for row, label in enumerate(labels)
    ]
    first, last = shown[0][0], shown[-1][0]
    ends = f"{' ' * margin} {period(first, last, now)}, lowest ask per GPU-hour"
    return [title, *rows, Text(ends, style="dim")]


def _height(price: int, low: int, high: int) -> int:
    """Return how many eighths of a row a column is high; at least one."""
    most = _ROWS * 8
    if high == low:
        return most // 2
    floor = low - (high - low) * _HEADROOM
    return max(round((price - floor) / (high - floor) * most), 1)


def _cell(column: int, row: int) -> str:
    return _EIGHTHS[min(max(column - row * 8, 0), 8)]


def _name(quote: Quote) -> str:
    return f"{quote.provider}{_mark(quote.simulated)}"


def _mark(simulated: bool) -> str:
    return f" ({SIMULATED})" if simulated else ""


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else NONE


def _percent(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:+.1%}"
