"""The command `longshore demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longshore.models.settings import StackInfo
    from longshore.workers.demo.report import DemoReport
    from longshore.workers.demo.state import DemoState, StateFile
    from longshore.workers.stack import Stack
    from longshore.workers.survival import SurvivalReport

# The rest is imported where it is needed: every command of `longshore` loads this module.


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(demo)


def demo(
    jobs: Annotated[int, typer.Option(min=4, max=500, help="How many jobs.")] = 47,
    nodes: Annotated[
        int, typer.Option(min=2, max=16, help="How many simulated nodes of 8 GPUs.")
    ] = 3,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the nodes running afterwards.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON; events go to stderr.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Another order of the jobs.")] = 1,
    survive: Annotated[
        bool,
        typer.Option(
            "--survive",
            help="Run the survival scene instead: one training through preemption, a move and a "
            "kill, compared with an undisturbed twin.",
        ),
    ] = False,
) -> None:
    """Start everything and run a small fleet of jobs on simulated nodes.

    The jobs have the shapes of a public trace; one trains a small network. One job is cancelled,
    and the agent of one node is killed with -9: its jobs are run again. For one job that no node
    can hold a node is bought at a simulated market, where no money moves. In the end everything is
    checked: the exit code is 1 when something is not as it should be. Interrupted, the demo goes
    on when it is started again.
    """
    import asyncio
    import shutil

    from longshore.activities.migrations import upgrade
    from longshore.client.terminal import note
    from longshore.models.errors import LongshoreError
    from longshore.models.search import SEARCH_ATTRIBUTES
    from longshore.models.settings import Settings
    from longshore.workers.demo.market import stop_market
    from longshore.workers.demo.run import checkpoints, stop_nodes
    from longshore.workers.demo.state import StateFile
    from longshore.workers.stack import Stack

    stack = Stack(Settings(), search_attributes=SEARCH_ATTRIBUTES, migrate=upgrade)
    if survive:
        return _survive(stack, as_json=as_json)
    file = StateFile(stack.folder)
    state = _state(file, jobs, nodes, seed)
    info = _start(stack, state, file)
    try:
        report = asyncio.run(_run(stack, state, file, events_on_stderr=as_json))
    except KeyboardInterrupt:
        note("stopped. `longshore demo` goes on with it, `longshore down` stops the nodes.")
        raise typer.Exit(130) from None
    except LongshoreError:
        note("the demo is not finished: `longshore demo` goes on with it.")
        raise
    state = file.unfinished() or state
    file.remove()
    shutil.rmtree(checkpoints(stack).parent, ignore_errors=True)
    if not keep:
        stop_nodes(stack, state)
        stop_market(stack, state)
    _say(report, info, kept=keep, as_json=as_json)
    if report.problems:
        raise typer.Exit(1)
    return None


def _survive(stack: Stack, *, as_json: bool) -> None:
    """Run the scene of one training; ends with 1 when it did not survive."""
    import asyncio

    from longshore.client.terminal import print_json, show
    from longshore.workers.local import start_control_worker, start_web_ui
    from longshore.workers.survival_view import survival_summary

    with stack.exclusive(_progress):
        stack.start(_progress)
        start_control_worker(stack, _progress)
        start_web_ui(stack, _progress)
    report = asyncio.run(_run_survival(stack, events_on_stderr=as_json))
    if as_json:
        print_json(report)
    else:
        show(*survival_summary(report))
    if report.problems:
        raise typer.Exit(1)


async def _run_survival(stack: Stack, *, events_on_stderr: bool) -> SurvivalReport:
    import logging
    import sys

    from longshore.client.api import Longshore
    from longshore.workers.survival import Survival
    from longshore.workers.survival_view import Lines

    logging.getLogger("temporalio").setLevel(logging.ERROR)
    api = await Longshore.connect(stack.settings)
    scene = Survival(stack, api, Lines(sys.stderr if events_on_stderr else sys.stdout))
    try:
        return await scene.run()
    finally:
        await scene.close()
        await api.close()


def _state(file: StateFile, jobs: int, nodes: int, seed: int) -> DemoState:
    """Return the state of an unfinished demo, else of a new one."""
    from longshore.client.terminal import note
    from longshore.workers.demo.state import DemoState

    unfinished = file.unfinished()
    if unfinished is None:
        return DemoState.new(jobs, nodes, seed)
    note(
        f"found an unfinished demo ({unfinished.batch}, {unfinished.jobs} jobs on "
        f"{unfinished.nodes} nodes): going on with it"
    )
    return unfinished.model_copy(update={"interruptions": unfinished.interruptions + 1})


def _start(stack: Stack, state: DemoState, file: StateFile) -> StackInfo:
    from longshore.workers.demo.run import demo_nodes
    from longshore.workers.local import start_agents, start_control_worker, start_web_ui

    with stack.exclusive(_progress):
        info = stack.start(_progress)
        start_control_worker(stack, _progress)
        file.save(state)
        start_agents(stack, demo_nodes(stack, state), _progress)
        start_web_ui(stack, _progress)
    return info


async def _run(
    stack: Stack, state: DemoState, file: StateFile, *, events_on_stderr: bool
) -> DemoReport:
    import logging
    import sys

    from longshore.client.api import Longshore
    from longshore.workers.demo.run import Demo
    from longshore.workers.demo.view import LiveView, PlainView

    logging.getLogger("temporalio").setLevel(logging.ERROR)
    api = await Longshore.connect(stack.settings)
    try:
        if sys.stdout.isatty() and not events_on_stderr:
            with LiveView(state) as view:
                return await Demo(stack, api, state, file, view).run()
        stream = sys.stderr if events_on_stderr else sys.stdout
        return await Demo(stack, api, state, file, PlainView(state, stream)).run()
    finally:
        await api.close()


def _say(report: DemoReport, info: StackInfo, *, kept: bool, as_json: bool) -> None:
    from longshore.client.terminal import print_json, show
    from longshore.workers.demo.view import summary

    if as_json:
        print_json(
            report.model_dump(mode="json")
            | {"utilization": round(report.utilization, 3), "temporal_ui": info.temporal_ui}
        )
        return
    show(*summary(report, info, kept=kept))


def _progress(line: str) -> None:
    typer.echo(f"  {line}", err=True)
