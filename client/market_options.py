"""Options that commands on markets share, and what they mean."""

from datetime import datetime
from typing import Annotated

import typer

from longshore.models.base import Instant
from longshore.models.market import InstanceType, Window
from longshore.models.units import parse_duration

From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Start of the time needed (default: now)."),
]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="DURATION", help="Length of the time needed, e.g. 24h."),
]
Provider = Annotated[
    str | None, typer.Option("--provider", metavar="MARKET", help="Only this market.")
]


def window_of(start: str | None, length: str | None, at: datetime) -> Window | None:
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


def type_of(text: str | None) -> InstanceType:
    """Return the instance type; the first that is watched without. Raises BadParameter."""
    from longshore.models.settings import Settings

    if text is None:
        text = next(iter(Settings().market_watch), "8xH100")
    try:
        return InstanceType.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"--instance-type: {error}") from None
