"""GPUs, nodes and constraints as the reasons of decisions name them."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from longshore.models.job_request import JobRequest
from longshore.models.mig import first_slice
from longshore.models.placement import PackingRule, RejectionCode, ScoreTerms
from longshore.models.preemption import Spared
from longshore.models.resources import WHOLE
from longshore.models.text import count, format_gpus
from longshore.models.topology import LinkClass
from longshore.models.units import format_gb

_MOST_PARTS = 2
"""Of a value that a sentence names."""


def format_link(slowest: LinkClass | None) -> str:
    """Return `` linked by nvlink (450 GB/s)``; nothing where the links are not known."""
    return f" linked by {slowest.value} ({slowest.gb_per_second} GB/s)" if slowest else ""


def format_part(job: JobRequest, gpus: Sequence[int], slices: int = 0) -> str:
    """Return ``500/1000 of GPU 3``, ``500/1000 of each of GPUs 2-3``, ``1g.10gb at slice 6 of GPU
    3``, or ``50GB of GPU 3`` of an engine."""
    if job.mig is not None:
        return f"{job.mig} at slice {first_slice(slices)} of {format_gpus(gpus)}"
    part = f"{job.milli}/{WHOLE}"
    if job.runs_engine:
        part = format_gb(job.vram_per_gpu)
    return f"{part} of {'each of ' if len(gpus) > 1 else ''}{format_gpus(gpus)}"


def format_place(job: JobRequest, gpus: Sequence[int], slices: int = 0) -> str:
    """Return ``GPUs 0-3``, or of a job that shares them what it has there."""
    return format_gpus(gpus) if job.gpu.whole else format_part(job, gpus, slices)


def format_start(start: datetime) -> str:
    """Return until when a job waits: ``until about 2026-11-20 13:00:00 UTC``."""
    return f"until about {start:%Y-%m-%d %H:%M:%S} UTC"


def format_terms(terms: ScoreTerms) -> str:
    """Return ``, score 0.645``, or `` by keep-room, value -0.412 (room for 8 GPUs -0.375)``."""
    if terms.rule is PackingRule.SEED_SCORE:
        return f", score {terms.total:.3f}"
    most = ", ".join(f"{part.name} {part.value:+.3f}" for part in terms.parts[:_MOST_PARTS])
    return f" by {terms.rule.value}, value {terms.total:.3f}{f' ({most})' if most else ''}"


def format_rejected(rejected: Mapping[RejectionCode, int]) -> str:
    """Return ``3 nodes: 2 gpus-busy, 1 tier-mismatch``, most frequent constraint first."""
    if not rejected:
        return "there are no nodes"
    by_count = sorted(rejected.items(), key=lambda item: -item[1])
    constraints = ", ".join(f"{number} {code}" for code, number in by_count)
    return f"{count(sum(rejected.values()), 'node')}: {constraints}"


def format_spared(spared: Sequence[Spared]) -> str:
    """Return ``a was preempted lately and keeps its GPUs until 12:08:28 UTC, b until ...``."""
    first, *others = (f"until {one.until:%H:%M:%S} UTC" for one in spared)
    said = [f"{spared[0].job_id} was preempted lately and keeps its GPUs {first}"]
    said += [f"{one.job_id} {until}" for one, until in zip(spared[1:], others, strict=True)]
    return ", ".join(said)
