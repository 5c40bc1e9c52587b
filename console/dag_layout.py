"""Where the boxes of a DAG's graph stand, and which way its lines go: past boxes, through none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean

from longshore.models.dag_edges import Edge
from longshore.models.dag_view import DagJobView

WIDTH, HEIGHT = 150, 34
"""Of a box."""
MARGIN = 8
_STEP_X, _STEP_Y = 200, 50
_LANES, _STEP_LANE = 4, 10
"""Lines in a place of a box at most, and how far from each other."""


@dataclass(frozen=True, eq=False)
class _Node:
    """A box, or a lane: where lines of the same condition to one job pass a column together."""

    column: int
    name: str
    """The job itself, or the one that the lines of a lane lead to."""
    edge: Edge | None = None
    """Of a lane."""


@dataclass(frozen=True)
class Line:
    """A line from a column to the next, alone or as a part of an edge that passes columns."""

    path: str
    to: str
    """The job that its edge leads to."""
    edge: Edge


@dataclass(frozen=True)
class Layout:
    boxes: dict[str, tuple[int, int]]
    """The corner of each, by job."""
    lines: tuple[Line, ...]
    width: int
    height: int


def layout(steps: Sequence[DagJobView]) -> Layout:
    """Lay out a graph from left to right, its jobs given upstream first: each a column further
    right than all that it comes after, and in its column about as high as these."""
    columns: dict[str, int] = {}
    for step in steps:
        columns[step.name] = max((columns[up] + 1 for up in step.after), default=0)
    boxes = {step.name: _Node(columns[step.name], step.name) for step in steps}
    links = [link for step in steps for link in _links(step, boxes)]
    before: dict[_Node, list[_Node]] = {box: [] for box in boxes.values()}
    for start, end, _ in links:
        before.setdefault(end, []).append(start)
    there: dict[int, list[_Node]] = {}
    for node in before:  # boxes first: they stand above lanes that come from as high
        there.setdefault(node.column, []).append(node)
    middle: dict[_Node, float] = {}
    for _, nodes in sorted(there.items()):
        nodes.sort(key=lambda node: fmean([middle[each] for each in before[node]] or [0]))
        middle |= _middles(nodes)
    corners = {name: (_left(box), int(middle[box]) - HEIGHT // 2) for name, box in boxes.items()}
    lines = tuple(Line(_path(start, end, middle), end.name, edge) for start, end, edge in links)
    width = MARGIN + max(columns.values()) * _STEP_X + WIDTH + MARGIN
    lowest = max(y + (0 if node.edge else HEIGHT / 2) for node, y in middle.items())
    return Layout(corners, lines, width, int(lowest) + MARGIN)


def _links(step: DagJobView, boxes: Mapping[str, _Node]) -> Iterator[tuple[_Node, _Node, Edge]]:
    """Yield the lines from column to column that lead to a job; what edges share is there once."""
    end = boxes[step.name]
    alike: dict[Edge, list[_Node]] = {}
    for up, edge in step.after.items():
        alike.setdefault(edge, []).append(boxes[up])
    for edge, starts in alike.items():
        first = min(start.column for start in starts) + 1
        way = [*(_Node(at, step.name, edge) for at in range(first, end.column)), end]
        for start in starts:
            yield start, way[start.column + 1 - first], edge
        for lane, following in pairwise(way):
            yield lane, following, edge


def _middles(nodes: Sequence[_Node]) -> Iterator[tuple[_Node, float]]:
    """Yield how high each of a column is: a box has a place, and so have some lanes together."""
    top = MARGIN + HEIGHT / 2
    for is_box, group in groupby(nodes, key=lambda node: node.edge is None):
        members = list(group)
        size = 1 if is_box else _LANES
        for at in range(0, len(members), size):
            together = members[at : at + size]
            for number, node in enumerate(together):
                yield node, top + (number - (len(together) - 1) / 2) * _STEP_LANE
            top += _STEP_Y


def _left(node: _Node) -> int:
    return MARGIN + node.column * _STEP_X


def _path(start: _Node, end: _Node, middle: Mapping[_Node, float]) -> str:
    """Return a line that is straight where it passes a column, and bends between two."""
    x1, x2 = _left(start) + WIDTH, _left(end)
    y1, y2 = (f"{middle[node]:g}" for node in (start, end))
    bend = (x1 + x2) // 2
    begin = f"M{_left(start)} {y1} H{x1}" if start.edge else f"M{x1} {y1}"
    return f"{begin} C{bend} {y1} {bend} {y2} {x2} {y2}"
