"""Commands on nodes."""

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call, known_pool
from longshore.client.fingerprints import changed_words, fingerprints_of, fingerprints_table
from longshore.client.held_data import holds_table
from longshore.client.node_view import LEGEND, nodes_table
from longshore.client.terminal import (
    JSON,
    Text,
    note,
    now,
    out,
    print_json,
    say,
    show,
    warn,
)
from longshore.models.block import FOR_SALE
from longshore.models.departures import DISK_REFUSES, mend_of_disk
from longshore.models.errors import SpecError, UnavailableError
from longshore.models.node_messages import NodeStatus
from longshore.models.units import parse_duration

if TYPE_CHECKING:
    from longshore.client.api import Longshore

_PANEL = "Nodes and pools"


def register(app: typer.Typer) -> None:
    for command in (nodes, topology, cordon, uncordon, drain):
        app.command(rich_help_panel=_PANEL)(command)


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
    """Place no new job on a node; running jobs continue.

    A bought machine that is billed as it runs ends once it has been cordoned and idle for ten
    minutes (`idle_after` where that is longer). Uncordon it before to keep it.
    """
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
    as_json: JSON = False,
) -> None:
    """Drain a node: it takes no new jobs, and its running jobs are moved.

    Jobs with checkpoints are moved at once, the others finish. With a deadline all jobs may stay
    until they have to save or stop for the node to be empty by then. A replica of a service stays
    until another is ready elsewhere; with a deadline it waits for that as long as it can, and for
    half of the time at least. A bought machine that is billed as it runs ends as with `cordon`.
    """
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
    if status.note:
        warn(status.note)
    return None


def _time(option: str, value: str) -> timedelta:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise SpecError(option, (f"{option} {value}: {error}",)) from None
