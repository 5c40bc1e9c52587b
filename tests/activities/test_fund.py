"""Who would pay for a job, envelope by envelope, as its next cycle finds it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.funding.fund import fund_view
from longshore.models.errors import NotFoundError
from longshore.models.fund_view import FundView
from longshore.models.margins import DEFAULT_MARGINS
from tests.support.funding import cap, envelope, tenant
from tests.support.ledger import Ledger


@pytest.fixture
async def funded(ledger: Ledger) -> Ledger:
    """`red` and `blue` below `root`, a bank that lends, and a node of eight GPUs."""
    await ledger.register(gpus=8)
    await tenant(ledger, "root")
    await tenant(ledger, "red", "root")
    await tenant(ledger, "blue", "root")
    await tenant(ledger, "bank")
    return ledger


async def asked(ledger: Ledger, job: str) -> FundView:
    async with ledger.database.snapshot() as connection:
        return await fund_view(connection, job, DEFAULT_MARGINS)


async def runs(ledger: Ledger, job: str, gpus: int, **spec: Any) -> None:
    await ledger.enqueue(job, gpus=gpus, **spec)
    async with ledger.listening(job):
        await ledger.cycle(f"cycle-{job}")


def rungs(view: FundView) -> list[tuple[str, str, float, str | None]]:
    return [
        (each.rung, f"{each.tenant}/{each.envelope}", each.gives, each.code) for each in view.rungs
    ]


async def test_what_runs_is_paid_for_along_the_ladder(funded: Ledger):
    await envelope(funded, "red", milli=2000)
    await envelope(funded, "root", "pool", milli=3000)
    await runs(funded, "j", 4, tenant="red")
    view = await asked(funded, "j")
    assert view.says == "2 OWNED by red/main, 2 SHARED by root/pool"
    assert (view.runs, view.funded, view.deficit) == (True, True, 0)
    assert rungs(view) == [("own", "red/main", 2, "NO_ROOM"), ("parent", "root/pool", 2, None)]


async def test_what_waits_finds_the_room_that_is_left_behind_those_before_it(funded: Ledger):
    await envelope(funded, "red", milli=6000)
    await funded.enqueue("first", gpus=4, tenant="red", priority=9)
    await funded.enqueue("second", gpus=4, tenant="red", funding={"unfunded": "wait"})
    first, second = await asked(funded, "first"), await asked(funded, "second")
    assert first.says == "4 OWNED by red/main"
    assert second.says == (
        "no budget pays for 2 GPUs: the envelopes that it may use have no room (NO_ROOM), and it "
        "starts only where one does"
    )
    assert (second.funded, second.code, second.deficit) == (False, "NO_ROOM", 2)
    [rung] = second.rungs
    assert (rung.held_by, rung.ahead, rung.unused) == ({"red": 4}, 4, 2)
    assert [each.what for each in second.remedies] == ["fewer", "unfunded"]
    assert second.remedies[0].says == "ask for 2 GPUs: so many would be paid for"


async def test_each_remedy_says_what_to_do(funded: Ledger):
    at = datetime.now(UTC) + timedelta(days=3)
    await envelope(funded, "red", milli=4000, starts_at=at)
    await envelope(funded, "bank", milli=8000, lend_to=["red"], lend_milli=4000)
    one = await envelope(funded, "root", "pool", milli=8000)
    await cap(funded, "root", 2000, one)
    await funded.enqueue("j", gpus=4, tenant="red")
    view = await asked(funded, "j")
    assert view.code == "CAP"
    says = {each.what: each.says for each in view.remedies}
    assert says["later"] == f"wait until {at:%Y-%m-%d %H:%M} UTC: an envelope opens then"
    assert says["cap"] == "raise cap root/all by 2 GPUs"
    assert says["fewer"] == "ask for 2 GPUs: so many would be paid for"
    assert says["sponsors"].startswith("ask a sponsor: bank would lend 2 GPUs, with ")
    assert "`sponsors: [bank]`" in says["sponsors"]
    assert view.rungs[0].opens == at
    assert [each.funding for each in view.answer] == ["UNFUNDED"]


async def test_a_tenant_without_a_budget_asks_nobody(funded: Ledger):
    await runs(funded, "j", 1, tenant="free")
    view = await asked(funded, "j")
    assert (view.has_budget, view.runs, view.rungs) == (False, True, ())
    assert view.says == "tenant free has no budget: it pays for all that it uses"
    with pytest.raises(NotFoundError):
        await asked(funded, "nobody")
