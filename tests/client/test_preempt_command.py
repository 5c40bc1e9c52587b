"""`longshore preempt --dry-run`: for files, and for a job that waits in a pool."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.preempt import PreemptionDryRun
from longshore.models.explanation import Explanation
from longshore.models.forecast import Forecast, ForecastKind
from longshore.models.money import micro_of
from longshore.models.node_messages import ProcessReport
from longshore.models.preemption import Way, WayKind
from longshore.models.settings import Settings
from longshore.models.text import format_gpus, listed
from longshore.models.views import JobView
from tests.client.conftest import Command, Ran
from tests.support.market import RunningMarket
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
STATE = str(EXAMPLES / "state-preemption.yaml")
JOB = str(EXAMPLES / "urgent.yaml")
CLI = Callable[..., Ran]


def test_the_example_stops_the_job_that_loses_least(
    cli: CLI, in_zone: Callable[[str], None]
) -> None:
    in_zone("Europe/Berlin")
    ran = cli("preempt", "--dry-run", "--state", STATE, "--job", JOB)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("stop sweep: it loses $0.78; ")
    assert lines[1] == f"urgent, class 8, 4 x H100 with 60GB; {STATE}"
    assert [line.split()[0] for line in lines if line.startswith("→")] == ["→"]
    assert "Would lose GPUs" in lines, "some of those go on with fewer"
    assert "it would get GPUs 0-3 of node-a, at 13:00:20 CET" in lines
    assert "release  is of class 8, which is not below 8" in lines


def test_the_example_as_json_holds_every_way(cli: CLI) -> None:
    ran = cli("preempt", "--dry-run", "--state", STATE, "--job", JOB, "--json")
    found = PreemptionDryRun.model_validate_json(ran.out)
    assert {way.kind for way in found.plan.ways} == set(WayKind)
    (victim,) = found.plan.victims
    assert victim.write == micro_of("0.046667")  # 20 s of 4 GPUs at $2.10
    assert found.plan.cost == victim.total


def test_in_a_pool_by_attained_service_a_job_of_the_same_class_yields(
    cli: CLI, tmp_path: Path
) -> None:
    job, state = tmp_path / "new.yaml", tmp_path / "state.yaml"
    job.write_text(
        "{name: new, command: 'true', gpus: 4, priority: 1, gpu_type: H100,"
        " checkpoint: {folder: saved, save_file: true}}"
    )
    by_age = cli("preempt", "--dry-run", "--state", STATE, "--job", str(job))
    assert "sweep    is of class 1, which is not below 1" in by_age.out
    state.write_text(Path(STATE).read_text() + "\npolicy: {order: attained-service}\n")
    ran = cli("preempt", "--dry-run", "--state", str(state), "--job", str(job))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("stop sweep, which yields to twice its rank: it loses $")
    assert "those that are stopped have less than 1/2 of its rank" in ran.out


def test_what_can_never_fit_is_told_so_without_the_price_of_a_wait(
    cli: CLI, tmp_path: Path
) -> None:
    job = tmp_path / "huge.yaml"
    job.write_text(
        "{name: huge, command: 'true', gpus: 24, priority: 9, gang: {unlabelled_nodes: true}}"
    )
    ran = cli("preempt", "--dry-run", "--state", STATE, "--job", str(job))
    assert ran.code == 0
    assert "needs 24 GPUs, the domains together have 16; " in ran.out
    assert "no end and no stop of running jobs helps" in " ".join(ran.out.split())
    assert "wait, nobody knows" not in ran.out
    (priced,) = [line for line in ran.out.splitlines() if "$" in line]
    assert priced.split()[:2] == ["→", "buy"], "of the file: what the job costs to buy instead"


def test_a_policy_that_is_off_is_shown_as_if_on_and_said(cli: CLI, tmp_path: Path) -> None:
    file = tmp_path / "off.yaml"
    file.write_text(Path(STATE).read_text() + "\npreemption: {enabled: false}\n")
    ran = cli("preempt", "--dry-run", "--state", str(file), "--job", JOB)
    assert ran.out.startswith("stop sweep: ")
    assert "preemption is off for" in ran.err


def test_a_job_that_holds_nothing_is_a_mistake_in_the_file(cli: CLI, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(Path(STATE).read_text().replace("0: notebook, 1: notebook, ", ""))
    ran = cli("preempt", "--dry-run", "--state", str(file), "--job", JOB)
    assert (ran.code, ran.out) == (65, "")
    assert "notebook holds no GPU: name it under used of a node" in ran.err


@pytest.mark.parametrize("name", ["./none", "none.yaml", "none.json", "../none", "/none/job"])
def test_a_file_that_is_not_there_is_said_to_be_none(
    cli: CLI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("preempt", "--dry-run", name)
    assert (ran.code, ran.out, ran.err) == (65, "", f"error: {name}: no such file\n")


@pytest.mark.parametrize("args", [(), ("job", "--state", STATE), ("--state", STATE)])
def test_it_wants_a_job_or_both_files(cli: CLI, args: tuple[str, ...]) -> None:
    ran = cli("preempt", "--dry-run", *args)
    assert (ran.code, ran.out) == (2, "")
    said = " ".join(ran.err.replace("│", " ").split())
    assert "give a job that waits, the file of a job, or --state FILE with --job FILE" in said


def test_without_dry_run_nobody_is_stopped(cli: CLI) -> None:
    ran = cli("preempt", "some-job")
    assert (ran.code, ran.out) == (64, "")
    assert "longshore preempt --dry-run JOB" in ran.err


@pytest.mark.exhaustive
async def test_a_job_that_waits_is_decided_for_in_its_pool(
    longshore: Command, pool: str, temporal: Client, settings: Settings, tmp_path: Path
) -> None:
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    await set_pool(longshore, pool, "enabled=false")  # or its cycles would stop the job
    async with node.serving():
        asks = ("--set", "priority=2", "--set", "expected_duration=1h")
        low = await submitted(longshore, pool, "--gpus", "8", *asks)
        await node.started(low)
        refused = await longshore("preempt", "--dry-run", low)
        assert refused.code != 0
        assert f"{low} is running: only a job that waits" in refused.err
        high = await submitted(longshore, pool, "--gpus", "4", "--set", "priority=8")

        async def waits() -> bool:
            shown = await longshore("jobs", "--pool", pool, "--state", "queued", "--json")
            return [view["id"] for view in json.loads(shown.out)] == [high]

        await eventually(waits)
        ran = await longshore("preempt", "--dry-run", high, "--json")
        assert ran.code == 0
        found = PreemptionDryRun.model_validate_json(ran.out)
        assert (found.source, found.switched_on) == (f"pool {pool}", False)
        (victim,) = found.plan.victims
        assert (victim.job_id, victim.priority, victim.gpus) == (low, 2, 8)
        assert "it cannot save" in victim.reason
        assert [gain.node_id for gain in found.plan.gains] == [node.id]
        before = tmp_path / "wide.yaml"
        before.write_text(f"name: wide\ncommand: 'true'\npool: {pool}\ngpus: 8\npriority: 9\n")
        ran = await longshore("preempt", "--dry-run", str(before), "--json")
        asked = PreemptionDryRun.model_validate_json(ran.out)
        assert (asked.request.id, [each.job_id for each in asked.plan.victims]) == ("wide", [low])
        listed = await longshore("jobs", "--pool", pool, "--json")
        assert {view["id"] for view in json.loads(listed.out)} == {low, high}, "none was submitted"
        await set_pool(longshore, pool, "near_end=2h", "enabled=true")
        shown = await longshore("pool", "show", pool)
        assert "none within 2h of its end" in shown.out
        ran = await longshore("preempt", "--dry-run", high)
        assert ran.out.startswith("nobody may be stopped for it: of 1 running job, 1 near the end")
        for job in (high, low):
            await longshore("cancel", job)
        await node.end(low)


@pytest.mark.exhaustive
async def test_of_a_job_that_waits_since_that_is_cheaper_why_says_the_ways_with_their_prices(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    await set_pool(longshore, pool, "near_end=0s", "enabled=true")
    async with node.serving():
        asks = ("--set", "priority=2", "--set", "expected_duration=2m")
        low = await submitted(longshore, pool, "--gpus", "8", *asks)
        await node.started(low)
        high = await submitted(longshore, pool, "--gpus", "1", "--set", "priority=3")

        async def weighed() -> str:
            ran = await longshore("why", high, "--json")
            told = Explanation.model_validate_json(ran.out) if ran.code == 0 else None
            return ran.out if told is not None and told.weighed is not None else ""

        told = Explanation.model_validate_json(await eventually(weighed))
        assert told.making_room is None
        assert told.weighed is not None
        wait, stop = told.weighed.ways
        assert (wait.chosen, stop.chosen, stop.title) == (True, False, f"stop {low}")
        assert 0 < wait.total < stop.total
        assert stop.lost.startswith("costs $")
        ran = await longshore("why", high)
        assert "Ways to start, as they are weighed now" in ran.out
        assert f"stop {low}" in ran.out
        for job in (high, low):
            await longshore("cancel", job)
        await node.end(low)


@pytest.mark.exhaustive
async def test_a_job_whose_class_has_risen_is_told_that_it_preempts_by_its_own(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    async with node.serving():
        runs = await submitted(longshore, pool, "--gpus", "8", "--set", "priority=5")
        await node.started(runs)
        assert (await longshore("pool", "set", pool, "--class-rises-every", "1s")).code == 0
        waits = await submitted(longshore, pool, "--gpus", "8", "--set", "priority=2")

        async def risen() -> PreemptionDryRun | None:
            ran = await longshore("preempt", "--dry-run", waits, "--json")
            found = PreemptionDryRun.model_validate_json(ran.out) if ran.code == 0 else None
            return found if found and (found.counted_as or 0) > 5 else None

        found = await eventually(risen)
        assert found
        assert found.plan.reason == (
            "nobody may be stopped for it: of 1 running job, 1 not of a lower class"
        )
        assert found.notes[-1].startswith(f"it counts as class {found.counted_as} in the order of")
        assert found.notes[-1].endswith("may be stopped for it goes by its own class, 2")
        assert "goes by its own class, 2" in (await longshore("preempt", "--dry-run", waits)).err
        for job in (waits, runs):
            await longshore("cancel", job)
        await node.end(runs)


@pytest.mark.exhaustive
async def test_one_moment_is_told_where_nobody_knows_how_long_those_take_that_run(
    longshore: Command, pool: str, temporal: Client, settings: Settings, tmp_path: Path
) -> None:
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    assert (await longshore("pool", "set", pool, "--order", "attained-service")).code == 0
    file = tmp_path / "low.yaml"
    file.write_text(f"{{name: low, command: 'true', pool: {pool}, gpus: 8, priority: 1}}")
    async with node.serving():
        high = await submitted(longshore, pool, "--gpus", "8", "--set", "priority=9")
        await node.started(high)
        foreseen = PreemptionDryRun.model_validate_json(
            (await longshore("preempt", "--dry-run", str(file), "--json")).out
        )
        ran = await longshore("submit", "-q", str(file))
        low = ran.out.strip()

        async def told() -> JobView:
            shown = json.loads((await longshore("why", low, "--json")).out)
            return Explanation.model_validate(shown).job

        waits = await eventually(lambda: _with_start(told))
        start = waits and waits.estimated_start
        assert start
        ran = await longshore("preempt", "--dry-run", low, "--json")
        for found in (PreemptionDryRun.model_validate_json(ran.out), foreseen):
            (way,) = found.plan.ways
            assert way.start is not None
            # It moves with the clock: an hour from when it is asked.
            assert abs(way.start - start) < timedelta(minutes=2)
            told_at = f"{way.start:%Y-%m-%d %H:%M:%S}"
            assert way.title.startswith(f"wait until {told_at} UTC, counted as ")
        for job in (low, high):
            await longshore("cancel", job)
        await node.end(high)


async def _with_start(told: Callable[[], Awaitable[JobView]]) -> JobView | None:
    job = await told()
    return job if job.estimated_start else None


@pytest.mark.exhaustive
async def test_the_price_to_buy_at_is_compared_for_a_file_too(
    longshore: Command, pool: str, market: RunningMarket, temporal: Client, settings: Settings,
    tmp_path: Path,
) -> None:  # fmt: skip
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    await set_pool(longshore, pool, "enabled=false")
    may = ("--buying", "enabled=true", "--buying", "max_price.FAST=$30")
    await longshore("pool", "set", pool, *may)
    file = tmp_path / "new.yaml"
    wish = "gpus: 8, priority: 8, expected_duration: 2h"
    file.write_text(f"{{name: new, command: 'true', pool: {pool}, {wish}}}")
    async with node.serving():
        wish = ("--gpus", "8", "--set", "priority=2", "--set", "expected_duration=9h")
        first = await submitted(longshore, pool, *wish)
        await node.started(first)
        ran = await longshore("preempt", "--dry-run", str(file), "--json")
        assert ran.code == 0
        of_file = buying(ran.out)
        assert of_file.total > of_file.cost > 0
        assert PreemptionDryRun.model_validate_json(ran.out).notes == ()
        listed = await longshore("jobs", "--pool", pool, "--json")
        assert [view["id"] for view in json.loads(listed.out)] == [first], "none was submitted"
        waits = (await longshore("submit", "-q", str(file))).out.strip()

        async def shown() -> str:  # once the job is in the queue
            ran = await longshore("preempt", "--dry-run", waits, "--json")
            return ran.out if ran.code == 0 else ""

        assert buying(await eventually(shown)).title == of_file.title
        for job in (waits, first):
            await longshore("cancel", job)
        await node.end(first)


async def test_in_a_pool_without_nodes_the_price_to_buy_at_is_named_or_why_there_is_none(
    longshore: Command, pool: str, market: RunningMarket, tmp_path: Path
) -> None:
    file = tmp_path / "new.yaml"
    wish = "gpus: 8, priority: 8, expected_duration: 2h"
    file.write_text(f"{{name: new, command: 'true', pool: {pool}, {wish}}}")

    async def decided(*settings: str) -> str:
        buying = [word for each in settings for word in ("--buying", each)]
        assert (await longshore("pool", "set", pool, "--growth", "open", *buying)).code == 0
        ran = await longshore("preempt", "--dry-run", str(file), "--json")
        assert ran.code == 0, ran.err
        return ran.out

    def notes(shown: str) -> tuple[str, ...]:
        return PreemptionDryRun.model_validate_json(shown).notes

    assert notes(await decided()) == ("no price to buy at: buying is off for this pool",)
    bought = await decided("enabled=true", "max_price.FAST=$30")
    assert (buying(bought).cost > 0, buying(bought).chosen, notes(bought)) == (True, True, ())
    (dear,) = notes(await decided("max_price.FAST=$0.01"))
    assert dear.startswith(
        "no price to buy at: nothing would be bought for it now: over the price limit"
    )


def buying(shown: str) -> Way:
    """Return what it would cost to buy, of a dry run as JSON."""
    found = PreemptionDryRun.model_validate_json(shown)
    (way,) = [way for way in found.plan.ways if way.kind is WayKind.BUY]
    return way


async def test_what_it_shows_is_what_then_happens(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    node.slow_to_stop = True  # so that the plan can be looked at while it is under way
    await set_pool(longshore, pool, "enabled=false")
    async with node.serving():
        running: list[str] = []
        for gpus, priority in ((1, 4), (3, 2), (2, 6), (2, 2)):
            wish = ("--gpus", str(gpus), "--set", f"priority={priority}")
            running.append(await submitted(longshore, pool, *wish))
            await node.started(running[-1])
        asks = ("--pool", pool, "--gpus", "4", "--set", "priority=8", "--json", "--", "true")
        off = await longshore("submit", "--dry-run", *asks)
        assert Forecast.model_validate_json(off.out).kind is ForecastKind.WAITS
        await set_pool(longshore, pool, "enabled=true")
        told = Forecast.model_validate_json((await longshore("submit", "--dry-run", *asks)).out)
        await set_pool(longshore, pool, "enabled=false")
        high = await submitted(longshore, pool, "--gpus", "4", "--set", "priority=8")

        async def waits() -> str:
            shown = await longshore("preempt", "--dry-run", high, "--json")
            return shown.out if shown.code == 0 else ""

        shown = PreemptionDryRun.model_validate_json(await eventually(waits)).plan
        assert 0 < len(shown.victims) < len(running)
        assert (told.kind, told.expected_micro_usd) == (ForecastKind.PREEMPTS, 0)
        stopped = listed([victim.job_id for victim in shown.victims], 3)
        (gain,) = shown.gains
        gpus = format_gpus(gain.gpu_indices)
        assert told.says.startswith(f"would start on {node.id} {gpus} once {stopped} ")
        assert told.ready_at is not None
        assert node.stops == []
        await set_pool(longshore, pool, "enabled=true")
        await eventually(lambda: len(node.stops) >= len(shown.victims))
        victims = {victim.job_id for victim in shown.victims}
        assert {stop.key.job_id for stop in node.stops} == victims
        explained = await longshore("why", high, "--json")
        done = Explanation.model_validate_json(explained.out).making_room
        assert done is not None
        assert {victim.job_id for victim in done.victims} == victims
        assert done.gains == shown.gains
        again = (await longshore("preempt", "--dry-run", high, "--json")).out
        plan = PreemptionDryRun.model_validate_json(again).plan
        assert plan.victims == (), "its victims keep no GPU that could be freed again"
        assert plan.reason.startswith("its GPUs are being freed already: ")
        for stop in node.stops:
            report = ProcessReport(exit_code=143, stopped_for=stop.reason)
            await node.end(stop.key.job_id, report=report)
        request = await node.started(high)
        assert request.placement.gpu_indices == gain.gpu_indices
        why = await longshore("why", shown.victims[0].job_id)
        assert f" preempted for {high}, " in " ".join(why.out.split())
        node.slow_to_stop = False
        for job in (high, *running):
            await longshore("cancel", job)
        await node.end(high)


async def set_pool(longshore: Command, pool: str, *preemption: str) -> None:
    """Change the rules of preemption; the next cycle, which comes soon, goes by them."""
    rules = [word for rule in preemption for word in ("--preemption", rule)]
    ran = await longshore("pool", "set", pool, *rules, "--interval", "1s")
    assert (ran.code, ran.err) == (0, "")


async def submitted(longshore: Command, pool: str, *args: str) -> str:
    ran = await longshore("submit", "-q", "--pool", pool, *args, "--", "true")
    assert ran.code == 0, ran.err
    return ran.out.strip()


async def test_a_job_that_no_cycle_plans_is_not_said_to_have_left_its_queue(
    longshore: Command, pool: str, settings: Settings
) -> None:
    job = await submitted(longshore, pool, "--gpus", "1")
    database = Database(settings.resolve_database_url())

    async def damaged() -> bool:
        async with database.transaction() as connection:
            by_hand = text("UPDATE queue SET request = '[]' WHERE job_id = :job")
            return (await connection.execute(by_hand, {"job": job})).rowcount == 1

    await eventually(damaged)
    await database.close()
    aside = await longshore("preempt", "--dry-run", job)
    assert aside.err.strip() == (
        f"error: {job} is set aside, so that no cycle plans it: `longshore why {job}` says why"
    )
    assert (await longshore("cancel", job)).code == 0
