"""What the Temporal UI tells of who pays for a job: an attribute to filter by, and a sentence."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from benchmarks.costs import actions
from longshore.activities.funding import telling
from longshore.activities.signals import Signals
from longshore.client import budgets
from longshore.client.api import Longshore
from longshore.models.errors import SpecError, UnavailableError
from longshore.models.funding import Budget, Envelope, Tenant
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from tests.support.control import a_spec, reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def family(longshore: Longshore) -> tuple[str, str]:
    """Make two siblings with budgets; the first has an envelope of one GPU."""
    name = uuid.uuid4().hex[:8]
    root, red, blue = f"root-{name}", f"red-{name}", f"blue-{name}"
    await longshore.set_tenant(Tenant(name=root))
    for tenant in (red, blue):
        await longshore.set_tenant(Tenant(name=tenant, parent=root))
    main = Envelope(name="main", gpus=1, end=None)
    await longshore.apply_budgets([Budget(tenant=red, envelopes=(main,)), Budget(tenant=blue)])
    return red, blue


async def test_a_budget_that_is_stored_is_told_so_also_where_its_notes_cannot_be_had(
    longshore: Longshore, monkeypatch: pytest.MonkeyPatch
):
    async def away(*_: object) -> tuple[str, ...]:
        raise UnavailableError("the capacity database went away")

    monkeypatch.setattr(budgets, "notes_of_ends", away)
    red, _ = await family(longshore)
    end = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    main = Envelope(name="main", gpus=1, end=end)
    edit = await longshore.apply_budgets([Budget(tenant=red, envelopes=(main,))])
    assert edit.changes
    (stored,) = await longshore.budgets(red)
    assert [each.spec.end for each in stored.envelopes] == [end]


async def test_a_change_is_stored_and_told_so_where_the_pools_cannot_be_woken(
    longshore: Longshore, node: ScriptedNode, pool: str, monkeypatch: pytest.MonkeyPatch
):
    async def away(*_: object) -> None:
        raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")

    red, _ = await family(longshore)
    job_id = (await longshore.submit(a_spec(pool, tenant=red))).job_id
    await reaches(longshore, job_id, JobState.RUNNING)
    monkeypatch.setattr(Signals, "poke_pool", away)
    main = Envelope(name="main", gpus=2, end=None)
    edits = [
        await longshore.apply_budgets([Budget(tenant=red, envelopes=(main,))]),
        await longshore.set_tenant(Tenant(name=red, shares=3)),
        await longshore.remove_budget(red),
    ]
    said = "it is stored, but the pools were not told, and will go by it at the next look: "
    for edit in edits:
        (note,) = edit.notes
        assert note.startswith(f"{said}Temporal does not answer")
    assert [len(edit.changes) for edit in edits] == [1, 0, 1]
    (tenant,) = [each for each in await longshore.tenants() if each.name == red]
    assert tenant.shares == 3


async def test_who_holds_a_gpu_at_a_time_that_has_not_come_is_not_told(longshore: Longshore):
    found = await longshore.leases()
    assert (await longshore.leases(found.at)).at == found.at
    with pytest.raises(SpecError, match=r"^at: give a time that has passed$"):
        await longshore.leases(found.at + timedelta(hours=1))


async def funding_class(temporal: Client, job_id: str) -> object:
    described = await temporal.get_workflow_handle(job_workflow_id(job_id)).describe()
    found = described.search_attributes.get("FundingClass")
    return found[0] if found else None


async def card(temporal: Client, job_id: str) -> str:
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    return (await handle.query("__temporal_workflow_metadata")).current_details


async def test_it_tells_who_pays_and_that_it_was_recalled_and_is_funded_again(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(telling, "TOLD_EVERY", timedelta(0))
    red, blue = await family(longshore)
    borrower = (await longshore.submit(a_spec(pool, tenant=blue))).job_id
    await reaches(longshore, borrower, JobState.RUNNING)

    async def told(funding: str, sentence: str) -> bool:
        assert await funding_class(temporal, borrower) == funding
        assert f"**Paid for** {sentence} (since" in await card(temporal, borrower)
        return True

    await eventually(lambda: told("SHARED", f"1 SHARED by {red}/main"))
    owner = (await longshore.submit(a_spec(pool, tenant=red))).job_id
    await reaches(longshore, owner, JobState.RUNNING)
    assert await funding_class(temporal, owner) == "OWNED"
    recalled = f"recalled: {red}/main pays for {owner} now; 1 UNFUNDED: preempted first"
    await eventually(lambda: told("UNFUNDED", recalled))
    await node.end(owner)
    await longshore.wait(owner)
    await eventually(lambda: told("SHARED", f"funded again: 1 SHARED by {red}/main"))
    await node.end(borrower)
    await longshore.wait(borrower)
    assert "Paid for" not in await card(temporal, borrower)
    cost = await actions(temporal, job_workflow_id(owner))
    assert cost == {"start": 1, "signal": 1, "activity": 3, "upsert": 1}, "six, with a budget too"
    cost = await actions(temporal, job_workflow_id(borrower))
    assert cost == {"start": 1, "signal": 3, "activity": 3, "upsert": 3}, "two for each change"


async def test_a_job_that_waits_again_is_of_no_class(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    red, _ = await family(longshore)
    job_id = (await longshore.submit(a_spec(pool, tenant=red))).job_id
    await reaches(longshore, job_id, JobState.RUNNING)
    assert await funding_class(temporal, job_id) == "OWNED"
    await longshore.hold(job_id)
    await reaches(longshore, job_id, JobState.HELD)
    assert await funding_class(temporal, job_id) is None
    await longshore.cancel(job_id)
    await longshore.wait(job_id)
    cost = await actions(temporal, job_workflow_id(job_id))
    assert cost["upsert"] == 2


async def test_a_tenant_without_a_budget_hears_nothing_of_it(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    await family(longshore)
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, job_id, JobState.RUNNING)
    assert await funding_class(temporal, job_id) is None
    assert "Paid for" not in await card(temporal, job_id)
    await node.end(job_id)
    await longshore.wait(job_id)
