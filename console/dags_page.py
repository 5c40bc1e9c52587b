"""The pages /dags and /dags/ID."""

from datetime import UTC, datetime
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import dags_view as view
from longshore.console.dag_timeline import timeline_html
from longshore.console.escaping import escape
from longshore.console.fleet import Fleet
from longshore.console.layout import Badge, Card, frame, toggle
from longshore.console.live import follow
from longshore.console.parts import READING, chip, empty, no_answer, pages_html, updated
from longshore.models.dag_view import DagState
from longshore.models.errors import LongshoreError, NotFoundError

PATH = view.PATH
SHOWN = 100
_STATES: dict[str, frozenset[DagState]] = {
    "all": frozenset(),
    **{state.value.lower(): frozenset([state]) for state in DagState},
}


def add(fleet: Fleet) -> None:
    """Add the pages to those of this process."""

    @ui.page(PATH, title="DAGs · Longshore")
    def dags(request: Request) -> None:
        with frame(PATH, request) as badge:
            DagsPage(fleet, badge, request)

    @ui.page(PATH + "/{dag_id}", title="DAG · Longshore")
    def dag(request: Request, dag_id: str) -> None:
        with frame(PATH, request) as badge:
            DagPage(fleet, badge, dag_id)


class DagsPage:
    """The newest DAGs, of all states or of one."""

    def __init__(self, fleet: Fleet, badge: Badge, request: Request) -> None:
        self._fleet, self._badge = fleet, badge
        state = request.query_params.get("state", "")
        self._after = request.query_params.get("after", "").replace("\0", "")
        with ui.element("div").classes("title"):
            ui.html("<h1>DAGs</h1>", sanitize=False)
            names = {name: name.capitalize() for name in _STATES}
            self._state = toggle(names, state if state in _STATES else "all", "Which DAGs")
            self._live = ui.html("", sanitize=False).classes("live")
        self._state.on_value_change(self._changed)
        card = Card("Jobs that wait for others", classes="jobs stacks")
        with card:
            self._list = ui.html(READING, sanitize=False)
        card.remark("the newest first")
        self._more = ui.html("", sanitize=False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the DAGs and show them."""
        try:
            found = await self._fleet.dags(
                states=_STATES[str(self._state.value)], after=self._after or None, limit=SHOWN + 1
            )
        except LongshoreError as error:
            self._live.content = updated(None)
            self._list.content = no_answer(error)
            self._more.content = ""
            return
        now, page = datetime.now(UTC), found[:SHOWN]
        self._badge.show(any(each.simulated for each in page), "Simulated GPUs")
        self._live.content = updated(now)
        self._list.content = view.list_html(page, now) if page else self._nothing()
        last = page[-1].id if len(found) > len(page) else ""
        self._more.content = pages_html("DAGs", PATH, self._asked(), last)

    def _nothing(self) -> str:
        if self._after or self._state.value != "all":
            return empty("No such DAG", "`All` above shows the others.")
        return empty("No DAG yet", "Submit one: `longshore dag submit examples/pipeline.yaml`.")

    def _asked(self) -> dict[str, str]:
        state = str(self._state.value)
        asked = {"state": "" if state == "all" else state, "after": self._after}
        return {name: value for name, value in asked.items() if value}

    async def _changed(self) -> None:
        self._after = ""
        asked = self._asked()
        ui.navigate.history.replace(f"{PATH}?{urlencode(asked)}" if asked else PATH)
        await self.refresh()


class DagPage:
    """One DAG: its graph, its jobs, and what they cost."""

    def __init__(self, fleet: Fleet, badge: Badge, dag_id: str) -> None:
        self._fleet, self._badge = fleet, badge
        self._id = dag_id.replace("\0", "")
        ui.html(f'<a class="back" href="{PATH}">All DAGs</a>', sanitize=False)
        with ui.element("div").classes("title"):
            self._title = ui.html("<h1>DAG</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        with ui.element("section").classes("card").props('aria-label="DAG"'):
            self._head = ui.html(READING, sanitize=False)
        self._graph_card = Card("Graph", classes="jobs")
        with self._graph_card:
            self._graph = ui.html("", sanitize=False).classes("scrolls")
            self._legend = ui.html("", sanitize=False)
        self._graph_card.remark("from left to right")
        self._times_card = Card("Timeline", classes="jobs")
        with self._times_card:
            self._times = ui.html("", sanitize=False)
        self._times_card.remark("from the submit of each job to its end")
        self._jobs_card = Card("Jobs", classes="jobs stacks")
        with self._jobs_card:
            self._jobs = ui.html("", sanitize=False)
        self._jobs_card.remark("upstream first")
        self._show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the DAG and show it."""
        try:
            dag = await self._fleet.dag(self._id)
        except NotFoundError:
            self._show(False)
            self._head.content = empty(
                "There is no such DAG", "`longshore dag list --all` lists them all."
            )
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show(False)
            self._head.content = no_answer(error)
        else:
            now = datetime.now(UTC)
            self._badge.show(dag.simulated, "Simulated GPUs")
            self._live.content = updated(now)
            self._title.content = f"<h1>{escape(dag.id)} {chip(dag.state.value)}</h1>"
            self._head.content = view.head_html(dag, now)
            self._graph.content = drawing = view.drawing_html(dag)
            self._legend.content = view.legend_html(dag)
            self._times.content = times = timeline_html(dag, now)
            self._jobs.content = view.jobs_html(dag, now)
            self._show(True)
            self._graph_card.show(bool(drawing))
            self._times_card.show(bool(times))

    def _show(self, visible: bool) -> None:
        self._graph_card.show(visible)
        self._times_card.show(visible)
        self._jobs_card.show(visible)
