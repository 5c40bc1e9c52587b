"""Times that have passed, as options take them."""

import contextlib
import re
from datetime import datetime, time, timedelta

import typer

from longshore.client.terminal import now
from longshore.models.units import parse_duration
from longshore.models.visible import shown


def past_time(option: str, text: str) -> datetime:
    """Return the time of ``10m`` (ago), ``14:05`` (the last one) or a date with its time; the
    zone of this machine counts where none is given. Raises BadParameter."""
    if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text, re.ASCII):
        with contextlib.suppress(ValueError):
            today, clock = now().astimezone().date(), time.fromisoformat(text)
            found = datetime.combine(today, clock).astimezone()
            if found > now():  # by the calendar: a day in which clocks change has another length
                found = datetime.combine(today - timedelta(days=1), clock).astimezone()
            return found
    with contextlib.suppress(ValueError, OverflowError):
        return now() - parse_duration(text)
    try:
        found = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{option} {shown(text)}: give a duration such as 10m, or a time such as 14:05 or "
            "2026-11-25T14:05"
        ) from None
    if found > now():
        raise typer.BadParameter(f"{option} {shown(text)}: give a time that has passed")
    return found
