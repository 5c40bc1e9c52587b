"""How schedules look in the terminal."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.terminal import Text, a_table, heading, pairs, width_of_ids
from longshore.models.schedule import (
    Kind,
    OddDay,
    Oddity,
    ScheduleCreation,
    ScheduleRun,
    ScheduleTimes,
    ScheduleView,
)
from longshore.models.text import NONE, ago, count, format_duration, listed, span

_STYLES = {"SUCCEEDED": "bold green", "FAILED": "bold red", "CANCELLED": "dim"}
_SHOWN_TIMES, _SHOWN_DAYS = 5, 6


def schedules_table(schedules: Sequence[ScheduleView], now: datetime, width: int) -> Table:
    """Return a line for each schedule."""
    # A name of a usual length stays in one piece, to be copied, whatever the others need.
    is_long = any(len(each.name) > width_of_ids(width) for each in schedules)
    table = a_table(
        ["schedule", "starts", "when", "next", "last", "reason"],
        fold=("starts", "when", "reason", *(("schedule",) if is_long else ())),
    )
    for each in schedules:
        soonest = each.next[0] if each.next else None
        next_one = "paused" if each.paused else ago(soonest, now) if soonest else "never"
        table.add_row(
            each.name, f"{each.kind.value} {each.what}", when(each.times), next_one,
            _last(each, now), Text(remark(each), no_wrap=True, overflow="ellipsis"),
        )  # fmt: skip
    return table


def when(times: ScheduleTimes) -> str:
    """Return ``0 2 * * * Europe/Berlin`` or ``every 6h + 1h``."""
    if times.every is not None:
        offset = f" + {format_duration(times.offset)}" if times.offset else ""
        return f"every {format_duration(times.every)}{offset}"
    return f"{'; '.join(times.cron)} {times.timezone or 'UTC'}"


def remark(schedule: ScheduleView) -> str:
    """Return what is worth knowing of a schedule in a list."""
    if schedule.trouble:
        return schedule.trouble
    if schedule.paused and schedule.note:
        return schedule.note
    if schedule.never_succeeds:
        return "none of its last runs has succeeded"
    return f"{count(schedule.buffered, 'run')} buffered" if schedule.buffered else ""


def _last(schedule: ScheduleView, now: datetime) -> RenderableType:
    if not schedule.runs:
        return NONE
    last = schedule.runs[0]
    return Text.assemble(_state(last), f" {ago(last.started_at, now)}")


def _state(run: ScheduleRun) -> Text:
    return Text(run.state, style=_STYLES.get(run.state, "green"))


def at_place(instant: datetime, times: ScheduleTimes, *, seconds: bool = True) -> str:
    """Return a time in the schedule's own zone: ``2026-11-25 02:00:00 CET``."""
    try:
        zone = ZoneInfo(times.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone = ZoneInfo("UTC")
    form = "%Y-%m-%d %H:%M:%S %Z" if seconds else "%Y-%m-%d %H:%M %Z"
    return f"{instant.astimezone(zone):{form}}"


def schedule_screen(schedule: ScheduleView, now: datetime) -> RenderableType:
    """Return a schedule in full."""
    paused = Text("  PAUSED", style="yellow") if schedule.paused else Text()
    facts: list[tuple[str, RenderableType]] = [
        ("starts", f"{schedule.kind.value} {schedule.what}"),
        ("when", when(schedule.times)),
        ("overlap", schedule.overlap.value),
        ("catch-up", format_duration(schedule.catch_up)),
        ("tenant", schedule.tenant),
        ("made", f"{ago(schedule.created_at, now)}{_by(schedule)}"),
        ("runs", counts(schedule)),
    ]
    if schedule.pause_on_failure:
        facts.insert(4, ("at a failure", "is paused"))
    if schedule.note:
        facts.append(("note", schedule.note))
    if schedule.trouble:
        facts.append(("trouble", schedule.trouble))
    return Group(
        Text.assemble((schedule.name, "bold"), paused),
        Text(),
        pairs(facts),
        Text(),
        heading("Next, were it not paused" if schedule.paused else "Next"),
        next_lines(schedule.next, schedule.times, now),
        Text(),
        heading("Last runs"),
        _runs_table(schedule, now) if schedule.runs else Text("none yet", style="dim"),
        Text(),
        Text(f"Next: {_next_step(schedule)}", style="dim"),
    )


def _by(schedule: ScheduleView) -> str:
    changed = schedule.updated_at
    later = f", last changed {changed:%Y-%m-%d %H:%M} UTC" if changed else ""
    return f"{f' by {schedule.owner}' if schedule.owner else ''}{later}"


def counts(schedule: ScheduleView) -> str:
    """Return ``12 started, 1 left out for an overlap``: what the server has counted."""
    said = [
        f"{schedule.started:,} started",
        f"{schedule.skipped:,} left out for an overlap" if schedule.skipped else "",
        f"{schedule.missed:,} missed" if schedule.missed else "",
        f"{schedule.buffered:,} buffered" if schedule.buffered else "",
        f"{schedule.dropped:,} dropped from the buffer" if schedule.dropped else "",
    ]
    return ", ".join(filter(None, said))


def next_lines(
    next_ones: Sequence[datetime], times: ScheduleTimes, now: datetime
) -> RenderableType:
    """Return the next times, in the zone of the schedule."""
    if not next_ones:
        return Text("never", style="dim")
    table = a_table(["", ""])
    table.show_header = False
    for instant in next_ones[:_SHOWN_TIMES]:
        table.add_row(at_place(instant, times), Text(ago(instant, now), style="dim"))
    return table


def _runs_table(schedule: ScheduleView, now: datetime) -> Table:
    table = a_table(["due", schedule.kind.value, "state", "took", "reason"], right=("took",),
                    fold=("reason",))  # fmt: skip
    for run in schedule.runs:
        took = max((run.ended_at or now) - run.started_at, timedelta(0))
        table.add_row(
            at_place(run.at, schedule.times, seconds=False), run.id, _state(run),
            span(took) if run.ended_at or not run.ended else "",
            Text(run.reason, no_wrap=True, overflow="ellipsis"),
        )  # fmt: skip
    return table


def _next_step(schedule: ScheduleView) -> str:
    last = schedule.runs[0] if schedule.runs else None
    if last is not None and last.state == "FAILED":
        why = "longshore why" if schedule.kind is Kind.JOB else "longshore dag show"
        return f"{why} {last.id}"
    if last is not None and not last.ended:
        watch = "longshore watch" if schedule.kind is Kind.JOB else "longshore dag watch"
        return f"{watch} {last.id}"
    if schedule.paused:
        return f"longshore schedule resume {schedule.name}"
    return f"longshore schedule trigger {schedule.name}"


def creation_lines(answer: ScheduleCreation, times: ScheduleTimes) -> list[str]:
    """Return what is told of a schedule that was made, or would be."""
    what = f"schedule {answer.name}"
    first = (
        f"{what} can be made: {when(times)}" if answer.dry_run
        else f"{what} is made: {when(times)}" if answer.created
        else f"{what} has other content now: {when(times)}" if answer.replaced
        else f"{what} is there already, with the same content"
    )  # fmt: skip
    shown = answer.next if answer.dry_run else answer.next[:_SHOWN_TIMES]
    return [first, *(f"  {at_place(each, times)}" for each in shown)]


def odd_day_lines(days: Sequence[OddDay]) -> list[str]:
    """Return a line for each of the next days on which the clock makes the times odd."""
    lines = [_odd_day(each) for each in days[:_SHOWN_DAYS]]
    if len(days) > _SHOWN_DAYS:
        lines.append(f"and {count(len(days) - _SHOWN_DAYS, 'more such day')}; --json has all")
    return lines


def _odd_day(day: OddDay) -> str:
    times = listed(day.times, 3)
    words = {
        Oddity.NEVER: f"no run at {times}: the clock changes",
        Oddity.TWICE: f"a second run at {times}: the clock changes",
        Oddity.ONCE: f"one run at {times}, which comes twice: the clock changes",
    }
    return f"{day.day:%Y-%m-%d}: {words[day.oddity]}"
