"""The pages /purchases and /purchases/ID."""

from datetime import UTC, datetime
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import purchases_view as view
from longshore.console.bought import Bought
from longshore.console.escaping import escape
from longshore.console.layout import Badge, Card, frame, toggle
from longshore.console.live import follow
from longshore.console.parts import READING, chip, empty, no_answer, updated
from longshore.models.errors import LongshoreError, NotFoundError
from longshore.models.spending import PurchaseDetail
from longshore.models.text import count

PATH = view.PATH
SHOWN = 200
_WHICH = {"running": "Running", "all": "All"}


def add(bought: Bought, *, simulated: bool) -> None:
    """Add the pages to those of this process. `simulated`: no real market is asked."""

    @ui.page(PATH, title="Purchases · Longshore")
    def purchases(request: Request) -> None:
        with frame(PATH, request) as badge:
            PurchasesPage(bought, badge, request, simulated)

    @ui.page(PATH + "/{purchase_id}", title="Purchase · Longshore")
    def purchase(request: Request, purchase_id: str) -> None:
        with frame(PATH, request) as badge:
            PurchasePage(bought, badge, purchase_id, simulated)


class PurchasesPage:
    """All purchases, or those that run."""

    def __init__(self, bought: Bought, badge: Badge, request: Request, simulated: bool) -> None:
        self._bought, self._badge, self._simulated = bought, badge, simulated
        badge.show(simulated)
        asked = request.query_params.get("show", "")
        with ui.element("div").classes("title"):
            ui.html("<h1>Purchases</h1>", sanitize=False)
            self._which = toggle(_WHICH, asked if asked in _WHICH else "all", "Which purchases")
            self._live = ui.html("", sanitize=False).classes("live")
        self._which.on_value_change(self._changed)
        self._notes = ui.html("", sanitize=False)
        with ui.element("section").classes("card").props('aria-label="Sums"') as self._sums_card:
            self._sums = ui.html("", sanitize=False)
        self._card = Card("The newest first", classes="purchases stacks")
        with self._card:
            self._list = ui.html(READING, sanitize=False)
        self._orphans_card = Card("Differences from the markets")
        with self._orphans_card:
            self._orphans = ui.html("", sanitize=False)
        self._orphans_card.show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the purchases and show them."""
        try:
            switch = await self._bought.switch()
            found = await self._bought.purchases(ended=self._which.value == "all", limit=SHOWN)
        except LongshoreError as error:
            self._live.content = updated(None)
            self._sums_card.set_visibility(False)
            self._list.content = no_answer(error)
            return
        self._badge.show(self._simulated or any(each.simulated for each in found))
        self._live.content = updated(datetime.now(UTC))
        self._notes.content = view.switch_html(switch)
        self._notes.set_visibility(bool(self._notes.content))
        self._sums_card.set_visibility(bool(found))
        self._sums.content = view.sums_html(found)
        self._card.remark(count(len(found), "purchase"))
        self._list.content = view.list_html(found) if found else self._nothing()
        await self._compare()

    async def _compare(self) -> None:
        """Show where the markets and the ledger differ; nothing where they do not."""
        try:
            differences = await self._bought.differences()
        except LongshoreError:
            return  # the next refresh says that the database is away
        self._orphans_card.show(bool(differences))
        self._orphans_card.remark(view.COMPARED)
        self._orphans.content = view.orphans_html(differences)

    async def _changed(self) -> None:
        ui.navigate.history.replace(f"{PATH}?{urlencode({'show': self._which.value})}")
        await self.refresh()

    def _nothing(self) -> str:
        if self._which.value == "running":
            return empty("Nothing is being bought", "`All` above shows what was.")
        return empty(
            "Nothing has been bought yet",
            "A pool buys what its queue lacks when its policy allows that: "
            "`longshore pool set default --buying enabled=true`.",
            "`longshore buy --dry-run` says what it would buy now, and buys nothing.",
        )


class PurchasePage:
    """One purchase: what happened, and every option that was looked at."""

    def __init__(self, bought: Bought, badge: Badge, purchase_id: str, simulated: bool) -> None:
        self._bought, self._badge, self._id = bought, badge, purchase_id[:200]
        self._simulated = simulated
        badge.show(simulated)
        ui.html(f'<a class="back" href="{PATH}">All purchases</a>', sanitize=False)
        with ui.element("div").classes("title"):
            self._title = ui.html("<h1>Purchase</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        with ui.element("section").classes("card").props('aria-label="Purchase"'):
            self._head = ui.html(READING, sanitize=False)
        with ui.element("div").classes("beside") as self._below:
            self._timeline_card = Card("Timeline")
            with ui.element("div").classes("stack"):
                self._orders_card, self._machines_card = Card("Orders"), Card("Machines")
        self._options_card = Card("Options considered", classes="stacks")
        with self._timeline_card:
            self._timeline = ui.html("", sanitize=False)
        with self._orders_card:
            self._orders = ui.html("", sanitize=False)
        with self._machines_card:
            self._machines = ui.html("", sanitize=False)
        with self._options_card:
            self._options = ui.html("", sanitize=False)
        self._show_rest(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the purchase and show it."""
        try:
            found = await self._bought.purchase(self._id)
        except NotFoundError:
            self._show_rest(False)
            self._head.content = empty(
                "There is no such purchase", "`longshore purchases --all` lists them."
            )
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show_rest(False)
            self._head.content = no_answer(error)
        else:
            self._show(found)

    def _show(self, found: PurchaseDetail) -> None:
        self._badge.show(self._simulated or found.simulated)
        self._live.content = updated(datetime.now(UTC))
        self._title.content = f"<h1>{escape(found.id)} {chip(found.state.value)}</h1>"
        self._head.content = view.head_html(found)
        self._timeline.content = view.timeline_html(found.timeline)
        self._orders.content = view.orders_html(found)
        self._machines.content = view.machines_html(found)
        self._options.content = view.options_html(found.options)
        self._options_card.remark(
            f"decided by the rule {found.rule}; money at the prices seen" if found.rule else ""
        )
        self._show_rest(True)
        self._options_card.show(bool(found.options))

    def _show_rest(self, visible: bool) -> None:
        self._below.set_visibility(visible)
        self._options_card.show(visible)
