"""The pages /schedules and /schedules/NAME."""

from datetime import UTC, datetime

from nicegui import ui
from starlette.requests import Request

from longshore.console import schedules_view as view
from longshore.console.escaping import escape
from longshore.console.fleet import Fleet
from longshore.console.layout import Badge, Card, frame
from longshore.console.live import follow
from longshore.console.parts import READING, empty, no_answer, updated
from longshore.models.errors import LongshoreError, NotFoundError

PATH = view.PATH


def add(fleet: Fleet) -> None:
    """Add the pages to those of this process."""

    @ui.page(PATH, title="Schedules · Longshore")
    def schedules(request: Request) -> None:
        with frame(PATH, request) as badge:
            SchedulesPage(fleet, badge)

    @ui.page(PATH + "/{name}", title="Schedule · Longshore")
    def schedule(request: Request, name: str) -> None:
        with frame(PATH, request) as badge:
            SchedulePage(fleet, badge, name)


class SchedulesPage:
    """All schedules by name."""

    def __init__(self, fleet: Fleet, badge: Badge) -> None:
        self._fleet, self._badge = fleet, badge
        with ui.element("div").classes("title"):
            ui.html("<h1>Schedules</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        card = Card("Jobs and DAGs that start again and again", classes="jobs stacks")
        with card:
            self._list = ui.html(READING, sanitize=False)
        card.remark("with the next and the last run of each")
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the schedules and show them."""
        try:
            found = await self._fleet.schedules()
        except LongshoreError as error:
            self._live.content = updated(None)
            self._list.content = no_answer(error, "No answer")
            return
        now = datetime.now(UTC)
        self._live.content = updated(now)
        self._badge.show(any(each.simulated for each in found), "Simulated GPUs")
        self._list.content = view.list_html(found, now) if found else _NOTHING


class SchedulePage:
    """One schedule: its next times and its last runs."""

    def __init__(self, fleet: Fleet, badge: Badge, name: str) -> None:
        self._fleet, self._badge = fleet, badge
        self._name = name.replace("\0", "")
        ui.html(f'<a class="back" href="{PATH}">All schedules</a>', sanitize=False)
        with ui.element("div").classes("title"):
            self._title = ui.html("<h1>Schedule</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        with ui.element("section").classes("card").props('aria-label="Schedule"'):
            self._head = ui.html(READING, sanitize=False)
        self._runs_card = Card("Last runs", classes="jobs stacks")
        with self._runs_card:
            self._runs = ui.html("", sanitize=False)
        self._runs_card.remark("newest first, ten at most")
        self._next_card = Card("Next times", classes="jobs")
        with self._next_card:
            self._next = ui.html("", sanitize=False)
        self._show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the schedule and show it."""
        try:
            found = await self._fleet.schedule(self._name)
        except NotFoundError:
            self._show(False)
            self._head.content = empty(
                "There is no such schedule", "`longshore schedule list` lists them all."
            )
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show(False)
            self._head.content = no_answer(error, "No answer")
        else:
            now = datetime.now(UTC)
            self._live.content = updated(now)
            self._badge.show(found.simulated, "Simulated GPUs")
            paused = ' <span class="state ending">paused</span>' if found.paused else ""
            self._title.content = f"<h1>{escape(found.name)}{paused}</h1>"
            self._head.content = view.head_html(found)
            self._runs.content = view.runs_html(found, now) if found.runs else _NO_RUN
            self._next.content = view.next_html(found, now)
            self._next_card.remark("were it not paused" if found.paused else "")
            self._show(True)

    def _show(self, visible: bool) -> None:
        self._runs_card.show(visible)
        self._next_card.show(visible)


_NOTHING = empty(
    "No schedule yet", "Make one: `longshore schedule create NAME FILE --cron '0 2 * * *'`."
)
_NO_RUN = empty("No run yet", "`longshore schedule trigger NAME` starts one now.")
