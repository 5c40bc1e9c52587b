"""`longshore watch`: one job until it has ended, or all nodes and the queue, in place."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from longshore.client.calls import call, known_job
from longshore.client.job_view import jobs_table
from longshore.client.live import (
    JSONLines,
    Lines,
    Panel,
    Screen,
    as_it_ended,
    exit_code_of,
    follow_job,
    say_stderr_tail,
    says_that_it_goes_on,
)
from longshore.client.node_view import LEGEND, node_line, nodes_table
from longshore.client.terminal import Text, heading, note, now, out, print_json_line, say
from longshore.client.words import clock, places_of
from longshore.models.errors import UnavailableError
from longshore.models.job_status import JobResult, JobState
from longshore.models.text import and_more, count
from longshore.models.views import JobView, NodeView

if TYPE_CHECKING:
    from longshore.client.api import Longshore

_LIVE = frozenset(state for state in JobState if not state.ended)
_MOST_JOBS = 500
_ENDED_SHOWN = 5


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Jobs")(watch)


def watch(
    ref: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB", help="A job's id or name (default: all jobs).", show_default=False
        ),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Without a job: only this pool.")] = None,
    every: Annotated[
        float, typer.Option(min=0.2, metavar="SECONDS", help="Refresh interval, without a job.")
    ] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line, for each change.")
    ] = False,
) -> None:
    """Watch one job until it has ended, or all nodes and the queue until interrupted.

    With a job, the exit code is the job's, as with `longshore submit --wait`.
    """
    if ref is None:
        call(lambda api: _watch_all(api, pool, every, as_json))
        return

    async def follow(api: "Longshore") -> JobResult:
        job, screen = await known_job(api, ref), _screen(as_json)
        if was_reset := await api.reset_after_end(job):
            note(was_reset)
            return as_it_ended(job, screen)
        with says_that_it_goes_on(job.id):
            result = await follow_job(api, job.id, screen)
            if not as_json:
                await say_stderr_tail(api, result)
            return result

    result = call(follow)
    if as_json:
        print_json_line({"result": result})
    raise typer.Exit(exit_code_of(result))


@dataclass(frozen=True)
class Fleet:
    """Nodes and jobs at one moment: jobs that have not ended, then the last that have."""

    at: datetime
    nodes: tuple[NodeView, ...]
    jobs: tuple[JobView, ...]
    ended: tuple[JobView, ...]


def fleet_screen(fleet: Fleet, width: int, height: int) -> RenderableType:
    """Return nodes and jobs as tables that fit a terminal of this size."""
    running = sum(job.state in (JobState.RUNNING, JobState.STOPPING) for job in fleet.jobs)
    used = sum(bool(gpu.job_id or gpu.parts) for node in fleet.nodes for gpu in node.gpus)
    total = sum(len(node.gpus) for node in fleet.nodes)
    first = Text.assemble(
        ("Longshore", "bold"),
        f"  {used} of {count(total, 'GPU')} in use on {count(len(fleet.nodes), 'node')}, "
        f"{running} running, {len(fleet.jobs) - running} waiting",
        (f"  {clock(fleet.at, fleet.at)}", "dim"),
    )
    parts: list[RenderableType] = [first, Text()]
    if fleet.nodes:
        parts += [nodes_table(fleet.nodes, fleet.at, width), Text(LEGEND, style="dim"), Text()]
    else:
        parts += [Text("No nodes: `longshore up` or `longshore agent` brings one."), Text()]
    room = max(height - 2 * len(fleet.nodes) - 10, 5)
    shown = sorted(fleet.jobs, key=_queue_order)[:room]
    if shown:
        parts.append(jobs_table(shown, fleet.at, width))
    if more := and_more(len(fleet.jobs) - len(shown)):
        parts.append(Text(more, style="dim"))
    if fleet.ended and room > len(shown):
        parts += [Text(), heading("Ended last"), jobs_table(fleet.ended, fleet.at, width)]
    return Group(*parts)


def changes(before: Fleet | None, after: Fleet) -> list[str]:
    """Return a line for each node and job that is not what it was."""
    lines = _changed_nodes(before.nodes if before else (), after.nodes)
    known = {job.id: job for job in (*before.jobs, *before.ended)} if before else {}
    for job in sorted((*after.ended, *after.jobs), key=lambda job: job.submitted_at):
        if before is None and job.state.ended:
            continue
        old = known.get(job.id)
        if old is None or (old.state, old.attempt) != (job.state, job.attempt):
            lines.append(_job_line(job))
    return lines


def _screen(as_json: bool) -> Screen:
    if as_json:
        return JSONLines()
    console = out()
    return Panel(console) if console.is_terminal else Lines(_print)


async def _watch_all(api: "Longshore", pool: str | None, every: float, as_json: bool) -> None:
    console = out()
    if as_json or not console.is_terminal:
        await _print_changes(api, pool, every, as_json)
        return
    # The other screen, as in an editor: what was on the terminal comes back in the end.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                fleet = await _look(api, pool)
            except UnavailableError as error:
                live.update(Text(f"{error}\nTrying again until it is back."), refresh=True)
            else:
                screen = fleet_screen(fleet, console.width, console.height)
                live.update(screen, refresh=True)
            await asyncio.sleep(every)


async def _print_changes(api: "Longshore", pool: str | None, every: float, as_json: bool) -> None:
    before: Fleet | None = None
    while True:
        try:
            fleet = await _look(api, pool)
        except UnavailableError as error:
            api.say_away(str(error))
        else:
            api.say_back()
            _print_change(before, fleet, as_json)
            before = fleet
        await asyncio.sleep(every)


def _print_change(before: Fleet | None, fleet: Fleet, as_json: bool) -> None:
    lines = changes(before, fleet)
    if as_json and (lines or before is None):
        jobs = [*fleet.jobs, *fleet.ended]
        print_json_line({"at": fleet.at.isoformat(), "nodes": fleet.nodes, "jobs": jobs})
    elif not as_json:
        for line in lines:
            _print(f"{clock(fleet.at, fleet.at)}  {line}")


async def _look(api: "Longshore", pool: str | None) -> Fleet:
    ended = frozenset(JobState) - _LIVE
    return Fleet(
        at=now(),
        nodes=await api.nodes(pool=pool),
        jobs=await api.list(pool=pool, states=_LIVE, limit=_MOST_JOBS),
        ended=await api.list(pool=pool, states=ended, limit=_ENDED_SHOWN),
    )


def _changed_nodes(before: Iterable[NodeView], after: Iterable[NodeView]) -> list[str]:
    old, new = ({node.id: node for node in nodes} for nodes in (before, after))
    lines = [
        node_line(node)
        for node in new.values()
        if node.id not in old or node_line(old[node.id]) != node_line(node)
    ]
    return lines + [f"node {gone} has gone" for gone in old if gone not in new]


def _job_line(job: JobView) -> str:
    line = f"job {job.id} {job.state.value}"
    if job.state is JobState.RUNNING and job.node_id:
        return f"{line} on {places_of(job.places, simulated=job.simulated)}"
    return f"{line}  {job.reason}".rstrip()


def _queue_order(job: JobView) -> tuple[bool, int, datetime]:
    """Running jobs first, then the queue in its order."""
    waits = job.state not in (JobState.RUNNING, JobState.STOPPING)
    counted = job.priority if job.counted_as is None else job.counted_as
    return waits, -counted if waits else 0, job.submitted_at


def _print(line: str) -> None:
    say(line)
