"""Who would pay for a job, envelope by envelope, as its next cycle finds it."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from longshore.activities.funding import fund
from longshore.activities.funding.fund import fund_view
from longshore.activities.storage import GivenUp
from longshore.client.use_view import fund_screen
from longshore.models.errors import NotFoundError, RefusedError
from longshore.models.fund_view import FundView
from longshore.models.margins import DEFAULT_MARGINS
from longshore.scheduling.funding.explain import Explained, explain
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
    return await fund_view(ledger.database, job, DEFAULT_MARGINS)


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
    assert [each.what for each in second.remedies] == ["fewer", "budget", "unfunded"]
    assert second.remedies[0].says == "ask for 2 GPUs: so many would be paid for"
    assert second.remedies[1].says == (
        "raise envelope red/main to 8 GPUs in its budget file: `longshore budget apply FILE`"
    )
    await funded.rows("UPDATE envelopes SET milli = 8000")
    assert (await asked(funded, "second")).funded, "it is as it said"


async def test_what_helps_is_enough_for_those_before_it_who_wait_for_a_payer_too(funded: Ledger):
    await envelope(funded, "red", milli=2000)
    await runs(funded, "r0", 2, tenant="red", expected_duration="1h")
    for job in ("r1", "r2"):
        await funded.enqueue(job, gpus=2, tenant="red", funding={"unfunded": "wait"})
    first, second = await asked(funded, "r1"), await asked(funded, "r2")
    assert [each.what for each in first.remedies] == ["budget", "ends", "unfunded"]
    assert [each.what for each in second.remedies] == ["budget", "unfunded"]
    assert "raise envelope red/main to 4 GPUs" in first.remedies[0].says
    assert "raise envelope red/main to 6 GPUs" in second.remedies[0].says
    await funded.rows("UPDATE envelopes SET milli = 6000")
    assert (await asked(funded, "r2")).funded, "it is as it said"


async def test_what_helps_is_tried_in_a_thread_once_the_snapshot_is_over(
    funded: Ledger, monkeypatch: pytest.MonkeyPatch
):
    await envelope(funded, "red", milli=2000)
    await funded.enqueue("j", gpus=4, tenant="red", funding={"unfunded": "wait"})
    loop, began, goes_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def explained(*args: Any) -> Explained:
        assert threading.current_thread() is not threading.main_thread()
        loop.call_soon_threadsafe(began.set)
        assert goes_on.wait(30)
        return explain(*args)

    monkeypatch.setattr(fund, "explain", explained)
    asking = asyncio.create_task(asked(funded, "j"))
    await asyncio.wait({asking, ready := asyncio.create_task(began.wait())},
                       return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
    assert ready.done(), "others go on meanwhile"
    assert not await funded.rows(
        "SELECT FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'idle in transaction'"
    )
    goes_on.set()
    assert [each.what for each in (await asking).remedies] == ["fewer", "budget", "unfunded"]


async def test_what_helps_is_tried_no_further_where_nobody_waits_for_it(
    funded: Ledger, monkeypatch: pytest.MonkeyPatch
):
    await envelope(funded, "red", milli=2000)
    await funded.enqueue("j", gpus=4, tenant="red", funding={"unfunded": "wait"})
    loop, began, over = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    goes_on, raised = threading.Event(), list[Exception]()

    def explained(*args: Any) -> Explained:
        loop.call_soon_threadsafe(began.set)
        assert goes_on.wait(30)
        try:
            return explain(*args)
        except Exception as error:
            raised.append(error)
            raise
        finally:
            loop.call_soon_threadsafe(over.set)

    monkeypatch.setattr(fund, "explain", explained)
    asking = asyncio.create_task(asked(funded, "j"))
    await asyncio.wait_for(began.wait(), 30)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    goes_on.set()
    await asyncio.wait_for(over.wait(), 30)
    assert [type(each) for each in raised] == [GivenUp]


async def test_no_size_is_named_that_a_job_cannot_have(funded: Ledger):
    await envelope(funded, "red", milli=3000)
    checkpoint = {"folder": "saves", "save_file": True}
    await funded.enqueue(
        "elastic", tenant="red", funding={"unfunded": "wait"}, checkpoint=checkpoint,
        malleable={"min": 4, "max": 8, "step": 4}, gpus=8,
    )  # fmt: skip
    says = {each.what: each.says for each in (await asked(funded, "elastic")).remedies}
    assert "fewer" not in says
    assert says["smaller"] == (
        "let it be as small as 3 GPUs (`--set malleable.min=3 --set malleable.step=1`): so many "
        "would be paid for"
    )


async def test_one_that_holds_a_whole_node_is_not_told_to_ask_for_fewer_gpus(funded: Ledger):
    await funded.register("proven", gpus=8, conformance="0" * 64)
    await envelope(funded, "red", milli=3000)
    await funded.enqueue("alone", gpus=4, tenant="red", sensitive=True)
    waiting = await asked(funded, "alone")
    async with funded.listening("alone"):
        await funded.cycle("one")
    running = await asked(funded, "alone")
    assert (waiting.runs, running.runs) == (False, True)
    for view in (waiting, running):
        assert [each.what for each in view.remedies] == ["budget"]


async def test_of_an_array_a_slot_that_waits_is_told(funded: Ledger):
    await envelope(funded, "red", milli=2000)
    await funded.add_job("sweep")
    await funded.rows("UPDATE jobs SET tenant = 'red'")
    await funded.rows(
        "INSERT INTO arrays (id, elements, first, last, slots) VALUES ('sweep', 9, 0, 8, 2)"
    )
    with pytest.raises(RefusedError, match="neither runs nor waits now"):
        await asked(funded, "sweep")
    await runs(funded, "sweep.s1", 2, tenant="red")
    await funded.enqueue("sweep.s2", gpus=2, tenant="red", funding={"unfunded": "wait"})
    for number in (1, 2):
        await funded.rows(
            "INSERT INTO array_slots (array_id, number, job_id, generation, submitted_at)"
            " VALUES ('sweep', :n, :job, 1, now())", n=number, job=f"sweep.s{number}",
        )  # fmt: skip
    view = await asked(funded, "sweep")
    assert (view.job_id, view.funded, view.code) == ("sweep.s2", False, "NO_ROOM")


async def test_when_room_is_expected_back_is_said(funded: Ledger):
    await envelope(funded, "red", milli=4000)
    await envelope(funded, "blue", milli=2000)
    await runs(funded, "owner", 4, tenant="red", expected_duration="3h")
    await runs(funded, "other", 2, tenant="blue", expected_duration="1h")
    await funded.enqueue("j", gpus=3, tenant="red", funding={"unfunded": "wait"})
    view = await asked(funded, "j")
    says = {each.what: each.says for each in view.remedies}
    assert view.code == "NO_ROOM"
    at = datetime.now(UTC) + timedelta(hours=3)
    about = [f"about {at - timedelta(minutes=ago):%Y-%m-%d %H:%M} UTC: jobs" for ago in range(3)]
    assert any(each in says["ends"] for each in about), says
    assert says["budget"].startswith("raise envelope red/main to 7 GPUs ")


async def test_a_tenant_without_an_envelope_for_it_may_get_one(funded: Ledger):
    await envelope(funded, "red", milli=4000, gpu_type="A100")
    await funded.enqueue("j", gpus=2, gpu_type="H100", tenant="red", funding={"unfunded": "wait"})
    view = await asked(funded, "j")
    assert view.code == "NO_ENVELOPE"
    assert [each.says for each in view.remedies] == [
        "give red an envelope of 2 H100 GPUs in its budget file: `longshore budget apply FILE`",
        "let it run on idle GPUs (`--set funding.unfunded=run`)",
    ]


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
    file = "in its budget file: `longshore budget apply FILE`"
    assert says["cap"] == f"raise cap root/all by 2 GPUs {file}"
    assert says["fewer"] == "ask for 2 GPUs: so many would be paid for"
    assert says["sponsors"].startswith("ask a sponsor: bank would lend 2 GPUs, with ")
    assert "`sponsors: [bank]`" in says["sponsors"]
    assert view.rungs[0].opens == at
    assert [each.funding for each in view.answer] == ["UNFUNDED"]


async def test_a_sponsor_that_may_lend_no_more_is_named_with_what_it_would_have_to(funded: Ledger):
    bank = await envelope(funded, "bank", milli=8000, lend_to=["red"], lend_milli=2000)
    await envelope(funded, "red", milli=1000)
    terms = {"unfunded": "wait", "allow_borrow": True, "sponsors": ["bank"]}
    await funded.enqueue("j", gpus=4, tenant="red", funding=terms)
    view = await asked(funded, "j")
    assert view.code == "NO_ROOM"
    says = {each.what: each.says for each in view.remedies}
    assert says["lending"] == (
        "ask bank to lend more: `lending.max` of 3 GPUs in envelope main of its budget file"
    )
    await funded.rows(f"UPDATE envelopes SET lend_milli = 3000 WHERE id = {bank}")
    assert (await asked(funded, "j")).funded, "it is as it said"


async def test_a_tenant_without_a_budget_asks_nobody(funded: Ledger):
    await runs(funded, "j", 1, tenant="free")
    view = await asked(funded, "j")
    assert (view.has_budget, view.runs, view.rungs) == (False, True, ())
    assert view.says == "tenant free has no budget: it pays for all that it uses"
    with pytest.raises(NotFoundError):
        await asked(funded, "nobody")


QUOTA = (
    "quota of tenant root: max_gpus: 3 + 2 > 4: it waits for others of its tenant to end (QUOTA)"
)


async def _walled(ledger: Ledger, owner: str, **spec: Any) -> FundView:
    """Let three GPUs run below `root`, which may have four, and return what waits for two."""
    await ledger.rows(
        "UPDATE tenants SET quotas = jsonb_build_object('max_gpus', 4) WHERE name = 'root'"
    )
    await runs(ledger, "ran", 3, tenant="blue")
    await ledger.enqueue("walled", gpus=2, tenant=owner, priority=9, **spec)
    return await asked(ledger, "walled")


async def test_what_waits_for_a_quota_is_told_so_whoever_would_pay(funded: Ledger):
    await envelope(funded, "red", milli=2000)
    view = await _walled(funded, "red")
    assert (view.says, view.funded, view.code, view.deficit) == (QUOTA, False, "QUOTA", 0)
    assert rungs(view) == [("own", "red/main", 2, None)]
    assert [each.says for each in view.remedies] == [
        "wait for jobs of tenant root or one below it to end",
        "raise the quota: `longshore tenant set root --max-gpus 5`",
    ]
    # It asks nobody, so that the room of its budget is for who comes behind it.
    await funded.enqueue("behind", gpus=1, tenant="red")
    behind = await asked(funded, "behind")
    assert (behind.says, behind.code) == ("1 OWNED by red/main", None)


async def test_a_quota_is_raised_for_those_before_it_too_that_wait_for_it(funded: Ledger):
    await envelope(funded, "red", milli=9000)
    await _walled(funded, "red")
    await funded.enqueue("second", gpus=3, tenant="red")
    second = await asked(funded, "second")
    assert second.remedies[1].says == ("raise the quota: `longshore tenant set root --max-gpus 8`")
    await funded.rows("UPDATE tenants SET quotas = '{\"max_gpus\": 8}' WHERE name = 'root'")
    assert (await asked(funded, "second")).funded, "it is as it said"


async def test_where_nothing_is_found_in_the_way_nothing_is_said_to_help(
    funded: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fund, "in_its_way", lambda *_: ())
    await envelope(funded, "red", milli=2000)
    view = await _walled(funded, "red")
    assert (view.says, view.code, view.remedies) == (QUOTA, "QUOTA", ())


async def test_a_quota_and_a_budget_that_are_both_in_the_way_are_both_told(funded: Ledger):
    await envelope(funded, "red", milli=1000)
    view = await _walled(funded, "red", funding={"unfunded": "wait"})
    assert view.says == (
        f"{QUOTA}; besides, no budget pays for 1 GPU: the envelopes that it may use have no room "
        "(NO_ROOM), and it starts only where one does"
    )
    assert view.code == "QUOTA"
    assert all(
        each.says.endswith("; then a budget has to pay for it still") for each in view.remedies
    )


async def test_a_quota_is_told_of_a_tenant_without_a_budget(funded: Ledger):
    await tenant(funded, "grey", "root", budget=False)
    view = await _walled(funded, "grey")
    assert (view.has_budget, view.funded, view.code, view.says) == (False, False, "QUOTA", QUOTA)
    assert view.wants == 2
    console = Console(width=200)
    with console.capture() as shown:
        console.print(fund_screen(view, datetime.now(UTC), 200))
    assert f"\nQ{QUOTA[1:]}\n" in shown.get()


async def test_a_job_that_is_more_than_a_quota_alone_is_not_told_to_wait(funded: Ledger):
    await tenant(funded, "grey", budget=False)
    await funded.enqueue("wide", gpus=2, tenant="grey")
    await funded.rows(
        "UPDATE tenants SET quotas = '{\"max_gpus\": 1, \"max_jobs\": 0}' WHERE name = 'grey'"
    )
    view = await asked(funded, "wide")
    assert [each.says for each in view.remedies] == [
        "raise the quota: `longshore tenant set grey --max-gpus 2`, "
        "`longshore tenant set grey --max-jobs 1`"
    ]


async def test_of_a_job_that_is_set_aside_it_is_said_that_it_is(funded: Ledger):
    await envelope(funded, "red", milli=8000)
    await funded.enqueue("odd", gpus=1, tenant="red")
    async with funded.listening("odd"):
        await funded.rows("UPDATE queue SET request = '[]'")
        await funded.cycle("one")
    with pytest.raises(RefusedError, match="odd is set aside, so that no cycle plans it"):
        await asked(funded, "odd")
