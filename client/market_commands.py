"""Commands for markets: `price` decides on a book in a file, without any server."""

import sys
from datetime import datetime
from typing import Annotated

import typer

from client.terminal import JSON, now, out, print_json, show, warn
from models.base import Instant
from models.errors import SpecError
from models.market import NoQuote, OrderBook, Window
from models.units import parse_duration

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
        str,
        typer.Option(metavar="FILE", help="Asks and bids (YAML or JSON); - reads stdin."),
    ],
    gpus: Annotated[
        int | None, typer.Option(help="GPUs needed; those of the nodes without.")
    ] = None,
    node_count: Annotated[int | None, typer.Option(help="Nodes needed.", min=1)] = None,
    instance_type: Annotated[
        str | None, typer.Option(help="Only asks for this, such as 8xH100.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="When it is needed; now without."),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="For how long, such as 24h."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Say what to pay: a limit for GPUs in an order book, and what buying them would cost."""
    from client.price_view import render_no_quote, render_price
    from models.orderbook_response import OrderbookResponse
    from models.price import PriceNeed
    from scheduling.price import price as price_of

    if gpus is None and node_count is None:
        raise typer.BadParameter("say how many: --gpus or --node-count")
    known = _read(book)
    at = known.observed_at
    if gpus is None:
        gpus = (node_count or 0) * known.gpus_per_node
    window = _window(start, length, at)
    answer = price_of(known, PriceNeed(gpus=gpus, instance_type=instance_type, window=window), at)
    no_quote = isinstance(answer, NoQuote)
    if as_json:
        nodes = node_count or max(-(-gpus // known.gpus_per_node), 0)
        response = OrderbookResponse.of(
            answer,
            nodes,
            known.gpus_per_node,
            instance_type=instance_type or known.instance_type,
            now=at,
            book=known,
            required_gpus=gpus,
        )
        print_json(response)
    elif no_quote:
        show(render_no_quote(answer, known))
    else:
        show(render_price(answer, plain=not out().is_terminal))
        for warning in answer.warnings:
            warn(warning)
    if no_quote:
        raise typer.Exit(NO_QUOTE)


def _read(path: str) -> OrderBook:
    """Return the book in a file, as of now where it names no time. Raises SpecError."""
    from models.book_document import BookDocument
    from models.document import load_document, read_document

    if path != "-":
        return read_document(path, BookDocument).book(now())
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(_STDIN, (f"{_STDIN}: is not UTF-8 text; save it as UTF-8",)) from None
    return load_document(text, _STDIN, BookDocument).book(now())


def _window(start: str | None, length: str | None, at: datetime) -> Window | None:
    """Return the time that is needed; None for any. Raises BadParameter."""
    from pydantic import TypeAdapter, ValidationError

    if length is None:
        if start is not None:
            raise typer.BadParameter("--from: say for how long too, as in --for 24h")
        return None
    try:
        begin = TypeAdapter[datetime](Instant).validate_python(start) if start else at
    except ValidationError:
        raise typer.BadParameter(
            f"--from {start}: give a time with its zone, such as 2026-11-20T12:00:00Z"
        ) from None
    try:
        return Window(start=begin, end=begin + parse_duration(length))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"--for {length}: give a duration, such as 24h or 30m, that is more than nothing"
        ) from None
