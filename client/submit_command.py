"""`longshore submit`: from a file, or a command line after `--`."""

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from longshore.client import job_flags
from longshore.client.array_table import with_table
from longshore.client.calls import call
from longshore.client.code_options import (
    ANEW,
    INCLUDE,
    NO_UPLOAD,
    UPLOAD,
    say_code,
    with_code,
    with_folder,
)
from longshore.client.live import (
    Lines,
    Panel,
    Screen,
    Silent,
    exit_code_of,
    follow_job,
    say_stderr_tail,
    says_that_it_goes_on,
)
from longshore.client.log_commands import copy_output
from longshore.client.submit_forecast import amount_of, say_forecast
from longshore.client.terminal import JSON, note, out, print_json, say, warn
from longshore.models.document import Override, load_document, read_document, read_stdin
from longshore.models.errors import LongshoreError, SpecError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobResult
from longshore.models.moment import said_at
from longshore.models.views import Submission

if TYPE_CHECKING:
    from longshore.client.api import Longshore

COMMAND = "longshore.command"
SCRIPT = "longshore.script"
"""What `longshore run` runs of the folder that comes along."""
_LAST_LOGS = 30.0
"""Seconds in which the last of what a job wrote is copied."""


class WithCommand(TyperCommand):
    """Keeps what follows `--` apart: it is the job's command, not arguments of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[COMMAND] = args[:cut], tuple(args[cut + 1 :])
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    app.command(
        cls=WithCommand,
        rich_help_panel="Jobs",
        options_metavar="[OPTIONS]",
        epilog="Exit code with --wait: the job's own if it failed, 130 if it was cancelled, 75 "
        "after its queue timeout, 124 after its time limit, 70 for other failures.",
    )(submit)


def submit(
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(help="Job file (YAML or JSON); - reads stdin.", show_default=False),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until the job has ended.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait, and print what the job writes.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            help="Idempotency key: the same tenant, name and key return the existing job."
        ),
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Submit the job on hold.")] = False,
    values: job_flags.VALUES = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show where it would run or what would be bought, and the cost; submit nothing.",
        ),
    ] = False,
    max_cost: Annotated[
        str | None,
        typer.Option(
            metavar="DOLLARS",
            help="Refuse to submit if buying for it now may cost more. The caps of the pool limit "
            "later purchases.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before buying.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the job's id.")] = False,
    as_json: JSON = False,
    name: job_flags.NAME = None,
    pool: job_flags.POOL = None,
    tenant: job_flags.TENANT = None,
    priority: job_flags.PRIORITY = None,
    labels: job_flags.LABELS = None,
    gpus: job_flags.GPUS = None,
    cpus: job_flags.CPUS = None,
    ram: job_flags.RAM = None,
    time: job_flags.TIME = None,
    begin: job_flags.BEGIN = None,
    deadline: job_flags.DEADLINE = None,
    start_below: job_flags.START_BELOW = None,
    sensitive: job_flags.SENSITIVE = False,
    constraints: job_flags.CONSTRAINTS = None,
    image: job_flags.IMAGE = None,
    env: job_flags.ENV = None,
    environment: job_flags.ENVIRONMENT = None,
    data: job_flags.DATA = None,
    checkpoint: job_flags.CHECKPOINT = None,
    outputs: job_flags.OUTPUTS = None,
    array: job_flags.ARRAY = None,
    upload: UPLOAD = None,
    no_upload: NO_UPLOAD = False,
    include: INCLUDE = None,
    anew: ANEW = False,
) -> None:
    """Submit a job, from a file or as a command.

    longshore submit train.yaml --wait

    longshore submit --gpus 2 --time 2h --label sweep=7 -- python -m train --epochs 3

    longshore submit train.yaml --dry-run

    longshore submit --array 0-99%8 -- sh -c 'python train.py --seed $LONGSHORE_ARRAY_INDEX'

    longshore submit --upload . --environment requirements.txt -- python train.py

    A job runs in an empty folder of its own, in a copy of an uploaded folder, or in the absolute
    workdir that it names. --upload, `code` and a relative workdir upload a folder. A relative
    workdir is relative to the job file, or to the current folder when there is none.
    """
    if follow and as_json:
        raise typer.BadParameter("--follow prints what the job writes: leave out --json")
    most = None if max_cost is None else amount_of(max_cost)
    command: tuple[str, ...] = context.meta.get(COMMAND, ())
    script: str | None = context.meta.get(SCRIPT)
    overrides = [
        *job_flags.plain(
            {
                "name": name, "pool": pool, "tenant": tenant, "priority": priority, "gpus": gpus,
                "cpus": cpus, "ram": ram, "image": image, "array": array,
                "begin": begin, "deadline": deadline, "start_below": start_below,
            }
        ),
        *job_flags.sensitive(sensitive),
        *job_flags.time_limit(time),
        *job_flags.labels(labels),
        *job_flags.variables(env),
        *job_flags.environment(environment),
        *job_flags.data(data),
        *job_flags.checkpoint(checkpoint),
        *job_flags.outputs(outputs),
        *job_flags.constraints(constraints),
        *job_flags.values(values),
    ]  # fmt: skip
    if upload is not None:
        overrides.append(Override("code", json.dumps(upload), f"--upload {upload}"))
    job_flags.refuse_repeats(overrides)
    if upload is not None and no_upload:
        raise typer.BadParameter("give --upload DIR or --no-upload, not both")
    spec = _spec(file, command, overrides)
    spec = in_its_folder(spec, file, overrides, no_upload=no_upload)

    async def submit_and_wait(api: "Longshore") -> JobResult | None:
        from longshore.client.control_worker import why_not_taken_up

        if dry_run or most is not None or (out().is_terminal and not (quiet or as_json)):
            await say_forecast(api, spec, most, dry_run=dry_run, yes=yes, as_json=as_json)
        if dry_run:
            await say_code(api, spec, include or (), script)
            return None
        sent = await with_code(
            api, spec, include or (), silent=as_json or quiet, anew=anew, script=script
        )
        submission = await api.submit(sent, key=key, held=hold)
        with says_that_it_goes_on(submission.job_id):
            not_taken_up = await why_not_taken_up(api.temporal, submission.job_id)
        if not_taken_up:
            warnings = (*submission.warnings, not_taken_up)
            submission = submission.model_copy(update={"warnings": warnings})
        _say_submitted(submission, spec, hold, as_json, quiet, waits=wait or follow)
        if not (wait or follow):
            return None
        with says_that_it_goes_on(submission.job_id):
            if follow:
                return await follow_with_logs(api, submission.job_id, quiet)
            result = await follow_job(api, submission.job_id, _screen(as_json or quiet))
            if not (as_json or quiet):
                await say_stderr_tail(api, result)
            return result

    result = call(submit_and_wait)
    if result is None:
        return
    if as_json:
        print_json(result)
    raise typer.Exit(exit_code_of(result))


def _spec(file: str | None, command: Sequence[str], overrides: list[Override]) -> JobSpec:
    """Return the job to submit. Raises SpecError, and BadParameter where nothing is given."""
    if command:
        overrides = [*overrides, Override("command", json.dumps(command), "the command after --")]
    if file == "-":
        return load_document(read_stdin(), "stdin", JobSpec, overrides)
    if file is not None:
        return read_document(file, JobSpec, overrides)
    fields = {override.field for override in overrides}
    if not fields & {"command", "image"}:
        raise typer.BadParameter(
            "give a job file (- for stdin), or a command after --, as in: "
            "longshore submit --gpus 1 -- python train.py"
        )
    if "name" not in fields:
        overrides = [Override("name", json.dumps(_name_of(command)), "the name"), *overrides]
    try:
        return load_document("{}", "job", JobSpec, overrides)
    except SpecError as error:  # there is no file whose lines would help
        problems = tuple(problem.removeprefix("job:1: ") for problem in error.problems)
        raise SpecError("job", problems) from None


def in_its_folder(
    spec: JobSpec, file: str | None, overrides: list[Override], *, no_upload: bool
) -> JobSpec:
    """Return the job with the folders that it names as absolute ones, and with the rows of its
    array's table: nodes do not know what is ours.

    A relative path is seen from the job file that names it, and otherwise from here.
    """
    spec = with_table(spec, _base(file, overrides, "array"))
    return with_folder(
        spec, no_upload=no_upload, workdir_base=_base(file, overrides, "workdir"),
        code_base=_base(file, overrides, "code"), source=f"job {spec.name}",
    )  # fmt: skip


def _base(file: str | None, overrides: list[Override], field: str) -> Path:
    """Return where a relative path of a field begins: at the file that names it, or here."""
    in_file = file not in (None, "-") and all(
        over.field.partition(".")[0] != field for over in overrides
    )
    return Path(file or "").parent if in_file else Path()


def _name_of(command: Sequence[str]) -> str:
    """Return a name for a job without one: its program, or the script that it runs."""
    script = next((word for word in command[1:] if Path(word).suffix in (".py", ".sh")), None)
    name = Path(script).stem if script else Path(command[0]).name if command else "job"
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower())[:50].strip("._-") or "job"


def _say_submitted(
    submission: Submission, spec: JobSpec, held: bool, as_json: bool, quiet: bool, *, waits: bool
) -> None:
    for warning in submission.warnings:
        warn(warning)
    if as_json:
        if not waits:
            print_json(submission)
        return
    say(submission.job_id)
    if quiet:
        return
    if not submission.created:
        note(f"It had been submitted before: the same tenant, name {spec.name} and key.")
    begins_at = spec.begins_at(datetime.now(UTC)) if submission.created else None
    if not waits and begins_at is not None:
        begins = f"It begins at {said_at(begins_at, datetime.now(UTC))} at the earliest"
        then = f"release {submission.job_id}" if held else f"why {submission.job_id}"
        note(f"{begins}{', and is held' if held else ''}. Next: longshore {then}")
    elif not waits and held:
        note(f"It is held. Next: longshore release {submission.job_id}")
    elif not waits and submission.warnings:
        note(f"Next: longshore why {submission.job_id}")
    elif not waits and spec.array is not None:
        note(f"Next: longshore job {submission.job_id}, or longshore watch {submission.job_id}")
    elif not waits:
        job_id = submission.job_id
        note(f"Next: longshore watch {job_id}, or longshore logs -f {job_id}")


def _screen(silent: bool) -> Screen:
    if silent:
        return Silent()
    console = out()
    return Panel(console) if console.is_terminal else Lines(print_now)


def print_now(line: str) -> None:
    say(line)


async def follow_with_logs(api: "Longshore", job_id: str, silent: bool) -> JobResult:
    """Copy what the job writes to stdout and stderr, attempt after attempt, until it has ended."""
    screen: Screen = Silent() if silent else Lines(note)
    copies: dict[int, _Copy] = {}

    async def copy_every_attempt() -> None:
        async for status in api.watch(job_id):
            for record in status.attempts:
                if record.attempt not in copies:
                    copies[record.attempt] = _Copy(api, job_id, record.attempt)

    attempts = asyncio.create_task(copy_every_attempt())
    try:
        result = await follow_job(api, job_id, screen)
        # All is stored by now. What has not begun waits for a workflow that has ended and may be
        # slow to answer: the store is asked in its place.
        attempts.cancel()
        for attempt in range(1, result.attempts + 1):
            copy = copies.get(attempt)
            if copy is None or not copy.begun:
                if copy:
                    copy.task.cancel()
                await _copy_stored(api, job_id, attempt)
        if begun := [copy.task for copy in copies.values() if copy.begun]:
            await asyncio.wait(begun, timeout=_LAST_LOGS)
        return result
    finally:
        for task in (attempts, *(copy.task for copy in copies.values())):
            task.cancel()


class _Copy:
    """What one attempt writes on its way to our own streams."""

    def __init__(self, api: "Longshore", job_id: str, attempt: int) -> None:
        self.begun = False
        output = api.ordered_logs(job_id, attempt=attempt, follow=True)
        self.task = asyncio.create_task(copy_output(output, wrote=self._has_begun))

    def _has_begun(self) -> None:
        self.begun = True


async def _copy_stored(api: "Longshore", job_id: str, attempt: int) -> None:
    """Copy what is stored of an attempt; where it cannot be read, the job has ended as it has."""
    try:
        await copy_output(api.ordered_logs(job_id, attempt=attempt))
    except LongshoreError as error:
        note(f"note: what it wrote in attempt {attempt} cannot be read: {error}")
