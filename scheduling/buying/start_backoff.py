"""Backoff for starts on paid time, and for markets that refuse our key.

A start costs nothing where its time is paid for: it is tried as long as the rest of that is of
use, ever less often.
"""

from datetime import datetime, timedelta

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=10)
"""Between two starts on paid time; each pause is twice the one before it."""
FIRST_CLOSED, LONGEST_CLOSED = timedelta(minutes=10), timedelta(hours=24)
"""How long nothing is bought at a market that does not let our key do it; doubled each time."""
FIRST_WITHOUT_FUNDS, LONGEST_WITHOUT_FUNDS = timedelta(minutes=1), timedelta(minutes=15)
"""The same where its account has too little money: somebody pays in, and tells nobody here."""
_MOST_DOUBLINGS = 16


def start_again(
    tries: int, now: datetime, ends_at: datetime, least: timedelta
) -> timedelta | None:
    """Return after which pause a start is tried again that came to nothing `tries` times.

    None where less than `least` of the paid time would be left then.
    """
    pause = _doubled(FIRST_PAUSE, tries, LONGEST_PAUSE)
    return pause if now + pause + least <= ends_at else None


def next_start(
    failures: int, since: datetime, now: datetime, ends_at: datetime, least: timedelta
) -> datetime | None:
    """Return when a machine is started again on paid time that lost one at `since`, after so many
    `failures` in a row.

    None where less than `least` of that time would be left then.
    """
    due = max(since + _doubled(FIRST_PAUSE, failures, LONGEST_PAUSE), now)
    return due if due + least <= ends_at else None


def closed_until(times: int, at: datetime, *, for_funds: bool = False) -> datetime:
    """Return until when nothing is bought at a market that refused our key `times` times in a row,
    or orders for the money of the account there, last at `at`."""
    if for_funds:
        return at + _doubled(FIRST_WITHOUT_FUNDS, times, LONGEST_WITHOUT_FUNDS)
    return at + _doubled(FIRST_CLOSED, times, LONGEST_CLOSED)


def _doubled(first: timedelta, times: int, longest: timedelta) -> timedelta:
    return min(first * 2 ** min(max(times - 1, 0), _MOST_DOUBLINGS), longest)
