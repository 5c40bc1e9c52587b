"""The command `longshore config`: the settings that hold here, and where each comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.client.terminal import JSON, Text, a_table, print_json, show

if TYPE_CHECKING:
    from longshore.models.settings import Settings

# The rest is imported where it is needed: every command of `longshore` loads this module.


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(config)


def config(
    example: Annotated[
        bool,
        typer.Option("--example", help="Print a longshore.toml with every setting explained."),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Show every setting, its value and where that comes from. Secrets are masked.

    docs/settings.md says what each is for.
    """
    if example:
        from longshore.workers.settings_page import example_file

        return typer.echo(example_file(), nl=False)
    from longshore.models.settings import Settings

    rows = effective(Settings())
    if as_json:
        return print_json(rows)
    table = a_table(("SETTING", "VALUE", "FROM"), fold=("VALUE", "FROM"))
    for row in rows:
        style = "" if row["from"] != "default" else "dim"
        table.add_row(row["setting"], _shown(row["value"]), Text(row["from"], style=style))
    return show(table)


def effective(settings: Settings) -> list[dict[str, Any]]:
    """Return setting, value and origin of each setting; secrets and passwords in URLs masked."""
    from longshore.models.addresses import without_secrets
    from longshore.models.settings_sources import origins

    values = settings.model_dump(mode="json")
    return [
        {
            "setting": name,
            "value": _masked(getattr(settings, name), values[name], without_secrets),
            "from": origin,
        }
        for name, origin in origins(settings).items()
    ]


def _masked(value: Any, shown: Any, without_secrets: Any) -> Any:
    from pydantic import SecretStr

    if isinstance(value, SecretStr):
        url = without_secrets(value.get_secret_value())
        return url if "://" in url else str(value)
    return without_secrets(shown) if isinstance(shown, str) else shown


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    return "" if value is None else str(value)
