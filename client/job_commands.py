"""Commands on jobs: list, look, steer, ask why, read logs."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call, known_job, known_pool
from longshore.client.job_view import explanation_screen, job_screen, jobs_table
from longshore.client.terminal import JSON, Text, note, now, out, print_json, say, show
from longshore.models.dag import DagJobView
from longshore.models.errors import LongshoreError, NotSubmittedError, RefusedError
from longshore.models.job import JobSpec, JobState
from longshore.models.job_report import JobReport
from longshore.models.text import count
from longshore.models.views import Explanation

if TYPE_CHECKING:
    from longshore.client.api import Longshore

REF = Annotated[
    str, typer.Argument(metavar="JOB", help="A job's id, or a name for the newest job of it.")
]
REFS = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Ids, or names for the newest jobs of them.")
]
REASON = Annotated[str, typer.Option(help="Why; kept with the job.")]


def register(app: typer.Typer) -> None:
    for command in (jobs, job, why, logs, cancel, hold, release, requeue, resize):
        app.command(rich_help_panel="Jobs")(command)


def jobs(
    pool: Annotated[str | None, typer.Option(help="Only this pool's.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    state: Annotated[
        list[JobState] | None,
        typer.Option(help="Only in this state; may be given again.", case_sensitive=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Those that ended long ago too.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    as_json: JSON = False,
) -> None:
    """List jobs, newest first: those that have not ended, and those of the last hour."""
    recent = not (state or everything)
    found = call(
        lambda api: api.list(
            pool=pool, tenant=tenant, states=frozenset(state or ()), recent=recent, limit=limit
        )
    )
    if pool and not found:
        call(lambda api: known_pool(api, pool))
    if as_json:
        return print_json(found)
    if not found:
        return note(_no_jobs(filtered=bool(pool or tenant or state), everything=everything))
    show(jobs_table(found, now(), out().width))
    if len(found) == limit:
        note(f"\nThese are the newest {limit}; --limit shows more.")
    return None


def job(
    ref: REF,
    spec: Annotated[bool, typer.Option("--spec", help="Print what was submitted too.")] = False,
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
    if spec:
        show(Text("\nSubmitted as", style="bold"), Text(_as_yaml(found.spec)))
    return None


def why(ref: REF, as_json: JSON = False) -> None:
    """Say why a job waits, node by node, or how it came to its end."""

    async def ask(api: "Longshore") -> Explanation | DagJobView:
        try:
            return await api.explain((await known_job(api, ref)).id)
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


def logs(
    ref: REF,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the attempt has ended.")
    ] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="What it wrote to stderr.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Of this attempt; the latest without.")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="Of a job on several nodes, the one of this rank; 0 without."),
    ] = None,
    element: Annotated[
        int | None, typer.Option(min=0, metavar="INDEX", help="Of an array, what this one wrote.")
    ] = None,
) -> None:
    """Print what a job wrote to stdout, byte for byte."""
    if element is not None and rank is not None:
        raise typer.BadParameter("an element runs on one node: leave out --rank")
    missing = ""

    async def copy(api: "Longshore") -> int:
        nonlocal missing
        written = 0
        stream = "stderr" if stderr else "stdout"
        if element is None:
            await _refuse_array(api, ref)
            copied = api.logs(ref, stream=stream, attempt=attempt, rank=rank, follow=follow)
        else:
            copied = api.element_logs(ref, element, stream=stream, attempt=attempt, follow=follow)
        async for data in copied:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            written += len(data)
        if not written:
            await known_job(api, ref)  # a job that does not exist is another answer than no logs
        if element is None:
            missing = await api.missing_logs(ref, attempt)
        return written

    written = call(copy)
    if missing:
        note(f"This is not all that it wrote: the log store took no more ({missing}).")
    if not written:
        of = f" of attempt {attempt}" if attempt else ""
        other = "" if stderr else "; --stderr for the other stream"
        note(f"Nothing is stored{of}{other}. `longshore job {ref}` says whether it has run.")


async def _refuse_array(api: "Longshore", ref: str) -> None:
    """Raise RefusedError for an array, which writes nothing itself."""
    try:
        found = await api.job(ref)
        spec = await api.spec(found.id)
    except LongshoreError:
        return  # what is not on record yet is told of below
    if spec.array is not None:
        raise RefusedError(
            f"{found.id} is an array: --element INDEX says whose output (`longshore elements "
            f"{found.id}` lists them)"
        )


def cancel(
    refs: REFS,
    reason: REASON = "",
    indices: Annotated[
        str | None,
        typer.Option("--elements", metavar="3-9,12", help="Of an array, only these elements."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """End jobs: a running one gets its stop signal and its grace first."""
    if indices is not None:
        if len(refs) > 1:
            raise typer.BadParameter("--elements are those of one array: name one")
        return _cancel_elements(refs[0], indices, reason, as_json)
    return _steer("cancel", refs, reason, as_json, "will end; `longshore watch {id}` shows it")


def _cancel_elements(ref: str, indices: str, reason: str, as_json: bool) -> None:
    said = call(lambda api: api.cancel_elements(ref, indices, reason))
    if as_json:
        return print_json(said)
    ended = f"; {said.ended:,} had ended before" if said.ended else ""
    say(
        f"{said.waiting:,} that waited are cancelled, {said.running:,} are stopped by their "
        f"slots{ended}"
    )
    return None


def hold(refs: REFS, reason: REASON = "", as_json: JSON = False) -> None:
    """Keep jobs out of placement; a running one is stopped and queued again, held."""
    _steer("hold", refs, reason, as_json, "is held until `longshore release {id}`")


def release(refs: REFS, reason: REASON = "", as_json: JSON = False) -> None:
    """Let held jobs be placed again."""
    _steer("release", refs, reason, as_json, "may be placed again")


def requeue(refs: REFS, reason: REASON = "", as_json: JSON = False) -> None:
    """Stop running jobs with their grace, and queue them again in their old place."""
    _steer("requeue", refs, reason, as_json, "will be queued again; `longshore job {id}` shows it")


def resize(
    ref: REF,
    gpus: Annotated[int, typer.Option(min=1, help="The size that the job is to have.")],
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


def _steer(verb: str, refs: list[str], reason: str, as_json: bool, outcome: str) -> None:
    """Ask each job for the same; say what failed, and go on with the others."""

    async def ask(api: "Longshore") -> tuple[list[str], list[LongshoreError]]:
        asked: list[str] = []
        failed: list[LongshoreError] = []
        for ref in refs:
            try:
                asked.append(await getattr(api, verb)(ref, reason))
            except LongshoreError as error:
                failed.append(error)
        return asked, failed

    asked, failed = call(ask)
    if as_json:
        print_json({"asked": verb, "jobs": asked})
    else:
        for job_id in asked:
            say(f"{job_id} {outcome.format(id=job_id)}")
    for error in failed[:-1]:
        note(f"error: {error}")
    if failed:
        raise failed[-1]


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
