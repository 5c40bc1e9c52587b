"""GPUs, nodes and constraints as the reasons of decisions name them."""

from collections.abc import Mapping, Sequence
from typing import Literal

from longshore.models.mig import first_slice
from longshore.models.placement import JobRequest, PackingRule, RejectionCode, ScoreTerms
from longshore.models.preemption import Spared
from longshore.models.topology import LinkClass

MOST_NODES = 4
"""That a sentence names with their GPUs."""
_MOST_PARTS = 2
"""Of a value that a sentence names."""


def format_gpus(indices: Sequence[int]) -> str:
    """Return ``GPU 3``, ``GPUs 0-3`` or ``GPUs 0-1,4``; `indices` are ascending."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {','.join(parts)}"


def format_places(places: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Return ``node-a GPUs 0-7, node-b GPUs 0-3``, each node with its GPUs; of many nodes the
    first few, and how many more there are."""
    named = [
        f"{node_id} {format_gpus(indices)}" if indices else node_id
        for node_id, indices in places[:MOST_NODES]
    ]
    others = places[MOST_NODES:]
    if not others:
        return ", ".join(named)
    gpus = sum(len(indices) for _, indices in others)
    beside = f" with {count(gpus, 'GPU')}" if gpus else ""
    return f"{', '.join(named)} {and_more(len(others), 'node')}{beside}"


def listed(
    names: Sequence[str], most: int, noun: str = "", *, between: Literal[", ", "; "] = ", "
) -> str:
    """Return ``a, b and 3 more``, or with a noun ``a, b and 3 more nodes``: the first `most`
    names, and how many more there are. Names that have commas of their own stand between
    semicolons: ``a; b; and 3 more``."""
    more = and_more(len(names) - most, noun)
    named = between.join(names[:most])
    if not more:
        return named
    return f"{named}{' ' if between == ', ' else between}{more}"


def and_more(number: int, noun: str = "") -> str:
    """Return ``and 3 more`` or ``and 1 more node``; empty where there is no more."""
    if number <= 0:
        return ""
    things = f" {noun}" + ("" if number == 1 else "s") if noun else ""
    return f"and {number:,} more{things}"


def format_link(slowest: LinkClass | None) -> str:
    """Return `` linked by nvlink (450 GB/s)``; nothing where the links are not known."""
    return f" linked by {slowest.value} ({slowest.gb_per_second} GB/s)" if slowest else ""


def format_part(job: JobRequest, index: int, slices: int = 0) -> str:
    """Return ``500/1000 of GPU 3``, or ``1g.10gb at slice 6 of GPU 3``."""
    if job.mig is not None:
        return f"{job.mig} at slice {first_slice(slices)} of GPU {index}"
    return f"{job.milli}/1000 of GPU {index}"


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


def count(number: int, noun: str) -> str:
    """Return ``1 node`` or ``2 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
