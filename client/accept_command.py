"""The command `longshore accept`: the fingerprint that a node has now is the one to go by."""

from typing import TYPE_CHECKING

import typer

from longshore.client.calls import call
from longshore.client.node_commands import NODE
from longshore.client.terminal import JSON, note, print_json, say, warn

if TYPE_CHECKING:  # it loads the database, and every command loads this module
    from longshore.activities.fingerprints import Accepted


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Nodes and pools")(accept)


def accept(node: NODE, as_json: JSON = False) -> None:
    """Accept the fingerprint that a node has now, so that sensitive jobs may run there again."""
    found: Accepted = call(lambda api: api.accept(node))
    if as_json:
        return print_json(found)
    for each in found.notes:
        warn(each)
    if found.before == found.fingerprint:
        return note(f"{node} has the fingerprint {found.fingerprint}, which is accepted already.")
    before = found.before or "none"
    return say(f"{node}: {found.fingerprint} is accepted (before: {before})")
