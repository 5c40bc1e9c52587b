"""What jobs that run have heard of who pays for them: it is kept in the memory of the worker."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from longshore.models.funding import FundingClass
from longshore.scheduling.funding.news import News

TOLD_EVERY = timedelta(minutes=5)
"""A job hears of it at most so often: each word is two billed actions of Temporal, and short jobs
of an owner take back from a relative, and give back, each minute."""


class Telling:
    """What jobs have heard, so that they hear it no oftener than `TOLD_EVERY`."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[FundingClass | None, datetime]] = {}
        self._left: dict[tuple[str, int], News] = {}

    def due(self, news: Iterable[News], now: datetime) -> tuple[News, ...]:
        """Return what they hear now. What they do not is kept for a later call, and dropped where
        it is by then as they have heard."""
        for each in news:
            self._left[each.job_id, each.paid.attempt] = each
        for key in [key for key, (_, at) in self._last.items() if now - at >= TOLD_EVERY]:
            if key not in self._left:
                del self._last[key]
        due: list[News] = []
        for key, each in list(self._left.items()):
            heard, at = self._last.get(key, (None, None))
            if at is not None and now - at < TOLD_EVERY:
                continue
            del self._left[key]
            if heard is not each.paid.funding or at is None:
                self._last[key] = each.paid.funding, now
                due.append(each)
        return tuple(due)

    def next_due(self, now: datetime) -> timedelta | None:
        """Return in what time a job is to hear what is kept for it; None where none is."""
        times = (
            self._last[key][1] + TOLD_EVERY
            for key, each in self._left.items()
            if self._last[key][0] is not each.paid.funding
        )
        soonest = min(times, default=None)
        return None if soonest is None else soonest - now
