"""What the purchases of a month will probably come to."""

import calendar
from datetime import date

PACE = 7
"""Days, today among them, whose purchases say how it goes on."""


def forecast(this_month: int, of_late: int, today: date) -> int:
    """Return micro-dollars: what was committed this month, and for each day that is left of it as
    much as on a day of the last week (`of_late` in all)."""
    left = calendar.monthrange(today.year, today.month)[1] - today.day
    return this_month + of_late * left // PACE
