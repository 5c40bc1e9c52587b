"""The page /nodes."""

from datetime import UTC, datetime
from math import ceil
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import nodes_view as view
from longshore.console.fingerprints import fingerprints_html
from longshore.console.fleet import Fleet
from longshore.console.gpu_cells import legend_html
from longshore.console.held_data import held_html
from longshore.console.layout import Badge, frame, toggle
from longshore.console.live import follow
from longshore.console.parts import READING, empty, no_answer, updated
from longshore.console.pool_choice import PoolChoice
from longshore.models.errors import LongshoreError
from longshore.models.views import NodeView

PATH = view.PATH
_SHOWN = {"folded": "Grouped", "all": "All nodes"}


def add(fleet: Fleet) -> None:
    """Add the page to those of this process."""

    @ui.page(PATH, title="Nodes · Longshore")
    def nodes(request: Request) -> None:
        with frame(PATH, request) as badge:
            NodesPage(fleet, badge, request)


class NodesPage:
    """Who holds which GPU, by pool and domain."""

    def __init__(self, fleet: Fleet, badge: Badge, request: Request) -> None:
        self._fleet, self._badge = fleet, badge
        asked = request.query_params
        self._domain = asked.get("domain", "")[:300]
        page = asked.get("page", "")
        self._page = int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 1
        pool, shown = asked.get("pool", "")[:63], asked.get("show", "")
        with ui.element("div").classes("title"):
            ui.html("<h1>Nodes</h1>", sanitize=False)
            self._pool = PoolChoice(pool, self._changed)
            self._show = toggle(_SHOWN, shown if shown in _SHOWN else "folded", "Rows")
            self._live = ui.html("", sanitize=False).classes("live")
        self._show.on_value_change(self._changed)
        self._only = ui.html("", sanitize=False)
        self._only.set_visibility(False)
        with ui.element("section").classes("card").props('aria-label="Sums"') as self._sums_card:
            self._sums = ui.html("", sanitize=False)
            ui.html(legend_html(), sanitize=False)
        self._tables = ui.html(
            f'<section class="card">{READING}</section>', sanitize=False
        ).classes("stack")
        self._pages = ui.html("", sanitize=False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the nodes and show them."""
        pool = self._pool.value or None
        try:
            pools = await self._fleet.pools()
            names = [each.spec.name for each in pools]
            self._pool.offer(names)
            nodes = await self._fleet.nodes(pool)
            topology = await self._fleet.topology(pool) if pool in (None, *names) else ()
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show_instead(no_answer(error))
            return
        now = datetime.now(UTC)
        groups = view.groups_of(nodes, topology, self._domain or None)
        if not groups:
            self._live.content = updated(now)
            self._show_instead(self._nothing(pool, nodes))
            return
        lines = view.lines_of(groups, fold=self._show.value == "folded")
        pages = ceil(len(lines) / view.LINES)
        self._page = min(max(self._page, 1), pages)
        first = (self._page - 1) * view.LINES
        self._badge.show(any(node.simulated for node in nodes), "Simulated GPUs")
        self._sums_card.set_visibility(True)
        self._sums.content = view.sums_html(groups, pools, pool, self._domain)
        self._say_only()
        here = lines[first : first + view.LINES]
        # Nodes with a row of their own come first: they have a link to their fingerprint.
        single_first = sorted(here, key=lambda line: len(line.nodes) > 1)
        shown = [node for line in single_first for node in line.nodes]
        try:
            holdings = await self._fleet.holdings(tuple(node.id for node in shown))
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show_instead(no_answer(error))
            return
        self._live.content = updated(now)
        self._tables.content = (
            view.pools_html(here, groups, now, self._asked())
            + fingerprints_html(shown)
            + held_html(holdings)
        )
        self._pages.content = view.pages_html(self._page, pages, self._asked())

    def _say_only(self) -> None:
        self._only.content = view.only_html(self._domain, self._asked())
        self._only.set_visibility(bool(self._domain))

    def _asked(self) -> dict[str, str]:
        asked = {
            "pool": self._pool.value,
            "domain": self._domain,
            "show": str(self._show.value),
        }
        return {name: value for name, value in asked.items() if value}

    async def _changed(self) -> None:
        self._page = 1
        ui.navigate.history.replace(f"{PATH}?{urlencode(self._asked())}")
        await self.refresh()

    def _show_instead(self, html: str) -> None:
        self._sums_card.set_visibility(False)
        self._say_only()
        self._tables.content = f'<section class="card" aria-label="Nodes">{html}</section>'
        self._pages.content = ""

    def _nothing(self, pool: str | None, nodes: tuple[NodeView, ...]) -> str:
        if nodes and self._domain:
            return empty("No node is in this domain now", "`longshore topology` lists them all.")
        of = f"Pool {pool} has no nodes" if pool else "There are no nodes yet"
        return empty(
            of,
            "`longshore agent` makes a machine with GPUs one; `longshore up` starts simulated "
            "ones where there are no GPUs.",
        )
