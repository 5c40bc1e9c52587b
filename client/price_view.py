"""How a price looks: asks and bids with bars, the limit and what stands beside it."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.terminal import Text, a_table, heading, pairs
from longshore.client.words import SIMULATED, moment
from longshore.models.market import Level, NoQuote, OrderBook
from longshore.models.price import CountedLevel, PriceAnswer
from longshore.models.text import count, price, span
from longshore.scheduling.prices.words import left_out_words

_BAR = 24
_MOST_ROWS = 20
_RECOMMENDED = "← limit"


def render_price(
    answer: PriceAnswer, *, plain: bool = False, rows: int = _MOST_ROWS
) -> RenderableType:
    """Return the answer for a Rich console, with at most so many rows of each side.

    `plain` is for pipes: every ask and bid is a line.
    """
    asks = _shown(answer.asks, answer.index, plain, rows)
    bids = _shown(answer.bids, 0, plain, rows)
    parts: list[RenderableType] = [
        _headline(answer),
        Text(),
        heading("Asks"),
        _side(answer.asks, asks, answer.ask_liquidity, "red", marked=answer.index),
        Text(),
        heading("Bids"),
        _side(answer.bids, bids, answer.bid_liquidity, "green") if bids else Text("none"),
        Text(),
        pairs(_metrics(answer)),
    ]
    return Group(*parts)


def render_no_quote(answer: NoQuote, book: OrderBook) -> RenderableType:
    """Return why there is no price."""
    head = Text("NO QUOTE", style="bold yellow")
    head.append(f"  {book.instance_type} at {_provider(book.provider, book.simulated)}: ")
    return head.append(answer.detail)


def _headline(answer: PriceAnswer) -> Text:
    style = "bold green" if answer.sufficient else "bold yellow"
    head = Text(f"{price(answer.limit)} per GPU-hour", style=style)
    place = f" in {answer.place_name}" if answer.place_name else ""
    where = _provider(answer.provider, answer.simulated) + place
    head.append(
        f"  for {count(answer.needed, 'GPU')} of {answer.instance_type} at {where}", style="none"
    )
    return head


def _provider(name: str, simulated: bool) -> str:
    return f"{name} ({SIMULATED})" if simulated else name


def _shown(side: Sequence[CountedLevel], marked: int, plain: bool, rows: int) -> list[int]:
    """Return the positions of what is shown: on a terminal the first ones, and the marked one."""
    if plain or len(side) <= rows:
        return list(range(len(side)))
    return sorted({*range(rows), marked})


def _side(
    side: Sequence[CountedLevel],
    positions: Iterable[int],
    total: int,
    style: str,
    *,
    marked: int | None = None,
) -> Table:
    table = a_table(
        ("price", "GPUs", "sum", "lasts", "", ""), right=("price", "GPUs", "sum", "lasts")
    )
    before = -1
    for position in positions:
        if position > before + 1:
            table.add_row("...")
        one, before = side[position], position
        table.add_row(
            Text(price(one.level.price), style=style),
            f"{one.level.gpus:,}",
            f"{one.cumulative:,}",
            _lasts(one.level),
            Text(_bar(one.cumulative, total), style=style),
            _RECOMMENDED if position == marked else "",
            style="bold" if position == marked else None,
        )
    if before + 1 < len(side):
        table.add_row(f"... {len(side) - before - 1:,} more")
    return table


def _lasts(level: Level) -> str:
    if level.start is not None and level.end is not None:
        return span(level.end - level.start)
    if level.end is not None:
        return f"until {moment(level.end)}"
    return "" if level.duration is None else span(level.duration)


def _bar(cumulative: int, total: int) -> str:
    return "█" * max(round(_BAR * cumulative / total), 1)


def _metrics(answer: PriceAnswer) -> Iterable[tuple[str, RenderableType]]:
    if answer.marginal is not None and answer.average is not None:
        yield "marginal", f"{price(answer.marginal)} for the last GPU"
        yield "average", f"{price(answer.average)} for {count(answer.bought, 'GPU')} bought"
    if answer.cost_per_hour is not None:
        yield "cost", f"{price(answer.cost_per_hour)} an hour"
    yield "at most", f"{price(answer.worst_per_hour)} an hour, at the limit"
    if answer.spread is not None:
        yield "spread", price(answer.spread)
    yield "liquidity", f"{count(answer.ask_liquidity, 'GPU')} asked, {answer.bid_liquidity:,} bid"
    if answer.left_out:
        yield "left out", left_out_words(answer.left_out)
    yield "updated", moment(answer.observed_at)
    yield "why", answer.reason
