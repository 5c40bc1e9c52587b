"""Commands on pools."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client import cycle_view, pool_changes
from longshore.client.calls import call, known_pool
from longshore.client.node_view import buying_words, pool_facts, pools_table
from longshore.client.pool_changes import named
from longshore.client.prices import price_facts, price_table, read_prices
from longshore.client.score_options import score_changes
from longshore.client.terminal import (
    JSON,
    Text,
    note,
    note_simulated,
    now,
    pairs,
    print_json,
    say,
    show,
    warn,
)
from longshore.models.document import Override, load_document
from longshore.models.gang import GangPacking
from longshore.models.packing import QueueOrder, ScoreWeights
from longshore.models.placement import GPUChoice, PackingRule
from longshore.models.pool import Growth, PoolSpec
from longshore.models.score import TERMS, ScoreProfile
from longshore.models.text import count, format_duration
from longshore.models.views import PoolView

if TYPE_CHECKING:
    from longshore.client.api import Longshore

pool_app = typer.Typer(help="Look at one pool, or change its settings.", no_args_is_help=True)
_PANEL = "Nodes and pools"


def register(app: typer.Typer) -> None:
    for command in (pools, cycles):
        app.command(rich_help_panel=_PANEL)(command)
    app.add_typer(pool_app, name="pool", rich_help_panel=_PANEL)


def pools(as_json: JSON = False) -> None:
    """List the pools: nodes, GPUs in use, and how many jobs wait."""
    found = call(lambda api: api.pools())
    if as_json:
        return print_json(found)
    if not found:
        return note("No pools yet. One is made by its first node, its first job, or `pool set`.")
    note_simulated(any(pool.simulated for pool in found))
    show(pools_table(found, now()))
    _warn_of(found)
    return None


def cycles(
    pool: Annotated[
        str | None, typer.Option(help="Only this pool, with each of its last cycles.")
    ] = None,
    last: Annotated[
        int, typer.Option(help="Number of latest cycles to show.", min=0, max=1000)
    ] = 10,
    as_json: JSON = False,
) -> None:
    """Show how often pools run cycles, and how long each step of a cycle takes: reading,
    planning, committing, and explaining why jobs wait."""
    found = call(lambda api: api.cycles(pool, last=last if pool else 0))
    if as_json:
        return print_json(found)
    if not found:
        return note("No pools yet. One is made by its first node, its first job, or `pool set`.")
    show(cycle_view.pools_table(found), Text(f"\n{cycle_view.LEGEND}", style="dim"))
    if pool and found[0].latest:
        show(Text(), cycle_view.latest_table(found[0].latest, now()))
    return None


@pool_app.command("show")
def pool_show(
    name: Annotated[str, typer.Argument(help="The pool.")] = "default", as_json: JSON = False
) -> None:
    """Show a pool's settings."""
    found = call(lambda api: known_pool(api, name))
    if as_json:
        return print_json(found)
    show(pools_table([found], now()), Text(), pairs(pool_facts(found)))
    note_simulated(found.simulated)
    _warn_of([found])
    return None


@pool_app.command("price")
def pool_price(
    name: Annotated[str, typer.Argument(help="The pool.")] = "default", as_json: JSON = False
) -> None:
    """Show what a GPU-hour costs in a pool now, and the next changes that are known."""
    found = call(lambda api: known_pool(api, name))
    if as_json:
        return print_json(found.price)
    if found.price is None:
        return note(f"Pool {name} names no price: longshore pool set {name} --price FILE")
    show(pairs(price_facts(found.price, found.spec, now())))
    if found.price.next:
        show(Text(), price_table(found.price, now()))
    return None


def _warn_of(pools: Sequence[PoolView]) -> None:
    """Name the pools whose stored settings cannot be read."""
    for pool in pools:
        if pool.trouble:
            name = pool.spec.name
            warn(f"{pool.trouble}. The defaults are shown, and no cycle goes by them: its jobs "
                 f"wait. `longshore pool set {name}` begins from the defaults.")  # fmt: skip


@pool_app.command("set")
def pool_set(
    name: Annotated[str, typer.Argument(help="The pool; created if it is new.")],
    growth: Annotated[
        Growth | None,
        typer.Option(
            help="What becomes of a job that no node could hold. open: it waits, as nodes may "
            "join; fixed: it is refused."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=NUMBER,...",
            help=f"Weights of the score: {', '.join(ScoreWeights.model_fields)}; critical_path is "
            "the head start of long DAG paths, in hours.",
        ),
    ] = None,
    safety_margin: Annotated[
        str | None, typer.Option(metavar="TIME", help="A node must outlive a job by this.")
    ] = None,
    packing: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help=f"Packing settings, e.g. rule=keep-room; rules are {', '.join(PackingRule)}. "
            "Repeatable.",
        ),
    ] = None,
    gpu_choice: Annotated[
        GPUChoice | None, typer.Option(help="Which of a node's free GPUs a job gets.")
    ] = None,
    gang_packing: Annotated[
        GangPacking | None, typer.Option(help="How domains and nodes are chosen for gangs.")
    ] = None,
    max_reservations: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Number of waiting jobs of each tier that get a reservation."
        ),
    ] = None,
    order: Annotated[
        QueueOrder | None,
        typer.Option(help="Order of jobs with the same priority (docs/queue.md)."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"The score of its queue (docs/score.md): {', '.join(ScoreProfile)}; none takes "
            "it away. It sets the order, too, unless --order does.",
        ),
    ] = None,
    term_weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME=NUMBER,...",
            help=f"Own weights of the score in place of a profile: {', '.join(TERMS)}. They sum "
            "to 1.",
        ),
    ] = None,
    score: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Settings of the score, e.g. half_life=3d, shares.research=2 or start_above=0.4. "
            "Repeatable.",
        ),
    ] = None,
    class_rises_every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Waiting time after which a job counts as one priority higher; 0: never.",
        ),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Longest time between cycles while jobs wait."),
    ] = None,
    grow_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Idle time after which GPUs go to running malleable jobs; 0: never.",
        ),
    ] = None,
    max_duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Longest time limit of a job, and the default of jobs that name none. `none` "
            "removes it.",
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL|market|none",
            help="Source of the GPU-hour price that jobs may wait for (docs/price-series.md).",
        ),
    ] = None,
    pricing: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Settings of that price, e.g. every=1m, longest_step=1d or unknown=wait. "
            "Repeatable.",
        ),
    ] = None,
    start_below: Annotated[
        str | None,
        typer.Option(
            metavar="PRICE",
            help="Jobs start only while that price is below this: '$2.10/gpu-hour'. `none` "
            "removes it.",
        ),
    ] = None,
    buying: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Buying policy, e.g. enabled=true or 'caps.per_day=$500'. Repeatable.",
        ),
    ] = None,
    preemption: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Preemption policy, e.g. enabled=false or near_end=10m. Repeatable.",
        ),
    ] = None,
    checkpoints: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Policy for asking running jobs to save, e.g. min_interval=10m. Repeatable.",
        ),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Change a pool's settings; the others stay as they are."""
    limit = "null" if max_duration == "none" else max_duration
    changes = [
        Override(field, json.dumps(value) if quote else value, f"{option} {value}")
        for field, option, value, quote in (
            ("growth", "--growth", growth, True),
            ("packing.safety_margin", "--safety-margin", safety_margin, True),
            ("packing.gpu_choice", "--gpu-choice", gpu_choice, True),
            ("packing.gang_packing", "--gang-packing", gang_packing, True),
            ("packing.max_reservations", "--max-reservations", max_reservations, False),
            ("packing.order", "--order", order, True),
            ("packing.class_rises_every", "--class-rises-every", class_rises_every, True),
            ("interval", "--interval", interval, True),
            ("grow_after", "--grow-after", grow_after, True),
            ("max_duration", "--max-duration", limit, limit != "null"),
        )
        if value is not None
    ]
    changes += score_changes(profile, term_weights, order)
    changes += [*named("packing", packing, "rule=keep-room"), *pool_changes.weights(weights)]
    changes += [
        change._replace(field=f"packing.{change.field}")
        for change in named("score", score, "half_life=3d")
    ]
    changes += named("buying", buying, "enabled=true")
    changes += named("preemption", preemption, "near_end=10m")
    changes += named("checkpoints", checkpoints, "min_interval=10m")
    changes += pool_changes.price(price, pricing, start_below)
    if not changes:
        raise typer.BadParameter("say what to change, such as --growth fixed")

    async def store(api: "Longshore") -> PoolSpec:
        before = await _pool(api, name)
        text = (before.spec if before else PoolSpec.new(name)).model_dump_json()
        spec = load_document(text, f"pool {name}", PoolSpec, changes)
        prices = None if price is None else await read_prices(price, spec)
        for each in await api.set_pool(spec, prices):
            warn(each)
        if before and before.trouble:
            warn(f"{before.trouble}. What is not named is as it is by default now.")
        return spec

    spec = call(store)
    if as_json:
        return print_json(spec)
    say(f"pool {name} is set; its next cycle uses this (longshore pool show {name})")
    if price is not None and spec.price is not None:
        say(f"Its price: longshore pool price {name}")
    if buying and spec.buying.enabled:
        say(f"It buys {buying_words(spec.buying)}.")
    elif buying and (runs := what_runs_on(spec)):
        say(f"It buys nothing more. {runs}.")
    return None


def what_runs_on(spec: PoolSpec) -> str:
    """Return what becomes of what a pool has bought that buys no more; empty where it has none."""
    from longshore.activities.buying.purchase_views import PurchaseViews
    from longshore.client.purchase_commands import ask

    blocks = ask(lambda database: PurchaseViews(database).blocks(pool=spec.name, limit=1000))
    if not blocks:
        return ""
    policy = spec.buying
    rest = "is sold" if policy.resell else "is kept to its end (`resell`)"
    return (
        f"{count(len(blocks), 'block')} that it bought before may run on, and will not be "
        f"extended: machines that are billed as they run end when idle for "
        f"{format_duration(policy.idle_after)}, idle time of windows {rest} "
        f"(longshore blocks --pool {spec.name})"
    )


async def _pool(api: "Longshore", name: str) -> PoolView | None:
    return next((pool for pool in await api.pools() if pool.spec.name == name), None)
