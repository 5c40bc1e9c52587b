"""A time axis with bars, as HTML: positions are shares of the axis, in percent."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from longshore.console.escaping import escape
from longshore.models.block import BlockState
from longshore.models.spending import BlockDetail, BlockUse
from longshore.models.text import count, span

COLOURS = 8
_LAST_TICK, _LAST_SECOND, _NARROWEST = 96.0, 92.0, 3.5
"""Percent of the axis: no time is written after the one, none with its seconds after the other,
no name in a bar below the last."""
MOST_TICKS, _MOST_SECONDS = 8, 4
_STEPS = tuple(
    timedelta(minutes=each)
    for each in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080, 43200)
)

_SHORT_STEPS = tuple(timedelta(seconds=each) for each in (1, 2, 5, 10, 15, 30))


@dataclass(frozen=True)
class Axis:
    """From when to when, and what the time is now."""

    since: datetime
    until: datetime
    now: datetime

    def at(self, moment: datetime) -> float:
        """Return where a moment is, in percent of the axis, within it."""
        share = (moment - self.since) / (self.until - self.since)
        return round(min(max(share, 0.0), 1.0) * 100, 3)

    def shows(self, since: datetime | None, until: datetime | None) -> bool:
        """Return whether a span reaches into the axis."""
        return (until is None or until > self.since) and (since is None or since < self.until)


def axis_of(blocks: Sequence[BlockDetail], now: datetime, length: timedelta | None) -> Axis:
    """Return an axis on which all blocks are seen, or one of `length`, most of it past."""
    if length is not None:
        return Axis(now - length * 0.7, now + length * 0.3, now)
    starts = [block.starts_at for block in blocks if block.starts_at]
    ends = [end for block in blocks if (end := _end(block))]
    since, until = min([*starts, now]), max([*ends, now])
    margin = max((until - since) * 0.02, timedelta(seconds=30))
    return Axis(since - margin, until + margin, now)


def ruler_html(axis: Axis) -> str:
    """Return the times along the axis, and now."""
    length = axis.until - axis.since
    short = next((each for each in _SHORT_STEPS if length / each <= _MOST_SECONDS), None)
    step = short or next((each for each in _STEPS if length / each <= MOST_TICKS), _STEPS[-1])
    first = datetime.fromtimestamp(-(-axis.since.timestamp() // _s(step)) * _s(step), UTC)
    ticks = ""
    while axis.at(first) < (_LAST_SECOND if short else _LAST_TICK):
        days = step >= timedelta(days=1) or (first.hour, first.minute) == (0, 0)
        words = f"{first:%d %b}" if days else f"{first:%H:%M:%S}" if short else f"{first:%H:%M}"
        ticks += f'<span class="tick" style="left:{axis.at(first)}%">{words}</span>'
        first += step
    now = ""
    if axis.shows(axis.now, axis.now):
        now = f'<span class="now" style="left:{axis.at(axis.now)}%">now</span>'
    return f'<div class="ruler" aria-hidden="true">{ticks}{now}</div>'


def lanes_html(block: BlockDetail, axis: Axis) -> str:
    """Return a block on the axis: its span, a lane for each node with the jobs on it, and now."""
    names = [each.name for each in block.machines] or sorted({use.node_id for use in block.uses})
    lanes = "".join(
        _lane(block, name, [use for use in block.uses if use.node_id == name], axis)
        for name in names
    )
    if not lanes:
        lanes = f'<div class="lane">{_span(block, axis)}</div>'
    now = ""
    if axis.shows(axis.now, axis.now):
        now = f'<span class="now-line" style="left:{axis.at(axis.now)}%"></span>'
    return (
        f'<div class="lanes" role="img" aria-label="{escape(_in_words(block))}">{lanes}{now}</div>'
    )


def colour_of(job_id: str) -> str:
    """Return the class of a job's colour: the same job, the same colour."""
    return f"c{zlib.crc32(job_id.encode()) % COLOURS}"


def _lane(block: BlockDetail, node: str, uses: Sequence[BlockUse], axis: Axis) -> str:
    shown = [use for use in uses if axis.shows(use.started_at, use.ended_at)]
    rows = _apart(shown)
    height = max(len(rows), 1)
    bars = "".join(_bar(use, row, axis) for row, in_row in enumerate(rows) for use in in_row)
    return (
        f'<div class="lane" style="--rows:{height}" title="{escape(node)}">{_span(block, axis)}'
        f"{bars}</div>"
    )


def _span(block: BlockDetail, axis: Axis) -> str:
    """Return the time that was bought; what is still to come is lighter."""
    end = _end(block)
    if block.starts_at is None or end is None or not axis.shows(block.starts_at, end):
        return ""
    left, right = axis.at(block.starts_at), axis.at(end)
    over = " over" if block.state is BlockState.ENDED else ""
    ends = "ended" if over else "expires"
    return (
        f'<span class="bought{over}" style="left:{left}%;width:{right - left:.3f}%" '
        f'title="{ends} {end:%d %b %H:%M:%S} UTC"></span>'
    )


def _bar(use: BlockUse, row: int, axis: Axis) -> str:
    end = use.ended_at or axis.now
    left, right = axis.at(use.started_at), axis.at(end)
    told = (
        f"{use.job}: {count(use.gpus, 'GPU')}, {span(end - use.started_at)}"
        f"{'' if use.ended_at else ' so far'}, tenant {use.tenant}"
    )
    running = "" if use.ended_at else " running"
    name = f"{escape(use.job)} <small>{use.gpus:g}</small>" if right - left > _NARROWEST else ""
    return (
        f'<span class="use {colour_of(use.job_id)}{running}" title="{escape(told)}" style="'
        f'left:{left}%;width:{max(right - left, 0.15):.3f}%;--row:{row}">'
        f"{name}</span>"
    )


def _apart(uses: Iterable[BlockUse]) -> list[list[BlockUse]]:
    """Return the uses in rows in which none lies over another, as few as there can be."""
    rows: list[list[BlockUse]] = []
    for use in sorted(uses, key=lambda each: (each.started_at, each.job_id)):
        for row in rows:
            before = row[-1].ended_at
            if before is not None and before <= use.started_at:
                row.append(use)
                break
        else:
            rows.append([use])
    return rows


def _in_words(block: BlockDetail) -> str:
    jobs = sorted({use.job for use in block.uses})
    ran = f"{count(len(jobs), 'job')}: {', '.join(jobs[:8])}" if jobs else "no job yet"
    return f"Block {block.id} over time, {ran}"


def _end(block: BlockDetail) -> datetime | None:
    return block.ended_at or block.ends_at


def _s(length: timedelta) -> float:
    return length.total_seconds()
