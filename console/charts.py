"""Options of the charts (Apache ECharts, which comes with NiceGUI).

They are drawn as SVG: the style sheet gives their text the colours of the page, light and dark.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from longshore.models.money import MICRO
from longshore.models.price import CountedLevel, PriceAnswer
from longshore.models.text import count

ASK, BID, LIMIT, FAINT = "#d9534a", "#2e9b57", "#c08a00", "rgba(128,140,155,.28)"
AVERAGE = "#4a86d8"
_FONT = {"fontSize": 11, "fontFamily": "system-ui, sans-serif"}

Options = dict[str, Any]


def depth(
    asks: Sequence[CountedLevel], bids: Sequence[CountedLevel], limit: int | None
) -> Options:
    """Return cumulative GPUs over the price: bids on the left, asks on the right."""
    prices = [each.level.price / MICRO for each in (*asks, *bids)] or [0.0]
    beyond = 0.04 * (max(prices) - min(prices) or max(prices))
    line = [] if limit is None else [{"xAxis": limit / MICRO}]
    return {
        **_base("GPUs", "value"),
        "xAxis": {
            **_axis("value"), "scale": True, "axisLabel": {**_FONT, "formatter": "${value}"},
        },
        "series": [
            {**_area("Bids", BID, _steps(bids, -beyond)[::-1]), "step": "start"},
            {
                **_area("Asks", ASK, _steps(asks, beyond)),
                "markLine": {
                    "symbol": "none", "silent": True, "animation": False, "data": line,
                    "lineStyle": {"color": LIMIT, "width": 2, "type": "dashed"},
                    "label": {**_FONT, "formatter": "limit", "position": "insideEndTop"},
                },
            },
        ],
    }  # fmt: skip


def depth_words(answer: PriceAnswer) -> str:
    """Return in words what the depth chart shows."""
    return (
        f"Depth of the book: {count(answer.ask_liquidity, 'GPU')} asked in "
        f"{len(answer.asks)} entries, "
        f"{count(answer.bid_liquidity, 'GPU')} bid in {len(answer.bids)}."
    )


def lines(
    series: Iterable[tuple[str, str, Sequence[tuple[datetime, int | None]]]],
    since: datetime,
    until: datetime,
) -> Options:
    """Return prices over time: a line for each name, colour and points."""
    prices = [
        {
            **_line(name, color), "step": "end", "showSymbol": len(points) < 3, "symbolSize": 5,
            "data": [
                [at.isoformat(), None if p is None else round(p / MICRO, 4)] for at, p in points
            ],
        }
        for name, color, points in series
    ]  # fmt: skip
    dollars = {"scale": True, "axisLabel": {**_FONT, "formatter": "${value}"}}
    return _over_time(dollars, prices, since, until)


class Counted(NamedTuple):
    """A curve of whole numbers over time."""

    name: str
    color: str
    points: Sequence[tuple[datetime, int | None]]
    of_bucket: bool = False
    """A point counts what happened since the one before; else it is how much there was then."""


def counts(curves: Iterable[Counted], since: datetime, until: datetime) -> Options:
    """Return numbers over time."""
    drawn = [
        {
            **_line(curve.name, curve.color), "symbolSize": 5,
            "showSymbol": sum(known is not None for _, known in curve.points) < 3,
            **(_PER_BUCKET if curve.of_bucket else {}),
            "data": [[at.isoformat(), number] for at, number in curve.points],
        }
        for curve in curves
    ]  # fmt: skip
    return _over_time({"min": 0, "minInterval": 1}, drawn, since, until)


_PER_BUCKET: Options = {"step": "start", "areaStyle": {"opacity": 0.25}}


def _line(name: str, color: str) -> Options:
    return {"name": name, "type": "line", "color": color, "lineStyle": {"width": 1.6}}


def _over_time(
    values: Options, series: Sequence[Options], since: datetime, until: datetime
) -> Options:
    return {
        **_base("", "time"),
        "useUTC": True,
        "xAxis": {
            **_axis("time"), "splitLine": {"show": False},
            "min": since.isoformat(), "max": until.isoformat(),
        },
        "yAxis": {**_axis("value"), **values},
        "grid": {"left": 52, "right": 16, "top": 34, "bottom": 26},
        "legend": {"top": 0, "left": 0, "itemWidth": 16, "itemHeight": 2, "icon": "rect",
                   "textStyle": _FONT},
        "series": series,
    }  # fmt: skip


def _base(unit: str, x_type: str) -> Options:
    return {
        "animation": False,
        "grid": {"left": 52, "right": 20, "top": 24, "bottom": 26},
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "backgroundColor": "transparent",
            "borderWidth": 0,
            "extraCssText": "background:var(--surface);color:var(--text);"
            "border:1px solid var(--line);box-shadow:none;font-size:12px",
            "axisPointer": {"type": "line", "lineStyle": {"color": FAINT}},
        },
        "xAxis": _axis(x_type),
        "yAxis": {**_axis("value"), "name": unit, "nameTextStyle": {**_FONT, "align": "right"}},
    }


def _axis(kind: str) -> Options:
    return {
        "type": kind,
        "axisLabel": {**_FONT, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": FAINT}},
        "axisTick": {"lineStyle": {"color": FAINT}},
        "splitLine": {"lineStyle": {"color": FAINT}},
    }


def _area(name: str, color: str, data: list[list[float]]) -> Options:
    return {
        **_line(name, color),
        "step": "end",
        "showSymbol": False,
        "areaStyle": {"color": color, "opacity": 0.14},
        "data": data,
    }


def _steps(levels: Sequence[CountedLevel], beyond: float) -> list[list[float]]:
    """Return the points of one side, from zero at the best price to `beyond` the worst."""
    if not levels:
        return []
    first = [levels[0].level.price / MICRO, 0]
    points = [[each.level.price / MICRO, each.cumulative] for each in levels]
    return [first, *points, [points[-1][0] + beyond, points[-1][1]]]
