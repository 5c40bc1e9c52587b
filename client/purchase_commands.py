"""Commands on what is bought: purchases, blocks, costs, and the switch and caps of buying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from longshore.client.market_group import market
from longshore.client.terminal import (
    JSON,
    a_table,
    note,
    now,
    out,
    print_json,
    say,
    show,
    width_of_ids,
)
from longshore.models.money import micro_of_text
from longshore.models.text import amount, price

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from longshore.activities.database import Database
    from longshore.models.spending import Account

# The rest is imported where it is needed: every command of `longshore` loads this module.

_PANEL = "Markets"
R = TypeVar("R")
Pool = Annotated[str | None, typer.Option(help="Only this pool's.")]
Ended = Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")]


def register(app: typer.Typer) -> None:
    for command in (purchases, purchase, blocks, block, terminate, costs):
        app.command(rich_help_panel=_PANEL)(command)
    app.command("let-go", hidden=True)(terminate)  # its name before; for one version
    for command in (stop, resume, caps, orphans):
        market.command()(command)


def purchases(pool: Pool = None, everything: Ended = False, as_json: JSON = False) -> None:
    """List purchases: what was committed and paid, and the nodes of each."""
    from longshore.activities.buying.purchase_views import PurchaseViews

    found = ask(lambda db: PurchaseViews(db).purchases(pool=pool, with_ended=everything))
    if pool and not found:
        ask(lambda db: _known(db, pool))
    if as_json:
        return print_json(found)
    if not found:
        return note("Nothing is being bought. `longshore purchases --all` shows what was.")
    table = a_table(("purchase", "pool", "tier", "state", "committed", "paid", "nodes", "why"),
                    right=("committed", "paid"), fold=("nodes", "why"))  # fmt: skip
    for each in found:
        table.add_row(
            each.id, each.pool, each.tier, each.state.value, amount(each.committed_micro_usd),
            each.paid_so_far, ", ".join(each.nodes), each.reason,
        )  # fmt: skip
    show(table)
    _say_estimated(found)
    return _say_simulated(any(each.simulated for each in found))


def purchase(
    name: Annotated[
        str, typer.Argument(metavar="PURCHASE", help="Id, as listed by `longshore purchases`.")
    ],
    as_json: JSON = False,
) -> None:
    """Show a purchase: its reason, each option in dollars, and its timeline."""
    from longshore.activities.buying.purchase_details import PurchaseDetails
    from longshore.client.bought_view import purchase_screen

    found = ask(lambda db: PurchaseDetails(db).purchase(name))
    if as_json:
        return print_json(found)
    show(purchase_screen(found, now()))
    return _say_simulated(found.simulated)


def blocks(pool: Pool = None, everything: Ended = False, as_json: JSON = False) -> None:
    """List blocks: bought time or machines, their ends and their cost."""
    from longshore.activities.buying.purchase_views import PurchaseViews
    from longshore.client.words import cell, zone

    found = ask(lambda db: PurchaseViews(db).blocks(pool=pool, with_ended=everything))
    if pool and not found:
        ask(lambda db: _known(db, pool))
    if as_json:
        return print_json(found)
    if not found:
        return note("No block runs. `longshore blocks --all` shows those that have ended.")
    table = a_table(
        ("block", "market", "nodes", "type", "state", f"from ({zone(now())})", "until",
         "GPU-hour", "paid", "why"),
        right=("nodes", "GPU-hour", "paid"), fold=("why",),
    )  # fmt: skip
    for each in found:
        table.add_row(
            each.id, each.provider, str(each.nodes), each.instance_type, each.state.value,
            cell(each.starts_at, now()) if each.starts_at else "-",
            cell(each.ends_at, now()) if each.ends_at else "-",
            price(each.price_micro_usd), each.paid_so_far,
            each.reason or each.decided,
        )  # fmt: skip
    show(table)
    _say_estimated(found)
    return _say_simulated(any(each.simulated for each in found))


def block(
    name: Annotated[
        str, typer.Argument(metavar="BLOCK", help="Id, as listed by `longshore blocks`.")
    ],
    as_json: JSON = False,
) -> None:
    """Show a block: the last decision about it, each option in dollars, and its sales."""
    from longshore.activities.buying.block_end_views import BlockEndViews
    from longshore.client.bought_view import block_options_table
    from longshore.client.words import cell, clock, zone

    found = ask(lambda db: BlockEndViews(db).of_block(name))
    if as_json:
        return print_json(found)
    of, decision = found.block, found.decision
    say(
        f"block {of.id} ({of.state.value}): {of.nodes} x {of.instance_type} at {of.provider},"
        f" {price(of.price_micro_usd)} a GPU-hour"
        + (f", until {clock(of.ends_at, now())}" if of.ends_at else "")
    )
    say(of.sum_in_words)
    if of.used_so_far_micro_usd is not None and of.idle_so_far_micro_usd is not None:
        used, idle = (
            amount(each) for each in (of.used_so_far_micro_usd, of.idle_so_far_micro_usd)
        )
        say(f"so far: {used} of time that jobs held, {idle} of time that nobody did")
    if found.left_alone:
        note(f"Nothing is decided about it, and it ends at its time: {found.left_alone}.")
    elif decision is None:
        note("Nothing was decided about it yet: its pool does not buy, or there was no need.")
    else:
        say(f"{clock(decision.at, now())}: {decision.reason}")
        show(block_options_table(decision.options))
    if found.sales:
        since = f"from ({zone(now())})"
        table = a_table(("sale", "node", "state", since, "until", "resold", "fee", "why"),
                        right=("resold", "fee"), fold=("why",))  # fmt: skip
        for sale in found.sales:
            table.add_row(
                sale.key, sale.machine, sale.state, cell(sale.starts_at, now()),
                cell(sale.ends_at, now()), amount(sale.resold_micro_usd),
                amount(sale.fee_micro_usd),
                sale.refused,
            )  # fmt: skip
        show(table)
    if found.renewed_by:
        say(f"the time after it is bought by {found.renewed_by}")
    return _say_simulated(of.simulated)


_SOLD_FIRST = "What others bid for is sold first, if its pool's policy sells. "


def terminate(
    name: Annotated[
        str, typer.Argument(metavar="BLOCK", help="Id, as listed by `longshore blocks`.")
    ],
    reason: Annotated[str, typer.Option(help="Why; shown with the block and with its jobs.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Even if paid time is given up.")] = False,
    as_json: JSON = False,
) -> None:
    """End a block early: its jobs are moved, each with its grace, then its machines stop.

    Time that was bought in advance stays paid for. If the pool's policy sells (`resell`), the
    block's remaining time is sold to whoever bids for it. The pool buys nothing at that market
    until the block's time is over, or until `longshore market resume`, and then uses it first.
    """
    from longshore.activities.buying.block_end_views import BlockEndViews
    from longshore.client.calls import call
    from longshore.client.words import clock
    from longshore.models.errors import RefusedError
    from longshore.models.text import count, span

    given_up = ask(lambda db: BlockEndViews(db).given_up(name))
    if given_up is not None and not force:
        raise RefusedError(
            f"{name} is paid for until {clock(given_up.ends_at, now())}: to terminate it gives up "
            f"{amount(given_up.paid_micro_usd)}, {span(given_up.length)} of "
            f"{count(given_up.nodes, 'node')}. {_SOLD_FIRST if given_up.sold else ''}"
            f"`longshore terminate {name} --force` does so"
        )
    call(lambda api: api.terminate_block(name, reason))
    if as_json:
        return print_json({"block": name, "reason": reason})
    say(f"{name} ends as soon as its jobs have left. See it: longshore block {name}")
    return None


def costs(
    by: Annotated[
        Literal["pool", "tenant", "job", "block"], typer.Option(help="Key to sum by.")
    ] = "pool",
    as_json: JSON = False,
) -> None:
    """Show what was paid and what became of it: paid - resold + fees = used + idle + open.

    A job pays its share of its node's price for its time, once the node's block has ended. What
    was idle is no job's and no tenant's: by job and by tenant only what they used is shown.
    """
    from longshore.activities.buying.purchase_views import PurchaseViews

    found = ask(lambda db: PurchaseViews(db).costs(by))
    if as_json:
        return print_json(found)
    if not found:
        return note("Nothing has been paid for yet.")
    of_blocks = by in ("pool", "block")
    sums = ("paid", "resold", "fees", "used", "idle", "open") if of_blocks else ("used",)
    table = a_table((by, *sums), right=sums, widest={by: width_of_ids(out().width)})
    for each in found:
        amounts = {
            "paid": each.paid_micro_usd, "resold": each.resold_micro_usd,
            "fees": each.fees_micro_usd, "used": each.used_micro_usd,
            "idle": each.idle_micro_usd, "open": each.open_micro_usd,
        }  # fmt: skip
        table.add_row(each.name, *(amount(amounts[name]) for name in sums))
    show(table)
    if not of_blocks:
        note("What was paid and nobody used is idle: `longshore costs` shows it, by pool.")
    return None


def stop(
    reason: Annotated[str, typer.Option(help="Why; shown with what is refused.")] = "",
    as_json: JSON = False,
) -> None:
    """Stop buying: no new purchases and orders. Running machines continue."""
    from longshore.activities.buying.switch import BuyingSwitch

    async def change(database: Database):
        await BuyingSwitch(database).stop(reason)
        return await BuyingSwitch(database).state()

    state = ask(change)
    if as_json:
        return print_json(state)
    say(f"buying is stopped: {state.reason}. Again: longshore market resume")
    return None


def resume(as_json: JSON = False) -> None:
    """Resume buying: allow new purchases and orders."""
    from longshore.activities.buying.switch import BuyingSwitch

    async def change(database: Database):
        await BuyingSwitch(database).resume()
        return await BuyingSwitch(database).state()

    state = ask(change)
    if as_json:
        return print_json(state)
    say("buying goes on")
    return None


def caps(
    scope: Annotated[
        str | None,
        typer.Argument(
            metavar="SCOPE", help="purchase, day, pool=NAME, tier=NAME or tenant=NAME."
        ),
    ] = None,
    dollars: Annotated[
        str | None, typer.Argument(metavar="DOLLARS", help="The cap; none removes it.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Show or set caps on what may be committed: for one purchase, or on one day in UTC."""
    from longshore.activities.buying.switch import BuyingSwitch

    if (scope is None) != (dollars is None):
        raise typer.BadParameter("say both: for what, and how many dollars (or none)")
    try:
        micro = None if dollars in (None, "none") else micro_of_text(dollars)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    async def change(database: Database):
        switch, warning = BuyingSwitch(database), ""
        if scope is not None:
            kind, _, name = scope.partition("=")
            warning = await switch.set_cap(kind, name or "*", micro)
        return await switch.state(), warning

    state, warning = ask(change)
    if warning:
        note(warning)
    if as_json:
        return print_json(state)
    if not state.caps:
        return note("There is no cap, and no pool that buys.")
    table = a_table(("cap of", "name", "most", "committed today", "set by"),
                    right=("most", "committed today"))  # fmt: skip
    for each in state.caps:
        committed, most = each.committed_micro_usd, each.most_micro_usd
        today = "" if committed is None else amount(committed)
        most = "no limit" if most is None else amount(most)
        by = "its buying policy" if each.of_policy else "market caps"
        table.add_row(each.scope, each.name, most, today, by)
    show(table)
    return None


def orphans(as_json: JSON = False) -> None:
    """Compare with the markets: list machines and orders unknown here or missing there.

    Nothing is changed. Ends with code 1 where there is a difference.
    """
    from longshore.activities.markets.findings import differences
    from longshore.activities.markets.reconcile import NEXT
    from longshore.models.settings import Settings

    found = ask(lambda db: differences(db, Settings()))
    if as_json:
        print_json(found)
    elif not found:
        say("the markets list what is known here, and nothing else")
    else:
        table = a_table(("market", "what", "id", "name", "cost so far", "detail"),
                        right=("cost so far",), fold=("detail",))  # fmt: skip
        for each in found:
            table.add_row(each.provider, each.kind.value, each.id, each.name,
                          amount(each.cost_micro_usd), each.detail)  # fmt: skip
        show(table)
        for kind in dict.fromkeys(each.kind for each in found):
            note(f"{kind.value}: {NEXT[kind]}")
    if found:
        raise typer.Exit(1)


async def _known(database: Database, pool: str) -> None:
    """Raise NotFoundError, with the pools that there are, where this is none of them."""
    from longshore.activities.snapshot import load_pool

    async with database.transaction() as connection:
        await load_pool(connection, pool, known=True)


def ask(question: Callable[[Database], Awaitable[R]]) -> R:
    """Return the answer of a question to the capacity database. Raises UnavailableError."""
    from longshore.activities.database import Database
    from longshore.client.process import run
    from longshore.models.settings import Settings

    async def answer() -> R:
        database = Database.for_people(Settings().resolve_database_url(), pool_size=1)
        try:
            return await question(database)
        finally:
            await database.close()

    return run(answer())


def _say_estimated(shown: Iterable[Account]) -> None:
    """Say what `about` means, where a list has it."""
    from longshore.models.spending import NOT_BILLED

    if any(each.estimated_micro_usd for each in shown):
        note(f"about: with what machines that run have cost {NOT_BILLED}")


def _say_simulated(simulated: bool) -> None:
    if simulated:
        note("note: bought at a simulated market: no money moves.")
