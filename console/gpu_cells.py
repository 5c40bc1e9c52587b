"""The GPUs of a node as cells, as HTML: who holds each, by letter, shape, colour and in words."""

from collections.abc import Iterable, Mapping

from longshore.client.node_view import letters_of, share_of
from longshore.console.escaping import escape
from longshore.console.lanes import colour_of
from longshore.models.mig import SLICES
from longshore.models.node import NodeState
from longshore.models.resources import WHOLE
from longshore.models.text import format_gpus
from longshore.models.units import format_gb
from longshore.models.views import GPUView, NodeView, PartView

_LEGEND = (
    ('<i class="g c0">a</i>', "a job holds it whole; the letter stands beside the job's name"),
    ('<i class="g parts"><b class="c1" style="height:50%"></b><s>50</s></i>',
     "shared, with the percent in use"),
    ('<i class="g parts mig"><b class="c2" style="height:38%"></b><s>3/8</s></i>',
     "in MIG mode, with the slices in use"),
    ('<i class="g spare">a</i>', "a spare of a gang: nothing runs there"),
    ('<i class="g free">·</i>', "free"),
    ('<i class="g out">–</i>', "idle, on a node that takes no work"),
    ('<i class="g taken">×</i>', "in use outside Longshore"),
)  # fmt: skip


def legend_html() -> str:
    """Return what the cells mean."""
    items = "".join(
        f'<li><span aria-hidden="true">{cell}</span> {escape(means)}</li>'
        for cell, means in _LEGEND
    )
    return f'<ul class="cells-legend" aria-label="What the cells of GPUs mean">{items}</ul>'


def cells_html(node: NodeView) -> str:
    """Return a cell for each GPU of a node, with the same in words."""
    letters, takes_work = letters_of(node), node.state is NodeState.READY
    gpus = sorted(node.gpus, key=lambda gpu: gpu.index)
    cells = "".join(_cell(gpu, letters, takes_work) for gpu in gpus)
    words = escape(in_words(node))
    return f'<span class="gpus" role="img" aria-label="{words}">{cells}</span>'


def in_words(node: NodeView) -> str:
    """Return who holds which GPU: ``GPUs 0-3 held by train, GPU 4 free``."""
    said: dict[str, list[int]] = {}
    for gpu in sorted(node.gpus, key=lambda gpu: gpu.index):
        said.setdefault(_said(gpu, node.state is NodeState.READY), []).append(gpu.index)
    return (
        ", ".join(f"{format_gpus(indices)} {what}" for what, indices in said.items()) or "no GPU"
    )


def letter_html(job_id: str, letter: str) -> str:
    """Return the letter of a job as its cells have it."""
    return f'<i class="g {colour_of(job_id)}" aria-hidden="true">{escape(letter)}</i>'


def _cell(gpu: GPUView, letters: Mapping[str, str], takes_work: bool) -> str:
    title = escape(f"GPU {gpu.index} {_said(gpu, takes_work)}")
    if gpu.job_id is not None:
        letter, colour = escape(letters[gpu.job_id]), colour_of(gpu.job_id)
        looks = f"spare {colour}" if gpu.spare else colour
        return f'<i class="g {looks}" title="{title}">{letter}</i>'
    if gpu.parts or gpu.mig:
        return _parts(gpu, title)
    if gpu.vram_used:
        return f'<i class="g taken" title="{title}">×</i>'
    if not takes_work:
        return f'<i class="g out" title="{title}">–</i>'
    return f'<i class="g free" title="{title}">·</i>'


def _parts(gpu: GPUView, title: str) -> str:
    """Return a cell that is filled from below, a band for each job."""
    bands = "".join(
        f'<b class="{colour_of(part.job_id)}" style="height:{_percent(part, gpu)}%"></b>'
        for part in gpu.parts
    )
    if gpu.mig:
        used, looks = f"{_slices(gpu.parts)}/{SLICES}", "parts mig"
    else:
        used, looks = f"{_percent_used(gpu)}", "parts"
    return f'<i class="g {looks}" title="{title}">{bands}<s>{used}</s></i>'


def _said(gpu: GPUView, takes_work: bool) -> str:
    name = gpu.job_name or gpu.job_id
    if gpu.job_id is not None:
        lent = f", lent to {gpu.lent_to}" if gpu.lent_to else ""
        return f"spare of {name}{lent}" if gpu.spare else f"held by {name}"
    if gpu.mig:
        of = f": {_shares(gpu)}" if gpu.parts else ""
        return f"in MIG mode, {_slices(gpu.parts)} of {SLICES} slices in use{of}"
    if gpu.parts:
        used = f"{gpu.milli_used} of {WHOLE}"
        if _by_memory(gpu):
            used = f"{format_gb(gpu.vram_used)} of {format_gb(gpu.vram)}"
        return f"shared, {used} in use: {_shares(gpu)}"
    if gpu.vram_used:
        return f"with {gpu.vram_used:.0f} GB in use outside Longshore"
    return "free" if takes_work else "idle, on a node that takes no work"


def _shares(gpu: GPUView) -> str:
    return " and ".join(f"{part.job_name} {share_of(part, gpu)}" for part in gpu.parts)


def _slices(parts: Iterable[PartView]) -> int:
    return sum(part.slices.bit_count() for part in parts)


def _by_memory(gpu: GPUView) -> bool:
    """Return whether it is told by its memory: of that more is in use than of its thousandths, or
    by an engine."""
    if not gpu.vram:
        return False
    by_engine = any(part.runs_engine for part in gpu.parts)
    return by_engine or gpu.vram_used / gpu.vram > gpu.milli_used / WHOLE


def _percent_used(gpu: GPUView) -> int:
    if _by_memory(gpu):
        return int(gpu.vram_used / gpu.vram * 100)
    return gpu.milli_used * 100 // WHOLE


def _percent(part: PartView, gpu: GPUView) -> int:
    """Return how high its band is: all together are as high as what is in use."""
    if part.mig:
        return part.slices.bit_count() * 100 // SLICES
    if _by_memory(gpu):
        return int(part.vram / gpu.vram * 100)
    return part.milli * 100 // WHOLE
