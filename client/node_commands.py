"""Commands on nodes and pools."""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client import cycle_view, pool_changes
from longshore.client.calls import call, known_pool
from longshore.client.fingerprints import changed_words, fingerprints_of, fingerprints_table
from longshore.client.held_data import holds_table
from longshore.client.node_view import LEGEND, buying_words, nodes_table, pool_facts, pools_table
from longshore.client.pool_changes import named
from longshore.client.prices import price_facts, price_table, read_prices
from longshore.client.score_options import score_changes
from longshore.client.terminal import (
    JSON,
    Text,
    note,
    now,
    out,
    pairs,
    print_json,
    say,
    show,
    warn,
)
from longshore.models.block import FOR_SALE
from longshore.models.departures import DISK_REFUSES, mend_of_disk
from longshore.models.document import Override, load_document
from longshore.models.errors import SpecError, UnavailableError
from longshore.models.gang import GangPacking
from longshore.models.node_messages import NodeStatus
from longshore.models.packing import QueueOrder, ScoreWeights
from longshore.models.placement import GPUChoice, PackingRule
from longshore.models.pool import Growth, PoolSpec
from longshore.models.score import TERMS, ScoreProfile
from longshore.models.units import parse_duration
from longshore.models.views import PoolView

if TYPE_CHECKING:
    from longshore.client.api import Longshore

pool_app = typer.Typer(help="Look at one pool, or change its settings.", no_args_is_help=True)
_PANEL = "Nodes and pools"


def register(app: typer.Typer) -> None:
    for command in (nodes, topology, cordon, uncordon, drain, pools, cycles):
        app.command(rich_help_panel=_PANEL)(command)
    app.add_typer(pool_app, name="pool", rich_help_panel=_PANEL)


def nodes(
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Show one node, with the data it holds.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Only this pool's.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also nodes that have gone.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """List the nodes, with who holds each GPU."""
    if node is not None:
        return _one_node(node, pool, as_json, everything=everything)
    found = call(lambda api: api.nodes(pool=pool, with_gone=everything))
    if pool and not found:
        call(lambda api: known_pool(api, pool))
    if as_json:
        return print_json(found)
    if not found:
        of = f" in pool {pool}" if pool else ""
        return note(
            f"No nodes{of}. `longshore agent` makes this machine one; `longshore up` starts "
            "simulated ones where there are no GPUs."
        )
    show(nodes_table(found, now(), out().width))
    if out().is_terminal:
        show(Text(f"\n{LEGEND}", style="dim"))
    if fingerprints := fingerprints_of(found):
        show(Text())
        show(fingerprints_table(fingerprints))
    if why := changed_words(found):
        note(why)
    return None


def _one_node(node: str, pool: str | None, as_json: bool, *, everything: bool) -> None:
    if pool is not None or everything:
        raise typer.BadParameter("--pool and --all are for the list: leave out NODE, or these")
    found = call(lambda api: api.node(node))
    if as_json:
        return print_json(found)
    show(nodes_table([found], now(), out().width))
    show(Text())
    if found.holds:
        return show(holds_table(found.holds, now()))
    return note("Its agent has not said that it holds any data set, image or environment.")


def topology(
    pool: Annotated[str | None, typer.Option(help="Only this pool's.")] = None,
    as_json: JSON = False,
) -> None:
    """List the domains of fast fabric, with their nodes and what is used and free in each."""
    from longshore.client.process import run
    from longshore.client.topology import read_topology
    from longshore.client.topology_view import render_topology

    found = run(read_topology(pool))
    if as_json:
        return print_json(found)
    if not any(one.domains or one.unlabelled for one in found):
        return note(f"No nodes{f' in pool {pool}' if pool else ''}: `longshore nodes` says more.")
    show(render_topology([one for one in found if one.domains or one.unlabelled]))
    return None


NODE = Annotated[str, typer.Argument(metavar="NODE", help="A node's id.")]
WHY = Annotated[str, typer.Option(help="Why; shown with the node.")]


def cordon(node: NODE, reason: WHY = "", as_json: JSON = False) -> None:
    """Place no new job on a node; running jobs continue."""
    _say(call(lambda api: api.cordon(node, reason)), as_json)


def uncordon(node: NODE, reason: WHY = "", as_json: JSON = False) -> None:
    """Let a node take jobs again, after a cordon or a drain."""
    status, before = call(lambda api: _uncordoned(api, node, reason))
    if before.startswith(DISK_REFUSES):
        warn(
            f"{node} took no jobs because {before}. Where that is still so, the next job that is "
            f"to start there fails, and its agent cordons it again: "
            f"{mend_of_disk(before, node, node)}"
        )
    if before == FOR_SALE:
        warn(
            f"{node} took no jobs because {before} (`longshore blocks`): where that is still so, "
            "no job is placed there before the sale is over"
        )
    _say(status, as_json)


async def _uncordoned(api: "Longshore", node: str, reason: str) -> tuple[NodeStatus, str]:
    """Let a node take jobs again; return also why it took none, where that is known."""
    before = ""
    with suppress(UnavailableError):
        before = next((each.state_reason for each in await api.nodes() if each.id == node), "")
    return await api.uncordon(node, reason), before


def drain(
    node: NODE,
    reason: WHY = "",
    deadline: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Empty the node within this time, e.g. 10m."),
    ] = None,
    at_once: Annotated[
        bool, typer.Option("--now", help="Stop all of its jobs now, each with its grace.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="The same as `uncordon`.")] = False,
    as_json: JSON = False,
) -> None:
    """Drain a node: it takes no new jobs, and its running jobs are moved.

    Jobs with checkpoints are moved at once, the others finish. With a deadline all jobs may stay
    until they have to save or stop for the node to be empty by then.
    """
    if undo:
        return uncordon(node, reason, as_json)
    within = _time("--deadline", deadline) if deadline is not None else None
    status = call(lambda api: api.drain(node, reason, deadline=within, now=at_once))
    return _say(status, as_json)


def _say(status: NodeStatus, as_json: bool) -> None:
    if as_json:
        return print_json(status)
    node = status.node_id
    if not status.draining:
        say(f"{node} is {status.state} and takes jobs")
        return None
    leave = ", and its jobs leave" if status.clearing else ""
    say(f"{node} takes no new job{leave} ({status.reason}). Undo: longshore uncordon {node}")
    return None


def _time(option: str, value: str) -> timedelta:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise SpecError(option, (f"{option} {value}: {error}",)) from None


def pools(as_json: JSON = False) -> None:
    """List the pools: nodes, GPUs in use, and how many jobs wait."""
    found = call(lambda api: api.pools())
    if as_json:
        return print_json(found)
    if not found:
        return note("No pools yet. One is made by its first node, its first job, or `pool set`.")
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
        typer.Option(help="open: nodes may join later; fixed: no more nodes will join."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=NUMBER,...",
            help=f"Weights of the score: {', '.join(ScoreWeights.model_fields)}; the last one "
            "orders the queue, in hours of waiting.",
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
        typer.Option(metavar="N", help="Number of waiting jobs that get a reservation."),
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
        await api.set_pool(spec, prices)
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
    return None


async def _pool(api: "Longshore", name: str) -> PoolView | None:
    return next((pool for pool in await api.pools() if pool.spec.name == name), None)
