"""Edits of tenants and budgets: what they change, and what the database refuses."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from longshore.activities.funding.checks import check_budgets
from longshore.activities.funding.edits import apply_budgets, remove_budget, set_tenant
from longshore.activities.funding.rows import load_facts
from longshore.activities.funding.views import budgets_view, tenants_view
from longshore.models.errors import NotFoundError, RefusedError, SpecError
from longshore.models.funding import (
    Budget,
    BudgetMoney,
    Cap,
    Envelope,
    FundingClass,
    Lending,
    Quotas,
    Sharing,
    Tenant,
)
from longshore.models.funding_views import Edit, EnvelopeState
from tests.support.funding import (
    SINCE,
    cap,
    charge,
    envelope,
    funding_drift,
    job_of,
    sums,
    tenant,
    write_charge,
)
from tests.support.ledger import WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually

FAR = datetime(2100, 1, 1, tzinfo=UTC)


def an_envelope(name: str = "main", **fields: Any) -> Envelope:
    return Envelope.model_validate({"name": name, "gpus": 4, "end": None, **fields})


def a_budget(owner: str, *envelopes: Envelope, **fields: Any) -> Budget:
    return Budget(tenant=owner, envelopes=envelopes, **fields)


async def applied(ledger: Ledger, *budgets: Budget) -> list[tuple[str, Edit]]:
    async with ledger.database.transaction() as connection:
        changes = await apply_budgets(connection, budgets)
    return [(each.what, each.edit) for each in changes]


async def put(ledger: Ledger, name: str, parent: str | None = None, **fields: Any) -> None:
    async with ledger.database.transaction() as connection:
        await set_tenant(connection, Tenant(name=name, parent=parent, **fields))


async def test_a_cycle_in_the_tree_is_told_edge_by_edge(ledger: Ledger):
    await put(ledger, "a")
    await put(ledger, "b", "a")
    await put(ledger, "c", "b")
    with pytest.raises(
        RefusedError,
        match="parent: tenant a would be below itself: a is below c, c is below b, b is below a",
    ):
        await put(ledger, "a", "c")
    with pytest.raises(RefusedError, match="a is below a"):
        await put(ledger, "a", "a")
    with pytest.raises(NotFoundError, match=r"no tenant 'nobody'; there are a, b, c"):
        await put(ledger, "d", "nobody")
    await put(ledger, "c", None, shares=3, quotas=Quotas(max_gpus=2.5))
    await put(ledger, "a", "c")
    with pytest.raises(IntegrityError, match="keeps its name"):
        await ledger.rows("UPDATE tenants SET name = 'x' WHERE name = 'b'")
    async with ledger.database.transaction() as connection:
        seen = {each.name: each for each in await tenants_view(connection)}
    assert seen["c"].shares == 3
    assert seen["c"].quotas == Quotas(max_gpus=2.5)
    assert (seen["a"].parent, seen["b"].parent) == ("c", "a")


async def test_what_a_removed_cap_was_over_is_charged_and_ends_as_before(ledger: Ledger):
    await ledger.register()
    caps = (Cap(name="both", gpus=4, envelopes=("main",)), Cap(name="all", gpus=4, subtree=True))
    await applied(ledger, a_budget("a", an_envelope(), caps=caps))
    main = await ledger.value("SELECT id FROM envelopes")
    await write_charge(ledger, charge(await job_of(ledger, "before", "a"), main))
    assert await sums(ledger, "funding_caps") == {"a/both": 1000, "a/all": 1000}
    await applied(ledger, a_budget("a", an_envelope()))
    after = await job_of(ledger, "after", "a", (1,))
    await write_charge(ledger, charge(after, main, (1,)))
    for job in ("after", "before"):
        await ledger.finish(job)
    assert await sums(ledger) == {"a/main": 0}
    assert await sums(ledger, "funding_caps") == {"a/both": 0, "a/all": 0}
    assert await funding_drift(ledger) == []


async def test_two_edits_at_once_make_no_cycle_together(ledger: Ledger):
    names = [f"t{number}" for number in range(6)]
    for name in names:
        await put(ledger, name)
    around = zip(names, names[1:] + names[:1], strict=True)
    outcomes = await asyncio.gather(
        *(put(ledger, name, parent) for name, parent in around), return_exceptions=True
    )
    refused = [each for each in outcomes if each is not None]
    assert len(refused) == 1
    assert isinstance(refused[0], RefusedError)
    # By hand too: the database itself has them wait for each other.
    await ledger.rows("UPDATE tenants SET parent = NULL")
    async with ledger.database.transaction() as connection:
        await connection.execute(text("UPDATE tenants SET parent = 't1' WHERE name = 't0'"))
        other = asyncio.create_task(
            ledger.rows("UPDATE tenants SET parent = 't0' WHERE name = 't1'")
        )
        await eventually(lambda: ledger.value(WAITING_FOR_LOCKS))
    with pytest.raises(IntegrityError, match="t1 is below t0, t0 is below t1"):
        await other


async def test_a_budget_is_made_changed_and_taken_away(ledger: Ledger):
    budget = a_budget(
        "a", an_envelope(), an_envelope("spot", sharing=Sharing.NONE, end=FAR),
        caps=(Cap(name="both", gpus=5, envelopes=("main", "spot")),
              Cap(name="all", gpus=6, subtree=True)),
        money=BudgetMoney(per_day=5_000_000),
    )  # fmt: skip
    assert await applied(ledger, budget) == [
        ("budget", Edit.MADE), ("money", Edit.CHANGED), ("envelope main", Edit.MADE),
        ("envelope spot", Edit.MADE), ("cap both", Edit.MADE), ("cap all", Edit.MADE),
    ]  # fmt: skip
    assert await applied(ledger, budget) == []
    async with ledger.database.transaction() as connection:
        (seen,) = await budgets_view(connection)
        first = await load_facts(connection, None)
    assert [each.spec.name for each in seen.envelopes] == ["main", "spot"]
    assert {each.state for each in seen.envelopes} == {EnvelopeState.OPEN}
    assert [each.spec for each in seen.caps] == sorted(budget.caps, key=lambda each: each.name)
    assert seen.money == budget.money
    assert first is not None
    assert {len(each.envelopes) for each in first.caps} == {2}
    cut = a_budget(
        "a", an_envelope(gpus=3, labels={"zone": "z"}, lending=Lending(to=("b",), max=2)),
        caps=(Cap(name="both", gpus=2, envelopes=("main",)),),
    )  # fmt: skip
    async with ledger.database.transaction() as connection:
        changes = await apply_budgets(connection, [cut])
    assert [(each.what, each.edit, each.fields) for each in changes] == [
        ("money", Edit.CHANGED, ("per_day $5.00 to any",)),
        ("envelope spot", Edit.REMOVED, ()),
        ("envelope main", Edit.CHANGED, (
            "gpus 4 to 3", "labels any to zone=z", "lending none to 2 to b")),
        ("cap all", Edit.REMOVED, ()),
        ("cap both", Edit.CHANGED, ("gpus 5 to 2",)),
    ]  # fmt: skip
    async with ledger.database.transaction() as connection:
        await remove_budget(connection, "a")
        assert await load_facts(connection, None) is None
        with pytest.raises(NotFoundError, match="tenant 'a' has no budget"):
            await remove_budget(connection, "a")


async def test_a_cut_below_what_is_used_is_taken_and_below_what_is_lent_refused(ledger: Ledger):
    await ledger.register(gpus=8)
    await tenant(ledger, "b")
    lent = an_envelope(gpus=8, lending=Lending(to=("b", "c"), max=4), end=FAR)
    await applied(ledger, a_budget("a", lent, caps=(Cap(name="all", gpus=8, subtree=True),)))
    main = await ledger.value("SELECT id FROM envelopes")
    await job_of(ledger, "own", "a", (0, 1, 2))
    await job_of(ledger, "guest", "b", (3, 4))
    await write_charge(ledger, charge("own", main, (0, 1, 2)))
    await write_charge(ledger, charge("guest", main, (3, 4), lent=True))
    for edit, said in (
        ({"gpus": 1.5}, "has lent 2 GPUs: 1.5 would be less"),
        ({"lending": Lending(to=("b", "c"), max=1)}, "has lent 2 GPUs: 1 would be less"),
        ({"lending": Lending(to=("c",), max=4)}, "has lent GPUs to b: it lends to b until"),
        ({"lending": None}, "has lent 2 GPUs: 0 would be less"),
        ({"end": FAR - timedelta(days=1)}, "neither ends earlier"),
        ({"gpu_type": "A100"}, "nor is for other GPUs"),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match=said):
            await applied(ledger, a_budget("a", lent.model_copy(update=edit)))
    with pytest.raises(RefusedError, match="neither ends earlier"):
        await applied(ledger, a_budget("a"))
    with pytest.raises(RefusedError, match="cap a/all: 2 GPUs of its envelopes are lent, and 1"):
        await applied(ledger, a_budget("a", lent, caps=(Cap(name="all", gpus=1, subtree=True),)))
    with pytest.raises(RefusedError, match="budget of a: "):
        async with ledger.database.transaction() as connection:
            await remove_budget(connection, "a")
    # Below what is used, and not below what is lent: the owner's own charges give way.
    assert await applied(ledger, a_budget("a", lent.model_copy(update={"gpus": 4.0}))) == [
        ("envelope main", Edit.CHANGED), ("cap all", Edit.REMOVED),
    ]  # fmt: skip
    assert await sums(ledger) == {"a/main": 5000}
    await ledger.finish("own")
    await ledger.finish("guest")
    assert await applied(ledger, a_budget("a")) == [("envelope main", Edit.REMOVED)]
    assert await funding_drift(ledger) == []


async def test_what_is_past_of_a_window_is_fixed_and_a_renewed_one_is_new(ledger: Ledger):
    with pytest.raises(SpecError) as wrong:
        await applied(ledger, a_budget("a", an_envelope(end=SINCE), an_envelope("spot")))
    assert "envelopes.main.end: must be after now" in wrong.value.problems[0]
    assert await ledger.rows("SELECT FROM tenants") == []
    await applied(ledger, a_budget("a", an_envelope(start=SINCE, end=FAR)))
    with pytest.raises(SpecError, match=r"envelopes\.main\.start: it has begun at 2026-11-01"):
        await applied(ledger, a_budget("a", an_envelope(start=FAR, end=None)))
    # Another start in the past changes nothing that counts.
    assert await applied(ledger, a_budget("a", an_envelope(end=FAR))) == []
    end = await ledger.value("UPDATE envelopes SET ends_at = clock_timestamp() RETURNING ends_at")
    for change in ("ends_at = NULL", "ends_at = ends_at - interval '1 s'", "starts_at = now()"):
        with pytest.raises(IntegrityError, match="has ended at"):
            await ledger.rows(f"UPDATE envelopes SET {change}")
    assert await applied(ledger, a_budget("a", an_envelope(start=SINCE, end=end))) == []
    for start in (SINCE, None):
        with pytest.raises(SpecError, match=r"gpus 4 to 1000\.125; an end after"):
            await applied(ledger, a_budget("a", an_envelope(start=start, end=end, gpus=1000.125)))
    assert await applied(ledger, a_budget("a", an_envelope(start=SINCE, end=FAR))) == [
        ("envelope main", Edit.RENEWED)
    ]
    rows = await ledger.rows("SELECT starts_at, ends_at, removed_at FROM envelopes ORDER BY id")
    assert rows[0]["ends_at"] == end
    assert rows[0]["removed_at"] is not None
    assert rows[1]["starts_at"] > end
    with pytest.raises(IntegrityError, match="what is past is fixed"):
        await ledger.rows("UPDATE envelopes SET starts_at = now() WHERE removed_at IS NULL")
    with pytest.raises(IntegrityError, match="before now"):
        await ledger.rows(
            "UPDATE envelopes SET ends_at = now() - interval '1 s' WHERE removed_at IS NULL"
        )
    with pytest.raises(IntegrityError, match="never becomes another one"):
        await ledger.rows("UPDATE envelopes SET milli = 1 WHERE removed_at IS NOT NULL")


async def test_without_a_start_an_envelope_that_was_to_open_opens_now(ledger: Ledger):
    later = datetime.now(UTC) + timedelta(days=90)
    await applied(ledger, a_budget("a", an_envelope(start=later, end=FAR)))
    soon = datetime.now(UTC) + timedelta(days=30)
    assert await applied(ledger, a_budget("a", an_envelope(end=soon))) == [
        ("envelope main", Edit.CHANGED)
    ]
    assert await ledger.value("SELECT starts_at <= clock_timestamp() FROM envelopes")
    assert await applied(ledger, a_budget("a", an_envelope(end=soon))) == []


async def test_a_check_tells_who_would_lose_what_and_changes_nothing(ledger: Ledger):
    await ledger.register(gpus=8)
    await put(ledger, "root")
    await put(ledger, "a", "root")
    await job_of(ledger, "first", "a", (0, 1))
    await job_of(ledger, "later", "a", (2, 3))
    budget = a_budget("a", an_envelope(gpus=2, lending=Lending(to=("root",), max=1)))
    edit = await check_budgets(ledger.database, [budget])
    assert [each.edit for each in edit.changes] == [Edit.MADE, Edit.MADE]
    assert edit.notes == (
        "root has no budget: a tenant without one pays for all that it uses, and borrows nothing",
    )
    (move,) = edit.moves
    assert (move.job_id, move.job_name, move.tenant, move.loses) == ("later", "job", "a", True)
    assert move.before == {FundingClass.OWNED: 2.0}
    assert move.after == {FundingClass.UNFUNDED: 2.0}
    assert move.payers_before == {"a": 2.0}
    assert await ledger.rows("SELECT FROM envelopes") == []
    assert await ledger.value("SELECT budget_since FROM tenants WHERE name = 'a'") is None
    with_root = await check_budgets(
        ledger.database, [budget, a_budget("root", an_envelope(gpus=8))]
    )
    (move,) = with_root.moves
    assert move.after == {FundingClass.SHARED: 2.0}
    assert move.payers_after == {"root": 2.0}


async def test_a_check_says_what_is_perhaps_not_meant(ledger: Ledger):
    async def notes(*budgets: Budget) -> tuple[str, ...]:
        return (await check_budgets(ledger.database, budgets)).notes

    await ledger.register(gpus=1)
    await ledger.rows("""UPDATE nodes SET labels = '{"zone": "a"}'""")
    await ledger.register("other", gpus=1)
    await ledger.rows("""UPDATE nodes SET labels = '{"disk": "nvme"}' WHERE id = 'other'""")
    await put(ledger, "vision")
    await ledger.enqueue("waits", tenant="worker")
    assert await notes(a_budget("vision"), a_budget("worker")) == ()
    new = "tenant: it is new, and is made with this budget"
    assert await notes(a_budget("ghost")) == (f"ghost: {new}",)
    assert await notes(a_budget("visio")) == (f"visio: {new}; did you mean vision?",)
    lent = an_envelope(lending=Lending(to=("visoin", "ghost", "worker"), max=1))
    where = "vision: envelopes.main.lending.to: there is no tenant"
    assert await notes(a_budget("vision", lent), a_budget("worker")) == (
        f"{where} 'visoin' yet; did you mean vision?",
        f"{where} 'ghost' yet; known are vision, worker",
    )
    told = await notes(a_budget("vision", lent), a_budget("ghost"))
    assert told[2:] == (
        "worker has no budget: a tenant without one pays for all that it uses, and borrows "
        "nothing",
    )
    labels = {"zone": "a", "disk": "nvme"}
    assert await notes(a_budget("vision", an_envelope(labels={"zone": "a"}))) == ()
    assert await notes(a_budget("vision", an_envelope(labels=labels))) == (
        "vision: envelopes.main.labels: no node has 'disk=nvme', 'zone=a' together",
    )
    assert await notes(a_budget("vision", an_envelope(labels={"zone": "a", "disk": "ssd"}))) == (
        "vision: envelopes.main.labels: no node has 'disk=ssd'",
    )
    await applied(ledger, a_budget("vision", an_envelope(), an_envelope("spot")))
    assert await notes(a_budget("vision")) == (
        "vision: envelopes: this budget has none, so all that there are of it are removed: main, "
        "spot",
    )
    await applied(ledger, a_budget("vision"))
    assert await notes(a_budget("vision")) == ()


async def test_a_tenant_with_charges_keeps_its_budget(ledger: Ledger):
    await ledger.register(gpus=1)
    await tenant(ledger, "a")
    await tenant(ledger, "b")
    main = await envelope(ledger, "b")
    await cap(ledger, "b", 5000)
    await ledger.rows("UPDATE tenants SET parent = 'b' WHERE name = 'a'")
    await job_of(ledger, "j", "a")
    await write_charge(ledger, charge("j", main))
    with pytest.raises(IntegrityError, match="its budget stays"):
        await ledger.rows("UPDATE tenants SET budget_since = NULL WHERE name = 'a'")
    with pytest.raises(IntegrityError, match="that is fixed"):
        await ledger.rows("UPDATE tenants SET budget_since = now() WHERE name = 'a'")
    async with ledger.database.transaction() as connection:
        await remove_budget(connection, "a")
    assert await ledger.value("SELECT end_reason FROM charges") == "budget removed"
    assert await funding_drift(ledger) == []


async def test_tenants_are_shown_with_what_those_below_them_hold(ledger: Ledger):
    await ledger.register(gpus=8)
    await put(ledger, "root")
    await put(ledger, "a", "root")
    await job_of(ledger, "j", "a", (0, 1))
    await job_of(ledger, "k", "root", (2,), milli=250)
    await job_of(ledger, "other", "free", (3,))
    await ledger.enqueue("waits", tenant="a")
    async with ledger.database.transaction() as connection:
        seen = {each.name: each for each in await tenants_view(connection)}
    assert seen["root"].own.gpus == 0.25
    assert seen["root"].subtree.model_dump() == {
        "gpus": 2.25, "nodes": 1, "jobs": 2, "queued": 1, "sensitive_nodes": 0,
    }  # fmt: skip
    assert (seen["free"].known, seen["free"].own.gpus) == (False, 1.0)
