"""Following one job: a panel in place on a terminal, plain lines in a pipe, JSON by the line."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from longshore.client.terminal import Text, note, now, print_json_line
from longshore.client.words import clock, places_of, styled
from longshore.models.errors import LongshoreError
from longshore.models.job_status import JobResult, JobState, JobStatus
from longshore.models.node_messages import Progress
from longshore.models.retry import FailureClass
from longshore.models.text import span
from longshore.models.views import JobView

if TYPE_CHECKING:
    from longshore.client.api import Longshore

_PROGRESS_EVERY = 1.0
_STEP = 10
_TELL_EVERY = timedelta(seconds=5)
_BAR = 32
_LAST_WORD = 3.0

CANCELLED, TIME_LIMIT, QUEUE_TIMEOUT, FAILED = 130, 124, 75, 70
"""124 as `timeout` of coreutils has it: what the process made of the signal says nothing."""


def exit_code_of(result: JobResult) -> int:
    """Return what a command that waited for the job exits with: the job's own code, or ours."""
    if result.state is JobState.SUCCEEDED:
        return 0
    if result.state is JobState.CANCELLED:
        return CANCELLED
    if result.failure is FailureClass.QUEUE_TIMEOUT:
        return QUEUE_TIMEOUT
    if result.failure is FailureClass.TIME_LIMIT:
        return TIME_LIMIT
    return result.exit_code or FAILED


@contextlib.contextmanager
def says_that_it_goes_on(job_id: str) -> Iterator[None]:
    """Tell who interrupts the waiting that the job has not been stopped by that."""
    try:
        yield
    except asyncio.CancelledError:
        note(
            f"\nThe job goes on. Follow it with `longshore watch {job_id}`, or end it with "
            f"`longshore cancel {job_id}`."
        )
        raise


class Screen(Protocol):
    """Where a job that is followed shows."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def changed(self, status: JobStatus) -> None: ...

    def progressed(self, progress: Progress) -> None: ...

    def placed(self, view: JobView) -> None: ...

    def ended(self, result: JobResult) -> None:
        """The job has ended, and its workflow has not said so yet."""


async def follow_job(api: "Longshore", job_id: str, screen: Screen) -> JobResult:
    """Show a job on the screen until it has ended, and return its result."""
    with screen:
        changes = asyncio.create_task(_show_changes(api, job_id, screen))
        progress = asyncio.create_task(_show_progress(api, job_id, screen))
        try:
            result = await api.wait(job_id)
            # A workflow that has just ended may be slow to say so: do not wait for it.
            done, _ = await asyncio.wait({changes}, timeout=_LAST_WORD)
            if not done:
                screen.ended(result)
            return result
        finally:
            changes.cancel()
            progress.cancel()


async def say_stderr_tail(api: "Longshore", result: JobResult) -> None:
    """Print the last lines of its stderr where the job has failed."""
    if result.state is not JobState.FAILED:
        return
    try:
        lines = await api.stderr_tail(await api.job(result.job_id))
    except LongshoreError:
        return  # how it ended has been said
    if lines:
        note(f"\nThe last lines of its stderr (`longshore logs {result.job_id}` has all):")
    for line in lines:
        note(f"  {line}")


def as_it_ended(job: JobView, screen: Screen) -> JobResult:
    """Show how a job ended by its record, whatever its workflow says, and return that."""
    with screen:
        screen.ended(job.as_it_ended)
    return job.as_it_ended


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def changed(self, status: JobStatus) -> None:
        pass

    def progressed(self, progress: Progress) -> None:
        pass

    def placed(self, view: JobView) -> None:
        pass

    def ended(self, result: JobResult) -> None:
        pass


class JSONLines(Silent):
    """Prints each change as one JSON object."""

    def changed(self, status: JobStatus) -> None:
        print_json_line({"status": status})

    def progressed(self, progress: Progress) -> None:
        print_json_line({"progress": progress})


class Lines(Silent):
    """Writes a line for each change, and for every tenth of progress."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._step = -1
        self._message = ""
        self._line = ""
        self._state: JobState | None = None
        self._told_at = now()
        self._latest: datetime | None = None

    def changed(self, status: JobStatus) -> None:
        self._step = -1
        result = f" {_ending(status.result)}" if status.result else ""
        reason = f"  {status.reason}" if status.reason and not result else ""
        at, moment = status.since, now()
        if status.state is JobState.RUNNING and not status.attempt and self._state is status.state:
            # An array tells how far it is, whenever that changes.
            at = moment
            if moment - self._told_at < _TELL_EVERY:
                return
        line = f"{status.state.value}{result}{reason}"
        if line != self._line:
            self._write(f"{self._clock(at)}  {line}")
            self._told_at = moment
        self._line, self._state = line, status.state

    def progressed(self, progress: Progress) -> None:
        if progress.fraction is None:
            if progress.message and progress.message != self._message:
                self._say(progress.message)
            self._message = progress.message
            return
        step = int(progress.fraction * 100) // _STEP
        if step > self._step:
            self._step = step
            self._say(f"{progress.fraction:.0%} {progress.message}".rstrip())

    def placed(self, view: JobView) -> None:
        # Why a job runs names the node of one that has no other.
        if view.simulated or len(view.nodes) > 1:
            self._say(f"on {places_of(view.places, simulated=view.simulated)}")

    def ended(self, result: JobResult) -> None:
        at = self._clock(result.ended_at or now())
        self._write(f"{at}  {result.state.value} {_ending(result)}".rstrip())

    def _say(self, text: str) -> None:
        self._write(f"{self._clock(now())}  {text}")

    def _clock(self, at: datetime) -> str:
        """Return when it was, or the time of the line before, where what that tells was later:
        a change is heard of some time after it, and progress as it is read."""
        self._latest = at if self._latest is None else max(at, self._latest)
        return clock(self._latest, now())


class Panel(Silent):
    """Draws the job in place; times run on between changes."""

    def __init__(self, console: Console) -> None:
        self._status: JobStatus | None = None
        self._progress: Progress | None = None
        self._view: JobView | None = None
        self._result: JobResult | None = None
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def changed(self, status: JobStatus) -> None:
        if status.state is not JobState.RUNNING:
            self._progress = None
        self._status = status
        self._live.refresh()

    def progressed(self, progress: Progress) -> None:
        self._progress = progress

    def placed(self, view: JobView) -> None:
        self._view = view

    def ended(self, result: JobResult) -> None:
        self._result = result
        self._live.refresh()

    def _draw(self) -> RenderableType:
        if self._result is not None:
            first = Text.assemble((self._result.job_id, "bold"), "  ", styled(self._result.state))
            return Group(first, Text(_ending(self._result)))
        if self._status is None:
            return Text("looking at the job", style="dim")
        return job_panel(self._status, self._progress, self._view)


def job_panel(
    status: JobStatus, progress: Progress | None = None, view: JobView | None = None
) -> RenderableType:
    """Return a job as it is now: state, where it runs, how far it is."""
    lasted = now() - status.since
    first = Text.assemble((status.job_id, "bold"), "  ", styled(status.state))
    first.append(f" {span(lasted)}" if not status.state.ended else "")
    parts: list[RenderableType] = [first]
    if status.state in (JobState.RUNNING, JobState.STOPPING) and status.attempts:
        last = status.attempts[-1]
        simulated = view is not None and view.simulated and view.node_id == last.node_id
        where = places_of(last.places, simulated=simulated)
        retry = f", attempt {status.attempt}" if status.attempt > 1 else ""
        parts.append(Text(f"on {where}{retry}"))
    elif status.result is not None:
        parts.append(Text(_ending(status.result)))
    if status.reason and status.state not in (JobState.RUNNING,) and status.result is None:
        parts.append(Text(status.reason, style="dim"))
    if progress is not None and (progress.fraction or progress.message):
        parts.append(progress_bar(progress, now() - (progress.started_at or status.since)))
    return Group(*parts)


def progress_bar(progress: Progress, ran: timedelta) -> RenderableType:
    """Return a bar with what the job says of itself; the message alone where it says no number."""
    if progress.fraction is None:
        return Text(progress.message, style="dim")
    left = ""
    if 0.02 < progress.fraction < 1:
        left = f"about {span(ran / progress.fraction * (1 - progress.fraction))} left"
    row = Table.grid(padding=(0, 1, 0, 0))
    for _ in range(3):
        row.add_column(no_wrap=True)
    row.add_column(overflow="ellipsis", no_wrap=True)
    row.add_row(
        ProgressBar(total=1.0, completed=progress.fraction, width=_BAR),
        f"{progress.fraction:4.0%}",
        Text(left and f" {left} ", style="dim"),
        Text(progress.message),
    )
    return row


def _ending(result: JobResult) -> str:
    """Return how a job ended, beside its state."""
    parts: list[str] = []
    if result.failure and result.failure is not FailureClass.CANCELLED:
        parts.append(result.failure.value)
    if result.exit_code:
        parts.append(f"exit code {result.exit_code}")
    if result.attempts > 1:
        parts.append(f"{result.attempts} attempts")
    said = f"({', '.join(parts)})" if parts else ""
    return f"{said} {result.message}".strip()


async def _show_changes(api: "Longshore", job_id: str, screen: Screen) -> None:
    shown = None
    async for status in api.watch(job_id):
        screen.changed(status)
        if status.state is JobState.RUNNING and status.attempt != shown:
            shown = status.attempt
            with contextlib.suppress(LongshoreError):  # a mark is missing, the state is not
                view = await api.job(job_id)
                if view.places:  # an array has none: its slots do
                    screen.placed(view)


async def _show_progress(api: "Longshore", job_id: str, screen: Screen) -> None:
    last: Progress | None = None
    while True:
        await asyncio.sleep(_PROGRESS_EVERY)
        try:
            progress = await api.progress(job_id)
        except LongshoreError:  # a server is away: `wait` says so
            continue
        if progress is not None and _said(progress) != _said(last):
            screen.progressed(progress)
        last = progress


def _said(progress: Progress | None) -> tuple[float | None, str] | None:
    return None if progress is None else (progress.fraction, progress.message)
