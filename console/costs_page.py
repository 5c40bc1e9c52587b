"""The page /costs: what bought capacity cost, and what became of it."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import costs_view as view
from longshore.console.bought import Bought
from longshore.console.layout import Badge, Card, frame, toggle
from longshore.console.live import follow
from longshore.console.parts import READING, empty, no_answer, updated
from longshore.models.errors import LongshoreError

PATH = view.PATH
SHOWN = 200
_BY = {"pool": "Pool", "tenant": "Tenant", "job": "Job", "block": "Block"}
_SPANS = {24: "1 day", 168: "1 week", 720: "30 days", 0: "All time"}


def add(bought: Bought, *, simulated: bool) -> None:
    """Add the page to those of this process. `simulated`: no real market is asked."""

    @ui.page(PATH, title="Costs · Longshore")
    def costs(request: Request) -> None:
        with frame(PATH, request) as badge:
            CostsPage(bought, badge, request, simulated)


class CostsPage:
    """Costs of a time, by pool, tenant, job or block."""

    def __init__(self, bought: Bought, badge: Badge, request: Request, simulated: bool) -> None:
        self._bought, self._badge, self._simulated = bought, badge, simulated
        badge.show(simulated)
        asked = request.query_params
        by, hours = asked.get("by", ""), asked.get("hours", "")
        with ui.element("div").classes("title"):
            ui.html("<h1>Costs</h1>", sanitize=False)
            self._by = toggle(_BY, by if by in _BY else "pool", "What is summed up")
            span = int(hours) if hours in map(str, _SPANS) else 168
            self._span = toggle(_SPANS, span, "Length of time")
            self._live = ui.html("", sanitize=False).classes("live")
        for each in (self._by, self._span):
            each.on_value_change(self._changed)
        with ui.element("section").classes("card").props('aria-label="Sums"') as self._sums_card:
            self._sums = ui.html("", sanitize=False)
        self._card = Card("By pool", classes="stacks")
        with self._card:
            self._legend = ui.html("", sanitize=False)
            self._list = ui.html(READING, sanitize=False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the costs and show them."""
        by, since = str(self._by.value), self._since()
        try:
            in_all = await self._bought.costs("pool", since=since, limit=SHOWN)
            found = await self._bought.costs(by, since=since, limit=SHOWN)
        except LongshoreError as error:
            self._live.content = updated(None)
            self._sums_card.set_visibility(False)
            self._list.content = no_answer(error)
            return
        self._badge.show(self._simulated or any(each.simulated for each in in_all))
        self._live.content = updated(datetime.now(UTC))
        self._sums_card.set_visibility(bool(in_all))
        self._sums.content = view.sums_html(in_all)
        self._card.title(f"By {by}")
        self._card.remark(f"since {since:%d %b %H:%M} UTC" if since else "all that was booked")
        self._legend.content = view.legend_html(by) if found else ""
        self._list.content = (
            view.list_html(by, found) if found else _nothing(by, since, bool(in_all))
        )

    async def _changed(self) -> None:
        asked = {"by": self._by.value, "hours": self._span.value}
        ui.navigate.history.replace(f"{PATH}?{urlencode(asked)}")
        await self.refresh()

    def _since(self) -> datetime | None:
        """Return when the time begins, in whole minutes: all who look share an answer."""
        hours = int(self._span.value)
        minute = datetime.now(UTC).replace(second=0, microsecond=0)
        return minute - timedelta(hours=hours) if hours else None


def _nothing(by: str, since: datetime | None, paid: bool) -> str:
    if paid:
        return empty(
            f"No {by} has paid yet",
            "A job pays its share when the block that it ran on has ended: until then the money "
            "is open. `Block` above shows where it is.",
        )
    return empty(
        "Nothing was paid in this time" if since else "Nothing has been paid for yet",
        *(["Choose a longer time above."] if since else []),
        "What is not billed yet is no cost yet: the pages of purchases and blocks say about how "
        "much that is. What a pool may buy is set with "
        "`longshore pool set default --buying enabled=true`.",
    )
