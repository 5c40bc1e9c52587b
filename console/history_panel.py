"""Below the book: what prices were, and how the limits that were recommended fared."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from nicegui import ui

from longshore.console import charts
from longshore.console.escaping import escape
from longshore.console.formats import with_code
from longshore.console.layout import Card, chart, redraw
from longshore.console.market_history import Past, whole_turn
from longshore.models.errors import LongshoreError
from longshore.models.market import InstanceType
from longshore.models.market_memory import HistoryPoint, Quality
from longshore.models.text import count

SPANS = {1: "1 hour", 24: "1 day", 168: "1 week", 720: "30 days"}
POINTS = 180
_JUDGED_OVER = timedelta(days=7)
Shown = tuple[str, str, int, datetime]
"""Market, type, span, and when."""


class HistoryPanel:
    """What the best ask and the best bid were."""

    def __init__(self, past: Past) -> None:
        self._past = past
        self._shown: Shown | None = None
        self._card = Card("Price history", padded=True)
        with self._card:
            self._span = (
                ui.toggle(SPANS, value=24, on_change=self._changed)
                .props('dense flat no-caps size="12px" aria-label="Length of the history"')
                .classes("spans")
            )
            self._none = ui.html("", sanitize=False)
            self._chart = chart("Price history")

    def show(self, visible: bool) -> None:
        self._card.show(visible)

    async def refresh(self, provider: str, wanted: InstanceType) -> None:
        """Show the past of one type at one market, if it is not shown already."""
        self.show(True)
        span = int(self._span.value)
        until = whole_turn(datetime.now(UTC))
        shown = (provider, str(wanted), span, until)
        if shown == self._shown:
            return
        self._shown = shown
        since = until - timedelta(hours=span)
        try:
            points = await self._past.history(
                wanted, since, until, provider=provider, points=POINTS
            )
        except LongshoreError as error:
            self._show_none(f"What was stored cannot be read: {error}")
        else:
            self._show_points(points, since, until)

    def _changed(self) -> None:
        self._shown = None  # the next look at the book, at most two seconds away, shows it

    def _show_points(
        self, points: Sequence[HistoryPoint], since: datetime, until: datetime
    ) -> None:
        if not points:
            self._show_none(
                "No book of this type was stored in this time. Those of the types in the setting "
                "`market_watch` are stored every minute."
            )
            return
        self._none.content = ""
        asks = [(point.at, point.ask) for point in points]
        lows = [(point.at, point.ask_low) for point in points]
        bids = [(point.at, point.bid) for point in points]
        options = charts.lines(
            [
                ("Best ask, lowest", charts.LIMIT, lows),
                ("Best ask", charts.ASK, asks),
                ("Best bid", charts.BID, bids),
            ],
            since,
            until,
        )
        books = sum(point.books for point in points)
        redraw(self._chart, options, f"Best ask and best bid over time, from {books} books.")
        self._card.remark(f"{count(books)} books")
        self._chart.set_visibility(True)

    def _show_none(self, sentence: str) -> None:
        self._none.content = f'<p class="quiet">{with_code(sentence)}</p>'
        self._card.remark("")
        self._chart.set_visibility(False)


class FaredPanel:
    """How the limits that were recommended have turned out."""

    def __init__(self, past: Past) -> None:
        self._past = past
        self._shown: Shown | None = None
        self._card = Card("How past limits fared")
        self._card.remark("last 7 days, each held against the prices of the hour after it")
        with self._card:
            self._table = ui.html("", sanitize=False)

    def show(self, visible: bool) -> None:
        self._card.show(visible)

    async def refresh(self, provider: str, wanted: InstanceType) -> None:
        """Show the past of one type at one market, if it is not shown already."""
        shown = (provider, str(wanted), 0, whole_turn(datetime.now(UTC)))
        if shown == self._shown:
            return
        self._shown = shown
        try:
            fared = await self._past.how_good(wanted, provider, _JUDGED_OVER)
        except LongshoreError:
            self.show(False)  # the history above says what is wrong
            return
        self.show(True)
        self._table.content = quality_html(fared)


def quality_html(fared: Sequence[Quality]) -> str:
    """Return how limits fared, a row for each size."""
    if not fared:
        return (
            '<p class="quiet padded">No limit has been recommended yet for what is asked here. '
            "They are, and are judged, as the watched books are stored.</p>"
        )
    heads = ("GPUs", "Limits", "Bought at once", "Within the hour", "Paid over the best later")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = "".join(
        f"<tr><td>{escape(one.size)}</td><td>{count(one.made)}</td>"
        f"<td>{_share(one.at_once, one.judged)}</td><td>{_share(one.in_time, one.judged)}</td>"
        f"<td>{'–' if one.over_best is None else f'{one.over_best * 100:+.1f} %'}</td></tr>"
        for one in sorted(fared, key=_smallest)
    )
    return (
        '<table class="book"><caption class="sr-only">How past limits fared</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _smallest(one: Quality) -> int:
    """Return the first number of a size such as ``9-64``."""
    digits = re.match(r"\d+", one.size)
    return int(digits[0]) if digits else 0


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"
