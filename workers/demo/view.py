"""The demo as people see it: live on a terminal, line by line in a pipe, and its summary."""

import zlib
from collections import deque
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from longshore.client.terminal import Text, a_table, heading, pairs
from longshore.client.words import SIMULATED, styled
from longshore.models.job_status import JobState
from longshore.models.settings import StackInfo
from longshore.models.text import and_more, format_dollars
from longshore.models.views import GPUView, NodeView
from longshore.workers.demo.events import Event
from longshore.workers.demo.jobs import POOL
from longshore.workers.demo.report import DemoReport, Spread
from longshore.workers.demo.state import DemoState, Snapshot

COLORS = (
    "red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_green",
    "bright_yellow", "bright_blue", "bright_magenta", "bright_cyan",
)  # fmt: skip
KIND_STYLES = {
    "decided": "bold cyan", "ordered": "cyan", "paid": "yellow", "closed": "cyan",
    "placed": "green", "finished": "bold green", "cancelled": "magenta", "killed": "bold red",
    "lost": "bold red", "recovered": "bold cyan", "requeued": "yellow", "failed": "bold red",
}  # fmt: skip
QUEUE_SHOWN, EVENTS_SHOWN = 5, 9


class PlainView:
    """One line for each event, with the seconds since the demo began (again)."""

    def __init__(self, state: DemoState, stream: TextIO) -> None:
        self._began = datetime.now(UTC)
        self._stream = stream
        print(f"{state.batch}: {state.jobs} jobs on {state.nodes} nodes", file=stream, flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """Nothing: what changed is told as events."""

    def tell(self, event: Event) -> None:
        seconds = (event.at - self._began).total_seconds()
        print(f"{seconds:6.1f} s  {event.kind:<9}  {event.text}", file=self._stream, flush=True)


class LiveView:
    """Nodes with their GPUs, the queue with its reasons, counts and the last events."""

    def __init__(self, state: DemoState) -> None:
        self._state = state
        self._events: deque[Event] = deque(maxlen=EVENTS_SHOWN)
        self._live = Live(refresh_per_second=4, console=Console(highlight=False), transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, snapshot: Snapshot) -> None:
        self._live.update(
            Group(
                self._counts(snapshot),
                Text(),
                _nodes(snapshot),
                Text(),
                _queue(snapshot),
                Text(),
                self._last_events(),
            )
        )

    def tell(self, event: Event) -> None:
        self._events.append(event)

    def _counts(self, snapshot: Snapshot) -> RenderableType:
        running = len(snapshot.in_state(JobState.RUNNING, JobState.STOPPING))
        ended = len(snapshot.ended)
        text = Text.assemble(
            ("Longshore demo  ", "bold"),
            f"{ended} of {self._state.jobs} jobs ended, {running} running, ",
            f"{len(snapshot.open) - running} waiting",
        )
        text.append(f"   {(snapshot.at - self._state.began_at).total_seconds():.0f} s", "dim")
        return text

    def _last_events(self) -> Table:
        table = a_table(["", "", ""], fold=[""])
        table.show_header = False
        for event in self._events:
            style = KIND_STYLES.get(event.kind, "")
            when = f"{(event.at - self._state.began_at).total_seconds():5.1f} s"
            table.add_row(Text(when, "dim"), Text(event.kind, style), event.text)
        return table


def summary(report: DemoReport, info: StackInfo, *, kept: bool) -> tuple[RenderableType, ...]:
    """Return the parts of the summary, to be printed one below the other."""
    ended = f"{report.succeeded} succeeded, {report.cancelled} cancelled, {report.failed} failed"
    killed = "no agent was killed"
    if report.killed_node:
        after = report.declared_lost_after
        when = "" if after is None else f", its node was given up after {after:.1f} s"
        killed = f"the agent of {report.killed_node}{when}"
    rows = [
        ("Jobs", f"{report.jobs}: {ended}"),
        ("Wait for a GPU", _spread(report.wait)),
        ("Run time", _spread(report.run)),
        ("Placements", f"{report.placements} in {report.cycles} cycles"),
        ("GPUs in use", f"{report.utilization:.0%} of the time of {report.gpus} {SIMULATED} GPUs"),
        ("Killed with -9", f"{killed}; {report.retries} jobs were placed again"),
        ("Training", report.training),
        ("Gang", report.gang),
        *_bought(report),
        ("Served", report.served),
        ("Took", f"{report.took:.0f} s" + _interrupted(report.interruptions)),
    ]
    if report.disturbances:
        rows.append(("Disturbed", f"{_times(report.disturbances)}: parts were started again"))
    look = [
        ("Temporal UI", info.temporal_ui or f"of the server at {info.temporal_address}"),
        ("Jobs", f"longshore jobs --pool {POOL} --all"),
        ("One job", "longshore job train, longshore logs train"),
        ("What was bought", "longshore purchases --all, longshore costs --by block"),
        ("Nodes", f"still running: longshore nodes --pool {POOL}" if kept else "stopped"),
        ("Stack", "still running; longshore down stops it"),
    ]
    verdict = Text("\nAll as it should be.", "bold green")
    if report.problems:
        verdict = Text("\nNot as it should be:", "bold red")
        verdict.append("".join(f"\n  {problem}" for problem in report.problems), "not bold")
    return (Text(), heading("Summary"), pairs(rows), Text(), heading("Where to look"),
            pairs(look), verdict)  # fmt: skip


def _bought(report: DemoReport) -> list[tuple[str, str]]:
    """Return what was bought and what became of the money, or why nothing was."""
    bought = report.bought
    if bought is None:
        return [("Bought", f"nothing: {report.not_bought or 'it was not decided to buy'}")]
    agrees = "the market says the same"
    if bought.market_says_micro_usd != bought.paid_micro_usd:
        agrees = f"the market says {format_dollars(bought.market_says_micro_usd)}"
    return [
        ("Bought", f"{bought.what} at {format_dollars(bought.price_micro_usd)} a GPU-hour "
                   f"({SIMULATED}), the cheapest of {bought.options} ways; {bought.job}"),
        ("Ledger", f"{bought.sum_in_words}; {agrees}, and lists nothing else"),
    ]  # fmt: skip


def _nodes(snapshot: Snapshot) -> Table:
    table = a_table(["node", "", "GPUs, by job", "cores", "state"])
    for node in snapshot.nodes:
        table.add_row(
            node.id,
            Text(SIMULATED if node.simulated else "", "black on yellow"),
            _slots(node),
            f"{node.cpus_used:.0f}/{node.cpus:.0f}",
            styled(node.state),
        )
    return table


def _slots(node: NodeView) -> RenderableType:
    """Return a block for each GPU: in its job's colour, lighter where less memory is used."""
    text = Text()
    for gpu in node.gpus:
        if gpu.job_id is None:
            text.append("·· ", "dim")
            continue
        text.append(_shade(gpu) * 2, COLORS[zlib.crc32(gpu.job_id.encode()) % len(COLORS)])
        text.append(" ")
    return text


def _shade(gpu: GPUView) -> str:
    share = gpu.vram_used / gpu.vram if gpu.vram else 1.0
    return "█" if share > 0.75 else "▓" if share > 0.4 else "▒"


def _queue(snapshot: Snapshot) -> Table:
    waiting = snapshot.in_state(JobState.SUBMITTED, JobState.QUEUED, JobState.RETRYING)
    table = a_table(["waiting", "GPUs", "class", "why"], right=["GPUs"])
    table.columns[-1].overflow = "ellipsis"
    ordered = sorted(waiting, key=lambda job: (-job.priority, job.submitted_at))
    for job in ordered[:QUEUE_SHOWN]:
        table.add_row(job.name, str(job.gpus), str(job.priority), Text(job.reason, "dim"))
    for _ in range(QUEUE_SHOWN - len(ordered)):
        table.add_row()
    table.add_row(Text(and_more(len(ordered) - QUEUE_SHOWN), "dim"))
    return table


def _spread(spread: Spread) -> str:
    return f"median {spread.p50:.1f} s, 95 % within {spread.p95:.1f} s, at most {spread.max:.1f} s"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _interrupted(times: int) -> str:
    return f", with {times} interruption{'s' if times > 1 else ''}" if times else ""
