"""The page /budgets: whose GPUs are whose, who pays for those in use, and who used how much."""

from datetime import UTC, datetime
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import budgets_view as view
from longshore.console.fleet import Fleet
from longshore.console.layout import Badge, Card, frame, toggle
from longshore.console.live import follow
from longshore.console.parts import READING, no_answer, updated
from longshore.models.errors import LongshoreError
from longshore.models.funding_use import UsedBy

PATH = view.PATH
_SPANS = {24: "1 day", 168: "1 week", 720: "30 days"}
_WEEK = 168


def add(fleet: Fleet) -> None:
    """Add the page to those of this process."""

    @ui.page(PATH, title="Budgets · Longshore")
    def budgets(request: Request) -> None:
        with frame(PATH, request) as badge:
            BudgetsPage(fleet, badge, request)


class BudgetsPage:
    """Tenants in their tree, envelopes, who lends to whom, and GPU-hours of a time."""

    def __init__(self, fleet: Fleet, badge: Badge, request: Request) -> None:
        self._fleet, self._badge = fleet, badge
        hours = request.query_params.get("hours", "")
        with ui.element("div").classes("title"):
            ui.html("<h1>Budgets</h1>", sanitize=False)
            span = int(hours) if hours in map(str, _SPANS) else _WEEK
            self._span = toggle(_SPANS, span, "Length of time of the GPU-hours")
            self._live = ui.html("", sanitize=False).classes("live")
        self._span.on_value_change(self._changed)
        self._cards = {name: Card(name, classes="stacks budgets") for name in _CARDS}
        self._parts: dict[str, ui.html] = {}
        for name, card in self._cards.items():
            card.remark(_CARDS[name])
            with card:
                self._parts[name] = ui.html(READING if name == "Tenants" else "", sanitize=False)
            card.show(name == "Tenants")
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read who pays, and show it."""
        hours = int(self._span.value)
        try:
            state = await self._fleet.funding()
            used = await self._fleet.usage(hours, UsedBy.TENANT)
        except LongshoreError as error:
            self._live.content = updated(None)
            self._only(no_answer(error))
            return
        self._live.content = updated(datetime.now(UTC))
        self._badge.show(state.simulated or used.simulated, "Simulated GPUs")
        if not state.tenants:
            self._only(view.nothing_html())
            return
        self._put("Tenants", view.tenants_html(state, used))
        self._put("Envelopes", view.envelopes_html(state))
        self._put("Caps", view.caps_html(state))
        self._put("Quotas", view.quotas_html(state))
        self._put("Lending", view.loans_html(state))
        self._put("Money", view.money_html(state))
        self._put("GPU-hours", view.usage_html(used))
        self._cards["GPU-hours"].remark(f"since {used.since:%d %b %H:%M} UTC, by class")

    def _put(self, name: str, html: str) -> None:
        self._parts[name].content = html
        self._cards[name].show(bool(html))

    def _only(self, html: str) -> None:
        for name in self._cards:
            self._put(name, html if name == "Tenants" else "")

    async def _changed(self) -> None:
        ui.navigate.history.replace(f"{PATH}?{urlencode({'hours': self._span.value})}")
        await self.refresh()


_CARDS = {
    "Tenants": "GPUs in use now, by class",
    "Envelopes": "what each pays for now",
    "Caps": "joint limits of envelopes",
    "Quotas": "what tenants hold with those below them, and may",
    "Lending": "now",
    "Money": "that purchases have taken, in UTC; the forecast is of the whole month",
    "GPU-hours": "",
}
"""Each with its remark."""
