"""The timeline of a DAG as HTML: for each job a bar of its wait, and one of each attempt."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from urllib.parse import quote

from longshore.console.escaping import escape
from longshore.console.lanes import Axis, ruler_html
from longshore.models.dag_view import DagJobView, DagView, StepState
from longshore.models.text import count, span

MOST_SHOWN = 200
"""Jobs of a DAG that has a timeline."""
_SHORTEST = timedelta(seconds=1)
_LABEL, _END = 13.0, 100.0
"""Percent of the axis: what a time needs to be written there on a phone, and where it ends."""


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
    grey = any(len(step.attempts) > 1 for step in steps)
    words = f"hatched: waits; full: runs{'; grey: an attempt before the last' if grey else ''}"
    head = f'<div class="about head"><small>{words}</small></div>'
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
        if len(step.attempts) > 1:
            told += f" in {count(len(step.attempts), 'attempt')}"
            bars += "".join(_attempts(step, axis, started, end))
        else:
            bars += _labelled(step, axis, submitted, started, end)
    name = escape(step.name)
    if step.job_id:
        name = f'<a class="id" href="/jobs/{quote(step.job_id)}">{name}</a>'
    return (
        f'<div class="about">{name}</div><div class="lanes" role="img" '
        f'aria-label="{escape(told)}"><div class="lane">{bars}</div></div>'
    )


def _attempts(step: DagJobView, axis: Axis, started: datetime, end: datetime) -> Iterator[str]:
    """Yield a bar for each attempt, and one for each wait between two."""
    before = started
    for each in step.attempts:
        # What the database of nodes and that of jobs say of an instant may be a moment apart.
        since, until = min(max(each.started_at, before), end), min(each.ended_at or end, end)
        until = max(until, since)
        last = each is step.attempts[-1]
        if since > before:
            yield _bar("wait", axis, before, since, "", f"waited {span(since - before)} again")
        how = step.step.value.lower() if last else "stopped"
        reason = f", {each.end_reason}" if each.end_reason else ""
        lasted = span(until - since)
        words = f"attempt {each.attempt}: {lasted}{reason}"
        wide = axis.at(until) - axis.at(since) >= _LABEL
        yield _bar(
            f"use ran {how}", axis, since, until, f"<small>{lasted}</small>" if wide else "", words
        )
        before = until
    if end > before and step.step is StepState.SUBMITTED:
        yield _bar("wait", axis, before, end, "", f"waits {span(end - before)} again")


def _labelled(
    step: DagJobView, axis: Axis, submitted: datetime, started: datetime, end: datetime
) -> str:
    """Return the bar of a run with how long it lasted: beside the bar where that is short."""
    ran, kind = span(end - started), f"use ran {step.step.value.lower()}"
    label = f"<small>{ran}</small>"
    left, right = axis.at(started), axis.at(end)
    if right - left >= _LABEL:
        return _bar(kind, axis, started, end, label)
    if right + _LABEL <= _END:
        beside = f'<span class="beside-bar" style="left:{right}%">{label}</span>'
    else:
        beside = (
            f'<span class="beside-bar before" style="right:{round(100 - axis.at(submitted), 3)}%">'
            f"{label}</span>"
        )
    return _bar(kind, axis, started, end, "") + beside


def _bar(
    kind: str, axis: Axis, since: datetime, until: datetime, html: str, words: str = ""
) -> str:
    left = axis.at(since)
    width = round(axis.at(until) - left, 3)
    title = f' title="{escape(words)}"' if words else ""
    return f'<span class="{kind}" style="left:{left}%;width:{width}%;--row:0"{title}>{html}</span>'
