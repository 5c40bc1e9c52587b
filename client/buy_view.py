"""How a decision about buying looks: every option with its price, and the chosen ones first."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType

from longshore.client.buying import DryRun
from longshore.client.terminal import Text, a_table, heading, now
from longshore.client.words import SIMULATED, period
from longshore.models.buying import Option, PurchasePlan
from longshore.models.spending import named
from longshore.models.text import and_more, count, dollars, format_dollars

_COLUMNS = ("", "option", "money", "delay", "left over", "in all", "why not")
_NUMBERS = ("money", "delay", "left over", "in all")


def render_dry_run(ran: DryRun, *, most: int | None = None) -> RenderableType:
    """Return the decision for a Rich console; of the options of a round, at most so many."""
    decision = ran.decision
    simulated = f"  {SIMULATED}" if ran.simulated else ""
    waiting = f"{count(len(ran.jobs), 'job')} in the queue"
    parts: list[RenderableType] = [
        heading(f"{decision.reason}{simulated}"),
        Text(f"{ran.source}, {waiting}, rule {decision.rule.value}", style="dim"),
        *(Text(each, style="dim") for each in decision.left_out),
    ]
    for (tier, number), options in groupby(
        decision.options, key=lambda option: (option.tier, option.round)
    ):
        parts += [Text(), heading(f"{tier.value}, round {number + 1}")]
        parts.append(_table(list(options), most))
    for plan in decision.plans:
        parts += [Text(), Text(_order(plan))]
    if ran.helps:
        parts += [Text(), Text(f"What could help: {ran.helps}")]
    left = (
        "without a limit"
        if ran.left_today_micro_usd is None
        else f"{dollars(ran.left_today_micro_usd)} more"
    )
    parts += [Text(), Text(f"the pool may commit today (UTC): {left}", style="dim")]
    for quote in decision.waits_for:
        parts.append(Text(f"no price: {quote.detail}", style="yellow"))
    return Group(*parts)


def _table(options: Sequence[Option], most: int | None) -> RenderableType:
    ordered = sorted(options, key=lambda option: (not option.chosen, option.total, option.title))
    table = a_table(_COLUMNS, right=_NUMBERS, fold=("option", "why not"))
    for option in ordered[:most]:
        amounts = (option.committed, option.delay, option.leftover, option.total)
        table.add_row(
            "→" if option.chosen else "",
            option.title,
            *(dollars(amount) for amount in amounts),
            option.lost,
            style="bold" if option.chosen else "",
        )
    if most is not None and (more := and_more(len(ordered) - most)):
        table.add_row("", more, "", "", "", "", "")
    return table


def _order(plan: PurchasePlan) -> str:
    what = f"order: {plan.nodes} x {plan.instance_type} at {plan.provider}"
    if plan.place:
        what += f" in {plan.place}"
    when = "until it is stopped"
    if plan.window is not None:
        when = period(plan.window.start, plan.window.end, now())
    for_whom = ", ".join(named(plan.serves)) or "the warm target"
    return (
        f"{what}, {when}, at most {format_dollars(plan.limit)} a GPU-hour and "
        f"{dollars(plan.max_total)} in all; for {for_whom}"
    )
