"""The pages /services and /services/NAME."""

from datetime import UTC, datetime

from nicegui import ui
from starlette.requests import Request

from longshore.console import services_view as view
from longshore.console.engine_gpus import engine_gpus, gpus_html, legend_html
from longshore.console.escaping import escape
from longshore.console.fleet import Fleet
from longshore.console.layout import Badge, Card, frame
from longshore.console.live import follow
from longshore.console.parts import READING, empty, no_answer, updated
from longshore.models.errors import LongshoreError, NotFoundError, StoredError

PATH = view.PATH


def add(fleet: Fleet) -> None:
    """Add the pages to those of this process."""

    @ui.page(PATH, title="Services · Longshore")
    def services(request: Request) -> None:
        with frame(PATH, request) as badge:
            ServicesPage(fleet, badge)

    @ui.page(PATH + "/{name}", title="Service · Longshore")
    def service(request: Request, name: str) -> None:
        with frame(PATH, request) as badge:
            ServicePage(fleet, badge, name)


class ServicesPage:
    """All services by name, and the engines that run for them."""

    def __init__(self, fleet: Fleet, badge: Badge) -> None:
        self._fleet, self._badge = fleet, badge
        with ui.element("div").classes("title"):
            ui.html("<h1>Services</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        card = Card("Models that are kept running", classes="jobs stacks")
        with card:
            self._list = ui.html(READING, sanitize=False)
        self._engines_card = Card("Engines", classes="budgets stacks")
        with self._engines_card:
            self._engines = ui.html("", sanitize=False)
            self._problems = ui.html("", sanitize=False)
        self._engines_card.remark(_BARS)
        self._engines_card.show(False)
        self._gpus_card = Card("GPUs with engines", classes="budgets stacks")
        with self._gpus_card:
            ui.html(legend_html(), sanitize=False)
            self._gpus = ui.html("", sanitize=False)
        self._gpus_card.remark("the frame is all memory of a GPU")
        self._gpus_card.show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the services and show them."""
        try:
            found = await self._fleet.services()
            nodes = await self._fleet.nodes()
        except LongshoreError as error:
            self._live.content = updated(None)
            self._list.content = no_answer(error, "No answer")
            self._engines_card.show(False)
            self._gpus_card.show(False)
            return
        now = datetime.now(UTC)
        self._live.content = updated(now)
        self._badge.show(any(each.simulated for each in found), "Simulated GPUs")
        self._list.content = view.list_html(found) if found else _NOTHING
        replicas = [replica for each in found for replica in each.replicas]
        self._engines.content = view.engines_html(replicas, now)
        self._problems.content = view.problems_html(replicas, now)
        self._engines_card.show(bool(replicas))
        gpus = engine_gpus(replicas, nodes)
        self._gpus.content = gpus_html(gpus)
        self._gpus_card.show(bool(gpus))


class ServicePage:
    """One service: its engines and its revisions."""

    def __init__(self, fleet: Fleet, badge: Badge, name: str) -> None:
        self._fleet, self._badge = fleet, badge
        self._name = name.replace("\0", "")
        ui.html(f'<a class="back" href="{PATH}">All services</a>', sanitize=False)
        with ui.element("div").classes("title"):
            self._title = ui.html("<h1>Service</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        with ui.element("section").classes("card").props('aria-label="Service"'):
            self._head = ui.html(READING, sanitize=False)
        self._engines_card = Card("Engines", classes="budgets stacks")
        with self._engines_card:
            self._engines = ui.html("", sanitize=False)
            self._problems = ui.html("", sanitize=False)
        self._engines_card.remark(_BARS)
        self._revisions_card = Card("Revisions", classes="jobs stacks")
        with self._revisions_card:
            self._revisions = ui.html("", sanitize=False)
        self._revisions_card.remark("newest first, twenty at most")
        self._show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the service and show it."""
        try:
            found = await self._fleet.service(self._name)
        except NotFoundError:
            self._show(False)
            self._head.content = empty(
                "There is no such service", "`longshore services` lists them all."
            )
        except StoredError as error:
            self._show(False)
            self._head.content = empty("This service cannot be read", str(error))
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show(False)
            self._head.content = no_answer(error, "No answer")
        else:
            now = datetime.now(UTC)
            self._live.content = updated(now)
            self._badge.show(found.simulated, "Simulated GPUs")
            self._title.content = f"<h1>{escape(found.name)}</h1>"
            self._head.content = view.head_html(found)
            self._engines.content = (
                view.engines_html(found.replicas, now, of_one=True)
                if found.replicas
                else _NO_ENGINE
            )
            self._problems.content = view.problems_html(found.replicas, now)
            self._revisions.content = view.revisions_html(found.revisions or (), now)
            self._show(True)

    def _show(self, visible: bool) -> None:
        self._engines_card.show(visible)
        self._revisions_card.show(visible)


_BARS = "GPU memory: the frame is what each holds, the bar what it takes"
_NOTHING = empty("No service yet", "Start one: `longshore serve FILE`.")
_NO_ENGINE = empty("No engine runs", "`longshore scale NAME REPLICAS` says how many are wanted.")
