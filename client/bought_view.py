"""How decisions about buying look beside a job, and about a block by itself."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.terminal import Text, a_table, heading, pairs
from longshore.client.words import cell, zone
from longshore.models.block_end import BlockOption
from longshore.models.explanation import Explanation
from longshore.models.spending import OptionRecord, PurchaseDetail, named
from longshore.models.text import ago, dollars


def purchase_screen(purchase: PurchaseDetail, now: datetime) -> RenderableType:
    """Return a purchase in full: the decision with its options, and what happened since."""
    who = f"pool {purchase.pool}, tenant {purchase.tenant}, {purchase.tier}"
    what = f"{purchase.wanted} x {purchase.instance_type} at {purchase.provider}"
    money = (
        f"{dollars(purchase.committed_micro_usd)} committed, "
        f"{dollars(purchase.planned_micro_usd)} at most when it was decided"
    )
    facts = [
        ("first option", what),
        ("for", who),
        ("money", money),
        ("account", purchase.sum_in_words),
    ]
    split = purchase.split_in_words
    facts += [("split", split)] if split else []
    facts += [("serves", ", ".join(named(purchase.serves)))] if purchase.serves else []
    facts += [("nodes", ", ".join(purchase.nodes))] if purchase.nodes else []
    facts += [("blocks", ", ".join(purchase.blocks))] if purchase.blocks else []
    facts += [("why", purchase.reason)] if purchase.reason else []
    facts += [("cannot be read", each) for each in purchase.unreadable]
    decided = purchase.decided or "Somebody asked for it: no decision of a pool stands behind it."
    title = Text.assemble((purchase.id, "bold"), f"  {purchase.state.value}")
    parts: list[RenderableType] = [title, Text(), pairs(facts)]
    parts += [Text(), heading("What was decided"), Text(decided)]
    parts += [Text(each, style="dim") for each in purchase.left_out]
    if purchase.options:
        parts.append(_options_table(purchase.options))
    happened = a_table((f"at ({zone(now)})", "what happened"), fold=("what happened",))
    for each in purchase.timeline:
        happened.add_row(cell(each.at, now), each.text)
    parts += [Text(), happened]
    return Group(*parts)


def buying_parts(explanation: Explanation, now: datetime) -> Iterator[RenderableType]:
    """Yield what was decided about buying for a job that waits, and about the blocks of one that
    runs."""
    bought = explanation.buying
    if bought is not None:
        yield Text()
        yield heading(
            f"What pool {explanation.job.pool} decided about buying, {ago(bought.at, now)}"
        )
        yield Text(bought.reason)
        yield from (Text(each, style="dim") for each in bought.left_out)
        if bought.options:
            yield _options_table(bought.options)
    for decision in explanation.blocks:
        yield Text()
        yield heading(
            f"What was decided about its block {decision.block_id}, {ago(decision.at, now)}"
        )
        yield Text(decision.reason)
        yield block_options_table(decision.options)


def block_options_table(options: Sequence[BlockOption]) -> Table:
    """Return every option of a decision about a block, with what its gain is made of."""
    table = a_table(("", "option", "gain", "terms", "why not"), right=("gain",),
                    fold=("option", "terms", "why not"))  # fmt: skip
    for each in options:
        terms = ", ".join(f"{what} {dollars(amount)}" for what, amount in each.terms.items())
        table.add_row(_mark(each.chosen), each.title, dollars(each.gain), terms, each.lost)
    return table


def _options_table(options: Sequence[OptionRecord]) -> Table:
    table = a_table(("", "tier", "option", "money", "delay", "in all", "why not"),
                    right=("money", "delay", "in all"), fold=("option", "why not"))  # fmt: skip
    for each in options:
        amounts = (each.committed, each.delay, each.total)
        table.add_row(_mark(each.chosen), each.tier, each.title, *map(dollars, amounts), each.lost)
    return table


def _mark(chosen: bool) -> str:
    return "→" if chosen else ""
