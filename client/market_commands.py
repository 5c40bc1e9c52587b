"""`longshore price`: what to pay in a book from a file, or at the markets now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.market_options import For, From, Provider, type_of, window_of
from longshore.client.terminal import JSON, note, now, out, print_json, say, show, warn
from longshore.models.errors import SpecError
from longshore.models.market import NoQuote

if TYPE_CHECKING:
    from longshore.models.base import Instant
    from longshore.models.market import OrderBook
    from longshore.models.price import PriceAnswer

# The rest is imported where it is needed: every command of `longshore` loads this module.

NO_QUOTE = 69
_STDIN = "stdin"


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel="Markets",
        epilog=f"Exit code: {NO_QUOTE} where there is no price. A book that holds too little is "
        "answered with a warning.",
    )(price)


def price(
    book: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Asks and bids (YAML or JSON); - reads stdin (default: the cheapest configured "
            "market).",
        ),
    ] = None,
    provider: Provider = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs needed (default: those of the nodes).")
    ] = None,
    node_count: Annotated[int | None, typer.Option(help="Nodes needed.", min=1)] = None,
    instance_type: Annotated[
        str | None, typer.Option(help="Only asks for this type, e.g. 8xH100.")
    ] = None,
    start: From = None,
    length: For = None,
    as_json: JSON = False,
) -> None:
    """Recommend a limit price for GPUs in an order book, and estimate the cost."""
    if gpus is None and node_count is None:
        raise typer.BadParameter("say how many: --gpus or --node-count")
    if book is None:
        return _price_live(provider, gpus, node_count, instance_type, start, length, as_json)
    if provider is not None:
        raise typer.BadParameter("--provider: a book in a file is of no market; leave out one")
    from longshore.models.price import PriceNeed
    from longshore.scheduling.prices.price import price as price_of

    known = _read(book)
    at, node = known.observed_at, known.gpus_per_node
    if gpus is None:
        gpus = (node_count or 0) * node
    window = window_of(start, length, at)
    name = instance_type or known.instance_type
    need = PriceNeed(gpus=gpus, instance_type=name, window=window, at_once=window is None)
    answer = price_of(known, need, at)
    return _tell(answer, known, gpus, node_count, node, name, at, as_json)


def _price_live(
    provider: str | None,
    gpus: int | None,
    node_count: int | None,
    instance_type: str | None,
    start: str | None,
    length: str | None,
    as_json: bool,
) -> None:
    """Tell the price at the market that costs least, and note what the others ask."""
    from longshore.client.market_view import quote_line
    from longshore.client.markets import ask_once, cheapest
    from longshore.client.process import run

    wanted = type_of(instance_type)
    if gpus is None:
        gpus = (node_count or 0) * wanted.gpus
    at = now()
    quotes = run(ask_once(provider, wanted, gpus, window_of(start, length, at), at))
    best = cheapest(quotes)
    for quote in quotes:
        if quote is not best and not as_json:
            note(f"note: {quote_line(quote)}")
    _tell(best.answer, best.book, gpus, node_count, wanted.gpus, str(wanted), at, as_json)


def _tell(
    answer: PriceAnswer | NoQuote,
    book: OrderBook | None,
    gpus: int,
    node_count: int | None,
    gpus_per_node: int,
    instance_type: str,
    at: Instant,
    as_json: bool,
) -> None:
    """Print an answer. Raises Exit where there is no price."""
    from longshore.client.price_view import render_no_quote, render_price
    from longshore.models.orderbook_response import OrderbookResponse

    no_quote = isinstance(answer, NoQuote)
    if as_json:
        nodes = node_count or max(-(-gpus // gpus_per_node), 0)
        response = OrderbookResponse.of(
            answer,
            nodes,
            gpus_per_node,
            instance_type=instance_type,
            now=at,
            book=book,
            required_gpus=gpus,
        )
        print_json(response)
    elif not no_quote:
        show(render_price(answer, plain=not out().is_terminal))
        for warning in answer.warnings:
            warn(warning)
    elif book is not None:
        show(render_no_quote(answer, book))
    else:
        say(f"NO QUOTE  {instance_type}: {answer.detail or answer.reason.value}")
    if no_quote:
        raise typer.Exit(NO_QUOTE)


def _read(path: str) -> OrderBook:
    """Return the book in a file, as of now where it names no time. Raises SpecError."""
    from longshore.models.book_document import BookDocument
    from longshore.models.document import load_document, read_document

    if path != "-":
        return read_document(path, BookDocument).book(now())
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(_STDIN, (f"{_STDIN}: is not UTF-8 text; save it as UTF-8",)) from None
    return load_document(text, _STDIN, BookDocument).book(now())
