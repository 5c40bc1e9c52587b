"""`longshore schedule`: jobs and DAGs that start again and again."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from longshore.client.calls import call
from longshore.client.code_options import INCLUDE, NO_UPLOAD, with_code
from longshore.client.terminal import (
    JSON,
    note,
    note_simulated,
    now,
    out,
    print_json,
    say,
    show,
    warn,
)
from longshore.models.errors import SpecError
from longshore.models.schedule import (
    CATCH_UP,
    Overlap,
    ScheduleCreation,
    ScheduleTimes,
    ScheduleView,
)
from longshore.models.settings import Settings
from longshore.models.text import count, format_duration, listed
from longshore.models.units import parse_duration
from longshore.models.visible import shown

if TYPE_CHECKING:
    from longshore.client.api import Longshore

schedule_app = typer.Typer(
    help="Start jobs and DAGs repeatedly, by cron lines or at an interval.",
    no_args_is_help=True,
)

NAME = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
REASON = Annotated[str, typer.Option(help="Why; kept with the schedule.")]
_ORPHANS = (
    "terminate-other is not to be had: a run that is terminated cannot stop its job, which would "
    "go on beside the next. cancel-other stops it with its grace"
)
_MOST_NAMED = 3


def register(app: typer.Typer) -> None:
    app.add_typer(schedule_app, name="schedule", rich_help_panel="Jobs")


def _overlap(text: str | None) -> Overlap | None:
    if text is None:
        return None
    if text == "terminate-other":
        raise typer.BadParameter(_ORPHANS)
    try:
        return Overlap(text)
    except ValueError:
        known = ", ".join(each.value for each in Overlap)
        raise typer.BadParameter(f"{shown(text)} is none of {known}") from None


def _duration(text: str, option: str) -> timedelta:
    try:
        found = parse_duration(text)
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(f"{option} {shown(text)}: {error}") from None
    if not isinstance(found, timedelta):
        raise typer.BadParameter(f"{option} {shown(text)}: give a duration, such as 6h or 1h30m")
    return found


@schedule_app.command()
def create(
    name: NAME,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Job file or DAG file (YAML or JSON); - reads stdin."),
    ],
    cron: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINE",
            help="Minute, hour, day, month, day of the week (and year), or @daily. Repeatable.",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="An interval, e.g. 6h; at least one minute."),
    ] = None,
    offset: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="With --every: delay after each multiple of the interval."
        ),
    ] = "0s",
    timezone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE", help="Time zone of the cron lines, e.g. Europe/Berlin (default: UTC)."
        ),
    ] = None,
    overlap: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="While a run has not ended: skip the next, buffer-one, buffer-all, cancel-other, "
            "or allow-all.",
        ),
    ] = Overlap.SKIP.value,
    catch_up: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How late a run may start after an outage; later ones are skipped.",
        ),
    ] = format_duration(CATCH_UP),
    pause_on_failure: Annotated[
        bool, typer.Option("--pause-on-failure", help="Pause it after a run has failed.")
    ] = False,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the schedule of this name; a pause stays.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the next ten times; create nothing.")
    ] = False,
    as_json: JSON = False,
    no_upload: NO_UPLOAD = False,
    include: INCLUDE = None,
) -> None:
    """Create a schedule: a copy of a job or a DAG, and when it starts.

    longshore schedule create nightly job.yaml --cron '0 2 * * *' --timezone Europe/Berlin

    longshore schedule create sync dag.yaml --every 6h

    Names the days of the next year on which a change of the clock leaves a run out or doubles it.
    """
    from longshore.client.schedule_file import read_scheduled
    from longshore.client.schedule_view import creation_lines, odd_day_lines

    policy = _overlap(overlap)
    assert policy is not None
    times = ScheduleTimes(
        cron=tuple(cron or ()), every=None if every is None else _duration(every, "--every"),
        offset=_duration(offset, "--offset"), timezone=timezone,
    )  # fmt: skip
    late = _duration(catch_up, "--catch-up")
    spec = read_scheduled(file, Settings().most_dag_jobs, no_upload=no_upload)

    async def make(api: "Longshore") -> ScheduleCreation:
        sent = spec
        if not dry_run:
            sent = await with_code(api, spec, include or (), silent=as_json)
        return await api.create_schedule(
            name, sent, times, overlap=policy, catch_up=late, pause_on_failure=pause_on_failure,
            paused=paused, replace=replace, dry_run=dry_run,
        )  # fmt: skip

    answer = call(make)
    for warning in answer.warnings:
        warn(warning)
    if as_json:
        return print_json(answer)
    for line in creation_lines(answer, times):
        say(line)
    for line in odd_day_lines(answer.odd_days):
        warn(line)
    if answer.odd_days:
        note("In UTC (no --timezone), or with --every, no change of the clock matters.")
    if not dry_run:
        note(f"Next: longshore schedule show {name}, or longshore schedule trigger {name}")
    return None


@schedule_app.command(name="list")
def list_schedules(as_json: JSON = False) -> None:
    """List schedules, with the next and the last run of each."""
    from longshore.client.schedule_view import schedules_table

    found = call(lambda api: api.schedules())
    if as_json:
        return print_json(found)
    if not found:
        return note(
            "No schedule. Make one: longshore schedule create NAME FILE --cron '0 2 * * *'"
        )
    show(schedules_table(found, now(), out().width))
    note_simulated(any(each.simulated for each in found))
    return None


@schedule_app.command(name="show")
def show_schedule(
    name: NAME,
    spec: Annotated[
        bool, typer.Option("--spec", help="Also print the job or DAG that it starts.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Show a schedule: its next times, its last runs, and the skipped ones."""
    from longshore.client.schedule_view import schedule_screen

    async def ask(api: "Longshore") -> tuple[ScheduleView, dict[str, object] | None]:
        found = await api.schedule(name)
        given = await api.schedule_spec(name) if spec else None
        return found, given and given.model_dump(mode="json", exclude_defaults=True)

    found, given = call(ask)
    if as_json:
        return print_json({**found.model_dump(mode="json"), "spec": given} if spec else found)
    show(schedule_screen(found, now()))
    note_simulated(found.simulated)
    if given is not None:
        import yaml

        show("", yaml.safe_dump(given, sort_keys=False, allow_unicode=True).rstrip())
    return None


@schedule_app.command()
def pause(name: NAME, reason: REASON = "", as_json: JSON = False) -> None:
    """Pause a schedule; running ones continue."""
    changed = call(lambda api: api.pause_schedule(name, reason))
    if as_json:
        return print_json({"name": name, "paused": True, "changed": changed})
    say(f"{name} {'is' if changed else 'was already'} paused; `longshore schedule resume {name}`")
    return None


@schedule_app.command()
def resume(name: NAME, reason: REASON = "", as_json: JSON = False) -> None:
    """Resume a schedule; runs that were due in the meantime are not made up for."""
    changed = call(lambda api: api.resume_schedule(name, reason))
    if as_json:
        return print_json({"name": name, "paused": False, "changed": changed})
    say(f"{name} goes on" if changed else f"{name} was not paused")
    return None


@schedule_app.command()
def trigger(
    name: NAME,
    overlap: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help="Overlap policy of this run (default: the schedule's)."
        ),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Start a run now, even if the schedule is paused."""
    policy = _overlap(overlap)

    async def ask(api: "Longshore") -> tuple[str | None, str]:
        answer = await api.trigger_schedule(name, overlap=policy)
        return answer.id, (await api.schedule(name)).kind.value

    started, kind = call(ask)
    if as_json:
        return print_json({"name": name, "id": started, "kind": kind})
    if started is None:
        note(f"It begins after the run that has not ended: longshore schedule show {name}")
        return None
    say(started)
    watch = "longshore watch" if kind == "job" else "longshore dag watch"
    note(f"Next: {watch} {started}")
    return None


@schedule_app.command()
def backfill(
    name: NAME,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="First time, e.g. 2026-11-01.")
    ],
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="Last time; a day counts whole (default: now)."),
    ] = None,
    overlap: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="How runs overlap: one after the other, or all at once with allow-all.",
        ),
    ] = Overlap.BUFFER_ALL.value,
    again: Annotated[
        bool, typer.Option("--again", help="Also rerun times that have succeeded, under new ids.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the times; start nothing.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Start runs for past times, as if the schedule had existed then.

    A TIME without a zone is one of the schedule's. Times that have succeeded are refused.
    """
    policy = _overlap(overlap)
    assert policy is not None

    async def ask(api: "Longshore") -> object:
        zone = ZoneInfo((await api.schedule(name)).times.timezone or "UTC")
        first = _instant(start, "--from", zone, last=False)
        until = now() if end is None else _instant(end, "--to", zone, last=True)
        return await api.backfill_schedule(
            name, first, min(until, now()) if _is_today(end, zone) else until,
            overlap=policy, again=again, dry_run=dry_run,
        )  # fmt: skip

    answer = call(ask)
    if as_json:
        return print_json(answer)
    from longshore.models.schedule import ScheduleBackfill

    assert isinstance(answer, ScheduleBackfill)
    times = [f"{each:%FT%TZ}" for each in answer.times]
    if dry_run:
        for each in times:
            say(each)
        return None
    say(f"{name} runs {count(len(times), 'time')}: {listed(times, _MOST_NAMED)}")
    if answer.again:
        note(f"Again: {listed(answer.again, _MOST_NAMED)}")
    note(f"Next: longshore schedule show {name}")
    return None


@schedule_app.command()
def delete(name: NAME, as_json: JSON = False) -> None:
    """Delete a schedule; running ones continue, and waiting ones do not start."""
    running = call(lambda api: api.delete_schedule(name))
    if as_json:
        return print_json({"name": name, "running": running})
    say(f"{name} is deleted")
    if running:
        note(f"{listed(running, _MOST_NAMED)} {'goes' if len(running) == 1 else 'go'} on")
    return None


def _instant(text: str, option: str, zone: ZoneInfo, *, last: bool) -> datetime:
    """Return a time that somebody gave; of a day alone its first minute, or its last.

    Raises SpecError.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        why = f"{option} {shown(text)}: give a time as 2026-11-01 or 2026-11-01T02:00"
        raise SpecError("backfill", (why,)) from None
    if last and len(text) == len("2026-11-01"):
        found = found.replace(hour=23, minute=59, second=59)
    return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)


def _is_today(text: str | None, zone: ZoneInfo) -> bool:
    """Return whether the last time is this day as a whole, of which a part is to come."""
    return text == f"{now().astimezone(zone):%Y-%m-%d}"
