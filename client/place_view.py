"""How a placement decision looks: candidates with their terms, GPUs as slots, refusals.

For a job that spans nodes: its groups, and what each domain has left.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.gang_view import (
    DOMAIN_HEADINGS,
    GROUP_HEADINGS,
    domain_rows,
    group_rows,
    slots,
)
from longshore.client.limits import Column, limit_columns
from longshore.client.terminal import Text
from longshore.client.words import SIMULATED, moment
from longshore.models.domains import Foreseen
from longshore.models.gang import GangPacking, GangPlan
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import Candidate, Decision, PackingRule, PlacementKind, ScoreTerms
from longshore.models.preemption import PreemptionPlan
from longshore.models.text import count, format_duration, format_gpus, format_slices, listed
from longshore.models.topology import Gang
from longshore.models.units import format_cores, format_gb, format_limits

_HEADINGS = ("node", "GPUs", "score", "util", "frag", "expiry", "provider")
_LEFT_HEADINGS = ("domain", "nodes", "GPUs", "free", "left")
_HEADINGS_BY_RULE = ("node", "GPUs", "value", "made of")
_MOST_DOMAINS = 4
"""That a line names."""
_OF_NODES = (
    "These rules rank nodes for jobs on one node: what they change for a gang is where the jobs "
    "before it go. Its own nodes are chosen by gang_packing."
)
_Rule = TypeVar("_Rule", PackingRule, GangPacking)
_HEADINGS_OF_RULES = ("rule", "node", "GPUs", "value", "made of")


class _Section(NamedTuple):
    """A table of the answer."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers_from: int
    """The column from which on there are numbers."""
    best_first: bool = False


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
    sections = [section for section in _sections(decision, nodes) if section.rows]
    if plain:
        lines = [f"{decision.kind.value}  {decision.reason}", _job_line(job, now)]
        for section in sections:
            lines += ["", section.title, *_aligned([section.headings, *section.rows])]
        return Text("\n".join(lines))
    parts: list[RenderableType] = [_headline(decision), Text(_job_line(job, now), style="dim")]
    for section in sections:
        parts += [Text(), _table(section)]
    return Group(*parts)


def render_foreseen(
    foreseen: Foreseen, nodes: Sequence[Node], *, plain: bool = False
) -> RenderableType:
    """Return what a cycle would do, for a Rich console.

    `nodes` are those of the pool with the jobs before it placed; `plain` as for a decision.
    """
    decision = foreseen.decision
    plan = foreseen.stops
    parts: list[RenderableType] = []
    if plan is not None and plan.preempts:  # what comes first: the decision is what else would be
        parts += [_preemption(plan), Text("\nIf nobody were stopped:")]
    parts.append(render_place(decision, foreseen.request, foreseen.at, nodes, plain=plain))
    if decision.gang is None:
        rows = [
            (left.domain or "(none)", *map(str, (left.nodes, left.gpus, left.free, left.left)))
            for left in foreseen.domains
        ]
        section = _Section("Domains", _LEFT_HEADINGS, rows, 1)
        if plain:
            lines = ["", section.title, *_aligned([section.headings, *section.rows])]
            parts.append(Text("\n".join(lines)))
        else:
            parts += [Text(), _table(section)]
    if foreseen.by_rule:
        parts.append(render_rules(foreseen.by_rule, foreseen.rule, plain=plain))
    if foreseen.by_gang_packing:
        used = decision.gang.packing if decision.gang else None
        parts.append(render_gang_rules(foreseen.by_gang_packing, used, plain=plain))
    if plan is not None and not plan.preempts:
        parts += [Text(), _preemption(plan)]
    return Group(*parts, Text(f"\n{_beside(foreseen)}", style="dim"))


def _preemption(plan: PreemptionPlan) -> Text:
    told = [f"Preemption: {plan.reason}", *(f"  {each.reason}" for each in plan.victims)]
    return Text("\n".join(told))


def render_rules(
    decisions: Mapping[PackingRule, Decision], used: PackingRule | None, *, plain: bool = False
) -> RenderableType:
    """Return what each rule chooses, side by side; `used` is the one that decides."""
    return _render_rules("By rule", decisions, used, plain=plain)


def render_gang_rules(
    decisions: Mapping[GangPacking, Decision], used: GangPacking | None, *, plain: bool = False
) -> RenderableType:
    """Return what each rule of gangs chooses for one, which alone choose its nodes."""
    return Group(
        Text(f"\n{_OF_NODES}", style="dim"),
        _render_rules("By gang_packing", decisions, used, plain=plain),
    )


def _render_rules(
    title: str,
    decisions: Mapping[_Rule, Decision],
    used: _Rule | None,
    *,
    plain: bool,
) -> RenderableType:
    rows = [_by_rule(rule, decision, used) for rule, decision in decisions.items()]
    headings = _HEADINGS_OF_RULES
    if any(decision.gang for decision in decisions.values()):
        headings = (*headings[:-1], "why")
    if not any(row[3] for row in rows):
        # No rule has a value for a job that fits nowhere: the reasons are left.
        headings = ("rule", "node", "GPUs", "why")
        rows = [(*row[:3], row[4]) for row in rows]
    section = _Section(title, headings, rows, len(headings))
    if plain:
        lines = ["", section.title, *_aligned([section.headings, *section.rows])]
        return Text("\n".join(lines))
    return Group(Text(), _table(section))


def _by_rule(
    rule: PackingRule | GangPacking, decision: Decision, used: PackingRule | GangPacking | None
) -> tuple[str, str, str, str, str]:
    name = f"{rule.value} (used)" if rule is used else rule.value
    if decision.node_id is None:
        return name, "-", "", "", decision.reason
    nodes = ", ".join(node_id for node_id, _ in decision.by_node)
    gpus = "; ".join(format_gpus(indices) for _, indices in decision.by_node)
    terms = decision.terms
    if decision.gang is not None:
        value, left = _value_of_gang(decision.gang)
        return name, nodes, gpus, value, f"{decision.reason}; {left}"
    if terms is None:
        return name, nodes, gpus, "", decision.reason
    return name, nodes, gpus, f"{terms.total:.3f}", _made_of(terms)


def _value_of_gang(plan: GangPlan) -> tuple[str, str]:
    """Return what the plan of a gang is compared by, and what it leaves of its domains."""
    spares = f", {plan.spares_found} of {count(plan.spares_wanted, 'spare')}"
    value = f"{count(plan.domains_used, 'domain')}, {count(plan.nodes_used, 'node')}"
    used = {group.domain for group in plan.groups}
    left = [
        f"{room.residual} of {count(room.free, 'free GPU')} left in {room.domain}"
        for room in plan.domains
        if room.domain in used
    ]
    one = ", one fingerprint" if plan.conformance else ""
    return f"{value}{spares if plan.spares_wanted else ''}{one}", listed(left, _MOST_DOMAINS)


def _made_of(terms: ScoreTerms) -> str:
    named = (
        ("utilization", terms.utilization), ("fragmentation", terms.fragmentation),
        ("expiry", terms.expiry), ("provider", terms.provider),
    )  # fmt: skip
    parts = [(part.name, part.value) for part in terms.parts]
    shown = [*named, *parts] if terms.rule is PackingRule.SEED_SCORE else parts
    return ", ".join(f"{name} {value:+.3f}" for name, value in shown) or "nothing"


def _beside(foreseen: Foreseen) -> str:
    """Return what the decision was made beside, and that nothing was done."""
    ahead = f"{count(foreseen.ahead, 'job')} of the queue before it"
    if foreseen.ahead:
        kept = f"{foreseen.kept_ahead} with a start kept"
        ahead += f" ({foreseen.placed_ahead} placed, {kept})"
    several = len(foreseen.decision.by_node) > 1
    nodes = "its nodes are" if several else "its node is"
    nodes = nodes if foreseen.decision.by_node else "nodes there are"
    node = f"; {nodes} {SIMULATED}" if foreseen.simulated else ""
    running = count(foreseen.running, "running job")
    return f"pool {foreseen.pool}, beside {running} and {ahead}{node}. Nothing was placed."


def _sections(decision: Decision, nodes: Sequence[Node]) -> list[_Section]:
    by_id = {node.id: node for node in nodes}
    options = decision.candidates
    limits = limit_columns(node for node in nodes if any(o.node_id == node.id for o in options))
    beside = any(option.terms.parts for option in options)
    rows = [_row(option, by_id.get(option.node_id), limits, beside=beside) for option in options]
    terms = decision.terms
    by_score = terms is None or terms.rule is PackingRule.SEED_SCORE
    headings, numbers_from = (_HEADINGS, 2) if by_score else (_HEADINGS_BY_RULE, 4)
    if by_score and beside:
        headings = (*headings, "beside")
    headings = (*headings, *(heading for heading, _ in limits))
    sections = [_Section("Candidates, best first", headings, rows, numbers_from, best_first=True)]
    if decision.gang is not None:
        groups, domains = group_rows(decision.gang, by_id), domain_rows(decision.gang)
        sections.append(_Section("Groups", GROUP_HEADINGS, groups, len(GROUP_HEADINGS)))
        sections.append(_Section("Domains", DOMAIN_HEADINGS, domains, 1))
    refused = [(r.node_id, r.reason, r.code.value) for r in decision.rejections]
    return [*sections, _Section("Rejected", ("node", "reason", "constraint"), refused, 3)]


def _row(
    candidate: Candidate, node: Node | None, limits: Sequence[Column], *, beside: bool
) -> tuple[str, ...]:
    terms = candidate.terms
    drawn = f"[{slots(candidate.gpu_indices, node)}]"
    if candidate.slices:
        drawn += f" {format_slices(candidate.slices)}"
    if candidate.link:
        drawn += f" {candidate.link.value}"
    made_of = ", ".join(f"{part.name} {part.value:+.3f}" for part in terms.parts)
    said = ["" if node is None else words(node) for _, words in limits]
    if terms.rule is not PackingRule.SEED_SCORE:
        return candidate.node_id, drawn, f"{terms.total:.3f}", made_of, *said
    numbers = (terms.total, terms.utilization, terms.fragmentation, terms.expiry, terms.provider)
    said = [made_of, *said] if beside else said
    return candidate.node_id, drawn, *(f"{number:.3f}" for number in numbers), *said


def _headline(decision: Decision) -> Text:
    placed = decision.kind is PlacementKind.EXISTING_NODE
    headline = Text(decision.kind.value, style="bold green" if placed else "bold yellow")
    return headline.append(f"  {decision.reason}", style="default")


def _job_line(job: JobRequest, now: datetime) -> str:
    wants = [job.gpu.text(job.gpu_type)]
    if job.gang is not None:
        wants[0] += _groups(job.gang)
    limits = format_limits(job.storage_bandwidth, job.power_per_gpu)
    wants += [format_cores(job.cpus), f"{format_gb(job.ram)} RAM{limits}"]
    if job.conformance is not None:
        wants.append(
            "a fingerprint that it allows" if job.conformance.allowed else "a known fingerprint"
        )
    wants += [f"on a node with {each}" for each in job.constraints]
    if job.loads_within is None:
        wants.append(f"for {format_duration(job.expected_duration)}")
    else:  # it ends when its service stops it
        wants.append(f"ready within {format_duration(job.loads_within)}")
    wants.append(f"at {moment(now)}")
    return f"{job.id} ({job.tier}): {', '.join(wants)}"


def _groups(gang: Gang) -> str:
    groups = f" in groups of {gang.group_gpus}" if gang.group_gpus else " as a gang"
    return groups if gang.allow_cross_group_spread else f"{groups} in one domain"


def _table(section: _Section) -> Table:
    table = Table(title=section.title, title_justify="left")
    for position, heading in enumerate(section.headings):
        if section.best_first:
            justify, no_wrap = "left" if position < section.numbers_from else "right", position < 3
            table.add_column(heading, justify=justify, no_wrap=no_wrap)
        elif position < section.numbers_from:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right")
    for position, row in enumerate(section.rows):
        best = section.best_first and position == 0
        table.add_row(*(Text(cell) for cell in row), style="green" if best else None)
    return table


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
