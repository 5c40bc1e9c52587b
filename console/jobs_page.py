"""The pages /jobs and /jobs/ID."""

from datetime import UTC, datetime
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import array_view as arrays
from longshore.console import job_placement as placement
from longshore.console import job_view as view
from longshore.console import jobs_view as lists
from longshore.console.attempts_view import attempts_html, sizes_html
from longshore.console.escaping import escape
from longshore.console.fleet import Fleet
from longshore.console.layout import Badge, Card, frame, toggle
from longshore.console.live import follow
from longshore.console.parts import READING, chip, empty, no_answer, pages_html, updated
from longshore.console.pool_choice import PoolChoice
from longshore.models.array_view import ElementView
from longshore.models.elements import ElementState
from longshore.models.errors import (
    LongshoreError,
    NoRecordError,
    NotFoundError,
    NotSubmittedError,
)
from longshore.models.explanation import Explanation
from longshore.models.job_report import JobReport
from longshore.models.labels import parse_selector

PATH = lists.PATH
_STATES = {name: name.capitalize() for name in lists.STATES}


def add(fleet: Fleet) -> None:
    """Add the pages to those of this process."""

    @ui.page(PATH, title="Jobs · Longshore")
    def jobs(request: Request) -> None:
        with frame(PATH, request) as badge:
            JobsPage(fleet, badge, request)

    @ui.page(PATH + "/{job_id}", title="Job · Longshore")
    def job(request: Request, job_id: str) -> None:
        with frame(PATH, request) as badge:
            JobPage(fleet, badge, job_id)


class JobsPage:
    """The jobs under way, and those of the last hour."""

    def __init__(self, fleet: Fleet, badge: Badge, request: Request) -> None:
        self._fleet, self._badge = fleet, badge
        asked = request.query_params
        pool, state = asked.get("pool", "")[:63], asked.get("state", "")
        self._after = asked.get("after", "").replace("\0", "")
        self._label = asked.get("label", "").replace("\0", "")
        with ui.element("div").classes("title"):
            ui.html("<h1>Jobs</h1>", sanitize=False)
            self._pool = PoolChoice(pool, self._changed)
            self._state = toggle(_STATES, state if state in _STATES else "all", "Which jobs")
            self._live = ui.html("", sanitize=False).classes("live")
        self._state.on_value_change(self._changed)
        with ui.element("section").classes("card").props('aria-label="Sums"') as self._sums_card:
            self._sums = ui.html("", sanitize=False)
        self._card = Card("Active and recent (1 h)", classes="jobs stacks")
        with self._card:
            self._list = ui.html(READING, sanitize=False)
        self._more = ui.html("", sanitize=False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the jobs and show them."""
        pool = self._pool.value.replace("\0", "") or None
        try:
            labels = parse_selector([self._label] if self._label else ())
        except ValueError as error:
            self._sums_card.set_visibility(False)
            self._list.content = empty("No label is like that", str(error))
            self._more.content = ""
            return
        try:
            pools = await self._fleet.pools()
            found = await self._fleet.jobs(
                labels=labels, pool=pool, states=lists.STATES[str(self._state.value)],
                after=self._after or None, limit=lists.SHOWN + 1,
            )  # fmt: skip
        except LongshoreError as error:
            self._live.content = updated(None)
            self._sums_card.set_visibility(False)
            self._list.content = no_answer(error)
            self._more.content = ""
            return
        now, page = datetime.now(UTC), found[: lists.SHOWN]
        self._pool.offer([each.spec.name for each in pools])
        self._badge.show(any(each.simulated for each in page), "Simulated GPUs")
        self._live.content = updated(now)
        self._sums_card.set_visibility(bool(pools))
        self._sums.content = lists.sums_html(pools, pool)
        self._card.remark(f"with {self._label}" if self._label else "the newest first")
        self._list.content = lists.list_html(page, now) if page else self._nothing(pool)
        last = page[-1].id if len(found) > len(page) else ""
        self._more.content = pages_html("jobs", PATH, self._asked(), last)

    def _asked(self) -> dict[str, str]:
        asked = {
            "pool": self._pool.value,
            "state": str(self._state.value),
            "label": self._label,
            "after": self._after,
        }
        return {name: value for name, value in asked.items() if value}

    async def _changed(self) -> None:
        self._after = ""
        ui.navigate.history.replace(f"{PATH}?{urlencode(self._asked())}")
        await self.refresh()

    def _nothing(self, pool: str | None) -> str:
        if pool or self._after or self._label or self._state.value != "all":
            return empty(
                "No such jobs now, nor in the last hour",
                "`All` above shows the others; `longshore jobs --all` older ones too.",
            )
        return empty(
            "No jobs now, and none ended in the last hour",
            "Submit one: `longshore submit --gpus 1 -- nvidia-smi`. `longshore jobs --all` lists "
            "older ones.",
        )


class JobPage:
    """One job: where it is and why, its attempts, its checkpoints."""

    def __init__(self, fleet: Fleet, badge: Badge, job_id: str) -> None:
        self._fleet, self._badge = fleet, badge
        self._id = job_id.replace("\0", "")
        ui.html(f'<a class="back" href="{PATH}">All jobs</a>', sanitize=False)
        with ui.element("div").classes("title"):
            self._title = ui.html("<h1>Job</h1>", sanitize=False)
            self._live = ui.html("", sanitize=False).classes("live")
        self._notes = ui.html("", sanitize=False)
        self._notes.set_visibility(False)
        with ui.element("section").classes("card").props('aria-label="Job"'):
            self._head = ui.html(READING, sanitize=False)
        self._cards = {
            name: Card(name, classes=_STACKED.get(name, "jobs"))
            for name in ("Elements by state", "Elements that failed", "Elements",
                         "Scheduling", "The last lines of its stderr",
                         "What could help", "Ways to start", "Nodes", "Gang", "Size changes",
                         "Attempts", "Checkpoints")
        }  # fmt: skip
        self._parts: dict[str, ui.html] = {}
        for name, card in self._cards.items():
            with card:
                self._parts[name] = ui.html("", sanitize=False)
            card.show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the job and show it."""
        try:
            report = await self._fleet.report(self._id)
            explanation = await self._fleet.explain(report.job.id)
        except NoRecordError as error:
            self._show_instead(empty("The database has no such job", str(error)))
        except NotSubmittedError as error:
            self._show_instead(empty("The job is not in a queue", str(error)))
        except NotFoundError:
            self._show_instead(
                empty("There is no such job", "`longshore jobs --all` lists them all.")
            )
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show_instead(no_answer(error))
        else:
            self._show(report, explanation)
            await self._show_array(report)
            await self._show_checkpoints(report)

    def _show(self, report: JobReport, explanation: Explanation) -> None:
        now, job = datetime.now(UTC), report.job
        state = report.state.value
        self._badge.show(job.simulated or explanation.simulated, "Simulated GPUs")
        self._live.content = updated(now)
        self._title.content = f"<h1>{escape(job.id)} {chip(state)}</h1>"
        self._notes.content = view.notes_html(report)
        self._notes.set_visibility(bool(report.missing))
        self._head.content = view.head_html(report, now, self._fleet.workflow_url(job.id))
        self._put("Scheduling", view.why_html(explanation, now))
        self._put("What could help", view.hints_html(explanation))
        self._put("Ways to start", placement.ways_html(explanation))
        now_weighed = explanation.ways_plan is explanation.weighed
        weighed = "are weighed now" if now_weighed else "were weighed when others were preempted"
        self._cards["Ways to start"].remark(f"as they {weighed}")
        nodes, title = placement.nodes_html(explanation)
        self._put("Nodes", nodes)
        self._cards["Nodes"].title(title)
        self._put("Gang", placement.gang_html(explanation, report.attempts))
        self._put("Size changes", sizes_html(explanation.sizes))
        self._put("Attempts", attempts_html(report, now))
        self._cards["Attempts"].remark("the newest first")
        self._put("The last lines of its stderr", view.stderr_html(report))

    async def _show_array(self, report: JobReport) -> None:
        array, job_id = report.array, report.job.id
        if array is None:
            for name in ("Elements by state", "Elements that failed", "Elements"):
                self._put(name, "")
            return None
        told = {state: array.counts.get(state, 0) for state in arrays.TOLD_FIRST}
        of = sum(told.values())
        try:
            cost = await self._fleet.array_cost(job_id)
            elements: tuple[ElementView, ...] = ()
            for state in told if of else (None,):
                only = frozenset([state]) if state else frozenset[ElementState]()
                room = arrays.SHOWN - len(elements)
                if room and (state is None or told[state]):
                    elements += await self._fleet.elements(job_id, only, room)
        except LongshoreError as error:
            self._live.content = updated(None)
            return self._put("Elements", f'<p class="padded quiet">{escape(str(error))}</p>')
        self._put("Elements by state", arrays.bar_html(array, cost))
        self._put("Elements that failed", arrays.errors_html(array.errors))
        self._cards["Elements that failed"].remark("those alike in one row")
        self._cards["Elements"].title("Elements that failed or run" if of else "Elements")
        self._cards["Elements"].remark("by index, the last attempt of each")
        html = arrays.elements_html(
            job_id, elements, of or array.elements, array.claimed, datetime.now(UTC)
        )
        return self._put("Elements", html)

    async def _show_checkpoints(self, report: JobReport) -> None:
        contract = report.spec and report.spec.checkpoint
        if contract is None or not contract.store:
            return self._put("Checkpoints", "")
        try:
            found = await self._fleet.checkpoints(report.job.id)
        except LongshoreError as error:
            said = f'<p class="padded quiet">{escape(str(error))}</p>'
            return self._put("Checkpoints", said)
        self._cards["Checkpoints"].remark("in the checkpoint store, the newest first")
        return self._put("Checkpoints", view.checkpoints_html(found, datetime.now(UTC)))

    def _put(self, name: str, html: str) -> None:
        """Show a part; hide its card where there is nothing to say."""
        self._parts[name].content = html
        self._cards[name].show(bool(html))

    def _show_instead(self, html: str) -> None:
        self._notes.set_visibility(False)
        self._head.content = html
        for card in self._cards.values():
            card.show(False)


_STACKED = {
    "Elements that failed": "jobs stacks",
    "Elements": "jobs stacks thirds",
    "Ways to start": "jobs stacks",
    "Attempts": "jobs stacks",
    "Size changes": "jobs stacks",
}
"""Cards whose tables name their columns in each cell, for narrow screens."""
