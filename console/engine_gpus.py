"""GPUs with the engines on them: what each GPU has, what engines hold of it and really take, and
what jobs have beside them, as HTML."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from longshore.console.escaping import escape
from longshore.console.parts import cell, number, table
from longshore.models.service import ReplicaView
from longshore.models.text import NONE
from longshore.models.units import format_bytes, format_gb
from longshore.models.views import NodeView

MOST = 100
"""GPUs that are shown."""


@dataclass(frozen=True)
class EngineGPU:
    """One GPU of which engines hold memory; amounts are GB."""

    node_id: str
    index: int
    model: str
    vram: float
    engines: tuple[ReplicaView, ...]
    held: float
    """What engines hold."""
    taken: float
    """What they really take; as much of each GPU of an engine that has several."""
    others: float
    """What jobs beside them have."""

    @property
    def free(self) -> float:
        return max(self.vram - self.held - self.others, 0.0)


def engine_gpus(replicas: Iterable[ReplicaView], nodes: Iterable[NodeView]) -> list[EngineGPU]:
    """Return the GPUs of which engines hold memory, by node and index."""
    on: dict[tuple[str, int], list[ReplicaView]] = {}
    for each in replicas:
        for index in each.gpu_indices if each.node_id else ():
            on.setdefault((each.node_id or "", index), []).append(each)
    found: list[EngineGPU] = []
    for node in nodes:
        for gpu in node.gpus:
            if engines := on.get((node.id, gpu.index)):
                held = sum(each.leased for each in engines) / 1000
                taken = sum(each.used / len(each.gpu_indices) for each in engines) / 1000
                others = max(gpu.vram_used - held, 0.0)
                found.append(
                    EngineGPU(
                        node.id, gpu.index, gpu.model, gpu.vram, tuple(engines), held, taken,
                        others,
                    )
                )  # fmt: skip
    return sorted(found, key=lambda each: (each.node_id, each.index))


def gpus_html(gpus: Sequence[EngineGPU]) -> str:
    """Return the table of GPUs, with a bar of the memory of each."""
    heads = ("Node", "GPU", "Engines", "Memory", "Hold", "Take", "Jobs have", "Free")
    rows = (_row(each) for each in gpus[:MOST])
    html = table("GPUs", heads, rows, numbers=("Hold", "Take", "Jobs have", "Free"))
    if len(gpus) > MOST:
        html += f'<p class="reason">The first {MOST} of {len(gpus):,} GPUs.</p>'
    return html


def _row(each: EngineGPU) -> str:
    node = f'<a class="id" href="/nodes#{quote(each.node_id)}">{escape(each.node_id)}</a>'
    counts: dict[str, int] = {}
    for engine in each.engines:
        counts[engine.service] = counts.get(engine.service, 0) + 1
    named = ", ".join(
        f'<a href="/services/{quote(name)}">{escape(name)}</a>{f" × {many}" if many > 1 else ""}'
        for name, many in sorted(counts.items())
    )
    free = f"{_size(each.free)} of {format_gb(each.vram)}"
    return (
        f"<tr>{cell(node)}{cell(str(each.index), 'GPU')}{cell(named, 'Engines', folds=True)}"
        f"{_bar(each)}{number(_size(each.held), 'Hold')}{number(_size(each.taken), 'Take')}"
        f"{number(_size(each.others), 'Jobs have')}{number(free, 'Free')}</tr>"
    )


def _size(amount: float) -> str:
    """Return GB in words, a dash for nothing: sums of MB drift."""
    return format_bytes(round(amount * 1e9)) if amount > 0.0005 else NONE


def _bar(each: EngineGPU) -> str:
    """Return a cell with the memory of a GPU as a frame: what engines take, what more they hold,
    and what jobs have."""
    over = each.taken > each.held
    parts = (
        ("bad" if over else "used", min(each.taken, each.vram)),
        ("open", max(each.held - each.taken, 0.0)),
        ("shared", each.others),
    )
    spans = "".join(
        f'<span class="part {look}" style="width:{100 * amount / each.vram:.2f}%"></span>'
        for look, amount in parts
        if amount and each.vram
    )
    title = escape(
        f"{each.model}: engines take {_size(each.taken)} of the {_size(each.held)} that they "
        f"hold, jobs have {_size(each.others)}, {_size(each.free)} of {format_gb(each.vram)} free"
    )
    frame = '<b style="width:100%"></b>'
    return f'<td class="bars"><span class="bar-of" title="{title}">{frame}{spans}</span></td>'


_LEGEND = (
    ("used", "engines take it"),
    ("open", "they hold it, and do not use it now"),
    ("shared", "jobs have it"),
)


def legend_html() -> str:
    """Return what the parts of a bar mean."""
    items = "".join(
        f'<span><span class="part {look}"></span>{words}</span>' for look, words in _LEGEND
    )
    return f'<div class="legend" aria-hidden="true">{items}</div>'
