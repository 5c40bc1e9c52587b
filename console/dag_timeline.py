"""The timeline of a DAG as HTML: for each job a bar of its wait, and one of its run."""

from datetime import datetime, timedelta
from urllib.parse import quote

from longshore.console.escaping import escape
from longshore.console.lanes import Axis, ruler_html
from longshore.models.dag import DagJobView, DagView
from longshore.models.text import span

MOST_SHOWN = 200
"""Jobs of a DAG that has a timeline."""
_SHORTEST = timedelta(seconds=1)


def timeline_html(dag: DagView, now: datetime) -> str:
    """Return when each submitted job waited and ran; nothing where none was, or where there are
    too many."""
    steps = [step for step in dag.steps if step.submitted_at]
    if not steps or len(dag.steps) > MOST_SHOWN:
        return ""
    # A job that is kept from before a retry began before the rest.
    since = min(step.submitted_at for step in steps if step.submitted_at)
    until = max(dag.ended_at or now, since + _SHORTEST)
    axis = Axis(since, until, now)
    rows = "".join(_row(step, axis, until) for step in steps)
    head = '<div class="about head"><small>hatched: waits; full: runs</small></div>'
    return f'<div class="timeline">{head}{ruler_html(axis)}{rows}</div>'


def _row(step: DagJobView, axis: Axis, until: datetime) -> str:
    submitted = step.submitted_at or until
    end = step.ended_at or until
    started = min(step.started_at or end, end)
    waited, ran = span(started - submitted), span(end - started)
    told = f"{step.name}: waited {waited}"
    bars = _bar("wait", axis, submitted, started, "")
    if step.started_at:
        told += f", {'ran' if step.ended_at else 'runs for'} {ran}"
        kind = f"use ran {step.step.value.lower()}"
        bars += _bar(kind, axis, started, end, f"<small>{ran}</small>")
    name = escape(step.name)
    if step.job_id:
        name = f'<a class="id" href="/jobs/{quote(step.job_id)}">{name}</a>'
    return (
        f'<div class="about">{name}</div><div class="lanes" role="img" '
        f'aria-label="{escape(told)}"><div class="lane">{bars}</div></div>'
    )


def _bar(kind: str, axis: Axis, since: datetime, until: datetime, html: str) -> str:
    left = axis.at(since)
    width = round(axis.at(until) - left, 3)
    return f'<span class="{kind}" style="left:{left}%;width:{width}%;--row:0">{html}</span>'
