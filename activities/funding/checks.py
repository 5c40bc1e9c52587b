"""What an edit of budgets, or of the tree of tenants, would change, without making it."""

import contextlib
import difflib
from collections.abc import Awaitable, Callable, ItemsView, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.funding.edits import apply_budgets, set_tenant
from longshore.activities.funding.outlasting import ends_sooner, load_expected, outlasting
from longshore.activities.funding.rows import load_facts
from longshore.activities.funding.views import names_without_budget
from longshore.activities.stored_nodes import stored_labels
from longshore.models.funding import Budget, FundingClass, Tenant
from longshore.models.funding_views import BudgetChange, BudgetEdit, ClassMove, Edit
from longshore.models.market import InstanceType
from longshore.models.mig import listed_models
from longshore.models.text import listed
from longshore.models.visible import shown
from longshore.scheduling.funding.evaluate import evaluate
from longshore.scheduling.funding.facts import Facts, Use
from longshore.scheduling.funding.split import Split

_NAMED = 10
_COMMON = frozenset(name.partition("-")[0] for name in listed_models())
"""Types that are known whether a node has them or not."""


class _Seen(NamedTuple):
    edited: BudgetEdit
    before: Facts | None
    after: Facts | None
    names: Mapping[str, str]
    now: datetime
    sooner: frozenset[int]
    """Envelopes that are to end sooner than they were."""
    expected: Mapping[str, datetime | None]
    """Where there are such: when jobs that run are expected to end, as far as that is known."""


class _Undone(Exception):
    """Ends the transaction without its changes; no error."""

    def __init__(self, seen: _Seen) -> None:
        self.seen = seen


async def check_budgets(database: Database, budgets: Sequence[Budget]) -> BudgetEdit:
    """Return what the application of budgets would change, and for whose jobs others would pay.

    It is applied for the moment, and taken back: what the database would refuse is refused here.
    """

    async def edit(connection: AsyncConnection) -> BudgetEdit:
        return await apply_with_notes(connection, budgets)

    return await _checked(database, edit)


async def check_tenant(database: Database, tenant: Tenant) -> BudgetEdit:
    """Return for whose jobs others would pay if a tenant stood where this says; likewise."""

    async def edit(connection: AsyncConnection) -> BudgetEdit:
        await set_tenant(connection, tenant)
        return BudgetEdit()

    return await _checked(database, edit)


async def _checked(
    database: Database, edit: Callable[[AsyncConnection], Awaitable[BudgetEdit]]
) -> BudgetEdit:
    try:
        async with database.transaction() as connection:
            raise _Undone(await _seen(connection, edit))
    except _Undone as undone:
        seen = undone.seen
    # Outside: nobody waits for the locks of the edit while this counts.
    moves = moves_between(seen.before, seen.after, seen.names, seen.now)
    notes = seen.edited.notes
    if seen.after is not None and seen.sooner:
        notes += outlasting(seen.after, seen.sooner, seen.expected, seen.now)
    return seen.edited.model_copy(update={"moves": moves, "notes": notes})


async def _seen(
    connection: AsyncConnection, edit: Callable[[AsyncConnection], Awaitable[BudgetEdit]]
) -> _Seen:
    before = await load_facts(connection, None)
    edited = await edit(connection)
    after = await load_facts(connection, None)
    ids = [use.job_id for use in after.uses] if after else []
    rows = await connection.execute(
        text("SELECT id, name FROM jobs WHERE id = ANY(:ids)"), {"ids": ids}
    )
    names = {row.id: row.name for row in rows}
    sooner = ends_sooner(_ends(before), _ends(after))
    expected = await load_expected(connection, after) if after and sooner else {}
    return _Seen(edited, before, after, names, await clock(connection), sooner, expected)


def _ends(facts: Facts | None) -> dict[int, datetime | None]:
    return {id: owned.spec.end for id, owned in facts.envelopes.items()} if facts else {}


async def apply_with_notes(connection: AsyncConnection, budgets: Sequence[Budget]) -> BudgetEdit:
    """Make the budgets of these tenants what is given; return what that has changed, and what is
    right in them and perhaps not meant."""
    named = {budget.tenant for budget in budgets} | {name for _, name in _borrowers(budgets)}
    known = await _known_tenants(connection, named)
    changes = await apply_budgets(connection, budgets)
    notes = (
        *_new_tenants(budgets, known),
        *_without_envelopes(budgets, changes),
        *await _unknown_in(connection, budgets),
        *_unknown_borrowers(budgets, known),
        *await _without_budget(connection, budgets, known),
    )
    return BudgetEdit(changes=changes, notes=notes)


async def _known_tenants(connection: AsyncConnection, named: set[str]) -> list[str]:
    """Return the tenants that there are, and those of these names that have jobs alone."""
    found = set(await connection.scalars(text("SELECT name FROM tenants")))
    found.update(await connection.scalars(text(_HAVE_JOBS), {"names": sorted(named - found)}))
    return sorted(found)


def _new_tenants(budgets: Sequence[Budget], known: Sequence[str]) -> list[str]:
    return [
        f"{budget.tenant}: tenant: it is new, and is made with this budget"
        f"{_close(budget.tenant, known)}"
        for budget in budgets
        if budget.tenant not in known
    ]


def _without_envelopes(budgets: Sequence[Budget], changes: Sequence[BudgetChange]) -> list[str]:
    """Return whose envelopes all are removed, as its budget has none any more."""
    gone: dict[str, list[str]] = {budget.tenant: [] for budget in budgets if not budget.envelopes}
    for each in changes:
        kind, _, name = each.what.partition(" ")
        if each.tenant in gone and kind == "envelope" and each.edit is Edit.REMOVED:
            gone[each.tenant].append(name)
    return [
        f"{tenant}: envelopes: this budget has none, so all that there are of it are removed: "
        f"{listed(sorted(names), _NAMED)}"
        for tenant, names in gone.items()
        if names
    ]


def _borrowers(budgets: Sequence[Budget]) -> list[tuple[str, str]]:
    """Return to whom envelopes are lent, each with the field that says it."""
    return [
        (f"{budget.tenant}: envelopes.{each.name}.lending.to", name)
        for budget in budgets
        for each in budget.envelopes
        if each.lending is not None
        for name in each.lending.to
    ]


def _unknown_borrowers(budgets: Sequence[Budget], known: Sequence[str]) -> list[str]:
    there = sorted({*known, *(budget.tenant for budget in budgets)})
    return [
        f"{where}: there is no tenant {shown(name)} yet{_meant(name, there)}"
        for where, name in _borrowers(budgets)
        if name not in there
    ]


async def _unknown_in(connection: AsyncConnection, budgets: Sequence[Budget]) -> tuple[str, ...]:
    """Return which envelopes are for GPUs of a type, of a pool, or of nodes with labels, that
    nobody knows. They may come later: such an envelope pays for nothing until then."""
    selectors = [
        (f"{budget.tenant}: envelopes.{each.name}", each)
        for budget in budgets
        for each in budget.envelopes
    ]
    found: list[str] = []
    if any(each.gpu_type for _, each in selectors):
        types = await _known_types(connection)
        known = {name.casefold() for name in types}
        found += [
            f"{where}.gpu_type: no node and no offer has {shown(each.gpu_type)}"
            f"{_meant(each.gpu_type, types)}"
            for where, each in selectors
            if each.gpu_type is not None and each.gpu_type.casefold() not in known
        ]
    if any(each.pool for _, each in selectors):
        pools = sorted(await connection.scalars(text("SELECT name FROM pools")))
        found += [
            f"{where}.pool: there is no pool {shown(each.pool)} yet{_meant(each.pool, pools)}"
            for where, each in selectors
            if each.pool is not None and each.pool not in pools
        ]
    if any(each.labels for _, each in selectors):
        rows = await connection.scalars(text("SELECT DISTINCT labels FROM nodes"))
        nodes = [labels.items() for row in rows if (labels := stored_labels(row)) is not None]
        found += [
            f"{where}.labels: no node has {pairs}"
            for where, each in selectors
            if (pairs := _unknown_labels(each.labels, nodes))
        ]
    return tuple(found)


def _unknown_labels(labels: Mapping[str, str], nodes: Sequence[ItemsView[str, str]]) -> str:
    """Return which of these labels no node has; all of them where each is on some node, and no
    node has them together."""
    if any(labels.items() <= each for each in nodes):
        return ""
    alone = {pair for pair in labels.items() if not any(pair in each for each in nodes)}
    pairs = listed(
        [shown(f"{name}={value}") for name, value in sorted(alone or labels.items())], _NAMED
    )
    return pairs if alone else f"{pairs} together"


def _meant(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean H100?``, or what there is."""
    if close := _close(name, known):
        return close
    return f"; known {'is' if len(known) == 1 else 'are'} {listed(known, _NAMED) or 'none'}"


def _close(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean H100?``; nothing where no name is like it."""
    close = difflib.get_close_matches(name.casefold(), {each.casefold() for each in known}, 1)
    if not close:
        return ""
    return f"; did you mean {next(each for each in known if each.casefold() == close[0])}?"


async def _known_types(connection: AsyncConnection) -> list[str]:
    """Return the types of GPUs that nodes have or had, that are or were for sale, and that are
    known by name."""
    nodes = await connection.scalars(text("SELECT DISTINCT gpu_type FROM nodes"))
    books = await connection.scalars(text("SELECT DISTINCT instance_type FROM market_books"))
    found = {name.casefold(): name for name in _COMMON}
    for instance in books:
        with contextlib.suppress(ValueError):
            gpu_type = InstanceType.parse(instance).gpu_type
            found.setdefault(gpu_type.casefold(), gpu_type)
    found.update({each.casefold(): each for each in nodes if each})
    return sorted(found.values())


async def _without_budget(
    connection: AsyncConnection, budgets: Sequence[Budget], known: Sequence[str]
) -> tuple[str, ...]:
    borrowers = [name for _, name in _borrowers(budgets) if name in known]
    without = await names_without_budget(connection, borrowers)
    if not without:
        return ()
    who = listed(without, _NAMED)
    return (
        f"{who} {'has' if len(without) == 1 else 'have'} no budget: a tenant without one pays for "
        "all that it uses, and borrows nothing",
    )


def moves_between(
    before: Facts | None, after: Facts | None, names: Mapping[str, str], now: datetime
) -> tuple[ClassMove, ...]:
    """Return the jobs that run for which others pay `after`, those that lose first."""
    if after is None:
        return ()
    was = evaluate(before, now).splits if before else {}
    split = evaluate(after, now).splits
    moves: list[ClassMove] = []
    for use in after.uses:
        key = use.job_id, use.attempt
        old, new = was.get(key) or _by_itself(use), split[key]
        if old == new:
            continue
        moves.append(
            ClassMove(
                job_id=use.job_id, job_name=names.get(use.job_id, ""), attempt=use.attempt,
                tenant=use.tenant, before=_classes(old), after=_classes(new),
                payers_before=_payers(old), payers_after=_payers(new),
                loses=(new.unfunded, new.unfunded + new.shared)
                > (old.unfunded, old.unfunded + old.shared),
            )
        )  # fmt: skip
    moves.sort(key=lambda move: (not move.loses, move.tenant, move.job_id))
    return tuple(moves)


def _by_itself(use: Use) -> Split:
    """Return the split of a tenant without a budget."""
    whole = sum(share.amount for share in use.shares)
    return Split(owned=whole, payers=((use.tenant, FundingClass.OWNED, whole),))


def _classes(split: Split) -> dict[FundingClass, float]:
    found = {
        FundingClass.OWNED: split.owned, FundingClass.SHARED: split.shared,
        FundingClass.BORROWED: split.borrowed, FundingClass.UNFUNDED: split.unfunded,
    }  # fmt: skip
    return {each: milli / 1000 for each, milli in found.items() if milli}


def _payers(split: Split) -> dict[str, float]:
    found: dict[str, float] = {}
    for tenant, _, milli in split.payers:
        found[tenant] = found.get(tenant, 0.0) + milli / 1000
    return found


_HAVE_JOBS = """
    SELECT n.tenant FROM unnest(CAST(:names AS text[])) AS n (tenant)
     WHERE EXISTS (SELECT FROM jobs j WHERE j.tenant = n.tenant)
"""
