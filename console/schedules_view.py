"""The pages /schedules and /schedules/NAME as HTML."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from urllib.parse import quote

from longshore.client.schedule_view import at_place, counts, remark
from longshore.client.schedule_view import when as in_words
from longshore.console.escaping import escape
from longshore.console.parts import cell, chip, facts, number, table, when
from longshore.models.schedule import Kind, ScheduleRun, ScheduleView
from longshore.models.text import ago, format_duration, span

PATH = "/schedules"


def list_html(schedules: Iterable[ScheduleView], now: datetime) -> str:
    """Return the table of schedules; each leads to its page, and its last run to that of its job
    or DAG."""
    heads = ("Schedule", "Starts", "When", "Next", "Last run", "State", "Reason")
    return table("Schedules", heads, (_row(each, now) for each in schedules))


def _row(schedule: ScheduleView, now: datetime) -> str:
    link = f'<a class="id" href="{PATH}/{quote(schedule.name)}">{escape(schedule.name)}</a>'
    last = schedule.runs[0] if schedule.runs else None
    run = f"{_link(last, schedule.kind, ago(last.started_at, now))}" if last else "–"
    return (
        f"<tr>{cell(link)}{cell(escape(f'{schedule.kind.value} {schedule.what}'), 'Starts')}"
        f"{cell(escape(in_words(schedule.times)), 'When')}"
        f"{cell(escape(_next(schedule, now)), 'Next')}{cell(run, 'Last run')}"
        f"{cell(chip(last.state) if last else '–', 'State')}"
        f"{cell(escape(remark(schedule)), folds=True)}</tr>"
    )


def _next(schedule: ScheduleView, now: datetime) -> str:
    if schedule.paused:
        return "paused"
    return ago(schedule.next[0], now) if schedule.next else "never"


def _link(run: ScheduleRun, kind: Kind, text: str) -> str:
    path = "/jobs" if kind is Kind.JOB else "/dags"
    return f'<a class="id" href="{path}/{quote(run.id)}">{escape(text)}</a>'


def head_html(schedule: ScheduleView) -> str:
    """Return a schedule in a few facts, and why it is paused."""
    pairs = [
        ("Starts", escape(f"{schedule.kind.value} {schedule.what}")),
        ("When", escape(in_words(schedule.times))),
        ("Overlap", escape(schedule.overlap.value)),
        ("Catch-up", format_duration(schedule.catch_up)),
        ("Tenant", escape(schedule.tenant)),
        ("Created (UTC)", when(schedule.created_at)),
        ("Runs", escape(counts(schedule))),
    ]
    if schedule.owner:
        pairs.insert(6, ("By", escape(schedule.owner)))
    if schedule.pause_on_failure:
        pairs.append(("At a failure", "is paused"))
    said = [schedule.note, schedule.trouble]
    return facts(pairs) + "".join(f'<p class="reason">{escape(each)}</p>' for each in said if each)


def next_html(schedule: ScheduleView, now: datetime) -> str:
    """Return the next times, in the schedule's zone."""
    rows = (
        f"<tr><td>{escape(at_place(each, schedule.times))}</td>"
        f"<td>{escape(ago(each, now))}</td></tr>"
        for each in schedule.next
    )
    return table("Next times", ("At", "In"), rows)


def runs_html(schedule: ScheduleView, now: datetime) -> str:
    """Return the last runs, newest first; each leads to its job or DAG."""
    kind = "Job" if schedule.kind is Kind.JOB else "DAG"
    rows = (_run(run, schedule, now) for run in schedule.runs)
    return table("Last runs", ("Due", kind, "State", "Took", "Reason"), rows, numbers=("Took",))


def _run(run: ScheduleRun, schedule: ScheduleView, now: datetime) -> str:
    took = max((run.ended_at or now) - run.started_at, timedelta(0))
    return (
        f"<tr>{cell(escape(at_place(run.at, schedule.times)))}"
        f"{cell(_link(run, schedule.kind, run.id))}{cell(chip(run.state), 'State')}"
        f"{number(span(took) if run.ended_at or not run.ended else '–', 'Took')}"
        f"{cell(escape(run.reason), folds=True)}</tr>"
    )
