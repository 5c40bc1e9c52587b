"""`longshore dag`: jobs that wait for the ends of others."""

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call
from longshore.client.code_options import INCLUDE, NO_UPLOAD, with_code
from longshore.client.live import CANCELLED, FAILED
from longshore.client.terminal import (
    JSON,
    LIMIT,
    note,
    note_simulated,
    now,
    out,
    print_json,
    print_json_line,
    say,
    show,
    warn,
)
from longshore.models.dag import DagSpec
from longshore.models.dag_view import DagRetry, DagState, DagView
from longshore.models.errors import SpecError
from longshore.models.settings import Settings

if TYPE_CHECKING:
    from longshore.client.api import Longshore

_MOST_SAID = 10
"""Jobs of a retry that are named."""

dag_app = typer.Typer(
    help="Submit and follow DAGs: jobs that depend on each other.",
    no_args_is_help=True,
)

REF = Annotated[
    str, typer.Argument(metavar="DAG", help="A DAG's id, or a name for the newest of it.")
]
FILE = Annotated[str, typer.Argument(help="DAG file (YAML or JSON); - reads stdin.")]
REASON = Annotated[str, typer.Option(help="Why; kept with the DAG.")]
MERMAID = Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flow chart.")]


def register(app: typer.Typer) -> None:
    app.add_typer(dag_app, name="dag", rich_help_panel="Jobs")


@dag_app.command()
def submit(
    file: FILE,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until it has ended, and print each change.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            help="Idempotency key: the same tenant, name and key return the existing DAG."
        ),
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Submit the DAG on hold.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the DAG's id.")] = False,
    as_json: JSON = False,
    no_upload: NO_UPLOAD = False,
    include: INCLUDE = None,
) -> None:
    """Submit a DAG. Exit code with --wait: 0, 70 where it failed, 130 where it was cancelled."""
    spec = _read(file, no_upload=no_upload)

    async def begin(api: "Longshore") -> DagView | None:
        sent = await with_code(api, spec, include or (), silent=as_json or quiet)
        submission = await api.submit_dag(sent, key=key, held=hold)
        for warning in submission.warnings:
            warn(warning)
        dag_id = submission.dag_id
        if not as_json:
            say(dag_id)
        elif not wait:
            print_json(submission)
        if not (submission.created or quiet):
            note(f"It had been submitted before: the same tenant, name {spec.name} and key.")
        if wait:
            return await _follow(api, dag_id, silent=as_json or quiet)
        if not (as_json or quiet):
            then = f"longshore dag release {dag_id}" if hold else f"longshore dag watch {dag_id}"
            note(f"Next: {then}")
        return None

    _end(call(begin), as_json)


@dag_app.command()
def validate(file: FILE, mermaid: MERMAID = False, as_json: JSON = False) -> None:
    """Check a DAG file and list every mistake. Needs no server."""
    _refuse_both(mermaid, as_json)
    spec = _read(file)
    if mermaid:
        return _print_planned(spec)
    from longshore.models.text import count, listed
    from longshore.scheduling.dag import Graph
    from longshore.scheduling.partners import without_partner

    graph = Graph.of(spec)
    first = [name for name in graph.order if not graph.edges[name]]
    edges = sum(map(len, graph.edges.values()))
    if as_json:
        return print_json(
            {
                "name": spec.name, "jobs": list(graph.order), "edges": edges, "first": first,
                "without_partner": [str(each) for each in without_partner(spec)],
            }
        )  # fmt: skip
    say(
        f"{file}: DAG {spec.name} is valid: {count(len(graph.order), 'job')}, "
        f"{count(edges, 'edge')}; it begins with {listed(first, 5)}"
    )
    slurms = [
        f"{name} after {up} ({edge.word}, that is {edge.condition.value})"
        for name, after in graph.edges.items() for up, edge in after.items() if edge.word
    ]  # fmt: skip
    if slurms:
        say(f"In Slurm's words: {listed(slurms, 5)}")
    mutexes = sorted({each for job in spec.jobs.values() for each in job.mutex})
    if mutexes:
        say(f"One job of tenant {spec.tenant} at a time (mutex, Slurm's singleton): "
            f"{', '.join(mutexes)}")  # fmt: skip
    for alone in without_partner(spec):
        say(str(alone)[:1].upper() + str(alone)[1:] + ".")
    return None


@dag_app.command(name="show")
def show_dag(ref: REF, mermaid: MERMAID = False, as_json: JSON = False) -> None:
    """Show a DAG: its graph, with the state, time and reason of each job, and its cost."""
    _refuse_both(mermaid, as_json)
    from longshore.client.dag_mermaid import mermaid as chart_of
    from longshore.client.dag_view import dag_screen

    found = call(lambda api: api.known_dag(ref))
    if as_json:
        return print_json(found)
    if mermaid:
        for line in chart_of(found).splitlines():
            say(line)
        return None
    show(dag_screen(found, now(), out().width))
    return None


@dag_app.command()
def output(
    ref: Annotated[
        str,
        typer.Argument(metavar="DAG.JOB", help="A job of a DAG, by the DAG's id or its name."),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="No effect: an output is JSON anyway.")
    ] = False,
) -> None:
    """Print the output of a job of a DAG, as JSON."""
    say(call(lambda api: api.output(ref)))


@dag_app.command()
def watch(
    ref: REF,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line, for each change.")
    ] = False,
) -> None:
    """Follow a DAG until it has ended. Exit code: 0, 70 where it failed, 130 if cancelled."""

    async def follow(api: "Longshore") -> DagView:
        dag_id = (await api.known_dag(ref)).id
        if not as_json:
            return await _follow(api, dag_id, silent=False)
        async for found in api.watch_dag(dag_id):
            print_json_line(found)
        return await api.dag(dag_id)

    _end(call(follow), as_json=False)


@dag_app.command(name="list")
def list_dags(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that have ended.")
    ] = False,
    state: Annotated[
        list[DagState] | None,
        typer.Option(help="Only in this state. Repeatable.", case_sensitive=False),
    ] = None,
    limit: LIMIT = 50,
    as_json: JSON = False,
) -> None:
    """List DAGs, newest first: running ones, or those in a state."""
    from longshore.client.dag_view import dags_table

    running = () if everything else (DagState.RUNNING,)
    states = frozenset(state or running)
    found = call(lambda api: api.dags(tenant=tenant, states=states, limit=limit))
    if as_json:
        return print_json(found)
    if not found:
        others = "" if everything or state else " that runs; --all lists those that have ended"
        return note(f"No DAG{others}. `longshore dag submit FILE` starts one.")
    note_simulated(any(each.simulated for each in found))
    show(dags_table(found, now(), out().width))
    return None


@dag_app.command()
def cancel(ref: REF, reason: REASON = "", as_json: JSON = False) -> None:
    """Cancel a DAG: running jobs get their stop signal and grace, and no other job starts."""
    dag_id = call(lambda api: api.cancel_dag(ref, reason))
    _steered(dag_id, as_json, f"{dag_id} will end; `longshore dag watch {dag_id}` shows it")


@dag_app.command()
def hold(ref: REF, reason: REASON = "", as_json: JSON = False) -> None:
    """Put a DAG on hold: no further job is submitted; submitted ones continue."""
    dag_id = call(lambda api: api.hold_dag(ref, reason))
    until = f"until `longshore dag release {dag_id}`"
    _steered(dag_id, as_json, f"{dag_id} submits no further job {until}")


@dag_app.command()
def release(ref: REF, reason: REASON = "", as_json: JSON = False) -> None:
    """Release a held DAG."""
    dag_id = call(lambda api: api.release_dag(ref, reason))
    _steered(dag_id, as_json, f"{dag_id} goes on")


def _steered(dag_id: str, as_json: bool, said: str) -> None:
    if as_json:
        return print_json({"dag_id": dag_id})
    return say(said)


@dag_app.command()
def retry(
    ref: REF,
    file: Annotated[
        str | None,
        typer.Option("--with", help="A changed DAG file: changed jobs also run again."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run again; run nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until it has ended.")] = False,
    as_json: JSON = False,
) -> None:
    """Rerun the jobs of a DAG that did not succeed; the other results stay.

    That is: jobs that failed, were cancelled or skipped, and each job that had run because of
    one of them, e.g. one that reports a failure. With another file also the jobs that differ
    there, new ones, and all behind them.
    """
    given = None if file is None else _read(file)

    async def again(api: "Longshore") -> DagView | None:
        spec = given and await with_code(api, given, (), silent=as_json)
        try:
            plan = await api.plan_retry(ref, spec)
        except SpecError as error:
            if file is None:
                raise
            raise SpecError(file, tuple(f"{file}: {each}" for each in error.problems)) from None
        if not as_json:
            say(_runs_again(plan, dry_run=dry_run))
        elif dry_run or not wait:
            print_json(plan)
        if dry_run:
            return None
        await api.retry_dag(plan.dag_id, spec)
        return await _follow(api, plan.dag_id, silent=as_json) if wait else None

    _end(call(again), as_json)


def _runs_again(plan: DagRetry, *, dry_run: bool) -> str:
    """Return ``nightly-abc runs again: train, evaluate (changed: train)``."""
    if not plan.jobs:
        return f"{plan.dag_id} {'would go' if dry_run else 'goes'} on"
    others = f" and {len(plan.jobs) - _MOST_SAID} others" if len(plan.jobs) > _MOST_SAID else ""
    kinds = (("new", plan.new), ("changed", plan.changed))
    why = "; ".join(f"{kind}: {', '.join(names[:_MOST_SAID])}" for kind, names in kinds if names)
    runs = "would run" if dry_run else "runs"
    named = ", ".join(plan.jobs[:_MOST_SAID])
    return f"{plan.dag_id} {runs} again: {named}{others}{f' ({why})' if why else ''}"


def _refuse_both(mermaid: bool, as_json: bool) -> None:
    if mermaid and as_json:
        raise typer.BadParameter("--mermaid prints a chart and --json a document: give one")


def _read(file: str, *, no_upload: bool = False) -> DagSpec:
    from longshore.client.dag_file import read_dag

    settings = Settings()
    most = settings.most_array_elements
    return read_dag(file, settings.most_dag_jobs, most_elements=most, no_upload=no_upload)


def _print_planned(spec: DagSpec) -> None:
    from datetime import UTC, datetime

    from longshore.client.dag_mermaid import mermaid
    from longshore.models.dag_view import DagJobView, StepState
    from longshore.scheduling.dag import Graph

    steps = tuple(
        DagJobView(
            name=name, after=spec.jobs[name].after, join=spec.jobs[name].join,
            mutex=spec.jobs[name].mutex, step=StepState.WAITING, gpus=spec.jobs[name].gpus,
            array=str(spec.jobs[name].array) if spec.jobs[name].array else None,
        )
        for name in Graph.of(spec).order
    )  # fmt: skip
    planned = DagView(
        id=spec.name, name=spec.name, tenant=spec.tenant, state=DagState.RUNNING,
        submitted_at=datetime.now(UTC), jobs=len(steps),
        counts={StepState.WAITING: len(steps)}, on_failure=spec.on_failure, steps=steps,
    )  # fmt: skip
    for line in mermaid(planned).splitlines():
        say(line)


async def _follow(api: "Longshore", dag_id: str, *, silent: bool) -> DagView:
    """Say each change of a DAG until it has ended, and return it."""
    import asyncio

    from longshore.client.dag_view import change_lines
    from longshore.client.words import clock

    before: DagView | None = None
    try:
        async for found in api.watch_dag(dag_id):
            moment = now()
            for at, line in [] if silent else change_lines(before, found, moment):
                say(f"{clock(at, moment)}  {line}")
            before = found
    except asyncio.CancelledError:
        note(
            f"\nThe DAG goes on. Follow it with `longshore dag watch {dag_id}`, or end it with "
            f"`longshore dag cancel {dag_id}`."
        )
        raise
    return before if before is not None and before.state.ended else await api.dag(dag_id)


def _end(found: DagView | None, as_json: bool) -> None:
    if found is None:
        return
    if as_json:
        print_json(found)
    if found.state is DagState.CANCELLED:
        raise typer.Exit(CANCELLED)
    if found.state is not DagState.SUCCEEDED:
        raise typer.Exit(FAILED)
