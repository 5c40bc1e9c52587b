"""The page /queue: who waits in a pool, what its past day was like, how good told starts were."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from nicegui import ui
from starlette.requests import Request

from longshore.console import queue_view as view
from longshore.console.fleet import Fleet
from longshore.console.layout import Badge, Card, chart, frame, redraw
from longshore.console.live import follow
from longshore.console.parts import READING, empty, no_answer, updated
from longshore.console.pool_choice import PoolChoice
from longshore.models.errors import LongshoreError
from longshore.models.packing import QueueOrder
from longshore.models.queue_view import QueueHistory, QueueView, StartErrorsView
from longshore.models.text import count

PATH = view.PATH
FIRST_CHOICE = "default"
_DAY = timedelta(days=1)


def add(fleet: Fleet) -> None:
    """Add the page to those of this process."""

    @ui.page(PATH, title="Queue · Longshore")
    def queue(request: Request) -> None:
        with frame(PATH, request) as badge:
            QueuePage(fleet, badge, request)


class QueuePage:
    """The queue of one pool: the one that is asked for, else `default`, else the first by name."""

    def __init__(self, fleet: Fleet, badge: Badge, request: Request) -> None:
        self._fleet, self._badge = fleet, badge
        asked = request.query_params.get("pool", "")[:63].replace("\0", "")
        self._asked, self._chosen = bool(asked), asked or FIRST_CHOICE
        with ui.element("div").classes("title"):
            ui.html("<h1>Queue</h1>", sanitize=False)
            self._pool = PoolChoice(self._chosen, self._changed, offers_all=False)
            self._live = ui.html("", sanitize=False).classes("live")
        self._waiting_card = Card("Waiting jobs", classes="queue")
        with self._waiting_card:
            self._waiting = ui.html(READING, sanitize=False)
            self._below = ui.html("", sanitize=False)
        self._past_card = Card("The past day", padded=True)
        with self._past_card:
            self._none = ui.html("", sanitize=False)
            self._chart = chart("The past day")
        self._past_card.remark("jobs, by quarters of an hour; UTC")
        self._errors_card = Card("Start estimates", classes="stacks")
        with self._errors_card:
            self._errors = ui.html("", sanitize=False)
        self._errors_card.remark("the past day, by how long before the start it was told")
        self._show(False)
        follow(self.refresh)

    async def refresh(self) -> None:
        """Read the queue and its past, and show them."""
        try:
            names = [each.spec.name for each in await self._fleet.pools()]
            if not self._asked and names and FIRST_CHOICE not in names:
                self._chosen = min(names)
                self._pool.offer(names, self._chosen)
            else:
                self._pool.offer(names)
            chosen = self._chosen
            if chosen not in names:
                self._show_nothing(chosen if self._asked else "")
                return
            queue = await self._fleet.queue(chosen)
            past = await self._fleet.queue_history(chosen)
            errors = await self._fleet.start_errors(chosen, _DAY)
            if chosen != self._chosen:
                return  # another was chosen meanwhile, and is read too
        except LongshoreError as error:
            self._live.content = updated(None)
            self._show(False)
            self._waiting.content = no_answer(error)
            return
        now = datetime.now(UTC)
        self._live.content = updated(now)
        self._badge.show(queue.simulated, "Simulated GPUs")
        self._show(True)
        self._show_queue(queue, now)
        self._show_past(past)
        self._show_errors(errors)

    def _show_queue(self, queue: QueueView, now: datetime) -> None:
        self._waiting_card.remark(_order_words(queue))
        self._below.content = view.below_html(queue)
        self._waiting.content = (
            view.waiting_html(queue, now) if queue.jobs else view.nobody_html(queue.pool)
        )

    def _show_past(self, past: QueueHistory) -> None:
        blank = view.is_blank(past)
        self._none.content = (
            '<p class="quiet">In the past day no job waited and none ran.</p>' if blank else ""
        )
        self._chart.set_visibility(not blank)
        if not blank:
            redraw(self._chart, view.history_chart(past), view.history_words(past))

    def _show_errors(self, errors: StartErrorsView) -> None:
        self._errors.content = view.errors_html(errors.rows, errors.pool)

    def _show_nothing(self, pool: str) -> None:
        self._live.content = updated(datetime.now(UTC))
        self._badge.show(False)
        self._show(False)
        self._waiting.content = (
            empty("There is no such pool", "`longshore pools` lists them.")
            if pool
            else empty(
                "No pool yet", "One is made by its first node, its first job, or `pool set`."
            )
        )

    def _show(self, visible: bool) -> None:
        self._past_card.show(visible)
        self._errors_card.show(visible)
        if not visible:
            self._waiting_card.remark("")
            self._below.content = ""

    async def _changed(self) -> None:
        if self._pool.value == self._chosen:
            return  # the page itself has chosen it
        self._asked, self._chosen = True, self._pool.value
        ui.navigate.history.replace(f"{PATH}?{urlencode({'pool': self._chosen})}")
        await self.refresh()


def _order_words(queue: QueueView) -> str:
    """Return how many wait, and what puts those of one class into order."""
    order = "by rank" if queue.order is QueueOrder.ATTAINED_SERVICE else "the oldest first"
    if queue.weights is not None and queue.weights.order:
        order += ", and by score"
    return f"{count(len(queue.jobs), 'job')}; of a class {order}" if queue.jobs else ""
