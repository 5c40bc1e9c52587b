"""Times that have passed, as options take them."""

import contextlib
import re
from datetime import datetime, time, timedelta

import typer

from longshore.client.terminal import now
from longshore.models.units import parse_duration
from longshore.models.visible import shown


def past_time(option: str, text: str) -> datetime:
    """Return the time of ``10m`` (ago), ``14:05`` or ``9:05`` (the last one) or a date with its
    time; the zone of this machine counts where none is given. Raises BadParameter, also for a
    number alone: whoever writes 3 may mean hours or days, and hardly seconds."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        raise typer.BadParameter(
            f"{option} {shown(text)}: has no unit; say {text}s, {text}m, {text}h or {text}d, or a "
            "time such as 14:05"
        )
    if clock := re.fullmatch(r"(\d+)(:\d\d(?::\d\d)?)", text, re.ASCII):  # no H:MM of a duration
        try:
            at = time.fromisoformat(f"{clock[1]:0>2}{clock[2]}")
        except ValueError:
            raise typer.BadParameter(
                f"{option} {shown(text)}: is no time of a day, 0:00 to 23:59; say how long ago it "
                "was as 90m or 36h"
            ) from None
        today = now().astimezone().date()
        found = datetime.combine(today, at).astimezone()
        if found > now():  # by the calendar: a day in which clocks change has another length
            found = datetime.combine(today - timedelta(days=1), at).astimezone()
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
