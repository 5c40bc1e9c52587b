"""Commands on jobs: list, look, steer, ask why, read logs."""

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client import selection
from longshore.client.calls import call, known_job, known_pool
from longshore.client.job_view import job_screen, jobs_table
from longshore.client.terminal import JSON, LIMIT, Text, note, now, out, print_json, say, show
from longshore.client.why_view import explanation_screen
from longshore.models.dag_view import DagJobView
from longshore.models.errors import NotSubmittedError
from longshore.models.explanation import Explanation
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.text import count

if TYPE_CHECKING:
    from longshore.client.api import Longshore

REF = Annotated[
    str, typer.Argument(metavar="JOB", help="A job's id, or a name for the newest job of it.")
]
REASON = Annotated[str, typer.Option(help="Why; kept with the job.")]


def register(app: typer.Typer) -> None:
    for command in (jobs, job, why, resize):
        app.command(rich_help_panel="Jobs")(command)


def jobs(
    pool: selection.POOL = None,
    tenant: selection.TENANT = None,
    state: selection.STATES = None,
    labels: selection.LABELS = None,
    name: selection.NAME = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also jobs that ended long ago.")
    ] = False,
    limit: LIMIT = 50,
    columns: Annotated[
        list[str] | None,
        typer.Option("--label-column", "-L", metavar="LABEL", help="Show this label in a column."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only ids.")] = False,
    as_json: JSON = False,
) -> None:
    """List jobs, newest first: those that have not ended, and those of the last hour."""
    if quiet and as_json:
        raise typer.BadParameter("--quiet prints ids alone: leave out --json")
    chosen = selection.read(pool, tenant, state, labels, name)
    recent = not (state or everything)
    found = call(lambda api: api.list(**chosen.filters, recent=recent, limit=limit))
    if pool and not found:
        call(lambda api: known_pool(api, pool))
    if as_json:
        return print_json(found)
    if not found:
        return note(_no_jobs(filtered=chosen.given, everything=everything))
    if quiet:
        for each in found:
            say(each.id)
    else:
        show(jobs_table(found, now(), out().width, columns or ()))
    if len(found) == limit:
        note(f"\nThese are the newest {limit}; --limit shows more.")
    return None


def job(
    ref: REF,
    spec: Annotated[
        bool, typer.Option("--spec", help="Also print the job file as submitted.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Show one job: state, progress, where it runs, its attempts and its result."""

    async def ask(api: "Longshore") -> JobReport | DagJobView:
        try:
            return await api.report((await known_job(api, ref)).id)
        except NotSubmittedError as error:
            return await _step(api, error)

    found = call(ask)
    if as_json:
        return print_json(found)
    if isinstance(found, DagJobView):
        return say(_where_it_is(ref, found))
    for missing in found.missing:
        note(f"note: {missing}")
    show(job_screen(found, now()))
    if spec and found.spec is not None:
        show(Text("\nSubmitted as", style="bold"), Text(_as_yaml(found.spec)))
    return None


def why(ref: REF, as_json: JSON = False) -> None:
    """Explain why a job waits, node by node, or how it ended."""

    async def ask(api: "Longshore") -> Explanation | DagJobView:
        try:
            one = await api.replica_to_explain(ref) or ref
            return await api.explain((await known_job(api, one)).id)
        except NotSubmittedError as error:
            return await _step(api, error)

    explanation = call(ask)
    if as_json:
        return print_json(explanation)
    if isinstance(explanation, DagJobView):
        return say(_where_it_is(ref, explanation))
    show(explanation_screen(explanation, now()))
    return None


async def _step(api: "Longshore", error: NotSubmittedError) -> DagJobView:
    """Return a job of a DAG that is in no queue, as it is by now."""
    step = await api.step(f"{error.dag_id}.{error.name}")
    if step is None:
        raise error
    return step


def _where_it_is(ref: str, step: DagJobView) -> str:
    return f"{ref} is {step.step.value}: {step.reason}"


def resize(
    ref: REF,
    gpus: Annotated[int, typer.Option(min=1, help="New number of GPUs.")],
    reason: REASON = "",
    from_start: Annotated[
        bool,
        typer.Option("--from-start", help="Also a running job without a checkpoint."),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Give a malleable job another number of GPUs.

    A running job is stopped with its grace and starts again, where so many GPUs are free for it.
    One with `in_place` gives up nodes, or gets more, without a stop of the rest.
    """
    reply = call(lambda api: api.resize(ref, gpus, reason, from_start=from_start))
    if as_json:
        return print_json(reply)
    if reply.restarts is not None:
        say(f"{ref} is stopped and starts again: {reply.reason}")
    elif reply.in_place is not None:
        say(f"{ref} goes on: {reply.reason}")
    else:
        say(f"{ref} is to have {count(gpus, 'GPU')}: {reply.reason}")
    return None


def _no_jobs(*, filtered: bool, everything: bool) -> str:
    if filtered:
        return "No such jobs. `longshore jobs --all` lists all."
    if everything:
        return "No jobs yet. Submit one: longshore submit --gpus 1 -- nvidia-smi"
    return (
        "No jobs now, and none ended in the last hour (--all lists older ones). "
        "Submit one: longshore submit --gpus 1 -- nvidia-smi"
    )


def _as_yaml(spec: JobSpec) -> str:
    import yaml

    given = spec.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(given, sort_keys=False, allow_unicode=True).rstrip()
