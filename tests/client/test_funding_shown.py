"""What commands show of who pays: a job, why it waits, whom it would stop, use, and leases."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.preempt import PreemptionDryRun
from longshore.models.explanation import Explanation
from longshore.models.forecast import Forecast, ForecastKind
from longshore.models.fund_view import FundView
from longshore.models.funding_use import Leases, Usage
from longshore.models.funding_views import BudgetEdit
from longshore.models.job_report import JobReport
from longshore.models.settings import Settings
from tests.client.conftest import Command, Ran
from tests.support.funding import envelope, tenant
from tests.support.ledger import Ledger
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

# What 4 GPUs use up within the minutes of a test, however slow the machine is.
SECONDS = r"(?:under 0\.01|0\.\d\d)"


async def submitted(longshore: Command, pool: str, owner: str, name: str, *more: str) -> str:
    asks = ("--pool", pool, "--tenant", owner, "--name", name, "--gpus", "4", *more)
    ran = await longshore("submit", "-q", *asks, "--", "true")
    assert ran.code == 0, ran.err
    return ran.out.strip()


async def waits(longshore: Command, job: str) -> None:
    async def told() -> bool:
        shown = json.loads((await longshore("why", job, "--json")).out or "{}")
        return bool(shown.get("last_decision"))

    await eventually(told)


def words(ran: Ran) -> str:
    assert ran.code == 0, ran.err
    return " ".join(ran.out.split())


@pytest.fixture
async def family(control: Database, temporal: Client, pool: str) -> Ledger:
    """A tree of tenants with budgets: `root` over `red`, which has 8 GPUs, and `blue`."""
    ledger = Ledger(control, temporal, pool)
    await ledger.rows("UPDATE tenants SET budget_since = now() WHERE budget_since IS NULL")
    if not await ledger.rows("SELECT FROM tenants"):
        await tenant(ledger, "root")
        await tenant(ledger, "red", "root")
        await tenant(ledger, "blue", "root")
        await envelope(ledger, "red", milli=8000, sharing="none")
    return ledger


async def test_who_pays_is_told_of_each_job(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger, tmp_path: Path
) -> None:
    await longshore("pool", "set", pool, "--preemption", "enabled=false")
    mine = await submitted(longshore, pool, "red", "mine")
    await node.started(mine)
    idle = await submitted(longshore, pool, "blue", "idle")
    await node.started(idle)
    file = tmp_path / "next.yaml"
    asks = {"name": "next", "pool": pool, "tenant": "red", "gpus": 4, "command": "true"}
    file.write_text(json.dumps(asks))
    told = words(await longshore("preempt", "--dry-run", str(file)))
    assert "Paid for: red would pay for it" in told
    assert f"{idle} 5 4 4 UNFUNDED: preempted first; GPU-hours" in told
    next_one = await submitted(longshore, pool, "red", "next", "--set", "priority=2")
    await waits(longshore, next_one)

    told = words(await longshore("job", mine))
    assert "paid for 4 OWNED by red/main" in told
    assert re.search(rf"GPU-hours {SECONDS} OWNED by red/main", told)
    assert "paid for 4 UNFUNDED: preempted first" in words(await longshore("why", idle))
    assert "paid for red would pay for it" in words(await longshore("why", next_one))
    report = JobReport.model_validate_json((await longshore("job", mine, "--json")).out)
    assert report.payers is not None
    assert [(each.envelope, each.gpus) for each in report.payers.now] == [("main", 4)]
    why = Explanation.model_validate_json((await longshore("why", idle, "--json")).out)
    assert why.payers is not None
    assert [each.payer for each in why.payers.now] == [None]

    held = await submitted(longshore, pool, "red", "held", "--hold")
    said = words(await longshore("why", held))
    assert "held" in said
    assert "no budget" not in said

    ran = await longshore("preempt", "--dry-run", next_one)
    told = words(ran)
    assert "Paid for: red would pay for it" in told
    hours = f"{SECONDS} UNFUNDED"
    assert re.search(rf"{idle} 5 4 4 UNFUNDED: preempted first; GPU-hours: {hours}", told)
    assert f"{mine} 4 OWNED by red/main" in told
    as_json = await longshore("preempt", "--dry-run", next_one, "--json")
    found = PreemptionDryRun.model_validate_json(as_json.out)
    assert {job: paid[0].funding for job, paid in found.payers.items()} == {
        mine: "OWNED", idle: "UNFUNDED",
    }  # fmt: skip
    assert {job: used[0].funding for job, used in found.hours.items()} == {idle: "UNFUNDED"}

    table = words(await longshore("usage", "--by", "job"))
    assert re.search(rf"{idle} blue UNFUNDED nobody {SECONDS}", table)
    assert re.search(rf"{mine} red OWNED red/main {SECONDS}", table)
    used = Usage.model_validate_json((await longshore("usage", "--json")).out)
    assert used.gpu_hours == pytest.approx(sum(used.by_class.values()), abs=1e-5)
    rows = {(row.tenant, row.funding, row.payer) for row in used.rows}
    assert {row for row in rows if row[0] in ("red", "blue")} == {
        ("red", "OWNED", "red"), ("blue", "UNFUNDED", None),
    }  # fmt: skip
    assert "red/main OWNED red" in words(await longshore("usage", "--by", "envelope"))
    only = Usage.model_validate_json((await longshore("usage", "--tenant", "blue", "--json")).out)
    assert {row.tenant for row in only.rows} == {"blue"}

    told = words(await longshore("fund", mine))
    assert "Who would be asked if it were covered anew, in this order" in told
    assert f"{mine} of tenant red Paid for: 4 OWNED by red/main" in told
    told = words(await longshore("fund", idle))
    assert "Paid for: 4 UNFUNDED: preempted first; no budget pays for 4 GPUs" in told
    assert "sibling red/main 8 4 – red 4 0 ACL_DENIED no end" in told
    told = words(await longshore("fund", next_one))
    assert "Who is asked, in this order" in told
    assert f"{next_one} of tenant red wants 4 GPUs Would be paid for: 4 OWNED by red/main" in told
    assert "own red/main 8 4 – red 4 4 no end" in told
    view = FundView.model_validate_json((await longshore("fund", next_one, "--json")).out)
    assert (view.funded, view.wants, view.rungs[0].gives) == (True, 4, 4)

    held = Leases.model_validate_json((await longshore("leases", "--job", idle, "--json")).out)
    gpu = held.leases[0].gpu_index
    assert {lease.job_id for lease in held.leases} == {idle}
    shown = words(await longshore("leases", "--gpu", f"{node.id}/{gpu}"))
    assert f"{node.id} {gpu} {idle} blue 1 UNFUNDED nobody" in shown
    past = await longshore("leases", "--gpu", f"{node.id}/{gpu}", "--at", "2h")
    assert (past.code, past.out) == (0, "")
    assert past.err.startswith("Nobody held GPU 4 of ")
    for job in (next_one, idle, mine):
        await longshore("cancel", job)
    for job in (idle, mine):
        await node.end(job)


async def test_what_is_not_there_is_named(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger
) -> None:
    wrong = await longshore("leases", "--gpu", f"{node.id}/99")
    assert wrong.code != 0
    assert f"node {node.id} has GPUs 0-7, not GPU 99" in wrong.err
    assert "no node nowhere" in (await longshore("leases", "--gpu", "nowhere/1")).err
    then = await longshore("leases", "--gpu", f"{node.id}/3", "--at", "2020-01-01T00:00:00Z")
    assert f"Nobody held GPU 3 of {node.id} at 2020-01-01 00:00 UTC." in " ".join(then.err.split())
    for command in ("show", "remove"):
        gone = await longshore("budget", command, "bluee")
        assert gone.code == 66
        assert "there is no tenant 'bluee'; did you mean blue?" in gone.err
    nothing = await longshore("usage", "--tenant", "nobody-has-this")
    assert (nothing.code, nothing.out) == (66, "")
    assert "there is no tenant 'nobody-has-this'; tenants with a budget: " in nothing.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("leases", "--gpu", "a/b/c"), "give a node and one of its GPUs, such as node-a/3"),
        (("leases", "--at", "yesterday"), "--at 'yesterday': give a duration such as 10m"),
        (("usage", "--since", "x"), "--since 'x': give a duration such as 10m"),
        (("leases", "--at", "2999-01-01T00:00Z"), "--at '2999-01-01T00:00Z': give a time that"),
    ],
)
def test_what_cannot_be_read_is_told(
    cli: Callable[..., Ran], args: tuple[str, ...], says: str
) -> None:
    ran = cli(*args)
    assert ran.code == 2
    assert says in " ".join(ran.err.replace("│", " ").split())


@pytest.mark.exhaustive
async def test_a_dry_run_says_that_a_quota_or_a_sponsor_is_in_the_way(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger
) -> None:
    await tenant(family, "walled", "root", budget=False)
    ran = await longshore("tenant", "set", "walled", "--max-gpus", "6", "--max-queued", "1")
    assert ran.code == 0, ran.err

    async def dry(gpus: int, *more: str) -> Ran:
        asks = ("--pool", pool, "--tenant", "walled", "--gpus", str(gpus), "--dry-run", *more)
        return await longshore("submit", *asks, "--", "true")

    assert "It would start now on" in words(await dry(4))
    wide = await dry(7)
    assert (wide.code, wide.out) == (77, "")
    assert (
        "it would be refused: quota of tenant walled: max_gpus: it asks for 7, and 6 is the most"
        in " ".join(wide.err.split())
    )
    as_json = await dry(7, "--json")
    assert as_json.code == 77
    assert Forecast.model_validate_json(as_json.out).kind is ForecastKind.REFUSED
    lent = await dry(4, "--set", "funding.allow_borrow=true", "--set", "funding.sponsors=[blu]")
    assert lent.code == 77
    assert "there is no tenant 'blu'; did you mean blue?" in " ".join(lent.err.split())

    runs = await submitted(longshore, pool, "walled", "runs")
    await node.started(runs)
    over = "quota of tenant walled: max_gpus: 4 + 4 > 6: it waits for others of its tenant to end"
    told = words(await dry(4))
    assert f"It would wait, with nothing kept or bought for it: {over} (QUOTA)." in told
    assert "It would start now on" in words(await dry(2))
    waiting = await submitted(longshore, pool, "walled", "waits")
    await waits(longshore, waiting)
    assert over[:1].upper() + over[1:] in words(await longshore("fund", waiting))
    assert f"waits: {over} (QUOTA)" in words(await longshore("why", waiting))
    assert "max_queued: 1 + 1 > 1" in " ".join((await dry(2)).err.split())
    for job in (waiting, runs):
        await longshore("cancel", job)


@pytest.mark.exhaustive
async def test_a_dry_run_says_that_no_budget_pays_for_a_job_that_needs_one(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger
) -> None:
    owner = f"{pool}-violet"
    await tenant(family, owner, "root")
    await envelope(family, owner, milli=4000, sharing="none")
    runs = await submitted(longshore, pool, owner, "runs")
    await node.started(runs)

    async def dry(*more: str) -> str:
        asks = ("--pool", pool, "--tenant", owner, "--gpus", "1", "--dry-run", *more)
        return words(await longshore("submit", *asks, "--", "true"))

    full = (
        "It would wait, with nothing kept or bought for it: no budget pays for 1 GPU: the "
        "envelopes that it may use have no room (NO_ROOM), and it starts only where one does."
    )
    paid = await longshore(
        "submit", "--pool", pool, "--tenant", "red", "--gpus", "1", "--dry-run", "--", "true"
    )
    assert "; red would pay for it." in words(paid)
    assert full in await dry("--set", "funding.unfunded=wait")
    assert full in await dry("--set", "preemptible=false")
    told = await dry()
    assert "It would start now on" in told
    assert "it would be UNFUNDED, and preempted first: no budget pays for 1 GPU: the env" in told
    of_slots = full.replace("bought for it", "bought for any slot of it")
    assert of_slots in await dry("--set", "funding.unfunded=wait", "--array", "0-3")
    free = await longshore(
        "submit", "--pool", pool, "--tenant", owner, "--array", "0-3", "--dry-run", "--", "true"
    )
    assert "It would" not in words(free)
    capped = await longshore(
        "submit", "--pool", pool, "--tenant", owner, "--set", "funding.unfunded=wait",
        "--array", "0-3", "--max-cost", "1", "--", "true",
    )  # fmt: skip
    assert capped.code == 77
    assert "is not known: it is an array: nothing was submitted" in " ".join(capped.err.split())
    await longshore("cancel", runs)


@pytest.mark.exhaustive
async def test_an_envelope_for_gpus_that_the_pool_has_not_pays_for_no_job_there(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger, tmp_path: Path
) -> None:
    """It asks for any GPU: those of its pool are all of one type."""
    owner = f"{pool}-other"
    await tenant(family, owner)
    await envelope(family, owner, milli=8000, gpu_type="A100", sharing="none")
    asks = {
        "name": "any", "pool": pool, "tenant": owner, "gpus": 4, "command": "true",
        "funding": {"unfunded": "wait"},
    }  # fmt: skip
    file = tmp_path / "any.yaml"
    file.write_text(json.dumps(asks))
    unpaid = "no budget pays for 4 GPUs: no envelope that it may use is for such GPUs"
    assert unpaid in words(await longshore("submit", str(file), "--dry-run"))
    told = words(await longshore("preempt", "--dry-run", str(file)))
    assert f"nobody is stopped for it: {unpaid}" in told
    waiting = (await longshore("submit", "-q", str(file))).out.strip()
    await waits(longshore, waiting)
    for command in (("fund",), ("why",), ("preempt", "--dry-run")):
        told = words(await longshore(*command, waiting))
        assert unpaid.removeprefix("no ") in told
        assert "the next cycle places it" not in told
        assert "would pay for it" not in told
    await longshore("cancel", waiting)


@pytest.mark.exhaustive
async def test_a_job_that_has_to_be_paid_for_starts_where_its_envelope_is_for(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger, temporal: Client,
    settings: Settings,
) -> None:  # fmt: skip
    """On other nodes it would be taken back; nor is anybody stopped for it there."""
    owner, unpaid = f"{pool}-eu", f"{pool}-unpaid"
    await tenant(family, owner)
    await tenant(family, unpaid)
    labels = json.dumps({"zone": pool})
    await envelope(family, owner, milli=8000, labels=labels, sharing="none")
    wait = ("--set", "funding.unfunded=wait")
    nobody = await submitted(longshore, pool, owner, "nobody", *wait)
    await waits(longshore, nobody)
    no_node = "no envelope that it may use is for such GPUs"
    assert no_node in words(await longshore("fund", nobody))
    await longshore("cancel", nobody)
    there = ScriptedNode(
        temporal, pool, settings.resolve_agent_token(), node_id=f"there-{pool}",
        labels={"zone": pool},
    )  # fmt: skip
    async with there.serving():
        await there.register()
        first = await submitted(longshore, pool, owner, "first", *wait)
        await there.started(first)
        full = await submitted(longshore, pool, unpaid, "full", "--constraint", f"zone={pool}")
        await there.started(full)
        for name in ("one", "two"):
            other = await submitted(longshore, pool, unpaid, name, "--constraint", "!zone")
            await node.started(other)
        # Who runs unpaid where its envelope is not for is left alone, and there it is stopped.
        second = await submitted(longshore, pool, owner, "second", *wait)
        await there.started(second)
        assert node.stops == []
        assert {stop.key.job_id for stop in there.stops} == {full}
        for job in (first, second):
            await longshore("cancel", job)


@pytest.mark.exhaustive
async def test_why_says_what_would_pay_and_not_to_add_a_node(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger
) -> None:
    owner = f"{pool}-green"
    await tenant(family, owner, "root")
    await envelope(family, owner, milli=2000, sharing="none")
    waiting = await submitted(longshore, pool, owner, "unpaid", "--set", "funding.unfunded=wait")
    await waits(longshore, waiting)
    told = words(await longshore("why", waiting))
    assert "no budget pays for 2 GPUs" in told
    assert f"raise envelope {owner}/main to 4 GPUs in its budget file: `longshore budget" in told
    assert "let it run on idle GPUs (`--set funding.unfunded=run`)" in told
    assert "add " not in told
    assert "longshore agent" not in told
    await longshore("cancel", waiting)


async def test_a_job_that_is_submitted_again_with_its_key_is_the_one_that_runs(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger
) -> None:
    """It is looked at as one that comes new, beside itself."""
    owner = f"{pool}-green"
    await tenant(family, owner, "root")
    await envelope(family, owner, milli=8000, sharing="none")
    asks = (owner, "keyed", "--key", "once")
    first = await submitted(longshore, pool, *asks)
    await node.started(first)
    assert await submitted(longshore, pool, *asks) == first
    await longshore("cancel", first)


@pytest.mark.exhaustive
async def test_why_of_a_job_over_a_quota_says_how_to_raise_that(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger
) -> None:
    owner = f"{pool}-grey"
    ran = await longshore("tenant", "set", owner, "--max-gpus", "5")
    assert ran.code == 0, ran.err
    runs = await submitted(longshore, pool, owner, "runs")
    await node.started(runs)
    waiting = await submitted(longshore, pool, owner, "waits")
    await waits(longshore, waiting)
    told = words(await longshore("why", waiting))
    assert f"{waiting} waits: quota of tenant {owner}: max_gpus: 4 + 4 > 5" in told
    assert told.count("quota of tenant") == 1, "not as who pays, too"
    assert f"raise the quota: `longshore tenant set {owner} --max-gpus 8`" in told
    assert "longshore agent" not in told
    for job in (waiting, runs):
        await longshore("cancel", job)


async def test_an_end_that_a_job_outlasts_is_told_by_check_and_apply(
    longshore: Command, pool: str, node: ScriptedNode, family: Ledger, tmp_path: Path
) -> None:
    owner = f"{pool}-owner"
    await tenant(family, owner)
    await envelope(family, owner, milli=4000)
    job = await submitted(longshore, pool, owner, "outlasts", "--set", "expected_duration=1h")
    await node.started(job)
    end = (datetime.now(UTC) + timedelta(minutes=2)).replace(microsecond=0)
    file = tmp_path / "budget.yaml"
    envelopes = f"{{main: {{gpus: 4, end: '{end:%FT%TZ}'}}}}"
    file.write_text(f"budgets: [{{tenant: {owner}, envelopes: {envelopes}}}]")
    said = f"{owner}: envelopes.main.end: it pays until {end:%Y-%m-%d %H:%M:%S} UTC for 1 job "
    for what in ("check", "apply"):
        told = await longshore("budget", what, str(file), "--json")
        assert told.code == 0, told.err
        (note,) = BudgetEdit.model_validate_json(told.out).notes
        assert note.startswith(said), what
        assert note.endswith(f"{job}; nobody would pay for it then")
    again = await longshore("budget", "apply", str(file), "--json")
    assert BudgetEdit.model_validate_json(again.out).notes == ()
    await longshore("cancel", job)
    await node.end(job)


async def test_a_move_in_the_tree_says_first_who_loses_a_payer(
    longshore: Command,
    pool: str,
    node: ScriptedNode,
    family: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rich, poor = f"{pool}-rich", f"{pool}-poor"
    await tenant(family, rich)
    await tenant(family, poor, rich)
    await envelope(family, rich, milli=4000)
    shared = await submitted(longshore, pool, poor, "shared")
    await node.started(shared)
    assert f"4 SHARED by {rich}/main" in words(await longshore("job", shared))
    seen = datetime.now(UTC)

    dry = await longshore("tenant", "set", poor, "--parent", "root", "--dry-run")
    told = " ".join((dry.out + dry.err).split())
    assert f"{shared} shared {poor} 4 SHARED 4 UNFUNDED 4 {rich} nobody" in told
    assert "1 job would lose a payer, or the right to keep it." in told
    assert "Nothing is changed: it was a dry run." in told
    as_json = await longshore("tenant", "set", poor, "--parent", "root", "--dry-run", "--json")
    (move,) = BudgetEdit.model_validate_json(as_json.out).moves
    assert (move.job_id, move.loses) == (shared, True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", _refuses)
    no = await longshore("tenant", "set", poor, "--parent", "root")
    assert no.code != 0
    assert f"4 SHARED by {rich}/main" in words(await longshore("job", shared))
    for more in (("--shares", "2"), ("--parent", "root", "--yes")):
        ran = await longshore("tenant", "set", poor, *more)
        assert ran.code == 0, ran.err
    assert "4 SHARED 4 UNFUNDED" in " ".join(ran.out.split())

    async def unpaid() -> bool:
        return "4 UNFUNDED" in (await longshore("job", shared)).out

    await eventually(unpaid)
    held = words(await longshore("leases", "--job", shared))
    assert held.startswith("As of 20")
    assert f"{shared} {poor} 1 UNFUNDED nobody" in held
    at = ("--at", f"{seen:%Y-%m-%dT%H:%M:%S.%fZ}")
    before = words(await longshore("leases", "--job", shared, *at))
    assert before.startswith(f"As of {seen.astimezone():%Y-%m-%d %H:%M:%S %Z} node GPU")
    assert f"{shared} {poor} 1 SHARED {rich}/main" in before
    assert "UNFUNDED" not in before
    nothing = await longshore("tenant", "set", poor, "--parent", "root", "--dry-run")
    assert "No running job would have another payer now." in nothing.out
    await longshore("cancel", shared)
    await node.end(shared)


def _refuses(*_: object, **__: object) -> None:
    raise typer.Abort
