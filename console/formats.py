"""Numbers and times as the pages write them."""

from datetime import datetime

from longshore.console.escaping import escape


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"


def percent(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


def with_code(text: str) -> str:
    """Return escaped text in which what stands between backticks is code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{each}</code>" if n % 2 else each for n, each in enumerate(pieces))
