"""Below the book: what prices were, and how the limits that were recommended fared."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html import escape

from nicegui import ui

from console import charts
from console.formats import count
from console.layout import Card, chart, redraw
from console.past import Past
from models.errors import LongshoreError
from models.market import InstanceType
from models.market_memory import HistoryPoint, Quality

SPANS = {1: "1 hour", 24: "1 day", 168: "1 week", 720: "30 days"}
POINTS = 180
EVERY = 15.0
"""Seconds between two looks at the database."""
_JUDGED_OVER = timedelta(days=7)


class HistoryPanel:
    """Prices over time on the left, how past limits fared on the right."""

    def __init__(self, past: Past) -> None:
        self._past = past
        self._shown: tuple[str, str, int] | None = None
        self._shown_at = 0.0
        with ui.element("div").classes("grid wide-first"):
            self._prices, self._fared = Card("Price history", padded=True), Card("Past limits")
        with self._prices:
            self._span = (
                ui.toggle(SPANS, value=24, on_change=self._changed)
                .props('dense flat no-caps size="12px" aria-label="Length of the history"')
                .classes("spans")
            )
            self._none = ui.html("", sanitize=False)
            self._chart = chart("Price history")
        with self._fared:
            self._table = ui.html("", sanitize=False)
        self._fared.remark("of the last 7 days, held against the hour after")

    async def refresh(self, provider: str, wanted: InstanceType) -> None:
        """Show the past of one type at one market, if it is not shown already."""
        span = int(self._span.value)
        what = (provider, str(wanted), span)
        if what == self._shown and time.monotonic() - self._shown_at < EVERY:
            return
        self._shown, self._shown_at = what, time.monotonic()
        # Whole quarters of a minute: those who look at the same time ask the same.
        until = datetime.fromtimestamp((time.time() // EVERY + 1) * EVERY, UTC)
        since = until - timedelta(hours=span)
        try:
            points = await self._past.history(
                wanted, since, until, provider=provider, points=POINTS
            )
            fared = await self._past.how_good(wanted, provider, _JUDGED_OVER)
        except LongshoreError as error:
            self._show_none(f"What was stored cannot be read: {error}")
            self._table.content = ""
            return
        self._show_points(points, since, until)
        self._table.content = quality_html(fared)

    def _changed(self) -> None:
        self._shown = None  # the next look at the book, at most two seconds away, shows it

    def _show_points(
        self, points: Sequence[HistoryPoint], since: datetime, until: datetime
    ) -> None:
        if not points:
            self._show_none(
                "No book of this type was stored in this time. Types in the setting market_watch "
                "are stored every minute."
            )
            return
        self._none.content = ""
        asks = [(point.at, point.ask) for point in points]
        lows = [(point.at, point.ask_low) for point in points]
        bids = [(point.at, point.bid) for point in points]
        options = charts.lines(
            [
                ("Best ask, mean", charts.ASK, asks),
                ("Best ask, lowest", charts.LIMIT, lows),
                ("Best bid, mean", charts.BID, bids),
            ],
            since,
            until,
        )
        books = sum(point.books for point in points)
        redraw(self._chart, options, f"Best ask and best bid over time, from {books} books.")
        self._prices.remark(f"{count(books)} books")
        self._chart.set_visibility(True)

    def _show_none(self, sentence: str) -> None:
        self._none.content = f'<p class="quiet">{escape(sentence)}</p>'
        self._prices.remark("")
        self._chart.set_visibility(False)


def quality_html(fared: Sequence[Quality]) -> str:
    """Return how limits fared, a row for each size."""
    if not fared:
        return (
            '<p class="quiet padded">No limit has been recommended yet for what is asked here. '
            "They are, and are judged, as the watched books are stored.</p>"
        )
    heads = ("GPUs", "Limits", "Bought at once", "Within the hour", "Over the best later")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = "".join(
        f"<tr><td>{escape(one.size)}</td><td>{count(one.made)}</td>"
        f"<td>{_share(one.at_once, one.judged)}</td><td>{_share(one.in_time, one.judged)}</td>"
        f"<td>{'–' if one.over_best is None else f'{one.over_best * 100:+.1f} %'}</td></tr>"
        for one in fared
    )
    return (
        '<table class="book"><caption class="sr-only">How past limits fared</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"
