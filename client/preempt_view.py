"""How a plan to preempt looks: every way with its price, then the victims, term by term."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from longshore.client.preempt import PreemptionDryRun
from longshore.client.terminal import Text, a_table, heading, out, width_of_ids
from longshore.client.ways_view import ways_table
from longshore.client.words import clock
from longshore.models.preemption import PreemptionPlan, RejectedVictim, Victim
from longshore.models.text import NONE, amount, and_more, format_gpus

_VICTIMS = ("job", "class", "GPUs", "done again", "saving", "waiting", "in all", "why")
_PAID = "paid for"
_TERMS = ("class", "GPUs", "done again", "saving", "waiting", "in all")


def render_plan(ran: PreemptionDryRun, *, most: int | None = None) -> RenderableType:
    """Return the plan for a Rich console; of the jobs that keep their GPUs, at most so many."""
    plan, job = ran.plan, ran.request
    request = job.gpu.text(job.gpu_type)
    parts: list[RenderableType] = [
        heading(plan.reason),
        Text(f"{plan.job_id}, class {job.priority}, {request}; {ran.source}", style="dim"),
    ]
    if ran.funding:
        parts.append(Text(f"Paid for: {ran.funding}"))
    if plan.ways:
        parts += [Text(), ways_table(plan.ways, plan.at)]
    if plan.victims:
        parts += [Text(), heading("Would lose GPUs"), _victims(plan.victims, ran)]
        parts += [Text(), Text(_gains(plan))]
    if plan.rejected:
        parts += [Text(), heading("Keep their GPUs"), _kept(plan.rejected, ran, most)]
    return Group(*parts)


def _victims(victims: Sequence[Victim], ran: PreemptionDryRun) -> RenderableType:
    paid = (_PAID,) * bool(ran.payers)
    headings = (*_VICTIMS[:3], *paid, *_VICTIMS[3:])
    table = a_table(headings, right=_TERMS, fold=("why", _PAID), widest=_widest_id())
    for victim in victims:
        terms = (victim.recompute, victim.write, victim.requeue, victim.total)
        amounts = (amount(micro) for micro in terms)
        table.add_row(
            victim.job_id, str(victim.priority), f"{victim.gpus:g}",
            *_paid_for(victim.job_id, ran), *amounts, victim.reason,
        )  # fmt: skip
    return table


def _paid_for(job_id: str, ran: PreemptionDryRun) -> tuple[str, ...]:
    """Return the cell with who pays for a job that runs; none where no tenant has a budget."""
    if not ran.payers:
        return ()
    paid = ", ".join(each.words for each in ran.payers.get(job_id, ()))
    hours = ", ".join(each.words for each in ran.hours.get(job_id, ()))
    return (f"{paid or NONE}; GPU-hours: {hours}" if hours else paid or NONE,)


def _widest_id() -> dict[str, int]:
    return {"job": width_of_ids(out().width)}


def _gains(plan: PreemptionPlan) -> str:
    gains = "; ".join(f"{format_gpus(gain.gpu_indices)} of {gain.node_id}" for gain in plan.gains)
    when = f", at {clock(plan.start, plan.at)}" if plan.start else ""
    return f"it would get {gains}{when}"


def _kept(
    rejected: Sequence[RejectedVictim], ran: PreemptionDryRun, most: int | None
) -> RenderableType:
    paid = (_PAID,) * bool(ran.payers)
    table = a_table(("job", *paid, "why"), fold=("why", _PAID), widest=_widest_id())
    shown = rejected[:most]
    for one in shown:
        table.add_row(one.job_id, *_paid_for(one.job_id, ran), one.reason)
    if more := and_more(ran.plan.rejected_count - len(shown)):
        table.add_row("", *("",) * len(paid), more)
    return table
