"""Changes of a pool's settings, as the flags of `longshore pool set` say them."""

import json
import re
from decimal import Decimal, InvalidOperation

import typer

from longshore.client.prices import is_file, name_of_file
from longshore.models.addresses import without_secrets
from longshore.models.document import Override
from longshore.models.price_series import FILE
from longshore.models.visible import brief

_MONEY = re.compile(r"(caps|max_price)\..+|(fast_delay|flex|prime_max)_price")
_NUMBER = re.compile(
    r"(?=.*[1-9a-df])\+?(0x[0-9a-f_]+|\.?[0-9][0-9._,]*(e[-+]?[0-9]+)?)", re.IGNORECASE
)
"""Of micro-dollars nobody thinks who writes one; documents of programs have them."""
_NO_DOLLARS = 100_000
"""A number from here on is thought of as micro-dollars."""


def weights(text: str | None) -> list[Override]:
    changes: list[Override] = []
    for part in text.split(",") if text else ():
        name, equals, number = part.strip().partition("=")
        if not (name and equals):
            raise typer.BadParameter(
                f"--weights {brief(part.strip())}: give NAME=NUMBER, as in expiry=-0.3"
            )
        changes.append(Override(f"packing.weights.{name}", number, f"--weights {part.strip()}"))
    return changes


def named(field: str, texts: list[str] | None, example: str, flag: str = "") -> list[Override]:
    flag = flag or f"--{field}"
    changes: list[Override] = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{flag} {brief(text)}: give NAME=VALUE, as in {example}")
        if (
            field == "buying"
            and _MONEY.fullmatch(name.strip())
            and _NUMBER.fullmatch(value.strip())
        ):
            raise typer.BadParameter(
                f"{flag} {text}: give dollars, as in {_in_dollars(name.strip(), value)}"
            )
        changes.append(Override(f"{field}.{name.strip()}", value, f"{flag} {text}"))
    return changes


def _in_dollars(name: str, value: str) -> str:
    """Return what a number without a dollar sign may mean: dollars; a large one micro-dollars."""
    try:
        number = Decimal(value.strip().replace("_", "").replace(",", ""))
    except InvalidOperation:
        return f"'{name}=$50'"
    said = f"'{name}=${number:f}'"
    if number < _NO_DOLLARS:
        return said
    micro = f"{number / 1_000_000:f}"
    return f"{said}, or '{name}=${micro}' if micro-dollars are meant"


def price(
    source: str | None, settings: list[str] | None, start_below: str | None
) -> list[Override]:
    """Return what `--price`, `--pricing` and `--start-below` change; `none` takes one away."""
    changes: list[Override] = []
    if source == _NONE:
        changes.append(Override("price", "null", "--price none"))
    elif source is not None:
        named_so = f"{FILE}{name_of_file(source)}" if is_file(source) else source
        given = f"--price {without_secrets(source)}"
        changes.append(Override("price.source", json.dumps(named_so), given))
    changes += named("price", settings, "longest_step=1d", flag="--pricing")
    if start_below is not None:
        value = "null" if start_below == _NONE else json.dumps(start_below)
        changes.append(Override("start_below", value, f"--start-below {start_below}"))
    return changes


_NONE = "none"
