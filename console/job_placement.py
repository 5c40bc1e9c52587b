"""Where a job could be placed and what else was weighed, as HTML: nodes, groups of a gang, ways to
start."""

from collections.abc import Collection, Iterable, Sequence

from longshore.console.escaping import escape
from longshore.console.parts import PICKED, cell, number, table, when
from longshore.models.explanation import Explanation
from longshore.models.gang import GangPlan, PlannedGroup
from longshore.models.placement import Candidate, Decision, PackingRule, PlacementKind, ScoreTerms
from longshore.models.preemption import Way
from longshore.models.text import amount, and_more, count, format_gpus, format_slices
from longshore.models.views import AttemptView

MOST_NODES = 60
"""Rows of nodes that are listed one by one."""


def nodes_html(explanation: Explanation) -> tuple[str, str]:
    """Return the nodes with the answer of each, and a title for them; nothing where none is known.

    For a job that waits every node as it is now, else those that could take its last attempt.
    """
    if explanation.decision is not None:
        return _verdicts(explanation.decision), f"Nodes of pool {explanation.job.pool} now"
    placed = explanation.placed
    if placed is None or not placed.candidates:
        return "", ""
    return _candidates(placed), "Nodes that could take it when it was placed, best first"


def gang_html(explanation: Explanation, attempts: Sequence[AttemptView] = ()) -> str:
    """Return the groups of a gang, without what its last attempt has given up of what stands by,
    and what each domain has; nothing for another job."""
    decision = explanation.decision or explanation.placed
    if decision is None or decision.gang is None:
        return ""
    plan = decision.gang
    refusal = f'<p class="padded">{escape(plan.refusal)}</p>' if plan.refusal else ""
    gone = attempts[-1].spares_gone if attempts and explanation.decision is None else ()
    return f"{refusal}{_groups(plan, {share.node_id for share in gone})}{_rooms(plan)}"


def ways_html(explanation: Explanation) -> str:
    """Return the ways to start that were weighed when others were preempted for a job, or are
    while nobody is, each with its price; nothing where there are none."""
    plan = explanation.ways_plan
    return _ways(plan.ways) if plan is not None and plan.ways else ""


def _ways(ways: Iterable[Way]) -> str:
    heads = "Way", "Start", "Lost or paid", "Delay", "In all", "Why not"
    return table("Ways to start", heads, map(_way, ways), numbers=heads[2:5])


def _way(way: Way) -> str:
    start = when(way.start) if way.start else "not known"
    return (
        f"<tr{PICKED if way.chosen else ''}>{cell(escape(way.title), 'Way', folds=True)}"
        f"{cell(start, 'Start')}{number(amount(way.cost), 'Lost or paid')}"
        f"{number(amount(way.delay), 'Delay')}{number(amount(way.total), 'In all')}"
        f"{cell(escape(way.lost) or 'chosen', 'Why not', folds=True)}</tr>"
    )


def _verdicts(decision: Decision) -> str:
    """Return every node with its answer: those that would do, then why the others do not."""
    rows = [
        f'<tr><th scope="row" class="id">{escape(each.node_id)}</th><td>{_answer("fits", "well")}'
        f'</td><td class="fold">{escape(_gpus(each))}, score {each.terms.total:.3f}</td></tr>'
        for each in decision.candidates
    ] + [
        f'<tr><th scope="row" class="id">{escape(each.node_id)}</th>'
        f"<td>{_answer(each.code.value, 'bad' if each.permanent else 'ending')}</td>"
        f'<td class="fold">{escape(each.reason)}</td></tr>'
        for each in decision.rejections
    ]
    if not rows:
        return ""
    codes: dict[str, int] = {}
    for each in decision.rejections:
        codes[each.code.value] = codes.get(each.code.value, 0) + 1
    sums = [f"{count(len(decision.candidates), 'node')} would do"] if decision.candidates else []
    sums += [f"{code}: {count(nodes, 'node')}" for code, nodes in codes.items()]
    more = and_more(len(rows) - MOST_NODES, "node")
    rest = [f'<tr><td colspan="3" class="quiet">{more}</td></tr>']
    return (
        f'<p class="padded">For this job alone, without the jobs before it: '
        f"{escape(', '.join(sums))}.</p>"
        + table(
            "Nodes with their answer", ("Node", "Answer", "What is there"),
            [*rows[:MOST_NODES], *(rest if more else [])],
        )
    )  # fmt: skip


def _candidates(decision: Decision) -> str:
    placed = decision.kind is PlacementKind.EXISTING_NODE
    return table(
        "Nodes that could take it, best first",
        ("Node", "GPUs", "Score", "Made of"),
        (
            f"<tr{PICKED if placed and each.node_id == decision.node_id else ''}>"
            f'<th scope="row" class="id">{escape(each.node_id)}</th><td>{escape(_gpus(each))}</td>'
            f"{number(f'{each.terms.total:.3f}')}"
            f'<td class="fold">{escape(_made_of(each.terms)) or "–"}</td></tr>'
            for each in decision.candidates
        ),
        numbers=("Score",),
    )


def _made_of(terms: ScoreTerms) -> str:
    """Return the terms of a score; in a cycle the parts are known of the chosen node alone."""
    named = (
        ("utilization", terms.utilization), ("fragmentation", terms.fragmentation),
        ("expiry", terms.expiry), ("provider", terms.provider),
    )  # fmt: skip
    said = [f"{name} {value:.3f}" for name, value in named]
    parts = [f"{part.name} {part.value:+.3f}" for part in terms.parts]
    return ", ".join([*said, *parts] if terms.rule is PackingRule.SEED_SCORE else parts)


def _groups(plan: GangPlan, gone: Collection[str]) -> str:
    if not plan.groups:
        return ""
    return "<h3>Groups</h3>" + table(
        "Groups of the gang",
        ("Group", "Domain", "GPUs", "Nodes", "Spares"),
        (_group(each, gone) for each in plan.groups),
        numbers=("GPUs",),
    )


def _group(group: PlannedGroup, gone: Collection[str]) -> str:
    stands_by = [share for share in group.spares if share.node_id not in gone]
    nodes, spares = (
        "<br>".join(
            f'<span class="id">{escape(share.node_id)}</span> {format_gpus(share.gpu_indices)}'
            for share in shares
        )
        for shares in (group.nodes, stands_by)
    )
    return (
        f'<tr><th scope="row">{group.number}</th><td>{escape(group.domain)}</td>'
        f"{number(count(group.gpus))}<td>{nodes}</td><td>{spares or '–'}</td></tr>"
    )


def _rooms(plan: GangPlan) -> str:
    if not plan.domains:
        return ""
    return "<h3>Domains</h3>" + table(
        "What the domains have",
        ("Domain", "Nodes", "GPUs", "Free", "For it", "Left"),
        (
            f'<tr><th scope="row">{escape(each.domain)}</th>'
            + "".join(
                number(count(value))
                for value in (each.nodes, each.gpus, each.free, each.usable, each.residual)
            )
            + "</tr>"
            for each in plan.domains[:MOST_NODES]
        ),
        numbers=("Nodes", "GPUs", "Free", "For it", "Left"),
    )


def _gpus(candidate: Candidate) -> str:
    slices = f" {format_slices(candidate.slices)}" if candidate.slices else ""
    link_class = f", {candidate.link.value}" if candidate.link else ""
    return f"{format_gpus(candidate.gpu_indices)}{slices}{link_class}"


def _answer(words: str, looks: str) -> str:
    return f'<span class="state {looks}">{escape(words)}</span>'
