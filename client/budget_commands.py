"""`longshore tenants`, `longshore tenant` and `longshore budget`: whose GPUs are whose."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.budget_file import read_budgets
from longshore.client.budget_view import (
    budgets_table,
    change_line,
    money_lines,
    moves_table,
    quotas_words,
    tenants_table,
)
from longshore.client.calls import call
from longshore.client.terminal import JSON, note, out, print_json, say, show, warn
from longshore.models.document import Override, load_document
from longshore.models.funding import NO_PARENT, Tenant
from longshore.models.funding_views import ClassMove
from longshore.models.text import count

if TYPE_CHECKING:
    from longshore.client.api import Longshore

tenant_app = typer.Typer(help="Tenants: parent, shares and quotas.", no_args_is_help=True)
budget_app = typer.Typer(
    help="Budgets of tenants: envelopes, caps and money.", no_args_is_help=True
)
_PANEL = "Tenants and budgets"

FILE = Annotated[
    str,
    typer.Argument(metavar="FILE", help="Budget file (YAML or JSON); - reads stdin."),
]
TENANT = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=_PANEL)(tenants)
    app.add_typer(tenant_app, name="tenant", rich_help_panel=_PANEL)
    app.add_typer(budget_app, name="budget", rich_help_panel=_PANEL)


def tenants(as_json: JSON = False) -> None:
    """List the tenants as a tree, with usage and quotas."""
    found = call(lambda api: api.tenants())
    if as_json:
        return print_json(found)
    if not found:
        return note("No tenants yet. One is made by its first job, or `longshore tenant set`.")
    show(tenants_table(found, out().width))
    if any(each.parent for each in found):
        note("What a tenant holds, and its quotas, are with those below it.")
    return None


@tenant_app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="The tenant; created if it is new.")],
    parent: Annotated[
        str | None, typer.Option(metavar="TENANT|none", help="Its parent tenant.")
    ] = None,
    shares: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Its shares of its parent (default: 1).")
    ] = None,
    max_gpus: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|none", help="Most GPUs that it and its children hold at one time."
        ),
    ] = None,
    max_nodes: Annotated[
        str | None,
        typer.Option(metavar="NUMBER|none", help="Most nodes on which they have jobs."),
    ] = None,
    max_jobs: Annotated[
        str | None, typer.Option(metavar="NUMBER|none", help="Most running jobs.")
    ] = None,
    max_queued: Annotated[
        str | None, typer.Option(metavar="NUMBER|none", help="Most waiting jobs.")
    ] = None,
    sensitive_nodes: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|none", help="Most nodes that their sensitive jobs hold exclusively."
        ),
    ] = None,
    gpu_hours: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|none",
            help="GPU-hours in 90 rolling days; jobs of a tenant above it come later, and are not "
            "refused.",
        ),
    ] = None,
    node_hours: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|none",
            help="Node-hours in 90 rolling days; the higher usage of both counts.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which jobs would lose a payer; change nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask, even if jobs would lose a payer.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Change the parent, shares and quotas of a tenant; the others stay as they are.

    A quota that is lowered stops new work only. Where another parent would have running jobs lose
    a payer, these are named, and on a terminal it is asked first.
    """
    given = (
        ("parent", "parent", parent), ("shares", "shares", shares),
        ("quotas.max_gpus", "max-gpus", max_gpus), ("quotas.max_nodes", "max-nodes", max_nodes),
        ("quotas.max_jobs", "max-jobs", max_jobs), ("quotas.max_queued", "max-queued", max_queued),
        ("quotas.sensitive_nodes", "sensitive-nodes", sensitive_nodes),
        ("quotas.gpu_hours", "gpu-hours", gpu_hours),
        ("quotas.node_hours", "node-hours", node_hours),
    )  # fmt: skip
    changes = [
        Override(field, _value(field, value), f"--{option} {value}")
        for field, option, value in given
        if value is not None
    ]

    async def store(api: "Longshore") -> Tenant | None:
        known = {each.name: each for each in await api.tenants() if each.known}
        before = known.get(name)
        fields = {"name", "parent", "shares", "quotas"}
        text = before.model_dump_json(include=fields) if before else json.dumps({"name": name})
        tenant = load_document(text, f"tenant {name}", Tenant, changes)
        edit = None
        if dry_run or tenant.parent != (before.parent if before else None):
            edit = await api.check_tenant(tenant)
        if edit is not None and (edit.moves or dry_run):
            if not as_json:
                _say_moves(edit.moves)
            lose = sum(move.loses for move in edit.moves)
            if lose and not (dry_run or yes) and sys.stdin.isatty():
                ask = "Change it?"
                if as_json:
                    ask = f"{count(lose, 'job')} would lose a payer (--dry-run names them). {ask}"
                typer.confirm(ask, abort=True, default=False, err=as_json)
        if dry_run:
            if as_json:
                print_json(edit)
            return None
        for each in (await api.set_tenant(tenant)).notes:
            warn(each)
        return tenant

    tenant = call(store)
    if tenant is None:
        return None if as_json else say("Nothing is changed: it was a dry run.")
    if as_json:
        return print_json(tenant)
    parts = [f"below {tenant.parent}"] if tenant.parent else []
    parts += [f"shares {tenant.shares:g}", *filter(None, [quotas_words(tenant.quotas)])]
    say(f"tenant {name} is set: {', '.join(parts)}")
    return None


def _value(field: str, value: str) -> str:
    if value == NO_PARENT and field != "shares":
        return "null"
    return json.dumps(value) if field == "parent" else value


@budget_app.command("apply")
def apply(file: FILE, as_json: JSON = False) -> None:
    """Set the budgets of the tenants in a file; envelopes and caps not in the file are removed.

    A tenant that has none yet stops paying for all that it uses.
    """
    budgets = read_budgets(file)
    edit = call(lambda api: api.apply_budgets(budgets))
    if as_json:
        return print_json(edit)
    for each in edit.notes:
        warn(each)
    if not edit.changes:
        return say("Nothing is changed: the budgets are as the file says.")
    for change in edit.changes:
        say(change_line(change))
    return note("The next cycle of each pool goes by this; `longshore budget show` tells it.")


@budget_app.command("check")
def check(file: FILE, as_json: JSON = False) -> None:
    """Show what a file would change, and which running jobs would lose their payer."""
    budgets = read_budgets(file)
    edit = call(lambda api: api.check_budgets(budgets))
    if as_json:
        return print_json(edit)
    for each in edit.notes:
        warn(each)
    for change in edit.changes:
        say(f"would: {change_line(change)}")
    if not edit.changes:
        return say("Nothing would change: the budgets are as the file says.")
    return _say_moves(edit.moves)


def _say_moves(moves: Sequence[ClassMove]) -> None:
    """Say for which running jobs others would pay."""
    if not moves:
        return say("No running job would have another payer now.")
    show(moves_table(moves))
    lose = sum(move.loses for move in moves)
    others = len(moves) - lose
    said = f"{count(lose, 'job')} would lose a payer, or the right to keep it"
    note(
        f"{said}; {count(others, 'other')} would be paid for otherwise." if others else f"{said}."
    )
    return None


@budget_app.command("show")
def show_(
    tenant: Annotated[
        str | None, typer.Argument(metavar="[TENANT]", help="Only this tenant's (default: all).")
    ] = None,
    as_json: JSON = False,
) -> None:
    """List envelopes and caps, with their current usage."""
    found = call(lambda api: api.budgets(tenant))
    if as_json:
        return print_json(found)
    if not found:
        return note(
            "No tenant has a budget: each pays for all that it uses. `longshore budget apply "
            "FILE` gives one."
        )
    show(budgets_table(found, out().width))
    for line in money_lines(found):
        say(line)
    return None


@budget_app.command("remove")
def remove(tenant: TENANT, as_json: JSON = False) -> None:
    """Remove the budget of a tenant; it then pays for all its usage again."""
    edit = call(lambda api: api.remove_budget(tenant))
    if as_json:
        return print_json(edit)
    for each in edit.notes:
        warn(each)
    return say(f"tenant {tenant} has no budget any more, and pays for all that it uses")
