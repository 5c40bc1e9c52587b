"""The command `longshore console`."""

import sys
import webbrowser
from typing import Annotated

import typer

# The rest is imported where it is needed: every command of `longshore` loads this module.


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(console)


def console(
    address: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Where to listen; by default what the setting console_address says.",
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Serve the web pages and the REST API here, until Ctrl-C or SIGTERM.

    `longshore up` runs it already. A browser comes in by the link that is printed, or by the
    console's token, which is in the file console-token of the state folder.
    """
    from longshore.console.server import serve
    from longshore.models.settings import Settings

    settings = Settings()
    serve(settings, _address(address or settings.console_address), lambda url: _say(url, open_it))


def _say(link: str, open_it: bool) -> None:
    if sys.stdout.isatty():
        typer.echo(f"The console is at {link}")
    else:  # a file, where the token of the link would stay
        typer.echo(
            f"The console is at {link.partition('?')[0]} (`longshore ui` prints a link that "
            "signs in)"
        )
    sys.stdout.flush()
    if open_it:
        webbrowser.open(link)


def _address(value: str | None) -> str:
    from longshore.models.addresses import parse_address
    from longshore.models.errors import SpecError

    try:
        found = parse_address(value)
    except ValueError as error:
        raise SpecError("--address", (f"--address {error}",)) from None
    if not isinstance(found, str):
        raise SpecError(
            "console_address",
            ("the setting console_address is off: say where with --address, such as 8484",),
        )
    return found
