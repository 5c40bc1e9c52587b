"""How a placement decision looks: candidates with their terms, GPUs as slots, refusals."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from models.node import Node
from models.placement import Candidate, Decision, JobRequest, PlacementKind
from models.units import format_duration, format_gb

_HEADINGS = ("node", "GPUs", "score", "util", "frag", "expiry", "provider")


def render_place(
    decision: Decision,
    job: JobRequest,
    now: datetime,
    nodes: Sequence[Node] = (),
    *,
    plain: bool = False,
) -> RenderableType:
    """Return the decision for a Rich console.

    `nodes` are what was decided on, to draw the GPUs that the job does not get. `plain` is for
    whatever is not a terminal: lines of text, no boxes, nothing cut off.
    """
    by_id = {node.id: node for node in nodes}
    rows = [_row(candidate, by_id.get(candidate.node_id)) for candidate in decision.candidates]
    refused = [(r.node_id, r.reason, r.code.value) for r in decision.rejections]
    if plain:
        return Text("\n".join(_plain_lines(decision, job, now, rows, refused)))
    parts: list[RenderableType] = [_headline(decision), Text(_job_line(job, now), style="dim")]
    if rows:
        parts += [Text(), _candidates_table(rows)]
    if refused:
        parts += [Text(), _refusals_table(refused)]
    return Group(*parts)


def slots(gpu_indices: Sequence[int], node: Node | None) -> str:
    """Return one character for each GPU: `#` for the job, `x` in use, `·` free."""
    chosen = set(gpu_indices)
    if node is None:
        return "".join("#" if i in chosen else "·" for i in range(max(chosen, default=-1) + 1))
    ordered = sorted(node.gpus, key=lambda gpu: gpu.index)
    return "".join(
        "#" if gpu.index in chosen else "x" if gpu.job_id or gpu.vram_used else "·"
        for gpu in ordered
    )


def _row(candidate: Candidate, node: Node | None) -> tuple[str, ...]:
    terms = candidate.terms
    numbers = (
        terms.total,
        terms.utilization,
        terms.fragmentation,
        terms.expiry,
        terms.provider,
    )
    drawn = f"[{slots(candidate.gpu_indices, node)}]"
    return candidate.node_id, drawn, *(f"{number:.3f}" for number in numbers)


def _headline(decision: Decision) -> Text:
    placed = decision.kind is PlacementKind.EXISTING_NODE
    headline = Text(decision.kind.value, style="bold green" if placed else "bold yellow")
    return headline.append(f"  {decision.reason}", style="default")


def _job_line(job: JobRequest, now: datetime) -> str:
    wants = [f"{job.gpus} x {job.gpu_type or 'GPU'}"]
    if job.vram_per_gpu:
        wants[0] += f" with {format_gb(job.vram_per_gpu)}"
    wants += [f"{job.cpus:g} cores", f"{format_gb(job.ram)} RAM"]
    wants += [f"for {format_duration(job.expected_duration)}", f"at {now:%Y-%m-%d %H:%M:%S} UTC"]
    return f"{job.id} ({job.tier}): {', '.join(wants)}"


def _candidates_table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title="Candidates, best first", title_justify="left")
    for position, heading in enumerate(_HEADINGS):
        table.add_column(
            heading, justify="left" if position < 2 else "right", no_wrap=position < 3
        )
    for position, row in enumerate(rows):
        table.add_row(*(Text(cell) for cell in row), style="green" if position == 0 else None)
    return table


def _refusals_table(refused: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title="Rejected", title_justify="left")
    for heading in ("node", "reason", "constraint"):
        table.add_column(heading, overflow="fold")
    for row in refused:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _plain_lines(
    decision: Decision,
    job: JobRequest,
    now: datetime,
    rows: Sequence[tuple[str, ...]],
    refused: Sequence[tuple[str, ...]],
) -> list[str]:
    lines = [f"{decision.kind.value}  {decision.reason}", _job_line(job, now)]
    if rows:
        lines += ["", "Candidates, best first", *_aligned([_HEADINGS, *rows])]
    if refused:
        lines += ["", "Rejected", *_aligned([("node", "reason", "constraint"), *refused])]
    return lines


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
