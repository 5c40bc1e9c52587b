"""The command group `longshore market`: other modules add their commands to `market`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.market_options import For, From, Provider, type_of, window_of
from longshore.client.past_times import past_time
from longshore.client.terminal import JSON, note, now, out, print_json, print_json_line, say, show
from longshore.client.words import clock
from longshore.models.market import InstanceType, NoQuote, Window

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from longshore.client.markets import ProviderState, Quote
    from longshore.models.market_memory import HistoryPoint, Quality

# The rest is imported where it is needed: every command of `longshore` loads this module.

NO_QUOTE = 69
_EVERY = 2.0
"""Seconds between two looks of --watch."""
_POINTS = 120

market = typer.Typer(help="Current and past prices of the markets.")


def register(app: typer.Typer) -> None:
    app.add_typer(market, name="market", rich_help_panel="Markets")


@market.callback(invoke_without_command=True)
def live(
    context: typer.Context,
    provider: Provider = None,
    instance_type: Annotated[
        str | None,
        typer.Option(help="E.g. 8xH100 (default: the first that is watched)."),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Nodes needed.", min=1)] = 1,
    start: From = None,
    length: For = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep running, and show changes.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Show the book of each configured market, with the limit that it recommends.

    Ends with code 69 when no market has a price.
    """
    if context.invoked_subcommand is not None:
        return
    from longshore.client.markets import ask_once
    from longshore.client.process import run

    wanted = type_of(instance_type)
    window = window_of(start, length, now())
    if watch:
        run(_watch(provider, wanted, nodes, window, as_json))
        return
    quotes = run(ask_once(provider, wanted, nodes * wanted.gpus, window, now()))
    if as_json:
        print_json([_json(quote, nodes) for quote in quotes])
    else:
        from longshore.client.market_view import quotes_screen

        show(quotes_screen(quotes, now(), plain=not out().is_terminal))
    if all(isinstance(quote.answer, NoQuote) for quote in quotes):
        raise typer.Exit(NO_QUOTE)


@market.command()
def providers(as_json: JSON = False) -> None:
    """List the markets: configuration, account and capabilities of each."""
    from longshore.activities.providers.registry import configured, known
    from longshore.client.markets import NOTHING_CONFIGURED
    from longshore.client.process import run
    from longshore.models.settings import Settings

    settings = Settings()
    names = configured(settings) if settings.market != "off" else ()
    found = run(_states()) if names else ()
    others = [name for name in known() if name not in names]
    if as_json:
        print_json({"configured": found, "others": others})
        return
    from longshore.client.market_view import providers_table

    show(providers_table(found, others))
    if not names:
        note(f"note: {NOTHING_CONFIGURED}")


@market.command()
def history(
    instance_type: Annotated[
        str | None, typer.Option(help="E.g. 8xH100 (default: the first that is watched).")
    ] = None,
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="Start: 7d for 7 days before now, or 14:05."),
    ] = "7d",
    provider: Provider = None,
    as_json: JSON = False,
) -> None:
    """Show prices over time, and how recommended limits have fared since."""
    from longshore.client.process import run

    wanted, begins = type_of(instance_type), past_time("--since", since)
    points, quality = run(_past(wanted, begins, provider))
    if as_json:
        print_json({"points": points, "quality": quality})
        return
    if not points and not quality:
        note(
            f"Nothing is known of {wanted} since {clock(begins, now())}. The control worker "
            "looks at the types of the setting market_watch while a market is configured."
        )
        return
    _show_past(points, quality)


def _show_past(points: tuple[HistoryPoint, ...], quality: tuple[Quality, ...]) -> None:
    from longshore.client.market_view import history_lines, history_screen, quality_table

    if out().is_terminal:
        show(history_screen(points, quality, out().width, now()))
        return
    for line in history_lines(points):
        say(line)
    if quality:
        show(quality_table(quality))


async def _watch(
    provider: str | None, wanted: InstanceType, nodes: int, window: Window | None, as_json: bool
) -> None:
    """Show the markets until interrupted: in place on a terminal, else what changes, by line."""
    from longshore.client.markets import ask, open_markets
    from longshore.models.settings import Settings

    async with open_markets(Settings(), provider) as markets:

        async def look() -> tuple[Quote, ...]:
            return await ask(markets, wanted, nodes * wanted.gpus, window, now())

        if out().is_terminal and not as_json:
            await _watch_in_place(look)
        else:
            await _watch_by_line(look, nodes, as_json)


async def _watch_in_place(look: Callable[[], Awaitable[tuple[Quote, ...]]]) -> None:
    import asyncio

    from rich.live import Live

    from longshore.client.market_view import quotes_in_place

    console = out()
    # The other screen, as in an editor: what was on the terminal comes back in the end.
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        while True:
            screen.update(quotes_in_place(await look(), now(), console.height), refresh=True)
            await asyncio.sleep(_EVERY)


async def _watch_by_line(
    look: Callable[[], Awaitable[tuple[Quote, ...]]], nodes: int, as_json: bool
) -> None:
    import asyncio

    from longshore.client.market_view import quote_line

    last: dict[str, str] = {}
    while True:
        for quote in await look():
            line = quote_line(quote)
            if last.get(quote.provider) != line:
                _print_quote(quote, line, nodes, as_json)
            last[quote.provider] = line
        await asyncio.sleep(_EVERY)


def _print_quote(quote: Quote, line: str, nodes: int, as_json: bool) -> None:
    if as_json:
        print_json_line(_json(quote, nodes))
    else:
        say(f"{quote.at:%Y-%m-%dT%H:%M:%SZ}  {line}")


def _json(quote: Quote, nodes: int) -> object:
    from longshore.models.orderbook_response import OrderbookResponse

    response = OrderbookResponse.of(
        quote.answer,
        nodes,
        quote.instance_type.gpus,
        instance_type=str(quote.instance_type),
        now=quote.at,
        book=quote.book,
    )
    return response.model_copy(update={"provider": quote.provider})


async def _states() -> tuple[ProviderState, ...]:
    from longshore.client.markets import open_markets, states
    from longshore.models.settings import Settings

    async with open_markets(Settings()) as markets:
        return await states(markets)


async def _past(
    wanted: InstanceType, begins: datetime, provider: str | None
) -> tuple[tuple[HistoryPoint, ...], tuple[Quality, ...]]:
    from longshore.activities.database import Database
    from longshore.activities.markets.memory import MarketMemory
    from longshore.models.settings import Settings

    database = Database.for_people(Settings().resolve_database_url(), pool_size=2)
    memory = MarketMemory(database)
    try:
        name = str(wanted)
        points = await memory.history(name, begins, now(), provider=provider, points=_POINTS)
        return points, await memory.how_good(begins, provider=provider, instance_type=name)
    finally:
        await database.close()
