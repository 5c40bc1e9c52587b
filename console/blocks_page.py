"""The pages /blocks and /blocks/ID."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.activities.buying.block_end_views import BlockEndView
from longshore.console import blocks_view as view
from longshore.console import lanes
from longshore.console.bought import Bought
from longshore.console.escaping import escape
from longshore.console.layout import Badge, Card, frame, toggle
from longshore.console.live import follow
from longshore.console.parts import READING, chip, empty, no_answer, updated
from longshore.models.errors import LongshoreError, NotFoundError

PATH = view.PATH
SHOWN = 40
_WHICH = {"running": "Running", "all": "All"}
_SPANS = {0: "Fit", 1: "1 hour", 6: "6 hours", 24: "1 day", 168: "1 week"}


def add(bought: Bought, *, simulated: bool) -> None:
    """Add the pages to those of this process. `simulated`: no real market is asked."""

    @ui.page(PATH, title="Blocks · Longshore")
    def blocks(request: Request) -> None:
        with frame(PATH, request) as badge:
            BlocksPage(bought, badge, request, simulated)

    @ui.page(PATH + "/{block_id}", title="Block · Longshore")
    def block(request: Request, block_id: str) -> None:
        with frame(PATH, request) as badge:
            BlockPage(bought, badge, block_id, simulated)


class BlocksPage:
    """Blocks on one time axis, with the jobs on their nodes."""

    def __init__(self, bought: Bought, badge: Badge, request: Request, simulated: bool) -> None:
        self._bought, self._badge, self._simulated = bought, badge, simulated
        badge.show(simulated)
        asked = request.query_params
        show, hours = asked.get("show", ""), asked.get("hours", "")
        span = int(hours) if hours in map(str, _SPANS) else 0
        with ui.element("div").classes("title"):
            ui.html("<h1>Blocks</h1>", sanitize=False)
            self._which = toggle(_WHICH, show if show in _WHICH else "all", "Which blocks")
            self._span = toggle(_SPANS, span, "Length of the axis")
            self._live = ui.html("", sanitize=False).classes("live")
        for each in (self._which, self._span):
            each.on_value_change(self._changed)
        with ui.element("section").classes("card").props('aria-label="Sums"') as self._sums_card:
            self._sums = ui.html("", sanitize=False)
        self._card = Card("Jobs on nodes over time")
        with self._card:
            self._axis = ui.html(READING, sanitize=False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the blocks and show them."""
        everything = self._which.value == "all"
        try:
            found = await self._bought.blocks_in_use(ended=everything, limit=SHOWN)
        except LongshoreError as error:
            self._live.content = updated(None)
            self._sums_card.set_visibility(False)
            self._axis.content = no_answer(error)
            return
        now, hours = datetime.now(UTC), int(self._span.value)
        axis = lanes.axis_of(found, now, timedelta(hours=hours) if hours else None)
        self._badge.show(self._simulated or any(each.simulated for each in found))
        self._live.content = updated(now)
        self._sums_card.set_visibility(bool(found))
        self._sums.content = view.sums_html(found)
        self._card.remark(view.nearest_end(found))
        self._axis.content = view.axis_html(found, axis) if found else _nothing(everything)

    async def _changed(self) -> None:
        asked = {"show": self._which.value, "hours": self._span.value}
        ui.navigate.history.replace(f"{PATH}?{urlencode(asked)}")
        await self.refresh()


class BlockPage:
    """One block: its jobs over time, its machines, its money."""

    def __init__(self, bought: Bought, badge: Badge, block_id: str, simulated: bool) -> None:
        self._bought, self._badge, self._id = bought, badge, block_id[:200]
        self._simulated = simulated
        badge.show(simulated)
        ui.html(f'<a class="back" href="{PATH}">All blocks</a>', sanitize=False)
        with ui.element("div").classes("title"):
            self._title = ui.html("<h1>Block</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        with ui.element("section").classes("card").props('aria-label="Block"'):
            self._head = ui.html(READING, sanitize=False)
        self._cards = [
            Card("Jobs on nodes over time"), Card("Last decision", classes="stacks"),
            Card("Sales"), Card("Jobs"), Card("Machines"),
        ]  # fmt: skip
        self._parts: list[ui.html] = []
        for card in self._cards:
            with card:
                self._parts.append(ui.html("", sanitize=False))
            card.show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the block and show it."""
        try:
            found = await self._bought.block_end(self._id)
        except NotFoundError:
            self._show_instead(
                empty("There is no such block", "`longshore blocks --all` lists them.")
            )
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show_instead(no_answer(error))
        else:
            self._show(found)

    def _show(self, end: BlockEndView) -> None:
        now, found = datetime.now(UTC), end.block
        self._badge.show(self._simulated or found.simulated)
        self._live.content = updated(now)
        self._title.content = f"<h1>{escape(found.id)} {chip(found.state.value)}</h1>"
        self._head.content = view.head_html(found)
        axis = lanes.axis_of([found], now if found.ended_at is None else found.ended_at, None)
        shown = (
            f'<div class="timeline alone">{lanes.ruler_html(axis)}'
            f"{lanes.lanes_html(found, axis)}</div>",
            view.decision_html(end),
            view.sales_html(end.sales),
            view.uses_html(found),
            view.machines_html(found),
        )
        for part, html in zip(self._parts, shown, strict=True):
            part.content = html
        for card in self._cards:
            card.show(True)
        if end.decision is not None:
            self._cards[1].remark(
                f"{end.decision.at:%d %b %H:%M:%S} UTC; dollars against leaving it as it is"
            )
        self._cards[2].show(bool(end.sales))

    def _show_instead(self, html: str) -> None:
        self._head.content = html
        for card in self._cards:
            card.show(False)


def _nothing(everything: bool) -> str:
    if not everything:
        return empty("No block runs", "`All` above shows those that have ended.")
    return empty(
        "No block has been bought yet",
        "What a pool's queue lacks is bought when its policy allows that: "
        "`longshore pool set default --buying enabled=true`. Nodes that you own have no block; "
        "`longshore nodes` lists them.",
    )
