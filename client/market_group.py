"""The command group `longshore market`: other modules add their commands to `market`."""

import typer

market = typer.Typer(
    help="What the markets ask now, and what they asked before.", no_args_is_help=False
)


def register(app: typer.Typer) -> None:
    app.add_typer(market, name="market", rich_help_panel="Markets")
