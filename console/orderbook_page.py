"""The page /orderbook: a live book, the recommended limit, and what stands beside both."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import charts
from longshore.console import orderbook_view as view
from longshore.console.history_panel import FaredPanel, HistoryPanel
from longshore.console.layout import Badge, Card, chart, frame, redraw
from longshore.console.live import follow
from longshore.console.market_history import Past
from longshore.console.quotes import Need, Quote, Quotes, counted, next_hour
from longshore.models.errors import LongshoreError, MarketAwayError
from longshore.models.market import InstanceType, NoQuote, NoQuoteReason, Window
from longshore.models.price import CountedLevel, PriceAnswer
from longshore.models.text import count, price
from longshore.scheduling.prices.words import left_out_words

PATH = "/orderbook"
EVERY = 2.0
"""Seconds between two looks at the book, while the page can be seen."""
DEFAULT_TYPE = "8xH100"
MOST_NODES = 10_000
WINDOWS = {
    0: "any", 1: "next hour", 24: "next 24 hours", 168: "next 7 days", 720: "next 30 days",
}  # fmt: skip
"""Lengths that are offered, in hours; a window begins with the next whole hour."""
_FIELD = "outlined dense hide-bottom-space"


def add(quotes: Quotes, past: Past, *, simulated: bool) -> None:
    """Add the page to the pages of this process. `simulated`: no real market is asked."""

    @ui.page(PATH, title="Order book · Longshore")
    def orderbook(request: Request) -> None:
        with frame(PATH, request) as badge:
            OrderbookPage(quotes, past, badge, request, simulated)


class OrderbookPage:
    """One browser's view. What it asks for is in its address, so that it can be passed on."""

    def __init__(
        self, quotes: Quotes, past: Past, badge: Badge, request: Request, simulated: bool
    ) -> None:
        self._quotes = quotes
        self._badge = badge
        self._simulated = simulated
        badge.show(simulated)
        self._limit: int | None = None
        with ui.element("div").classes("title"):
            ui.html("<h1>Order book</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        self._controls(request)
        self._notes = ui.html("", sanitize=False)
        self._said = ui.html("", sanitize=False).classes("sr-only").props('aria-live="polite"')
        with ui.element("section").classes("card").props('aria-label="Recommendation"'):
            self._answer = ui.html(_READING, sanitize=False).classes("answer")
        self._make_book()
        with ui.element("div").classes("beside"):
            self._history = HistoryPanel(past)
            self._slippage_card = Card("Slippage by size")
        with self._slippage_card:
            self._slippage = ui.html("", sanitize=False)
        self._fared = FaredPanel(past)
        self._timer = follow(self.refresh, EVERY)

    async def refresh(self) -> None:
        """Read the book and show it."""
        need = self._need()
        if need is None:
            return
        # Before anything is seen: new options take away what somebody is typing.
        await self._offer_types(need.provider)
        try:
            quote = await self._quotes.quote(need)
        except MarketAwayError as error:
            self._show_away(need, str(error))
        except LongshoreError as error:
            self._show_trouble("This book cannot be shown", str(error), _CHECK)
        else:
            self._show(quote)
        for panel in (self._history, self._fared):
            await panel.refresh(need.provider, need.instance_type)

    # --- what is asked for ------------------------------------------------------------------

    def _controls(self, request: Request) -> None:
        asked = request.query_params
        markets = list(self._quotes.providers())
        market = asked.get("provider")
        if market not in markets:
            market = self._quotes.default() or (markets[0] if markets else None)
        wanted = asked.get("instance_type", DEFAULT_TYPE)[:80]
        hours = _whole(asked.get("hours"), 0)
        with ui.element("div").classes("controls").props('role="search" aria-label="What to buy"'):
            self._type = (
                ui.select(
                    sorted({DEFAULT_TYPE, wanted}), value=wanted, label="Instance type",
                    with_input=True, new_value_mode="add-unique", on_change=self._changed,
                )
                .props(f"{_FIELD} options-dense")
            )  # fmt: skip
            self._nodes = ui.number(
                "Nodes", value=_whole(asked.get("node_count"), 1), min=1, max=MOST_NODES, step=1,
                precision=0, on_change=self._changed,
            ).props(f'{_FIELD} debounce="300" inputmode="numeric"')  # fmt: skip
            self._market = ui.select(
                markets, value=market, label="Market", on_change=self._changed
            ).props(f"{_FIELD} options-dense")
            self._window = ui.select(
                WINDOWS if hours in WINDOWS else {**WINDOWS, hours: f"{hours} hours"},
                value=hours, label="Window", on_change=self._changed,
            ).props(f"{_FIELD} options-dense")  # fmt: skip
            self._needed = ui.html("", sanitize=False).classes("need")

    async def _changed(self) -> None:
        need = self._need()
        if need is not None:
            asked = {
                "instance_type": str(need.instance_type), "node_count": need.nodes,
                "provider": need.provider, **({"hours": h} if (h := self._window.value) else {}),
            }  # fmt: skip
            ui.navigate.history.replace(f"{PATH}?{urlencode(asked)}")
            self._timer.activate()
            await self.refresh()

    def _need(self) -> Need | None:
        """Return what is asked for; None, after saying what is wrong, when it makes no sense."""
        self._offer_markets()
        if not self._market.value:
            self._history.show(False)
            self._fared.show(False)
            self._show_trouble("No market is configured", _NO_MARKET, _START_MARKET)
            return None
        try:
            wanted = InstanceType.parse(str(self._type.value or ""))
        except ValueError as error:
            self._show_trouble("This is no instance type", f"{error}", _LIKE)
            return None
        nodes = min(max(int(self._nodes.value or 1), 1), MOST_NODES)
        self._needed.content = (
            f"{count(nodes, 'node')} × {count(wanted.gpus, 'GPU')} = "
            f"<b>{count(nodes * wanted.gpus, 'GPU')}</b>"
        )
        window = None
        if hours := int(self._window.value or 0):
            start = next_hour(self._quotes.now(self._market.value))
            window = Window(start=start, end=start + timedelta(hours=hours))
        return Need(instance_type=wanted, nodes=nodes, provider=self._market.value, window=window)

    def _offer_markets(self) -> None:
        markets = list(self._quotes.providers())
        if markets == self._market.options:
            return
        chosen = self._market.value if self._market.value in markets else self._quotes.default()
        self._market.set_options(markets, value=chosen)

    async def _offer_types(self, provider: str) -> None:
        """List what is traded there now, beside what somebody typed."""
        try:
            traded = {str(each) for each in await self._quotes.types(provider)}
        except LongshoreError:
            return  # the book says what is wrong, and a type can be typed
        options = sorted({*traded, str(self._type.value or DEFAULT_TYPE)})
        if options != self._type.options:
            self._type.set_options(options)

    # --- what is shown ----------------------------------------------------------------------

    def _make_book(self) -> None:
        self._book = ui.element("div").classes("grid three")
        with self._book:
            self._asks, self._bids = Card("Asks"), Card("Bids")
            self._depth_card = Card("Depth", padded=True)
        with self._asks:
            self._asks_table = ui.html("", sanitize=False)
        with self._bids:
            self._bids_table = ui.html("", sanitize=False)
        with self._depth_card:
            self._depth = chart("Depth of the book")
        self._book.set_visibility(False)

    def _show(self, quote: Quote) -> None:
        if quote.book is not None and quote.read_at is not None:
            self._badge.show(self._simulated or quote.book.simulated)
            self._live.content = view.live_html(quote.read_at, quote.now, quote.book.observed_at)
        if isinstance(quote.price, PriceAnswer):
            self._show_answer(quote.price)
        else:
            self._show_no_quote(quote, quote.price)

    def _show_answer(self, answer: PriceAnswer) -> None:
        self._answer.content = view.answer_html(answer)
        self._show_notes(view.notes_html(answer))
        self._say(answer)
        self._asks_table.content = view.levels_html(
            "asks", answer.asks, answer.observed_at, picked=answer.index
        )
        self._asks.remark(_remark(answer.ask_liquidity, _left_out(answer.left_out)))
        self._show_bids(answer.bids, answer.bid_liquidity, answer.observed_at)
        options = charts.depth(answer.asks, answer.bids, answer.limit)
        redraw(self._depth, options, charts.depth_words(answer))
        self._slippage.content = view.slippage_html(answer.slippage, answer.bought)
        self._slippage_card.show(True)
        self._book.set_visibility(True)

    def _show_no_quote(self, quote: Quote, why: NoQuote) -> None:
        need, book = quote.need, quote.book
        self._show_text(view.no_quote_html(why, need.provider, str(need.instance_type)))
        if book is None:
            self._live.content = view.live_html(None, quote.now)
            self._book.set_visibility(False)
            return
        bids = counted(book.bids)
        self._asks_table.content = view.levels_html("asks", (), book.observed_at)
        self._asks.remark(_remark(0, _left_out(why.left_out)))
        self._show_bids(bids, bids[-1].cumulative if bids else 0, book.observed_at)
        redraw(self._depth, charts.depth((), bids, None), "Depth of the book: bids alone.")
        self._book.set_visibility(True)

    def _show_bids(self, bids: Sequence[CountedLevel], gpus: int, observed_at: datetime) -> None:
        self._bids_table.content = view.levels_html("bids", bids, observed_at)
        self._bids.remark(_remark(gpus))

    def _show_away(self, need: Need, sentence: str) -> None:
        detail = sentence.removeprefix(f"{need.provider}: ")
        why = NoQuote(reason=NoQuoteReason.UNREACHABLE, detail=detail)
        self._show_no_quote(Quote(need, why, None, datetime.now(UTC)), why)

    def _show_trouble(self, head: str, sentence: str, advice: str) -> None:
        self._show_text(view.trouble_html(head, sentence, advice))
        self._live.content = view.live_html(None, datetime.now(UTC))
        self._book.set_visibility(False)

    def _show_text(self, html: str) -> None:
        """Show words in place of a price."""
        self._answer.content = html
        self._show_notes("")
        self._slippage_card.show(False)
        self._limit = None

    def _show_notes(self, html: str) -> None:
        self._notes.content = html
        self._notes.set_visibility(bool(html))

    def _say(self, answer: PriceAnswer) -> None:
        """Tell a screen reader when the limit has changed."""
        if answer.limit != self._limit:
            self._limit = answer.limit
            self._said.content = f"The recommended limit is {price(answer.limit)} a GPU-hour."


def _remark(gpus: int, more: str = "") -> str:
    return "; ".join(part for part in (f"{count(gpus, 'GPU')}", more) if part)


def _whole(text: str | None, otherwise: int) -> int:
    """Return a number from an address, where anything may stand."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 5:
        return otherwise
    return min(int(text), MOST_NODES)


_READING = '<div class="empty"><p>Reading the book …</p></div>'
_CHECK = "The market is asked again every two seconds."
_NO_MARKET = "There is nobody to ask for a price."
_START_MARKET = (
    "Start a simulated market with `longshore market simulate`, which this page finds by "
    "itself; or set the token of a real one and start the console again."
)
_LIKE = "Write it like 8xH100 or 8xH100-80GB."


def _left_out(left_out: Mapping[str, int]) -> str:
    return f"left out: {left_out_words(left_out)}" if left_out else ""
