"""The page /cycles: how often pools plan, and what that takes."""

from datetime import UTC, datetime
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import cycles_view as view
from longshore.console.fleet import Fleet
from longshore.console.layout import Badge, Card, frame
from longshore.console.live import follow
from longshore.console.parts import READING, empty, no_answer, updated
from longshore.console.pool_choice import PoolChoice
from longshore.models.errors import LongshoreError

PATH = view.PATH
SHOWN = 50


def add(fleet: Fleet) -> None:
    """Add the page to those of this process."""

    @ui.page(PATH, title="Cycles · Longshore")
    def cycles(request: Request) -> None:
        with frame(PATH, request) as badge:
            CyclesPage(fleet, badge, request)


class CyclesPage:
    """The cycles of each pool summed up, and the last ones of a pool that was chosen."""

    def __init__(self, fleet: Fleet, badge: Badge, request: Request) -> None:
        self._fleet, self._badge = fleet, badge
        asked = request.query_params.get("pool", "")[:63].replace("\0", "")
        with ui.element("div").classes("title"):
            ui.html("<h1>Cycles</h1>", sanitize=False)
            self._pool = PoolChoice(asked, self._changed)
            self._live = ui.html("", sanitize=False).classes("live")
        self._pools = Card("By pool", classes="cycles stacks")
        with self._pools:
            self._sums = ui.html(READING, sanitize=False)
        self._pools.remark(
            "the last hour, 500 cycles at most; milliseconds, of the parts on average"
        )
        self._latest = Card("The last cycles", classes="cycles stacks")
        with self._latest:
            self._list = ui.html("", sanitize=False)
        self._latest.remark("the newest first; milliseconds")
        self._latest.show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the cycles and show them."""
        chosen = self._pool.value
        try:
            pools = await self._fleet.cycles()
            names = [each.pool for each in pools]
            self._pool.offer(names)
            shown = await self._fleet.cycles(chosen, last=SHOWN) if chosen in names else pools
        except LongshoreError as error:
            self._live.content = updated(None)
            self._latest.show(False)
            self._sums.content = no_answer(error)
            return
        self._live.content = updated(datetime.now(UTC))
        if not pools or (chosen and chosen not in names):
            self._badge.show(False)
            self._latest.show(False)
            self._sums.content = _nothing(chosen)
            return
        self._badge.show(any(each.simulated for each in shown), "Simulated GPUs")
        self._sums.content = view.pools_html(shown)
        latest = shown[0].latest if chosen else ()
        self._latest.show(bool(latest))
        self._latest.title(f"The last cycles of {chosen}")
        self._list.content = view.latest_html(latest)

    async def _changed(self) -> None:
        asked = {"pool": self._pool.value} if self._pool.value else {}
        ui.navigate.history.replace(f"{PATH}?{urlencode(asked)}" if asked else PATH)
        await self.refresh()


def _nothing(pool: str) -> str:
    if pool:
        return empty("There is no such pool", "`longshore pools` lists them.")
    return empty("No pool yet", "One is made by its first node, its first job, or `pool set`.")
